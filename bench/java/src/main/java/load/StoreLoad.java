package load;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * The official store alone, one thread appending. Arguments: directory, body bytes.
 * Each line on standard input, "MESSAGES", is one round and gets one JSON line with the time until the last append
 * returned and the time until queues and index had caught up.
 */
public final class StoreLoad {
    private static final Map<String, String> TAG = Map.of(MessageConst.PROPERTY_TAGS, "TagA");

    private StoreLoad() {
    }

    public static void main(String[] args) {
        try {
            run(args);
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);   // the store's threads would keep the process
        }
    }

    private static void run(String[] args) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + "/commitlog");
        config.setFlushDiskType(FlushDiskType.ASYNC_FLUSH);
        config.setHaListenPort(0);
        ConcurrentHashMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("bench", false),
            (topic, queueId, logicOffset, tagsCode, storeTime, bitMap, properties) -> { }, new BrokerConfig(), topics);
        store.load();
        store.start();
        byte[] body = new byte[Integer.parseInt(args[1])];
        new Random(1).nextBytes(body);
        System.out.println("{\"ready\":true}");
        BufferedReader rounds = new BufferedReader(new InputStreamReader(System.in));
        for (String line = rounds.readLine(); line != null; line = rounds.readLine()) {
            System.out.println(round(store, body, Integer.parseInt(line)));
        }
        store.shutdown();
    }

    private static String round(DefaultMessageStore store, byte[] body, int messages) throws InterruptedException {
        InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
        String[] properties = new String[Math.min(messages, 1 << 16)];   // as they come from a request header
        for (int i = 0; i < properties.length; i++) {
            properties[i] = String.format("UNIQ_KEY\u00017F000001000A%020X\u0002WAIT\u0001true\u0002TAGS\u0001TagA\u0002", i);
        }
        int failed = 0;
        long start = System.nanoTime();
        for (int i = 0; i < messages; i++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic("bench");
            message.setBody(body);
            message.setQueueId(i & 3);
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(host);
            message.setStoreHost(host);
            MessageAccessor.setProperties(message, TAG);
            message.setPropertiesString(properties[i % properties.length]);
            if (!store.putMessage(message).isOk()) {
                failed++;
            }
        }
        long appended = System.nanoTime() - start;
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
        long dispatched = System.nanoTime() - start;
        return String.format("{\"messages\":%d,\"failed\":%d,\"seconds\":%.6f,\"dispatched_seconds\":%.6f}", messages, failed, appended / 1e9,
            dispatched / 1e9);
    }
}
