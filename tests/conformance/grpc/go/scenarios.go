package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

var scenarios = map[string]func(*peer) saw{
	"send_normal": sendNormal, "send_fifo": sendFifo, "send_delay": sendDelay, "transaction": transaction,
	"recall":     func(*peer) saw { return saw{"supported": false} },
	"priority":   func(*peer) saw { return saw{"supported": false} },
	"redelivery": redelivery, "change_invisible": changeInvisible,
	"push": push, "push_share": pushShare, "push_fifo": pushFifo,
	"push_retry": func(p *peer) saw {
		return failing(p, func(body string, times int) bool { return body == "bad" && times < 3 }, 4, 0)
	},
	// The third delivery goes to the dead letters; the runner counts them.
	"push_dead": func(p *peer) saw {
		return failing(p, func(body string, _ int) bool { return body == "bad" }, 3, 4)
	},
	"filter_tag": func(p *peer) saw { return filtered(p, rocketmq.NewFilterExpression("TagA || TagC"), 4) },
	"filter_sql": func(p *peer) saw {
		return filtered(p, rocketmq.NewFilterExpressionWithType("number > 1 AND colour = 'red'", rocketmq.SQL92), 2)
	},
	"unknown_topic": unknownTopic, "wrong_type": wrongType, "too_large": tooLarge, "restart": restart,
	"tls": overTLS, "accounts": accounts,
}

func sendNormal(p *peer) saw {
	producer, consumer := p.producer(), p.consumer()
	plain := p.tagged("plain", "TagA")
	plain.SetKeys("key1", "key2")
	plain.AddProperty("colour", "green")
	plain.AddProperty("größe", "très grand 大")
	sent := map[string]bool{}
	for _, message := range []*rocketmq.Message{plain, p.message("bare"), p.message(strings.Repeat("x", 3_000_000))} {
		sent[send(producer, message).MessageID] = true
	}
	later := make(chan string, 1)
	producer.SendAsync(background, p.tagged("later", "TagB"), func(_ context.Context, receipts []*rocketmq.SendReceipt, err error) {
		must(err)
		later <- receipts[0].MessageID
	})
	sent[<-later] = true
	messages := received(consumer, 4, patience)
	same := len(messages) == len(sent)
	for _, message := range messages {
		same = same && sent[message.GetMessageId()]
	}
	return saw{"ids": same, "messages": allShown(byBody(messages))}
}

func sendFifo(p *peer) saw {
	producer := p.producer()
	for i := 0; i < 6; i++ {
		for _, group := range []string{"one", "two"} {
			send(producer, p.grouped(fmt.Sprintf("%s %d", group, i), group))
		}
	}
	messages := received(p.consumer(), 12, patience)
	return saw{"orders": orders(messages), "first": shown(byBody(messages)[0])}
}

func sendDelay(p *peer) saw {
	producer, consumer := p.producer(), p.consumer()
	due := time.Now().Add(3 * time.Second).Truncate(time.Millisecond)
	send(producer, p.delayed("due", due))
	send(producer, p.delayed("past", due.Add(-time.Minute)))
	messages, early, exact := []*rocketmq.MessageView{}, 0, []bool{}
	for deadline := time.Now().Add(patience); len(messages) < 2 && time.Now().Before(deadline); {
		for _, message := range received(consumer, 1, poll) {
			if string(message.GetBody()) == "due" {
				if time.Now().Before(due.Add(-500 * time.Millisecond)) {
					early++
				}
				exact = append(exact, message.GetDeliveryTimestamp() != nil && message.GetDeliveryTimestamp().Equal(due))
			}
			messages = append(messages, message)
		}
	}
	return saw{"early": early, "exact": exact, "messages": allShown(messages)}
}

