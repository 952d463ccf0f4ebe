//! compat BOOTSTRAP TOPIC CASE [ARGUMENT]: rskafka's view of a broker, one JSON object a line.

mod security;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use std::{env, process};

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::try_join_all;
use futures::StreamExt;
use rskafka::client::consumer::{StartOffset, StreamConsumerBuilder};
use rskafka::client::error::Error as ClientError;
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::producer::aggregator::RecordAggregator;
use rskafka::client::producer::BatchProducerBuilder;
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::{Record, RecordAndOffset};
use rskafka::BackoffConfig;
use serde_json::{json, Value};

pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const RECORDS: usize = 200;
const STREAMED: usize = 30;
const TIMEOUT_MS: i32 = 5_000;

fn print_line(line: Value) {
    println!("{line}");
}

fn text(bytes: &Option<Vec<u8>>) -> Value {
    bytes.as_ref().map_or(Value::Null, |bytes| json!(String::from_utf8_lossy(bytes)))
}

fn record(value: &str, timestamp: DateTime<Utc>) -> Record {
    Record { key: None, value: Some(value.into()), headers: BTreeMap::new(), timestamp }
}

/// The name of the broker's error.
fn refusal<T>(outcome: Result<T, ClientError>) -> Value {
    match outcome {
        Err(ClientError::ServerError { protocol_error, .. }) => json!(format!("{protocol_error:?}")),
        _ => Value::Null,
    }
}

struct Case {
    client: Client,
    topic: String,
    argument: String,
}

impl Case {
    async fn create(&self, partitions: i32) -> Result<(), ClientError> {
        self.client.controller_client()?.create_topic(&self.topic, partitions, 1, TIMEOUT_MS).await
    }

    async fn partition(&self, number: i32) -> Outcome<PartitionClient> {
        Ok(self.client.partition_client(&self.topic, number, UnknownTopicHandling::Error).await?)
    }

    /// Return all records up to the end, by Fetch requests that return a part each.
    async fn read(&self, partition: &PartitionClient) -> Outcome<Vec<RecordAndOffset>> {
        let end = partition.get_offset(OffsetAt::Latest).await?;
        let mut all: Vec<RecordAndOffset> = Vec::new();
        let mut next = partition.get_offset(OffsetAt::Earliest).await?;
        while next < end {
            let (records, _high_watermark) = partition.fetch_records(next, 1..1_000, TIMEOUT_MS).await?;
            next = records.last().map_or(end, |last| last.offset + 1);
            all.extend(records);
        }
        Ok(all)
    }

    fn codec(&self) -> Outcome<Compression> {
        Ok(match self.argument.as_str() {
            "none" => Compression::NoCompression,
            "gzip" => Compression::Gzip,
            "snappy" => Compression::Snappy,
            "lz4" => Compression::Lz4,
            "zstd" => Compression::Zstd,
            other => return Err(format!("no codec of rskafka: {other}").into()),
        })
    }

    async fn records(&self) -> Outcome<()> {
        self.create(2).await?;
        for number in 0..2 {
            let partition = self.partition(number).await?;
            let numbers: Vec<usize> = (0..RECORDS).filter(|each| each % 2 == number as usize).collect();
            for batch in numbers.chunks(RECORDS / 8) {
                let records = batch.iter().map(|number| Record {
                    key: (number % 5 != 0).then(|| format!("key {number}").into()),
                    value: (number % 7 != 0).then(|| format!("value {number}").into()),
                    headers: BTreeMap::from([
                        ("empty".to_owned(), Vec::new()),
                        ("number".to_owned(), number.to_string().into()),
                    ]),
                    timestamp: Utc::now(),
                });
                partition.produce(records.collect(), self.codec()?).await?;
            }
            for read in self.read(&partition).await? {
                let header = |name: &str| text(&read.record.headers.get(name).cloned());
                print_line(json!({
                    "partition": number, "offset": read.offset, "key": text(&read.record.key),
                    "value": text(&read.record.value), "number": header("number"), "empty": header("empty"),
                }));
            }
        }
        Ok(())
    }

