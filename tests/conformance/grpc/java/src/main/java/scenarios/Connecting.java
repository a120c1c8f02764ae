package scenarios;

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
    private static Map<String, Object> accounts(Peer peer) throws Exception {
        String name = System.getenv("ACCOUNT_NAME");
        String secret = System.getenv("ACCOUNT_SECRET");
        Peer mine = peer.signedBy(name, secret);
        mine.producer().send(peer.message("body"));
        return saw("right", Peer.bodies(mine.received(mine.consumer(), 1, Peer.PATIENCE)),
            "wrong_secret", refused(peer.signedBy(name, "not-" + secret)),
            "unknown", refused(peer.signedBy("nobody", secret)),
            "guest", refused(peer.signedBy("guest", secret)),
            "none", refused(peer));
    }

    private static Map<String, Object> refused(Peer peer) {
        return saw("send", refusal(() -> peer.producer().send(peer.message("body"))),
            "receive", refusal(() -> peer.consumer().receive(1, Peer.INVISIBLE)));
    }

    /** The outcome of a call; a client that does not start tells the code in a cause of its exception only. */
    private static Map<String, Object> refusal(Peer.Call call) {
        try {
            call.run();
        } catch (Throwable failure) {
            Map<String, Object> saw = Peer.failure(failure);
            for (Throwable cause = failure; cause != null && saw.get("code") == null; cause = cause.getCause()) {
                saw.put("code", Peer.failure(cause).get("code"));
            }
            return saw;
        }
        return saw("ok", true);
    }
}