func transaction(p *peer) saw {
	var lock sync.Mutex
	asked := map[string]bool{}
	count := func() int {
		lock.Lock()
		defer lock.Unlock()
		return len(asked)
	}
	producer := p.producer(rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{
		Check: func(message *rocketmq.MessageView) rocketmq.TransactionResolution {
			lock.Lock()
			defer lock.Unlock()
			asked[string(message.GetBody())] = true
			if strings.HasPrefix(string(message.GetBody()), "commit") {
				return rocketmq.COMMIT
			}
			return rocketmq.ROLLBACK
		},
	}))
	consumer := p.consumer()
	ends := []saw{}
	for _, body := range []string{"commit now", "roll back now", "commit later", "roll back later"} {
		begun := producer.BeginTransaction()
		_, err := producer.SendWithTransaction(background, p.tagged(body, "TagA"), begun)
		must(err)
		switch body {
		case "commit now":
			ends = append(ends, outcome(begun.Commit()))
		case "roll back now":
			ends = append(ends, outcome(begun.RollBack()))
		}
	}
	messages := received(consumer, 2, patience)
	until(func() bool { return count() >= 2 })
	messages = append(messages, received(consumer, 1, poll)...)
	names := []string{}
	for body := range asked {
		names = append(names, body)
	}
	sort.Strings(names)
	return saw{"ends": ends, "asked": names, "messages": allShown(byBody(messages))}
}

func redelivery(p *peer) saw {
	producer, consumer := p.producer(), p.consumer()
	for _, body := range []string{"kept", "done"} {
		send(producer, p.tagged(body, "TagA"))
	}
	first := receive(consumer, 2, patience)
	var kept *rocketmq.MessageView
	for _, message := range first {
		if string(message.GetBody()) == "done" {
			must(consumer.Ack(background, message))
		} else {
			kept = message
		}
	}
	began := time.Now()
	again := receive(consumer, 1, patience)
	early := time.Since(began) < invisible-3*time.Second
	late := outcome(consumer.Ack(background, kept))
	for _, message := range again {
		must(consumer.Ack(background, message))
	}
	return saw{"first": attempts(byBody(first)), "again": attempts(again), "early": early, "ack_of_expired_handle": late}
}

func changeInvisible(p *peer) saw {
	producer, consumer := p.producer(), p.consumer()
	send(producer, p.message("changed"))
	found := [][]any{}
	for i := 0; i < 2; i++ {
		for _, message := range receive(consumer, 1, patience) {
			must(consumer.ChangeInvisibleDuration(message, time.Second))
			found = append(found, attempts([]*rocketmq.MessageView{message})...)
		}
	}
	last := received(consumer, 1, patience)
	found = append(found, attempts(last)...)
	again := outcome(consumer.Ack(background, last[0]))
	return saw{"attempts": found, "ack_again": again, "left": len(receive(consumer, 1, 6*time.Second))}
}

func push(p *peer) saw {
	producer, l := p.producer(), &listener{}
	p.push(l)
	for i := 0; i < 20; i++ {
		send(producer, p.tagged(fmt.Sprintf("message %02d", i), "TagA"))
	}
	found := byBody(l.await(20, time.Second))
	return saw{"messages": attempts(found), "first": shown(found[0])}
}

func pushShare(p *peer) saw {
	producer, one, two := p.producer(), &listener{}, &listener{}
	p.push(one)
	p.push(two)
	for i := 0; i < 40; i++ {
		send(producer, p.message(fmt.Sprintf("message %d", i)))
	}
	all := func() []*rocketmq.MessageView { return append(one.without(""), two.without("")...) }
	until(func() bool { return len(all()) >= 40 })
	time.Sleep(time.Second)
	distinct := map[string]bool{}
	for _, body := range bodies(all()) {
		distinct[body] = true
	}
	return saw{"distinct": len(distinct), "deliveries": len(all())}
}

// Consumes with a listener that fails. The official server may leave a waiting consumer asleep when a message becomes
// visible again; further messages wake it.
func failing(p *peer, fails func(string, int) bool, wanted, afterwards int) saw {
	producer, l := p.producer(), &listener{fails: fails}
	p.push(l)
	for _, body := range []string{"good", "bad"} {
		send(producer, p.message(body))
	}
	for i := 0; i < 20 && len(l.without("more")) < wanted; i++ {
		time.Sleep(nudge)
		send(producer, p.message("more"))
	}
	for i := 0; i < afterwards; i++ {
		time.Sleep(nudge)
		send(producer, p.message("more"))
	}
	time.Sleep(time.Second)
	return saw{"messages": attempts(byBody(l.without("more")))}
}

