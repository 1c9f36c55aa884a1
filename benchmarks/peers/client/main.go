// Command client puts one load on DelayCluster, PostgreSQL, Redis or RocketMQ, or on gRPC by itself, so that what is compared is the servers.
//
//	client SYSTEM -address HOST:PORT -mode store   callers that store a message and wait for the answer, again and again
//	client SYSTEM -address HOST:PORT -mode late    messages at a steady rate, consumed when due: how late are they
//	client rocketmq -address HOST:PORT -mode topic | count
//	client bare -address FILE -mode serve           the server of the system "bare", which prints its port
//
// store and late print one line of JSON once all is connected and warm, go on at a line on stdin, print the result as
// another line, and keep their connections until stdin ends: then the caller can read the server's processor time.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"
)

// message is stored until it is due. Its body begins with the number and the due, see bodies.
type message struct {
	dueMS int64
	body  []byte
}

// caller makes requests of one message. ask sends one, answer waits for the oldest that has no answer yet. A caller
// whose protocol knows no such thing waits in ask.
type caller interface {
	ask(message) error
	answer() error
}

// system is a server to which this process is connected.
type system interface {
	// callers returns so many, which share the connections; each has its own where the numbers are equal.
	callers(count, connections int) ([]caller, error)
	// consume hands the bodies of messages over as they come due, until the process ends or a call fails.
	consume(received func(bodies [][]byte)) error
	// settle waits until the server has heard that all that was received is done with.
	settle() error
}

type settings struct {
	address, mode        string
	connections, nCaller int
	window, queues       int
	bodyBytes, rate      int
	seconds, warmup      time.Duration
	delay                time.Duration
}

var systems = map[string]func(settings) (system, error){
	"delay":    newDelay,
	"bare":     newDelay,
	"postgres": newPostgres,
	"redis":    newRedis,
	"rocketmq": newRocketMQ,
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 || systems[args[0]] == nil {
		return errors.New("the first argument is the system: delay, postgres, redis or rocketmq")
	}
	var s settings
	flags := flag.NewFlagSet(args[0], flag.ExitOnError)
	flags.StringVar(&s.address, "address", "", "where the server listens; serve: the file that it writes")
	flags.StringVar(&s.mode, "mode", "store", "store or late; rocketmq: topic or count too; bare: serve too")
	flags.IntVar(&s.connections, "connections", 1, "connections that the callers share")
	flags.IntVar(&s.nCaller, "callers", 1, "callers, one request at a time each")
	flags.IntVar(&s.window, "window", 0, "delay: requests that a stream keeps unanswered; 0: unary calls")
	flags.IntVar(&s.queues, "queues", 8, "queues of the topic")
	flags.IntVar(&s.bodyBytes, "body", 256, "bytes of a body, at least 24")
	flags.IntVar(&s.rate, "rate", 1000, "late: messages a second")
	flags.DurationVar(&s.seconds, "seconds", 10*time.Second, "how long is measured")
	flags.DurationVar(&s.warmup, "warmup", time.Second, "the same load before that")
	flags.DurationVar(&s.delay, "delay", 30*time.Minute, "store: from now until a message is due")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if s.bodyBytes < headBytes {
		return fmt.Errorf("-body: at least %d bytes", headBytes)
	}
	if s.mode == "serve" {
		return serveBare(s)
	}
	server, err := systems[args[0]](s)
	if err != nil {
		return err
	}
	if s.mode == "topic" || s.mode == "count" {
		return administer(server, s)
	}
	callers, err := server.callers(s.nCaller, s.connections)
	if err != nil {
		return err
	}
	steps := bufio.NewReader(os.Stdin)
	switch s.mode {
	case "store":
		err = store(s, callers, steps)
	case "late":
		err = late(s, server, callers, steps)
	default:
		err = fmt.Errorf("-mode %s: not known", s.mode)
	}
	if err != nil {
		return err
	}
	_, _ = steps.ReadString('\n') // until stdin ends
	return nil
}

func administer(server system, s settings) error {
	broker, ok := server.(*rocketMQ)
	if !ok {
		return fmt.Errorf("-mode %s is for rocketmq", s.mode)
	}
	if s.mode == "topic" {
		return broker.createTopic()
	}
	stored, err := broker.stored()
	if err != nil {
		return err
	}
	return tell(map[string]int64{"stored": stored})
}

func tell(what any) error {
	return json.NewEncoder(os.Stdout).Encode(what)
}

// ready tells that the warm-up is over, and how many messages it stored, and waits for the word to go on.
func ready(stored int, steps *bufio.Reader) error {
	if err := tell(map[string]int{"stored": stored}); err != nil {
		return err
	}
	if _, err := steps.ReadString('\n'); err != nil {
		return fmt.Errorf("no word to go on: %w", err)
	}
	return nil
}
