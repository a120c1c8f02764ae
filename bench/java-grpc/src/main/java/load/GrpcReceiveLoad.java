package load;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/**
 * Receives batches of 32 and acknowledges each message, from many threads over one simple consumer. Arguments: address,
 * topic, group. Each line on standard input, "THREADS MESSAGES", is one round and gets one JSON line; so many messages
 * must be there.
 */
public final class GrpcReceiveLoad {
    private static final int BATCH = 32;
    private final SimpleConsumer consumer;

    private GrpcReceiveLoad(SimpleConsumer consumer) {
        this.consumer = consumer;
    }

    public static void main(String[] args) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false).build();
        SimpleConsumer consumer = ClientServiceProvider.loadService().newSimpleConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup(args[2]).setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Map.of(args[1], FilterExpression.SUB_ALL)).build();
        GrpcReceiveLoad load = new GrpcReceiveLoad(consumer);
        System.out.println("{\"ready\":true}");
        BufferedReader rounds = new BufferedReader(new InputStreamReader(System.in));
        for (String line = rounds.readLine(); line != null; line = rounds.readLine()) {
            String[] words = line.split(" ");
            System.out.println(load.round(Integer.parseInt(words[0]), Integer.parseInt(words[1])));
        }
        System.exit(0);
    }

    private String round(int threads, int messages) throws InterruptedException {
        AtomicInteger received = new AtomicInteger();
        AtomicInteger failed = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(threads);
        long start = System.nanoTime();
        for (int t = 0; t < threads; t++) {
            new Thread(() -> {
                while (received.get() < messages) {
                    take(received, failed);
                }
                done.countDown();
            }).start();
        }
        done.await();
        double seconds = (System.nanoTime() - start) / 1e9;
        return String.format("{\"messages\":%d,\"failed\":%d,\"seconds\":%.6f}", received.get(), failed.get(), seconds);
    }

    private void take(AtomicInteger received, AtomicInteger failed) {
        try {
            for (MessageView message : consumer.receive(BATCH, Duration.ofMinutes(10))) {
                consumer.ack(message);
                received.incrementAndGet();
            }
        } catch (Exception error) {
            if (failed.getAndIncrement() == 0) {
                System.err.println(error);
            }
        }
    }
}
