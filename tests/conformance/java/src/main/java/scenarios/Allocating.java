package scenarios;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Prints the results of the allocation strategies: one JSON line for each case. The output is {@code
 * tests/golden/allocations.jsonl}.
 */
public final class Allocating {
    private Allocating() {
    }

    public static void main(String[] arguments) {
        AllocateMachineRoomNearby.MachineRoomResolver rooms = new AllocateMachineRoomNearby.MachineRoomResolver() {
            @Override
            public String brokerDeployIn(MessageQueue queue) {
                return queue.getBrokerName().split("@")[0];
            }

            @Override
            public String consumerDeployIn(String clientId) {
                return clientId.split("-")[0];
            }
        };
        AllocateMessageQueueByMachineRoom room = new AllocateMessageQueueByMachineRoom();
        room.setConsumeridcs(new HashSet<>(Arrays.asList("room1", "room2")));
        List<AllocateMessageQueueStrategy> strategies = Arrays.asList(
            new AllocateMessageQueueAveragely(),
            new AllocateMessageQueueAveragelyByCircle(),
            room,
            new AllocateMessageQueueConsistentHash(),
            new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), rooms));
        Random random = new Random(15);
        for (int round = 0; round < 40; round++) {
            List<MessageQueue> queues = new ArrayList<>();
            int brokers = 1 + random.nextInt(4);
            for (int broker = 0; broker < brokers; broker++) {
                String name = new String[] {"room1@broker-", "room2@broker-", "room3@broker-", "broker-"}[random.nextInt(4)] + broker;
                int count = 1 + random.nextInt(8);
                for (int id = 0; id < count; id++) {
                    queues.add(new MessageQueue("Orders-" + round, name, id));
                }
            }
            List<String> clients = new ArrayList<>();
            int consumers = 1 + random.nextInt(6);
            for (int consumer = 0; consumer < consumers; consumer++) {
                clients.add("room" + (1 + random.nextInt(4)) + "-10.0.0." + random.nextInt(256) + "@" + consumer + "#" + random.nextLong());
            }
            Collections.sort(queues);
            Collections.sort(clients);
            for (AllocateMessageQueueStrategy strategy : strategies) {
                List<String> results = new ArrayList<>();
                for (String client : clients) {
                    results.add(list(strategy.allocate("group", client, queues, clients)));
                }
                System.out.println("{\"strategy\":\"" + strategy.getName() + "\",\"queues\":" + list(queues)
                    + ",\"clients\":[\"" + String.join("\",\"", clients) + "\"],\"results\":[" + String.join(",", results) + "]}");
            }
        }
    }

    private static String list(List<MessageQueue> queues) {
        List<String> texts = new ArrayList<>();
        for (MessageQueue queue : queues) {
            texts.add("[\"" + queue.getTopic() + "\",\"" + queue.getBrokerName() + "\"," + queue.getQueueId() + "]");
        }
        return "[" + String.join(",", texts) + "]";
    }
}
