package main

import (
	"bufio"
	"sync"
	"time"
)

type stored struct {
	Requests  int     `json:"requests"`
	Seconds   float64 `json:"seconds"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	Max       float64 `json:"max_ms"`
	ClientCPU float64 `json:"client_cpu_s"`
}

// store lets all callers work for the warm-up, then for the time that is measured.
func store(s settings, callers []caller, steps *bufio.Reader) error {
	made := newBodies(s.bodyBytes)
	warm, err := allStore(s, callers, made, s.warmup)
	if err != nil {
		return err
	}
	if err := ready(len(warm), steps); err != nil {
		return err
	}
	began, cpu := time.Now(), cpuSeconds()
	tookMS, err := allStore(s, callers, made, s.seconds)
	if err != nil {
		return err
	}
	seconds, cpu := time.Since(began).Seconds(), cpuSeconds()-cpu
	ascending(tookMS)
	return tell(stored{
		len(tookMS), seconds, quantile(tookMS, 0.5), quantile(tookMS, 0.99), quantile(tookMS, 1), cpu,
	})
}

// allStore returns how long each request took, in ms. All are answered when it returns.
func allStore(s settings, callers []caller, made *bodies, during time.Duration) ([]float64, error) {
	var all sync.WaitGroup
	took := make([][]float64, len(callers))
	failed := make([]error, len(callers))
	end := time.Now().Add(during)
	for i, c := range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			took[i], failed[i] = storeUntil(end, c, max(1, s.window), s.delay, made)
		}()
	}
	all.Wait()
	var tookMS []float64
	for _, one := range took {
		tookMS = append(tookMS, one...)
	}
	return tookMS, first(failed)
}

// storeUntil keeps `window` requests of one caller unanswered until the end, and then takes the last answers.
func storeUntil(end time.Time, c caller, window int, delay time.Duration, made *bodies) ([]float64, error) {
	var tookMS []float64
	var unanswered []time.Time
	for {
		for len(unanswered) < window {
			now := time.Now()
			if !now.Before(end) {
				break
			}
			unanswered = append(unanswered, now)
			if err := c.ask(made.make(made.next.Add(1)-1, now.Add(delay).UnixMilli())); err != nil {
				return tookMS, err
			}
		}
		if len(unanswered) == 0 {
			return tookMS, nil
		}
		if err := c.answer(); err != nil {
			return tookMS, err
		}
		tookMS = append(tookMS, ms(time.Since(unanswered[0])))
		unanswered = unanswered[1:]
	}
}
