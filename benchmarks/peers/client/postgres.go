package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	insert = "INSERT INTO delayed (due, body) VALUES ($1, $2)"
	// What is usually written for a polled table: several pollers get in each other's way as little as possible.
	remove = `DELETE FROM delayed WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM delayed WHERE due <= now() ORDER BY due LIMIT 1000 FOR UPDATE SKIP LOCKED)) RETURNING body`
	emptyPause = time.Millisecond // of a poller that found nothing
)

type postgres struct{ url string }

// newPostgres: the table exists, see postgres.py. pgx prepares each statement at its first use of a connection.
func newPostgres(s settings) (system, error) {
	return &postgres{fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", s.address)}, nil
}

type executor interface {
	Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error)
}

type inserter struct{ on executor }

func (i inserter) ask(m message) error {
	_, err := i.on.Exec(context.Background(), insert, time.UnixMilli(m.dueMS), m.body)
	return err
}

func (inserter) answer() error { return nil }

func (p *postgres) callers(count, connections int) ([]caller, error) {
	made := make([]caller, count)
	if count == connections {
		for i := range made {
			connection, err := pgx.Connect(context.Background(), p.url)
			if err != nil {
				return nil, err
			}
			made[i] = inserter{connection}
		}
		return made, nil
	}
	config, err := pgxpool.ParseConfig(p.url)
	if err != nil {
		return nil, err
	}
	config.MinConns, config.MaxConns = int32(connections), int32(connections)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	for i := range made {
		made[i] = inserter{pool}
	}
	return made, nil
}

func (p *postgres) consume(received func([][]byte)) error {
	connection, err := pgx.Connect(context.Background(), p.url)
	if err != nil {
		return err
	}
	for {
		rows, err := connection.Query(context.Background(), remove)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[[]byte]) // returns once the transaction is committed
		if err != nil {
			return err
		}
		if len(found) == 0 {
			time.Sleep(emptyPause)
			continue
		}
		received(found)
	}
}

func (*postgres) settle() error { return nil }
