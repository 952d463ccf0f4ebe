import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;

/** Clients with the settings of every program; `settings` are NAME=VALUE. */
final class Clients {
    static final Duration POLL = Duration.ofMillis(100);
    private static final long WAIT_MS = 30_000;

    private Clients() {}

    static Properties properties(String bootstrap, String... settings) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        for (String setting : settings) {
            String[] parts = setting.split("=", 2);
            properties.put(parts[0], parts[1]);
        }
        return properties;
    }

    static KafkaProducer<byte[], byte[]> producer(String bootstrap, String... settings) {
        Properties properties = properties(bootstrap, settings);
        properties.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        properties.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        return new KafkaProducer<>(properties);
    }

    static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String... settings) {
        Properties properties = properties(bootstrap, settings);
        properties.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        properties.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        properties.putIfAbsent("auto.offset.reset", "earliest");
        properties.putIfAbsent("enable.auto.commit", "false");
        return new KafkaConsumer<>(properties);
    }

    static Admin admin(String bootstrap) {
        return Admin.create(properties(bootstrap));
    }

    /** Creates topics that keep records of any age, and waits until every partition can be listed. */
    static void create(String bootstrap, int partitions, String... topics) throws Exception {
        try (Admin admin = admin(bootstrap)) {
            List<NewTopic> wanted = new ArrayList<>();
            for (String topic : topics) {
                wanted.add(new NewTopic(topic, partitions, (short) 1).configs(Map.of("retention.ms", "-1")));
            }
            admin.createTopics(wanted).all().get();
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap)) {
            for (String topic : topics) {
                consumer.endOffsets(partitions(topic, partitions));
            }
        }
    }

    static List<TopicPartition> partitions(String topic, int count) {
        List<TopicPartition> all = new ArrayList<>();
        for (int partition = 0; partition < count; partition++) {
            all.add(new TopicPartition(topic, partition));
        }
        return all;
    }

    /** Returns all records up to the end of the isolation level. */
    static List<ConsumerRecord<byte[], byte[]>> readAll(
            String bootstrap, Collection<TopicPartition> partitions, String isolation) {
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, "isolation.level=" + isolation)) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            long deadline = System.currentTimeMillis() + WAIT_MS;
            while (!ends.entrySet().stream().allMatch(end -> consumer.position(end.getKey()) >= end.getValue())) {
                consumer.poll(POLL).forEach(records::add);
                expect(System.currentTimeMillis() < deadline, "the end of every partition within 30 s");
            }
        }
        return records;
    }

    static List<String> values(Iterable<ConsumerRecord<byte[], byte[]>> records) {
        List<String> values = new ArrayList<>();
        records.forEach(record -> values.add(Output.text(record.value())));
        return values;
    }

    static void expect(boolean met, String wanted) {
        if (!met) {
            throw new IllegalStateException("wanted: " + wanted);
        }
    }
}
