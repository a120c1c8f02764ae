import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.OffsetOption;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Official lite clients that do what they are told: one line of words, separated by tabs, for each command; one line for
 * each answer, "ok" or "error" first. Argument: the gRPC address. The commands are in agents.py.
 */
public class LiteClient {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Map<String, Producer> PRODUCERS = new HashMap<>();
    private static final Map<String, LitePushConsumer> CONSUMERS = new HashMap<>();
    private static final Map<String, List<String>> SEEN = new ConcurrentHashMap<>();
    private static final Map<String, String> BEHAVIOUR = new ConcurrentHashMap<>();
    private static ClientConfiguration configuration;

    public static void main(String[] arguments) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false).build();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                answer = "ok\t" + obey(line.split("\t", -1));
            } catch (Throwable failure) {
                answer = "error\t" + failure.getClass().getSimpleName() + "\t" + failure.getMessage();
            }
            out.println(answer.replace('\n', ' '));
        }
        System.exit(0);
    }

    private static String obey(String[] words) throws Exception {
        String name = words[1];
        switch (words[0]) {
            case "producer":
                PRODUCERS.put(name, PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
                    .setTopics(words[2]).build());
                return "";
            case "send":
                return PRODUCERS.get(name).send(PROVIDER.newMessageBuilder().setTopic(words[2]).setLiteTopic(words[3])
                    .setBody(words[4].getBytes(StandardCharsets.UTF_8)).build()).getMessageId().toString();
            case "consumer":
                SEEN.put(name, new CopyOnWriteArrayList<>());
                CONSUMERS.put(name, PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration)
                    .setConsumerGroup(words[2]).bindTopic(words[3])
                    .setMessageListener(message -> consume(name, message)).build());
                return "";
            case "subscribe":
                if (words.length > 3) {
                    CONSUMERS.get(name).subscribeLite(words[2], option(words[3], words[4]));
                } else {
                    CONSUMERS.get(name).subscribeLite(words[2]);
                }
                return "";
            case "unsubscribe":
                CONSUMERS.get(name).unsubscribeLite(words[2]);
                return "";
            case "topics":
                return String.join(" ", new TreeSet<>(CONSUMERS.get(name).getLiteTopicSet()));
            case "behave":
                BEHAVIOUR.put(name, words[2]);
                return "";
            case "seen":
                return String.join(", ", SEEN.get(name));
            case "close":
                if (CONSUMERS.containsKey(name)) {
                    CONSUMERS.remove(name).close();
                } else {
                    PRODUCERS.remove(name).close();
                }
                return "";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static OffsetOption option(String kind, String value) {
        switch (kind) {
            case "offset":
                return OffsetOption.ofOffset(Long.parseLong(value));
            case "tail":
                return OffsetOption.ofTailN(Long.parseLong(value));
            case "timestamp":
                return OffsetOption.ofTimestamp(Long.parseLong(value));
            default:
                return Map.of("last", OffsetOption.LAST_OFFSET, "min", OffsetOption.MIN_OFFSET,
                    "max", OffsetOption.MAX_OFFSET).get(value);
        }
    }

    /** A behaviour is success, failure, or the milliseconds to wait before success. */
    private static ConsumeResult consume(String name, MessageView message) {
        byte[] body = new byte[message.getBody().remaining()];
        message.getBody().get(body);
        SEEN.get(name).add(message.getLiteTopic().orElse("-") + ":" + new String(body, StandardCharsets.UTF_8) + ":"
            + message.getDeliveryAttempt());
        String behaviour = BEHAVIOUR.getOrDefault(name, "success");
        if (Character.isDigit(behaviour.charAt(0))) {
            try {
                Thread.sleep(Long.parseLong(behaviour));
            } catch (InterruptedException end) {
                return ConsumeResult.FAILURE;
            }
        }
        return behaviour.equals("failure") ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    }
}
