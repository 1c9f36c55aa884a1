//! What all connections of an edge share.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::HeaderName;

use crate::budget::{Budget, REQUEST_BYTES};
use crate::clock::now_ms;
use crate::encode::rich_status;
use crate::figures::{Figures, ThreadClocks};
use crate::grpc::{RESOURCE_EXHAUSTED, Status, UNAUTHENTICATED};
use crate::inbox::{Event, Inbox, Kind};
use crate::limits::Limits;
use crate::link::Link;
use crate::lock::lock;
use crate::rows::Rows;
use crate::single::Door;
use crate::unread::{CallUnread, Unread};

/// How a method's calls are taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// Enqueue: one request, handed over in columns.
    Row,
    /// EnqueueStream: many of them, answered in their order.
    RowStream,
    /// A door's request: one about one message is handed over as a row, if it is a usual one.
    Single(Door),
    Unary,
    Stream,
}

impl Shape {
    /// Whether messages are to be stored.
    pub fn stores(self) -> bool {
        match self {
            Shape::Row | Shape::RowStream => true,
            Shape::Single(door) => door.stores(),
            Shape::Unary | Shape::Stream => false,
        }
    }
}

#[derive(Clone)]
pub struct Method {
    pub path: Arc<str>,
    pub shape: Shape,
}

pub struct Core {
    pub limits: Limits,
    pub methods: HashMap<String, Method>,
    /// What Python is told of calls that are not rows, where they have it.
    pub metadata: Vec<HeaderName>,
    pub inbox: Arc<Inbox>,
    pub rows: Rows,
    pub rows_budget: Arc<Budget>,
    pub calls_budget: Arc<Budget>,
    pub unread: Arc<Unread>,
    pub figures: Figures,
    pub threads: ThreadClocks,
    /// Calls that are open.
    pub calls: AtomicUsize,
    /// Bytes of `windows_bytes` that are given away.
    pub windows: AtomicUsize,
    /// The encoded details of a google.rpc.Status, for a request for which there is no room now.
    busy: Bytes,
    /// The same for a stream whose caller's identity has expired.
    expired: Bytes,
    told_of_failure_ms: AtomicU64,
    pub draining: AtomicBool,
    connections: Mutex<HashMap<u32, Arc<Link>>>,
    streams: Mutex<HashMap<u64, Arc<CallUnread>>>,
}

/// Between two that Python is told of.
const FAILURE_MS: u64 = 1_000;

fn detailed(code: u32, message: String, details: &Bytes) -> Status {
    let details = if details.is_empty() { Bytes::new() } else { rich_status(code, &message, details) };
    Status { code, message, details }
}

/// More than wait while Python takes what comes.
const EVENTS_PER_CALL: usize = 8;

