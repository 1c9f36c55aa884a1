package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const key = "delayed"

var take = redis.NewScript(`
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 1000)
if #due > 0 then redis.call('ZREM', KEYS[1], unpack(due)) end
return due`)

type redisServer struct{ address string }

func newRedis(s settings) (system, error) { return &redisServer{s.address}, nil }

// connect: nothing is repeated, so that what the server refuses is seen.
func (r *redisServer) connect(connections int) (*redis.Client, error) {
	client := redis.NewClient(&redis.Options{
		Addr:                     r.address,
		PoolSize:                 connections,
		MinIdleConns:             connections,
		MaxRetries:               -1,
		ReadTimeout:              30 * time.Second,
		PoolTimeout:              30 * time.Second,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	return client, client.Ping(context.Background()).Err()
}

type adder struct{ client *redis.Client }

func (a adder) ask(m message) error {
	member := redis.Z{Score: float64(m.dueMS), Member: m.body}
	return a.client.ZAdd(context.Background(), key, member).Err()
}

func (adder) answer() error { return nil }

func (r *redisServer) callers(count, connections int) ([]caller, error) {
	made := make([]caller, count)
	var shared *redis.Client
	for i := range made {
		if shared == nil || count == connections {
			size := connections
			if count == connections {
				size = 1
			}
			client, err := r.connect(size)
			if err != nil {
				return nil, err
			}
			shared = client
		}
		made[i] = adder{shared}
	}
	return made, nil
}

func (r *redisServer) consume(received func([][]byte)) error {
	client, err := r.connect(1)
	if err != nil {
		return err
	}
	for {
		members, err := take.Run(context.Background(), client, []string{key}, time.Now().UnixMilli()).StringSlice()
		if err != nil {
			return err
		}
		if len(members) == 0 {
			time.Sleep(emptyPause)
			continue
		}
		found := make([][]byte, len(members))
		for i, member := range members {
			found[i] = []byte(member)
		}
		received(found)
	}
}

func (*redisServer) settle() error { return nil }
