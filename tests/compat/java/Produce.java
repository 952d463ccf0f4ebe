import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.header.internals.RecordHeader;

/** Produce BOOTSTRAP TOPIC PARTITIONS records|large|too-large|read [SETTING…] */
public final class Produce {
    static final int RECORDS = 1000;
    static final long BEGIN_MS = 1_700_000_000_000L;

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        String[] settings = List.of(arguments).subList(4, arguments.length).toArray(new String[0]);
        switch (arguments[3]) {
            case "records" -> records(bootstrap, topic, settings);
            case "large" -> large(bootstrap, topic, settings);
            case "too-large" -> tooLarge(bootstrap, topic);
            case "read" -> read(bootstrap, topic, partitions);
            default -> throw new IllegalArgumentException(arguments[3]);
        }
    }

    /** Record i as tests/compat/test_java_records.py expects it: some keys, values and headers are null or empty. */
    private static ProducerRecord<byte[], byte[]> wanted(String topic, int i) {
        byte[] key = i % 5 == 0 ? null : ("key " + i).getBytes();
        byte[] value = i % 7 == 0 ? null : (i % 11 == 0 ? "" : "value " + i).getBytes();
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, i % 3, BEGIN_MS + i, key, value);
        if (i % 4 == 0) {
            record.headers().add(new RecordHeader("number", Integer.toString(i).getBytes()));
            record.headers().add(new RecordHeader("nothing", (byte[]) null));
            record.headers().add(new RecordHeader("number", "again".getBytes()));
        }
        return record;
    }

    private static void records(String bootstrap, String topic, String[] settings) throws Exception {
        Clients.create(bootstrap, 3, topic);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = Clients.producer(bootstrap, settings)) {
            Output.line("partitionsFor", producer.partitionsFor(topic).size());
            for (int i = 0; i < RECORDS; i++) {
                sent.add(producer.send(wanted(topic, i)));
            }
        }
        for (Future<RecordMetadata> each : sent) {
            RecordMetadata metadata = each.get();
            Output.line("partition", metadata.partition(), "offset", metadata.offset(),
                "timestamp", metadata.timestamp());
        }
    }

    private static void large(String bootstrap, String topic, String[] settings) throws Exception {
        byte[] value = new byte[900_000];
        for (int i = 0; i < value.length; i++) {
            value[i] = (byte) ('a' + i % 19);
        }
        try (KafkaProducer<byte[], byte[]> producer = Clients.producer(bootstrap, settings)) {
            for (int i = 0; i < 5; i++) {
                producer.send(new ProducerRecord<>(topic, 0, null, value)).get();
            }
        }
        List<ConsumerRecord<byte[], byte[]>> read =
            Clients.readAll(bootstrap, Clients.partitions(topic, 1), "read_uncommitted");
        Output.line("same", read.stream().filter(each -> java.util.Arrays.equals(each.value(), value)).count());
    }

    private static void tooLarge(String bootstrap, String topic) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = Clients.producer(bootstrap, "max.request.size=5000000")) {
            byte[] value = new byte[2_000_000];
            Output.line("error", Output.error(() -> producer.send(new ProducerRecord<>(topic, value)).get()));
        }
    }

    private static void read(String bootstrap, String topic, int partitions) throws Exception {
        for (ConsumerRecord<byte[], byte[]> record :
                Clients.readAll(bootstrap, Clients.partitions(topic, partitions), "read_uncommitted")) {
            Output.record(record);
        }
    }
}
