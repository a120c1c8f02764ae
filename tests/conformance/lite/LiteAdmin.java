import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** The official mqadmin, kept running: a command line per line of input; after its output, a line with a full stop. */
public class LiteAdmin {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            MQAdminStartup.main0(line.split("\t", -1), null);
            System.out.println("\n.");
            System.out.flush();
        }
        System.exit(0);
    }
}
