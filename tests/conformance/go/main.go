// Scenarios on the official Go client. Arguments: name server address, prefix of topics and groups, scenario names
// (none: all); or: names. Prints one JSON line for each: name, ok, details. The runner makes the topics, see run.py.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type details = map[string]any

// A scenario returns what it saw, and panics when something is not as it must be.
type scenario struct {
	name string
	run  func(*peer) details
}

func main() {
	rlog.SetLogLevel("fatal")
	if os.Args[1] == "names" {
		for _, one := range scenarios {
			fmt.Println(one.name)
		}
		return
	}
	namesrv, prefix, names := os.Args[1], os.Args[2], os.Args[3:]
	failed := false
	for _, one := range scenarios {
		if len(names) == 0 || slices.Contains(names, one.name) {
			failed = !run(one, &peer{namesrv: namesrv, topic: "T_" + prefix + one.name, group: "G_" + prefix + one.name}) || failed
		}
	}
	if failed {
		os.Exit(1)
	}
}

func run(one scenario, p *peer) (ok bool) {
	line := map[string]any{"name": one.name}
	defer func() {
		if failure := recover(); failure != nil {
			line["details"] = details{"error": fmt.Sprint(failure)}
		}
		_, failed := line["details"].(details)["error"]
		ok = !failed
		line["ok"] = ok
		text, _ := json.Marshal(line)
		fmt.Println(string(text))
		p.close()
	}()
	line["details"] = one.run(p)
	return
}
