package shop;

import java.io.BufferedReader;
import java.io.IOException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/** One broker for all test classes of the run. At the end of the run, the broker stops and removes its store. */
public class RucolaExtension implements BeforeAllCallback {
    private static final Pattern NAMESRV = Pattern.compile("\"namesrv\":\\s*\"([^\"]+)\"");

    private static Broker broker;

    /** Address of the name server, for setNamesrvAddr. */
    public static String namesrv() {
        return broker.namesrv;
    }

    @Override
    public synchronized void beforeAll(ExtensionContext context) throws IOException {
        if (broker == null) {
            broker = new Broker();
            context.getRoot().getStore(ExtensionContext.Namespace.GLOBAL).put("rucola", broker);
        }
    }

    private static final class Broker implements ExtensionContext.Store.CloseableResource {
        private final Process process;
        private final String namesrv;

        Broker() throws IOException {
            process = new ProcessBuilder("rucola", "up", "--ephemeral", "--json",
                    "--namesrv-port", "0", "--broker-port", "0", "--http-port", "0")
                    .redirectError(ProcessBuilder.Redirect.INHERIT).start();
            // The line comes when name server and broker are ready.
            BufferedReader lines = process.inputReader();
            String line = lines.readLine();
            Matcher found = NAMESRV.matcher(line == null ? "" : line);
            if (!found.find()) {
                throw new IOException("rucola did not start: " + line);
            }
            namesrv = found.group(1);
        }

        @Override
        public void close() throws InterruptedException {
            process.destroy();
            process.waitFor();
        }
    }
}
