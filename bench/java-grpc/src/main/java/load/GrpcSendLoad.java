package load;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Blocking sends from many threads over one producer, in plain text. Arguments: address, topic, body bytes, and if
 * requests are to be signed, access key and secret key. Each line on standard input, "THREADS MESSAGES" or "THREADS
 * MESSAGES RATE", is one round and gets one JSON line. With a rate, messages per second, each send has its time, and
 * the line has percentiles of the time from then to the answer.
 */
public final class GrpcSendLoad {
    private final ClientServiceProvider provider;
    private final Producer producer;
    private final String topic;
    private final byte[] body;

    private GrpcSendLoad(ClientServiceProvider provider, Producer producer, String topic, int bodyBytes) {
        this.provider = provider;
        this.producer = producer;
        this.topic = topic;
        this.body = new byte[bodyBytes];
        new Random(1).nextBytes(body);
    }

    public static void main(String[] args) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfigurationBuilder configuration = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false);
        if (args.length > 3) {
            configuration.setCredentialProvider(new StaticSessionCredentialsProvider(args[3], args[4]));
        }
        Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration.build())
            .setTopics(args[1]).setMaxAttempts(1).build();
        GrpcSendLoad load = new GrpcSendLoad(provider, producer, args[1], Integer.parseInt(args[2]));
        load.send();
        System.out.println("{\"ready\":true}");
        BufferedReader rounds = new BufferedReader(new InputStreamReader(System.in));
        for (String line = rounds.readLine(); line != null; line = rounds.readLine()) {
            String[] words = line.split(" ");
            int threads = Integer.parseInt(words[0]);
            int messages = Integer.parseInt(words[1]);
            System.out.println(words.length > 2
                ? load.paced(threads, messages, Double.parseDouble(words[2])) : load.round(threads, messages));
        }
        System.exit(0);
    }

    private String round(int threads, int messages) throws InterruptedException {
        int each = Math.max(1, messages / threads);
        AtomicInteger failed = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(threads);
        long start = System.nanoTime();
        for (int t = 0; t < threads; t++) {
            new Thread(() -> {
                sendAll(each, failed);
                done.countDown();
            }).start();
        }
        done.await();
        double seconds = (System.nanoTime() - start) / 1e9;
        return String.format("{\"messages\":%d,\"failed\":%d,\"seconds\":%.6f}", each * threads, failed.get(), seconds);
    }

    private String paced(int threads, int messages, double rate) throws InterruptedException {
        AtomicInteger next = new AtomicInteger();
        AtomicInteger failed = new AtomicInteger();
        double[] tookMs = new double[messages];
        CountDownLatch done = new CountDownLatch(threads);
        long start = System.nanoTime();
        for (int t = 0; t < threads; t++) {
            new Thread(() -> {
                for (int number = next.getAndIncrement(); number < messages; number = next.getAndIncrement()) {
                    long due = start + (long) (number / rate * 1e9);
                    LockSupport.parkNanos(due - System.nanoTime());
                    try {
                        send();
                    } catch (Exception error) {
                        failed.incrementAndGet();
                    }
                    tookMs[number] = (System.nanoTime() - due) / 1e6;
                }
                done.countDown();
            }).start();
        }
        done.await();
        double seconds = (System.nanoTime() - start) / 1e9;
        Arrays.sort(tookMs);
        return String.format("{\"messages\":%d,\"failed\":%d,\"seconds\":%.6f,\"p50_ms\":%.3f,\"p99_ms\":%.3f}", messages,
            failed.get(), seconds, tookMs[messages / 2], tookMs[messages * 99 / 100]);
    }

    private void sendAll(int messages, AtomicInteger failed) {
        for (int i = 0; i < messages; i++) {
            try {
                send();
            } catch (Exception error) {
                if (failed.getAndIncrement() == 0) {
                    System.err.println(error);
                }
            }
        }
    }

    private void send() throws Exception {
        Message message = provider.newMessageBuilder().setTopic(topic).setTag("TagA").setKeys("key").setBody(body).build();
        producer.send(message);
    }
}
