package scenarios;

import static scenarios.Peer.body;
import static scenarios.Peer.check;
import static scenarios.Peer.equal;
import static scenarios.Peer.sent;
import static scenarios.Peer.until;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** The old pull consumer and the lite pull consumer. */
final class Pulling {
    private Pulling() {
    }

    static void register(Map<String, Scenario.Body> all) {
        all.put("pull_statuses", Pulling::statuses);
        all.put("pull_tags", Pulling::tags);
        all.put("pull_held", Pulling::held);
        all.put("pull_offsets", Pulling::offsets);
        all.put("lite_assign", Pulling::liteAssign);
        all.put("lite_subscribe", Pulling::liteSubscribe);
    }

    /** Sends {@code count} messages, tags A and B in turn, to queue 0 and waits until they can be pulled. */
    private static MessageQueue fill(Peer peer, DefaultMQProducer producer, int count) throws Exception {
        sent(producer.send(peer.message("none", "first", "makes the topic")));
        MessageQueue queue = peer.queues().stream().filter(q -> q.getQueueId() == 0).findFirst().orElseThrow();
        long before = peer.readQueue(queue, new ArrayList<>()).size();
        for (int i = 0; i < count; i++) {
            sent(producer.send(peer.message(i % 2 == 0 ? "TagA" : "TagB", "key" + i, "message " + i), queue));
        }
        until("messages in queue 0", () -> {
            int seen = peer.readQueue(queue, new ArrayList<>()).size();
            return seen >= count && seen >= before ? seen : null;
        });
        return queue;
    }

    private static Map<String, Object> statuses(Peer peer) throws Exception {
        MessageQueue queue = fill(peer, peer.producer(), 40);
        DefaultMQPullConsumer consumer = peer.pullConsumer(peer.group);
        long min = consumer.minOffset(queue);
        long max = consumer.maxOffset(queue);
        equal("min offset", 0L, min);
        check(max >= 40, "max offset " + max);
        PullResult first = consumer.pull(queue, "*", min, 10);
        equal("found", PullStatus.FOUND, first.getPullStatus());
        equal("messages", 10, first.getMsgFoundList().size());
        equal("next", min + 10, first.getNextBeginOffset());
        equal("max in answer", max, first.getMaxOffset());
        for (int i = 0; i < 10; i++) {
            equal("queue offset", min + i, first.getMsgFoundList().get(i).getQueueOffset());
        }
        equal("at the end", PullStatus.NO_NEW_MSG, consumer.pull(queue, "*", max, 10).getPullStatus());
        PullResult beyond = consumer.pull(queue, "*", max + 1000, 10);
        equal("beyond the end", PullStatus.OFFSET_ILLEGAL, beyond.getPullStatus());
        equal("where to go from beyond", max, beyond.getNextBeginOffset());
        return Map.of("max", max);
    }

    private static Map<String, Object> tags(Peer peer) throws Exception {
        MessageQueue queue = fill(peer, peer.producer(), 40);
        DefaultMQPullConsumer consumer = peer.pullConsumer(peer.group);
        equal("tag A", 20, count(consumer, queue, "TagA"));
        equal("tags A or B", 40, count(consumer, queue, "TagA || TagB"));
        PullResult nothing = consumer.pull(queue, "Absent", 0, 32);
        equal("no such tag", PullStatus.NO_MATCHED_MSG, nothing.getPullStatus());
        check(nothing.getNextBeginOffset() > 0, "goes on behind what did not match");
        return Map.of("messages", 40);
    }

    private static int count(DefaultMQPullConsumer consumer, MessageQueue queue, String tags) throws Exception {
        int found = 0;
        long next = 0;
        while (next < consumer.maxOffset(queue)) {
            PullResult result = consumer.pull(queue, tags, next, 7);
            if (result.getPullStatus() == PullStatus.FOUND) {
                found += result.getMsgFoundList().size();
            }
            check(result.getNextBeginOffset() > next, "stuck at " + next + ": " + result);
            next = result.getNextBeginOffset();
        }
        return found;
    }

