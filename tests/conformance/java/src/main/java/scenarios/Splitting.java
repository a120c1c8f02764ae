package scenarios;

import static scenarios.Peer.body;
import static scenarios.Peer.check;
import static scenarios.Peer.equal;
import static scenarios.Peer.sent;
import static scenarios.Peer.until;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** More messages than one request can hold, sent as batches of at most 1 MB. */
final class Splitting {
    private static final int MESSAGES = 100_000;
    private static final int BATCH_BYTES = 1_000_000;
    private static final int OVERHEAD_BYTES = 20;   // per message in a batch: lengths, flag, checksum

    private Splitting() {
    }

    static void register(Map<String, Scenario.Body> all) {
        all.put("send_split", peer -> split(peer, false));
        all.put("crash_split", peer -> split(peer, true));
    }

    /** Every message arrives, even with a crash after half of the batches were acknowledged. */
    private static Map<String, Object> split(Peer peer, boolean crash) throws Exception {
        List<List<Message>> batches = batches(peer);
        DefaultMQProducer producer = peer.producer();
        sent(producer.send(peer.message("Setup", "key", "makes the topic, of which consumers learn when they start")));
        Set<String> seen = ConcurrentHashMap.newKeySet();
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = peer.pushConsumer(peer.group);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.subscribe(peer.topic, "TagA");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> seen.add(body(message)));
            count.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (int i = 0; i < batches.size(); i++) {
            if (crash && i == batches.size() / 2) {
                peer.restart();
            }
            List<Message> batch = batches.get(i);
            peer.sendAgain(() -> producer.send(batch));
        }
        until(MESSAGES + " messages", () -> seen.size() >= MESSAGES ? seen : null);
        equal("different messages", MESSAGES, seen.size());
        check(crash || count.get() == MESSAGES, "some came twice: " + count);
        return Map.of("messages", MESSAGES, "batches", batches.size());
    }

    private static List<List<Message>> batches(Peer peer) {
        List<List<Message>> batches = new ArrayList<>(List.of(new ArrayList<>()));
        int bytes = 0;
        for (int i = 0; i < MESSAGES; i++) {
            Message message = peer.message("TagA", "order" + i, "message " + i);
            int size = message.getTopic().length() + message.getBody().length + OVERHEAD_BYTES;
            for (Map.Entry<String, String> property : message.getProperties().entrySet()) {
                size += property.getKey().length() + property.getValue().length();
            }
            if (bytes + size > BATCH_BYTES) {
                batches.add(new ArrayList<>());
                bytes = 0;
            }
            batches.get(batches.size() - 1).add(message);
            bytes += size;
        }
        check(batches.size() > 4, batches.size() + " batches");
        return batches;
    }
}
