package load;

import java.time.Instant;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The official client's first message; the counterpart of bench/load_first.py, with the same arguments and the same line
 * of output. "imported" is the time from the start of the process until main.
 */
public final class FirstLoad {
    private FirstLoad() {
    }

    public static void main(String[] args) throws Exception {
        Instant now = Instant.now();
        double imported = (now.getEpochSecond() * 1e9 + now.getNano() - Long.parseLong(args[3])) / 1e6;
        if (args[0].equals("push")) {
            push(args[1], args[2], args[3], args[4]);
        } else {
            send(args[1], args[2], imported);
        }
        System.exit(0);
    }

    private static void send(String namesrv, String topic, double imported) throws Exception {
        long begin = System.nanoTime();
        DefaultMQProducer producer = producer(namesrv);
        producer.send(new Message(topic, "first".getBytes()));
        say("imported", imported, "acknowledged", since(begin));
        producer.shutdown();
    }

    private static void push(String namesrv, String topic, String body, String group) throws Exception {
        DefaultMQProducer producer = producer(namesrv);
        producer.send(new Message(topic, "before".getBytes()));
        CountDownLatch arrived = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (new String(message.getBody()).equals(body)) {
                    arrived.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        long begin = System.nanoTime();
        consumer.start();
        double joined = since(begin);
        begin = System.nanoTime();
        producer.send(new Message(topic, body.getBytes()));
        arrived.await(30, TimeUnit.SECONDS);
        say("joined", joined, "arrived", since(begin));
        consumer.shutdown();
        producer.shutdown();
    }

    private static DefaultMQProducer producer(String namesrv) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("first_send");
        producer.setNamesrvAddr(namesrv);
        producer.start();
        return producer;
    }

    private static double since(long begin) {
        return (System.nanoTime() - begin) / 1e6;
    }

    private static void say(String first, double firstMs, String second, double secondMs) {
        System.out.printf("{\"%s\":%.3f,\"%s\":%.3f}%n", first, firstMs, second, secondMs);
    }
}
