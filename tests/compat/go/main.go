// Command compat BOOTSTRAP TOPIC CASE [CODEC]: franz-go's view of a broker, one JSON object a line.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	records      = 200
	partitions   = 4
	recordsAStep = 30
)

var (
	bootstrap, topic = os.Args[1], os.Args[2]
	ctx, _           = context.WithTimeout(context.Background(), 60*time.Second)
	admin            = kadm.NewClient(client())
)

type fields map[string]any

func printLine(all fields) {
	line, err := json.Marshal(all)
	check(err)
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func client(options ...kgo.Opt) *kgo.Client {
	created, err := kgo.NewClient(append(append(options, security()...), kgo.SeedBrokers(bootstrap))...)
	check(err)
	return created
}

func create(partitions int32, topics ...string) {
	response, err := admin.CreateTopics(ctx, partitions, 1, nil, topics...)
	check(err)
	check(response.Error())
}

func text(bytes []byte) any {
	if bytes == nil {
		return nil
	}
	return string(bytes)
}

func read(from *kgo.Client, count int) []*kgo.Record {
	var all []*kgo.Record
	for len(all) < count {
		fetches := from.PollFetches(ctx)
		check(fetches.Err0())
		for _, each := range fetches.Errors() {
			check(each.Err)
		}
		all = append(all, fetches.Records()...)
	}
	return all
}

func values(all []*kgo.Record) []string {
	var found []string
	for _, each := range all {
		found = append(found, string(each.Value))
	}
	sort.Strings(found)
	return found
}

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

func roundTrip() {
	create(2, topic)
	producer := client(kgo.ProducerBatchCompression(codecs[os.Args[4]]), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(20*time.Millisecond))
	var all []*kgo.Record
	for number := 0; number < records; number++ {
		record := &kgo.Record{Topic: topic, Partition: int32(number % 2), Headers: []kgo.RecordHeader{
			{Key: "number", Value: []byte(fmt.Sprint(number))}, {Key: "nothing"}}}
		if number%5 != 0 {
			record.Key = []byte(fmt.Sprintf("key %d", number))
		}
		if number%7 != 0 {
			record.Value = []byte(fmt.Sprintf("value %d", number))
		}
		all = append(all, record)
	}
	check(producer.ProduceSync(ctx, all...).FirstErr())
	producer.Close()
	consumer := client(kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for _, each := range read(consumer, records) {
		printLine(fields{"partition": each.Partition, "offset": each.Offset, "key": text(each.Key),
			"value": text(each.Value), "number": text(each.Headers[0].Value), "nothing": text(each.Headers[1].Value)})
	}
	check(consumer.CommitUncommittedOffsets(ctx))
	consumer.Close()
	committed, err := admin.FetchOffsets(ctx, topic)
	check(err)
	sum := int64(0)
	committed.Each(func(each kadm.OffsetResponse) { sum += each.At })
	printLine(fields{"committed": sum})
}

// A member of the group, with the records read since its last report: partition and number.
type member struct {
	*kgo.Client
	Read [][]int
}

func join() *member {
	return &member{client(kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.HeartbeatInterval(200*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())), nil}
}

func (m *member) poll() {
	turn, done := context.WithTimeout(ctx, 20*time.Millisecond)
	defer done()
	m.PollFetches(turn).EachRecord(func(each *kgo.Record) {
		number, err := strconv.Atoi(string(each.Value))
		check(err)
		m.Read = append(m.Read, []int{int(each.Partition), number})
	})
}

// Partitions that the member holds.
func (m *member) held(described kadm.DescribedGroup) []int {
	held := []int{}
	id, generation := m.GroupMetadata()
	for _, each := range described.Members {
		if assigned, ok := each.Assigned.AsConsumer(); ok && each.MemberID == id && generation > 0 {
			for _, of := range assigned.Topics {
				for _, partition := range of.Partitions {
					held = append(held, int(partition))
				}
			}
		}
	}
	sort.Ints(held)
	return held
}

// Polls until the group is stable and its members hold equal shares; returns their partitions.
func settle(members ...*member) [][]int {
	for {
		described, err := admin.DescribeGroups(ctx, topic)
		check(err)
		all, even := [][]int{}, described[topic].State == "Stable"
		for _, each := range members {
			each.poll()
			held := each.held(described[topic])
			all, even = append(all, held), even && len(held) == partitions/len(members)
		}
		if even {
			return all
		}
		check(ctx.Err())
	}
}

// Polls until each member has read the last record of its partitions, and once more, which marks them as processed;
// prints all records.
func step(name string, last int, held [][]int, members ...*member) {
	outputs := []fields{}
	for place, each := range members {
		for _, partition := range held[place] {
			for !slices.ContainsFunc(each.Read, func(read []int) bool { return slices.Equal(read, []int{partition, last}) }) {
				each.poll()
				check(ctx.Err())
			}
		}
		each.poll()
		outputs = append(outputs, fields{"held": held[place], "read": each.Read})
		each.Read = nil
	}
	printLine(fields{"step": name, "members": outputs})
}

// The steps of tests/compat/group_steps.py.
func group() {
	create(partitions, topic)
	plain := client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	send := func(begin int, to ...int) {
		for _, partition := range to {
			for number := begin; number < begin+recordsAStep; number++ {
				record := kgo.Record{Topic: topic, Partition: int32(partition), Value: []byte(strconv.Itoa(number))}
				plain.Produce(ctx, &record, func(_ *kgo.Record, err error) { check(err) })
			}
		}
		check(plain.Flush(ctx))
	}
	send(0, 0, 1, 2, 3)
	first := join()
	step("one", recordsAStep-1, settle(first), first)
	second := join()
	held := settle(first, second)
	send(recordsAStep, 0, 1, 2, 3)
	step("two", 2*recordsAStep-1, held, first, second)
	first.Close()
	send(2*recordsAStep, held[0]...)
	all := settle(second)
	send(2*recordsAStep, held[1]...)
	step("one left", 3*recordsAStep-1, all, second)
	second.Close()
	offsets, err := admin.FetchOffsets(ctx, topic)
	check(err)
	committed := []int64{}
	for partition := int32(0); partition < partitions; partition++ {
		at, _ := offsets.Lookup(topic, partition)
		committed = append(committed, at.At)
	}
	printLine(fields{"committed": committed})
}

func transactions() {
	output := topic + "-output"
	create(1, topic, output)
	plain := client()
	for number := 0; number < 10; number++ {
		check(plain.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(fmt.Sprint(number))}).FirstErr())
	}
	session, err := kgo.NewGroupTransactSession(kgo.SeedBrokers(bootstrap), kgo.TransactionalID(topic),
		kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets())
	check(err)
	for _, commit := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		check(session.Begin())
		for done := 0; done < 10; {
			fetches := session.PollFetches(ctx)
			check(fetches.Err0())
			fetches.EachRecord(func(each *kgo.Record) {
				value := fmt.Sprintf("%v %s", bool(commit), each.Value)
				session.Produce(ctx, &kgo.Record{Topic: output, Value: []byte(value)}, nil)
				done++
			})
		}
		check(session.Client().Flush(ctx))
		committed, err := session.End(ctx, commit)
		check(err)
		offsets, err := admin.FetchOffsets(ctx, topic)
		check(err)
		at, found := offsets.Lookup(topic, 0)
		printLine(fields{"committed": committed, "found": found, "offset": at.At})
	}
	session.Close()
	for _, isolation := range []kgo.IsolationLevel{kgo.ReadCommitted(), kgo.ReadUncommitted()} {
		count := 10
		if isolation == kgo.ReadUncommitted() {
			count = 20
		}
		reader := client(kgo.ConsumeTopics(output), kgo.FetchIsolationLevel(isolation),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		printLine(fields{"values": values(read(reader, count))})
		reader.Close()
	}
}

