package stores;

import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Hides what differs between the versions: the constructor of the store, and the package of the message class. */
final class OfficialStore {
    private static final String[] MESSAGE_CLASSES = {
        "org.apache.rocketmq.common.message.MessageExtBrokerInner", "org.apache.rocketmq.store.MessageExtBrokerInner"};

    final DefaultMessageStore store;
    private final Class<?> messageClass;
    private final Method put;

    OfficialStore(Properties options) throws Exception {
        ConcurrentHashMap<String, Object> topics = new ConcurrentHashMap<>();
        String batchTopic = (String) options.remove("batchTopic");
        if (batchTopic != null) {
            // Attributes exist since version 5.
            TopicConfig topic = new TopicConfig(batchTopic);
            TopicConfig.class.getMethod("setAttributes", Map.class).invoke(topic, Map.of("queue.type", "BatchCQ"));
            topics.put(batchTopic, topic);
        }
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(options, config);
        BrokerConfig brokerConfig = new BrokerConfig();
        BrokerStatsManager stats = new BrokerStatsManager(brokerConfig.getBrokerClusterName(), true);
        Object[] parts = {config, brokerConfig, stats, topics};
        Constructor<?> constructor = Stream.of(DefaultMessageStore.class.getConstructors())
            .max((one, other) -> one.getParameterCount() - other.getParameterCount()).orElseThrow();
        Object[] arguments = Stream.of(constructor.getParameterTypes()).map(type -> part(type, parts)).toArray();
        store = (DefaultMessageStore) constructor.newInstance(arguments);
        messageClass = messageClass();
        put = DefaultMessageStore.class.getMethod("putMessage", messageClass);
    }

    MessageExt newMessage() throws Exception {
        return (MessageExt) messageClass.getConstructor().newInstance();
    }

    PutMessageResult put(MessageExt message, String properties) throws Exception {
        messageClass.getMethod("setPropertiesString", String.class).invoke(message, properties);
        return (PutMessageResult) put.invoke(store, message);
    }

    private static Object part(Class<?> type, Object[] parts) {
        for (Object part : parts) {
            if (type.isInstance(part)) {
                return part;
            }
        }
        if (type.isInterface()) {
            return Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (proxy, method, arguments) -> null);
        }
        throw new IllegalStateException("no argument of type " + type);
    }

    private static Class<?> messageClass() throws ClassNotFoundException {
        for (String name : MESSAGE_CLASSES) {
            try {
                return Class.forName(name);
            } catch (ClassNotFoundException elsewhere) {
                // The class has this place in the next version.
            }
        }
        throw new ClassNotFoundException(String.join(", ", MESSAGE_CLASSES));
    }
}
