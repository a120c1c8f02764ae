package scenarios;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * One consumer in a group with consumers of other languages. Arguments: name server, group, topic, strategy,
 * {@code orderly} or {@code concurrent}, and for the strategy CONFIG the queues as {@code broker:id,broker:id}. Prints
 * {@code G body queue offset} for each message, {@code R client id} when started or {@code X error},
 * {@code Q queue,queue} when asked for its queues with the line {@code queues}; ends with its input.
 */
public final class Sharing {
    private Sharing() {
    }

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[2];
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[1]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAllocateMessageQueueStrategy(strategy(arguments[3], topic, arguments.length > 5 ? arguments[5] : ""));
        if (arguments[4].equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                print(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                print(messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.subscribe(topic, "*");
        try {
            consumer.start();
        } catch (Exception error) {   // threads of a half started client would keep the process running
            say("X " + error);
            System.exit(1);
        }
        say("R " + consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        while (input.readLine() != null) {
            List<String> queues = new ArrayList<>();
            for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
                if (queue.getTopic().equals(topic)) {
                    queues.add(queue.getBrokerName() + ":" + queue.getQueueId());
                }
            }
            say("Q " + String.join(",", queues));
        }
        consumer.shutdown();
        say("E");
        System.exit(0);
    }

    private static AllocateMessageQueueStrategy strategy(String name, String topic, String configured) {
        switch (name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash();
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom room = new AllocateMessageQueueByMachineRoom();
                room.setConsumeridcs(new HashSet<>(Arrays.asList("room1")));
                return room;
            default:
                List<MessageQueue> queues = new ArrayList<>();
                for (String queue : configured.split(",")) {
                    String[] parts = queue.split(":");
                    queues.add(new MessageQueue(topic, parts[0], Integer.parseInt(parts[1])));
                }
                AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
                config.setMessageQueueList(queues);
                return config;
        }
    }

    private static void print(List<MessageExt> messages) {
        for (MessageExt message : messages) {
            say("G " + new String(message.getBody(), StandardCharsets.UTF_8) + " " + message.getQueueId() + " " + message.getQueueOffset());
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
