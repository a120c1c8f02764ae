package scenarios;

import static scenarios.Peer.body;
import static scenarios.Peer.check;
import static scenarios.Peer.equal;
import static scenarios.Peer.sent;
import static scenarios.Peer.until;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Delayed messages, with the level table that tests/conformance/run.py gives the broker. */
final class Delaying {
    private static final int LEVELS = 18;

    private Delaying() {
    }

    static void register(Map<String, Scenario.Body> all) {
        all.put("delay_levels", peer -> levels(peer, false));
        all.put("delay_highest", Delaying::highest);
        all.put("crash_delay", peer -> levels(peer, true));
    }

    /** One message for each level: none comes early, all come unchanged, and none is lost in a crash. */
    private static Map<String, Object> levels(Peer peer, boolean crash) throws Exception {
        DefaultMQProducer producer = peer.producer();
        Map<String, SendResult> results = new HashMap<>();
        for (int level = 1; level <= LEVELS; level++) {
            Message message = peer.message("TagA", "key" + level, "level " + level);
            message.setDelayTimeLevel(level);
            message.putUserProperty("mine", "value " + level);
            results.put("level " + level, sent(producer.send(message)));
        }
        if (crash) {
            peer.restart();
        }
        List<MessageExt> found = until("all levels", () -> {
            List<MessageExt> read = peer.readAll(1);
            return read.stream().map(Peer::body).distinct().count() == LEVELS ? read : null;
        });
        // progress is stored at intervals: some come again
        check(crash || found.size() == LEVELS, found.size() + " messages");
        for (MessageExt message : found) {
            int level = Integer.parseInt(body(message).substring("level ".length()));
            long waited = message.getStoreTimestamp() - message.getBornTimestamp();
            check(waited >= delayMs(level), "level " + level + " came after " + waited + " ms");
            SendResult result = results.get(body(message));
            equal("topic", peer.topic, message.getTopic());
            equal("queue", result.getMessageQueue().getQueueId(), message.getQueueId());
            equal("unique id", result.getMsgId(), message.getMsgId());
            equal("tag", "TagA", message.getTags());
            equal("keys", "key" + level, message.getKeys());
            equal("property", "value " + level, message.getUserProperty("mine"));
            equal("level", level, message.getDelayTimeLevel());
        }
        return Map.of("levels", LEVELS, "messages", found.size());
    }

    /** A level above the highest counts as the highest. */
    private static Map<String, Object> highest(Peer peer) throws Exception {
        Message message = peer.message("TagA", "key", "level 25");
        message.setDelayTimeLevel(25);
        sent(peer.producer().send(message));
        MessageExt found = peer.readAll(1).get(0);
        equal("level", LEVELS, found.getDelayTimeLevel());
        long waited = found.getStoreTimestamp() - found.getBornTimestamp();
        check(waited >= delayMs(LEVELS), "came after " + waited + " ms");
        return Map.of("level", found.getDelayTimeLevel());
    }

    /** messageDelayLevel of tests/conformance/run.py: 1s, then 2s each, 4s at the end. */
    private static long delayMs(int level) {
        return level == 1 ? 1000 : level == LEVELS ? 4000 : 2000;
    }
}
