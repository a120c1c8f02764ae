package scenarios;

import static scenarios.Peer.outcome;
import static scenarios.Peer.saw;

import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Every kind of message, sent and received. */
final class Sending {
    /** A gRPC channel may wait 120 s before it connects again. */
    private static final Duration RESTART_PATIENCE = Duration.ofSeconds(150);

    private Sending() {
    }

    static void register(Map<String, Main.Body> all) {
        all.put("send_normal", Sending::normal);
        all.put("send_fifo", Sending::fifo);
        all.put("send_delay", Sending::delay);
        all.put("recall", Sending::recall);
        all.put("priority", Sending::priority);
        all.put("transaction", Sending::transaction);
        all.put("restart", Sending::restart);
    }

    private static Map<String, Object> normal(Peer peer) throws Exception {
        Producer producer = peer.producer();
        SimpleConsumer consumer = peer.consumer();
        List<SendReceipt> receipts = new ArrayList<>();
        receipts.add(producer.send(peer.builder("plain").setTag("TagA").setKeys("key1", "key2")
            .addProperty("colour", "green").addProperty("größe", "très grand 大").build()));
        receipts.add(producer.send(peer.message("bare")));
        receipts.add(producer.send(peer.message("x".repeat(3_000_000))));
        receipts.add(producer.sendAsync(peer.builder("later").setTag("TagB").build()).get(30, TimeUnit.SECONDS));
        List<MessageView> messages = peer.received(consumer, 4, Peer.PATIENCE);
        Set<String> sent = new HashSet<>();
        Set<String> got = new HashSet<>();
        receipts.forEach(receipt -> sent.add(receipt.getMessageId().toString()));
        messages.forEach(message -> got.add(message.getMessageId().toString()));
        return saw("ids", sent.equals(got), "messages", Peer.sortedShown(messages));
    }

    private static Map<String, Object> fifo(Peer peer) throws Exception {
        Producer producer = peer.producer();
        for (int i = 0; i < 6; i++) {
            for (String group : List.of("one", "two")) {
                producer.send(peer.builder(group + " " + i).setMessageGroup(group).build());
            }
        }
        List<MessageView> messages = peer.received(peer.consumer(), 12, Peer.PATIENCE);
        return saw("orders", orders(messages), "first", Peer.sortedShown(messages).get(0));
    }

    static Map<String, Object> orders(List<MessageView> messages) {
        Map<String, Object> orders = saw();
        for (String group : List.of("one", "two")) {
            orders.put(group, Peer.bodies(messages.stream().filter(m -> m.getMessageGroup().orElse("").equals(group)).toList()));
        }
        return orders;
    }

    private static Map<String, Object> delay(Peer peer) throws Exception {
        Producer producer = peer.producer();
        SimpleConsumer consumer = peer.consumer();
        long due = System.currentTimeMillis() + 3000;
        SendReceipt receipt = producer.send(peer.builder("due").setDeliveryTimestamp(due).build());
        producer.send(peer.builder("past").setDeliveryTimestamp(due - 60_000).build());
        List<MessageView> messages = new ArrayList<>();
        int early = 0;
        long deadline = System.nanoTime() + Peer.PATIENCE.toNanos();
        while (messages.size() < 2 && System.nanoTime() < deadline) {
            for (MessageView message : peer.received(consumer, 1, Duration.ofSeconds(5))) {
                early += Peer.body(message).equals("due") && System.currentTimeMillis() < due - 500 ? 1 : 0;
                messages.add(message);
            }
        }
        List<Boolean> exact = messages.stream().filter(m -> Peer.body(m).equals("due"))
            .map(m -> m.getDeliveryTimestamp().orElse(0L) == due).toList();
        return saw("early", early, "exact", exact, "recall_handle", !handle(receipt).isEmpty(),
            "messages", messages.stream().map(Peer::shown).toList());
    }

    /** The receipt's recall handle; empty if this version does not know recalls. */
    private static String handle(SendReceipt receipt) throws ReflectiveOperationException {
        try {
            Object handle = SendReceipt.class.getMethod("getRecallHandle").invoke(receipt);
            return handle == null ? "" : handle.toString();
        } catch (NoSuchMethodException error) {
            return "";
        }
    }

    private static void recall(Producer producer, String topic, String handle) throws Exception {
        try {
            Producer.class.getMethod("recallMessage", String.class, String.class).invoke(producer, topic, handle);
        } catch (java.lang.reflect.InvocationTargetException error) {
            throw (Exception) error.getCause();
        }
    }

