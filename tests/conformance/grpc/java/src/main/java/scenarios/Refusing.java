package scenarios;

import static scenarios.Peer.outcome;
import static scenarios.Peer.saw;

import java.util.Map;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.producer.Producer;

/** What client or server refuses. */
final class Refusing {
    private Refusing() {
    }

    static void register(Map<String, Main.Body> all) {
        all.put("unknown_topic", Refusing::unknownTopic);
        all.put("wrong_type", Refusing::wrongType);
        all.put("too_large", Refusing::tooLarge);
    }

    private static Map<String, Object> unknownTopic(Peer peer) throws Exception {
        String missing = peer.topic + "_missing";
        Producer producer = peer.producer();
        return saw("send", outcome(() -> producer.send(peer.builderFor(missing, "lost").build())),
            "receive", outcome(() -> peer.consumer(missing, FilterExpression.SUB_ALL).receive(1, Peer.INVISIBLE)));
    }

    private static Map<String, Object> wrongType(Peer peer) throws Exception {
        Producer producer = peer.producer();
        long due = System.currentTimeMillis() + 1000;
        return saw("fifo", outcome(() -> producer.send(peer.builder("a").setMessageGroup("one").build())),
            "delay", outcome(() -> producer.send(peer.builder("b").setDeliveryTimestamp(due).build())),
            "normal", outcome(() -> producer.send(peer.message("c"))));
    }

    private static Map<String, Object> tooLarge(Peer peer) throws Exception {
        Producer producer = peer.producer();
        MessageBuilder many = peer.builder("many");
        for (int i = 0; i < 129; i++) {
            many.addProperty("key" + i, "value");
        }
        return saw("body", outcome(() -> producer.send(peer.message("x".repeat(4 * 1024 * 1024 + 1)))),
            "properties", outcome(() -> producer.send(many.build())),
            "reserved", outcome(() -> producer.send(peer.builder("reserved").addProperty("UNIQ_KEY", "value").build())));
    }
}
