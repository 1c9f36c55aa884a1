//! The messages of a call's body, one after the other, each received and inflated only when it has room.
//!
//! gRPC frame: u8 compressed, u32 length (big-endian), then `length` bytes.

use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;

use crate::budget::{Hold, REQUEST_BYTES};
use crate::clock::now_ms;
use crate::grpc;
use crate::inflate::{self, Encoding, Inflater, Step};

const PREFIX_BYTES: usize = 5;

/// What a body has next.
pub enum Next {
    /// A message begins: call grant() once there is room of `size` bytes for it.
    Begins {
        size: usize,
    },
    Message(Message),
    /// Nothing for now. The context is woken when there is more.
    Nothing,
    /// There is more to inflate, once others had a turn.
    NeedsTurn,
    End,
    /// The call ends with this status.
    Refused {
        code: u32,
        message: String,
    },
    Reset,
}

pub struct Message {
    pub bytes: Bytes,
    /// The bytes are a part of what was read from the socket, and keep all of it in memory.
    pub borrowed: bool,
    pub hold: Hold,
}

impl Message {
    /// With memory of its own.
    pub fn into_owned(self) -> Message {
        let bytes = if self.borrowed { Bytes::copy_from_slice(&self.bytes) } else { self.bytes };
        Message { bytes, borrowed: false, hold: self.hold }
    }
}

enum State {
    Prefix { filled: usize, bytes: [u8; PREFIX_BYTES] },
    Waiting { size: usize, compressed: bool },
    Receiving { size: usize, buffer: Option<BytesMut>, hold: Hold },
    Inflating { inflater: Box<Inflater>, hold: Hold },
    Over,
}

const START: State = State::Prefix { filled: 0, bytes: [0; PREFIX_BYTES] };

pub struct Body {
    stream: RecvStream,
    /// What was received and not looked at.
    rest: Bytes,
    /// Bytes that were consumed, and by which the window was not opened: there is no room for their message yet.
    owed: usize,
    state: State,
    encoding: Encoding,
    max_size: usize,
    /// When bytes came last, or the body began to be read.
    pub progress_ms: u64,
    /// When the message that is received began.
    pub began_ms: u64,
}

impl Body {
    pub fn new(stream: RecvStream, encoding: Encoding, max_size: usize) -> Self {
        let now = now_ms();
        Body { stream, rest: Bytes::new(), owed: 0, state: START, encoding, max_size, progress_ms: now, began_ms: now }
    }

    /// Within a message that has room.
    pub fn is_receiving(&self) -> bool {
        matches!(self.state, State::Receiving { .. } | State::Inflating { .. })
    }

    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    /// Between two messages, as far as is known.
    pub fn is_between(&self) -> bool {
        matches!(self.state, State::Prefix { filled: 0, .. } | State::Over)
    }

    /// Whether the client has ended its side, right after what was returned last.
    pub fn has_ended(&self) -> bool {
        self.is_between() && self.rest.is_empty() && self.stream.is_end_stream()
    }

    /// There is room for the message that begins.
    pub fn grant(&mut self, hold: Hold) {
        if let State::Waiting { size, compressed } = self.state {
            self.state = if compressed {
                let inflater = Box::new(Inflater::new(self.encoding, size, self.max_size));
                State::Inflating { inflater, hold }
            } else {
                State::Receiving { size, buffer: None, hold }
            };
            self.began_ms = now_ms();
            self.progress_ms = self.began_ms;
        }
    }

    /// turn: bytes that may be inflated before others have a turn.
    pub fn next(&mut self, cx: &mut Context<'_>, turn: &mut usize) -> Next {
        loop {
            match std::mem::replace(&mut self.state, State::Over) {
                State::Over => return Next::End,
                State::Waiting { size, compressed } => {
                    self.state = State::Waiting { size, compressed };
                    let size = if compressed { inflate::room(size, self.max_size) } else { size };
                    return Next::Begins { size };
                }
                State::Inflating { inflater, hold } => {
                    if let Some(next) = self.inflate(inflater, hold, cx, turn) {
                        return next;
                    }
                }
                State::Receiving { size, buffer, hold } => {
                    if let Some(next) = self.receive(size, buffer, hold, cx) {
                        return next;
                    }
                }
                State::Prefix { mut filled, mut bytes } => {
                    let count = (PREFIX_BYTES - filled).min(self.rest.len());
                    bytes[filled..filled + count].copy_from_slice(&self.rest[..count]);
                    self.rest.advance(count);
                    self.owed += count;
                    filled += count;
                    if filled == PREFIX_BYTES {
                        match self.begin(bytes) {
                            Ok(waiting) => self.state = waiting,
                            Err(refused) => return refused,
                        }
                        continue;
                    }
                    self.state = State::Prefix { filled, bytes };
                    if let Some(next) = self.more(cx, filled > 0) {
                        return next;
                    }
                }
            }
        }
    }

