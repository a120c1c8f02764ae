package load;

/** Quantiles of latencies, for the output line of a round. */
final class Latencies {
    private Latencies() {
    }

    /** Returns members of a JSON object in microseconds, from sorted nanoseconds. */
    static String json(long[] sorted) {
        return String.format("\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f", quantile(sorted, 0.5), quantile(sorted, 0.99),
            quantile(sorted, 0.999));
    }

    private static double quantile(long[] sorted, double share) {
        return sorted[(int) ((sorted.length - 1) * share)] / 1e3;
    }
}
