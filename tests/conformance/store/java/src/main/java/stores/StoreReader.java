package stores;

import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * Opens a store directory with the official message store, in place, and does what a list says.
 *
 * <p>{@code StoreReader LIST key=value ...}: the options are those of the store. A line of the list is a word and its
 * arguments, separated by tabs; its result is one line of JSON:
 * <pre>
 * state                                 load result and offsets of the log
 * queue   topic queueId                 offsets and all messages, by pulls
 * key     topic key                     messages found by key
 * time    topic queueId milliseconds    queue offset found by store time
 * record  physicalOffset                the message there
 * put     topic queueId properties body append; control characters of the properties are written as \1 and \2
 * halt                                  end the process here, as a kill does
 * </pre>
 * A last line tells whether the store stopped cleanly. Exit status 1: the store or the list made that impossible.
 */
public final class StoreReader {
    private static final long DISPATCH_TIMEOUT_MS = 60_000;
    private static final long FOREVER_MS = Long.MAX_VALUE;

    private final OfficialStore official;
    private final DefaultMessageStore store;

    private StoreReader(OfficialStore official) {
        this.official = official;
        this.store = official.store;
    }

    public static void main(String[] arguments) {
        try {
            run(arguments);
            System.exit(0);
        } catch (Throwable problem) {
            problem.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Properties options = new Properties();
        for (int i = 1; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            options.setProperty(pair[0], pair[1]);
        }
        OfficialStore official = new OfficialStore(options);
        if (!official.store.load()) {
            throw new IllegalStateException("load() is false");
        }
        official.store.start();
        StoreReader reader = new StoreReader(official);
        reader.awaitDispatch();
        for (String line : Files.readAllLines(Path.of(arguments[0]), StandardCharsets.UTF_8)) {
            if (line.equals("halt")) {
                Runtime.getRuntime().halt(137);
            }
            out.println(Json.of(reader.answer(line.split("\t", -1))));
        }
        reader.awaitDispatch();
        official.store.shutdown();
        boolean clean = !Files.exists(Path.of(options.getProperty("storePathRootDir"), "abort"));
        out.println(Json.of(Map.of("clean", clean)));
        out.flush();
    }

    private Object answer(String[] words) throws Exception {
        return switch (words[0]) {
            case "state" -> Map.of("minOffset", store.getMinPhyOffset(), "maxOffset", store.getMaxPhyOffset());
            case "queue" -> queue(words[1], Integer.parseInt(words[2]));
            case "key" -> byKey(words[1], words[2]);
            case "time" -> Map.of("queueOffset",
                store.getOffsetInQueueByTime(words[1], Integer.parseInt(words[2]), Long.parseLong(words[3])));
            case "record" -> record(Long.parseLong(words[1]));
            case "put" -> put(words[1], Integer.parseInt(words[2]), words[3].replace("\\1", "\1").replace("\\2", "\2"), words[4]);
            default -> throw new IllegalArgumentException(words[0]);
        };
    }

    private Map<String, Object> queue(String topic, int queueId) throws Exception {
        long next = store.getMinOffsetInQueue(topic, queueId);
        long end = store.getMaxOffsetInQueue(topic, queueId);
        Map<String, Object> answer = new LinkedHashMap<>(Map.of("minOffset", next, "maxOffset", end));
        List<Object> messages = new ArrayList<>();
        while (next < end) {
            GetMessageResult result = store.getMessage("reader", topic, queueId, next, 32, null);
            if (result.getStatus() != GetMessageStatus.FOUND || result.getNextBeginOffset() <= next) {
                answer.put("stopped", result.getStatus() + " at " + next);
                result.release();
                break;
            }
            for (ByteBuffer record : result.getMessageBufferList()) {
                messages.add(message(record));
            }
            next = result.getNextBeginOffset();
            result.release();
        }
        answer.put("messages", messages);
        return answer;
    }

    private Map<String, Object> byKey(String topic, String key) throws Exception {
        var result = store.queryMessage(topic, key, 64, 0, FOREVER_MS);
        List<Map<String, Object>> messages = new ArrayList<>();
        for (ByteBuffer record : result.getMessageBufferList()) {
            messages.add(message(record));
        }
        result.release();
        messages.sort(Comparator.comparingLong(found -> (long) found.get("physicalOffset")));
        return Map.of("messages", messages);
    }

    private Map<String, Object> record(long physicalOffset) throws Exception {
        SelectMappedBufferResult result = store.selectOneMessageByOffset(physicalOffset);
        if (result == null) {
            return Map.of("messages", List.of());
        }
        Map<String, Object> found = message(result.getByteBuffer());
        result.release();
        return Map.of("messages", List.of(found));
    }

    private Map<String, Object> put(String topic, int queueId, String properties, String body) throws Exception {
        MessageExt message = official.newMessage();
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setBody(body.getBytes(StandardCharsets.UTF_8));
        MessageDecoder.string2messageProperties(properties).forEach((name, value) -> MessageAccessor.putProperty(message, name, value));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(new InetSocketAddress("127.0.0.1", 1));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 2));
        PutMessageResult result = official.put(message, properties);
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("status", result.getPutMessageStatus().toString());
        if (result.getAppendMessageResult() != null) {
            answer.put("physicalOffset", result.getAppendMessageResult().getWroteOffset());
            answer.put("queueOffset", result.getAppendMessageResult().getLogicsOffset());
            answer.put("storeTimestamp", result.getAppendMessageResult().getStoreTimestamp());
        }
        return answer;
    }

    private static Map<String, Object> message(ByteBuffer record) throws Exception {
        byte[] bytes = new byte[record.remaining()];
        record.duplicate().get(bytes);
        MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(bytes), true, false);
        Map<String, Object> fields = new LinkedHashMap<>();
        if (message == null) {
            fields.put("physicalOffset", -1L);
            return fields;
        }
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        fields.put("physicalOffset", message.getCommitLogOffset());
        fields.put("size", message.getStoreSize());
        fields.put("topic", message.getTopic());
        fields.put("queueId", message.getQueueId());
        fields.put("queueOffset", message.getQueueOffset());
        fields.put("flag", message.getFlag());
        fields.put("sysFlag", message.getSysFlag());
        fields.put("bornTimestamp", message.getBornTimestamp());
        fields.put("bornHost", host(message.getBornHost()));
        fields.put("storeTimestamp", message.getStoreTimestamp());
        fields.put("storeHost", host(message.getStoreHost()));
        fields.put("reconsumeTimes", message.getReconsumeTimes());
        fields.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        fields.put("body", HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body)));
        fields.put("properties", message.getProperties() == null ? Map.of() : new TreeMap<>(message.getProperties()));
        return fields;
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return HexFormat.of().formatHex(host.getAddress().getAddress()) + ":" + host.getPort();
    }

    private void awaitDispatch() throws InterruptedException {
        long end = System.currentTimeMillis() + DISPATCH_TIMEOUT_MS;
        while (store.dispatchBehindBytes() > 0 && System.currentTimeMillis() < end) {
            Thread.sleep(20);
        }
    }
}
