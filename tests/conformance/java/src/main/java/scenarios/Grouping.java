package scenarios;

import static scenarios.Peer.body;
import static scenarios.Peer.check;
import static scenarios.Peer.equal;
import static scenarios.Peer.sent;
import static scenarios.Peer.until;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;

/** Several members of a group, one of them killed, and a group whose offsets are set from outside. */
final class Grouping {
    /**
     * The broker notifies the members at once. A member may then get no list of members within 3 s, or the broker may
     * not have seen the end of a connection yet; such a member tries again with the next rebalance, 20 s later.
     */
    private static final long BALANCED_MS = 3_000 + 20_000 + 3_000;

    private Grouping() {
    }

    static void register(Map<String, Scenario.Body> all) {
        all.put("group_broadcast", Grouping::broadcast);
        all.put("group_killed", Grouping::killed);
        all.put("group_reset", Grouping::reset);
    }

    /** Each member of a broadcast group gets every message. */
    private static Map<String, Object> broadcast(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        sent(producer.send(peer.message("TagA", "key", "makes the topic")));
        List<List<String>> seen = List.of(new CopyOnWriteArrayList<>(), new CopyOnWriteArrayList<>());
        for (int i = 0; i < 2; i++) {
            // Offsets are kept in a file under this name; one of an earlier run must not be found.
            DefaultMQPushConsumer consumer = member(peer, "member" + i + "_" + System.nanoTime(), seen.get(i));
            setBroadcasting(consumer);
            consumer.start();
        }
        for (List<String> mine : seen) {
            until("the first message at each", () -> mine.isEmpty() ? null : mine);
        }
        for (int i = 0; i < 40; i++) {
            sent(producer.send(peer.message("TagA", "key" + i, "message " + i)));
        }
        for (List<String> mine : seen) {
            until("all messages at each", () -> mine.size() >= 41 ? mine : null);
            equal("different messages", 41, new HashSet<>(mine).size());
        }
        Thread.sleep(300);
        seen.forEach(mine -> equal("messages", 41, mine.size()));
        return Map.of("members", 2);
    }

    /**
     * Three members share eight queues, and the process of one is killed. The others take over its queues in time,
     * nothing is lost, and each member sees the messages of a queue in order.
     */
    private static Map<String, Object> killed(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        producer.setDefaultTopicQueueNums(8);
        sent(producer.send(peer.message("TagA", "key", "makes the topic")));
        equal("queues", 8, peer.queues().size());
        Set<String> all = ConcurrentHashMap.newKeySet();
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        List<Map<Integer, List<Long>>> orders = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            Map<Integer, List<Long>> order = new ConcurrentHashMap<>();
            DefaultMQPushConsumer consumer = peer.pushConsumer(peer.group);
            consumer.setInstanceName("member" + i);
            consumer.setConsumeThreadMin(1);   // more threads would take messages of a queue at the same time
            consumer.setConsumeThreadMax(1);
            consumer.subscribe(peer.topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    all.add(body(message));
                    order.computeIfAbsent(message.getQueueId(), queue -> new CopyOnWriteArrayList<>()).add(message.getQueueOffset());
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            members.add(consumer);
            orders.add(order);
        }
        until("all queues at the two members", () -> held(peer, members) == 8 ? 8 : null);
        Set<String> victims = ConcurrentHashMap.newKeySet();
        Process victim = process(peer, victims);
        int taken;
        try {
            taken = 8 - until("queues for the third member", () -> held(peer, members) <= 6 ? held(peer, members) : null);
            int[] sent = {0};
            until("messages at each member", () -> {
                sent(producer.send(peer.message("TagA", "key", "message " + sent[0]++)));
                return sent[0] >= 80 && victims.size() > 0 && orders.stream().noneMatch(Map::isEmpty) ? true : null;
            });
        } finally {
            victim.toHandle().destroyForcibly();   // Process.destroyForcibly would discard output that is not read yet
            victim.waitFor();
        }
        long killedAt = System.nanoTime();
        for (int i = 0; i < 80; i++) {
            sent(producer.send(peer.message("TagA", "key" + i, "after " + i)));
        }
        until("all queues at the two that are left", () -> held(peer, members) == 8 ? 8 : null);
        long balancedMs = (System.nanoTime() - killedAt) / 1_000_000;
        check(balancedMs < BALANCED_MS, "balanced again after " + balancedMs + " ms");
        int before = (int) peer.readAll(1).stream().filter(message -> body(message).startsWith("message ")).count();
        until("all messages", () -> {
            Set<String> both = new HashSet<>(all);
            both.addAll(victims);
            return both.size() >= before + 81 ? both : null;
        });
        check(all.stream().filter(text -> text.startsWith("after ")).count() == 80, "the members that are left did not get all");
        for (Map<Integer, List<Long>> order : orders) {
            order.values().forEach(offsets -> check(rises(offsets), "order " + offsets));
        }
        return Map.of("queues_of_the_killed", taken, "its_messages", victims.size(), "balanced_again_ms", balancedMs);
    }

