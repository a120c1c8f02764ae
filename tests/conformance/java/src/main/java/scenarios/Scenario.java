package scenarios;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/**
 * Runs named scenarios with the official client and prints one JSON line for each: name, ok, details.
 * Arguments: name server address, prefix of topics and groups, scenario names (none: all); or: names, which lists them.
 */
public final class Scenario {
    /** One scenario. Returns what it saw; throws when something differs from what it must be. */
    interface Body {
        Map<String, Object> run(Peer peer) throws Exception;
    }

    private static final Map<String, Body> ALL = new LinkedHashMap<>();

    static {
        Sending.register(ALL);
        Batching.register(ALL);
        Pulling.register(ALL);
        Pushing.register(ALL);
        Querying.register(ALL);
        Retrying.register(ALL);
        Asking.register(ALL);
        Grouping.register(ALL);
        Delaying.register(ALL);
        Timing.register(ALL);
        Filtering.register(ALL);
        Transacting.register(ALL);
        Popping.register(ALL);
        Peeking.register(ALL);
        Splitting.register(ALL);
        Clustering.register(ALL);
    }

    private Scenario() {
    }

    public static void main(String[] args) {
        if (args[0].equals("names")) {
            ALL.keySet().forEach(System.out::println);
            return;
        }
        Set<String> wanted = new TreeSet<>();
        for (int i = 2; i < args.length; i++) {
            if (!ALL.containsKey(args[i])) {
                System.err.println("unknown scenario " + args[i] + "; there are " + ALL.keySet());
                System.exit(2);
            }
            wanted.add(args[i]);
        }
        boolean failed = false;
        for (Map.Entry<String, Body> scenario : ALL.entrySet()) {
            if (wanted.isEmpty() || wanted.contains(scenario.getKey())) {
                failed |= !run(scenario.getKey(), scenario.getValue(), new Peer(args[0], args[1] + scenario.getKey()));
            }
        }
        System.exit(failed ? 1 : 0);   // client threads that linger must not keep the process
    }

    private static boolean run(String name, Body body, Peer peer) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("name", name);
        try (peer) {
            Map<String, Object> details = body.run(peer);
            line.put("ok", true);
            line.put("details", details);
        } catch (Throwable failure) {
            line.put("ok", false);
            line.put("details", Map.of("error", describe(failure)));
        }
        System.out.println(Json.text(line));
        return (Boolean) line.get("ok");
    }

    private static String describe(Throwable failure) {
        StringBuilder text = new StringBuilder(failure.toString());
        for (StackTraceElement frame : failure.getStackTrace()) {
            if (frame.getClassName().startsWith("scenarios.")) {
                text.append(" at ").append(frame.getFileName()).append(':').append(frame.getLineNumber());
                break;
            }
        }
        for (Throwable cause = failure.getCause(); cause != null; cause = cause.getCause()) {
            text.append(" caused by ").append(cause);
        }
        return text.toString();
    }
}
