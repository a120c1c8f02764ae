package stores;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.stream.Stream;
import org.apache.rocketmq.common.ServiceThread;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * Opens store directories one after another with the official message store and says what it serves.
 *
 * <p>{@code DamagedStores key=value ...}: the options are those of all stores. Each line of the input is a directory,
 * which the store opens and changes; for each, one line of JSON is printed: {@code queues}, for each queue the places
 * in the log of the messages that pulls get, or {@code error}. Services are not started: recovery alone decides.
 */
public final class DamagedStores {
    private static final int PULLS_MAX = 10_000;

    private DamagedStores() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Properties options = new Properties();
        for (String argument : arguments) {
            String[] pair = argument.split("=", 2);
            options.setProperty(pair[0], pair[1]);
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("queues", served(Path.of(line), options));
            } catch (Throwable problem) {
                answer.clear();
                answer.put("error", problem.toString());
            }
            out.println(Json.of(answer));
            out.flush();
        }
        System.exit(0);
    }

    private static Map<String, Object> served(Path root, Properties common) throws Exception {
        Properties options = new Properties();
        options.putAll(common);
        options.setProperty("storePathRootDir", root.toString());
        options.setProperty("storePathCommitLog", root.resolve("commitlog").toString());
        DefaultMessageStore store = new OfficialStore(options).store;
        try {
            if (!store.load()) {
                throw new IllegalStateException("load() is false");
            }
            field(store, "shutdown").setBoolean(store, false);
            Map<String, Object> queues = new LinkedHashMap<>();
            for (String kind : new String[] {"consumequeue", "batchconsumequeue"}) {
                for (Path topic : below(root.resolve(kind))) {
                    for (Path queue : below(topic)) {
                        String name = topic.getFileName() + "/" + queue.getFileName();
                        queues.put(name, places(store, topic.getFileName().toString(), queue.getFileName().toString()));
                    }
                }
            }
            return queues;
        } finally {
            stop(store);
        }
    }

    private static List<Object> places(DefaultMessageStore store, String topic, String queue) throws Exception {
        int queueId = Integer.parseInt(queue);
        long next = store.getMinOffsetInQueue(topic, queueId);
        long end = store.getMaxOffsetInQueue(topic, queueId);
        List<Object> places = new ArrayList<>();
        for (int pulls = 0; next < end && pulls < PULLS_MAX; pulls++) {
            GetMessageResult result = store.getMessage("reader", topic, queueId, next, 32, null);
            if (result == null) {
                break;
            }
            for (SelectMappedBufferResult found : result.getMessageMapedList()) {
                places.add(found.getStartOffset());
            }
            long following = result.getNextBeginOffset();
            result.release();
            next = following > next ? following : next + 1;
        }
        return places;
    }

    private static List<Path> below(Path directory) throws Exception {
        if (!Files.isDirectory(directory)) {
            return List.of();
        }
        try (Stream<Path> paths = Files.list(directory)) {
            return paths.filter(Files::isDirectory).sorted().toList();
        }
    }

    /** Ends what the constructor started, because a store that was never started is not shut down either. */
    private static void stop(DefaultMessageStore store) throws Exception {
        for (Field field : DefaultMessageStore.class.getDeclaredFields()) {
            field.setAccessible(true);
            Object part = field.get(store);
            if (part instanceof ExecutorService executor) {
                executor.shutdownNow();
            } else if (part instanceof ServiceThread service) {
                service.shutdown(true);
            }
        }
        store.destroy();
    }

    private static Field field(DefaultMessageStore store, String name) throws Exception {
        Field field = DefaultMessageStore.class.getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }
}
