package stores;

import java.util.Collection;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * Writes maps, lists, strings, numbers and booleans as JSON; the versions of the store have no library for this in
 * common.
 */
final class Json {
    private Json() {
    }

    static String of(Object value) {
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream().map(entry -> string(String.valueOf(entry.getKey())) + ":" + of(entry.getValue()))
                .collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof Collection<?> items) {
            return items.stream().map(Json::of).collect(Collectors.joining(",", "[", "]"));
        }
        return value instanceof String text ? string(text) : String.valueOf(value);
    }

    private static String string(String text) {
        return text.chars().mapToObj(c -> c < 0x20 || c > 0x7e || c == '"' || c == '\\'
            ? String.format("\\u%04x", c) : String.valueOf((char) c)).collect(Collectors.joining("", "\"", "\""));
    }
}
