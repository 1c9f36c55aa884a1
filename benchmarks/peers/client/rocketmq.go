package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// The requests of RocketMQ's remoting protocol that are needed here, and the codes of its answers.
const (
	pullMessage   = 11
	updateTopic   = 17
	getMaxOffset  = 30
	sendMessageV2 = 310
	succeeded     = 0
	pullNotFound  = 19
	pullRetry     = 20
	clientVersion = 501 // of the 5.x releases

	timerTopic = "rmq_sys_wheel_timer" // where the broker keeps what is not yet due
)

// rocketMQ speaks the remoting protocol: a frame is its length, the header's length, a header in JSON, the body.
// Answers come in any order, by `opaque`.
type rocketMQ struct{ settings }

func newRocketMQ(s settings) (system, error) { return &rocketMQ{s}, nil }

type header struct {
	Code     int               `json:"code"`
	Language string            `json:"language"`
	Version  int               `json:"version"`
	Opaque   int32             `json:"opaque"`
	Flag     int               `json:"flag"`
	Remark   string            `json:"remark,omitempty"`
	Fields   map[string]string `json:"extFields"`
}

type frame struct {
	header
	body []byte
}

type remoting struct {
	connection net.Conn
	opaque     atomic.Int32
	lock       sync.Mutex // of what follows, and of writing
	waiting    map[int32]chan frame
	failed     error
}

func (r *rocketMQ) connect() (*remoting, error) {
	connection, err := net.Dial("tcp", r.address)
	if err != nil {
		return nil, err
	}
	opened := &remoting{connection: connection, waiting: map[int32]chan frame{}}
	go opened.hear()
	return opened, nil
}

func (r *remoting) call(code int, fields map[string]string, body []byte) (frame, error) {
	opaque := r.opaque.Add(1)
	encoded, err := json.Marshal(header{code, "JAVA", clientVersion, opaque, 0, "", fields})
	if err != nil {
		return frame{}, err
	}
	data := make([]byte, 0, 8+len(encoded)+len(body))
	data = binary.BigEndian.AppendUint32(data, uint32(4+len(encoded)+len(body)))
	data = binary.BigEndian.AppendUint32(data, uint32(len(encoded)))
	data = append(append(data, encoded...), body...)
	answered := make(chan frame, 1)
	r.lock.Lock()
	if err = r.failed; err == nil {
		r.waiting[opaque] = answered
		_, err = r.connection.Write(data)
	}
	r.lock.Unlock()
	if err != nil {
		return frame{}, err
	}
	select {
	case answer, open := <-answered:
		if !open {
			return frame{}, r.failed
		}
		return answer, nil
	case <-time.After(answerTimeout):
		return frame{}, fmt.Errorf("request %d: no answer within %s", code, answerTimeout)
	}
}

// hear hands answers over until the connection ends; then all who wait hear of that.
func (r *remoting) hear() {
	from := bufio.NewReaderSize(r.connection, 1<<16)
	for {
		answer, err := readFrame(from)
		r.lock.Lock()
		if err != nil {
			r.failed = err
			for _, answered := range r.waiting {
				close(answered)
			}
			r.lock.Unlock()
			return
		}
		answered, ok := r.waiting[answer.Opaque]
		delete(r.waiting, answer.Opaque)
		r.lock.Unlock()
		if ok {
			answered <- answer
		}
	}
}

func readFrame(from io.Reader) (frame, error) {
	var sizes [8]byte
	if _, err := io.ReadFull(from, sizes[:]); err != nil {
		return frame{}, err
	}
	size, headSize := binary.BigEndian.Uint32(sizes[:4]), binary.BigEndian.Uint32(sizes[4:])&0xffffff
	if size > 1<<26 || headSize+4 > size {
		return frame{}, fmt.Errorf("a frame of %d bytes with a header of %d", size, headSize)
	}
	data := make([]byte, size-4)
	if _, err := io.ReadFull(from, data); err != nil {
		return frame{}, err
	}
	answer := frame{body: data[headSize:]}
	return answer, json.Unmarshal(data[:headSize], &answer.header)
}

