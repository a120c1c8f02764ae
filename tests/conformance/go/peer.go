package main

import (
	"context"
	"fmt"
	"sort"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Longer than the 30 s after which the client asks for the route of a retry topic, and the 20 s between two rebalances.
const patience = 75 * time.Second

var background = context.Background()

// A peer is what a scenario works with: its own topic and group, clients that are shut down at the end.
// Checks panic; the runner reports it.
type peer struct {
	namesrv, topic, group string
	instances             int
	closers               []func() error
}

func (p *peer) close() {
	for i := len(p.closers) - 1; i >= 0; i-- {
		_ = p.closers[i]() // a failing shutdown is no failing scenario
	}
}

// Clients of one process with one instance name would share a connection and an identity.
func (p *peer) instance() string {
	p.instances++
	return fmt.Sprintf("%s_%d", p.group, p.instances)
}

func (p *peer) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{p.namesrv})
}

func (p *peer) producer(options ...producer.Option) rocketmq.Producer {
	options = append([]producer.Option{
		producer.WithGroupName(p.group + "_producer"), producer.WithInstanceName(p.instance()), producer.WithNsResolver(p.resolver()),
	}, options...)
	client, err := rocketmq.NewProducer(options...)
	must(err)
	must(client.Start())
	p.closers = append(p.closers, client.Shutdown)
	return client
}

// Starts a push consumer of all messages that the selector accepts, except the runner's, which created the topic.
func (p *peer) consume(selector consumer.MessageSelector, take func(context.Context, *primitive.MessageExt) consumer.ConsumeResult, options ...consumer.Option) {
	options = append([]consumer.Option{
		consumer.WithGroupName(p.group), consumer.WithInstance(p.instance()), consumer.WithNsResolver(p.resolver()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, options...)
	client, err := rocketmq.NewPushConsumer(options...)
	must(err)
	must(client.Subscribe(p.topic, selector, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			if message.GetTags() == "Setup" {
				continue
			}
			if result := take(ctx, message); result != consumer.ConsumeSuccess {
				return result, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(client.Start())
	p.closers = append(p.closers, client.Shutdown)
}

func (p *peer) message(i int, tag string) *primitive.Message {
	message := primitive.NewMessage(p.topic, []byte(fmt.Sprintf("message %d", i)))
	message.WithTag(tag)
	message.WithKeys([]string{fmt.Sprintf("key%d", i)})
	return message
}

// Sends messages first..last-1, tags A and B in turn.
func (p *peer) send(client rocketmq.Producer, first, last int) {
	for i := first; i < last; i++ {
		sent(client.SendSync(background, p.message(i, tagOf(i))))
	}
}

// Returns a queue of the topic, as the response to a send names it.
func (p *peer) queue(client rocketmq.Producer) *primitive.MessageQueue {
	return sent(client.SendSync(background, p.message(0, "Setup"))).MessageQueue
}

func tagOf(i int) string {
	return []string{"TagA", "TagB"}[i%2]
}

func sent(result *primitive.SendResult, err error) *primitive.SendResult {
	must(err)
	equal("send status", primitive.SendOK, result.Status)
	check(len(result.MsgID) >= 32, "message id %q", result.MsgID)
	check(len(result.OffsetMsgID) >= 32, "offset message id %q", result.OffsetMsgID)
	return result
}

// Returns the messages that arrived, in order of arrival.
type log struct {
	sync.Mutex
	messages []*primitive.MessageExt
}

func (l *log) take(_ context.Context, message *primitive.MessageExt) consumer.ConsumeResult {
	l.Lock()
	defer l.Unlock()
	l.messages = append(l.messages, message)
	return consumer.ConsumeSuccess
}

func (l *log) all() []*primitive.MessageExt {
	l.Lock()
	defer l.Unlock()
	return append([]*primitive.MessageExt(nil), l.messages...)
}

func (l *log) bodies() []string {
	bodies := []string{}
	for _, message := range l.all() {
		bodies = append(bodies, string(message.Body))
	}
	sort.Strings(bodies)
	return bodies
}

// Waits for the messages, then a little longer for one too many; none comes twice.
func (l *log) expect(wanted []string) {
	until(fmt.Sprintf("%d messages", len(wanted)), func() bool { return len(l.all()) >= len(wanted) })
	time.Sleep(500 * time.Millisecond)
	sort.Strings(wanted)
	equal("bodies", fmt.Sprint(wanted), fmt.Sprint(l.bodies()))
}

func bodies(first, last int, wanted func(i int) bool) []string {
	chosen := []string{}
	for i := first; i < last; i++ {
		if wanted(i) {
			chosen = append(chosen, fmt.Sprintf("message %d", i))
		}
	}
	return chosen
}

func every(int) bool { return true }

func until(what string, holds func() bool) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if holds() {
			return
		}
	}
	panic("waited in vain for " + what)
}

func must(err error) {
	if err != nil {
		panic(err.Error())
	}
}

func check(holds bool, format string, values ...any) {
	if !holds {
		panic(fmt.Sprintf(format, values...))
	}
}

func equal(what string, expected, got any) {
	check(expected == got, "%s: expected %v, got %v", what, expected, got)
}
