package scenarios;

import static scenarios.Peer.body;
import static scenarios.Peer.equal;
import static scenarios.Peer.sent;
import static scenarios.Peer.until;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Subscriptions by SQL92 expressions. */
final class Filtering {
    private static final String EXAMPLE =
        "(TAGS is not null and TAGS in ('TagA','TagB')) and (a is not null and a between 0 and 3)";
    private static final int MESSAGES = 120;

    private Filtering() {
    }

    static void register(Map<String, Scenario.Body> all) {
        all.put("filter_sql", Filtering::sql);
        all.put("filter_refused", Filtering::refused);
    }

    /** What the expression lets through, all of it and nothing else, sent before and after the subscription. */
    private static Map<String, Object> sql(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        List<String> wanted = new ArrayList<>();
        send(peer, producer, 0, wanted);
        List<MessageExt> seen = new CopyOnWriteArrayList<>();
        consumer(peer, EXAMPLE, seen).start();
        until("the messages sent before", () -> seen.size() >= wanted.size() ? seen : null);
        send(peer, producer, MESSAGES, wanted);
        until("the messages sent after", () -> seen.size() >= wanted.size() ? seen : null);
        Thread.sleep(1000);   // one too many would come now
        List<String> bodies = new ArrayList<>();
        seen.forEach(message -> bodies.add(body(message)));
        Collections.sort(bodies);
        Collections.sort(wanted);
        equal("bodies", wanted, bodies);
        return Map.of("sent", 2 * MESSAGES, "consumed", bodies.size());
    }

    /** An expression that cannot be compiled stops the start of the consumer. */
    private static Map<String, Object> refused(Peer peer) throws Exception {
        sent(peer.producer().send(peer.message("TagA", "key", "one")));
        try {
            consumer(peer, "a = 1 and b = ", new ArrayList<>()).start();
        } catch (MQClientException refusal) {
            equal("code", 23, refusal.getResponseCode());
            return Map.of("code", refusal.getResponseCode());
        }
        throw new AssertionError("the consumer started");
    }

    private static void send(Peer peer, DefaultMQProducer producer, int from, List<String> wanted) throws Exception {
        for (int i = from; i < from + MESSAGES; i++) {
            String tag = new String[] {"TagA", "TagB", "TagC"}[i % 3];
            Message message = peer.message(tag, "key" + i, "message " + i);
            if (i % 5 != 0) {
                message.putUserProperty("a", String.valueOf(i % 7));
            }
            sent(producer.send(message));
            if (i % 3 != 2 && i % 5 != 0 && i % 7 <= 3) {
                wanted.add("message " + i);
            }
        }
    }

    private static DefaultMQPushConsumer consumer(Peer peer, String expression, List<MessageExt> seen) throws Exception {
        DefaultMQPushConsumer consumer = peer.pushConsumer(peer.group);
        consumer.subscribe(peer.topic, MessageSelector.bySql(expression));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            seen.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }
}
