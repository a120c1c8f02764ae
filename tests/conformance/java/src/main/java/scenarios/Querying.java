package scenarios;

import static scenarios.Peer.body;
import static scenarios.Peer.check;
import static scenarios.Peer.equal;
import static scenarios.Peer.sent;
import static scenarios.Peer.until;

import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;

/** Look-ups through the index and by position. */
final class Querying {
    private Querying() {
    }

    static void register(Map<String, Scenario.Body> all) {
        all.put("query_key", Querying::key);
        all.put("query_id", Querying::id);
    }

    private static Map<String, Object> key(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        for (int i = 0; i < 12; i++) {
            sent(producer.send(peer.message("TagA", i % 3 == 0 ? "order-1 line" + i : "order-2", "message " + i)));
        }
        long now = System.currentTimeMillis();
        List<MessageExt> found = until("four messages of order-1", () -> {
            try {
                List<MessageExt> list = producer.queryMessage(peer.topic, "order-1", 32, 0, now + 60_000).getMessageList();
                return list.size() >= 4 ? list : null;
            } catch (MQClientException notIndexedYet) {
                return null;
            }
        });
        equal("messages", 4, found.size());
        found.forEach(message -> check(message.getKeys().startsWith("order-1 "), "keys " + message.getKeys()));
        equal("second key of a message", 1, producer.queryMessage(peer.topic, "line9", 32, 0, now + 60_000).getMessageList().size());
        try {
            producer.queryMessage(peer.topic, "absent", 32, 0, now + 60_000);
            throw new AssertionError("found a key that was never sent");
        } catch (MQClientException expected) {
            return Map.of("messages", 4);
        }
    }

    private static Map<String, Object> id(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        sent(producer.send(peer.message("TagA", "other", "another message")));
        SendResult result = sent(producer.send(peer.message("TagA", "wanted", "the wanted message")));
        MessageExt byPlace = producer.viewMessage(peer.topic, result.getOffsetMsgId());
        equal("by offset id", "the wanted message", body(byPlace));
        equal("its message id", result.getMsgId(), byPlace.getMsgId());
        MessageExt byId = until("the index entry", () -> {
            try {
                return producer.viewMessage(peer.topic, result.getMsgId());
            } catch (MQClientException notIndexedYet) {
                return null;
            }
        });
        equal("by unique id", "the wanted message", body(byId));
        String elsewhere = result.getOffsetMsgId().substring(0, 16) + "0000000000FFFFFF";
        try {
            MessageExt nothing = producer.viewMessage(peer.topic, elsewhere);
            throw new AssertionError("found " + nothing);
        } catch (MQBrokerException | MQClientException expected) {
            return Map.of("id", result.getMsgId());
        }
    }
}
