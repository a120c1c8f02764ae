// Scenarios on the official Go client. Arguments: host:port of the server, prefix of topics and groups, scenario names.
// Prints one JSON line for each: name, saw. The runner makes the topics and groups, see scenarios.py.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

type saw = map[string]any

func main() {
	rocketmq.EnableSsl = false // a variable of the whole program
	endpoints, prefix := os.Args[1], os.Args[2]
	var closings sync.WaitGroup // a push consumer ends after its last poll, which may take 20 s
	for _, name := range os.Args[3:] {
		p := &peer{endpoints: endpoints, topic: "T_" + prefix + name, group: "G_" + prefix + name}
		text, _ := json.Marshal(saw{"name": name, "saw": run(name, p)})
		fmt.Println(string(text))
		closings.Add(1)
		go func() {
			defer closings.Done()
			p.close()
		}()
	}
	closings.Wait()
}

// Runs one scenario; one that panics is an outcome, too.
func run(name string, p *peer) (found saw) {
	defer func() {
		if failure := recover(); failure != nil {
			if err, ok := failure.(error); ok {
				found = failed(err)
				found["broken"] = found["error"]
				delete(found, "error")
			} else {
				found = saw{"broken": "panic", "text": fmt.Sprint(failure)}
			}
		}
	}()
	return scenarios[name](p)
}
