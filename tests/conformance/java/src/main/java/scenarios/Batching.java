package scenarios;

import static scenarios.Peer.body;
import static scenarios.Peer.check;
import static scenarios.Peer.equal;
import static scenarios.Peer.sent;
import static scenarios.Peer.until;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Topics of type BatchCQ, which clients have since 5.0: a batch of a producer is one record there. */
final class Batching {
    private static final int UPDATE_AND_CREATE_TOPIC = 17;
    private static final int BATCHES = 3;
    private static final int MEMBERS = 5;

    private Batching() {
    }

    static void register(Map<String, Scenario.Body> all) {
        try {
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class);
        } catch (NoSuchMethodException olderClient) {
            return;
        }
        all.put("send_batch_cq", Batching::batches);
    }

    /**
     * Before the first batch the minimum offset of a queue is -1, except in the statistics. A batch has one id; its
     * members have one offset each, and consumers get them one by one.
     */
    private static Map<String, Object> batches(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        DefaultMQPullConsumer reader = peer.pullConsumer(peer.group + "_batches");
        MQClientInstance client = producer.getDefaultMQProducerImpl().getmQClientFactory();
        String brokerName = reader.fetchSubscribeMessageQueues("TBW102").iterator().next().getBrokerName();
        String address = until("the broker's address", () -> {
            client.updateTopicRouteInfoFromNameServer("TBW102");
            return client.findBrokerAddressInPublish(brokerName);
        });
        create(client, address, peer.topic);
        List<MessageQueue> queues = peer.queues();
        queues.sort(null);
        equal("queues", 2, queues.size());
        equal("statistics of an empty topic", "0=0-0 1=0-0", statistics(client, address, peer.topic));
        for (MessageQueue queue : queues) {
            equal("minimum of an empty queue", -1L, reader.minOffset(queue));
            equal("maximum of an empty queue", 0L, reader.maxOffset(queue));
        }
        Set<String> ids = new TreeSet<>();
        for (int batch = 0; batch < BATCHES; batch++) {
            List<Message> members = new ArrayList<>();
            for (int i = 0; i < MEMBERS; i++) {
                Message member = peer.message("TagB", "key" + batch + i, "batch " + batch + " member " + i);
                member.putUserProperty("INNER_VOICE", "own property");
                members.add(member);
            }
            SendResult result = sent(producer.send(members, queues.get(0)));
            equal("first offset of the batch", (long) batch * MEMBERS, result.getQueueOffset());
            equal("ids of the batch", 1, result.getMsgId().split(",").length);
            equal("offset ids of the batch", 1, result.getOffsetMsgId().split(",").length);
            check(ids.add(result.getMsgId()), "id twice");
        }
        SendResult single = sent(producer.send(peer.message("TagA", "key", "single"), queues.get(0)));
        equal("offset of a single message", (long) BATCHES * MEMBERS, single.getQueueOffset());
        long count = BATCHES * MEMBERS + 1;
        until("all messages", () -> reader.maxOffset(queues.get(0)) == count ? true : null);
        equal("minimum", 0L, reader.minOffset(queues.get(0)));
        equal("minimum of the queue that is still empty", -1L, reader.minOffset(queues.get(1)));
        String told = statistics(client, address, peer.topic);
        equal("statistics", "0=0-" + count + " 1=0-0", told);
        List<MessageExt> found = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer consumer = peer.pushConsumer(peer.group);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(peer.topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            found.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        until("all messages at the consumer", () -> found.size() >= count ? true : null);
        Map<Long, String> bodies = new TreeMap<>();
        for (MessageExt message : found) {
            bodies.put(message.getQueueOffset(), body(message));
            if (message.getQueueOffset() < count - 1) {
                equal("property", "own property", message.getUserProperty("INNER_VOICE"));
            }
        }
        Map<Long, String> expected = new TreeMap<>();
        for (long i = 0; i < count - 1; i++) {
            expected.put(i, "batch " + i / MEMBERS + " member " + i % MEMBERS);
        }
        expected.put(count - 1, "single");
        equal("messages by offset", expected, bodies);
        equal("messages", (int) count, found.size());
        return Map.of("messages", count, "statistics", told);
    }

    private static void create(MQClientInstance client, String address, String topic) throws Exception {
        RemotingCommand request = RemotingCommand.createRequestCommand(UPDATE_AND_CREATE_TOPIC, null);
        Map<String, String> fields = Map.of("topic", topic, "defaultTopic", "TBW102", "readQueueNums", "2", "writeQueueNums", "2",
            "perm", "6", "topicFilterType", "SINGLE_TAG", "order", "false", "attributes", "+queue.type=BatchCQ");
        fields.forEach(request::addExtField);
        equal("code", 0, client.getMQClientAPIImpl().getRemotingClient().invokeSync(address, request, 5_000).getCode());
    }

    /** Returns the smallest and largest offset of each queue, as administration requests read them. */
    private static String statistics(MQClientInstance client, String address, String topic) throws Exception {
        Map<Integer, String> offsets = new TreeMap<>();
        var table = client.getMQClientAPIImpl().getTopicStatsInfo(address, topic, 5_000).getOffsetTable();
        table.forEach((queue, offset) -> offsets.put(queue.getQueueId(), offset.getMinOffset() + "-" + offset.getMaxOffset()));
        StringBuilder text = new StringBuilder();
        offsets.forEach((queueId, range) -> text.append(' ').append(queueId).append('=').append(range));
        return text.substring(1);
    }
}
