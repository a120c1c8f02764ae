package main

import (
	"os"
	"regexp"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func overTLS(p *peer) saw {
	rocketmq.EnableSsl = true
	defer func() { rocketmq.EnableSsl = false }()
	producer, consumer := p.producer(), p.consumer()
	send(producer, p.message("received"))
	got := bodies(received(consumer, 1, patience))
	l := &listener{}
	p.push(l)
	send(producer, p.message("pushed"))
	return saw{"received": got, "pushed": bodies(l.await(1, 0))}
}

// The runner tells of an account that may do everything; that of guest has the same secret and may do nothing.
func accounts(p *peer) saw {
	name, secret := os.Getenv("ACCOUNT_NAME"), os.Getenv("ACCOUNT_SECRET")
	p.account = credentials.SessionCredentials{AccessKey: name, AccessSecret: secret}
	send(p.producer(), p.message("body"))
	found := saw{"right": bodies(received(p.consumer(), 1, patience))}
	for key, account := range map[string]credentials.SessionCredentials{
		"wrong_secret": {AccessKey: name, AccessSecret: "not-" + secret},
		"unknown":      {AccessKey: "nobody", AccessSecret: secret},
		"guest":        {AccessKey: "guest", AccessSecret: secret},
		"none":         {},
	} {
		p.account = account
		found[key] = saw{"send": refusal(trySend(p)), "receive": refusal(tryReceive(p))}
	}
	return found
}

func trySend(p *peer) error {
	client, err := rocketmq.NewProducer(p.config(), rocketmq.WithTopics(p.topic))
	if err == nil {
		err = client.Start()
	}
	if err == nil {
		p.closers = append(p.closers, client.GracefulStop)
		_, err = client.Send(background, p.message("body"))
	}
	return err
}

func tryReceive(p *peer) error {
	client, err := p.startConsumer(p.topic, rocketmq.SUB_ALL)
	if err == nil {
		_, err = client.Receive(background, 1, invisible)
	}
	return err
}

var codeInText = regexp.MustCompile(`CODE: (\w+)`)

// The outcome of a call; a client that does not start tells the code in its text only.
func refusal(err error) saw {
	found := outcome(err)
	if err != nil {
		if code := codeInText.FindStringSubmatch(err.Error()); code != nil {
			found["code"] = code[1]
		}
	}
	return found
}
