package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	service       = "/delay.v1.DelayService/"
	topic         = "bench"
	group         = "bench"
	answerTimeout = 30 * time.Second
	waitMS        = 5000 // of a ReceiveRequest, as the Python client's
	invisibleMS   = 30000
	maxReceived   = 1024
	linger        = 50 * time.Millisecond // of acks
)

// delay speaks delay.v1: the few messages that it needs are encoded here, with the numbers of delay.proto.
type delay struct {
	settings
	acks *acker
}

func newDelay(s settings) (system, error) { return &delay{settings: s}, nil }

// raw hands encoded messages through gRPC.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func (raw) Name() string { return "proto" }

func (d *delay) connect() (*grpc.ClientConn, error) {
	connection, err := grpc.NewClient(
		d.address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})),
	)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	connection.Connect()
	for state := connection.GetState(); state != connectivity.Ready; state = connection.GetState() {
		if !connection.WaitForStateChange(ctx, state) {
			return nil, fmt.Errorf("%s: no connection within %s", d.address, answerTimeout)
		}
	}
	return connection, nil
}

func openStream(connection *grpc.ClientConn, method string) (grpc.ClientStream, error) {
	both := &grpc.StreamDesc{StreamName: method, ServerStreams: true, ClientStreams: true}
	return connection.NewStream(context.Background(), both, service+method)
}

func (d *delay) callers(count, connections int) ([]caller, error) {
	opened := make([]*grpc.ClientConn, connections)
	for i := range opened {
		connection, err := d.connect()
		if err != nil {
			return nil, err
		}
		opened[i] = connection
	}
	made := make([]caller, count)
	for i := range made {
		connection := opened[i%connections]
		if d.window == 0 {
			made[i] = &unary{connection, i, d.queues}
			continue
		}
		stream, err := openStream(connection, "EnqueueStream")
		if err != nil {
			return nil, err
		}
		made[i] = &streaming{stream, uint32(i % d.queues)}
	}
	return made, nil
}

// unary calls Enqueue, for one queue after the other.
type unary struct {
	connection *grpc.ClientConn
	at, queues int
}

func (u *unary) ask(m message) error {
	request := enqueueRequest(uint32(u.at%u.queues), m)
	u.at++
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	var answer []byte
	return u.connection.Invoke(ctx, service+"Enqueue", &request, &answer)
}

func (*unary) answer() error { return nil }

// streaming keeps to one queue.
type streaming struct {
	stream grpc.ClientStream
	queue  uint32
}

func (s *streaming) ask(m message) error {
	request := enqueueRequest(s.queue, m)
	return s.stream.SendMsg(&request)
}

func (s *streaming) answer() error {
	var answer []byte
	if err := s.stream.RecvMsg(&answer); err != nil {
		return err
	}
	return eachField(answer, func(number protowire.Number, _ uint64, refused []byte) error {
		if number == 6 {
			return refusal("EnqueueStream", refused)
		}
		return nil
	})
}

// consume receives from each queue on a ReceiveStream of its own; one CallStream takes all acks.
func (d *delay) consume(received func([][]byte)) error {
	connection, err := d.connect()
	if err != nil {
		return err
	}
	calls, err := openStream(connection, "CallStream")
	if err != nil {
		return err
	}
	d.acks = newAcker(calls)
	ended := make(chan error, d.queues+2)
	go func() { ended <- d.acks.send() }()
	go func() { ended <- d.acks.hear() }()
	for queue := range uint32(d.queues) {
		stream, err := openStream(connection, "ReceiveStream")
		if err != nil {
			return err
		}
		go func() { ended <- receive(stream, queue, received, d.acks) }()
	}
	return <-ended
}

