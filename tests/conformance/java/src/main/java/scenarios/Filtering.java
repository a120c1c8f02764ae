package scenarios;

import static scenarios.Peer.check;
import static scenarios.Peer.equal;
import static scenarios.Peer.sent;
import static scenarios.Peer.until;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.IntPredicate;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Subscriptions by several tags and by SQL92 expressions. */
final class Filtering {
    private static final String EXAMPLE =
        "(TAGS is not null and TAGS in ('TagA','TagB')) and (a is not null and a between 0 and 3)";
    private static final int MESSAGES = 120;

    private Filtering() {
    }

    static void register(Map<String, Scenario.Body> all) {
        all.put("filter_tags", peer -> tags(peer, false));
        all.put("filter_sql", peer -> sql(peer, false));
        all.put("filter_refused", Filtering::refused);
        all.put("crash_tags", peer -> tags(peer, true));
        all.put("crash_sql", peer -> sql(peer, true));
    }

    private static Map<String, Object> tags(Peer peer, boolean crash) throws Exception {
        return consume(peer, MessageSelector.byTag("TagA || TagC"), i -> i % 3 != 1, crash);
    }

    private static Map<String, Object> sql(Peer peer, boolean crash) throws Exception {
        return consume(peer, MessageSelector.bySql(EXAMPLE), i -> i % 3 != 2 && i % 5 != 0 && i % 7 <= 3, crash);
    }

    /**
     * All messages that the selector accepts come, and no others: sent before and after the subscription and a crash.
     */
    private static Map<String, Object> consume(Peer peer, MessageSelector selector, IntPredicate wanted, boolean crash) throws Exception {
        DefaultMQProducer producer = peer.producer();
        send(peer, producer, 0);
        List<MessageExt> seen = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = consumer(peer, selector, seen);
        consumer.start();
        expect(seen, MESSAGES, wanted, crash);
        if (crash) {
            send(peer, producer, MESSAGES);
            peer.restart();
        }
        send(peer, producer, crash ? 2 * MESSAGES : MESSAGES);
        int sent = crash ? 3 * MESSAGES : 2 * MESSAGES;
        expect(seen, sent, wanted, crash);
        return Map.of("sent", sent, "consumed", seen.size());
    }

    /** Waits for exactly the wanted ones of the first {@code sent} messages; after a crash some may come again. */
    private static void expect(List<MessageExt> seen, int sent, IntPredicate wanted, boolean crash) throws Exception {
        Set<String> bodies = IntStream.range(0, sent).filter(wanted).mapToObj(i -> "message " + i).collect(Collectors.toSet());
        until(bodies.size() + " different messages", () -> seen.stream().map(Peer::body).distinct().count() >= bodies.size() ? seen : null);
        Thread.sleep(1000);   // a message too many would come now
        equal("bodies", bodies, seen.stream().map(Peer::body).collect(Collectors.toSet()));
        check(crash || seen.size() == bodies.size(), "some came twice: " + seen.size());
    }

    /** An expression that cannot be compiled stops the start of the consumer. */
    private static Map<String, Object> refused(Peer peer) throws Exception {
        sent(peer.producer().send(peer.message("TagA", "key", "one")));
        try {
            consumer(peer, MessageSelector.bySql("a = 1 and b = "), new ArrayList<>()).start();
        } catch (MQClientException refusal) {
            equal("code", 23, refusal.getResponseCode());
            return Map.of("code", refusal.getResponseCode());
        }
        throw new AssertionError("the consumer started");
    }

    private static void send(Peer peer, DefaultMQProducer producer, int from) throws Exception {
        for (int i = from; i < from + MESSAGES; i++) {
            String tag = new String[] {"TagA", "TagB", "TagC"}[i % 3];
            Message message = peer.message(tag, "key" + i, "message " + i);
            if (i % 5 != 0) {
                message.putUserProperty("a", String.valueOf(i % 7));
            }
            peer.sendAgain(() -> producer.send(message));
        }
    }

    private static DefaultMQPushConsumer consumer(Peer peer, MessageSelector selector, List<MessageExt> seen) throws Exception {
        DefaultMQPushConsumer consumer = peer.pushConsumer(peer.group);
        consumer.subscribe(peer.topic, selector);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            seen.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }
}
