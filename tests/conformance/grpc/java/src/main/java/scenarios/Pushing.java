package scenarios;

import static scenarios.Peer.saw;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.function.BiPredicate;
import java.util.stream.Stream;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** Push consumers: listeners that consume or fail. */
final class Pushing {
    private static final long NUDGE_MS = 3000;

    private Pushing() {
    }

    /** Records messages; the predicate says which deliveries are not consumed. */
    private static final class Listener implements MessageListener {
        private final List<MessageView> seen = new ArrayList<>();
        private final BiPredicate<String, Long> fails;

        Listener(BiPredicate<String, Long> fails) {
            this.fails = fails;
        }

        @Override
        public synchronized ConsumeResult consume(MessageView message) {
            seen.add(message);
            long times = seen.stream().filter(other -> Peer.body(other).equals(Peer.body(message))).count();
            return fails.test(Peer.body(message), times) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        }

        synchronized List<MessageView> all() {
            return List.copyOf(seen);
        }

        List<MessageView> without(String body) {
            return all().stream().filter(message -> !Peer.body(message).equals(body)).toList();
        }

        List<MessageView> await(int count, long afterwardsMs) throws InterruptedException {
            Peer.until(() -> all().size() >= count);
            Thread.sleep(afterwardsMs);
            return all();
        }
    }

    static void register(Map<String, Main.Body> all) {
        all.put("push", Pushing::push);
        all.put("push_share", Pushing::share);
        all.put("push_retry", peer -> failing(peer, (body, times) -> body.equals("bad") && times < 3, 4, 0));
        // The third delivery goes to the dead letters; the runner counts them.
        all.put("push_dead", peer -> failing(peer, (body, times) -> body.equals("bad"), 3, 4));
        all.put("push_fifo", Pushing::fifo);
    }

    private static Map<String, Object> push(Peer peer) throws Exception {
        Producer producer = peer.producer();
        Listener listener = new Listener((body, times) -> false);
        peer.push(listener);
        for (int i = 0; i < 20; i++) {
            producer.send(peer.builder(String.format("message %02d", i)).setTag("TagA").build());
        }
        List<MessageView> found = listener.await(20, 1000);
        return saw("messages", Peer.sortedAttempts(found), "first", Peer.sortedShown(found).get(0));
    }

    private static Map<String, Object> share(Peer peer) throws Exception {
        Producer producer = peer.producer();
        Listener one = new Listener((body, times) -> false);
        Listener two = new Listener((body, times) -> false);
        peer.push(one);
        peer.push(two);
        for (int i = 0; i < 40; i++) {
            producer.send(peer.message(String.format("message %02d", i)));
        }
        Peer.until(() -> one.all().size() + two.all().size() >= 40);
        Thread.sleep(1000);
        List<String> bodies = Peer.bodies(Stream.concat(one.all().stream(), two.all().stream()).toList());
        return saw("distinct", new HashSet<>(bodies).size(), "deliveries", bodies.size());
    }

    /**
     * Consumes with a listener that fails. The official server may leave a waiting consumer asleep when a message
     * becomes visible again; further messages wake it.
     */
    private static Map<String, Object> failing(Peer peer, BiPredicate<String, Long> fails, int wanted, int afterwards)
        throws Exception {
        Producer producer = peer.producer();
        Listener listener = new Listener(fails);
        peer.push(listener);
        for (String body : List.of("good", "bad")) {
            producer.send(peer.message(body));
        }
        for (int i = 0; i < 20 && listener.without("more").size() < wanted; i++) {
            Thread.sleep(NUDGE_MS);
            producer.send(peer.message("more"));
        }
        for (int i = 0; i < afterwards; i++) {
            Thread.sleep(NUDGE_MS);
            producer.send(peer.message("more"));
        }
        Thread.sleep(1000);
        return saw("messages", Peer.sortedAttempts(listener.without("more")));
    }

    private static Map<String, Object> fifo(Peer peer) throws Exception {
        Producer producer = peer.producer();
        Listener listener = new Listener((body, times) -> body.equals("one 1"));
        for (int i = 0; i < 3; i++) {
            for (String group : List.of("one", "two")) {
                producer.send(peer.builder(group + " " + i).setMessageGroup(group).build());
            }
        }
        peer.push(listener);
        return saw("orders", Sending.orders(listener.await(7, 2000)));
    }
}
