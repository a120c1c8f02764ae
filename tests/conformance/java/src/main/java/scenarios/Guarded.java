package scenarios;

import static scenarios.Peer.body;
import static scenarios.Peer.sent;
import static scenarios.Peer.until;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * Scenarios for accounts and TLS, in a program of their own, which tests.conformance.guarded runs.
 * Arguments: name server, prefix of topics and groups, accounts file of the broker, whether over TLS.
 */
final class Guarded {
    private static final String SECRET = "a-secret-of-the-tests";
    private static final String OPEN = "# nothing more";
    private static final String OPENED = "- Late=PUB|SUB";

    /** One scenario. */
    private interface Attempt {
        Map<String, Object> run() throws Exception;
    }

    private final String namesrv;
    private final String prefix;
    private final Path accounts;
    private final boolean tls;

    private Guarded(String[] args) {
        namesrv = args[0];
        prefix = args[1];
        accounts = Path.of(args[2]);
        tls = Boolean.parseBoolean(args[3]);
    }

    public static void main(String[] args) {
        Guarded guarded = new Guarded(args);
        Map<String, Attempt> all = new LinkedHashMap<>();
        all.put("allowed", guarded::allowed);
        all.put("denied_topic", guarded::deniedTopic);
        all.put("denied_group", guarded::deniedGroup);
        all.put("not_signed", guarded::notSigned);
        all.put("changed_file", guarded::changedFile);
        all.put("after_kill", guarded::afterKill);
        boolean failed = false;
        for (Map.Entry<String, Attempt> scenario : all.entrySet()) {
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("name", (guarded.tls ? "tls_" : "acl_") + scenario.getKey());
            try {
                Map<String, Object> details = scenario.getValue().run();
                line.put("ok", true);
                line.put("details", details);
            } catch (Throwable failure) {
                failed = true;
                line.put("ok", false);
                line.put("details", Map.of("error", failure.toString(), "cause", String.valueOf(failure.getCause())));
            }
            System.out.println(Json.text(line));
        }
        System.exit(failed ? 1 : 0);
    }

    /** The account sends and consumes as it may; the topic and the retry topic are created by use. */
    private Map<String, Object> allowed() throws Exception {
        DefaultMQProducer producer = producer("alice-account", SECRET);
        List<String> seen = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            prefix + "Group", hook("alice-account", SECRET), new AllocateMessageQueueAveragely());
        try {
            for (int i = 0; i < 20; i++) {
                sent(producer.send(message(prefix + "Open", "message " + i)));
            }
            consumer.setNamesrvAddr(namesrv);
            consumer.setUseTLS(tls);
            consumer.setInstanceName(prefix + "consumer" + tls);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(prefix + "Open", "*");
            Set<String> again = new ConcurrentSkipListSet<>();
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                boolean later = messages.stream().anyMatch(one -> body(one).equals("message 7") && again.add(body(one)));
                messages.forEach(one -> seen.add(body(one)));
                return later ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            until("20 messages and one again", () -> seen.stream().distinct().count() == 20 && seen.size() > 20 ? seen : null);
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
        return Map.of("consumed", seen.size());
    }

