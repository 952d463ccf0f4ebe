// kafkajs.js BOOTSTRAP TOPIC CASE: one JSON object a line.
const fs = require("fs");
const kafkajs = require("kafkajs");
const { CompressionCodecs, CompressionTypes, Kafka, ConfigResourceTypes, logLevel } = kafkajs;
const LZ4 = require("kafkajs-lz4");
const { ZstdCodec } = require("zstd-codec");

// Codecs of kafkajs's documentation for each type that the client does not include.
CompressionCodecs[CompressionTypes.Snappy] = require("kafkajs-snappy");
CompressionCodecs[CompressionTypes.LZ4] = new LZ4().codec;
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: (encoder) => withZstd((zstd) => zstd.compress(encoder.buffer)),
  decompress: (packed) => withZstd((zstd) => zstd.decompress(packed)),
});
const withZstd = (work) =>
  new Promise((resolve) => ZstdCodec.run(({ Simple }) => resolve(Buffer.from(work(new Simple())))));

// TLS and SASL of a broker that requires them.
function security() {
  if (!process.env.COMPAT_SECURITY) return {};
  const { trusted, mechanism, user, secret } = JSON.parse(process.env.COMPAT_SECURITY);
  const login =
    mechanism === "OAUTHBEARER"
      ? { oauthBearerProvider: async () => ({ value: secret }) }
      : { username: user, password: secret };
  const quick = { retry: { retries: 1 }, reauthenticationThreshold: 500 };
  return { ssl: { ca: [fs.readFileSync(trusted)] }, sasl: { mechanism: mechanism.toLowerCase(), ...login }, ...quick };
}

const RECORDS = 200;
const PARTITIONS = 4;
const RECORDS_A_STEP = 30;
const WAIT_MS = 30000;
const [bootstrap, topic, name, codec] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "kafkajs", brokers: [bootstrap], logLevel: logLevel.ERROR, ...security() });
const admin = kafka.admin();

const print = (fields) => console.log(JSON.stringify(fields));
const text = (bytes) => (bytes === null || bytes === undefined ? null : bytes.toString());
const create = (wanted, numPartitions) => admin.createTopics({ topics: [{ topic: wanted, numPartitions }] });

