package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	dueFrom, dueTo = 1000, 3000 // ms from sending to due
	grace          = 10 * time.Second
)

type lateness struct {
	Requests  int     `json:"requests"`
	Seconds   float64 `json:"seconds"` // of sending
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	Max       float64 `json:"max_ms"`
	Early     int     `json:"early"`
	Missing   int     `json:"missing"`
	Twice     int     `json:"twice"`
	ClientCPU float64 `json:"client_cpu_s"`
}

// deliveries is what the consumer got, by the messages' numbers.
type deliveries struct {
	lock   sync.Mutex
	made   *bodies
	times  []uint8
	lateMS []float64 // of those from the number `from` on
	from   uint64
	early  int
	got    int
}

// received judges all bodies that came with one answer: the code has them now.
func (d *deliveries) received(all [][]byte) {
	now := time.Now()
	d.lock.Lock()
	defer d.lock.Unlock()
	for _, body := range all {
		number, dueMS, ours := d.made.read(body)
		if !ours {
			continue
		}
		for uint64(len(d.times)) <= number {
			d.times = append(d.times, 0)
		}
		d.times[number]++
		if d.times[number] > 1 {
			continue
		}
		d.got++
		late := ms(now.Sub(time.UnixMilli(dueMS)))
		if late < 0 {
			d.early++
		}
		if number >= d.from {
			d.lateMS = append(d.lateMS, late)
		}
	}
}

func (d *deliveries) count() int {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.got
}

func (d *deliveries) twice() (count int) {
	for _, times := range d.times {
		if times > 1 {
			count++
		}
	}
	return count
}

// late sends at a steady rate while a consumer receives. The messages of the warm-up are counted, but how late they
// are is not.
func late(s settings, server system, callers []caller, steps *bufio.Reader) error {
	warm, measured := int(s.warmup.Seconds()*float64(s.rate)), int(s.seconds.Seconds()*float64(s.rate))
	got := &deliveries{made: newBodies(s.bodyBytes), from: uint64(warm)}
	ended := make(chan error, 1)
	go func() { ended <- server.consume(got.received) }()
	if err := ready(0, steps); err != nil {
		return err
	}
	began, cpu := time.Now(), cpuSeconds()
	if err := sendAtRate(callers, got.made, s.rate, warm+measured); err != nil {
		return err
	}
	seconds := time.Since(began).Seconds()
	end := time.Now().Add(dueTo*time.Millisecond + grace)
	for got.count() < warm+measured && time.Now().Before(end) {
		select {
		case err := <-ended:
			return fmt.Errorf("the consumer ended: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := server.settle(); err != nil {
		return err
	}
	cpu = cpuSeconds() - cpu
	got.lock.Lock()
	defer got.lock.Unlock()
	ascending(got.lateMS)
	return tell(lateness{
		warm + measured, seconds, quantile(got.lateMS, 0.5), quantile(got.lateMS, 0.99), quantile(got.lateMS, 1),
		got.early, warm + measured - got.got, got.twice(), cpu,
	})
}

// sendAtRate sends message i at i / rate seconds, or as soon as a caller is free.
func sendAtRate(callers []caller, made *bodies, rate, count int) error {
	var all sync.WaitGroup
	failed := make([]error, len(callers))
	began := time.Now()
	for i, c := range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			for failed[i] == nil {
				number := made.next.Add(1) - 1
				if number >= uint64(count) {
					return
				}
				time.Sleep(time.Until(began.Add(time.Duration(number) * time.Second / time.Duration(rate))))
				dueMS := time.Now().UnixMilli() + dueFrom + rand.Int64N(dueTo-dueFrom)
				if failed[i] = c.ask(made.make(number, dueMS)); failed[i] == nil {
					failed[i] = c.answer()
				}
			}
		}()
	}
	all.Wait()
	return first(failed)
}
