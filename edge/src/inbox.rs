//! What waits for Python: groups of rows and events, and one signal for all that comes until Python looks.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::HeaderName;

use crate::budget::Hold;
use crate::caller::{Caller, Credentials};
use crate::columns::Group;
use crate::decode::EnqueueRequest;
use crate::lock::lock;
use crate::signal::Signal;
use crate::single::Door;
use crate::tls::Shown;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A call has begun; a unary one has its body.
    Call,
    Message,
    HalfClosed,
    Gone,
    Writable,
    Sent,
    Drained,
    /// Who calls?
    Identify,
    /// A handshake of TLS has.
    Failed,
    /// A connection of which Python was asked who calls has ended.
    Left,
}

/// By name, of what Python asked for.
pub type Metadata = Vec<(HeaderName, String)>;

/// What is told of a call when it begins.
pub struct Begun {
    pub method: Arc<str>,
    pub peer: Arc<str>,
    pub listener: Arc<str>,
    /// `None`: the listener does not ask.
    pub caller: Option<Arc<Caller>>,
    pub forwarded: bool,
    /// CLOCK_MONOTONIC; -1: none.
    pub deadline_ms: i64,
    pub metadata: Metadata,
}

/// What is known of a caller whom Python must find out.
pub struct Question {
    pub peer: Arc<str>,
    pub listener: Arc<str>,
    pub shown: Arc<Shown>,
    pub credentials: Credentials,
}

impl Question {
    /// Which connection has left: nothing is asked.
    pub fn left(peer: Arc<str>, listener: Arc<str>) -> Self {
        Question { peer, listener, shown: Arc::default(), credentials: Credentials::default() }
    }
}

pub struct Event {
    pub token: u64,
    pub kind: Kind,
    pub begun: Option<Begun>,
    pub question: Option<Box<Question>>,
    /// `None` in a unary call that has no message.
    pub body: Option<Bytes>,
    /// Of the body: it is in memory until Python has it, though the call may be gone before.
    pub hold: Option<Arc<Hold>>,
    /// Why a call is gone, or a handshake has failed.
    pub reason: Cow<'static, str>,
}

impl Event {
    pub fn of(token: u64, kind: Kind) -> Self {
        Event { token, kind, begun: None, question: None, body: None, hold: None, reason: Cow::Borrowed("") }
    }

    fn nbytes(&self) -> usize {
        self.body.as_ref().map_or(0, Bytes::len)
    }
}

/// Where a row is from. Those of different callers are never in one group, nor those that were forwarded with others,
/// nor those of two doors.
#[derive(Clone, Copy)]
pub struct Origin<'a> {
    pub caller: Option<&'a Arc<Caller>>,
    pub forwarded: bool,
    pub door: Option<Door>,
}

pub struct Inbox {
    state: Mutex<State>,
    signal: Signal,
}

/// Per topic, queue, forwarded and door: the number of the group that takes more. Of groups that are here: topics and queues
/// are of the clients' making, and must neither pile up nor be searched one by one.
type Open = HashMap<String, HashMap<(u32, bool, Option<Door>), u64>>;

#[derive(Default)]
struct State {
    groups: VecDeque<Group>,
    /// The number of the first group; each one that is made has the next number.
    first: u64,
    open: Open,
    /// The same for each caller that is known, by its key.
    open_of: HashMap<usize, Open>,
    events: VecDeque<Event>,
    signalled: bool,
}

impl Inbox {
    pub fn new() -> io::Result<Self> {
        Ok(Inbox { state: Mutex::default(), signal: Signal::new()? })
    }

    pub fn fileno(&self) -> RawFd {
        self.signal.fileno()
    }

    /// A request whose columns fit. message: what it was decoded from, when large records may keep it.
    pub fn put_row(
        &self, request: &EnqueueRequest<'_>, message: Option<&Bytes>, origin: Origin<'_>, token: u64, deadline_ms: i64,
    ) {
        let mut state = lock(&self.state);
        let large = message.is_some() && request.records.len() > crate::columns::LARGE_BYTES;
        state.group_for(request, origin, large).add(request, message, token, deadline_ms);
        self.signal(&mut state);
    }

    pub fn put_event(&self, event: Event) {
        let mut state = lock(&self.state);
        state.events.push_back(event);
        self.signal(&mut state);
    }