    /** Messages without those that came again because another member had not committed their offsets yet. */
    private static boolean rises(List<Long> offsets) {
        return List.copyOf(new LinkedHashSet<>(offsets)).equals(List.copyOf(new TreeSet<>(offsets)));
    }

    /** Resets offsets to the beginning while the consumer runs, by the request that mqadmin sends. */
    private static Map<String, Object> reset(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        for (int i = 0; i < 20; i++) {
            sent(producer.send(peer.message("TagA", "key" + i, "message " + i)));
        }
        List<String> seen = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = member(peer, "one", seen);
        consumer.start();
        until("20 messages", () -> seen.size() >= 20 ? seen : null);
        consumer.getDefaultMQPushConsumerImpl().getOffsetStore().persistAll(new HashSet<>(peer.queues()));
        MQClientInstance instance = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory();
        String broker = instance.findBrokerAddressInPublish(peer.queues().get(0).getBrokerName());
        int moved = instance.getMQClientAPIImpl().invokeBrokerToResetOffset(broker, peer.topic, peer.group, 0L, true, 5000).size();
        equal("queues moved", peer.queues().size(), moved);
        until("all messages again", () -> seen.size() >= 40 ? seen : null);
        Thread.sleep(300);
        equal("messages", 40, seen.size());
        equal("different messages", 20, new HashSet<>(seen).size());
        return Map.of("messages", seen.size());
    }

    private static DefaultMQPushConsumer member(Peer peer, String name, List<String> seen) throws Exception {
        DefaultMQPushConsumer consumer = peer.pushConsumer(peer.group);
        consumer.setInstanceName(name);
        consumer.subscribe(peer.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> seen.add(body(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    private static int held(Peer peer, List<DefaultMQPushConsumer> members) {
        return members.stream().mapToInt(member -> (int) member.getDefaultMQPushConsumerImpl().getRebalanceImpl()
            .getProcessQueueTable().keySet().stream().filter(queue -> queue.getTopic().equals(peer.topic)).count()).sum();
    }

    /** Starts a member in a process of its own; what it consumes goes to {@code seen}. */
    private static Process process(Peer peer, Set<String> seen) throws Exception {
        String java = ProcessHandle.current().info().command().orElse("java");
        Process process = new ProcessBuilder(java, "-Xmx256m", "-Duser.home=" + System.getProperty("user.home"),
            "-Drocketmq.client.logLevel=ERROR", "-cp", System.getProperty("java.class.path"), "scenarios.Grouping$Member",
            peer.namesrv(), peer.topic, peer.group).redirectError(ProcessBuilder.Redirect.DISCARD).start();
        Thread reading = new Thread(() -> {
            BufferedReader lines = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
            lines.lines().forEach(seen::add);
        });
        reading.setDaemon(true);
        reading.start();
        return process;
    }

    /** Sets broadcasting by reflection: the enum moved to another package between versions. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void setBroadcasting(DefaultMQPushConsumer consumer) throws Exception {
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                method.invoke(consumer, Enum.valueOf((Class<Enum>) method.getParameterTypes()[0], "BROADCASTING"));
            }
        }
    }

    /** Consumes and prints bodies until it is killed. */
    static final class Member {
        private Member() {
        }

        public static void main(String[] args) throws Exception {
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
            consumer.setNamesrvAddr(args[0]);
            consumer.setInstanceName("victim");
            consumer.subscribe(args[1], "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> System.out.println(body(message)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            Thread.currentThread().join();
        }
    }
}