    /** A pull at the end of the queue is held, and the next message wakes it. */
    private static Map<String, Object> held(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        MessageQueue queue = fill(peer, producer, 2);
        DefaultMQPullConsumer consumer = peer.pullConsumer(peer.group);
        long end = consumer.maxOffset(queue);
        Thread sender = new Thread(() -> {
            try {
                Thread.sleep(1500);
                sent(producer.send(peer.message("TagA", "late", "wakes"), queue));
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        });
        long start = System.nanoTime();
        sender.start();
        PullResult result = consumer.pullBlockIfNotFound(queue, "*", end, 32);
        long waited = (System.nanoTime() - start) / 1_000_000;
        sender.join();
        equal("status", PullStatus.FOUND, result.getPullStatus());
        equal("body", "wakes", body(result.getMsgFoundList().get(0)));
        check(waited >= 1400 && waited < 10_000, "woken after " + waited + " ms");
        return Map.of("waited_ms", waited);
    }

    /** Offsets stored at the broker, and search by time. */
    private static Map<String, Object> offsets(Peer peer) throws Exception {
        MessageQueue queue = fill(peer, peer.producer(), 10);
        DefaultMQPullConsumer consumer = peer.pullConsumer(peer.group);
        long now = System.currentTimeMillis();
        equal("offset an hour ago", 0L, consumer.searchOffset(queue, now - 3_600_000));
        equal("offset in an hour", consumer.maxOffset(queue), consumer.searchOffset(queue, now + 3_600_000));
        long earliest = consumer.earliestMsgStoreTime(queue);
        check(earliest > now - 600_000 && earliest <= now, "earliest store time " + earliest);
        equal("before any commit a group starts at 0", 0L, consumer.fetchConsumeOffset(queue, true));
        consumer.updateConsumeOffset(queue, 7);
        until("the heartbeat that makes the group known", () -> {
            try {
                consumer.getOffsetStore().updateConsumeOffsetToBroker(queue, 7, false);
                return true;
            } catch (MQBrokerException groupUnknown) {
                return null;
            }
        });
        equal("stored offset", 7L, consumer.getOffsetStore().readOffset(queue, ReadOffsetType.READ_FROM_STORE));
        return Map.of("earliest", earliest);
    }

    /**
     * The client's seek races with its pull task: a task that is just between two pulls takes the new offset and is
     * then cancelled, so the seek is lost. Before each seek, all messages are therefore polled, and the task waits in a
     * pull that the broker holds.
     */
    private static Map<String, Object> liteAssign(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        MessageQueue queue = fill(peer, producer, 20);
        // one more if the first message is there too
        int count = (int) peer.pullConsumer(peer.group + "_offsets").maxOffset(queue);
        DefaultLitePullConsumer consumer = peer.litePullConsumer();
        consumer.setAutoCommit(false);
        consumer.start();
        consumer.assign(List.of(queue));
        equal("first after assign", 0L, pollAll(consumer, count).get(0).getQueueOffset());
        consumer.seek(queue, 5);
        List<MessageExt> polled = pollAll(consumer, count - 5);
        for (int i = 0; i < polled.size(); i++) {
            equal("in order after seek", 5L + i, polled.get(i).getQueueOffset());
        }
        consumer.commitSync();
        equal("committed", (long) count, until("committed offset", () -> {
            Long offset = consumer.committed(queue);
            return offset != null && offset > 5 ? offset : null;
        }));
        consumer.seekToBegin(queue);
        equal("first after seekToBegin", 0L, pollAll(consumer, count).get(0).getQueueOffset());
        consumer.seek(queue, 3);
        equal("first after a seek back", 3L, pollAll(consumer, count - 3).get(0).getQueueOffset());
        consumer.seekToEnd(queue);
        sent(producer.send(peer.message("TagA", "late", "after the end"), queue));
        equal("after seekToEnd", "after the end", body(poll(consumer, 1).get(0)));
        equal("offset for time", 0L, consumer.offsetForTimestamp(queue, System.currentTimeMillis() - 3_600_000));
        return Map.of("messages", count);
    }

    /** Polls all messages, until only a pull at the end of the queue is under way. */
    private static List<MessageExt> pollAll(DefaultLitePullConsumer consumer, int count) throws Exception {
        List<MessageExt> polled = poll(consumer, count);
        equal("messages", count, polled.size());
        Thread.sleep(500);
        return polled;
    }

    private static List<MessageExt> poll(DefaultLitePullConsumer consumer, int count) throws Exception {
        List<MessageExt> polled = new ArrayList<>();
        until(count + " polled messages", () -> {
            polled.addAll(consumer.poll(500));
            return polled.size() >= count ? polled : null;
        });
        return polled;
    }

    private static Map<String, Object> liteSubscribe(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        fill(peer, producer, 20);
        DefaultLitePullConsumer consumer = peer.litePullConsumer();
        consumer.subscribe(peer.topic, "TagA");
        consumer.start();
        Set<String> bodies = new HashSet<>();
        for (MessageExt message : poll(consumer, 10)) {
            equal("tag", "TagA", message.getTags());
            check(bodies.add(body(message)), "twice: " + body(message));
        }
        sent(producer.send(peer.message("TagB", "late", "of no interest")));
        sent(producer.send(peer.message("TagA", "late", "wakes the held pull")));
        equal("late message", "wakes the held pull", body(poll(consumer, 1).get(0)));
        return Map.of("messages", bodies.size() + 1);
    }
}
