//! One call of a connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use h2::SendStream;
use h2::server::SendResponse;

use crate::budget::Hold;
use crate::caller::{Caller, NEVER};
use crate::core::{Core, Method, Open, Shape, Window};
use crate::grpc::{self, Status};
use crate::inbox::{Begun, Metadata, Origin};
use crate::link::{CallWaker, Link};
use crate::message::{Body, Message, Next};
use crate::unread::Answer;

/// What the call's request does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Phase {
    /// It is whole, or between two messages, or left in the window.
    Quiet,
    /// It waits for room.
    Waiting,
    /// It has room.
    Receiving,
}

/// Since when a call waits for room, and where what its client sends meanwhile is counted.
pub struct Waits {
    pub since_ms: u64,
    pub _window: Window,
}

/// The answers of an EnqueueStream, which leave in the order of its requests.
#[derive(Default)]
pub struct Ordered {
    /// The place of the first that is not here.
    first: u64,
    answers: VecDeque<Option<Answer>>,
}

impl Ordered {
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// The place of one more request.
    pub fn reserve(&mut self) -> u64 {
        self.answers.push_back(None);
        self.first + self.answers.len() as u64 - 1
    }

    pub fn put(&mut self, place: u64, answer: Answer) {
        let at = place.checked_sub(self.first).and_then(|at| self.answers.get_mut(at as usize));
        if let Some(slot) = at {
            *slot = Some(answer);
        }
    }

    /// The next answer, if it is here.
    pub fn pop(&mut self) -> Option<Answer> {
        if !self.answers.front().is_some_and(Option::is_some) {
            return None;
        }
        self.first += 1;
        self.answers.pop_front().flatten()
    }
}

pub struct Call {
    pub method: Method,
    /// `None` while it is asked for, and where it is not.
    pub caller: Option<Arc<Caller>>,
    pub forwarded: bool,
    /// CLOCK_MONOTONIC; -1: none.
    pub deadline_ms: i64,
    pub metadata: Metadata,
    /// Likewise, of a stream's caller.
    pub expires_ms: u64,
    pub phase: Phase,
    /// Of a call whose phase is Waiting.
    pub waits: Option<Waits>,
    /// `None` when the client has ended its side, or nothing more is wanted of it.
    pub body: Option<Body>,
    /// A unary call's, until the client has ended its side.
    pub message: Option<Message>,
    /// Of messages that Python has; a row's is elsewhere, as it outlives its call.
    pub holds: VecDeque<Arc<Hold>>,
    /// Python knows the call, and is told when it is gone.
    pub told: bool,
    pub ordered: Ordered,
    respond: SendResponse<Answer>,
    send: Option<SendStream<Answer>>,
    waker: Option<(Arc<CallWaker>, Waker)>,
    _open: Open,
}

impl Call {
    pub fn new(
        core: &Arc<Core>, method: Method, forwarded: bool, deadline_ms: i64, metadata: Metadata, body: Body,
        respond: SendResponse<Answer>,
    ) -> Self {
        Call {
            method,
            caller: None,
            forwarded,
            deadline_ms,
            metadata,
            expires_ms: NEVER,
            phase: Phase::Quiet,
            waits: None,
            body: Some(body),
            message: None,
            holds: VecDeque::new(),
            told: false,
            ordered: Ordered::default(),
            respond,
            send: None,
            waker: None,
            _open: Open::new(core),
        }
    }

    /// What Python is told of it, once.
    pub fn begun(&mut self, link: &Link) -> Begun {
        Begun {
            method: self.method.path.clone(),
            peer: link.peer.clone(),
            listener: link.listener.name.clone(),
            caller: self.caller.clone(),
            forwarded: self.forwarded,
            deadline_ms: self.deadline_ms,
            metadata: std::mem::take(&mut self.metadata),
        }
    }

    pub fn origin(&self) -> Origin<'_> {
        let door = if let Shape::Single(door) = self.method.shape { Some(door) } else { None };
        Origin { caller: self.caller.as_ref(), forwarded: self.forwarded, door }
    }

    /// Whether one more message may begin, by what is under way.
    pub fn wants_more(&self, core: &Core) -> bool {
        match self.method.shape {
            Shape::Row | Shape::Single(_) | Shape::Unary => true,
            Shape::RowStream => (self.ordered.len() as u64) < core.limits.max_unanswered,
            Shape::Stream => (self.holds.len() as u64) < core.limits.max_unread_messages,
        }
    }

    /// turn: bytes that may be inflated before others have a turn.
    pub fn next(&mut self, link: &Arc<Link>, number: u32, turn: &mut usize) -> Next {
        let Some(body) = self.body.as_mut() else { return Next::Nothing };
        // Most requests are here already, and need no waker.
        match body.next(&mut Context::from_waker(Waker::noop()), turn) {
            Next::Nothing => {
                let waker = waker(&mut self.waker, link, number);
                body.next(&mut Context::from_waker(waker), turn)
            }
            next => next,
        }
    }

    /// Whether the client has reset the call. When not, the connection is woken once it has.
    pub fn is_reset(&mut self, link: &Arc<Link>, number: u32) -> bool {
        let cx = &mut Context::from_waker(waker(&mut self.waker, link, number));
        let reset = match self.send.as_mut() {
            Some(send) => send.poll_reset(cx),
            None => self.respond.poll_reset(cx),
        };
        !matches!(reset, Poll::Pending)
    }

    /// Send one message of a stream; false when the client has reset it.
    pub fn write(&mut self, answer: Answer) -> bool {
        if self.send.is_none() {
            self.send = self.respond.send_response(grpc::head(), false).ok();
        }
        self.send.as_mut().is_some_and(|send| send.send_data(answer, false).is_ok())
    }

    /// End the call well; false when the client has reset it.
    pub fn end_well(mut self) -> bool {
        match self.send.as_mut() {
            Some(send) => send.send_trailers(grpc::ok()).is_ok(),
            None => self.respond.send_response(Status::new(0, "").trailers_only(), true).is_ok(),
        }
    }

    /// End the call; what is left of its request is not read.
    pub fn end(mut self, status: &Status) -> bool {
        match self.send.as_mut() {
            Some(send) => send.send_trailers(status.trailers()).is_ok(),
            None => self.respond.send_response(status.trailers_only(), true).is_ok(),
        }
    }
}

fn waker<'a>(kept: &'a mut Option<(Arc<CallWaker>, Waker)>, link: &Arc<Link>, number: u32) -> &'a Waker {
    let (call, waker) = kept.get_or_insert_with(|| {
        let call = CallWaker::new(link, number);
        (call.clone(), Waker::from(call))
    });
    call.rearm();
    waker
}
