import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.ReplicaInfo;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

/** AdminCalls BOOTSTRAP TOPIC CASE */
public final class AdminCalls {
    private static final long BEGIN_MS = 1_700_000_000_000L;
    private static String bootstrap;
    private static String topic;
    private static TopicPartition first;
    private static Admin admin;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        first = new TopicPartition(topic, 0);
        try (Admin opened = Clients.admin(bootstrap)) {
            admin = opened;
            switch (arguments[2]) {
                case "topics" -> topics();
                case "configs" -> configs();
                case "offsets" -> offsets();
                case "groups" -> groups();
                case "cluster" -> cluster();
                default -> throw new IllegalArgumentException(arguments[2]);
            }
        }
    }

    private static String create(NewTopic wanted) {
        return Output.error(() -> admin.createTopics(List.of(wanted)).all().get());
    }

    private static void topics() throws Exception {
        NewTopic wanted = new NewTopic(topic, 3, (short) 1).configs(Map.of("retention.ms", "1234567"));
        CreateTopicsResult dry = admin.createTopics(List.of(wanted), new CreateTopicsOptions().validateOnly(true));
        Output.line("dryRun", dry.numPartitions(topic).get(), "exists", admin.listTopics().names().get().contains(topic));
        CreateTopicsResult created = admin.createTopics(List.of(wanted));
        Output.line("partitions", created.numPartitions(topic).get(), "replicas", created.replicationFactor(topic).get(),
            "retention", created.config(topic).get().get("retention.ms").value());
        Output.line("listed", admin.listTopics().names().get().contains(topic));
        TopicDescription described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        boolean sameId = described.topicId().equals(created.topicId(topic).get());
        String byId = admin.describeTopics(org.apache.kafka.common.TopicCollection.ofTopicIds(
            List.of(described.topicId()))).allTopicIds().get().get(described.topicId()).name();
        Output.line("described", described.partitions().size(), "sameId", sameId, "byId", byId.equals(topic),
            "internal", described.isInternal(), "leaders", described.partitions().stream().map(
                each -> each.leader() != null && each.isr().size() == 1 && each.replicas().size() == 1).toList());
        Map<String, String> errors = new TreeMap<>();
        errors.put("again", create(wanted));
        errors.put("two replicas", create(new NewTopic(topic + "-2", 1, (short) 2)));
        errors.put("no partitions", create(new NewTopic(topic + "-2", 0, (short) 1)));
        errors.put("unknown config", create(new NewTopic(topic + "-2", 1, (short) 1).configs(Map.of("no.such", "1"))));
        errors.put("wrong value", create(new NewTopic(topic + "-2", 1, (short) 1).configs(Map.of("segment.ms", "x"))));
        errors.put("wrong name", create(new NewTopic("no/such", 1, (short) 1)));
        errors.put("other broker", create(new NewTopic(topic + "-2", Map.of(0, List.of(999)))));
        errors.put("fewer partitions", grow(2));
        errors.put("unknown topic", Output.error(() -> admin.createPartitions(
            Map.of(topic + "-2", NewPartitions.increaseTo(2))).all().get()));
        Output.line("grown", grow(5), "partitions",
            admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
        Output.line("deleted", Output.error(() -> admin.deleteTopics(List.of(topic)).all().get()),
            "listed", admin.listTopics().names().get().contains(topic));
        errors.put("delete again", Output.error(() -> admin.deleteTopics(List.of(topic)).all().get()));
        errors.put("describe deleted", Output.error(() -> admin.describeTopics(List.of(topic)).allTopicNames().get()));
        Output.line("errors", errors);
        create(wanted);
        org.apache.kafka.common.Uuid id =
            admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).topicId();
        admin.deleteTopics(org.apache.kafka.common.TopicCollection.ofTopicIds(List.of(id))).all().get();
        Output.line("newId", !id.equals(described.topicId()), "listed", admin.listTopics().names().get().contains(topic));
    }

    private static String grow(int partitions) {
        return Output.error(() -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(partitions))).all().get());
    }

    private static String alter(AlterConfigOp.OpType operation, String name, String value) {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Collection<AlterConfigOp> operations = List.of(new AlterConfigOp(new ConfigEntry(name, value), operation));
        return Output.error(() -> admin.incrementalAlterConfigs(Map.of(resource, operations)).all().get());
    }

    private static void config(String step, String name) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        DescribeConfigsOptions options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        Config config = admin.describeConfigs(List.of(resource), options).all().get().get(resource);
        ConfigEntry entry = config.get(name);
        Output.line("step", step, "value", entry.value(), "source", entry.source().toString(),
            "type", entry.type().toString(), "readOnly", entry.isReadOnly(), "sensitive", entry.isSensitive(),
            "synonyms", entry.synonyms().stream().map(each -> each.name() + "=" + each.value()).toList());
    }

    private static void configs() throws Exception {
        Clients.create(bootstrap, 1, topic);
        config("default", "cleanup.policy");
        Output.line("error", alter(AlterConfigOp.OpType.APPEND, "cleanup.policy", "compact"));
        config("appended", "cleanup.policy");
        Output.line("error", alter(AlterConfigOp.OpType.SUBTRACT, "cleanup.policy", "delete"));
        config("subtracted", "cleanup.policy");
        Output.line("error", alter(AlterConfigOp.OpType.SET, "segment.bytes", "2000000"));
        config("set", "segment.bytes");
        Output.line("error", alter(AlterConfigOp.OpType.DELETE, "segment.bytes", ""));
        config("deleted", "segment.bytes");
        Map<String, String> errors = new TreeMap<>();
        errors.put("unknown", alter(AlterConfigOp.OpType.SET, "no.such", "1"));
        errors.put("wrong", alter(AlterConfigOp.OpType.SET, "segment.bytes", "x"));
        errors.put("append to a number", alter(AlterConfigOp.OpType.APPEND, "segment.bytes", "1"));
        ConfigResource none = new ConfigResource(ConfigResource.Type.TOPIC, topic + "-none");
        errors.put("unknown topic", Output.error(() -> admin.describeConfigs(List.of(none)).all().get()));
        Output.line("errors", errors);
        String node = admin.describeCluster().nodes().get().iterator().next().idString();
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, node);
        Config settings = admin.describeConfigs(List.of(broker)).all().get().get(broker);
        Output.line("broker", settings.get("message.max.bytes").value(), "retention",
            settings.get("log.retention.hours").value());
    }

    private static void offsets() throws Exception {
        Clients.create(bootstrap, 1, topic);
        try (KafkaProducer<byte[], byte[]> producer = Clients.producer(bootstrap)) {
            for (int number : new int[] {1, 9, 3}) {
                producer.send(new ProducerRecord<>(topic, 0, BEGIN_MS + number, null, "value".getBytes())).get();
            }
        }
        list("earliest", OffsetSpec.earliest());
        list("latest", OffsetSpec.latest());
        list("max timestamp", OffsetSpec.maxTimestamp());
        list("timestamp", OffsetSpec.forTimestamp(BEGIN_MS + 2));
        list("later", OffsetSpec.forTimestamp(BEGIN_MS + 10));
        Output.line("low", admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(2)))
            .lowWatermarks().get(first).get().lowWatermark());
        list("earliest", OffsetSpec.earliest());
        Output.line("beyond", Output.error(
            () -> admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(4))).all().get()));
        Output.line("low", admin.deleteRecords(Map.of(first, RecordsToDelete.beforeOffset(-1)))
            .lowWatermarks().get(first).get().lowWatermark());
        list("earliest", OffsetSpec.earliest());
    }

    private static void list(String name, OffsetSpec spec) throws Exception {
        ListOffsetsResultInfo found = admin.listOffsets(Map.of(first, spec)).partitionResult(first).get();
        Output.line("spec", name, "offset", found.offset(),
            "timestamp", found.timestamp() < 0 ? found.timestamp() : found.timestamp() - BEGIN_MS);
    }

    private static void groups() throws Exception {
        Clients.create(bootstrap, 2, topic);
        try (KafkaConsumer<byte[], byte[]> consumer = Clients.consumer(bootstrap,
                "group.id=" + topic, "client.id=reader", "group.instance.id=instance")) {
            consumer.subscribe(List.of(topic));
            while (consumer.assignment().isEmpty()) {
                consumer.poll(Clients.POLL);
            }
            consumer.commitSync(Map.of(first, new OffsetAndMetadata(3, "three"),
                new TopicPartition(topic, 1), new OffsetAndMetadata(4)));
            group();
            Output.line("delete", Output.error(() -> admin.deleteConsumerGroups(List.of(topic)).all().get()),
                "deleteOffsets", offsetsError(),
                "alterOffsets", Output.error(() -> admin.alterConsumerGroupOffsets(
                    topic, Map.of(first, new OffsetAndMetadata(1))).all().get()));
        }
        admin.removeMembersFromConsumerGroup(topic,
            new org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions()).all().get();
        group();
        admin.alterConsumerGroupOffsets(topic, Map.of(first, new OffsetAndMetadata(1, "set"))).all().get();
        committed();
        Output.line("deleteOffsets", offsetsError());
        committed();
        Output.line("delete", Output.error(() -> admin.deleteConsumerGroups(List.of(topic)).all().get()),
            "listed", listed());
        Output.line("again", Output.error(() -> admin.deleteConsumerGroups(List.of(topic)).all().get()),
            "describe", Output.error(() -> admin.describeConsumerGroups(List.of(topic)).all().get()));
    }

    private static String offsetsError() {
        return Output.error(
            () -> admin.deleteConsumerGroupOffsets(topic, java.util.Set.of(first)).partitionResult(first).get());
    }

    private static List<String> listed() throws Exception {
        return admin.listConsumerGroups().all().get().stream().filter(each -> each.groupId().equals(topic))
            .map(each -> each.groupId() + " " + each.state().map(Object::toString).orElse("none")
                + " simple=" + each.isSimpleConsumerGroup()).toList();
    }

    private static void group() throws Exception {
        ConsumerGroupDescription group = admin.describeConsumerGroups(List.of(topic)).all().get().get(topic);
        Output.line("state", group.state().toString(), "assignor", group.partitionAssignor(),
            "coordinator", group.coordinator().id(), "listed", listed(),
            "members", group.members().stream().map(each -> Arrays.asList(each.clientId(), each.host(),
                each.groupInstanceId().orElse(null), Output.names(each.assignment().topicPartitions()))).toList());
        committed();
    }

    private static void committed() throws Exception {
        Map<String, String> found = new TreeMap<>();
        admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().forEach((partition, offset) ->
            found.put(partition.toString(), offset == null ? null : offset.offset() + " " + offset.metadata()));
        Output.line("committed", found);
    }

    private static void cluster() throws Exception {
        Clients.create(bootstrap, 2, topic);
        try (KafkaProducer<byte[], byte[]> producer = Clients.producer(bootstrap)) {
            producer.send(new ProducerRecord<>(topic, 0, null, new byte[1000])).get();
        }
        DescribeClusterResult cluster = admin.describeCluster();
        int node = cluster.nodes().get().iterator().next().id();
        Output.line("nodes", cluster.nodes().get().size(), "controller", cluster.controller().get().id() == node,
            "id", cluster.clusterId().get() != null, "address",
            cluster.nodes().get().iterator().next().host() + ":" + cluster.nodes().get().iterator().next().port());
        LogDirDescription directory =
            admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node).values().iterator().next();
        ReplicaInfo replica = directory.replicaInfos().get(first);
        Output.line("error", directory.error() == null, "partition", directory.replicaInfos().containsKey(first),
            "large", replica.size() > 1000 && replica.size() < 1200, "lag", replica.offsetLag(),
            "future", replica.isFuture(), "volume", directory.totalBytes().orElse(0) > directory.usableBytes().orElse(0));
        Output.line("reassignments", admin.listPartitionReassignments().reassignments().get().size(),
            "elect", admin.electLeaders(ElectionType.PREFERRED, java.util.Set.of(first)).partitions().get()
                .get(first).map(error -> error.getClass().getSimpleName()).orElse("none"));
    }
}