    /// A producer that collects records into batches, and a consumer that waits for them.
    async fn stream(&self) -> Outcome<()> {
        self.create(1).await?;
        let partition = Arc::new(self.partition(0).await?);
        let mut consumer = StreamConsumerBuilder::new(Arc::clone(&partition), StartOffset::Latest).build();
        let writing = Arc::new(self.partition(0).await?);
        let producer = BatchProducerBuilder::new(writing)
            .with_linger(Duration::from_millis(20))
            .build(RecordAggregator::new(1_000));
        let sending = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let all = (0..STREAMED).map(|number| producer.produce(record(&number.to_string(), Utc::now())));
            Outcome::Ok(try_join_all(all).await?)
        };
        let reading = async {
            let mut offsets: Vec<i64> = Vec::new();
            while let Some(read) = consumer.next().await {
                offsets.push(read?.0.offset);
                if offsets.len() == STREAMED {
                    break;
                }
            }
            Outcome::Ok(offsets)
        };
        let (mut sent, read) = futures::try_join!(sending, reading)?;
        sent.sort_unstable();
        print_line(json!({"sent": sent, "read": read}));
        Ok(())
    }

    async fn offsets(&self) -> Outcome<()> {
        self.create(2).await?;
        print_line(json!({"again": refusal(self.create(2).await)}));
        let listed = |topics: Vec<rskafka::topic::Topic>| {
            topics.into_iter().find(|each| each.name == self.topic).map(|each| each.partitions)
        };
        print_line(json!({"partitions": listed(self.client.list_topics().await?)}));
        let partition = self.partition(0).await?;
        let now = Utc::now();
        let sent = (0..4).map(|number| record(&format!("value {number}"), now + TimeDelta::seconds(number)));
        print_line(json!({"sent": partition.produce(sent.collect(), Compression::NoCompression).await?}));
        let mut times = Vec::new();
        for at in [-1_000, 1, 2_000, 4_000] {
            times.push(partition.get_offset(OffsetAt::Timestamp(now + TimeDelta::milliseconds(at))).await?);
        }
        print_line(json!({"byTime": times}));
        partition.delete_records(2, TIMEOUT_MS).await?;
        let ends = (partition.get_offset(OffsetAt::Earliest).await?, partition.get_offset(OffsetAt::Latest).await?);
        let (read, high_watermark) = partition.fetch_records(2, 1..1_000_000, TIMEOUT_MS).await?;
        print_line(json!({
            "ends": ends, "highWatermark": high_watermark,
            "read": read.iter().map(|each| text(&each.record.value)).collect::<Vec<_>>(),
        }));
        print_line(json!({"deleted": refusal(partition.fetch_records(0, 1..1_000_000, TIMEOUT_MS).await)}));
        self.client.controller_client()?.delete_topic(&self.topic, TIMEOUT_MS).await?;
        print_line(json!({"partitions": listed(self.client.list_topics().await?)}));
        Ok(())
    }

    /// The values of a topic that exists.
    async fn values(&self) -> Outcome<()> {
        let read = self.read(&self.partition(0).await?).await?;
        print_line(json!({"values": read.iter().map(|each| text(&each.record.value)).collect::<Vec<_>>()}));
        Ok(())
    }

    /// Writes two records; the session ends between them.
    async fn session(&self) -> Outcome<()> {
        self.create(1).await?;
        let partition = self.partition(0).await?;
        partition.produce(vec![record("before", Utc::now())], Compression::NoCompression).await?;
        tokio::time::sleep(Duration::from_millis(self.argument.parse()?)).await;
        partition.produce(vec![record("after", Utc::now())], Compression::NoCompression).await?;
        self.values().await
    }
}

async fn run(arguments: Vec<String>) -> Outcome<()> {
    let [_, bootstrap, topic, name, rest @ ..] = arguments.as_slice() else {
        return Err("usage: compat BOOTSTRAP TOPIC CASE [ARGUMENT]".into());
    };
    // Without a deadline rskafka repeats even a refused login, without end.
    let retries = BackoffConfig { deadline: Some(Duration::from_secs(2)), ..BackoffConfig::default() };
    let builder = ClientBuilder::new(vec![bootstrap.clone()]).backoff_config(retries);
    let client = security::secured(builder)?.build().await?;
    let case = Case { client, topic: topic.clone(), argument: rest.first().cloned().unwrap_or_default() };
    match name.as_str() {
        "records" => case.records().await,
        "stream" => case.stream().await,
        "offsets" => case.offsets().await,
        "values" => case.values().await,
        "session" => case.session().await,
        other => Err(format!("no such case: {other}").into()),
    }
}

fn main() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let running = async { tokio::time::timeout(Duration::from_secs(60), run(env::args().collect())).await };
    if let Err(error) = runtime.block_on(running)? {
        eprintln!("{error}");
        process::exit(1);
    }
    Ok(())
}
