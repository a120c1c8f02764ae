// Scenarios on the official Go client. Arguments: host:port of the server, prefix of topics and groups, scenario names.
// Prints one JSON line for each: name, saw. The runner makes the topics and groups, see scenarios.py.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

type saw = map[string]any

func main() {
	rocketmq.EnableSsl = false // a variable of the whole program
	endpoints, prefix := os.Args[1], os.Args[2]
	for _, name := range os.Args[3:] {
		text, _ := json.Marshal(saw{"name": name, "saw": run(name, endpoints, prefix)})
		fmt.Println(string(text))
	}
}

// Runs one scenario; one that panics is an outcome, too.
func run(name, endpoints, prefix string) (found saw) {
	p := &peer{endpoints: endpoints, topic: "T_" + prefix + name, group: "G_" + prefix + name}
	defer p.close()
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