    private static Map<String, Object> recall(Peer peer) throws Exception {
        Producer producer = peer.producer();
        SimpleConsumer consumer = peer.consumer();
        long due = System.currentTimeMillis() + 6000;
        SendReceipt first = producer.send(peer.builder("recalled").setDeliveryTimestamp(due).build());
        SendReceipt second = producer.send(peer.builder("kept").setDeliveryTimestamp(due).build());
        if (handle(first).isEmpty()) {
            return saw("supported", false);
        }
        Map<String, Object> saw = saw("recalled", outcome(() -> recall(producer, peer.topic, handle(first))));
        saw.put("messages", Peer.bodies(peer.received(consumer, 2, Duration.ofSeconds(14))));
        saw.put("late", outcome(() -> recall(producer, peer.topic, handle(second))));
        saw.put("wrong", outcome(() -> recall(producer, peer.topic, "no-handle")));
        return saw;
    }

    private static Map<String, Object> priority(Peer peer) throws Exception {
        Method give;
        Method tell;
        try {
            give = MessageBuilder.class.getMethod("setPriority", int.class);
            tell = MessageView.class.getMethod("getPriority");
        } catch (NoSuchMethodException error) {
            return saw("supported", false); // this version does not know priorities
        }
        Producer producer = peer.producer();
        for (int priority : new int[] {1, 3, 2, 5}) {
            MessageBuilder builder = peer.builder("priority " + priority);
            give.invoke(builder, priority);
            producer.send(builder.build());
        }
        List<Object> messages = new ArrayList<>();
        for (MessageView message : peer.received(peer.consumer(), 4, Peer.PATIENCE)) {
            messages.add(List.of(Peer.body(message), ((Optional<?>) tell.invoke(message)).orElseThrow()));
        }
        return saw("messages", messages);
    }

    private static Map<String, Object> transaction(Peer peer) throws Exception {
        Set<String> asked = new ConcurrentSkipListSet<>();
        Producer producer = peer.producer(message -> {
            asked.add(Peer.body(message));
            return Peer.body(message).startsWith("commit") ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
        });
        SimpleConsumer consumer = peer.consumer();
        List<Object> ends = new ArrayList<>();
        for (String body : List.of("commit now", "roll back now", "commit later", "roll back later")) {
            Transaction begun = producer.beginTransaction();
            producer.send(peer.builder(body).setTag("TagA").build(), begun);
            if (body.equals("commit now")) {
                ends.add(outcome(begun::commit));
            } else if (body.equals("roll back now")) {
                ends.add(outcome(begun::rollback));
            }
        }
        List<MessageView> messages = peer.received(consumer, 2, Peer.PATIENCE);
        Peer.until(() -> asked.size() >= 2);
        messages.addAll(peer.received(consumer, 1, Duration.ofSeconds(5)));
        return saw("ends", ends, "asked", List.copyOf(asked), "messages", Peer.sortedShown(messages));
    }

    private static Map<String, Object> restart(Peer peer) throws Exception {
        Producer producer = peer.producer();
        Set<String> sent = new ConcurrentSkipListSet<>();
        send(peer, producer, 0, 20, sent);
        SimpleConsumer consumer = peer.consumer();
        Set<String> found = new TreeSet<>(Peer.bodies(peer.received(consumer, 5, Peer.PATIENCE)));
        Thread during = new Thread(() -> send(peer, producer, 20, 40, sent));
        System.out.println("{\"restart\": true}");
        during.start();
        System.in.read();
        during.join();
        long deadline = System.nanoTime() + RESTART_PATIENCE.toNanos();
        while (!found.containsAll(sent) && System.nanoTime() < deadline) {
            for (MessageView message : peer.receive(consumer, 1, Duration.ofSeconds(10))) {
                found.add(Peer.body(message));
                outcome(() -> consumer.ack(message));
            }
        }
        Set<String> lost = new TreeSet<>(sent);
        lost.removeAll(found);
        found.removeAll(sent);
        return saw("sent", sent.size(), "lost", !lost.isEmpty(), "unknown", found, "text", "lost: " + lost);
    }

    private static void send(Peer peer, Producer producer, int first, int last, Set<String> sent) {
        for (int i = first; i < last; i++) {
            String body = String.format("message %02d", i);
            long deadline = System.nanoTime() + RESTART_PATIENCE.toNanos();
            while (outcome(() -> producer.send(peer.message(body))).containsKey("error")) {
                if (System.nanoTime() > deadline) {
                    return;
                }
                outcome(() -> Thread.sleep(500));
            }
            sent.add(body);
        }
    }
}