    /** After a SIGKILL and a new start, the account has the same permissions as before. */
    private Map<String, Object> afterKill() throws Exception {
        DefaultMQProducer producer = producer("alice-account", SECRET);
        DefaultMQProducer unsigned = producer(null, null);
        Set<String> seen = new ConcurrentSkipListSet<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            prefix + "Group", hook("alice-account", SECRET), new AllocateMessageQueueAveragely());
        try {
            consumer.setNamesrvAddr(namesrv);
            consumer.setUseTLS(tls);
            consumer.setInstanceName(prefix + "killed" + tls);
            consumer.subscribe(prefix + "Open", "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.stream().map(Peer::body).filter(text -> text.startsWith("kill ")).forEach(seen::add);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            for (int i = 0; i < 10; i++) {
                sent(producer.send(message(prefix + "Open", "kill " + i)));
            }
            Peer.askForRestart();
            for (int i = 10; i < 20; i++) {
                sendAgain(producer, message(prefix + "Open", "kill " + i));
            }
            until("20 messages", () -> seen.size() == 20 ? seen : null);
            return Map.of(
                "consumed", seen.size(),
                "shut", refused(() -> producer.send(message(prefix + "Shut", "no"))),
                "read_only", refused(() -> producer.send(message(prefix + "ReadOnly", "no"))),
                "unsigned", refused(() -> unsigned.send(message(prefix + "Open", "no"))));
        } finally {
            consumer.shutdown();
            producer.shutdown();
            unsigned.shutdown();
        }
    }

    private Map<String, Object> deniedTopic() throws Exception {
        DefaultMQProducer producer = producer("alice-account", SECRET);
        DefaultMQPullConsumer reader = reader(prefix + "Group", "alice-account", SECRET);
        try {
            int send = refused(() -> producer.send(message(prefix + "Shut", "no")));
            int readOnly = refused(() -> producer.send(message(prefix + "ReadOnly", "no")));
            MessageQueue queue = queue(reader, prefix + "Open");
            reader.pull(queue, "*", 0, 1);   // allowed; now the reader knows the broker's address
            MessageQueue shut = new MessageQueue(prefix + "Shut", queue.getBrokerName(), 0);
            int pull = refused(() -> reader.pull(shut, "*", 0, 1));
            return Map.of("send", send, "send_read_only", readOnly, "pull", pull);
        } finally {
            reader.shutdown();
            producer.shutdown();
        }
    }

    private Map<String, Object> deniedGroup() throws Exception {
        DefaultMQPullConsumer reader = reader(prefix + "OtherGroup", "alice-account", SECRET);
        try {
            MessageQueue queue = queue(reader, prefix + "Open");
            int pull = refused(() -> reader.pull(queue, "*", 0, 1));
            return Map.of("pull", pull);
        } finally {
            reader.shutdown();
        }
    }

    private Map<String, Object> notSigned() throws Exception {
        DefaultMQProducer wrong = producer("alice-account", "not-the-secret-of-alice");
        DefaultMQProducer unknown = producer("nobody-at-all", SECRET);
        DefaultMQProducer unsigned = producer(null, null);
        try {
            return Map.of(
                "wrong", refused(() -> wrong.send(message(prefix + "Open", "no"))),
                "unknown", refused(() -> unknown.send(message(prefix + "Open", "no"))),
                "unsigned", refused(() -> unsigned.send(message(prefix + "Open", "no"))));
        } finally {
            wrong.shutdown();
            unknown.shutdown();
            unsigned.shutdown();
        }
    }

    /** The account gets the permission for a topic, and loses it again, while the broker runs. */
    private Map<String, Object> changedFile() throws Exception {
        DefaultMQProducer producer = producer("alice-account", SECRET);
        String before = Files.readString(accounts);
        try {
            refused(() -> producer.send(message(prefix + "Late", "no")));
            Files.writeString(accounts, before.replace(OPEN, OPENED.replace("Late", prefix + "Late")));
            long changed = System.nanoTime();
            until("the new file", () -> accepted(producer) ? true : null);
            long openedMs = (System.nanoTime() - changed) / 1_000_000;
            Files.writeString(accounts, before);
            until("the old file", () -> accepted(producer) ? null : true);
            return Map.of("opened_after_ms", openedMs);
        } finally {
            Files.writeString(accounts, before);
            producer.shutdown();
        }
    }

    /** Sends a message, again and again if there is no connection yet. */
    private static void sendAgain(DefaultMQProducer producer, Message message) throws Exception {
        until("a send that works", () -> {
            try {
                return sent(producer.send(message));
            } catch (RemotingException | MQClientException notConnectedYet) {
                return null;
            }
        });
    }

    private boolean accepted(DefaultMQProducer producer) throws Exception {
        try {
            sent(producer.send(message(prefix + "Late", "yes")));
            return true;
        } catch (MQBrokerException | MQClientException refused) {
            Thread.sleep(200);
            return false;
        }
    }

    private DefaultMQProducer producer(String key, String secret) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(prefix + "Producer" + key, key == null ? null : hook(key, secret));
        producer.setNamesrvAddr(namesrv);
        producer.setUseTLS(tls);
        producer.setInstanceName(prefix + key + System.nanoTime());
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        return producer;
    }

    private DefaultMQPullConsumer reader(String group, String key, String secret) throws Exception {
        DefaultMQPullConsumer reader = new DefaultMQPullConsumer(group, hook(key, secret));
        reader.setNamesrvAddr(namesrv);
        reader.setUseTLS(tls);
        reader.setInstanceName(prefix + "reader" + System.nanoTime());
        reader.start();
        return reader;
    }

    /** Returns a queue of the topic; the reader then knows its broker. */
    private static MessageQueue queue(DefaultMQPullConsumer reader, String topic) throws Exception {
        return until("a route of " + topic, () -> {
            try {
                return reader.fetchSubscribeMessageQueues(topic).iterator().next();
            } catch (MQClientException notYet) {
                return null;
            }
        });
    }

    private static AclClientRPCHook hook(String key, String secret) {
        return new AclClientRPCHook(new SessionCredentials(key, secret));
    }

    private static Message message(String topic, String body) {
        return new Message(topic, "TagA", "key", body.getBytes(StandardCharsets.UTF_8));
    }

    /** Code of a refusal: 1 by the official broker, whose hook raises; 16 by ours. */
    private static int refused(Callable<?> call) throws Exception {
        try {
            call.call();
        } catch (MQBrokerException | MQClientException refusal) {
            for (Throwable cause = refusal; cause != null; cause = cause.getCause()) {
                int code = cause instanceof MQBrokerException ? ((MQBrokerException) cause).getResponseCode()
                    : cause instanceof MQClientException ? ((MQClientException) cause).getResponseCode() : -1;
                if (code == 1 || code == 16) {
                    return code;
                }
            }
            throw new AssertionError("refused for another reason", refusal);
        }
        throw new AssertionError("not refused");
    }
}
