package scenarios;

import java.util.Collection;
import java.util.Map;
import java.util.stream.Collectors;

/** Just enough JSON for the result lines, so that the programs need no library except the client. */
final class Json {
    private Json() {
    }

    static String text(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream().map(e -> quote(e.getKey().toString()) + ":" + text(e.getValue()))
                .collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof Collection<?> items) {
            return items.stream().map(Json::text).collect(Collectors.joining(",", "[", "]"));
        }
        return quote(value.toString());
    }

    private static String quote(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
