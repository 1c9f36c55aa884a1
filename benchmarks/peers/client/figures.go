package main

import (
	"encoding/binary"
	"math/rand/v2"
	"sort"
	"sync/atomic"
	"syscall"
	"time"
)

// A body begins with the run, the message's number and its due in ms, 8 bytes each; the rest is random.
const headBytes = 24

// bodies makes the messages of a run. Its numbers are 0, 1, 2, ...
type bodies struct {
	run    uint64
	next   atomic.Uint64
	filler []byte
}

func newBodies(size int) *bodies {
	b := &bodies{run: rand.Uint64(), filler: make([]byte, size)}
	for i := range b.filler {
		b.filler[i] = byte(rand.Uint32())
	}
	return b
}

func (b *bodies) make(number uint64, dueMS int64) message {
	body := append([]byte(nil), b.filler...)
	binary.LittleEndian.PutUint64(body, b.run)
	binary.LittleEndian.PutUint64(body[8:], number)
	binary.LittleEndian.PutUint64(body[16:], uint64(dueMS))
	return message{dueMS, body}
}

// read returns the number and the due of a message of this run.
func (b *bodies) read(body []byte) (number uint64, dueMS int64, ours bool) {
	if len(body) < headBytes || binary.LittleEndian.Uint64(body) != b.run {
		return 0, 0, false
	}
	return binary.LittleEndian.Uint64(body[8:]), int64(binary.LittleEndian.Uint64(body[16:])), true
}

// quantile of values in ascending order; 0 where there are none.
func quantile(ascending []float64, q float64) float64 {
	if len(ascending) == 0 {
		return 0
	}
	return ascending[int(q*float64(len(ascending)-1))]
}

func ascending(values []float64) []float64 {
	sort.Float64s(values)
	return values
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// first of the errors, or nil: when a server ends, each caller has the same one.
func first(failed []error) error {
	for _, err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}

// cpuSeconds is the processor time of this process so far.
func cpuSeconds() float64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}
