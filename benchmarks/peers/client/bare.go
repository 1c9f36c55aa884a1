package main

import (
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

// bareServer is no store, but what a store that speaks delay.v1 can't do without: gRPC's own server, which appends each
// request to a file and syncs that before it answers, and hands messages out of its memory when they are due. Requests
// that wait for the same sync share it.
type bareServer struct {
	file    *os.File
	queues  []*bareQueue
	lock    sync.Mutex
	waiting *written // what the next write takes; nil: nothing waits
	writing bool
}

// written is one write and its sync. done is closed at its end, with err set.
type written struct {
	data []byte
	done chan struct{}
	err  error
}

func newWritten() *written { return &written{done: make(chan struct{})} }

// serveBare prints its port, and serves until the process ends.
func serveBare(s settings) error {
	file, err := os.OpenFile(s.address, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	server := &bareServer{file: file, queues: make([]*bareQueue, s.queues)}
	for i := range server.queues {
		server.queues[i] = &bareQueue{news: make(chan struct{}, 1)}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	return grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(server.serve)).Serve(listener)
}

func (b *bareServer) serve(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	answer := map[string]func(grpc.ServerStream, []byte) ([]byte, error){
		"Enqueue":       b.enqueue,
		"EnqueueStream": b.enqueue,
		"ReceiveStream": b.receive,
		"CallStream":    answerCalls,
	}[path.Base(method)]
	if answer == nil {
		return errors.New("not served: " + method)
	}
	for {
		var request []byte
		if err := stream.RecvMsg(&request); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		answered, err := answer(stream, request)
		if err != nil {
			return err
		}
		if err := stream.SendMsg(&answered); err != nil {
			return err
		}
	}
}

// enqueue answers with no fields: clients look at none but the refusal.
func (b *bareServer) enqueue(_ grpc.ServerStream, request []byte) ([]byte, error) {
	var queue uint64
	var due, record []byte
	err := eachField(request, func(number protowire.Number, value uint64, content []byte) error {
		switch number {
		case 2:
			queue = value
		case 4:
			due = content
		case 9:
			record = content
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if queue >= uint64(len(b.queues)) || len(due) != 8 {
		return nil, errors.New("not one message for a queue that is there")
	}
	if err := b.write(request); err != nil {
		return nil, err
	}
	b.queues[queue].put(bareMessage{int64(binary.LittleEndian.Uint64(due)), record})
	return []byte{}, nil
}

// write returns once the request is on disk, with its length before it. Who comes first writes for all who came.
func (b *bareServer) write(request []byte) error {
	b.lock.Lock()
	if b.waiting == nil {
		b.waiting = newWritten()
	}
	mine := b.waiting
	mine.data = append(binary.LittleEndian.AppendUint32(mine.data, uint32(len(request))), request...)
	if b.writing {
		b.lock.Unlock()
		<-mine.done
		return mine.err
	}
	b.writing = true
	for b.waiting != nil {
		taken := b.waiting
		b.waiting = nil
		b.lock.Unlock()
		_, err := b.file.Write(taken.data)
		taken.err = errors.Join(err, syscall.Fdatasync(int(b.file.Fd())))
		close(taken.done)
		b.lock.Lock()
	}
	b.writing = false
	b.lock.Unlock()
	return mine.err
}

// receive waits until a message is due.
func (b *bareServer) receive(stream grpc.ServerStream, request []byte) ([]byte, error) {
	var queue uint64
	err := eachField(request, func(number protowire.Number, value uint64, _ []byte) error {
		if number == 2 {
			queue = value
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if queue >= uint64(len(b.queues)) {
		return nil, errors.New("no such queue")
	}
	from := b.queues[queue]
	for {
		batch, wait := from.take()
		if batch != nil {
			return batch, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-from.news:
		case <-stream.Context().Done():
			return nil, stream.Context().Err()
		}
		timer.Stop()
	}
}

// answerCalls answers each call with no fields.
func answerCalls(_ grpc.ServerStream, calls []byte) (answers []byte, err error) {
	err = eachField(calls, func(protowire.Number, uint64, []byte) error {
		answers = appendBytes(answers, 1, nil)
		return nil
	})
	return answers, err
}

type bareMessage struct {
	dueMS  int64
	record []byte
}

// bareQueue has one consumer. news: something was put into it.
type bareQueue struct {
	lock    sync.Mutex
	waiting byDue
	offset  uint64
	news    chan struct{}
}

func (q *bareQueue) put(m bareMessage) {
	q.lock.Lock()
	heap.Push(&q.waiting, m)
	first := q.waiting[0].dueMS == m.dueMS
	q.lock.Unlock()
	if first {
		select {
		case q.news <- struct{}{}:
		default:
		}
	}
}

// take returns all that is due as a MessageBatch, or how long to wait.
func (q *bareQueue) take() (batch []byte, wait time.Duration) {
	q.lock.Lock()
	defer q.lock.Unlock()
	var offsets, sizes, records []byte
	now := time.Now()
	for len(q.waiting) > 0 && q.waiting[0].dueMS <= now.UnixMilli() && len(sizes) < 4*maxReceived {
		m := heap.Pop(&q.waiting).(bareMessage)
		offsets = binary.LittleEndian.AppendUint64(offsets, q.offset)
		sizes = binary.LittleEndian.AppendUint32(sizes, uint32(len(m.record)))
		records = append(records, m.record...)
		q.offset++
	}
	if offsets != nil {
		return appendBytes(appendBytes(appendBytes(nil, 3, offsets), 6, sizes), 8, records), 0
	}
	if len(q.waiting) == 0 {
		return nil, time.Minute
	}
	return nil, time.UnixMilli(q.waiting[0].dueMS).Sub(now)
}

// byDue is a heap.
type byDue []bareMessage

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].dueMS < h[j].dueMS }
func (h byDue) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byDue) Push(m any)        { *h = append(*h, m.(bareMessage)) }
func (h *byDue) Pop() any {
	last := len(*h) - 1
	m := (*h)[last]
	(*h)[last] = bareMessage{}
	*h = (*h)[:last]
	return m
}
