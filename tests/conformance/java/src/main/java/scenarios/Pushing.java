package scenarios;

import static scenarios.Peer.body;
import static scenarios.Peer.check;
import static scenarios.Peer.equal;
import static scenarios.Peer.sent;
import static scenarios.Peer.until;

import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/** The push consumer: heartbeat, rebalance, held pulls, offsets. */
final class Pushing {
    private Pushing() {
    }

    static void register(Map<String, Scenario.Body> all) {
        all.put("push_concurrent", Pushing::concurrent);
        all.put("push_tags", Pushing::tags);
        all.put("push_orderly", Pushing::orderly);
        all.put("push_two_members", Pushing::twoMembers);
        all.put("push_resume", Pushing::resume);
    }

    private static void send(Peer peer, DefaultMQProducer producer, int first, int last) throws Exception {
        for (int i = first; i < last; i++) {
            sent(producer.send(peer.message(i % 2 == 0 ? "TagA" : "TagB", "key" + i, "message " + i)));
        }
    }

    private static MessageListenerConcurrently into(List<MessageExt> seen) {
        return (messages, context) -> {
            seen.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    private static DefaultMQPushConsumer start(Peer peer, String tags, List<MessageExt> seen) throws Exception {
        DefaultMQPushConsumer consumer = peer.pushConsumer(peer.group);
        consumer.subscribe(peer.topic, tags);
        consumer.registerMessageListener(into(seen));
        consumer.start();
        return consumer;
    }

    private static void expect(List<MessageExt> seen, int count) throws Exception {
        until(count + " consumed messages", () -> seen.size() >= count ? seen : null);
        Thread.sleep(300);   // a message too many would come now
        equal("consumed", count, seen.size());
        Set<String> bodies = new HashSet<>();
        seen.forEach(message -> check(bodies.add(body(message)), "twice: " + body(message)));
    }

    /** Messages sent before the start of the consumer and while it runs. */
    private static Map<String, Object> concurrent(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        send(peer, producer, 0, 50);
        List<MessageExt> seen = new CopyOnWriteArrayList<>();
        start(peer, "*", seen);
        expect(seen, 50);
        send(peer, producer, 50, 100);
        expect(seen, 100);
        return Map.of("messages", 100);
    }

    private static Map<String, Object> tags(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        send(peer, producer, 0, 50);
        List<MessageExt> seen = new CopyOnWriteArrayList<>();
        start(peer, "TagA || TagX", seen);
        expect(seen, 25);
        send(peer, producer, 50, 60);
        expect(seen, 30);
        seen.forEach(message -> equal("tag", "TagA", message.getTags()));
        return Map.of("messages", 30);
    }

    /** Consumes in order, which needs the broker's queue locks; order holds inside each queue. */
    private static Map<String, Object> orderly(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        send(peer, producer, 0, 60);
        List<MessageExt> seen = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = peer.pushConsumer(peer.group);
        consumer.subscribe(peer.topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            seen.addAll(messages);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        expect(seen, 60);
        Map<Integer, Long> next = new ConcurrentHashMap<>();
        for (MessageExt message : seen) {
            equal("offset in queue " + message.getQueueId(), next.getOrDefault(message.getQueueId(), 0L), message.getQueueOffset());
            next.put(message.getQueueId(), message.getQueueOffset() + 1);
        }
        return Map.of("queues", next.size());
    }

    /**
     * A second member joins: the broker notifies the first, they share the queues, and nothing comes twice after that.
     */
    private static Map<String, Object> twoMembers(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        send(peer, producer, 0, 20);
        List<MessageExt> first = new CopyOnWriteArrayList<>();
        List<MessageExt> second = new CopyOnWriteArrayList<>();
        start(peer, "*", first);
        expect(first, 20);
        DefaultMQPushConsumer other = peer.pushConsumer(peer.group);
        other.setInstanceName("second");
        other.subscribe(peer.topic, "*");
        other.registerMessageListener(into(second));
        other.start();
        int share = until("a share of the queues for the second member", () -> {
            int queues = other.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
                .mapToInt(queue -> queue.getTopic().equals(peer.topic) ? 1 : 0).sum();
            return queues > 0 ? queues : null;
        });
        Set<String> bodies = Collections.newSetFromMap(new ConcurrentHashMap<>());
        send(peer, producer, 20, 120);
        until("all messages at one of the two", () -> {
            first.forEach(message -> bodies.add(body(message)));
            second.forEach(message -> bodies.add(body(message)));
            return bodies.size() == 120 ? bodies : null;
        });
        check(!second.isEmpty(), "the second member got nothing");
        return Map.of("first", first.size(), "second", second.size(), "share", share);
    }

    /** The next start of the consumer continues at the offset stored at shutdown. */
    private static Map<String, Object> resume(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        send(peer, producer, 0, 30);
        List<MessageExt> before = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = start(peer, "*", before);
        expect(before, 30);
        consumer.shutdown();
        send(peer, producer, 30, 60);
        List<MessageExt> after = new CopyOnWriteArrayList<>();
        start(peer, "*", after);
        expect(after, 30);
        after.forEach(message -> check(Integer.parseInt(message.getKeys().substring(3)) >= 30, "again: " + body(message)));
        return Map.of("messages", 60);
    }
}
