package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var scenarios = []scenario{
	{"send_sync", sendSync},
	{"send_async", sendAsync},
	{"send_oneway", sendOneway},
	{"send_batch", sendBatch},
	{"send_large", sendLarge},
	{"send_selector", sendSelector},
	{"pull_from", pullFrom},
	{"push_concurrent", pushConcurrent},
	{"push_tags", pushTags},
	{"push_orderly", pushOrderly},
	{"retry_dead_letter", retryDeadLetter},
	{"rpc_reply", rpcReply},
	{"group_broadcast", groupBroadcast},
	{"delay_levels", delayLevels},
	{"filter_sql", filterSQL},
	{"transaction_all", transactionAll},
}

var all = consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}

func sendSync(p *peer) details {
	client := p.producer()
	offsets := map[int][]int64{}
	for i := 0; i < 40; i++ {
		result := sent(client.SendSync(background, p.message(i, tagOf(i))))
		offsets[result.MessageQueue.QueueId] = append(offsets[result.MessageQueue.QueueId], result.QueueOffset)
	}
	equal("queues", 4, len(offsets))
	for queue, ours := range offsets {
		for i := 1; i < len(ours); i++ {
			equal(fmt.Sprintf("offset in queue %d", queue), ours[i-1]+1, ours[i])
		}
	}
	return details{"messages": 40, "queues": len(offsets)}
}

func sendAsync(p *peer) details {
	client := p.producer()
	var waiting sync.WaitGroup
	var failures sync.Map
	for i := 0; i < 100; i++ {
		waiting.Add(1)
		must(client.SendAsync(background, func(_ context.Context, result *primitive.SendResult, err error) {
			defer waiting.Done()
			if err != nil || result.Status != primitive.SendOK {
				failures.Store(err, result)
			}
		}, p.message(i, "TagA")))
	}
	waiting.Wait()
	failures.Range(func(err, result any) bool { panic(fmt.Sprint(err, result)) })
	return seenOf(p, bodies(0, 100, every))
}

func sendOneway(p *peer) details {
	client := p.producer()
	for i := 0; i < 50; i++ {
		must(client.SendOneWay(background, p.message(i, "TagA")))
	}
	return seenOf(p, bodies(0, 50, every))
}

func sendBatch(p *peer) details {
	messages := []*primitive.Message{}
	for i := 0; i < 64; i++ {
		messages = append(messages, p.message(i, tagOf(i)))
	}
	result, err := p.producer().SendSync(background, messages...)
	must(err)
	equal("send status", primitive.SendOK, result.Status)
	return seenOf(p, bodies(0, 64, every))
}

// A body above 4 KiB travels compressed.
func sendLarge(p *peer) details {
	body := make([]byte, 1<<20)
	for i := range body {
		body[i] = byte("abcdefgh"[i%8])
	}
	message := primitive.NewMessage(p.topic, body)
	sent(p.producer().SendSync(background, message))
	seen := &log{}
	p.consume(all, seen.take)
	seen.expect([]string{string(body)})
	check(seen.all()[0].SysFlag&1 == 1, "was not compressed")
	return details{"bytes": len(body), "stored": seen.all()[0].StoreSize}
}

func sendSelector(p *peer) details {
	client := p.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	queues := map[string]int{}
	for i := 0; i < 40; i++ {
		key := fmt.Sprintf("order-%d", i%7)
		result := sent(client.SendSync(background, p.message(i, "TagA").WithShardingKey(key)))
		if queue, known := queues[key]; known {
			equal("queue of "+key, queue, result.MessageQueue.QueueId)
		}
		queues[key] = result.MessageQueue.QueueId
	}
	return details{"keys": len(queues)}
}

func seenOf(p *peer, wanted []string) details {
	seen := &log{}
	p.consume(all, seen.take)
	seen.expect(wanted)
	return details{"messages": len(wanted)}
}

