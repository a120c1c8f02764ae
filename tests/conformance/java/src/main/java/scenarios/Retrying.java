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
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages that a consumer refuses: they come again later, again at once, or never. */
final class Retrying {
    private static final int NEW_GROUPS = 200;
    private static final int GROUPS_AT_ONCE = 20;
    /**
     * Limit for clients that ask for two routes at a time: with any broker, they may rebalance before they have the
     * response.
     */
    private static final int IN_TIME_MIN = 190;
    /** The third delay level of the brokers in this run; its default is 10 s. */
    private static final long FIRST_RETRY_MS = 2_000;
    private static final long RETRY_SLACK_MS = 4_000;

    private Retrying() {
    }

    static void register(Map<String, Scenario.Body> all) {
        all.put("retry_later", Retrying::later);
        all.put("retry_dead_letter", Retrying::deadLetter);
        all.put("retry_refused", Retrying::refused);
        all.put("retry_orderly", Retrying::orderly);
        all.put("retry_orderly_dead", Retrying::orderlyDead);
        all.put("retry_new_groups", Retrying::newGroups);
    }

    /** A message fails once, comes back under its own topic after the time of its delay level, then is consumed. */
    private static Map<String, Object> later(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        SendResult origin = sent(producer.send(peer.message("TagA", "key0", "fails once")));
        sent(producer.send(peer.message("TagA", "key1", "fails never")));
        List<MessageExt> seen = new CopyOnWriteArrayList<>();
        start(peer, 16, (message, context) -> {
            seen.add(message);
            context.setDelayLevelWhenNextConsume(1);
            return !body(message).equals("fails once") || message.getReconsumeTimes() > 0;
        });
        until("the second try", () -> seen.size() >= 3 ? seen : null);
        Thread.sleep(1500);   // a third attempt would come now
        equal("tries", 3, seen.size());
        MessageExt again = seen.get(2);
        equal("body", "fails once", body(again));
        equal("topic", peer.topic, again.getTopic());
        equal("reconsume times", 1, again.getReconsumeTimes());
        equal("tag", "TagA", again.getTags());
        equal("keys", "key0", again.getKeys());
        equal("origin", origin.getOffsetMsgId(), again.getProperty("ORIGIN_MESSAGE_ID"));
        equal("unique id", origin.getMsgId(), again.getMsgId());
        long waited = again.getStoreTimestamp() - seen.stream()
            .filter(message -> body(message).equals("fails once")).findFirst().orElseThrow().getStoreTimestamp();
        check(waited >= 900, "came back after " + waited + " ms");
        return Map.of("tries", 3);
    }

    /**
     * A message fails each time: it is retried as often as the consumer allows, then becomes a dead letter of the
     * group.
     */
    private static Map<String, Object> deadLetter(Peer peer) throws Exception {
        SendResult origin = sent(peer.producer().send(peer.message("TagA", "key0", "fails for good")));
        List<MessageExt> seen = new CopyOnWriteArrayList<>();
        start(peer, 2, (message, context) -> {
            seen.add(message);
            context.setDelayLevelWhenNextConsume(1);
            return false;
        });
        MessageExt dead = peer.deadLetters(1).get(0);
        equal("tries", 3, seen.size());
        for (int i = 0; i < 3; i++) {
            equal("reconsume times", i, seen.get(i).getReconsumeTimes());
        }
        equal("body", "fails for good", body(dead));
        equal("reconsume times", 3, dead.getReconsumeTimes());
        equal("topic before", peer.topic, dead.getProperty("RETRY_TOPIC"));
        equal("origin", origin.getOffsetMsgId(), dead.getProperty("ORIGIN_MESSAGE_ID"));
        return Map.of("tries", seen.size());
    }

    /** A message refused with delay level -1 becomes a dead letter at once. */
    private static Map<String, Object> refused(Peer peer) throws Exception {
        sent(peer.producer().send(peer.message("TagA", "key0", "refused")));
        List<MessageExt> seen = new CopyOnWriteArrayList<>();
        start(peer, 16, (message, context) -> {
            seen.add(message);
            context.setDelayLevelWhenNextConsume(-1);
            return false;
        });
        MessageExt dead = peer.deadLetters(1).get(0);
        equal("body", "refused", body(dead));
        equal("tries", 1, seen.size());
        return Map.of("dead", 1);
    }

    /** An orderly consumer retries a failed message before any later one. */
    private static Map<String, Object> orderly(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        for (int i = 0; i < 12; i++) {
            sent(producer.send(peer.message("TagA", "key" + i, "message " + i), (queues, m, arg) -> queues.get(0), null));
        }
        List<String> done = new CopyOnWriteArrayList<>();
        List<String> tries = new CopyOnWriteArrayList<>();
        startOrderly(peer, -1, message -> {
            tries.add(body(message));
            boolean takes = !body(message).equals("message 5") || message.getReconsumeTimes() >= 2;
            if (takes) {
                done.add(body(message));
            }
            return takes;
        });
        until("12 messages", () -> done.size() >= 12 ? done : null);
        List<String> wanted = new ArrayList<>();
        for (int i = 0; i < 12; i++) {
            wanted.add("message " + i);
        }
        equal("order", wanted, new ArrayList<>(done));
        equal("tries of the failing one", 3L, tries.stream().filter("message 5"::equals).count());
        return Map.of("tries", tries.size());
    }

