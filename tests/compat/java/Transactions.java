import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Transactions BOOTSTRAP TOPIC CASE */
public final class Transactions {
    private static String bootstrap;
    private static String topic;
    private static TopicPartition first;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        first = new TopicPartition(topic, 0);
        Clients.create(bootstrap, 2, topic);
        switch (arguments[2]) {
            case "outcomes" -> outcomes();
            case "offsets" -> offsets();
            case "fenced" -> fenced();
            case "stale-group" -> staleGroup();
            case "timed-out" -> timedOut();
            case "admin" -> admin();
            case "many" -> many();
            default -> throw new IllegalArgumentException(arguments[2]);
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(String... settings) {
        List<String> all = new ArrayList<>(List.of(settings));
        all.add("transactional.id=" + topic);
        return Clients.producer(bootstrap, all.toArray(new String[0]));
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, String prefix, int count) {
        for (int i = 0; i < count; i++) {
            producer.send(new ProducerRecord<>(topic, i % 2, null, (prefix + i).getBytes()));
        }
        producer.flush();
    }

    private static List<String> read(String isolation) {
        List<String> values =
            Clients.values(Clients.readAll(bootstrap, Clients.partitions(topic, 2), isolation));
        values.sort(null);
        return values;
    }

    private static long end(String isolation) {
        try (KafkaConsumer<byte[], byte[]> consumer = Clients.consumer(bootstrap, "isolation.level=" + isolation)) {
            return consumer.endOffsets(List.of(first)).get(first);
        }
    }

    /** Commit, abort, commit, and one that is open while others read. */
    private static void outcomes() throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, "a", 4);
            producer.commitTransaction();
            producer.beginTransaction();
            send(producer, "b", 4);
            producer.abortTransaction();
            producer.beginTransaction();
            producer.commitTransaction();
            producer.beginTransaction();
            send(producer, "c", 4);
            Output.line("when", "open", "committed", read("read_committed"), "all", read("read_uncommitted"),
                "stableEnd", end("read_committed"), "end", end("read_uncommitted"));
            producer.commitTransaction();
            Output.line("when", "closed", "committed", read("read_committed"), "all", read("read_uncommitted"),
                "stableEnd", end("read_committed"), "end", end("read_uncommitted"));
        }
    }

    /** Consume, transform, produce: the offsets move with the transaction, not before it and not when it aborts. */
    private static void offsets() throws Exception {
        String output = topic + "-output";
        Clients.create(bootstrap, 1, output);
        try (KafkaProducer<byte[], byte[]> plain = Clients.producer(bootstrap)) {
            send(plain, "in", 10);
        }
        try (KafkaProducer<byte[], byte[]> producer = producer();
                KafkaConsumer<byte[], byte[]> consumer = Clients.consumer(bootstrap, "group.id=" + topic)) {
            producer.initTransactions();
            consumer.subscribe(List.of(topic));
            List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
            while (records.size() < 10) {
                consumer.poll(Clients.POLL).forEach(records::add);
            }
            for (boolean commit : new boolean[] {false, true}) {
                producer.beginTransaction();
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    producer.send(new ProducerRecord<>(output, ("out of " + Output.text(record.value())).getBytes()));
                }
                Map<TopicPartition, OffsetAndMetadata> done = Map.of(
                    first, new OffsetAndMetadata(5, "half"), new TopicPartition(topic, 1), new OffsetAndMetadata(5));
                producer.sendOffsetsToTransaction(done, consumer.groupMetadata());
                if (commit) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
                OffsetAndMetadata committed = committed();
                Output.line("commit", commit, "offset", committed == null ? null : committed.offset(),
                    "metadata", committed == null ? null : committed.metadata());
            }
        }
        List<String> values =
            Clients.values(Clients.readAll(bootstrap, Clients.partitions(output, 1), "read_committed"));
        values.sort(null);
        Output.line("output", values);
    }

    /** A consumer outside the group: require_stable waits for the transaction's marker. */
    private static OffsetAndMetadata committed() throws Exception {
        try (Admin admin = Clients.admin(bootstrap)) {
            return admin.listConsumerGroupOffsets(topic,
                    new org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions().requireStable(true))
                .partitionsToOffsetAndMetadata().get().get(first);
        }
    }

    /** A second producer of the same transactional id ends the first one's transaction and the first one. */
    private static void fenced() throws Exception {
        try (KafkaProducer<byte[], byte[]> old = producer(); KafkaProducer<byte[], byte[]> next = producer()) {
            old.initTransactions();
            old.beginTransaction();
            send(old, "old", 4);
            next.initTransactions();
            Output.line("afterInit", read("read_committed"), "commit", Output.error(old::commitTransaction),
                "begin", Output.error(old::beginTransaction));
            next.beginTransaction();
            send(next, "next", 4);
            next.commitTransaction();
            Output.line("committed", read("read_committed"));
        }
        try (KafkaProducer<byte[], byte[]> old = producer(); KafkaProducer<byte[], byte[]> next = producer()) {
            old.initTransactions();
            next.initTransactions();
            old.beginTransaction();
            Output.line("send", Output.error(
                () -> old.send(new ProducerRecord<>(topic, 0, null, "late".getBytes())).get()));
        }
        Output.line("committed", read("read_committed"));
    }

    /** Offsets of an earlier generation are refused, and the transaction can only be aborted. */
    private static void staleGroup() throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer();
                KafkaConsumer<byte[], byte[]> consumer = Clients.consumer(bootstrap, "group.id=" + topic)) {
            producer.initTransactions();
            consumer.subscribe(List.of(topic));
            while (consumer.assignment().isEmpty()) {
                consumer.poll(Clients.POLL);
            }
            ConsumerGroupMetadata member = consumer.groupMetadata();
            ConsumerGroupMetadata stale = new ConsumerGroupMetadata(
                topic, member.generationId() - 1, member.memberId(), member.groupInstanceId());
            producer.beginTransaction();
            send(producer, "stale", 4);
            Map<TopicPartition, OffsetAndMetadata> done = Map.of(first, new OffsetAndMetadata(1));
            Output.line("error", Output.error(() -> producer.sendOffsetsToTransaction(done, stale)));
            producer.abortTransaction();
            producer.beginTransaction();
            send(producer, "right", 4);
            producer.sendOffsetsToTransaction(done, member);
            producer.commitTransaction();
            Output.line("committed", read("read_committed"), "offset", committed().offset());
        }
    }

    /** The broker aborts an abandoned transaction, so that readers are not delayed. */
    private static void timedOut() throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer("transaction.timeout.ms=1000")) {
            producer.initTransactions();
            producer.beginTransaction();
            send(producer, "late", 4);
            long deadline = System.currentTimeMillis() + 30_000;
            while (end("read_committed") < end("read_uncommitted") && System.currentTimeMillis() < deadline) {
                Thread.sleep(100);
            }
            Output.line("committed", read("read_committed"), "stable",
                end("read_committed") == end("read_uncommitted"), "commit", Output.error(producer::commitTransaction));
        }
    }

    private static void admin() throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer(); Admin admin = Clients.admin(bootstrap)) {
            producer.initTransactions();
            describe(admin);
            producer.beginTransaction();
            send(producer, "open", 4);
            describe(admin);
            ProducerState state = producers(admin);
            Output.line("sequence", state.lastSequence(), "epoch", state.producerEpoch(),
                "start", state.currentTransactionStartOffset().orElse(-1),
                "recent", System.currentTimeMillis() - state.lastTimestamp() < 60_000);
            admin.abortTransaction(new AbortTransactionSpec(
                first, state.producerId(), (short) state.producerEpoch(), state.coordinatorEpoch().orElse(0)))
                .all().get();
            Output.line("start", producers(admin).currentTransactionStartOffset().orElse(-1),
                "stable", end("read_committed"));
            Output.line("fence", Output.error(() -> admin.fenceProducers(List.of(topic)).all().get()));
            Output.line("commit", Output.error(producer::commitTransaction), "committed", read("read_committed"));
            Output.line("unknown",
                Output.error(() -> admin.describeTransactions(List.of(topic + "-none")).all().get()));
        }
    }

    private static ProducerState producers(Admin admin) throws Exception {
        return admin.describeProducers(List.of(first)).partitionResult(first).get().activeProducers().get(0);
    }

    private static void describe(Admin admin) throws Exception {
        TransactionDescription described = admin.describeTransactions(List.of(topic)).description(topic).get();
        List<String> listed = new ArrayList<>();
        for (TransactionListing each : admin.listTransactions(
                new ListTransactionsOptions().filterProducerIds(List.of(described.producerId()))).all().get()) {
            listed.add(each.transactionalId() + " " + each.state());
        }
        Output.line("state", described.state().toString(), "timeout", described.transactionTimeoutMs(),
            "epoch", described.producerEpoch(), "begun", described.transactionStartTimeMs().isPresent(),
            "partitions", Output.names(described.topicPartitions()), "listed", listed);
    }

    /** 200 transactions of two producers, every third aborted; a reader of committed records follows meanwhile. */
    private static void many() throws Exception {
        List<String> seen = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> one = producer();
                KafkaProducer<byte[], byte[]> two = Clients.producer(bootstrap, "transactional.id=" + topic + "-two");
                KafkaConsumer<byte[], byte[]> reader =
                    Clients.consumer(bootstrap, "isolation.level=read_committed")) {
            one.initTransactions();
            two.initTransactions();
            reader.assign(Clients.partitions(topic, 2));
            int wanted = 0;
            for (int number = 0; number < 100; number++) {
                one.beginTransaction();
                two.beginTransaction();
                send(one, "one " + number + " ", 5);
                send(two, "two " + number + " ", 5);
                boolean abort = number % 3 == 0;
                wanted += abort ? 5 : 10;
                if (abort) {
                    one.abortTransaction();
                } else {
                    one.commitTransaction();
                }
                two.commitTransaction();
                reader.poll(Duration.ZERO).forEach(record -> seen.add(Output.text(record.value())));
            }
            long deadline = System.currentTimeMillis() + 30_000;
            while (seen.size() < wanted && System.currentTimeMillis() < deadline) {
                reader.poll(Clients.POLL).forEach(record -> seen.add(Output.text(record.value())));
            }
            Output.line("values", seen);
        }
    }
}