func (r *rocketMQ) callers(count, connections int) ([]caller, error) {
	opened := make([]*remoting, connections)
	for i := range opened {
		connection, err := r.connect()
		if err != nil {
			return nil, err
		}
		opened[i] = connection
	}
	made := make([]caller, count)
	for i := range made {
		made[i] = &timerSender{opened[i%connections], i, r.queues}
	}
	return made, nil
}

type timerSender struct {
	on         *remoting
	at, queues int
}

func (t *timerSender) ask(m message) error {
	fields := map[string]string{ // by the short names of SendMessageRequestHeaderV2
		"a": group, "b": topic, "c": "TBW102", "d": "8", "e": strconv.Itoa(t.at % t.queues), "f": "0",
		"g": strconv.FormatInt(time.Now().UnixMilli(), 10), "h": "0",
		"i": "TIMER_DELIVER_MS\x01" + strconv.FormatInt(m.dueMS, 10) + "\x02", "j": "0", "k": "false", "m": "false",
	}
	t.at++
	answer, err := t.on.call(sendMessageV2, fields, m.body)
	return judged(answer, err)
}

func (*timerSender) answer() error { return nil }

func judged(answer frame, err error) error {
	if err == nil && answer.Code != succeeded {
		err = fmt.Errorf("RocketMQ answered with code %d: %s", answer.Code, answer.Remark)
	}
	return err
}

func (r *rocketMQ) createTopic() error {
	on, err := r.connect()
	if err != nil {
		return err
	}
	queues := strconv.Itoa(r.queues)
	return judged(on.call(updateTopic, map[string]string{
		"topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": "6",
		"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
	}, nil))
}

// stored is how many messages the broker's timer has taken so far.
func (r *rocketMQ) stored() (int64, error) {
	on, err := r.connect()
	if err != nil {
		return 0, err
	}
	answer, err := on.call(getMaxOffset, map[string]string{"topic": timerTopic, "queueId": "0"}, nil)
	if err := judged(answer, err); err != nil {
		return 0, err
	}
	return strconv.ParseInt(answer.Fields["offset"], 10, 64)
}

// consume pulls from each queue, as a push consumer does: the broker keeps a pull until there is something. The offset
// goes with the next pull.
func (r *rocketMQ) consume(received func([][]byte)) error {
	on, err := r.connect()
	if err != nil {
		return err
	}
	ended := make(chan error, r.queues)
	for queue := range r.queues {
		go func() { ended <- pull(on, queue, received) }()
	}
	return <-ended
}

func (*rocketMQ) settle() error { return nil }

func pull(on *remoting, queue int, received func([][]byte)) error {
	offset := "0"
	for {
		answer, err := on.call(pullMessage, map[string]string{
			"consumerGroup": group, "topic": topic, "queueId": strconv.Itoa(queue), "queueOffset": offset,
			"maxMsgNums": "32", "sysFlag": "7", "commitOffset": offset, "suspendTimeoutMillis": "15000",
			"subscription": "*", "subVersion": "0", "expressionType": "TAG",
		}, nil)
		if err != nil {
			return err
		}
		switch answer.Code {
		case succeeded:
			found, err := storedBodies(answer.body)
			if err != nil {
				return err
			}
			received(found)
			offset = answer.Fields["nextBeginOffset"]
		case pullNotFound, pullRetry:
		default:
			return judged(answer, nil)
		}
	}
}

// storedBodies: each message as the CommitLog has it, IPv4 hosts. After its size, 84 bytes until the body's size.
func storedBodies(data []byte) ([][]byte, error) {
	const beforeBody = 84
	var found [][]byte
	for len(data) > 0 {
		if len(data) < beforeBody+4 {
			return nil, io.ErrUnexpectedEOF
		}
		size, bodySize := binary.BigEndian.Uint32(data), binary.BigEndian.Uint32(data[beforeBody:])
		if uint64(size) > uint64(len(data)) || uint64(bodySize)+beforeBody+4 > uint64(size) {
			return nil, io.ErrUnexpectedEOF
		}
		found = append(found, data[beforeBody+4:beforeBody+4+bodySize])
		data = data[size:]
	}
	return found, nil
}
