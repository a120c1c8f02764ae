package scenarios;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Runs named scenarios with the official gRPC client and prints one JSON line for each: name, saw.
 * Arguments: host:port of the server, prefix of topics and groups, scenario names. The runner makes the topics and
 * groups, see scenarios.py.
 */
public final class Main {
    /** One scenario. Returns what it saw. */
    interface Body {
        Map<String, Object> run(Peer peer) throws Exception;
    }

    private static final Map<String, Body> ALL = new LinkedHashMap<>();

    static {
        Sending.register(ALL);
        Receiving.register(ALL);
        Pushing.register(ALL);
        Refusing.register(ALL);
        Connecting.register(ALL);
    }

    private Main() {
    }

    public static void main(String[] args) throws InterruptedException {
        List<Thread> closings = new ArrayList<>(); // a push consumer ends after its last poll, which may take 20 s
        for (String name : List.of(args).subList(2, args.length)) {
            Peer peer = new Peer(args[0], args[1] + name);
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("name", name);
            try {
                line.put("saw", ALL.get(name).run(peer));
            } catch (Throwable failure) {
                Map<String, Object> saw = Peer.failure(failure);
                saw.put("broken", saw.remove("error"));
                line.put("saw", saw);
            }
            System.out.println(Json.text(line));
            Thread closing = new Thread(peer::close);
            closing.start();
            closings.add(closing);
        }
        for (Thread closing : closings) {
            closing.join(Peer.PATIENCE.toMillis()); // a client that hangs as it closes is no failing scenario
        }
        Runtime.getRuntime().halt(0); // threads and hooks of the client may still run
    }
}