    /** An orderly consumer gives up on a message: it becomes a dead letter, and later messages are consumed. */
    private static Map<String, Object> orderlyDead(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        for (int i = 0; i < 4; i++) {
            sent(producer.send(peer.message("TagA", "key" + i, "message " + i), (queues, m, arg) -> queues.get(0), null));
        }
        Set<String> done = new HashSet<>();
        startOrderly(peer, 1, message -> {
            boolean takes = !body(message).equals("message 1");
            synchronized (done) {
                if (takes) {
                    done.add(body(message));
                }
            }
            return takes;
        });
        MessageExt dead = peer.deadLetters(1).get(0);
        equal("body", "message 1", body(dead));
        equal("delay", "-1", dead.getProperty("DELAY"));
        until("the messages behind it", () -> {
            synchronized (done) {
                return done.size() == 3 ? done : null;
            }
        });
        return Map.of("dead", 1);
    }

    /**
     * New groups, each with a client of its own: the retry topic has a route once the first heartbeat got its response.
     * The client asks for routes 10 ms after its start and every 30 s, perhaps before that heartbeat; here it also asks
     * right after it. So it reads the retry topic from the start, and the first retry comes when its delay is over.
     * Without the route, the retry would come with the next rebalance, 20 s later.
     */
    private static Map<String, Object> newGroups(Peer peer) throws Exception {
        sent(peer.producer().send(peer.message("TagA", "key0", "fails once")));
        peer.readAll(1);
        int routes = 0;
        int inTime = 0;
        List<Long> waits = new ArrayList<>();
        for (int first = 0; first < NEW_GROUPS; first += GROUPS_AT_ONCE) {
            List<DefaultMQPushConsumer> consumers = new ArrayList<>();
            List<List<Long>> tries = new ArrayList<>();
            for (int number = first; number < first + GROUPS_AT_ONCE; number++) {
                List<Long> mine = new CopyOnWriteArrayList<>();
                String name = peer.group + "_" + number;
                DefaultMQPushConsumer consumer = peer.pushConsumer(name);
                consumer.setInstanceName(name);
                consumer.setConsumeThreadMin(1);
                consumer.setConsumeThreadMax(1);
                consumer.subscribe(peer.topic, "*");
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    mine.add(System.nanoTime());
                    return mine.size() == 1 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
                consumer.start();
                routes += peer.queuesOf("%RETRY%" + name).isEmpty() ? 0 : 1;
                consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().updateTopicRouteInfoFromNameServer();
                consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().rebalanceImmediately();
                consumers.add(consumer);
                tries.add(mine);
            }
            for (List<Long> mine : tries) {
                until("the first retry", () -> mine.size() >= 2 ? mine : null);
                long waited = (mine.get(1) - mine.get(0)) / 1_000_000;
                check(waited >= FIRST_RETRY_MS - 100, "came back after " + waited + " ms");
                inTime += waited < FIRST_RETRY_MS + RETRY_SLACK_MS ? 1 : 0;
                waits.add(waited);
            }
            shutDown(consumers);
        }
        waits.sort(null);
        Map<String, Object> seen = Map.of("groups", NEW_GROUPS, "routes", routes, "in_time", inTime, "median_ms", waits.get(waits.size() / 2),
            "longest_ms", waits.get(waits.size() - 1));
        check(routes == NEW_GROUPS && inTime >= IN_TIME_MIN, "routes and retries: " + seen);
        return seen;
    }

    /** Shuts down all at the same time, because each waits a second for its threads. */
    private static void shutDown(List<DefaultMQPushConsumer> consumers) throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (DefaultMQPushConsumer consumer : consumers) {
            Thread thread = new Thread(consumer::shutdown);
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    /** Consumes a message; returns whether it was accepted. */
    private interface Concurrent {
        boolean take(MessageExt message, org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext context);
    }

    private interface Orderly {
        boolean take(MessageExt message);
    }

    private static void start(Peer peer, int triesMax, Concurrent listener) throws Exception {
        DefaultMQPushConsumer consumer = peer.pushConsumer(peer.group);
        consumer.setMaxReconsumeTimes(triesMax);
        consumer.subscribe(peer.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            listener.take(messages.get(0), context) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        consumer.start();
    }

    private static void startOrderly(Peer peer, int triesMax, Orderly listener) throws Exception {
        DefaultMQPushConsumer consumer = peer.pushConsumer(peer.group);
        consumer.setMaxReconsumeTimes(triesMax);
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.subscribe(peer.topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
            listener.take(messages.get(0)) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        consumer.start();
    }
}