func (d *delay) settle() error {
	end := time.Now().Add(grace)
	for !d.acks.allAnswered() {
		if time.Now().After(end) {
			return errors.New("an Ack has no answer")
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

func receive(stream grpc.ClientStream, queue uint32, received func([][]byte), acks *acker) error {
	request := receiveRequest(queue)
	for {
		if err := stream.SendMsg(&request); err != nil {
			return err
		}
		var answer []byte
		if err := stream.RecvMsg(&answer); err != nil {
			return err
		}
		found, offsets, err := messageBatch(answer)
		if err != nil {
			return err
		}
		if len(found) > 0 {
			acks.add(queue, offsets)
			received(found)
		}
	}
}

// acker gathers acks for a while, as DelayCluster's own client does, and sends one Ack for each queue.
type acker struct {
	stream     grpc.ClientStream
	lock       sync.Mutex
	gathered   map[uint32][]byte // by queue: a column of offsets
	unanswered int
}

func newAcker(stream grpc.ClientStream) *acker {
	return &acker{stream: stream, gathered: map[uint32][]byte{}}
}

func (a *acker) add(queue uint32, offsets []byte) {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.gathered[queue] = append(a.gathered[queue], offsets...)
}

func (a *acker) send() error {
	for id := uint64(1); ; time.Sleep(linger) {
		var calls []byte
		a.lock.Lock()
		for queue, offsets := range a.gathered {
			calls = appendBytes(calls, 1, call(id, ackRequest(queue, offsets)))
			id++
		}
		a.unanswered += len(a.gathered)
		clear(a.gathered)
		a.lock.Unlock()
		if len(calls) == 0 {
			continue
		}
		if err := a.stream.SendMsg(&calls); err != nil {
			return err
		}
	}
}

func (a *acker) hear() error {
	for {
		var answers []byte
		if err := a.stream.RecvMsg(&answers); err != nil {
			return err
		}
		count := 0
		err := eachField(answers, func(_ protowire.Number, _ uint64, answer []byte) error {
			count++
			return eachField(answer, func(number protowire.Number, _ uint64, refused []byte) error {
				if number == 3 {
					return refusal("Ack", refused)
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
		a.lock.Lock()
		a.unanswered -= count
		a.lock.Unlock()
	}
}

func (a *acker) allAnswered() bool {
	a.lock.Lock()
	defer a.lock.Unlock()
	return a.unanswered == 0 && len(a.gathered) == 0
}

// -------------------------------------------------------------------------------------------- encoding

func enqueueRequest(queue uint32, m message) []byte {
	record := appendBytes(nil, 4, m.body)
	b := appendBytes(make([]byte, 0, len(record)+64), 1, []byte(topic))
	b = appendNumber(b, 2, uint64(queue))
	b = appendNumber(b, 3, 1)
	b = appendBytes(b, 4, binary.LittleEndian.AppendUint64(nil, uint64(m.dueMS)))
	b = appendBytes(b, 6, binary.LittleEndian.AppendUint32(nil, uint32(len(record))))
	return appendBytes(b, 9, record)
}

func receiveRequest(queue uint32) []byte {
	b := appendBytes(nil, 1, []byte(topic))
	b = appendNumber(b, 2, uint64(queue))
	b = appendBytes(b, 3, []byte(group))
	b = appendNumber(b, 4, maxReceived)
	b = appendNumber(b, 6, waitMS)
	return appendNumber(b, 7, invisibleMS)
}

// ackRequest: offsets is a column of i64.
func ackRequest(queue uint32, offsets []byte) []byte {
	ends := make([]byte, 0, len(offsets))
	for at := 0; at < len(offsets); at += 8 {
		ends = binary.LittleEndian.AppendUint64(ends, binary.LittleEndian.Uint64(offsets[at:])+1)
	}
	b := appendBytes(nil, 1, []byte(topic))
	b = appendNumber(b, 2, uint64(queue))
	b = appendBytes(b, 3, []byte(group))
	b = appendBytes(b, 4, offsets)
	return appendBytes(b, 5, ends)
}

func call(id uint64, request []byte) []byte {
	b := appendNumber(nil, 1, id)
	b = appendBytes(b, 2, []byte("Ack"))
	return appendBytes(b, 3, request)
}

// messageBatch returns the bodies, and the column of their offsets.
func messageBatch(data []byte) (found [][]byte, offsets []byte, err error) {
	var sizes, records []byte
	err = eachField(data, func(number protowire.Number, _ uint64, column []byte) error {
		switch number {
		case 3:
			offsets = column
		case 6:
			sizes = column
		case 8:
			records = column
		}
		return nil
	})
	for ; err == nil && len(sizes) >= 4; sizes = sizes[4:] {
		size := binary.LittleEndian.Uint32(sizes)
		if uint64(size) > uint64(len(records)) {
			return nil, nil, io.ErrUnexpectedEOF
		}
		err = eachField(records[:size], func(number protowire.Number, _ uint64, body []byte) error {
			if number == 4 {
				found = append(found, body)
			}
			return nil
		})
		records = records[size:]
	}
	return found, offsets, err
}

func refusal(method string, data []byte) error {
	told := method + " was refused:"
	err := eachField(data, func(number protowire.Number, _ uint64, text []byte) error {
		if number == 2 || number == 3 {
			told += " " + string(text)
		}
		return nil
	})
	return errors.Join(errors.New(told), err)
}

func appendNumber(b []byte, field protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), value)
}

func appendBytes(b []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}

// eachField calls `with` for each field: its number, and the value of a varint or the bytes of the others.
func eachField(data []byte, with func(protowire.Number, uint64, []byte) error) error {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		var value uint64
		var content []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			content, n = protowire.ConsumeBytes(data)
		default:
			n = protowire.ConsumeFieldValue(number, kind, data)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if err := with(number, value, content); err != nil {
			return err
		}
	}
	return nil
}
