package scenarios;

import static scenarios.Peer.body;
import static scenarios.Peer.equal;
import static scenarios.Peer.until;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Half messages about which the producer decides at once, when it is asked, or never. */
final class Transacting {
    private static final String GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC";
    private static final int CHECK_MAX = 3;   // transactionCheckMax of tests/conformance/run.py

    private Transacting() {
    }

    static void register(Map<String, Scenario.Body> all) {
        all.put("transaction_all", peer -> all(peer, false));
        all.put("crash_transaction", peer -> all(peer, true));
    }

    /**
     * TagA is committed and TagB rolled back at once, TagC and TagD when the broker asks; TagE is never decided. After
     * a crash before the broker asked, the outcomes are the same.
     */
    private static Map<String, Object> all(Peer peer, boolean crash) throws Exception {
        Map<String, Integer> asked = new ConcurrentHashMap<>();
        TransactionMQProducer producer = new TransactionMQProducer(peer.group + "_producer");
        producer.setNamesrvAddr(peer.namesrv());
        producer.setHeartbeatBrokerInterval(1000);   // the first heartbeat after the crash lets the broker ask
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                switch (message.getTags()) {
                    case "TagA":
                        return LocalTransactionState.COMMIT_MESSAGE;
                    case "TagB":
                        return LocalTransactionState.ROLLBACK_MESSAGE;
                    default:
                        return LocalTransactionState.UNKNOW;
                }
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                asked.merge(message.getTags(), 1, Integer::sum);
                equal("topic asked about", peer.topic, message.getTopic());
                switch (message.getTags()) {
                    case "TagC":
                        return LocalTransactionState.COMMIT_MESSAGE;
                    case "TagD":
                        return LocalTransactionState.ROLLBACK_MESSAGE;
                    default:
                        return LocalTransactionState.UNKNOW;
                }
            }
        });
        producer.start();
        try {
            for (String tag : List.of("TagA", "TagB", "TagC", "TagD", "TagE")) {
                Message message = peer.message(tag, "key" + tag, "message " + tag);
                message.putUserProperty("mine", tag);
                equal("send status", SendStatus.SEND_OK, producer.sendMessageInTransaction(message, null).getSendStatus());
            }
            if (crash) {
                Thread.sleep(500);   // transactionOpBatchInterval: before that, decisions are only in memory
                peer.restart();
            }
            List<MessageExt> givenUp = until("the message given up", () -> givenUp(peer));
            equal("given up", "message TagE", body(givenUp.get(0)));
            equal("times asked about TagE", CHECK_MAX, asked.get("TagE"));
            List<MessageExt> found = peer.readAll(2);
            TreeSet<String> bodies = new TreeSet<>();
            for (MessageExt message : found) {
                bodies.add(body(message));
                equal("property", message.getTags(), message.getUserProperty("mine"));
                equal("keys", "key" + message.getTags(), message.getKeys());
            }
            equal("committed", new TreeSet<>(List.of("message TagA", "message TagC")), bodies);
            equal("messages", 2, found.size());
            equal("times asked about TagC", 1, asked.get("TagC"));
            equal("times asked about TagD", 1, asked.get("TagD"));
            equal("asked about", new TreeSet<>(List.of("TagC", "TagD", "TagE")), new TreeSet<>(asked.keySet()));
            return Map.of("committed", found.size(), "asked", asked.get("TagE"));
        } finally {
            producer.shutdown();
        }
    }

    private static List<MessageExt> givenUp(Peer peer) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        for (MessageQueue queue : peer.queuesOf(GIVEN_UP)) {
            peer.readQueue(queue, found);
        }
        found.removeIf(message -> !peer.topic.equals(message.getProperty("REAL_TOPIC")));
        return found.isEmpty() ? null : found;
    }
}
