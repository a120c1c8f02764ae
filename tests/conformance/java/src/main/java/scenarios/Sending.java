package scenarios;

import static scenarios.Peer.body;
import static scenarios.Peer.check;
import static scenarios.Peer.equal;
import static scenarios.Peer.sent;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Every way of sending, read back and compared. */
final class Sending {
    private Sending() {
    }

    static void register(Map<String, Scenario.Body> all) {
        all.put("send_sync", Sending::sync);
        all.put("send_fields", Sending::fields);
        all.put("send_large", Sending::large);
        all.put("send_async", Sending::async);
        all.put("send_oneway", Sending::oneway);
        all.put("send_batch", Sending::batch);
        all.put("send_selector", Sending::selector);
        all.put("send_queue", Sending::queue);
        all.put("send_threads", Sending::threads);
    }

    /** Sends one by one: the first send also creates the topic, and queue offsets rise by one in each queue. */
    private static Map<String, Object> sync(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        Map<Integer, Long> next = new HashMap<>();
        Set<String> ids = new HashSet<>();
        for (int i = 0; i < 40; i++) {
            SendResult result = sent(producer.send(peer.message("TagA", "key" + i, "sync " + i)));
            int queue = result.getMessageQueue().getQueueId();
            equal("offset in queue " + queue, next.getOrDefault(queue, 0L), result.getQueueOffset());
            next.put(queue, result.getQueueOffset() + 1);
            check(ids.add(result.getMsgId()), "message id twice");
        }
        Set<String> read = new HashSet<>();
        peer.readAll(40).forEach(message -> read.add(message.getMsgId()));
        equal("message ids", ids, read);
        return Map.of("messages", 40, "queues", next.size());
    }

    /** All parts of a message come back unchanged: flag, tag, keys, properties, unusual bytes. */
    private static Map<String, Object> fields(Peer peer) throws Exception {
        Message full = peer.message("TagB", "first second", "caf\u00e9 \u6d88\u606f \ud83d\udce8");
        full.setFlag(-7);
        full.putUserProperty("name", "\u5f20\u4e09 <&>\"\\/ \t");
        Message bare = new Message(peer.topic, new byte[] {0, 1, 2, (byte) 0xff});
        DefaultMQProducer producer = peer.producer();
        long before = System.currentTimeMillis();
        SendResult result = sent(producer.send(full));
        sent(producer.send(bare));
        List<MessageExt> read = peer.readAll(2);
        MessageExt got = read.stream().filter(m -> "TagB".equals(m.getTags())).findFirst().orElseThrow();
        MessageExt other = read.stream().filter(m -> m.getTags() == null).findFirst().orElseThrow();
        equal("body", new String(full.getBody(), StandardCharsets.UTF_8), body(got));
        check(Arrays.equals(bare.getBody(), other.getBody()), "body of four bytes");
        equal("flag", -7, got.getFlag());
        equal("keys", "first second", got.getKeys());
        equal("property", full.getUserProperty("name"), got.getUserProperty("name"));
        equal("queue", result.getMessageQueue().getQueueId(), got.getQueueId());
        equal("queue offset", result.getQueueOffset(), got.getQueueOffset());
        check(got.getStoreTimestamp() >= before && got.getStoreTimestamp() <= System.currentTimeMillis(), "store time");
        check(got.getBornTimestamp() >= before && got.getBornTimestamp() <= got.getStoreTimestamp(), "born time");
        check(got.getBornHostString().startsWith("127."), "born host " + got.getBornHostString());
        return Map.of("properties", got.getProperties().size());
    }

    /** A body above 4 KiB that the client compresses, and one of 3 MiB that it cannot compress much. */
    private static Map<String, Object> large(Peer peer) throws Exception {
        byte[] soft = "a line that repeats. ".repeat(5000).getBytes(StandardCharsets.UTF_8);
        byte[] hard = new byte[3 << 20];
        new Random(1).nextBytes(hard);
        DefaultMQProducer producer = peer.producer();
        sent(producer.send(new Message(peer.topic, "soft", soft)));
        sent(producer.send(new Message(peer.topic, "hard", hard)));
        for (MessageExt message : peer.readAll(2)) {
            byte[] expected = message.getTags().equals("soft") ? soft : hard;
            check(Arrays.equals(expected, message.getBody()), "body " + message.getTags());
        }
        return Map.of("bytes", soft.length + hard.length);
    }

