import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * A slow consumer with few messages in its memory. Prints how many different messages it has consumed, twice a second.
 * Arguments: name server, topic, group, pause per message in us.
 */
public class Following {
    public static void main(String[] arguments) throws Exception {
        Set<String> consumed = ConcurrentHashMap.newKeySet();
        long pauseUs = Long.parseLong(arguments[3]);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(5000);
        consumer.setPullThresholdForQueue(8);
        consumer.setPullBatchSize(8);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.setVipChannelEnabled(false);
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                Thread.sleep(pauseUs * messages.size() / 1000);
            } catch (InterruptedException end) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            messages.forEach(message -> consumed.add(message.getQueueId() + "/" + message.getQueueOffset()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (true) {
            System.out.println(consumed.size());
            System.out.flush();
            Thread.sleep(500);
        }
    }
}