async function until(met, wanted) {
  const deadline = Date.now() + WAIT_MS;
  while (!(await met())) {
    if (Date.now() > deadline) throw new Error("wanted: " + wanted);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

// A running consumer of `topics`; `seen` has its messages, `owned` its partitions by topic.
async function consumer(topics, settings = {}) {
  const quick = { heartbeatInterval: 200, rebalanceTimeout: 5000, maxWaitTimeInMs: 500 };
  const running = kafka.consumer({ groupId: topic, ...quick, ...settings });
  running.seen = [];
  running.owned = {};
  running.on(running.events.GROUP_JOIN, (event) => (running.owned = event.payload.memberAssignment));
  await running.connect();
  await running.subscribe({ topics, fromBeginning: true });
  await running.run({ eachMessage: async ({ partition, message }) => running.seen.push({ partition, ...message }) });
  return running;
}

const cases = {
  // The session ends between the two records; `codec` is the time between them.
  async session() {
    await create(topic, 1);
    const producer = kafka.producer();
    await producer.connect();
    await producer.send({ topic, messages: [{ value: "before" }] });
    await new Promise((resolve) => setTimeout(resolve, Number(codec)));
    await producer.send({ topic, messages: [{ value: "after" }] });
    await producer.disconnect();
    const running = await consumer([topic]);
    await until(() => running.seen.length === 2, "both records");
    print({ values: running.seen.map((each) => text(each.value)) });
    await running.disconnect();
  },

  async acls() {
    const { AclResourceTypes, AclOperationTypes, AclPermissionTypes, ResourcePatternTypes } = kafkajs;
    const acl = {
      resourceType: AclResourceTypes.TOPIC,
      resourceName: topic,
      resourcePatternType: ResourcePatternTypes.PREFIXED,
      principal: "User:eve",
      host: "*",
      operation: AclOperationTypes.READ,
      permissionType: AclPermissionTypes.ALLOW,
    };
    print({ created: await admin.createAcls({ acl: [acl] }) });
    const described = await admin.describeAcls(acl);
    print({ described: described.resources.map((each) => [each.resourceName, each.acls.map((one) => one.principal)]) });
    const deleted = await admin.deleteAcls({ filters: [acl] });
    print({ deleted: deleted.filterResponses.map((each) => each.matchingAcls.length) });
  },

  async records() {
    await create(topic, 2);
    const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
    await producer.connect();
    const messages = [];
    for (let number = 0; number < RECORDS; number++) {
      messages.push({
        key: number % 5 ? `key ${number}` : null,
        value: number % 7 ? `value ${number}` : null,
        headers: { number: String(number), twice: ["a", "b"] },
        partition: number % 2,
      });
    }
    await producer.send({ topic, messages, compression: CompressionTypes[codec] });
    await producer.disconnect();
    const reader = await consumer([topic]);
    await until(() => reader.seen.length >= RECORDS, "all records");
    for (const each of reader.seen) {
      print({
        partition: each.partition,
        offset: Number(each.offset),
        key: text(each.key),
        value: text(each.value),
        number: text(each.headers.number),
        twice: each.headers.twice.map(text),
      });
    }
    await reader.disconnect();
  },

  // The steps of tests/compat/group_steps.py.
  async group() {
    await create(topic, PARTITIONS);
    const producer = kafka.producer();
    await producer.connect();
    const ends = Array(PARTITIONS).fill(0);
    const send = async (partitions) => {
      const values = (partition) => Array.from({ length: RECORDS_A_STEP }, () => "" + ends[partition]++);
      const of = (partition) => values(partition).map((value) => ({ partition, value }));
      await producer.send({ topic, messages: partitions.flatMap(of) });
    };
    const committed = async () => {
      const [{ partitions }] = await admin.fetchOffsets({ groupId: topic, topics: [topic] });
      return partitions.sort((a, b) => a.partition - b.partition).map((each) => Number(each.offset));
    };
    const held = (member) => member.owned[topic] || [];
    const read = (member) => member.seen.splice(0).map((each) => [each.partition, Number(text(each.value))]);
    const step = async (name, ...members) => {
      await until(async () => "" + (await committed()) === "" + ends, "all of it committed in step " + name);
      print({ step: name, members: members.map((each) => ({ held: held(each), read: read(each) })) });
    };
    const every = [...ends.keys()];
    await send(every);
    const first = await consumer([topic]);
    await step("one", first);
    const second = await consumer([topic]);
    await until(() => held(first).length === 2 && held(second).length === 2, "two members with two partitions each");
    await send(every);
    await step("two", first, second);
    const kept = held(second);
    await first.disconnect();
    await send(every.filter((each) => !kept.includes(each)));
    await until(() => held(second).length === PARTITIONS, "the second with all partitions");
    await send(kept);
    await step("one left", second);
    await second.disconnect();
    await producer.disconnect();
    print({ committed: await committed() });
  },

  async transactions() {
    const output = topic + "-output";
    await create(topic, 1);
    await create(output, 1);
    const producer = kafka.producer({ transactionalId: topic, idempotent: true, maxInFlightRequests: 1 });
    await producer.connect();
    for (const outcome of ["abort", "commit"]) {
      const transaction = await producer.transaction();
      await transaction.send({ topic: output, messages: [{ value: outcome + " 1" }, { value: outcome + " 2" }] });
      const offsets = { consumerGroupId: topic, topics: [{ topic, partitions: [{ partition: 0, offset: "7" }] }] };
      await transaction.sendOffsets(offsets);
      await transaction[outcome]();
      const [found] = await admin.fetchOffsets({ groupId: topic, topics: [topic] });
      print({ outcome, offset: found.partitions[0].offset });
    }
    await producer.disconnect();
    for (const readUncommitted of [false, true]) {
      const reader = await consumer([output], { groupId: topic + readUncommitted, readUncommitted });
      const count = readUncommitted ? 4 : 2;
      await until(() => reader.seen.length >= count, count + " records");
      print({ readUncommitted, values: reader.seen.map((each) => text(each.value)) });
      await reader.disconnect();
    }
  },

  async admin() {
    print({ created: await create(topic, 2), again: await create(topic, 2) });
    print({ listed: (await admin.listTopics()).includes(topic) });
    await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
    const metadata = await admin.fetchTopicMetadata({ topics: [topic] });
    print({ partitions: metadata.topics[0].partitions.map((each) => [each.partitionId, each.leader]).sort() });
    const producer = kafka.producer();
    await producer.connect();
    await producer.send({ topic, messages: [1, 2, 3].map((n) => ({ value: "" + n, partition: 0, timestamp: "" + (Date.now() + n) })) });
    await producer.disconnect();
    const at = (all, wanted) => all.find((each) => each.partition === wanted);
    print({ ends: at(await admin.fetchTopicOffsets(topic), 0) });
    print({ byTime: at(await admin.fetchTopicOffsetsByTimestamp(topic, 1), 0).offset });
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic };
    await admin.alterConfigs({
      validateOnly: false,
      resources: [{ ...resource, configEntries: [{ name: "retention.ms", value: "123456" }] }],
    });
    const described = await admin.describeConfigs({
      includeSynonyms: false,
      resources: [{ ...resource, configNames: ["retention.ms"] }],
    });
    print({ config: described.resources[0].configEntries.map((each) => [each.configName, each.configValue]) });
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: "2" }] });
    print({ low: at(await admin.fetchTopicOffsets(topic), 0).low });
    await admin.setOffsets({ groupId: topic, topic, partitions: [{ partition: 0, offset: "3" }] });
    const [committed] = await admin.fetchOffsets({ groupId: topic, topics: [topic] });
    print({ committed: at(committed.partitions, 0).offset });
    const { groups } = await admin.listGroups();
    const { groups: states } = await admin.describeGroups([topic]);
    print({ group: groups.filter((each) => each.groupId === topic), state: states[0].state });
    print({ deleted: await admin.deleteGroups([topic]) });
    const cluster = await admin.describeCluster();
    print({ brokers: cluster.brokers.length, controller: cluster.controller });
    await admin.deleteTopics({ topics: [topic] });
    print({ listed: (await admin.listTopics()).includes(topic) });
  },
};

admin
  .connect()
  .then(() => cases[name]())
  .then(() => admin.disconnect())
  .catch((error) => {
    console.error(error);
    process.exit(1);
  });
