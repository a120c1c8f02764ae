package load;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * A push consumer that only counts. Arguments: name server address, topic.
 * Each line on standard input, "GROUP MESSAGES", starts a new group at the first message and gets one JSON line.
 * The clock runs from the first to the last message, so that rebalancing does not count.
 */
public final class ConsumeLoad {
    private ConsumeLoad() {
    }

    public static void main(String[] args) throws Exception {
        System.out.println("{\"ready\":true}");
        BufferedReader rounds = new BufferedReader(new InputStreamReader(System.in));
        for (String line = rounds.readLine(); line != null; line = rounds.readLine()) {
            String[] words = line.split(" ");
            System.out.println(round(args[0], args[1], words[0], Long.parseLong(words[1])));
        }
        System.exit(0);
    }

    private static String round(String namesrv, String topic, String group, long wanted) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(32);
        consumer.setConsumeMessageBatchMaxSize(32);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.subscribe(topic, "*");
        AtomicLong count = new AtomicLong();
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        CountDownLatch all = new CountDownLatch(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.compareAndSet(0, System.nanoTime());
            if (count.addAndGet(messages.size()) >= wanted && all.getCount() > 0) {
                last.compareAndSet(0, System.nanoTime());
                all.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean complete = all.await(60, TimeUnit.SECONDS);
        consumer.shutdown();
        double seconds = (complete ? last.get() - first.get() : TimeUnit.SECONDS.toNanos(60)) / 1e9;
        return String.format("{\"messages\":%d,\"failed\":%d,\"seconds\":%.6f}", count.get(), Math.max(0, wanted - count.get()), seconds);
    }
}