    /// How many events wait.
    pub fn events(&self) -> usize {
        lock(&self.state).events.len()
    }

    /// What has come, up to about `max_bytes`; at least one of it. While there is more the signal stays.
    pub fn take(&self, max_bytes: usize) -> (Vec<Group>, Vec<Event>) {
        let mut state = lock(&self.state);
        let mut left = max_bytes;
        let (mut groups, mut events) = (Vec::new(), Vec::new());
        while state.events.front().is_some_and(|event| left > 0 && fits(event.nbytes(), left, max_bytes)) {
            let Some(event) = state.events.pop_front() else { break };
            left = left.saturating_sub(event.nbytes());
            events.push(event);
        }
        while state.groups.front().is_some_and(|group| left > 0 && fits(group.nbytes, left, max_bytes)) {
            let Some(mut group) = state.groups.pop_front() else { break };
            left = left.saturating_sub(group.nbytes);
            state.close(&group);
            group.finish();
            groups.push(group);
        }
        if state.groups.is_empty() && state.events.is_empty() {
            state.signalled = false;
            self.signal.lower();
        }
        (groups, events)
    }

    fn signal(&self, state: &mut State) {
        if !std::mem::replace(&mut state.signalled, true) {
            self.signal.raise();
        }
    }
}

/// Whether the next thing may be taken as well. The first one may be larger.
fn fits(size: usize, left: usize, all: usize) -> bool {
    size <= left || left == all
}

impl State {
    fn group_for(&mut self, request: &EnqueueRequest<'_>, origin: Origin<'_>, large: bool) -> &mut Group {
        let Origin { caller, forwarded, door } = origin;
        let next = self.first + self.groups.len() as u64;
        let open = match caller {
            None => &mut self.open,
            Some(caller) => self.open_of.entry(caller.key).or_default(),
        };
        let queues = match open.get_mut(request.topic) {
            Some(queues) => queues,
            None => open.entry(request.topic.to_owned()).or_default(),
        };
        let number = queues.entry((request.queue, forwarded, door)).or_insert(next);
        let open = self.groups.get((*number - self.first) as usize);
        // One that has no room is followed by a new one: the order stays.
        if large || !open.is_some_and(|group| group.has_room_for(request)) {
            *number = next;
            self.groups.push_back(Group::new(request, origin));
        }
        let index = (*number - self.first) as usize;
        &mut self.groups[index]
    }

    /// The first group was taken.
    fn close(&mut self, group: &Group) {
        let number = self.first;
        self.first += 1;
        let Some(caller) = &group.caller else { return forget(&mut self.open, group, number) };
        let Some(open) = self.open_of.get_mut(&caller.key) else { return };
        forget(open, group, number);
        if open.is_empty() {
            self.open_of.remove(&caller.key);
        }
    }
}