func pushFifo(p *peer) saw {
	producer, l := p.producer(), &listener{fails: func(body string, _ int) bool { return body == "one 1" }}
	for i := 0; i < 3; i++ {
		for _, group := range []string{"one", "two"} {
			send(producer, p.grouped(fmt.Sprintf("%s %d", group, i), group))
		}
	}
	p.push(l)
	return saw{"orders": orders(l.await(7, 2*time.Second))}
}

func filtered(p *peer, expression *rocketmq.FilterExpression, wanted int) saw {
	consumer, err := p.startConsumer(p.topic, expression)
	must(err)
	producer := p.producer()
	receive(consumer, 1, time.Second) // makes the subscription known before the messages are sent
	for i := 0; i < 6; i++ {
		message := p.tagged(fmt.Sprintf("message %d", i), "Tag"+"ABC"[i%3:i%3+1])
		message.AddProperty("number", fmt.Sprint(i))
		message.AddProperty("colour", []string{"blue", "red"}[i%2])
		send(producer, message)
	}
	found := bodies(byBody(received(consumer, wanted, patience)))
	return saw{"messages": found, "more": bodies(received(consumer, 1, 4*time.Second))}
}

func unknownTopic(p *peer) saw {
	missing, producer := p.topic+"_missing", p.producer()
	_, sent := producer.Send(background, &rocketmq.Message{Topic: missing, Body: []byte("lost")})
	consumer, got := p.startConsumer(missing, rocketmq.SUB_ALL)
	if got == nil {
		_, got = consumer.Receive(background, 1, invisible)
	}
	return saw{"send": outcome(sent), "receive": outcome(got)}
}

func wrongType(p *peer) saw {
	producer := p.producer()
	try := func(message *rocketmq.Message) saw {
		_, err := producer.Send(background, message)
		return outcome(err)
	}
	return saw{
		"fifo":   try(p.grouped("a", "one")),
		"delay":  try(p.delayed("b", time.Now().Add(time.Second))),
		"normal": try(p.message("c")),
	}
}

func tooLarge(p *peer) saw {
	producer := p.producer()
	many, reserved := p.message("many"), p.message("reserved")
	for i := 0; i < 129; i++ {
		many.AddProperty(fmt.Sprintf("key%d", i), "value")
	}
	reserved.AddProperty("UNIQ_KEY", "value")
	try := func(message *rocketmq.Message) saw {
		_, err := producer.Send(background, message)
		return outcome(err)
	}
	return saw{"body": try(p.message(strings.Repeat("x", 4*1024*1024+1))), "properties": try(many), "reserved": try(reserved)}
}

func restart(p *peer) saw {
	producer, sent := p.producer(), map[string]bool{}
	trySend := func(first, last int) {
		for i := first; i < last; i++ {
			body := fmt.Sprintf("message %02d", i)
			for deadline := time.Now().Add(restartPatience); ; time.Sleep(500 * time.Millisecond) {
				if _, err := producer.Send(background, p.message(body)); err == nil {
					sent[body] = true
					break
				}
				if time.Now().After(deadline) {
					return
				}
			}
		}
	}
	trySend(0, 20)
	consumer, found, done := p.consumer(), map[string]bool{}, make(chan struct{})
	for _, body := range bodies(received(consumer, 5, patience)) {
		found[body] = true
	}
	fmt.Println(`{"restart": true}`)
	go func() {
		trySend(20, 40)
		close(done)
	}()
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	<-done
	missing := func(wanted, present map[string]bool) []string {
		names := []string{}
		for name := range wanted {
			if !present[name] {
				names = append(names, name)
			}
		}
		sort.Strings(names)
		return names
	}
	for deadline := time.Now().Add(restartPatience); len(missing(sent, found)) > 0 && time.Now().Before(deadline); {
		for _, message := range receive(consumer, 1, 10*time.Second) {
			found[string(message.GetBody())] = true
			_ = consumer.Ack(background, message)
		}
	}
	lost := missing(sent, found)
	return saw{"sent": len(sent), "lost": len(lost) > 0, "unknown": missing(found, sent), "text": fmt.Sprint("lost: ", lost)}
}
