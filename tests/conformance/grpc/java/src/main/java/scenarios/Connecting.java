package scenarios;

import static scenarios.Peer.outcome;
import static scenarios.Peer.saw;

import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** TLS and accounts. */
final class Connecting {
    private Connecting() {
    }

    static void register(Map<String, Main.Body> all) {
        all.put("tls", peer -> tls(peer.overTls()));
        all.put("accounts", Connecting::accounts);
    }

    private static Map<String, Object> tls(Peer peer) throws Exception {
        Producer producer = peer.producer();
        SimpleConsumer consumer = peer.consumer();
        producer.send(peer.message("received"));
        List<String> received = Peer.bodies(peer.received(consumer, 1, Peer.PATIENCE));
        List<MessageView> pushed = new CopyOnWriteArrayList<>();
        peer.push(message -> {
            pushed.add(message);
            return ConsumeResult.SUCCESS;
        });
        producer.send(peer.message("pushed"));
        Peer.until(() -> !pushed.isEmpty());
        return saw("received", received, "pushed", Peer.bodies(pushed));
    }

    /** The runner tells of an account that may do everything; that of guest has the same secret and may do nothing. */
    private static Map<String, Object> accounts(Peer peer) {
        String name = System.getenv("ACCOUNT_NAME");
        String secret = System.getenv("ACCOUNT_SECRET");
        return saw("right", withAccount(peer.signedBy(name, secret)),
            "wrong_secret", withAccount(peer.signedBy(name, "not-" + secret)),
            "unknown", withAccount(peer.signedBy("nobody", secret)),
            "guest", withAccount(peer.signedBy("guest", secret)),
            "none", withAccount(peer));
    }

    /** Sends and receives a message. */
    private static Map<String, Object> withAccount(Peer peer) {
        Map<String, Object> sent = outcome(() -> peer.producer().send(peer.message("body")));
        Map<String, Object> received = outcome(() -> {
            SimpleConsumer consumer = peer.consumer();
            sent.put("bodies", Peer.bodies(sent.containsKey("ok") ? peer.received(consumer, 1, Peer.PATIENCE)
                : consumer.receive(1, Peer.INVISIBLE)));
        });
        return saw("send", sent, "receive", received);
    }
}
