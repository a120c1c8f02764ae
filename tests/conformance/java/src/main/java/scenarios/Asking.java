package scenarios;

import static scenarios.Peer.body;
import static scenarios.Peer.check;
import static scenarios.Peer.equal;
import static scenarios.Peer.sent;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Request/reply: the reply comes back through the broker to the client that sent the request. */
final class Asking {
    private Asking() {
    }

    static void register(Map<String, Scenario.Body> all) {
        all.put("rpc_reply", Asking::reply);
        all.put("rpc_silence", Asking::silence);
    }

    /**
     * Asks with a callback: in 5.3.3 the response to the send ends the blocking form, and calls back once with null.
     */
    private static CompletableFuture<Message> ask(Peer peer, DefaultMQProducer producer, String question, long timeoutMs) throws Exception {
        CompletableFuture<Message> answer = new CompletableFuture<>();
        producer.request(peer.message("TagQ", "key", question), new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                if (message != null) {
                    answer.complete(message);
                }
            }

            @Override
            public void onException(Throwable failure) {
                answer.completeExceptionally(failure);
            }
        }, timeoutMs);
        return answer;
    }

    private static void answerQuestions(Peer peer, String but) throws Exception {
        DefaultMQProducer replier = peer.producer("replier");
        sent(replier.send(peer.message("Setup", "key", "makes the topic, of which consumers learn when they start")));
        DefaultMQPushConsumer consumer = peer.pushConsumer(peer.group);
        consumer.subscribe(peer.topic, "TagQ");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                for (MessageExt question : messages) {
                    if (!body(question).equals(but)) {
                        byte[] answer = ("answer to " + body(question)).getBytes(StandardCharsets.UTF_8);
                        replier.send(MessageUtil.createReplyMessage(question, answer), 5000);
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            } catch (Exception failure) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
        });
        consumer.start();
    }

    private static Map<String, Object> reply(Peer peer) throws Exception {
        answerQuestions(peer, null);
        DefaultMQProducer one = peer.producer("one");
        DefaultMQProducer other = peer.producer("other");
        for (int i = 0; i < 10; i++) {
            CompletableFuture<Message> first = ask(peer, one, "question " + i, 60_000);
            CompletableFuture<Message> second = ask(peer, other, "other question " + i, 60_000);
            equal("answer", "answer to question " + i, text(first.get(65, TimeUnit.SECONDS)));
            equal("answer", "answer to other question " + i, text(second.get(65, TimeUnit.SECONDS)));
        }
        return Map.of("answers", 20);
    }

    private static Map<String, Object> silence(Peer peer) throws Exception {
        answerQuestions(peer, "silence");
        DefaultMQProducer producer = peer.producer("one");
        equal("answer", "answer to something", text(ask(peer, producer, "something", 60_000).get(65, TimeUnit.SECONDS)));
        try {
            ask(peer, producer, "silence", 1_000).get(25, TimeUnit.SECONDS);
        } catch (ExecutionException expected) {
            check(expected.getCause() instanceof RequestTimeoutException, "failed with " + expected.getCause());
            return Map.of("timeouts", 1);
        }
        throw new AssertionError("silence was answered");
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }
}
