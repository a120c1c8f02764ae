package scenarios;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Deque;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.function.BooleanSupplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.SessionCredentialsProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;

/** The environment of a scenario: its topic and group, and clients that are closed at its end. */
final class Peer {
    private static final Pattern CODE = Pattern.compile("response-code=(\\d+)");
    static final Duration PATIENCE = Duration.ofSeconds(30);
    /** The shortest time that the official server accepts. */
    static final Duration INVISIBLE = Duration.ofSeconds(10);

    /** A call that may fail. */
    interface Call {
        void run() throws Exception;
    }

    final String topic;
    final String group;
    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final String endpoints;
    private final SessionCredentialsProvider account;
    private final ClientConfiguration configuration;
    private final Deque<AutoCloseable> clients;

    Peer(String endpoints, String name) {
        this("T_" + name, "G_" + name, endpoints, false, null, new ArrayDeque<>());
    }

    private Peer(String topic, String group, String endpoints, boolean tls, SessionCredentialsProvider account,
        Deque<AutoCloseable> clients) {
        this.topic = topic;
        this.group = group;
        this.endpoints = endpoints;
        this.account = account;
        this.clients = clients;
        ClientConfigurationBuilder builder = configured(endpoints, tls);
        configuration = (account == null ? builder : builder.setCredentialProvider(account)).build();
    }

    /** A configuration that is not complete. */
    static ClientConfigurationBuilder configured(String endpoints, boolean tls) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(endpoints);
        try {
            builder.getClass().getMethod("enableSsl", boolean.class).invoke(builder, tls);
        } catch (ReflectiveOperationException error) {
            // This version always uses TLS.
        }
        return builder;
    }

    /** The same, for clients that use TLS. */
    Peer overTls() {
        return new Peer(topic, group, endpoints, true, account, clients);
    }

    /** The same, for clients that use an account. */
    Peer signedBy(String name, String secret) {
        return new Peer(topic, group, endpoints, false, new StaticSessionCredentialsProvider(name, secret), clients);
    }

    Producer producer() throws ClientException {
        return opened(provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build());
    }

    Producer producer(TransactionChecker checker) throws ClientException {
        return opened(provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic)
            .setTransactionChecker(checker).build());
    }

    SimpleConsumer consumer() throws ClientException {
        return consumer(topic, FilterExpression.SUB_ALL);
    }

    SimpleConsumer consumer(String source, FilterExpression expression) throws ClientException {
        return opened(provider.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(5)).setSubscriptionExpressions(Map.of(source, expression)).build());
    }

    void push(MessageListener listener) throws ClientException {
        opened(provider.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL)).setMessageListener(listener).build());
    }

    MessageBuilder builder(String body) {
        return provider.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    MessageBuilder builderFor(String other, String body) {
        return builder(body).setTopic(other);
    }

    Message message(String body) {
        return builder(body).build();
    }

    /** What is done with a message as soon as it is received. */
    private interface Step {
        void run(MessageView message) throws Exception;
    }

    /** Receives until there are as many messages or the time is over. */
    List<MessageView> receive(SimpleConsumer consumer, int count, Duration patience) throws Exception {
        return receive(consumer, count, patience, message -> { });
    }

    /** Receives and acknowledges messages. */
    List<MessageView> received(SimpleConsumer consumer, int count, Duration patience) throws Exception {
        return receive(consumer, count, patience, consumer::ack);
    }

    private List<MessageView> receive(SimpleConsumer consumer, int count, Duration patience, Step step) throws Exception {
        List<MessageView> found = new ArrayList<>();
        long deadline = System.nanoTime() + patience.toNanos();
        while (found.size() < count && System.nanoTime() < deadline) {
            List<MessageView> messages = List.of();
            try {
                messages = consumer.receive(16, INVISIBLE);
            } catch (ClientException | RuntimeException error) { // the server may be away
                Thread.sleep(500);
            }
            for (MessageView message : messages) {
                step.run(message);
                found.add(message);
            }
        }
        return found;
    }

    static void until(BooleanSupplier holds) throws InterruptedException {
        long deadline = System.nanoTime() + PATIENCE.toNanos();
        while (!holds.getAsBoolean() && System.nanoTime() < deadline) {
            Thread.sleep(50);
        }
    }

    /** Whether a call succeeded; its code if it failed. */
    static Map<String, Object> outcome(Call call) {
        try {
            call.run();
        } catch (Throwable failure) {
            return failure(failure);
        }
        return saw("ok", true);
    }

    static Map<String, Object> failure(Throwable failure) {
        Throwable cause = failure;
        while ((cause instanceof ExecutionException || cause instanceof CompletionException) && cause.getCause() != null) {
            cause = cause.getCause();
        }
        Map<String, Object> saw = saw("error", cause.getClass().getSimpleName());
        Matcher code = CODE.matcher(String.valueOf(cause.getMessage()));
        saw.put("code", code.find() ? Integer.valueOf(code.group(1)) : null);
        Throwable root = cause;
        while (root.getCause() != null) {
            root = root.getCause();
        }
        saw.put("text", cause.getMessage() + (root == cause ? "" : "; " + root));
        return saw;
    }

    static Map<String, Object> saw(Object... entries) {
        Map<String, Object> map = new LinkedHashMap<>();
        for (int i = 0; i < entries.length; i += 2) {
            map.put((String) entries[i], entries[i + 1]);
        }
        return map;
    }

    static byte[] bytes(MessageView message) {
        ByteBuffer body = message.getBody().duplicate();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return bytes;
    }

    static String body(MessageView message) {
        return new String(bytes(message), StandardCharsets.UTF_8);
    }

    static List<String> bodies(List<MessageView> messages) {
        return messages.stream().map(Peer::body).toList();
    }

    static List<List<Object>> attempts(List<MessageView> messages) {
        return messages.stream().map(one -> List.<Object>of(body(one), one.getDeliveryAttempt())).toList();
    }

    static List<List<Object>> sortedAttempts(List<MessageView> messages) {
        return attempts(messages.stream().sorted(Comparator.comparing(Peer::body)
            .thenComparing(MessageView::getDeliveryAttempt)).toList());
    }

    /** What a consumer sees of a message, except ids and times. */
    static Map<String, Object> shown(MessageView message) {
        byte[] bytes = bytes(message);
        Object body = bytes.length < 100 ? body(message) : List.of(bytes.length, md5(bytes));
        return saw("body", body, "tag", message.getTag().orElse(null), "keys", List.copyOf(new TreeSet<>(message.getKeys())),
            "properties", new TreeMap<>(message.getProperties()), "group", message.getMessageGroup().orElse(null),
            "delivery_timestamp", message.getDeliveryTimestamp().isPresent(), "attempt", message.getDeliveryAttempt(),
            "born_host", !message.getBornHost().isEmpty());
    }

    static List<Map<String, Object>> sortedShown(List<MessageView> messages) {
        return messages.stream().sorted(Comparator.comparing(Peer::body)).map(Peer::shown).toList();
    }

    private static String md5(byte[] bytes) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("MD5").digest(bytes));
        } catch (java.security.NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    private <T extends AutoCloseable> T opened(T client) {
        clients.push(client);
        return client;
    }

    void close() {
        for (AutoCloseable client : clients) {
            outcome(client::close); // a failing shutdown is no failing scenario
        }
    }
}