func pullFrom(p *peer) details {
	client := p.producer(producer.WithQueueSelector(producer.NewManualQueueSelector()))
	queue := &primitive.MessageQueue{Topic: p.topic, BrokerName: p.queue(p.producer()).BrokerName, QueueId: 3}
	first := int64(-1)
	for i := 0; i < 40; i++ {
		message := p.message(i, tagOf(i))
		message.Queue = queue
		if result := sent(client.SendSync(background, message)); first < 0 {
			first = result.QueueOffset
		}
	}
	reader, err := rocketmq.NewPullConsumer(
		consumer.WithGroupName(p.group), consumer.WithInstance(p.instance()), consumer.WithNsResolver(p.resolver()))
	must(err)
	must(reader.Subscribe(p.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "TagA || TagX"}))
	must(reader.Start())
	p.closers = append(p.closers, reader.Shutdown)
	found, next := 0, first
	for next < first+40 {
		result, err := reader.PullFrom(background, queue, next, 7)
		must(err)
		for _, message := range result.GetMessageExts() {
			equal("tag", "TagA", message.GetTags())
			found++
		}
		check(result.NextBeginOffset > next, "stuck at %d", next)
		next = result.NextBeginOffset
	}
	equal("messages", 20, found)
	beyond, err := reader.PullFrom(background, queue, first+1000, 7)
	must(err)
	equal("beyond the end", primitive.PullOffsetIllegal, beyond.Status)
	equal("where to go from beyond", first+40, beyond.NextBeginOffset)
	return details{"messages": found}
}

func pushConcurrent(p *peer) details {
	client, seen := p.producer(), &log{}
	p.send(client, 0, 50)
	p.consume(all, seen.take)
	seen.expect(bodies(0, 50, every))
	p.send(client, 50, 100)
	seen.expect(bodies(0, 100, every))
	return details{"messages": 100}
}

func pushTags(p *peer) details {
	client, seen := p.producer(), &log{}
	send := func(first int) {
		for i := first; i < first+30; i++ {
			sent(client.SendSync(background, p.message(i, []string{"TagA", "TagB", "TagC"}[i%3])))
		}
	}
	wanted := func(i int) bool { return i%3 != 1 }
	send(0)
	p.consume(consumer.MessageSelector{Type: consumer.TAG, Expression: "TagA || TagC"}, seen.take)
	seen.expect(bodies(0, 30, wanted))
	send(30)
	seen.expect(bodies(0, 60, wanted))
	return details{"messages": len(seen.all())}
}

// Consumes in order, which needs the broker's queue locks; order holds inside each queue.
func pushOrderly(p *peer) details {
	seen := &log{}
	p.send(p.producer(), 0, 60)
	p.consume(all, seen.take, consumer.WithConsumerOrder(true))
	seen.expect(bodies(0, 60, every))
	last := map[int]int64{}
	for _, message := range seen.all() {
		if before, known := last[message.Queue.QueueId]; known {
			equal("queue offset", before+1, message.QueueOffset)
		}
		last[message.Queue.QueueId] = message.QueueOffset
	}
	return details{"queues": len(last)}
}

// A message fails each time: it is retried as often as the consumer allows, then becomes a dead letter of the group.
func retryDeadLetter(p *peer) details {
	client, seen := p.producer(), &log{}
	broker := sent(client.SendSync(background, p.message(0, "TagA"))).MessageQueue.BrokerName
	p.consume(all, func(ctx context.Context, message *primitive.MessageExt) consumer.ConsumeResult {
		seen.take(ctx, message)
		if concurrent, known := primitive.GetConcurrentlyCtx(ctx); known {
			concurrent.DelayLevelWhenNextConsume = 1
		}
		return consumer.ConsumeRetryLater
	}, consumer.WithMaxReconsumeTimes(2))
	until("three tries", func() bool { return len(seen.all()) >= 3 })
	for i, message := range seen.all() {
		equal("reconsume times", int32(i), message.ReconsumeTimes)
	}
	dead := &primitive.MessageQueue{Topic: "%DLQ%" + p.group, BrokerName: broker}
	reader, err := rocketmq.NewPullConsumer(
		consumer.WithGroupName(p.group+"_reader"), consumer.WithInstance(p.instance()), consumer.WithNsResolver(p.resolver()))
	must(err)
	must(reader.Subscribe(p.topic, all)) // a start needs the routes of subscribed topics
	must(reader.Start())
	p.closers = append(p.closers, reader.Shutdown)
	letters := []*primitive.MessageExt{}
	until("the dead letter", func() bool {
		result, err := reader.PullFrom(background, dead, 0, 7)
		if err == nil {
			letters = result.GetMessageExts()
		}
		return len(letters) > 0
	})
	equal("body", "message 0", string(letters[0].Body))
	equal("topic before", p.topic, letters[0].GetProperty("RETRY_TOPIC"))
	equal("tries", 3, len(seen.all()))
	return details{"tries": 3}
}

