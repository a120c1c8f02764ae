import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Two slow consumers, one of them orderly. Prints a line for each message: the group, its queue and queue offset.
 * Arguments: name server, topic, group, orderly group, pause per message in ms.
 */
public class Acting {
    private static DefaultMQPushConsumer consumer(String[] arguments, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setInstanceName(group);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(5000);
        consumer.setPullThresholdForQueue(8);
        consumer.setPullBatchSize(8);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.setVipChannelEnabled(false);
        consumer.subscribe(arguments[1], "*");
        return consumer;
    }

    private static void consumed(String group, List<MessageExt> messages, long pauseMs) throws InterruptedException {
        for (MessageExt message : messages) {
            Thread.sleep(pauseMs);
            synchronized (System.out) {
                System.out.println(group + " " + message.getQueueId() + " " + message.getQueueOffset());
                System.out.flush();
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        long pauseMs = Long.parseLong(arguments[4]);
        DefaultMQPushConsumer plain = consumer(arguments, arguments[2]);
        plain.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                consumed(arguments[2], messages, pauseMs);
            } catch (InterruptedException end) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQPushConsumer orderly = consumer(arguments, arguments[3]);
        orderly.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            try {
                consumed(arguments[3], messages, pauseMs);
            } catch (InterruptedException end) {
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        plain.start();
        orderly.start();
        Thread.sleep(Long.MAX_VALUE);
    }
}
