//! What waits for Python: groups of rows and events, and one signal for all that comes until Python looks.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::budget::Hold;
use crate::columns::Group;
use crate::decode::EnqueueRequest;
use crate::lock::lock;
use crate::signal::Signal;

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
}

/// What is told of a call when it begins.
pub struct Begun {
    pub method: Arc<str>,
    pub peer: Arc<str>,
    pub forwarded: bool,
    /// CLOCK_MONOTONIC; -1: none.
    pub deadline_ms: i64,
}

pub struct Event {
    pub token: u64,
    pub kind: Kind,
    pub begun: Option<Begun>,
    /// `None` in a unary call that has no message.
    pub body: Option<Bytes>,
    /// Of the body: it is in memory until Python has it, though the call may be gone before.
    pub hold: Option<Arc<Hold>>,
    /// Why a call is gone.
    pub reason: &'static str,
}

impl Event {
    pub fn of(token: u64, kind: Kind) -> Self {
        Event { token, kind, begun: None, body: None, hold: None, reason: "" }
    }

    fn nbytes(&self) -> usize {
        self.body.as_ref().map_or(0, Bytes::len)
    }
}

pub struct Inbox {
    state: Mutex<State>,
    signal: Signal,
}

#[derive(Default)]
struct State {
    groups: VecDeque<Group>,
    /// The number of the first group; each one that is made has the next number.
    first: u64,
    /// Per topic: queue, forwarded and the number of the group that takes more.
    open: HashMap<String, Vec<(u32, bool, u64)>>,
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
        &self, request: &EnqueueRequest<'_>, message: Option<&Bytes>, forwarded: bool, token: u64, deadline_ms: i64,
    ) {
        let mut state = lock(&self.state);
        let large = message.is_some() && request.records.len() > crate::columns::LARGE_BYTES;
        state.group_for(request, forwarded, large).add(request, message, token, deadline_ms);
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
            state.first += 1;
            group.finish();
            groups.push(group);
        }
        if state.groups.is_empty() {
            state.open.clear(); // topics are of the clients' making, and must not pile up
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
    fn group_for(&mut self, request: &EnqueueRequest<'_>, forwarded: bool, large: bool) -> &mut Group {
        let next = self.first + self.groups.len() as u64;
        let queues = match self.open.get_mut(request.topic) {
            Some(queues) => queues,
            None => self.open.entry(request.topic.to_owned()).or_default(),
        };
        let at = match queues.iter().position(|open| (open.0, open.1) == (request.queue, forwarded)) {
            Some(at) => at,
            None => {
                queues.push((request.queue, forwarded, u64::MAX));
                queues.len() - 1
            }
        };
        // A group that is not here any more, or has no room, is followed by a new one: the order stays.
        let number = queues[at].2;
        let open = number.checked_sub(self.first).and_then(|at| self.groups.get(at as usize));
        if large || !open.is_some_and(|group| group.has_room_for(request)) {
            queues[at].2 = next;
            self.groups.push_back(Group::new(request, forwarded));
        }
        let index = (queues[at].2 - self.first) as usize;
        &mut self.groups[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request<'a>(topic: &'a str, queue: u32, records: &'a [u8]) -> EnqueueRequest<'a> {
        EnqueueRequest { topic, queue, count: 1, time: &[0; 8], size: &[1; 4], records, ..EnqueueRequest::default() }
    }

    fn tokens(groups: &[Group]) -> Vec<(u32, Vec<u64>)> {
        groups.iter().map(|group| (group.queue, group.token.clone())).collect()
    }

    #[test]
    fn requests_of_one_queue_are_one_group_in_order() {
        let inbox = Inbox::new().unwrap();
        for (token, queue) in [(1, 0), (2, 1), (3, 0)] {
            inbox.put_row(&request("t", queue, b"a"), None, false, token, -1);
        }
        inbox.put_row(&request("t", 0, b"a"), None, true, 4, -1);
        assert_eq!(tokens(&inbox.take(1000).0), [(0, vec![1, 3]), (1, vec![2]), (0, vec![4])]);
    }

    #[test]
    fn a_large_request_is_alone_and_in_its_place() {
        let inbox = Inbox::new().unwrap();
        let message = Bytes::from(vec![0; crate::columns::LARGE_BYTES + 1]);
        inbox.put_row(&request("t", 0, b"a"), None, false, 1, -1);
        inbox.put_row(&request("t", 0, &message), Some(&message), false, 2, -1);
        inbox.put_row(&request("t", 0, b"a"), None, false, 3, -1);
        inbox.put_row(&request("t", 0, b"a"), None, false, 4, -1);
        assert_eq!(tokens(&inbox.take(1 << 20).0), [(0, vec![1]), (0, vec![2]), (0, vec![3, 4])]);
    }

    #[test]
    fn what_is_over_the_limit_is_left_and_signalled() {
        let inbox = Inbox::new().unwrap();
        for token in 0..3 {
            inbox.put_row(&request("t", token as u32, &[0; 80]), None, false, token, -1);
        }
        assert_eq!(tokens(&inbox.take(120).0), [(0, vec![0])]);
        assert!(lock(&inbox.state).signalled);
        inbox.put_row(&request("t", 0, b"a"), None, false, 9, -1); // its group was taken: it comes after the others
        assert_eq!(tokens(&inbox.take(1000).0), [(1, vec![1]), (2, vec![2]), (0, vec![9])]);
        assert!(!inbox.signal.lower(), "the signal is gone");
    }
}
