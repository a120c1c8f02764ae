package load;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * The official store alone. Arguments: directory, body bytes, "async" or "sync" flush, "index" or "plain".
 * The first JSON line tells how long it took to open the directory and to complete queues and index. Each line on
 * standard input is one round. "put THREADS MESSAGES" reports the time until the last put returned, and until queues and
 * index had caught up; "get - MESSAGES" reads from the start of the queues.
 */
public final class StoreLoad {
    private static final Map<String, String> TAG = Map.of(MessageConst.PROPERTY_TAGS, "TagA");
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final int QUEUES = 4;
    private static final int GET_MESSAGES = 32;

    private StoreLoad() {
    }

    public static void main(String[] args) {
        try {
            run(args);
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);   // the store's threads would keep the process running
        }
    }

    private static void run(String[] args) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + "/commitlog");
        config.setFlushDiskType(args[2].equals("sync") ? FlushDiskType.SYNC_FLUSH : FlushDiskType.ASYNC_FLUSH);
        config.setMessageIndexEnable(args[3].equals("index"));
        config.setHaListenPort(0);
        ConcurrentHashMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        long start = System.nanoTime();
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("bench", false),
            (topic, queueId, logicOffset, tagsCode, storeTime, bitMap, properties) -> { }, new BrokerConfig(), topics);
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
        awaitDispatch(store);
        System.out.printf("{\"open_seconds\":%.6f}%n", (System.nanoTime() - start) / 1e9);
        byte[] body = new byte[Integer.parseInt(args[1])];
        new Random(1).nextBytes(body);
        BufferedReader rounds = new BufferedReader(new InputStreamReader(System.in));
        for (String line = rounds.readLine(); line != null; line = rounds.readLine()) {
            String[] words = line.split(" ");
            int messages = Integer.parseInt(words[2]);
            System.out.println(words[0].equals("get") ? get(store, messages)
                : put(store, body, Integer.parseInt(words[1]), messages));
        }
        store.shutdown();
    }

    private static void awaitDispatch(DefaultMessageStore store) throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    private static String put(DefaultMessageStore store, byte[] body, int threads, int messages) throws Exception {
        String[] properties = new String[Math.min(messages, 1 << 16)];   // strings as in a request header
        for (int i = 0; i < properties.length; i++) {
            properties[i] = String.format("UNIQ_KEY\u00017F000001000A%020X\u0002WAIT\u0001true\u0002TAGS\u0001TagA\u0002", i);
        }
        AtomicInteger failed = new AtomicInteger();
        AtomicInteger next = new AtomicInteger();
        Runnable putter = () -> {
            for (int i = next.getAndIncrement(); i < messages; i = next.getAndIncrement()) {
                if (!store.putMessage(message(body, i, properties[i % properties.length])).isOk()) {
                    failed.incrementAndGet();
                }
            }
        };
        long start = System.nanoTime();
        if (threads == 1) {
            putter.run();
        } else {
            Thread[] putters = new Thread[threads];
            for (int i = 0; i < threads; i++) {
                putters[i] = new Thread(putter);
                putters[i].start();
            }
            for (Thread thread : putters) {
                thread.join();
            }
        }
        long appended = System.nanoTime() - start;
        awaitDispatch(store);
        long dispatched = System.nanoTime() - start;
        return String.format("{\"messages\":%d,\"failed\":%d,\"seconds\":%.6f,\"dispatched_seconds\":%.6f}", messages,
            failed.get(), appended / 1e9, dispatched / 1e9);
    }

    private static MessageExtBrokerInner message(byte[] body, int number, String properties) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic("bench");
        message.setBody(body);
        message.setQueueId(number % QUEUES);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        MessageAccessor.setProperties(message, TAG);
        message.setPropertiesString(properties);
        return message;
    }

    private static String get(DefaultMessageStore store, int messages) {
        int taken = 0;
        long start = System.nanoTime();
        for (int queue = 0; taken < messages; queue = (queue + 1) % QUEUES) {
            long offset = store.getMinOffsetInQueue("bench", queue);
            for (int share = 0; share < messages / QUEUES; ) {
                GetMessageResult result = store.getMessage("group", "bench", queue, offset, GET_MESSAGES, null);
                if (result.getMessageCount() == 0) {
                    result.release();
                    break;
                }
                share += result.getMessageCount();
                taken += result.getMessageCount();
                offset = result.getNextBeginOffset();
                result.release();
            }
        }
        return String.format("{\"messages\":%d,\"failed\":0,\"seconds\":%.6f}", taken, (System.nanoTime() - start) / 1e9);
    }
}