func administer() {
	create(2, topic)
	listed, err := admin.ListTopics(ctx)
	check(err)
	printLine(fields{"listed": listed.Has(topic), "partitions": len(listed[topic].Partitions)})
	grown, err := admin.CreatePartitions(ctx, 1, topic)
	check(err)
	check(grown.Error())
	plain := client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	now := time.Now()
	for number := 0; number < 3; number++ {
		// The first record of a millisecond would count as the newest.
		dated := now.Add(time.Duration(number) * time.Second)
		check(plain.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("value"), Timestamp: dated}).FirstErr())
	}
	ends, err := admin.ListEndOffsets(ctx, topic)
	check(err)
	end, _ := ends.Lookup(topic, 0)
	after, err := admin.ListOffsetsAfterMilli(ctx, 1, topic)
	check(err)
	first, _ := after.Lookup(topic, 0)
	latest, err := admin.ListMaxTimestampOffsets(ctx, topic)
	check(err)
	newest, _ := latest.Lookup(topic, 0)
	printLine(fields{"topicPartitions": len(ends[topic]), "end": end.Offset, "after": first.Offset, "newest": newest.Offset})
	value := "123456"
	_, err = admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: &value}}, topic)
	check(err)
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	check(err)
	for _, each := range configs[0].Configs {
		if each.Key == "retention.ms" {
			printLine(fields{"retention": each.MaybeValue(), "source": each.Source.String()})
		}
	}
	until := kadm.Offsets{}
	until.AddOffset(topic, 0, 2, -1)
	deleted, err := admin.DeleteRecords(ctx, until)
	check(err)
	low, _ := deleted.Lookup(topic, 0)
	printLine(fields{"low": low.LowWatermark})
	check(admin.CommitAllOffsets(ctx, topic, until))
	lag, err := admin.Lag(ctx, topic)
	check(err)
	printLine(fields{"lag": lag[topic].Lag.Total(), "state": lag[topic].State})
	dropped, err := admin.DeleteGroups(ctx, topic)
	check(err)
	check(dropped.Error())
	metadata, err := admin.BrokerMetadata(ctx)
	check(err)
	dirs, err := admin.DescribeAllLogDirs(ctx, nil)
	check(err)
	printLine(fields{"brokers": len(metadata.Brokers), "controller": metadata.Controller, "dirs": len(dirs)})
	topics, err := admin.DeleteTopics(ctx, topic)
	check(err)
	check(topics.Error())
	left, err := kadm.NewClient(client()).ListTopics(ctx) // the other one remembers
	check(err)
	printLine(fields{"listed": left.Has(topic)})
}

func main() {
	cases := map[string]func(){"records": roundTrip, "group": group, "transactions": transactions, "admin": administer,
		"session": session, "acls": acls}
	cases[os.Args[3]]()
}
