package scenarios;

import static scenarios.Peer.check;
import static scenarios.Peer.equal;
import static scenarios.Peer.sent;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Requests of 5.x about messages that could be popped, over the official client's connection. */
final class Peeking {
    private static final int PEEK = 200052;
    private static final int NOTIFICATION = 200054;
    private static final int POP_ROLLBACK = 200056;
    private static final int ALL_REQUEST_MODES = 402;
    private static final long POLL_MS = 20_000;

    private Peeking() {
    }

    static void register(Map<String, Scenario.Body> all) {
        try {
            Class.forName("org.apache.rocketmq.client.impl.mqclient.MQClientAPIExt");
        } catch (ClassNotFoundException olderClient) {
            return;
        }
        all.put("pop_look", Peeking::look);
    }

    /**
     * A peek takes no message. A NOTIFICATION gets its response at once if there is a message, else when one comes or
     * time is over.
     */
    private static Map<String, Object> look(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        sent(producer.send(peer.message("TagA", "key", "first")));
        List<MessageQueue> queues = peer.queues();
        check(queues.size() > 3, "queues: " + queues.size());
        MessageQueue full = null;
        MessageQueue empty = null;
        for (MessageQueue queue : queues) {
            if (ask(producer, queue, PEEK, fields(peer, queue)).getCode() == 0) {
                full = queue;
            } else {
                empty = queue;
            }
        }
        sent(producer.send(peer.message("TagA", "key", "second"), full));
        sent(producer.send(peer.message("TagA", "key", "third"), full));
        for (int time = 0; time < 2; time++) {
            RemotingCommand peeked = ask(producer, full, PEEK, fields(peer, full));
            equal("code", 0, peeked.getCode());
            equal("remark", "FOUND", peeked.getRemark());
            equal("left", "3", peeked.getExtFields().get("restNum"));
            List<String> bodies = MessageDecoder.decodes(ByteBuffer.wrap(peeked.getBody())).stream().map(Peer::body).toList();
            equal("messages", List.of("first", "second"), bodies);
        }
        equal("there is something", "true", question(producer, peer, full, 0));
        equal("there is nothing", "false", question(producer, peer, empty, 1_000));

        MessageQueue silent = empty;
        CompletableFuture<String> asked = CompletableFuture.supplyAsync(() -> question(producer, peer, silent, POLL_MS));
        Thread.sleep(1_000);
        check(!asked.isDone(), "the question did not wait");
        sent(producer.send(peer.message("TagA", "key", "fourth"), empty));
        equal("something came", "true", asked.get(POLL_MS, TimeUnit.MILLISECONDS));

        equal("code", 0, ask(producer, full, POP_ROLLBACK, Map.of()).getCode());
        RemotingCommand modes = ask(producer, full, ALL_REQUEST_MODES, Map.of());
        equal("code", 0, modes.getCode());
        check(new String(modes.getBody()).contains("messageRequestModeMap"), new String(modes.getBody()));
        return Map.of("queues", queues.size());
    }

    private static String question(DefaultMQProducer producer, Peer peer, MessageQueue queue, long pollMs) {
        Map<String, String> fields = new HashMap<>(fields(peer, queue));
        fields.put("pollTime", Long.toString(pollMs));
        fields.put("bornTime", Long.toString(System.currentTimeMillis()));
        try {
            RemotingCommand answer = ask(producer, queue, NOTIFICATION, fields);
            equal("code", 0, answer.getCode());
            return answer.getExtFields().get("hasMsg");
        } catch (Exception failure) {
            throw new IllegalStateException(failure);
        }
    }

    private static Map<String, String> fields(Peer peer, MessageQueue queue) {
        return Map.of("consumerGroup", peer.group, "topic", peer.topic, "queueId",
            Integer.toString(queue.getQueueId()), "maxMsgNums", "2");
    }

    private static RemotingCommand ask(
        DefaultMQProducer producer, MessageQueue queue, int code, Map<String, String> fields) throws Exception {
        MQClientInstance client = producer.getDefaultMQProducerImpl().getmQClientFactory();
        RemotingCommand request = RemotingCommand.createRequestCommand(code, null);
        request.setExtFields(new HashMap<>(fields));
        String address = client.findBrokerAddressInPublish(queue.getBrokerName());
        return client.getMQClientAPIImpl().getRemotingClient().invokeSync(address, request, 2 * POLL_MS);
    }
}
