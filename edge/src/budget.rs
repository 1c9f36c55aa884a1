//! Room for requests: bytes that are received, or taken by Python and not answered.
//!
//! A request asks for its whole size before it is received beyond the HTTP/2 window, so each one that has room can be
//! received to its end. Two bounds: `limit` in all, and `part` for each connection. One request alone may be larger.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use crate::lock::lock;

/// What a request costs beside its bytes: its place in columns, tables and HTTP/2 state.
pub const REQUEST_BYTES: usize = 1 << 10;

/// Told of room that was waited for. Called without a lock held.
pub trait Asker: Send + Sync {
    fn granted(&self, call: u32, hold: Hold);
}

pub struct Budget {
    limit: usize,
    part: usize,
    /// A request of at most so many bytes waits behind no larger one, and may use an eighth of `limit` more.
    small: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: usize,
    paused: bool,
    /// Those whose connection has given them room already, in the order in which they came.
    waiting: VecDeque<Ask>,
    connections: HashMap<u32, Part>,
}

#[derive(Default)]
struct Part {
    used: usize,
    /// Those that wait for their own connection: they keep no other waiting.
    parked: VecDeque<Ask>,
}

struct Ask {
    connection: u32,
    call: u32,
    size: usize,
    since_ms: u64,
    asker: Arc<dyn Asker>,
}

type Grants = Vec<(Arc<dyn Asker>, u32, Hold)>;

/// Room for one request, given back when this is dropped.
pub struct Hold {
    budget: Arc<Budget>,
    connection: u32,
    size: usize,
}

impl Hold {
    /// Give back what is over `size`.
    pub fn shrink_to(&mut self, size: usize) {
        let freed = self.size.saturating_sub(size);
        self.size -= freed;
        self.budget.release(self.connection, freed);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.budget.release(self.connection, self.size);
    }
}

impl Budget {
    pub fn new(limit: usize, part: usize, small: usize) -> Arc<Self> {
        Arc::new(Budget { limit, part, small, state: Mutex::default() })
    }

    /// Room for a call's request of `size` bytes, or `None`: then `asker` is told later.
    pub fn ask(
        self: &Arc<Self>, asker: &Arc<dyn Asker>, connection: u32, call: u32, size: usize, now_ms: u64,
    ) -> Option<Hold> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let part = state.connections.entry(connection).or_default();
        if size <= self.small && !state.paused && fits(state.used, size, self.limit + self.limit / 8) {
            part.used += size;
            state.used += size;
            return Some(self.hold(connection, size));
        }
        let fits_part = part.parked.is_empty() && fits(part.used, size, self.part);
        if fits_part {
            part.used += size;
            if state.waiting.is_empty() && !state.paused && fits(state.used, size, self.limit) {
                state.used += size;
                return Some(self.hold(connection, size));
            }
        }
        let ask = Ask { connection, call, size, since_ms: now_ms, asker: asker.clone() };
        if fits_part {
            state.waiting.push_back(ask)
        } else {
            part.parked.push_back(ask)
        }
        None
    }

    /// The call needs its room no longer. Called for calls that ended while they waited.
    pub fn forget(self: &Arc<Self>, connection: u32, call: u32) {
        self.forget_where(connection, |ask| ask.connection == connection && ask.call == call);
    }

    /// As forget(), for all calls of a connection.
    pub fn forget_connection(self: &Arc<Self>, connection: u32) {
        self.forget_where(connection, |ask| ask.connection == connection);
    }

    fn forget_where(self: &Arc<Self>, connection: u32, gone: impl Fn(&Ask) -> bool) {
        let mut dropped = Vec::new();
        let grants = {
            let mut state = lock(&self.state);
            let mut freed = 0;
            let waiting = std::mem::take(&mut state.waiting);
            for ask in waiting {
                if gone(&ask) {
                    freed += ask.size;
                    dropped.push(ask);
                } else {
                    state.waiting.push_back(ask);
                }
            }
            if let Some(part) = state.connections.get_mut(&connection) {
                let parked = std::mem::take(&mut part.parked);
                let (out, kept): (Vec<_>, Vec<_>) = parked.into_iter().partition(&gone);
                part.parked = kept.into();
                dropped.extend(out);
                part.used -= freed;
            }
            self.move_up(&mut state, connection);
            self.grant(&mut state)
        };
        drop(dropped);
        deliver(grants);
    }

    /// Give no more room, or do so again.
    pub fn pause(self: &Arc<Self>, on: bool) {
        let grants = {
            let mut state = lock(&self.state);
            state.paused = on;
            self.grant(&mut state)
        };
        deliver(grants);
    }

    /// Why a request of this connection waits.
    pub fn shortage(&self, connection: u32) -> String {
        let state = lock(&self.state);
        let part = state.connections.get(&connection);
        let (used, place, limit) = match part {
            Some(part) if !part.parked.is_empty() => (part.used, "for this connection", self.part),
            _ => (state.used, "in this node", self.limit),
        };
        format!("{used} bytes are in flight {place}, the limit is {limit} bytes")
    }

    pub fn used(&self) -> usize {
        lock(&self.state).used
    }

    /// How many requests wait for room, their own connection's included.
    pub fn waiting(&self) -> usize {
        let state = lock(&self.state);
        state.waiting.len() + state.connections.values().map(|part| part.parked.len()).sum::<usize>()
    }

    /// Since when the first in the queue has waited for what others hold; `None` while nobody does.
    pub fn waiting_since_ms(&self) -> Option<u64> {
        let state = lock(&self.state);
        if state.paused { None } else { state.waiting.front().map(|ask| ask.since_ms) }
    }

    fn release(self: &Arc<Self>, connection: u32, size: usize) {
        let grants = {
            let mut state = lock(&self.state);
            state.used -= size;
            if let Some(part) = state.connections.get_mut(&connection) {
                part.used -= size;
            }
            self.move_up(&mut state, connection);
            self.grant(&mut state)
        };
        deliver(grants);
    }

    fn move_up(&self, state: &mut State, connection: u32) {
        let Some(part) = state.connections.get_mut(&connection) else { return };
        while part.parked.front().is_some_and(|ask| fits(part.used, ask.size, self.part)) {
            if let Some(ask) = part.parked.pop_front() {
                part.used += ask.size;
                state.waiting.push_back(ask);
            }
        }
        if part.used == 0 && part.parked.is_empty() {
            state.connections.remove(&connection);
        }
    }

    fn grant(self: &Arc<Self>, state: &mut State) -> Grants {
        let mut grants = Vec::new();
        while !state.paused && state.waiting.front().is_some_and(|ask| fits(state.used, ask.size, self.limit)) {
            if let Some(ask) = state.waiting.pop_front() {
                state.used += ask.size;
                grants.push((ask.asker, ask.call, self.hold(ask.connection, ask.size)));
            }
        }
        grants
    }

    fn hold(self: &Arc<Self>, connection: u32, size: usize) -> Hold {
        Hold { budget: self.clone(), connection, size }
    }
}

