import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Groups BOOTSTRAP TOPIC CASE [ARGUMENT] */
public final class Groups {
    private static final Duration TURN = Duration.ofMillis(20);
    private static final long WAIT_MS = 40_000;
    private static final long BEGIN_MS = 1_700_000_000_000L;
    private static String bootstrap;
    private static String topic;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        switch (arguments[2]) {
            case "assignor" -> assignor(arguments[3]);
            case "static" -> staticMembers();
            case "positions" -> positions();
            case "pattern" -> pattern();
            case "reset" -> reset();
            case "evicted" -> evicted();
            case "consumer-protocol" -> consumerProtocol();
            default -> throw new IllegalArgumentException(arguments[2]);
        }
    }

    /** A member that records its assigned, revoked and read partitions; it commits before it gives partitions up. */
    private static final class Member implements ConsumerRebalanceListener {
        final String name;
        final KafkaConsumer<byte[], byte[]> consumer;
        final List<String> read;
        int revoked;
        int lost;
        int assignments;

        Member(String name, List<String> read, String... settings) {
            List<String> all = new ArrayList<>(List.of(settings));
            all.addAll(List.of("group.id=" + topic, "client.id=" + name, "heartbeat.interval.ms=100"));
            this.name = name;
            this.read = read;
            this.consumer = Clients.consumer(bootstrap, all.toArray(new String[0]));
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            assignments++;
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            revoked += partitions.size();
            consumer.commitSync();
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            lost += partitions.size();
        }

        void turn() {
            consumer.poll(TURN).forEach(record -> read.add(Output.text(record.value())));
        }

        void leave() {
            consumer.commitSync();
            consumer.close();
        }
    }

    /** Polls until every member holds its share of `total` partitions, and prints the assignment. */
    private static void settle(String step, List<Member> members, int total) throws Exception {
        long deadline = System.currentTimeMillis() + WAIT_MS;
        int floor = total / members.size();
        int quiet = 0;
        while (quiet < 5) {
            members.forEach(Member::turn);
            boolean even = members.stream().allMatch(each -> each.consumer.assignment().size() >= floor)
                && members.stream().mapToInt(each -> each.consumer.assignment().size()).sum() == total;
            quiet = even ? quiet + 1 : 0;
            Clients.expect(System.currentTimeMillis() < deadline, "a settled group at " + step);
        }
        Map<String, Object> held = new LinkedHashMap<>();
        Map<String, Object> revoked = new LinkedHashMap<>();
        for (Member each : members) {
            held.put(each.name, Output.names(each.consumer.assignment()));
            revoked.put(each.name, each.revoked);
            each.revoked = 0;
        }
        Output.line("step", step, "held", held, "revoked", revoked,
            "lost", members.stream().mapToInt(each -> each.lost).sum());
    }

    /** Three members come and two go, while records arrive between the steps. */
    private static void assignor(String assignor) throws Exception {
        String other = topic + "-b";
        Clients.create(bootstrap, 4, topic, other);
        String strategy = "partition.assignment.strategy=org.apache.kafka.clients.consumer." + assignor;
        List<String> read = new ArrayList<>();
        List<Member> members = new ArrayList<>();
        List<String> sent = new ArrayList<>();
        for (String step : List.of("one", "two", "three")) {
            produce(step, sent, topic, other);
            Member joining = new Member("member-" + step, read, strategy);
            joining.consumer.subscribe(List.of(topic, other), joining);
            members.add(joining);
            settle(step, members, 8);
        }
        for (String step : List.of("one left", "two left")) {
            produce(step, sent, topic, other);
            members.remove(0).leave();
            settle(step, members, 8);
        }
        long deadline = System.currentTimeMillis() + WAIT_MS;
        while (read.size() < sent.size() && System.currentTimeMillis() < deadline) {
            members.forEach(Member::turn);
        }
        members.forEach(Member::leave);
        read.sort(null);
        sent.sort(null);
        Output.line("sent", sent.size(), "same", read.equals(sent));
    }

    private static void produce(String prefix, List<String> sent, String... topics) {
        try (KafkaProducer<byte[], byte[]> producer = Clients.producer(bootstrap)) {
            for (String name : topics) {
                for (int number = 0; number < 100; number++) {
                    String value = name + " " + prefix + " " + number;
                    producer.send(new ProducerRecord<>(name, number % 4, null, value.getBytes()));
                    sent.add(value);
                }
            }
        }
    }

    /** A static member that returns within its session keeps its partitions, unnoticed by the others. */
    private static void staticMembers() throws Exception {
        Clients.create(bootstrap, 4, topic);
        List<String> read = new ArrayList<>();
        Member one = new Member("one", read, "group.instance.id=one");
        Member two = new Member("two", read, "group.instance.id=two");
        for (Member each : List.of(one, two)) {
            each.consumer.subscribe(List.of(topic), each);
        }
        settle("both", List.of(one, two), 4);
        int generation = one.consumer.groupMetadata().generationId();
        one.assignments = 0;
        two.consumer.close();
        two = new Member("two", read, "group.instance.id=two");
        two.consumer.subscribe(List.of(topic), two);
        settle("back", List.of(one, two), 4);
        Output.line("sameGeneration", one.consumer.groupMetadata().generationId() == generation,
            "noticed", one.assignments);
        Member twin = new Member("twin", read, "group.instance.id=two");
        twin.consumer.subscribe(List.of(topic), twin);
        Member fenced = two;
        Output.line("fenced", Output.error(() -> {
            long deadline = System.currentTimeMillis() + WAIT_MS;
            while (System.currentTimeMillis() < deadline) {
                twin.turn();
                one.turn();
                fenced.turn();
            }
        }));
        twin.consumer.close();
        try (Admin admin = Clients.admin(bootstrap)) {
            admin.removeMembersFromConsumerGroup(topic,
                new RemoveMembersFromConsumerGroupOptions(List.of(new MemberToRemove("two")))).all().get();
        }
        settle("removed", List.of(one), 4);
        one.consumer.close();
        fenced.consumer.close(Duration.ZERO);
    }

    /** Offsets by time, seeks, commits with metadata, pauses. */
    private static void positions() throws Exception {
        Clients.create(bootstrap, 2, topic);
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        try (KafkaProducer<byte[], byte[]> producer = Clients.producer(bootstrap, "linger.ms=20")) {
            for (int number = 0; number < 100; number++) {
                producer.send(new ProducerRecord<>(topic, 0, BEGIN_MS + number * 1000, null, ("" + number).getBytes()));
            }
        }
        try (KafkaConsumer<byte[], byte[]> consumer =
                Clients.consumer(bootstrap, "group.id=" + topic, "max.poll.records=1")) {
            consumer.assign(List.of(first, second));
            Map<String, Object> times = new TreeMap<>();
            for (long ahead : new long[] {-1, 0, 1, 50_500, 99_000, 99_001}) {
                OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(first, BEGIN_MS + ahead)).get(first);
                times.put("" + ahead, found == null ? null : List.of(found.offset(), found.timestamp() - BEGIN_MS));
            }
            Output.line("times", times,
                "empty", consumer.offsetsForTimes(Map.of(second, BEGIN_MS)).get(second) == null,
                "begin", consumer.beginningOffsets(List.of(first)).get(first),
                "end", consumer.endOffsets(List.of(first)).get(first));
            consumer.seek(first, 42);
            String sought = next(consumer);
            consumer.seekToEnd(List.of(first));
            long end = consumer.position(first);
            consumer.seekToBeginning(List.of(first));
            String begun = next(consumer);
            consumer.pause(List.of(first));
            int paused = consumer.poll(Duration.ofMillis(300)).count();
            consumer.resume(List.of(first));
            Output.line("sought", sought, "end", end, "begun", begun, "paused", paused, "resumed", next(consumer),
                "lag", consumer.currentLag(first).orElse(-1));
            consumer.commitSync(Map.of(first, new OffsetAndMetadata(7, "seven")));
            OffsetAndMetadata committed = consumer.committed(java.util.Set.of(first)).get(first);
            boolean none = consumer.committed(java.util.Set.of(second)).get(second) == null;
            Output.line("committed", committed.offset(), "metadata", committed.metadata(), "none", none);
        }
        try (KafkaConsumer<byte[], byte[]> consumer = Clients.consumer(bootstrap, "group.id=" + topic)) {
            consumer.assign(List.of(first));
            Output.line("continued", next(consumer), "topics", consumer.listTopics().get(topic).size());
        }
    }

    private static String next(KafkaConsumer<byte[], byte[]> consumer) {
        long deadline = System.currentTimeMillis() + WAIT_MS;
        while (System.currentTimeMillis() < deadline) {
            var records = consumer.poll(Clients.POLL);
            if (!records.isEmpty()) {
                return Output.text(records.iterator().next().value());
            }
        }
        return "nothing";
    }

    /** A topic that is created later and matches the pattern joins the assignment. */
    private static void pattern() throws Exception {
        Clients.create(bootstrap, 1, topic + "-1");
        List<String> read = new ArrayList<>();
        Member member = new Member("one", read, "metadata.max.age.ms=200");
        member.consumer.subscribe(Pattern.compile(Pattern.quote(topic) + "-\\d"), member);
        settle("one topic", List.of(member), 1);
        Clients.create(bootstrap, 2, topic + "-2", topic + "-x");
        settle("two topics", List.of(member), 3);
        member.consumer.close();
    }

    /** Without a reset policy the consumer gets an error if its offset is missing or deleted. */
    private static void reset() throws Exception {
        Clients.create(bootstrap, 1, topic);
        TopicPartition first = new TopicPartition(topic, 0);
        produceOne(10);
        try (Admin admin = Clients.admin(bootstrap)) {
            admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(4))).all().get();
        }
        try (KafkaConsumer<byte[], byte[]> consumer =
                Clients.consumer(bootstrap, "group.id=" + topic, "auto.offset.reset=none")) {
            consumer.assign(List.of(first));
            Output.line("without", Output.error(() -> consumer.poll(Duration.ofSeconds(20))));
            consumer.seek(first, 2);
            Output.line("deleted", Output.error(() -> consumer.poll(Duration.ofSeconds(20))));
            consumer.seek(first, 4);
            Output.line("next", next(consumer));
        }
        for (String policy : List.of("earliest", "latest")) {
            try (KafkaConsumer<byte[], byte[]> consumer =
                    Clients.consumer(bootstrap, "group.id=" + topic, "auto.offset.reset=" + policy)) {
                consumer.assign(List.of(first));
                Output.line("policy", policy, "position", consumer.position(first));
            }
        }
    }

    private static void produceOne(int count) {
        try (KafkaProducer<byte[], byte[]> producer = Clients.producer(bootstrap)) {
            for (int number = 0; number < count; number++) {
                producer.send(new ProducerRecord<>(topic, 0, null, ("" + number).getBytes()));
            }
        }
    }

    /** A member that does not poll leaves the group, and may return. */
    private static void evicted() throws Exception {
        Clients.create(bootstrap, 2, topic);
        List<String> read = new ArrayList<>();
        Member slow = new Member("slow", read, "max.poll.interval.ms=1500");
        Member other = new Member("other", read);
        for (Member each : List.of(slow, other)) {
            each.consumer.subscribe(List.of(topic), each);
        }
        settle("both", List.of(slow, other), 2);
        settle("slow gone", List.of(other), 2);
        Output.line("commit", Output.error(() -> slow.consumer.commitSync(
            Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(0)))));
        settle("slow back", List.of(slow, other), 2);
        Output.line("lost", slow.lost);
        slow.consumer.close();
        other.consumer.close();
    }

    private static void consumerProtocol() throws Exception {
        Clients.create(bootstrap, 1, topic);
        try (KafkaConsumer<byte[], byte[]> consumer =
                Clients.consumer(bootstrap, "group.id=" + topic, "group.protocol=consumer")) {
            consumer.subscribe(List.of(topic));
            Output.line("error", Output.error(() -> {
                for (int turn = 0; turn < 50; turn++) {
                    consumer.poll(Clients.POLL);
                }
            }));
        }
    }
}
