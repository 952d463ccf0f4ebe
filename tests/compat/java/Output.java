import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

/** Output of a program: one JSON object a line. */
final class Output {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    interface Call {
        void run() throws Exception;
    }

    private Output() {}

    static void line(Object... namesAndValues) throws Exception {
        Map<String, Object> fields = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            fields.put((String) namesAndValues[i], namesAndValues[i + 1]);
        }
        System.out.println(MAPPER.writeValueAsString(fields));
    }

    /** Returns the class name of the call's exception, or "none". */
    static String error(Call call) {
        try {
            call.run();
            return "none";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        } catch (Exception error) {
            return error.getClass().getSimpleName();
        }
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    static void record(ConsumerRecord<byte[], byte[]> record) throws Exception {
        List<List<String>> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            List<String> pair = new ArrayList<>();
            pair.add(header.key());
            pair.add(text(header.value()));
            headers.add(pair);
        }
        line("partition", record.partition(), "offset", record.offset(), "timestamp", record.timestamp(),
            "key", text(record.key()), "value", text(record.value()), "headers", headers);
    }

    static List<String> names(Iterable<TopicPartition> partitions) {
        List<String> names = new ArrayList<>();
        partitions.forEach(each -> names.add(each.toString()));
        names.sort(null);
        return names;
    }
}
