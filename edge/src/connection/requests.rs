//! Requests: from the head of a call to what is handed over to Python.

use std::sync::Arc;

use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderName, Request};
use tokio::io::{AsyncRead, AsyncWrite};

use super::Connection;
use crate::budget::REQUEST_BYTES;
use crate::call::{Call, Phase, Waits};
use crate::caller::{Caller, Credentials, Found, NEVER};
use crate::clock::now_ms;
use crate::core::{Shape, Window};
use crate::decode::decode;
use crate::grpc::{self, Status};
use crate::inbox::{Event, Kind, Metadata, Origin, Question};
use crate::inflate::Encoding;
use crate::message::{Body, Message, Next};
use crate::rows::{Row, Single};
use crate::single::Door;
use crate::unread::Answer;

const FORWARDED: HeaderName = HeaderName::from_static("x-delay-forwarded");
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const SHOWN_PATH_CHARS: usize = 100;

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    pub(super) fn begin(&mut self, request: Request<RecvStream>, mut respond: SendResponse<Answer>) {
        if let Some(response) = grpc::not_grpc(&request) {
            self.core.figures.calls_refused.add_one();
            let _ = respond.send_response(response, true);
            return;
        }
        let (head, stream) = request.into_parts();
        let path = head.uri.path();
        let Some(method) = self.core.methods.get(path).cloned() else {
            let shown: String = path.chars().take(SHOWN_PATH_CHARS).collect();
            return self
                .refuse_unbegun(respond, Status::new(grpc::UNIMPLEMENTED, format!("there is no method {shown}")));
        };
        if self.core.is_full() {
            let message = format!("more than {} calls are open, or wait to be taken up", self.core.limits.max_calls);
            return self.refuse_unbegun(respond, self.core.busy(message));
        }
        let deadline_ms = match head.headers.get(TIMEOUT).map(|value| grpc::timeout_ms(value.as_bytes())) {
            None => -1,
            Some(Some(timeout_ms)) => (now_ms() + timeout_ms) as i64,
            Some(None) => return self.refuse_unbegun(respond, Status::new(grpc::INTERNAL, "malformed grpc-timeout")),
        };
        self.last = self.last.wrapping_add(1);
        let number = self.last;
        let max_size = usize::try_from(self.core.limits.max_message_bytes).unwrap_or(usize::MAX);
        let encoding = head.headers.get(ENCODING).map_or(Encoding::Identity, |name| Encoding::of(name.as_bytes()));
        let body = Body::new(stream, encoding, max_size);
        let forwarded = head.headers.contains_key(FORWARDED);
        let unasked = matches!(method.shape, Shape::Row | Shape::RowStream);
        let metadata = if unasked { Metadata::new() } else { self.asked_for(&head.headers) };
        let call = Call::new(&self.core, method, forwarded, deadline_ms, metadata, body, respond);
        if deadline_ms >= 0 {
            self.deadlines.insert((deadline_ms as u64, number));
        }
        self.calls.insert(number, call);
        if !self.link.listener.identifies {
            return self.admit(number, None);
        }
        match self.callers.find(&head.headers, number) {
            Found::Known(caller) => self.admit(number, Some(caller)),
            Found::Waits(None) => {}
            Found::Waits(Some((question, credentials))) => self.ask(question, credentials),
            Found::Full => self.end_busy(number, "too many callers of this connection are to be identified".to_owned()),
        }
    }

    /// The last value of each entry: some clients send theirs again with a retry.
    fn asked_for(&self, headers: &HeaderMap) -> Metadata {
        let value = |name| headers.get_all(name).iter().next_back().map(|value| value.as_bytes());
        let names = self.core.metadata.iter();
        names.filter_map(|name| Some((name.clone(), String::from_utf8_lossy(value(name)?).into_owned()))).collect()
    }

    /// Python finds out who calls, and sends mail.
    fn ask(&mut self, question: u32, credentials: Credentials) {
        self.asked = true;
        let (peer, listener) = (self.link.peer.clone(), self.link.listener.name.clone());
        let asked = Question { peer, listener, shown: self.shown.clone(), credentials };
        let event = Event::of(self.link.token(question), Kind::Identify);
        self.core.inbox.put_event(Event { question: Some(Box::new(asked)), ..event });
    }

    pub(super) fn on_caller(&mut self, question: u32, found: Result<Arc<Caller>, Status>) {
        for number in self.callers.answer(question, found.as_ref().ok()) {
            match &found {
                Ok(caller) => self.admit(number, Some(caller.clone())),
                Err(status) => self.end_with(number, "refused", status),
            }
        }
    }

    /// The call may begin. caller: `None` where it is not asked for.
    fn admit(&mut self, number: u32, caller: Option<Arc<Caller>>) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        call.forwarded &= caller.as_ref().map_or(self.link.listener.forwards, |caller| caller.forwards);
        let lasts = matches!(call.method.shape, Shape::Stream | Shape::RowStream);
        if let Some(caller) = caller.as_ref().filter(|caller| lasts && caller.expires_ms != NEVER) {
            call.expires_ms = caller.expires_ms;
            self.deadlines.insert((caller.expires_ms, number));
        }
        call.caller = caller;
        if call.method.shape == Shape::Stream {
            let token = self.link.token(number);
            self.core.add_stream(token);
            self.core.figures.calls_begun.add_one();
            call.told = true;
            let begun = Some(call.begun(&self.link));
            self.core.inbox.put_event(Event { begun, ..Event::of(token, Kind::Call) });
        }
        self.fresh.push(number);
    }

    pub(super) fn refuse_unbegun(&self, mut respond: SendResponse<Answer>, status: Status) {
        self.core.figures.calls_refused.add_one();
        let _ = respond.send_response(status.trailers_only(), true);
    }

    /// Receive what there is of a call's request, as far as there is room.
    pub(super) fn look_at(&mut self, number: u32) {
        while let Some(call) = self.calls.get_mut(&number) {
            let Some(body) = call.body.as_ref() else { break };
            if body.is_between() {
                if !call.wants_more(&self.core) {
                    break;
                }
                if self.link.unread.is_full() {
                    self.choked.insert(number);
                    break;
                }
            }
            match call.next(&self.link, number, &mut self.turn) {
                Next::Nothing => break,
                Next::NeedsTurn => {
                    self.inflating.insert(number);
                    break;
                }
                Next::Begins { size } => {
                    if !self.has_room(number, size) {
                        break;
                    }
                }
                Next::Message(message) => {
                    self.set_phase(number, Phase::Quiet);
                    self.take(number, message);
                }
                Next::End => self.half_close(number),
                Next::Refused { code, message } => self.refuse(number, code, message),
                Next::Reset => self.cancelled(number),
            }
        }
        self.look_for_reset(number);
    }

    /// Whether the message that begins may be received now. When not, mail comes.
    pub(super) fn has_room(&mut self, number: u32, size: usize) -> bool {
        let Some(call) = self.calls.get_mut(&number) else { return false };
        if call.phase == Phase::Waiting {
            return false;
        }
        let budget = self.core.budget(call.method.shape);
        match budget.ask(&self.asker, self.link.id, number, size + REQUEST_BYTES, now_ms()) {
            Some(hold) => {
                if let Some(body) = call.body.as_mut() {
                    body.grant(hold);
                }
                self.set_phase(number, Phase::Receiving);
                true
            }
            None => {
                self.wait_for_room(number);
                false
            }
        }
    }

    /// What the client sends of it meanwhile stays in the windows: the connection's is opened by as much, so that those
    /// that have room go on.
    fn wait_for_room(&mut self, number: u32) {
        let window = Window::new(&self.core, u64::from(self.sizes.stream));
        self.set_phase(number, Phase::Waiting);
        match self.calls.get_mut(&number) {
            Some(call) if window.is_some() && u64::from(self.waiting) <= self.core.limits.max_waiting => {
                call.waits = window.map(|window| Waits { since_ms: now_ms(), _window: window });
            }
            _ => self.refuse_busy(number),
        }
    }

    /// There is no room for a request now; the client may try again soon.
    pub(super) fn refuse_busy(&mut self, number: u32) {
        let Some(call) = self.calls.get(&number) else { return };
        let message = self.core.budget(call.method.shape).shortage(self.link.id);
        self.end_busy(number, message);
    }

    pub(super) fn set_phase(&mut self, number: u32, phase: Phase) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        let was = std::mem::replace(&mut call.phase, phase);
        if phase != Phase::Waiting {
            call.waits = None;
        }
        self.count_waiting(was, phase);
    }

    /// One whole message of a call.
    pub(super) fn take(&mut self, number: u32, message: Message) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        match call.method.shape {
            Shape::Row | Shape::Single(_) | Shape::Unary if call.message.is_some() => {
                self.refuse(number, grpc::INTERNAL, "a unary call has one message");
            }
            Shape::Row | Shape::Single(_) | Shape::Unary => {
                if call.body.as_ref().is_some_and(Body::has_ended) {
                    call.body = None;
                    self.hand_over(number, Some(message));
                } else {
                    call.message = Some(message.into_owned());
                }
            }
            Shape::RowStream => {
                let place = call.ordered.reserve();
                self.put_row(number, place, Some(message));
            }
            Shape::Stream => {
                let message = message.into_owned();
                let (body, hold) = (Some(message.bytes), Arc::new(message.hold));
                call.holds.push_back(hold.clone());
                let token = self.link.token(number);
                self.core.inbox.put_event(Event { body, hold: Some(hold), ..Event::of(token, Kind::Message) });
            }
        }
    }

    /// The client has ended its side.
    pub(super) fn half_close(&mut self, number: u32) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        call.body = None;
        match call.method.shape {
            Shape::Row | Shape::Single(_) | Shape::Unary => {
                let message = call.message.take();
                self.hand_over(number, message);
            }
            Shape::RowStream => self.send_ordered(number),
            Shape::Stream => self.core.inbox.put_event(Event::of(self.link.token(number), Kind::HalfClosed)),
        }
    }

    /// A unary call's request is whole; `None`: the call has no message.
    pub(super) fn hand_over(&mut self, number: u32, message: Option<Message>) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        match call.method.shape {
            Shape::Row => return self.put_row(number, 0, message),
            Shape::Single(door) => return self.put_single(number, door, message),
            _ => {}
        }
        call.told = true;
        let mut event = Event::of(self.link.token(number), Kind::Call);
        event.begun = Some(call.begun(&self.link));
        if let Some(message) = message.map(Message::into_owned) {
            let hold = Arc::new(message.hold);
            call.holds.push_back(hold.clone());
            event.hold = Some(hold);
            event.body = Some(message.bytes);
        }
        self.core.figures.calls_begun.add_one();
        self.core.inbox.put_event(event);
    }

    /// An Enqueue request, into columns if they fit. Else Python has its bytes, to serve it as a call or to say
    /// what is wrong with it.
    pub(super) fn put_row(&mut self, number: u32, place: u64, message: Option<Message>) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        let in_stream = call.method.shape == Shape::RowStream;
        let link = self.link.clone();
        let row = |relative, hold| Row { link, call: number, in_stream, place, relative, hold, single: None };
        let core = &self.core;
        let rest = match message {
            None => None,
            Some(Message { bytes, borrowed, hold }) => match decode(&bytes) {
                Ok(request) if request.columns_fit() => {
                    let token = core.rows.add(row(!request.relative.is_empty(), Some(hold)));
                    let owned = if borrowed { None } else { Some(&bytes) };
                    core.figures.requests_taken.add_one();
                    return core.inbox.put_row(&request, owned, call.origin(), token, call.deadline_ms);
                }
                _ => Some(Message { bytes, borrowed, hold }.into_owned()),
            },
        };
        let (body, hold) = rest.map(|message| (message.bytes, message.hold)).unzip();
        let begun = Some(call.begun(&self.link));
        let token = core.rows.add(row(true, hold));
        core.figures.calls_begun.add_one();
        core.inbox.put_event(Event { begun, body, ..Event::of(token, Kind::Call) });
    }

    /// A door's request. What is no usual request of one message is served as a call, as an Enqueue is that does not fit.
    fn put_single(&mut self, number: u32, door: Door, message: Option<Message>) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        let (core, link) = (&self.core, self.link.clone());
        let (body, hold) = message.map(Message::into_owned).map(|message| (message.bytes, message.hold)).unzip();
        let read = body.as_ref().and_then(|body| door.read(body, &call.metadata));
        let (caller, deadline_ms) = (call.caller.clone(), call.deadline_ms);
        let begun = call.begun(&link);
        let row = |single| Row { link, call: number, in_stream: false, place: 0, relative: true, hold, single };
        let (Some(read), Some(body)) = (read, &body) else {
            let token = core.rows.add(row(None));
            core.figures.calls_begun.add_one();
            return core.inbox.put_event(Event { begun: Some(begun), body, ..Event::of(token, Kind::Call) });
        };
        let (asked, columns) = read;
        let of = asked.of.clone();
        let token = core.rows.add(row(Some(Box::new(Single { asked, begun, body: body.clone() }))));
        let origin = Origin { caller: caller.as_ref(), forwarded: false, door: Some(door) };
        core.figures.requests_taken.add_one();
        core.inbox.put_row(&columns.request(&of), None, origin, token, deadline_ms);
    }
}
