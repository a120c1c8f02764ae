package admin;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * The official tool, in one process with a producer and a consumer that stay alive.
 *
 * <p>Arguments: name server, topic, group. Prints {@code ready ID OFFSET_ID CLIENT} once the messages are consumed and the first one's trace
 * is found; without topic and group, only the tool runs, and {@code ready} is printed at once. Then each line of
 * standard input is one command, its words separated by tabs; the output is one line: what the command printed, in
 * base64.
 */
public final class Tool {
    private static final int MESSAGES = 8;

    private Tool() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        if (arguments.length == 1) {
            out.println("ready");
            serve(out);
        }
        String namesrv = arguments[0];
        String topic = arguments[1];
        String group = arguments[2];
        DefaultMQProducer producer = new DefaultMQProducer(group + "_P", true, null);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("producer");
        producer.start();
        String[] ids = new String[2];
        for (int number = 0; number < MESSAGES; number++) {
            Message message = new Message(topic, "TagA", "key" + number, ("message " + number).getBytes(StandardCharsets.UTF_8));
            int queueId = number % 2;
            var result = producer.send(message, (queues, sent, id) -> queue(queues, (Integer) id), queueId);
            if (number == 0) {
                ids[0] = result.getMsgId();
                ids[1] = result.getOffsetMsgId();
            }
        }
        java.util.concurrent.CountDownLatch consumed = new java.util.concurrent.CountDownLatch(MESSAGES);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, true, null);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("consumer");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> consumed.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        consumed.await(60, java.util.concurrent.TimeUnit.SECONDS);
        // The offsets reach the broker with the next two reports; the producer sends traces after five seconds.
        Thread.sleep(6500);
        out.println("ready " + ids[0] + " " + ids[1] + " " + consumer.buildMQClientId());
        serve(out);
    }

    private static void serve(PrintStream out) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream stream = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(stream);
            System.setErr(stream);
            MQAdminStartup.main0(line.split("\t"), null);
            stream.flush();
            out.println(Base64.getEncoder().encodeToString(printed.toByteArray()));
        }
        System.exit(0);
    }

    private static MessageQueue queue(java.util.List<MessageQueue> queues, int queueId) {
        return queues.stream().filter(queue -> queue.getQueueId() == queueId).findFirst().orElseThrow();
    }
}