    private static Map<String, Object> async(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        CountDownLatch done = new CountDownLatch(200);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        for (int i = 0; i < 200; i++) {
            producer.send(peer.message("TagA", "key" + i, "async " + i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    try {
                        sent(result);
                    } catch (AssertionError error) {
                        failure.set(error);
                    }
                    done.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    failure.set(error);
                    done.countDown();
                }
            });
        }
        check(done.await(Peer.PATIENCE_MS, TimeUnit.MILLISECONDS), done.getCount() + " answers missing");
        if (failure.get() != null) {
            throw new AssertionError("asynchronous send", failure.get());
        }
        equal("messages", 200, peer.readAll(200).size());
        return Map.of("messages", 200);
    }

    private static Map<String, Object> oneway(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        for (int i = 0; i < 50; i++) {
            producer.sendOneway(peer.message("TagA", "key" + i, "oneway " + i));
        }
        equal("messages", 50, peer.readAll(50).size());
        return Map.of("messages", 50);
    }

    /** A batch lands in one queue in order; its members are single messages afterwards. */
    private static Map<String, Object> batch(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        List<Message> members = new ArrayList<>();
        for (int i = 0; i < 64; i++) {
            Message member = peer.message("TagB", "member" + i, "batch " + i);
            member.putUserProperty("index", String.valueOf(i));
            members.add(member);
        }
        SendResult result = sent(producer.send(members));
        equal("offset ids", 64, result.getOffsetMsgId().split(",").length);
        equal("message ids", 64, result.getMsgId().split(",").length);
        List<MessageExt> read = peer.readAll(64);
        for (int i = 0; i < 64; i++) {
            MessageExt member = read.get(i);
            equal("member", "batch " + i, body(member));
            equal("queue offset", result.getQueueOffset() + i, member.getQueueOffset());
            equal("property", String.valueOf(i), member.getUserProperty("index"));
            equal("tag", "TagB", member.getTags());
        }
        return Map.of("messages", 64);
    }

    /** A selector chooses one queue per order id; order is kept inside each queue. */
    private static Map<String, Object> selector(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        for (int i = 0; i < 40; i++) {
            sent(producer.send(peer.message("TagA", "order" + i % 5, String.format("%d-%03d", i % 5, i)),
                (queues, message, order) -> queues.get((Integer) order % queues.size()), i % 5));
        }
        Map<String, Integer> queueOf = new HashMap<>();
        Map<String, String> last = new HashMap<>();
        for (MessageExt message : peer.readAll(40)) {
            String order = body(message).substring(0, 1);
            equal("queue of order " + order, queueOf.computeIfAbsent(order, o -> message.getQueueId()), message.getQueueId());
            String previous = last.put(order, body(message));
            check(previous == null || previous.compareTo(body(message)) < 0, "order of " + body(message));
        }
        return Map.of("queues", new HashSet<>(queueOf.values()).size());
    }

    private static Map<String, Object> queue(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        sent(producer.send(peer.message("TagA", "first", "makes the topic")));
        Set<Integer> seen = new TreeSet<>();
        for (MessageQueue queue : peer.queues()) {
            SendResult result = sent(producer.send(peer.message("TagA", "q", "to queue " + queue.getQueueId()), queue));
            equal("queue", queue, result.getMessageQueue());
            seen.add(queue.getQueueId());
        }
        for (MessageExt message : peer.readAll(1 + seen.size())) {
            if ("q".equals(message.getKeys())) {
                equal("body", "to queue " + message.getQueueId(), body(message));
            }
        }
        return Map.of("queues", seen.size());
    }

    /** Sixteen threads share one producer: each must get the responses to its own sends. */
    private static Map<String, Object> threads(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        sent(producer.send(peer.message("TagA", "first", "makes the topic")));
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Map<String, String> placeOf = new java.util.concurrent.ConcurrentHashMap<>();
        AtomicInteger next = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < 16; t++) {
            Thread thread = new Thread(() -> {
                try {
                    for (int i = next.getAndIncrement(); i < 2000; i = next.getAndIncrement()) {
                        SendResult result = sent(producer.send(peer.message("TagA", "key" + i, "body " + i)));
                        placeOf.put("body " + i, result.getMessageQueue().getQueueId() + "@" + result.getQueueOffset());
                    }
                } catch (Throwable error) {
                    failure.set(error);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (failure.get() != null) {
            throw new AssertionError("send", failure.get());
        }
        for (MessageExt message : peer.readAll(2001)) {
            if (!"first".equals(message.getKeys())) {
                equal("place of " + body(message), placeOf.get(body(message)), message.getQueueId() + "@" + message.getQueueOffset());
            }
        }
        return Map.of("messages", 2000);
    }
}
