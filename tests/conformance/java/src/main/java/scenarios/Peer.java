package scenarios;

import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingException;

/** The environment of a scenario: its own topic and group, clients that are shut down at the end, and checks. */
final class Peer implements AutoCloseable {
    /**
     * Longer than the 30 s between two heartbeats plus the 20 s until the next rebalance: a client may skip the
     * heartbeat that its new assignment needs.
     */
    static final long PATIENCE_MS = 60_000;

    final String topic;
    final String group;
    private final String namesrv;
    private final Deque<Runnable> closers = new ArrayDeque<>();
    private DefaultMQPullConsumer reader;

    Peer(String namesrv, String name) {
        this.namesrv = namesrv;
        this.topic = "T_" + name;
        this.group = "G_" + name;
    }

    @Override
    public void close() {
        closers.forEach(Runnable::run);
    }

    String namesrv() {
        return namesrv;
    }

    DefaultMQProducer producer() throws MQClientException {
        return producer("producer");
    }

    /** Starts a producer with its own group and its own identity. */
    DefaultMQProducer producer(String name) throws MQClientException {
        DefaultMQProducer producer = new DefaultMQProducer(group + "_" + name);
        producer.setInstanceName(name);
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendFailed(0);        // a retry would hide a failure
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.start();
        closers.push(producer::shutdown);
        return producer;
    }

    DefaultMQPullConsumer pullConsumer(String name) throws MQClientException {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(name);
        consumer.setNamesrvAddr(namesrv);
        consumer.start();
        closers.push(consumer::shutdown);
        return consumer;
    }

    DefaultLitePullConsumer litePullConsumer() {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        closers.push(consumer::shutdown);
        return consumer;
    }

    DefaultMQPushConsumer pushConsumer(String name) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(name);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        closers.push(consumer::shutdown);
        return consumer;
    }

    Message message(String tag, String key, String body) {
        return new Message(topic, tag, key, body.getBytes(StandardCharsets.UTF_8));
    }

    /** Lets the runner kill name server and broker with SIGKILL and start them again: see tests/conformance/run.py. */
    static void askForRestart() throws Exception {
        System.out.println("{\"restart\": true}");
        check(System.in.read() == '\n', "the runner did not start the servers again");
    }

    /** Lets the runner kill and restart the servers, then waits until the broker responds again. */
    void restart() throws Exception {
        askForRestart();
        until("an answer of the broker", () -> {
            try {
                return reader().maxOffset(queues().get(0)) >= 0 ? true : null;
            } catch (Exception notYet) {
                return null;
            }
        });
    }

    /** Sends a message, again and again until the client is connected again. */
    SendResult sendAgain(Callable<SendResult> send) throws Exception {
        return sent(until("a send that works again", () -> {
            try {
                return send.call();
            } catch (RemotingException | MQClientException notConnectedYet) {
                return null;
            }
        }));
    }

    /** Waits for the topic's route; returns the queues of the topic. */
    List<MessageQueue> queues() throws Exception {
        return new ArrayList<>(until("a route of " + topic, () -> {
            try {
                return reader().fetchSubscribeMessageQueues(topic);
            } catch (MQClientException notYet) {
                return null;
            }
        }));
    }

    /**
     * Returns all messages of the topic in queue order, read by a pull consumer once at least {@code count} are
     * visible.
     */
    List<MessageExt> readAll(int count) throws Exception {
        return until(count + " messages in " + topic, () -> {
            List<MessageExt> found = new ArrayList<>();
            for (MessageQueue queue : queues()) {
                readQueue(queue, found);
            }
            return found.size() >= count ? found : null;
        });
    }

    List<MessageExt> readQueue(MessageQueue queue, List<MessageExt> found) throws Exception {
        long next = reader().minOffset(queue);
        while (true) {
            PullResult result = reader().pull(queue, "*", next, 32);
            if (result.getPullStatus() != PullStatus.FOUND) {
                return found;
            }
            found.addAll(result.getMsgFoundList());
            next = result.getNextBeginOffset();
        }
    }

    /** Returns the queues of a topic that the broker creates when needed; an empty list before that. */
    List<MessageQueue> queuesOf(String name) throws Exception {
        try {
            return new ArrayList<>(reader().fetchSubscribeMessageQueues(name));
        } catch (MQClientException noRouteYet) {
            return List.of();
        }
    }

    private DefaultMQPullConsumer reader() throws MQClientException {
        if (reader == null) {
            reader = pullConsumer(group + "_reader");
        }
        return reader;
    }

    /** Returns the dead letters of the group, once there are {@code count}. */
    List<MessageExt> deadLetters(int count) throws Exception {
        String name = "%DLQ%" + group;
        return until(count + " dead letters", () -> {
            List<MessageExt> found = new ArrayList<>();
            try {
                for (MessageQueue queue : reader().fetchSubscribeMessageQueues(name)) {
                    readQueue(queue, found);
                }
            } catch (MQClientException noRouteYet) {
                return null;
            }
            return found.size() >= count ? found : null;
        });
    }

    static <T> T until(String what, Callable<T> attempt) throws Exception {
        long deadline = System.nanoTime() + PATIENCE_MS * 1_000_000;
        while (System.nanoTime() < deadline) {
            T value = attempt.call();
            if (value != null) {
                return value;
            }
            Thread.sleep(50);
        }
        throw new AssertionError("waited in vain for " + what);
    }

    static SendResult sent(SendResult result) {
        equal("send status", SendStatus.SEND_OK, result.getSendStatus());
        // a batch has an id for each member; ids have 56 digits on an IPv6 host
        for (String id : result.getMsgId().split(",")) {
            check(id.matches("[0-9A-F]{32}|[0-9A-F]{56}"), "message id " + id);
        }
        for (String id : result.getOffsetMsgId().split(",")) {
            check(id.matches("[0-9A-F]{32}|[0-9A-F]{56}"), "offset message id " + id);
        }
        check(result.getQueueOffset() >= 0, "queue offset " + result.getQueueOffset());
        return result;
    }

    static String body(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void equal(String what, Object expected, Object got) {
        check(Objects.equals(expected, got), what + ": expected " + expected + ", got " + got);
    }
}
