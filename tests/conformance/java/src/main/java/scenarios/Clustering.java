package scenarios;

import static scenarios.Peer.body;
import static scenarios.Peer.equal;
import static scenarios.Peer.sent;
import static scenarios.Peer.until;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;

/** One topic on two brokers of one cluster; only run by tests.conformance.cluster. */
final class Clustering {
    private static final int MESSAGES = 200;
    private static final Set<String> BROKERS = new TreeSet<>(List.of("broker-java", "broker-rucola"));

    private Clustering() {
    }

    static void register(Map<String, Scenario.Body> all) {
        all.put("cluster_two_brokers", Clustering::twoBrokers);
    }

    /**
     * The topic is created on both brokers, each gets half of the messages, and all are consumed in queue order and
     * found by key and id.
     */
    private static Map<String, Object> twoBrokers(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        Map<String, Integer> shares = new TreeMap<>();
        SendResult last = null;
        for (int i = 0; i < MESSAGES; i++) {
            last = sent(producer.send(peer.message("TagA", i % 5 == 0 ? "order-1" : "other", "message " + i)));
            shares.merge(last.getMessageQueue().getBrokerName(), 1, Integer::sum);
        }
        equal("brokers that got messages", BROKERS, shares.keySet());
        until("eight queues", () -> peer.queues().size() == 8 ? true : null);
        equal("brokers in the route", BROKERS, peer.queues().stream().map(queue -> queue.getBrokerName()).collect(Collectors.toCollection(TreeSet::new)));
        List<MessageExt> seen = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = peer.pushConsumer(peer.group);
        consumer.subscribe(peer.topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            seen.addAll(messages);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        until("all messages", () -> seen.size() >= MESSAGES ? seen : null);
        Thread.sleep(500);   // a message too many would come now
        equal("messages", MESSAGES, seen.size());
        equal("different messages", (long) MESSAGES, seen.stream().map(Peer::body).distinct().count());
        Map<String, Long> next = new TreeMap<>();
        for (MessageExt message : seen) {
            String queue = message.getBrokerName() + message.getQueueId();
            equal("offset in " + queue, next.getOrDefault(queue, 0L), message.getQueueOffset());
            next.put(queue, message.getQueueOffset() + 1);
        }
        String id = last.getMsgId();
        equal("by id", "message " + (MESSAGES - 1), body(until("the index entry", () -> {
            try {
                return producer.viewMessage(peer.topic, id);
            } catch (MQClientException notIndexedYet) {
                return null;
            }
        })));
        int found = until("messages of both by their key", () -> {
            int size = producer.queryMessage(peer.topic, "order-1", 64, 0, System.currentTimeMillis() + 60_000).getMessageList().size();
            return size >= MESSAGES / 5 ? size : null;
        });
        equal("messages by their key", MESSAGES / 5, found);
        return Map.of("shares", shares, "found", found);
    }
}