    fn begin(&self, prefix: [u8; PREFIX_BYTES]) -> Result<State, Next> {
        let [flag, length @ ..] = prefix;
        let size = u32::from_be_bytes(length) as usize;
        let compressed = flag != 0;
        if flag > 1 {
            return Err(internal(format!("a message begins with {flag}, which is neither 0 nor 1")));
        }
        match self.encoding {
            Encoding::Identity if compressed => {
                return Err(internal("a message is compressed, and the call has no grpc-encoding"));
            }
            Encoding::Unknown if compressed => {
                let message = format!("a message is compressed with none of {}", Encoding::ACCEPTED);
                return Err(Next::Refused { code: grpc::UNIMPLEMENTED, message });
            }
            _ => {}
        }
        if size > self.max_size {
            let message = format!("the message has {size} bytes, the limit is {}", self.max_size);
            return Err(Next::Refused { code: grpc::RESOURCE_EXHAUSTED, message });
        }
        Ok(State::Waiting { size, compressed })
    }

    fn inflate(
        &mut self, mut inflater: Box<Inflater>, mut hold: Hold, cx: &mut Context<'_>, turn: &mut usize,
    ) -> Option<Next> {
        let came = inflater.feed(&mut self.rest);
        self.open_window(came);
        match inflater.step(turn) {
            Step::Whole(bytes) => {
                self.state = START;
                hold.shrink_to(bytes.len() + REQUEST_BYTES);
                Some(Next::Message(Message { bytes: Bytes::from(bytes), borrowed: false, hold }))
            }
            Step::NeedsMore => {
                self.state = State::Inflating { inflater, hold };
                self.more(cx, true)
            }
            Step::NeedsTurn => {
                self.state = State::Inflating { inflater, hold };
                Some(Next::NeedsTurn)
            }
            Step::TooLarge => {
                let message = format!("the message expands to more than the limit of {} bytes", self.max_size);
                Some(Next::Refused { code: grpc::RESOURCE_EXHAUSTED, message })
            }
            Step::Broken(error) => Some(internal(format!("the message is compressed, and broken: {error}"))),
        }
    }

    fn receive(&mut self, size: usize, buffer: Option<BytesMut>, hold: Hold, cx: &mut Context<'_>) -> Option<Next> {
        if buffer.is_none() && self.rest.len() >= size {
            let bytes = self.rest.split_to(size);
            self.open_window(size);
            self.state = START;
            return Some(Next::Message(Message { bytes, borrowed: true, hold }));
        }
        // Without any of it here, there is nothing to keep: the usual message comes whole in its first bytes.
        let mut buffer = match buffer {
            None if self.rest.is_empty() => {
                self.state = State::Receiving { size, buffer: None, hold };
                return self.more(cx, true);
            }
            None => BytesMut::with_capacity(size),
            Some(buffer) => buffer,
        };
        let count = (size - buffer.len()).min(self.rest.len());
        buffer.extend_from_slice(&self.rest[..count]);
        self.rest.advance(count);
        self.open_window(count);
        if buffer.len() == size {
            self.state = START;
            return Some(Next::Message(Message { bytes: buffer.freeze(), borrowed: false, hold }));
        }
        self.state = State::Receiving { size, buffer: Some(buffer), hold };
        self.more(cx, true)
    }

    /// Receive more bytes; `None` when some came. within: of a message.
    fn more(&mut self, cx: &mut Context<'_>, within: bool) -> Option<Next> {
        match self.stream.poll_data(cx) {
            Poll::Pending => Some(Next::Nothing),
            Poll::Ready(Some(Ok(data))) => {
                self.rest = data;
                self.progress_ms = now_ms();
                None
            }
            Poll::Ready(Some(Err(_))) => {
                self.state = State::Over;
                Some(Next::Reset)
            }
            Poll::Ready(None) => {
                self.state = State::Over;
                Some(if within { internal("the call ended within a message") } else { Next::End })
            }
        }
    }

    /// By what was consumed of a message that has room.
    fn open_window(&mut self, count: usize) {
        let count = count + std::mem::take(&mut self.owed);
        if count > 0 {
            // An error says that the stream is over: then there is no window to open.
            let _ = self.stream.flow_control().release_capacity(count);
        }
    }
}

fn internal(message: impl Into<String>) -> Next {
    Next::Refused { code: grpc::INTERNAL, message: message.into() }
}
