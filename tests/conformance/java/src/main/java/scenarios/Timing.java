package scenarios;

import static scenarios.Peer.check;
import static scenarios.Peer.equal;
import static scenarios.Peer.sent;

import java.lang.reflect.Method;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages with a time of delivery, for brokers of 5.x; clients of 4.9 can set the properties too. */
final class Timing {
    private static final int MESSAGE_ILLEGAL = 13;

    private Timing() {
    }

    static void register(Map<String, Scenario.Body> all) {
        all.put("delay_times", Timing::times);
        all.put("delay_times_refused", Timing::refused);
        all.put("delay_withdrawn", Timing::withdrawn);
        if (recall() != null) {
            all.put("delay_recalled", Timing::recalled);
        }
    }

    /**
     * Delays in seconds and milliseconds, wall-clock times, times that have passed: no message comes early, each comes
     * once and unchanged.
     */
    private static Map<String, Object> times(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        long start = System.currentTimeMillis();
        Map<String, Long> due = new LinkedHashMap<>();
        Map<String, SendResult> results = new LinkedHashMap<>();
        for (int i = 0; i < 8; i++) {
            String[] property = {"TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_DELIVER_MS"};
            long[] value = {1 + i / 4, 700 + 100 * i, start + 2500 + i, start - 5000};
            long[] dueMs = {start + value[0] * 1000, start + value[1], value[2], start};
            Message message = peer.message("TagA", "key" + i, "message " + i);
            MessageAccessor.putProperty(message, property[i % 4], String.valueOf(value[i % 4]));
            message.putUserProperty("mine", "value " + i);
            due.put("message " + i, dueMs[i % 4]);
            results.put("message " + i, sent(producer.send(message)));
        }
        List<MessageExt> found = peer.readAll(due.size());
        equal("messages", due.size(), found.size());
        for (MessageExt message : found) {
            String body = Peer.body(message);
            long early = due.get(body) - message.getStoreTimestamp();
            check(early <= 0, body + " came " + early + " ms early");
            SendResult result = results.get(body);
            equal("topic", peer.topic, message.getTopic());
            equal("queue", result.getMessageQueue().getQueueId(), message.getQueueId());
            equal("unique id", result.getMsgId(), message.getMsgId());
            equal("tag", "TagA", message.getTags());
            equal("property", body.replace("message", "value"), message.getUserProperty("mine"));
        }
        return Map.of("messages", found.size());
    }

    /** A time too far ahead, and one that is not a number, are refused. */
    private static Map<String, Object> refused(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        for (String value : new String[] {"259201", "soon"}) {
            Message message = peer.message("TagA", "key", "refused");
            MessageAccessor.putProperty(message, "TIMER_DELAY_SEC", value);
            try {
                producer.send(message);
                throw new AssertionError(value + " was accepted");
            } catch (MQBrokerException refusal) {
                equal("code", MESSAGE_ILLEGAL, refusal.getResponseCode());
            }
        }
        return Map.of("code", MESSAGE_ILLEGAL);
    }

    /** A message that recalls another one with the same due time keeps it from coming. */
    private static Map<String, Object> withdrawn(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        String due = String.valueOf(System.currentTimeMillis() + 3000);
        String goes = null;
        for (String name : new String[] {"stays", "goes", "withdraws"}) {
            Message message = peer.message("TagA", name, name);
            MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", due);
            if (name.equals("withdraws")) {
                MessageAccessor.putProperty(message, "TIMER_DEL_UNIQKEY", peer.topic + "+" + goes);
            }
            goes = sent(producer.send(message)).getMsgId();
        }
        return onlyOneStays(peer);
    }

    /** Recalls a message by the handle in the response to its send. */
    private static Map<String, Object> recalled(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        String due = String.valueOf(System.currentTimeMillis() + 3000);
        for (String name : new String[] {"stays", "goes"}) {
            Message message = peer.message("TagA", name, name);
            MessageAccessor.putProperty(message, "TIMER_DELIVER_MS", due);
            SendResult result = sent(producer.send(message));
            if (name.equals("goes")) {
                Object handle = SendResult.class.getMethod("getRecallHandle").invoke(result);
                equal("recalled", result.getMsgId(), recall().invoke(producer, peer.topic, handle));
            }
        }
        return onlyOneStays(peer);
    }

    private static Map<String, Object> onlyOneStays(Peer peer) throws Exception {
        peer.readAll(1);
        Thread.sleep(1500);
        List<MessageExt> found = peer.readAll(1);
        equal("messages", 1, found.size());
        equal("body", "stays", Peer.body(found.get(0)));
        return Map.of("messages", found.size());
    }

    /** Methods that clients before 5.3.2 do not have. */
    private static Method recall() {
        try {
            return DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
        } catch (NoSuchMethodException before) {
            return null;
        }
    }
}