fn bytes(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

impl Core {
    pub fn new(
        methods: impl IntoIterator<Item = (String, Shape)>, metadata: Vec<HeaderName>, limits: Limits, busy: Bytes,
        expired: Bytes,
    ) -> io::Result<Arc<Self>> {
        let named = |(path, shape): (String, Shape)| {
            let method = Method { path: Arc::from(path.as_str()), shape };
            (path, method)
        };
        let small = bytes(limits.small_bytes) + REQUEST_BYTES;
        let budget = |limit, part| Budget::new(bytes(limit), bytes(part), small);
        Ok(Arc::new(Core {
            methods: methods.into_iter().map(named).collect(),
            metadata,
            inbox: Arc::new(Inbox::new()?),
            rows: Rows::default(),
            rows_budget: budget(limits.rows_bytes, limits.rows_bytes_per_connection),
            calls_budget: budget(limits.calls_bytes, limits.calls_bytes_per_connection),
            unread: Unread::new(bytes(limits.unread_bytes), bytes(limits.unread_bytes_per_connection)),
            figures: Figures::default(),
            threads: ThreadClocks::default(),
            calls: AtomicUsize::new(0),
            windows: AtomicUsize::new(0),
            busy,
            expired,
            told_of_failure_ms: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            connections: Mutex::default(),
            streams: Mutex::default(),
            limits,
        }))
    }

    /// How a call ends for which there is no room: its client may try again soon.
    pub fn busy(&self, message: String) -> Status {
        detailed(RESOURCE_EXHAUSTED, message, &self.busy)
    }

    /// How a stream ends whose caller is known no longer.
    pub fn expired(&self) -> Status {
        detailed(UNAUTHENTICATED, "what the caller was known by has expired".to_owned(), &self.expired)
    }

    /// Clients are only told that they can't connect: Python may say in a log what was wrong, of one a second.
    pub fn handshake_failed(&self, link: &Link, why: &str) {
        self.figures.handshakes_failed.add_one();
        let (now, told) = (now_ms(), self.told_of_failure_ms.load(Relaxed));
        if now >= told + FAILURE_MS {
            self.told_of_failure_ms.store(now, Relaxed);
            let reason = format!("{} by listener {}: {why}", link.peer, link.listener.name).into();
            self.inbox.put_event(Event { reason, ..Event::of(0, Kind::Failed) });
        }
    }

    pub fn budget(&self, shape: Shape) -> &Arc<Budget> {
        if shape.stores() { &self.rows_budget } else { &self.calls_budget }
    }

    /// Whether a call that begins would be one too many.
    pub fn is_full(&self) -> bool {
        let most = bytes(self.limits.max_calls);
        self.calls.load(Relaxed) >= most || self.inbox.events() >= most.saturating_mul(EVENTS_PER_CALL)
    }

    pub fn link(&self, token: u64) -> Option<Arc<Link>> {
        lock(&self.connections).get(&((token >> 32) as u32)).cloned()
    }

    pub fn links(&self) -> Vec<Arc<Link>> {
        lock(&self.connections).values().cloned().collect()
    }

    pub fn connections(&self) -> usize {
        lock(&self.connections).len()
    }

    pub fn stream(&self, token: u64) -> Option<Arc<CallUnread>> {
        lock(&self.streams).get(&token).cloned()
    }

    pub fn add_stream(&self, token: u64) -> Arc<CallUnread> {
        let unread = CallUnread::stream(&self.inbox, token, bytes(self.limits.write_bytes));
        lock(&self.streams).insert(token, unread.clone());
        unread
    }

    pub fn remove_stream(&self, token: u64) {
        let removed = lock(&self.streams).remove(&token);
        drop(removed); // without the lock
    }

    /// No new connections come: tell Python when the last one has gone.
    pub fn drain(&self) {
        self.draining.store(true, SeqCst);
        self.tell_if_drained(self.connections());
    }

    fn tell_if_drained(&self, left: usize) {
        if left == 0 && self.draining.swap(false, SeqCst) {
            self.inbox.put_event(Event::of(0, Kind::Drained));
        }
    }
}

/// A connection is known while this lives.
pub struct Registered {
    core: Arc<Core>,
    link: Arc<Link>,
}

impl Registered {
    /// `None` when there are too many, or one of that id: after 2^31 others they begin anew.
    pub fn new(core: &Arc<Core>, link: &Arc<Link>) -> Option<Self> {
        let mut connections = lock(&core.connections);
        if connections.len() as u64 >= core.limits.max_connections || connections.contains_key(&link.id) {
            return None;
        }
        connections.insert(link.id, link.clone());
        Some(Registered { core: core.clone(), link: link.clone() })
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let left = {
            let mut connections = lock(&self.core.connections);
            connections.remove(&self.link.id);
            connections.len()
        };
        self.core.rows_budget.forget_connection(self.link.id);
        self.core.calls_budget.forget_connection(self.link.id);
        self.link.close();
        if std::thread::panicking() {
            self.core.figures.panics.add_one();
        }
        self.core.tell_if_drained(left);
    }
}

/// A call is open while this lives.
pub struct Open(Arc<Core>);

impl Open {
    pub fn new(core: &Arc<Core>) -> Self {
        core.calls.fetch_add(1, Relaxed);
        Open(core.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Relaxed);
    }
}

/// A part of `windows_bytes`: what a client sends into its window is memory that no budget counts.
pub struct Window {
    core: Arc<Core>,
    size: usize,
}

impl Window {
    /// `None` when the windows of all connections would be too large.
    pub fn new(core: &Arc<Core>, size: u64) -> Option<Self> {
        let size = bytes(size);
        if core.windows.fetch_add(size, Relaxed).saturating_add(size) <= bytes(core.limits.windows_bytes) {
            return Some(Window { core: core.clone(), size });
        }
        core.windows.fetch_sub(size, Relaxed);
        None
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.core.windows.fetch_sub(self.size, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::Listener;

    #[test]
    fn an_id_that_is_in_use_is_not_given_to_another_connection() {
        let core = Core::new([], Vec::new(), Limits::default(), Bytes::new(), Bytes::new()).unwrap();
        let listener = Arc::new(Listener::plain(&core.limits));
        let link = |peer: &str| Link::new(7, Arc::from(peer), listener.clone(), &core.unread);
        let first = Registered::new(&core, &link("first"));
        assert!(Registered::new(&core, &link("second")).is_none());
        assert_eq!(&*core.link(7 << 32).unwrap().peer, "first");
        drop(first);
        assert!(Registered::new(&core, &link("second")).is_some());
    }
}
