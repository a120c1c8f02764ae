package load;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * The official evaluator of SQL92 filters. Arguments: the expression, then property texts with "=" and ";" for the
 * separators. Each line on standard input is the number of messages in one round; the output line says how many passed.
 */
public final class FilterLoad {
    private FilterLoad() {
    }

    public static void main(String[] args) throws Exception {
        Expression expression = SelectorParser.parse(args[0]);
        byte[][] texts = new byte[args.length - 1][];
        for (int i = 0; i < texts.length; i++) {
            texts[i] = args[i + 1].replace('=', '\u0001').replace(';', '\u0002').getBytes(StandardCharsets.UTF_8);
        }
        System.out.println("{}");
        BufferedReader rounds = new BufferedReader(new InputStreamReader(System.in));
        for (String line = rounds.readLine(); line != null; line = rounds.readLine()) {
            int messages = Integer.parseInt(line);
            int passed = 0;
            long start = System.nanoTime();
            for (int i = 0; i < messages; i++) {
                passed += passes(expression, texts[i % texts.length]) ? 1 : 0;
            }
            double seconds = (System.nanoTime() - start) / 1e9;
            System.out.println(String.format("{\"messages\":%d,\"seconds\":%.6f,\"passed\":%d}", messages, seconds, passed));
        }
    }

    /** As in the broker, the properties of a record become a map in which the expression looks up names. */
    private static boolean passes(Expression expression, byte[] text) throws Exception {
        Map<String, String> properties =
            MessageDecoder.string2messageProperties(new String(text, StandardCharsets.UTF_8));
        return Boolean.TRUE.equals(expression.evaluate(new EvaluationContext() {
            @Override
            public Object get(String name) {
                return properties.get(name);
            }

            @Override
            public Map<String, Object> keyValues() {
                return null;
            }
        }));
    }
}
