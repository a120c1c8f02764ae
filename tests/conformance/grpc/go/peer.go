package main

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"sort"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	patience        = 30 * time.Second
	restartPatience = 150 * time.Second // a gRPC channel may wait 120 s before it connects again
	invisible       = 10 * time.Second  // the shortest time that the official server accepts
	poll            = 5 * time.Second
	nudge           = 3 * time.Second
)

var background = context.Background()

// A peer is what a scenario works with: its topic and group, clients that are stopped at the end.
type peer struct {
	endpoints, topic, group string
	account                 credentials.SessionCredentials
	closers                 []func() error
}

func (p *peer) close() {
	for i := len(p.closers) - 1; i >= 0; i-- {
		_ = p.closers[i]() // a failing shutdown is no failing scenario
	}
}

func (p *peer) config() *rocketmq.Config {
	account := p.account
	return &rocketmq.Config{Endpoint: p.endpoints, ConsumerGroup: p.group, Credentials: &account}
}

func (p *peer) producer(options ...rocketmq.ProducerOption) rocketmq.Producer {
	options = append(options, rocketmq.WithTopics(p.topic))
	client, err := rocketmq.NewProducer(p.config(), options...)
	must(err)
	must(client.Start())
	p.closers = append(p.closers, client.GracefulStop)
	return client
}

func (p *peer) consumer() rocketmq.SimpleConsumer {
	client, err := p.startConsumer(p.topic, rocketmq.SUB_ALL)
	must(err)
	return client
}

func (p *peer) startConsumer(topic string, expression *rocketmq.FilterExpression) (rocketmq.SimpleConsumer, error) {
	client, err := rocketmq.NewSimpleConsumer(p.config(), rocketmq.WithSimpleAwaitDuration(poll),
		rocketmq.WithSimpleSubscriptionExpressions(map[string]*rocketmq.FilterExpression{topic: expression}))
	if err == nil {
		err = client.Start()
	}
	if err == nil {
		p.closers = append(p.closers, client.GracefulStop)
	}
	return client, err
}

func (p *peer) push(l *listener) {
	client, err := rocketmq.NewPushConsumer(p.config(), rocketmq.WithPushAwaitDuration(poll),
		rocketmq.WithPushSubscriptionExpressions(map[string]*rocketmq.FilterExpression{p.topic: rocketmq.SUB_ALL}),
		rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{Consume: l.consume}))
	must(err)
	must(client.Start())
	p.closers = append(p.closers, client.GracefulStop)
}

func (p *peer) message(body string) *rocketmq.Message {
	return &rocketmq.Message{Topic: p.topic, Body: []byte(body)}
}

func (p *peer) tagged(body, tag string) *rocketmq.Message {
	message := p.message(body)
	message.SetTag(tag)
	return message
}

func (p *peer) grouped(body, group string) *rocketmq.Message {
	message := p.message(body)
	message.SetMessageGroup(group)
	return message
}

func (p *peer) delayed(body string, due time.Time) *rocketmq.Message {
	message := p.message(body)
	message.SetDelayTimestamp(due)
	return message
}

func send(client rocketmq.Producer, message *rocketmq.Message) *rocketmq.SendReceipt {
	receipts, err := client.Send(background, message)
	must(err)
	return receipts[0]
}

// Receives until there are as many messages or the time is over.
func receive(client rocketmq.SimpleConsumer, count int, wait time.Duration) []*rocketmq.MessageView {
	return receiveEach(client, count, wait, func(*rocketmq.MessageView) {})
}

// Receives and acknowledges messages.
func received(client rocketmq.SimpleConsumer, count int, wait time.Duration) []*rocketmq.MessageView {
	return receiveEach(client, count, wait, func(message *rocketmq.MessageView) { must(client.Ack(background, message)) })
}

func receiveEach(
	client rocketmq.SimpleConsumer, count int, wait time.Duration, step func(*rocketmq.MessageView),
) []*rocketmq.MessageView {
	found := []*rocketmq.MessageView{}
	for deadline := time.Now().Add(wait); len(found) < count && time.Now().Before(deadline); {
		messages, err := client.Receive(background, 16, invisible)
		if err != nil { // nothing came, or the server is away
			time.Sleep(100 * time.Millisecond)
			continue
		}
		for _, message := range messages {
			step(message)
		}
		found = append(found, messages...)
	}
	return found
}

