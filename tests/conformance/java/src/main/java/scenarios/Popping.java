package scenarios;

import static scenarios.Peer.check;
import static scenarios.Peer.equal;
import static scenarios.Peer.sent;
import static scenarios.Peer.until;

import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Push consumers of 5.x in groups with POP mode. */
final class Popping {
    private static final int SET_MESSAGE_REQUEST_MODE = 401;
    private static final int MESSAGES = 20;
    private static final long INVISIBLE_MS = 10_000;

    private Popping() {
    }

    static void register(Map<String, Scenario.Body> all) {
        if (method("setClientRebalance", boolean.class) != null) {
            all.put("pop_consume", Popping::consume);
            all.put("crash_pop", Popping::crash);
        }
    }

    /** Every message comes once; one that is refused comes again as the same message, with one retry counted. */
    private static Map<String, Object> consume(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        send(peer, producer, 0, MESSAGES);
        popping(peer, producer);
        List<MessageExt> found = new CopyOnWriteArrayList<>();
        start(peer, refusing("message 3", found));
        until("all messages, one of them twice", () -> found.size() > MESSAGES ? true : null);
        Thread.sleep(INVISIBLE_MS + 5_000);
        equal("messages", MESSAGES + 1, found.size());
        equal("different messages", MESSAGES, bodies(found).size());
        MessageExt again = found.get(MESSAGES);
        equal("message that came again", "message 3", Peer.body(again));
        equal("times tried before", 1, again.getReconsumeTimes());
        equal("topic", peer.topic, again.getTopic());
        check(again.getProperty("1ST_POP_TIME") != null, "no time of the first pop");
        return Map.of("messages", found.size());
    }

    /** After a SIGKILL, acknowledged messages do not come again; messages refused before it, or sent after it, come. */
    private static Map<String, Object> crash(Peer peer) throws Exception {
        DefaultMQProducer producer = peer.producer();
        send(peer, producer, 0, MESSAGES);
        popping(peer, producer);
        List<MessageExt> found = new CopyOnWriteArrayList<>();
        start(peer, refusing("message 3", found));
        until("all messages", () -> found.size() == MESSAGES ? true : null);
        Thread.sleep(6_000);   // the official broker writes consumer offsets every 5 s
        equal("messages before the crash", MESSAGES, found.size());
        peer.restart();
        peer.sendAgain(() -> producer.send(peer.message("TagA", "key", "message " + MESSAGES)));
        until("the refused message and the one sent after the crash", () -> found.size() > MESSAGES + 1 ? true : null);
        Thread.sleep(INVISIBLE_MS + 5_000);
        equal("messages", MESSAGES + 2, found.size());
        equal("different messages", MESSAGES + 1, bodies(found).size());
        List<Integer> tries = found.stream().filter(message -> Peer.body(message).equals("message 3"))
            .map(MessageExt::getReconsumeTimes).toList();
        equal("times tried before", List.of(0, 1), tries);
        return Map.of("messages", found.size());
    }

    /** Consumes every message, and refuses one once. */
    private static MessageListenerConcurrently refusing(String body, List<MessageExt> found) {
        return (messages, context) -> {
            found.addAll(messages);
            MessageExt first = messages.get(0);
            boolean refused = Peer.body(first).equals(body) && first.getReconsumeTimes() == 0;
            return refused ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        };
    }

    private static void send(Peer peer, DefaultMQProducer producer, int first, int count) throws Exception {
        for (int i = first; i < first + count; i++) {
            sent(producer.send(peer.message("TagA", "key" + i, "message " + i)));
        }
    }

    private static void start(Peer peer, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = peer.pushConsumer(peer.group);
        method("setClientRebalance", boolean.class).invoke(consumer, false);
        method("setPopInvisibleTime", long.class).invoke(consumer, INVISIBLE_MS);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(peer.topic, "*");
        consumer.registerMessageListener(listener);
        consumer.start();
    }

    /** Sets the group to POP mode, as mqadmin's setConsumeMode does. */
    private static void popping(Peer peer, DefaultMQProducer producer) throws Exception {
        MQClientInstance client = producer.getDefaultMQProducerImpl().getmQClientFactory();
        String address = client.findBrokerAddressInPublish(peer.queues().get(0).getBrokerName());
        RemotingCommand request = RemotingCommand.createRequestCommand(SET_MESSAGE_REQUEST_MODE, null);
        String body = "{\"topic\":\"" + peer.topic + "\",\"consumerGroup\":\"" + peer.group
            + "\",\"mode\":\"POP\",\"popShareQueueNum\":0}";
        request.setBody(body.getBytes(StandardCharsets.UTF_8));
        equal("code", 0, client.getMQClientAPIImpl().getRemotingClient().invokeSync(address, request, 5_000).getCode());
    }

    private static Set<String> bodies(List<MessageExt> messages) {
        Set<String> bodies = new TreeSet<>();
        messages.forEach(message -> bodies.add(Peer.body(message)));
        return bodies;
    }

    private static Method method(String name, Class<?> type) {
        try {
            return DefaultMQPushConsumer.class.getMethod(name, type);
        } catch (NoSuchMethodException olderClient) {
            return null;
        }
    }
}