fn fits(used: usize, size: usize, limit: usize) -> bool {
    used == 0 || used + size <= limit
}

fn deliver(grants: Grants) {
    for (asker, call, hold) in grants {
        asker.granted(call, hold);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Calls(Mutex<Vec<(u32, Hold)>>);

    impl Asker for Calls {
        fn granted(&self, call: u32, hold: Hold) {
            lock(&self.0).push((call, hold));
        }
    }

    fn world(limit: usize, part: usize) -> (Arc<Budget>, Arc<Calls>, Arc<dyn Asker>) {
        let calls = Arc::new(Calls::default());
        (Budget::new(limit, part, 0), calls.clone(), calls)
    }

    fn granted(calls: &Calls) -> Vec<u32> {
        lock(&calls.0).iter().map(|(call, _)| *call).collect()
    }

    #[test]
    fn room_is_given_in_the_order_of_asking() {
        let (budget, calls, asker) = world(10, 10);
        let first = budget.ask(&asker, 1, 0, 8, 0).unwrap();
        assert!(budget.ask(&asker, 2, 1, 5, 0).is_none());
        assert!(budget.ask(&asker, 3, 2, 1, 0).is_none()); // it would fit, and must not overtake
        drop(first);
        assert_eq!(granted(&calls), [1, 2]);
        lock(&calls.0).clear();
        assert_eq!((budget.used(), budget.waiting()), (0, 0));
    }

    #[test]
    fn a_connection_at_its_part_keeps_no_other_waiting() {
        let (budget, calls, asker) = world(100, 10);
        let first = budget.ask(&asker, 1, 0, 10, 0).unwrap();
        assert!(budget.ask(&asker, 1, 1, 1, 0).is_none());
        assert!(budget.ask(&asker, 2, 2, 10, 0).is_some());
        assert_eq!(budget.waiting_since_ms(), None);
        drop(first);
        assert_eq!(granted(&calls), [1]);
    }

    #[test]
    fn a_small_request_waits_behind_no_larger_one() {
        let calls: Arc<dyn Asker> = Arc::new(Calls::default());
        let budget = Budget::new(80, 80, 5);
        let ask = |call, size| budget.ask(&calls, 1, call, size, 0);
        let first = ask(1, 80);
        assert!(first.is_some() && ask(2, 6).is_none());
        let (third, fourth) = (ask(3, 5), ask(4, 5));
        assert!(third.is_some() && fourth.is_some());
        assert!(ask(5, 5).is_none(), "an eighth more, and no more");
        drop((first, third, fourth));
        assert_eq!(budget.used(), 11, "those that waited");
    }

    #[test]
    fn one_request_alone_may_be_larger_than_the_limit() {
        let (budget, _, asker) = world(10, 10);
        assert!(budget.ask(&asker, 1, 0, 50, 0).is_some());
    }

    #[test]
    fn a_pause_gives_no_room_and_its_end_does() {
        let (budget, calls, asker) = world(10, 10);
        budget.pause(true);
        assert!(budget.ask(&asker, 1, 7, 1, 0).is_none());
        budget.pause(false);
        assert_eq!(granted(&calls), [7]);
    }

    #[test]
    fn a_connection_that_ends_leaves_nothing_behind() {
        let (budget, calls, asker) = world(10, 10);
        let first = budget.ask(&asker, 1, 0, 10, 0).unwrap();
        assert!(budget.ask(&asker, 2, 1, 4, 0).is_none());
        assert!(budget.ask(&asker, 2, 2, 9, 0).is_none());
        assert!(budget.ask(&asker, 3, 3, 4, 0).is_none());
        budget.forget_connection(2);
        assert_eq!(budget.waiting(), 1);
        drop(first);
        assert_eq!(granted(&calls), [3]);
        lock(&calls.0).clear();
        assert!(lock(&budget.state).connections.is_empty());
    }

    #[test]
    fn a_call_that_ends_while_it_waits_lets_the_next_one_in() {
        let (budget, calls, asker) = world(10, 10);
        let _first = budget.ask(&asker, 1, 0, 6, 0).unwrap();
        assert!(budget.ask(&asker, 2, 1, 9, 0).is_none());
        assert!(budget.ask(&asker, 3, 2, 4, 0).is_none());
        budget.forget(2, 1);
        assert_eq!(granted(&calls), [2]);
    }
}