// A listener records messages; fails says which deliveries are not consumed.
type listener struct {
	sync.Mutex
	seen  []*rocketmq.MessageView
	fails func(body string, times int) bool
}

func (l *listener) consume(message *rocketmq.MessageView) rocketmq.ConsumerResult {
	l.Lock()
	defer l.Unlock()
	l.seen = append(l.seen, message)
	times := 0
	for _, other := range l.seen {
		if string(other.GetBody()) == string(message.GetBody()) {
			times++
		}
	}
	if l.fails != nil && l.fails(string(message.GetBody()), times) {
		return rocketmq.FAILURE
	}
	return rocketmq.SUCCESS
}

func (l *listener) without(body string) []*rocketmq.MessageView {
	l.Lock()
	defer l.Unlock()
	return filter(l.seen, func(message *rocketmq.MessageView) bool { return string(message.GetBody()) != body })
}

func (l *listener) await(count int, afterwards time.Duration) []*rocketmq.MessageView {
	until(func() bool { return len(l.without("")) >= count })
	time.Sleep(afterwards)
	return l.without("")
}

func until(holds func() bool) {
	for deadline := time.Now().Add(patience); !holds() && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
	}
}

func filter(messages []*rocketmq.MessageView, wanted func(*rocketmq.MessageView) bool) []*rocketmq.MessageView {
	found := []*rocketmq.MessageView{}
	for _, message := range messages {
		if wanted(message) {
			found = append(found, message)
		}
	}
	return found
}

func outcome(err error) saw {
	if err != nil {
		return failed(err)
	}
	return saw{"ok": true}
}

func failed(err error) saw {
	found := saw{"error": "error", "code": nil, "text": err.Error()}
	var status *rocketmq.ErrRpcStatus
	if errors.As(err, &status) {
		found["error"], found["code"] = "ErrRpcStatus", status.GetCode()
	}
	return found
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func bodies(messages []*rocketmq.MessageView) []string {
	found := []string{}
	for _, message := range messages {
		found = append(found, string(message.GetBody()))
	}
	return found
}

func attempts(messages []*rocketmq.MessageView) [][]any {
	found := [][]any{}
	for _, message := range messages {
		found = append(found, []any{string(message.GetBody()), message.GetDeliveryAttempt()})
	}
	return found
}

func byBody(messages []*rocketmq.MessageView) []*rocketmq.MessageView {
	found := append([]*rocketmq.MessageView{}, messages...)
	sort.SliceStable(found, func(i, j int) bool {
		if string(found[i].GetBody()) != string(found[j].GetBody()) {
			return string(found[i].GetBody()) < string(found[j].GetBody())
		}
		return found[i].GetDeliveryAttempt() < found[j].GetDeliveryAttempt()
	})
	return found
}

// What a consumer sees of a message, except ids and times.
func shown(message *rocketmq.MessageView) saw {
	var body any = string(message.GetBody())
	if len(message.GetBody()) >= 100 {
		sum := md5.Sum(message.GetBody())
		body = []any{len(message.GetBody()), hex.EncodeToString(sum[:])}
	}
	keys := append([]string{}, message.GetKeys()...)
	sort.Strings(keys)
	properties := message.GetProperties()
	if properties == nil {
		properties = map[string]string{}
	}
	return saw{
		"body": body, "tag": message.GetTag(), "keys": keys, "properties": properties,
		"group": message.GetMessageGroup(), "delivery_timestamp": message.GetDeliveryTimestamp() != nil,
		"attempt": message.GetDeliveryAttempt(), "born_host": *message.GetBornHost() != "",
	}
}

func allShown(messages []*rocketmq.MessageView) []saw {
	found := []saw{}
	for _, message := range messages {
		found = append(found, shown(message))
	}
	return found
}

func orders(messages []*rocketmq.MessageView) saw {
	found := saw{}
	for _, group := range []string{"one", "two"} {
		found[group] = bodies(filter(messages, func(message *rocketmq.MessageView) bool {
			return message.GetMessageGroup() != nil && *message.GetMessageGroup() == group
		}))
	}
	return found
}