// The reply comes back through the broker to the client that sent the request.
func rpcReply(p *peer) details {
	replier, asker := p.producer(), p.producer(producer.WithGroupName(p.group+"_asker"))
	p.consume(all, func(_ context.Context, question *primitive.MessageExt) consumer.ConsumeResult {
		answer, err := consumer.CreateReplyMessage(question, nil)
		must(err)
		answer.Body = []byte("answer to " + string(question.Body)) // client 2.1.2 writes properties into a body that it gets
		if _, err = replier.SendSync(background, answer); err != nil {
			return consumer.ConsumeRetryLater
		}
		return consumer.ConsumeSuccess
	})
	p.queue(asker)
	time.Sleep(3 * time.Second) // the first heartbeat, without which the broker does not know the client to reply to
	for i := 0; i < 10; i++ {
		answer, err := asker.Request(background, 30*time.Second, p.message(i, "TagQ"))
		must(err)
		equal("answer", fmt.Sprintf("answer to message %d", i), string(answer.Body))
	}
	return details{"answers": 10}
}

// Each member of a broadcast group gets every message.
func groupBroadcast(p *peer) details {
	client := p.producer()
	members := []*log{{}, {}}
	for _, seen := range members {
		p.consume(all, seen.take, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	p.send(client, 0, 40)
	for _, seen := range members {
		seen.expect(bodies(0, 40, every))
	}
	return details{"members": len(members)}
}

// Delay levels, which the broker under test has set to 1 s, 2 s, 2 s.
func delayLevels(p *peer) details {
	client, seen := p.producer(), &log{}
	p.consume(all, seen.take)
	for level := 1; level <= 3; level++ {
		sent(client.SendSync(background, p.message(level, "TagA").WithDelayTimeLevel(level)))
	}
	seen.expect(bodies(1, 4, every))
	for _, message := range seen.all() {
		waited := message.StoreTimestamp - message.BornTimestamp
		level := int(message.Body[len("message ")] - '0')
		check(waited >= []int64{0, 950, 1950, 1950}[level], "level %d came after %d ms", level, waited)
	}
	return details{"levels": 3}
}

func filterSQL(p *peer) details {
	client, seen := p.producer(), &log{}
	send := func(first int) {
		for i := first; i < first+60; i++ {
			message := p.message(i, []string{"TagA", "TagB", "TagC"}[i%3])
			if i%5 != 0 {
				message.WithProperty("a", fmt.Sprint(i%7))
			}
			sent(client.SendSync(background, message))
		}
	}
	wanted := func(i int) bool { return i%3 != 2 && i%5 != 0 && i%7 <= 3 }
	expression := "(TAGS is not null and TAGS in ('TagA','TagB')) and (a is not null and a between 0 and 3)"
	send(0)
	p.consume(consumer.MessageSelector{Type: consumer.SQL92, Expression: expression}, seen.take)
	seen.expect(bodies(0, 60, wanted))
	send(60)
	seen.expect(bodies(0, 120, wanted))
	return details{"sent": 120, "consumed": len(seen.all())}
}

// Decides about half messages: at once for tags A and B, when the broker asks for C and D.
type decisions struct{ sync.Map }

func (d *decisions) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch message.GetTags() {
	case "TagA":
		return primitive.CommitMessageState
	case "TagB":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (d *decisions) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	d.Store(message.GetTags(), message.Topic)
	if message.GetTags() == "TagC" {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func transactionAll(p *peer) details {
	listener, seen := &decisions{}, &log{}
	client, err := rocketmq.NewTransactionProducer(listener,
		producer.WithGroupName(p.group+"_producer"), producer.WithInstanceName(p.instance()), producer.WithNsResolver(p.resolver()))
	must(err)
	must(client.Start())
	p.closers = append(p.closers, client.Shutdown)
	p.consume(all, seen.take)
	for i, tag := range []string{"TagA", "TagB", "TagC", "TagD"} {
		result, err := client.SendMessageInTransaction(background, p.message(i, tag))
		must(err)
		equal("send status", primitive.SendOK, result.Status)
	}
	until("both questions", func() bool {
		_, c := listener.Load("TagC")
		_, d := listener.Load("TagD")
		return c && d
	})
	seen.expect([]string{"message 0", "message 2"})
	return details{"committed": 2}
}
