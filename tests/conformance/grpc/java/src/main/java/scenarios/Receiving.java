package scenarios;

import static scenarios.Peer.outcome;
import static scenarios.Peer.saw;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** Simple consumers: redelivery, invisible durations, filters. */
final class Receiving {
    private Receiving() {
    }

    static void register(Map<String, Main.Body> all) {
        all.put("redelivery", Receiving::redelivery);
        all.put("change_invisible", Receiving::changeInvisible);
        all.put("filter_tag", peer -> filtered(peer, new FilterExpression("TagA || TagC"), 4));
        all.put("filter_sql", peer -> filtered(peer,
            new FilterExpression("number > 1 AND colour = 'red'", FilterExpressionType.SQL92), 2));
    }

    private static Map<String, Object> redelivery(Peer peer) throws Exception {
        Producer producer = peer.producer();
        SimpleConsumer consumer = peer.consumer();
        for (String body : List.of("kept", "done")) {
            producer.send(peer.builder(body).setTag("TagA").build());
        }
        List<MessageView> first = peer.receive(consumer, 2, Peer.PATIENCE);
        for (MessageView message : first) {
            if (Peer.body(message).equals("done")) {
                consumer.ack(message);
            }
        }
        long began = System.nanoTime();
        List<MessageView> again = peer.receive(consumer, 1, Peer.PATIENCE);
        boolean early = System.nanoTime() - began < Peer.INVISIBLE.minusSeconds(3).toNanos();
        MessageView expired = first.stream().filter(one -> Peer.body(one).equals("kept")).findFirst().orElseThrow();
        Map<String, Object> late = outcome(() -> consumer.ack(expired));
        for (MessageView message : again) {
            consumer.ack(message);
        }
        return saw("first", Peer.sortedAttempts(first), "again", Peer.attempts(again), "early", early,
            "ack_of_expired_handle", late);
    }

    private static Map<String, Object> changeInvisible(Peer peer) throws Exception {
        Producer producer = peer.producer();
        SimpleConsumer consumer = peer.consumer();
        producer.send(peer.message("changed"));
        List<Object> attempts = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            for (MessageView message : peer.receive(consumer, 1, Peer.PATIENCE)) {
                consumer.changeInvisibleDuration(message, Duration.ofSeconds(1));
                attempts.addAll(Peer.attempts(List.of(message)));
            }
        }
        List<MessageView> last = peer.received(consumer, 1, Peer.PATIENCE);
        attempts.addAll(Peer.attempts(last));
        return saw("attempts", attempts, "ack_again", outcome(() -> consumer.ack(last.get(0))),
            "left", peer.receive(consumer, 1, Duration.ofSeconds(6)).size());
    }

    private static Map<String, Object> filtered(Peer peer, FilterExpression expression, int wanted) throws Exception {
        SimpleConsumer consumer = peer.consumer(peer.topic, expression);
        Producer producer = peer.producer();
        peer.receive(consumer, 1, Duration.ofSeconds(1)); // makes the subscription known before the messages are sent
        for (int i = 0; i < 6; i++) {
            producer.send(peer.builder("message " + i).setTag("Tag" + "ABC".charAt(i % 3))
                .addProperty("number", String.valueOf(i)).addProperty("colour", i % 2 == 1 ? "red" : "blue").build());
        }
        List<String> found = Peer.bodies(peer.received(consumer, wanted, Peer.PATIENCE)).stream().sorted().toList();
        return saw("messages", found, "more", Peer.bodies(peer.received(consumer, 1, Duration.ofSeconds(4))));
    }
}
