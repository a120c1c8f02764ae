package scenarios;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * A client whose connections move between servers: sends transactions and consumes by push, until it is killed.
 * Arguments: host:port of the server, topic of transactions, topic of other messages, group, transactions a second.
 * The name of a message says its fate; every second word of "commit", "rollback" is said by the producer, the others
 * by its checker. Prints "R" when it has started, "H body" for a half message that was sent, "E body" for an end that
 * was confirmed, "K body" for a check, "G body attempt" for a message that was consumed. Stops sending when a line
 * comes in, and prints "Q".
 */
public final class Moving {
    private static final List<String> FATES = List.of("commit", "rollback", "commit-later", "rollback-later");
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    private Moving() {
    }

    public static void main(String[] args) throws Exception {
        ClientConfiguration configuration = Peer.configured(args[0], false).setRequestTimeout(Duration.ofSeconds(3)).build();
        String transactions = args[1];
        PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(args[3])
            .setSubscriptionExpressions(Map.of(transactions, FilterExpression.SUB_ALL, args[2], FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                say("G " + Peer.body(message) + " " + message.getDeliveryAttempt());
                return ConsumeResult.SUCCESS;
            }).build();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(transactions)
            .setTransactionChecker(message -> {
                say("K " + Peer.body(message));
                return Peer.body(message).contains("commit") ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
            }).build();
        say("R");
        ScheduledExecutorService pool = Executors.newScheduledThreadPool(8);
        AtomicInteger count = new AtomicInteger();
        long pauseUs = 1_000_000 / Integer.parseInt(args[4]);
        var sending = pool.scheduleAtFixedRate(() -> {
            int number = count.getAndIncrement();
            pool.execute(() -> transact(producer, transactions, "java-" + number + "-" + FATES.get(number % FATES.size())));
        }, 0, pauseUs, TimeUnit.MICROSECONDS);
        System.in.read();
        sending.cancel(false);
        pool.shutdown();
        pool.awaitTermination(60, TimeUnit.SECONDS);
        say("Q");
        Thread.currentThread().join();
    }

    private static void transact(Producer producer, String topic, String body) {
        try {
            Transaction transaction = producer.beginTransaction();
            producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8)).build(), transaction);
            say("H " + body);
            if (body.endsWith("commit")) {
                transaction.commit();
                say("E " + body);
            } else if (body.endsWith("rollback")) {
                transaction.rollback();
                say("E " + body);
            }
        } catch (Throwable failure) { // the server is away; what is not decided is asked for
            say("F " + failure.getClass().getSimpleName());
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