/// The group of that number takes no more.
fn forget(open: &mut Open, group: &Group, number: u64) {
    let Some(queues) = open.get_mut(&group.topic) else { return };
    let of = (group.queue, group.forwarded, group.door);
    if queues.get(&of) == Some(&number) {
        queues.remove(&of);
    }
    if queues.is_empty() {
        open.remove(&group.topic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANYBODY: Origin<'static> = Origin { caller: None, forwarded: false, door: None };

    fn request<'a>(topic: &'a str, queue: u32, records: &'a [u8]) -> EnqueueRequest<'a> {
        EnqueueRequest { topic, queue, count: 1, time: &[0; 8], size: &[1; 4], records, ..EnqueueRequest::default() }
    }

    fn caller(key: usize) -> Arc<Caller> {
        Arc::new(Caller { key, identity: Arc::new(()), expires_ms: u64::MAX, forwards: false })
    }

    fn tokens(groups: &[Group]) -> Vec<(u32, Vec<u64>)> {
        groups.iter().map(|group| (group.queue, group.token.clone())).collect()
    }

    #[test]
    fn requests_of_one_queue_are_one_group_in_order() {
        let inbox = Inbox::new().unwrap();
        for (token, queue) in [(1, 0), (2, 1), (3, 0)] {
            inbox.put_row(&request("t", queue, b"a"), None, ANYBODY, token, -1);
        }
        inbox.put_row(&request("t", 0, b"a"), None, Origin { forwarded: true, ..ANYBODY }, 4, -1);
        inbox.put_row(&request("t", 0, b"a"), None, Origin { door: Some(Door::Rows), ..ANYBODY }, 5, -1);
        inbox.put_row(&request("t", 0, b"a"), None, Origin { door: Some(Door::RocketMq), ..ANYBODY }, 6, -1);
        let taken = tokens(&inbox.take(1000).0);
        assert_eq!(taken, [(0, vec![1, 3]), (1, vec![2]), (0, vec![4]), (0, vec![5]), (0, vec![6])]);
    }

    #[test]
    fn requests_of_different_callers_are_in_different_groups() {
        let inbox = Inbox::new().unwrap();
        for (token, key) in [(1, 7), (2, 8), (3, 7)] {
            let origin = Origin { caller: Some(&caller(key)), ..ANYBODY };
            inbox.put_row(&request("t", 0, b"a"), None, origin, token, -1);
        }
        inbox.put_row(&request("t", 0, b"a"), None, ANYBODY, 4, -1);
        assert_eq!(tokens(&inbox.take(1000).0), [(0, vec![1, 3]), (0, vec![2]), (0, vec![4])]);
    }

    #[test]
    fn a_large_request_is_alone_and_in_its_place() {
        let inbox = Inbox::new().unwrap();
        let message = Bytes::from(vec![0; crate::columns::LARGE_BYTES + 1]);
        inbox.put_row(&request("t", 0, b"a"), None, ANYBODY, 1, -1);
        inbox.put_row(&request("t", 0, &message), Some(&message), ANYBODY, 2, -1);
        inbox.put_row(&request("t", 0, b"a"), None, ANYBODY, 3, -1);
        inbox.put_row(&request("t", 0, b"a"), None, ANYBODY, 4, -1);
        assert_eq!(tokens(&inbox.take(1 << 20).0), [(0, vec![1]), (0, vec![2]), (0, vec![3, 4])]);
    }

    #[test]
    fn what_is_over_the_limit_is_left_and_signalled() {
        let inbox = Inbox::new().unwrap();
        for token in 0..3 {
            inbox.put_row(&request("t", token as u32, &[0; 80]), None, ANYBODY, token, -1);
        }
        assert_eq!(tokens(&inbox.take(120).0), [(0, vec![0])]);
        assert!(lock(&inbox.state).signalled);
        inbox.put_row(&request("t", 0, b"a"), None, ANYBODY, 9, -1); // its group was taken: it comes after the others
        assert_eq!(tokens(&inbox.take(1000).0), [(1, vec![1]), (2, vec![2]), (0, vec![9])]);
        assert!(!inbox.signal.lower(), "the signal is gone");
    }

    #[test]
    fn topics_that_were_taken_are_forgotten_while_others_wait() {
        let inbox = Inbox::new().unwrap();
        inbox.put_row(&request("first", 0, &[0; 80]), None, ANYBODY, 0, -1);
        for token in 1..100 {
            inbox.put_row(&request(&format!("topic {token}"), token as u32, &[0; 80]), None, ANYBODY, token, -1);
            assert_eq!(inbox.take(1).0.len(), 1, "one is left");
        }
        assert_eq!(lock(&inbox.state).open.len(), 1);
        inbox.take(1);
        assert!(lock(&inbox.state).open.is_empty());
    }

    #[test]
    fn callers_whose_groups_were_taken_are_forgotten_while_others_wait() {
        let inbox = Inbox::new().unwrap();
        let put = |topic: &str, token: u64| {
            let caller = caller(token as usize / 2);
            let origin = Origin { caller: Some(&caller), ..ANYBODY };
            inbox.put_row(&request(topic, 0, &[0; 80]), None, origin, token, -1);
        };
        put("first", 0);
        for token in 1..100 {
            put(&format!("topic {token}"), token);
            assert_eq!(inbox.take(1).0.len(), 1, "one is left");
        }
        let topics = || lock(&inbox.state).open_of.values().map(HashMap::len).collect::<Vec<_>>();
        assert_eq!(topics(), [1]);
        inbox.take(1);
        assert!(topics().is_empty());
    }
}
