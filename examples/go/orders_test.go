// A Go application whose tests run against a broker that `rucola up` starts: go test
package shop

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

var namesrv []string

// TestMain starts one broker for all tests; it ends with them, and its store is gone.
func TestMain(m *testing.M) {
	broker := exec.Command("rucola", "up", "--ephemeral", "--json",
		"--namesrv-port", "0", "--broker-port", "0", "--http-port", "0")
	broker.Stderr = os.Stderr
	output, err := broker.StdoutPipe()
	if err == nil {
		err = broker.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "rucola did not start:", err)
		os.Exit(1)
	}
	var ready struct{ Namesrv string }
	// The line comes when both are ready.
	line, _ := bufio.NewReader(output).ReadBytes('\n')
	code := 1
	if err := json.Unmarshal(line, &ready); err != nil {
		fmt.Fprintln(os.Stderr, "rucola did not start:", err)
	} else {
		namesrv = []string{ready.Namesrv}
		code = m.Run()
	}
	_ = broker.Process.Signal(os.Interrupt)
	_ = broker.Wait()
	os.Exit(code)
}

func TestAnOrderReachesTheTill(t *testing.T) {
	counter, err := rocketmq.NewProducer(producer.WithNameServer(namesrv), producer.WithGroupName("shop-counter"))
	if err != nil {
		t.Fatal(err)
	}
	if err := counter.Start(); err != nil {
		t.Fatal(err)
	}
	defer counter.Shutdown()
	order := primitive.NewMessage("orders", []byte("espresso"))
	if _, err := counter.SendSync(context.Background(), order); err != nil {
		t.Fatal(err)
	}

	till, err := rocketmq.NewPushConsumer(consumer.WithNameServer(namesrv), consumer.WithGroupName("shop-till"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		t.Fatal(err)
	}
	charged := make(chan string, 1)
	take := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		charged <- string(messages[0].Body)
		return consumer.ConsumeSuccess, nil
	}
	if err := till.Subscribe("orders", consumer.MessageSelector{}, take); err != nil {
		t.Fatal(err)
	}
	if err := till.Start(); err != nil {
		t.Fatal(err)
	}
	defer till.Shutdown()
	select {
	case item := <-charged:
		if item != "espresso" {
			t.Fatalf("charged for %s", item)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the till heard of no order")
	}
}
