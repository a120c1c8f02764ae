package load;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Blocking sends from many threads over one producer. Arguments: name server address, topic, body bytes.
 * Each line on standard input, "THREADS MESSAGES RATE [BATCH]", is one round and gets one JSON line. RATE is in
 * messages per second, and a latency counts from the moment the send was due; with RATE 0, messages are sent as fast as
 * responses come. With BATCH, each send has this many messages.
 */
public final class SendLoad {
    private final DefaultMQProducer producer;
    private final String topic;
    private final byte[] body;

    private SendLoad(DefaultMQProducer producer, String topic, int bodyBytes) {
        this.producer = producer;
        this.topic = topic;
        this.body = new byte[bodyBytes];
        new Random(1).nextBytes(body);
    }

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("send_load");
        producer.setNamesrvAddr(args[0]);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        SendLoad load = new SendLoad(producer, args[1], Integer.parseInt(args[2]));
        producer.send(new Message(load.topic, load.body));   // makes the topic
        System.out.println("{\"ready\":true}");
        BufferedReader rounds = new BufferedReader(new InputStreamReader(System.in));
        for (String line = rounds.readLine(); line != null; line = rounds.readLine()) {
            String[] words = line.split(" ");
            System.out.println(load.round(Integer.parseInt(words[0]), Integer.parseInt(words[1]), Integer.parseInt(words[2]),
                words.length > 3 ? Integer.parseInt(words[3]) : 1));
        }
        System.exit(0);
    }

    private String round(int threads, int messages, int rate, int batch) throws InterruptedException {
        int each = Math.max(1, messages / threads / batch);
        long[][] latencies = new long[threads][each];
        AtomicInteger failed = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(threads);
        long start = System.nanoTime();
        for (int t = 0; t < threads; t++) {
            int thread = t;
            new Thread(() -> {
                sendAll(latencies[thread], failed, start, rate == 0 ? 0 : 1_000_000_000L * threads / rate, thread, threads, batch);
                done.countDown();
            }).start();
        }
        done.await();
        long nanos = System.nanoTime() - start;
        long[] all = Arrays.stream(latencies).flatMapToLong(Arrays::stream).sorted().toArray();
        return String.format("{\"messages\":%d,\"failed\":%d,\"seconds\":%.6f,%s}", all.length * batch,
            failed.get() * batch, nanos / 1e9, Latencies.json(all));
    }

    private void sendAll(long[] latencies, AtomicInteger failed, long start, long gapNanos, int thread, int threads, int batch) {
        for (int i = 0; i < latencies.length; i++) {
            long due = System.nanoTime();
            if (gapNanos > 0) {
                due = start + gapNanos * i + gapNanos * thread / threads;
                for (long wait = due - System.nanoTime(); wait > 0; wait = due - System.nanoTime()) {
                    LockSupport.parkNanos(wait);
                }
            }
            try {
                if (send(batch) != SendStatus.SEND_OK) {
                    failed.incrementAndGet();
                }
            } catch (Exception error) {
                if (failed.getAndIncrement() == 0) {
                    System.err.println(error);
                }
            }
            latencies[i] = System.nanoTime() - due;
        }
    }

    private SendStatus send(int batch) throws Exception {
        if (batch == 1) {
            return producer.send(new Message(topic, "TagA", "key", body)).getSendStatus();
        }
        List<Message> messages = new ArrayList<>(batch);
        for (int i = 0; i < batch; i++) {
            messages.add(new Message(topic, "TagA", "key", body));
        }
        return producer.send(messages).getSendStatus();
    }
}
