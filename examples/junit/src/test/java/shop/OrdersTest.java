package shop;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;

@ExtendWith(RucolaExtension.class)
class OrdersTest {
    @Test
    void anOrderReachesTheTill() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("shop-counter");
        producer.setNamesrvAddr(RucolaExtension.namesrv());
        producer.start();
        producer.send(new Message("orders", "espresso".getBytes(UTF_8)), 10_000);

        CompletableFuture<String> charged = new CompletableFuture<>();
        DefaultMQPushConsumer till = new DefaultMQPushConsumer("shop-till");
        till.setNamesrvAddr(RucolaExtension.namesrv());
        till.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        till.subscribe("orders", "*");
        till.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            charged.complete(new String(messages.get(0).getBody(), UTF_8));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        till.start();

        assertEquals("espresso", charged.get(30, TimeUnit.SECONDS));
        till.shutdown();
        producer.shutdown();
    }
}
