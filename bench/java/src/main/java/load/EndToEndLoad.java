package load;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends messages to a push consumer and measures latencies. Arguments: name server address, topic, body bytes.
 * Each line on standard input, "MESSAGES RATE", is one round of blocking sends from 16 threads and gets one JSON line;
 * a latency counts from the moment the send was due until the listener is called with the message.
 */
public final class EndToEndLoad {
    private static final int THREADS = 16;
    private static final int WARM_UP_TIMEOUT_S = 60;
    private static final int REST_TIMEOUT_S = 30;

    private final DefaultMQProducer producer;
    private final String topic;
    private final int bodyBytes;
    private volatile Round round;
    private int rounds;

    private EndToEndLoad(DefaultMQProducer producer, String topic, int bodyBytes) {
        this.producer = producer;
        this.topic = topic;
        this.bodyBytes = bodyBytes;
    }

    /** The messages that a round waits for; each carries the number of the round, its own number, and its due time. */
    private static final class Round {
        final int number;
        final long[] latencies;
        final AtomicInteger arrived = new AtomicInteger();
        final CountDownLatch all = new CountDownLatch(1);

        Round(int number, int messages) {
            this.number = number;
            this.latencies = new long[messages];
        }
    }

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("end_to_end_load");
        producer.setNamesrvAddr(args[0]);
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        EndToEndLoad load = new EndToEndLoad(producer, args[1], Integer.parseInt(args[2]));
        producer.send(new Message(load.topic, new byte[load.bodyBytes]));   // makes the topic
        load.consume(args[0]);
        System.out.println("{\"ready\":true}");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            System.out.println(load.round(Integer.parseInt(words[0]), Integer.parseInt(words[1]), REST_TIMEOUT_S));
        }
        System.exit(0);
    }

    /** Starts the consumer and returns once it receives messages. */
    private void consume(String namesrv) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("end_to_end_load");
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                arrived(ByteBuffer.wrap(message.getBody()), now);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        round(1_000, 1_000, WARM_UP_TIMEOUT_S);
    }

    private void arrived(ByteBuffer body, long now) {
        Round current = round;
        if (current == null || body.getInt() != current.number) {
            return;
        }
        current.latencies[body.getInt()] = now - body.getLong();
        if (current.arrived.incrementAndGet() == current.latencies.length) {
            current.all.countDown();
        }
    }

    private String round(int messages, int rate, int timeoutSeconds) throws InterruptedException {
        Round current = new Round(++rounds, messages / THREADS * THREADS);
        round = current;
        AtomicInteger failed = new AtomicInteger();
        long start = System.nanoTime();
        for (int t = 0; t < THREADS; t++) {
            int first = t;
            new Thread(() -> sendAll(current, first, start, 1e9 / rate, failed)).start();
        }
        current.all.await(messages / rate + timeoutSeconds, TimeUnit.SECONDS);
        long nanos = System.nanoTime() - start;
        long[] sorted = current.latencies.clone();
        Arrays.sort(sorted);
        return String.format("{\"messages\":%d,\"failed\":%d,\"seconds\":%.6f,%s}", sorted.length,
            Math.max(failed.get(), sorted.length - current.arrived.get()), nanos / 1e9, Latencies.json(sorted));
    }

    private void sendAll(Round current, int first, long start, double gapNanos, AtomicInteger failed) {
        for (int i = first; i < current.latencies.length; i += THREADS) {
            long due = start + (long) (gapNanos * i);
            for (long wait = due - System.nanoTime(); wait > 0; wait = due - System.nanoTime()) {
                LockSupport.parkNanos(wait);
            }
            ByteBuffer body = ByteBuffer.allocate(bodyBytes).putInt(current.number).putInt(i).putLong(due);
            try {
                producer.send(new Message(topic, "TagA", "key", body.array()));
            } catch (Exception error) {
                if (failed.getAndIncrement() == 0) {
                    System.err.println(error);
                }
            }
        }
    }
}
