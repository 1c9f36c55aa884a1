//! Room for answers: bytes that were handed over to be sent, and that the socket has not taken.
//!
//! HTTP/2 keeps an answer until its client's window and its socket take it, then drops it. So an answer is a `Buf`
//! that gives its room back when it is dropped, wherever that happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use bytes::{Buf, Bytes};

use crate::inbox::{Event, Inbox, Kind};

/// What an answer costs beside its bytes.
const ANSWER_BYTES: usize = 128;
/// Always sent: the answers of stored requests must reach their clients.
pub const SMALL_BYTES: usize = 4 << 10;

/// The answers of all connections.
pub struct Unread {
    limit: usize,
    part: usize,
    used: AtomicUsize,
    refused: AtomicU64,
}

impl Unread {
    pub fn new(limit: usize, part: usize) -> Arc<Self> {
        Arc::new(Unread { limit, part, used: AtomicUsize::new(0), refused: AtomicU64::new(0) })
    }

    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Answers that found no room.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Whether answers wait so that others soon find no room.
    pub fn is_short(&self) -> bool {
        self.used() > self.limit / 4 * 3
    }
}

/// The answers of one connection.
pub struct ConnectionUnread {
    all: Arc<Unread>,
    used: AtomicUsize,
    taken: AtomicU64,
}

impl ConnectionUnread {
    pub fn new(all: &Arc<Unread>) -> Arc<Self> {
        Arc::new(ConnectionUnread { all: all.clone(), used: AtomicUsize::new(0), taken: AtomicU64::new(0) })
    }

    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Bytes that the socket has taken since the connection began.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// No further request is read from a client that does not read its answers.
    pub fn is_full(&self) -> bool {
        self.used() > self.all.part
    }

    /// An answer to send, or `None` when there is no room for it. One alone may be larger than the bounds.
    pub fn answer(self: &Arc<Self>, data: Bytes, call: Option<&Arc<CallUnread>>) -> Option<Answer> {
        let size = data.len() + ANSWER_BYTES;
        let all = self.all.used.fetch_add(size, Relaxed);
        let mine = self.used.fetch_add(size, Relaxed);
        if let Some(call) = call {
            call.used.fetch_add(size, SeqCst);
        }
        let fits = (all == 0 || all + size <= self.all.limit) && (mine == 0 || mine + size <= self.all.part);
        if fits || size <= SMALL_BYTES {
            return Some(Answer { data, size, connection: self.clone(), call: call.cloned() });
        }
        self.all.refused.fetch_add(1, Relaxed);
        self.free(size, call); // the socket has not taken it: its client reads no more than before
        None
    }

    fn free(&self, size: usize, call: Option<&Arc<CallUnread>>) {
        self.all.used.fetch_sub(size, Relaxed);
        self.used.fetch_sub(size, Relaxed);
        if let Some(call) = call {
            call.sent(size);
        }
    }
}

/// The answers of one call that Python is told about.
pub struct CallUnread {
    inbox: Arc<Inbox>,
    token: u64,
    kind: Kind,
    low: usize,
    high: usize,
    used: AtomicUsize,
    waiting: AtomicBool,
}

impl CallUnread {
    /// Of a stream: Python is told that it may write when `low` bytes are left of more than `high`.
    pub fn stream(inbox: &Arc<Inbox>, token: u64, high: usize) -> Arc<Self> {
        Self::new(inbox, token, Kind::Writable, high / 2, high, false)
    }

    /// Of a unary call: Python is told that its answer is held no longer.
    pub fn unary(inbox: &Arc<Inbox>, token: u64) -> Arc<Self> {
        Self::new(inbox, token, Kind::Sent, 0, 0, true)
    }

    fn new(inbox: &Arc<Inbox>, token: u64, kind: Kind, low: usize, high: usize, waiting: bool) -> Arc<Self> {
        let (used, waiting) = (AtomicUsize::new(0), AtomicBool::new(waiting));
        Arc::new(CallUnread { inbox: inbox.clone(), token, kind, low, high, used, waiting })
    }

    /// Whether Python may write on. When not, it is told later.
    pub fn may_write(&self) -> bool {
        if self.used.load(SeqCst) <= self.high {
            return true;
        }
        self.waiting.store(true, SeqCst);
        // What was sent between the two loads has told nobody.
        if self.used.load(SeqCst) <= self.low && self.waiting.swap(false, SeqCst) {
            return true;
        }
        false
    }

    /// Of an answer that was given, and that nothing holds: the connection was gone.
    pub fn tell_if_unused(&self) {
        if self.used.load(SeqCst) == 0 && self.waiting.swap(false, SeqCst) {
            self.inbox.put_event(Event::of(self.token, self.kind));
        }
    }

    fn sent(&self, size: usize) {
        let left = self.used.fetch_sub(size, SeqCst) - size;
        if left <= self.low && self.waiting.swap(false, SeqCst) {
            self.inbox.put_event(Event::of(self.token, self.kind));
        }
    }
}

/// A framed answer on its way.
pub struct Answer {
    data: Bytes,
    size: usize,
    connection: Arc<ConnectionUnread>,
    call: Option<Arc<CallUnread>>,
}

impl Buf for Answer {
    fn remaining(&self) -> usize {
        self.data.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.data
    }

    fn advance(&mut self, count: usize) {
        self.data.advance(count);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.connection.taken.fetch_add(self.size as u64, Relaxed);
        self.connection.free(self.size, self.call.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_room_is_not_taken_for_one_that_was_read() {
        let unread = Unread::new(100_000, 100_000);
        let connection = ConnectionUnread::new(&unread);
        let answer = |size| connection.answer(Bytes::from(vec![0; size]), None);
        let first = answer(90_000);
        assert!(first.is_some() && answer(20_000).is_none());
        assert_eq!((connection.used(), connection.taken(), unread.refused()), (90_000 + ANSWER_BYTES, 0, 1));
        drop(first);
        assert_eq!((connection.used(), unread.used()), (0, 0));
        assert_eq!(connection.taken(), 90_000 + ANSWER_BYTES as u64);
    }
}
