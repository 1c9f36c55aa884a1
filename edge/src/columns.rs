//! Requests of one queue, one after the other, as columns.

use std::sync::Arc;

use bytes::Bytes;

use crate::caller::Caller;
use crate::decode::{EnqueueRequest, MAX_BATCH_BYTES, MAX_MESSAGES};
use crate::inbox::Origin;
use crate::single::Door;

/// A request with larger records is a group by itself, and its records are not copied.
pub const LARGE_BYTES: usize = 64 << 10;

/// The records of a group.
pub enum Records {
    Joined(Vec<u8>),
    /// A view over the message that was received.
    Whole(Bytes),
}

impl Records {
    pub fn len(&self) -> usize {
        match self {
            Records::Joined(bytes) => bytes.len(),
            Records::Whole(bytes) => bytes.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// r requests with n messages together, in the order in which they came.
pub struct Group {
    pub topic: String,
    pub queue: u32,
    /// `None`: they name a queue. Else they came by this door, and Python says which.
    pub door: Option<Door>,
    /// Of all of them; `None`: not asked for.
    pub caller: Option<Arc<Caller>>,
    pub forwarded: bool,
    pub messages: u32,
    pub nbytes: usize,
    pub time: Vec<u8>,
    /// Empty while no request has relative times; may be shorter than n until finish().
    pub relative: Vec<u8>,
    pub size: Vec<u8>,
    pub key: Vec<u8>,
    pub tag: Vec<u8>,
    pub records: Records,
    pub count: Vec<u32>,
    pub producer: Vec<u64>,
    pub number: Vec<u64>,
    pub token: Vec<u64>,
    pub deadline_ms: Vec<i64>,
}

impl Group {
    pub fn new(request: &EnqueueRequest<'_>, origin: Origin<'_>) -> Self {
        Group {
            topic: request.topic.to_owned(),
            queue: request.queue,
            door: origin.door,
            caller: origin.caller.cloned(),
            forwarded: origin.forwarded,
            messages: 0,
            nbytes: 0,
            time: Vec::new(),
            relative: Vec::new(),
            size: Vec::new(),
            key: Vec::new(),
            tag: Vec::new(),
            records: Records::Joined(Vec::new()),
            count: Vec::new(),
            producer: Vec::new(),
            number: Vec::new(),
            token: Vec::new(),
            deadline_ms: Vec::new(),
        }
    }

    /// Whether the request may join: what is together may be stored as one batch.
    pub fn has_room_for(&self, request: &EnqueueRequest<'_>) -> bool {
        matches!(self.records, Records::Joined(_))
            && self.messages + request.count <= MAX_MESSAGES
            && self.records.len() + request.records.len() <= MAX_BATCH_BYTES
    }

    /// Add a request whose columns fit. message: what it was decoded from, or `None` when those bytes are borrowed.
    pub fn add(&mut self, request: &EnqueueRequest<'_>, message: Option<&Bytes>, token: u64, deadline_ms: i64) {
        let (before, n) = (self.messages as usize, request.count as usize);
        self.time.extend_from_slice(request.time);
        if !request.relative.is_empty() {
            self.relative.resize(before, 0);
            self.relative.extend_from_slice(request.relative);
        }
        self.size.extend_from_slice(request.size);
        extend_or_zero(&mut self.key, request.key_hash, 4 * n);
        extend_or_zero(&mut self.tag, request.tag_hash, 4 * n);
        match (&mut self.records, message) {
            (Records::Joined(joined), Some(message)) if joined.is_empty() && request.records.len() > LARGE_BYTES => {
                self.records = Records::Whole(message.slice_ref(request.records));
            }
            (Records::Joined(joined), _) => joined.extend_from_slice(request.records),
            (Records::Whole(_), _) => debug_assert!(false, "has_room_for() keeps others out"),
        }
        self.messages += request.count;
        self.nbytes += 8 * n + 4 * n * 3 + request.relative.len() + request.records.len();
        self.count.push(request.count);
        self.producer.push(request.producer_id);
        self.number.push(request.number);
        self.token.push(token);
        self.deadline_ms.push(deadline_ms);
    }

    /// No more requests come.
    pub fn finish(&mut self) {
        if !self.relative.is_empty() {
            self.relative.resize(self.messages as usize, 0);
        }
    }
}

fn extend_or_zero(column: &mut Vec<u8>, from: &[u8], length: usize) {
    if from.is_empty() {
        column.resize(column.len() + length, 0);
    } else {
        column.extend_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANYBODY: Origin<'static> = Origin { caller: None, forwarded: false, door: None };

    fn request<'a>(relative: &'a [u8], key_hash: &'a [u8], records: &'a [u8]) -> EnqueueRequest<'a> {
        let (time, size) = (&[0; 8], &[1, 0, 0, 0]);
        EnqueueRequest { topic: "t", count: 1, time, size, relative, key_hash, records, ..EnqueueRequest::default() }
    }

    #[test]
    fn absent_columns_are_zeros_beside_those_that_are_there() {
        let mut group = Group::new(&request(&[], &[], b"a"), ANYBODY);
        group.add(&request(&[], &[], b"a"), None, 1, -1);
        group.add(&request(&[1], &[9, 0, 0, 0], b"b"), None, 2, 5);
        group.add(&request(&[], &[], b"c"), None, 3, -1);
        group.finish();
        assert_eq!(group.relative, [0, 1, 0]);
        assert_eq!(group.key, [0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((group.token, group.deadline_ms), (vec![1, 2, 3], vec![-1, 5, -1]));
    }

    #[test]
    fn the_relative_column_is_empty_when_all_times_are_absolute() {
        let mut group = Group::new(&request(&[], &[], b"a"), ANYBODY);
        group.add(&request(&[], &[], b"a"), None, 1, -1);
        group.finish();
        assert!(group.relative.is_empty());
    }

    #[test]
    fn requests_join_up_to_the_bounds_of_a_batch() {
        let one = request(&[], &[], b"a");
        let room = |messages, bytes| {
            let mut group = Group::new(&one, ANYBODY);
            (group.messages, group.records) = (messages, Records::Joined(vec![0; bytes]));
            group.has_room_for(&one)
        };
        assert!(room(MAX_MESSAGES - 1, 1) && !room(MAX_MESSAGES, 1));
        assert!(room(1, MAX_BATCH_BYTES - 1) && !room(1, MAX_BATCH_BYTES));
    }

    #[test]
    fn large_records_are_not_copied_and_stay_alone() {
        let message = Bytes::from(vec![7; LARGE_BYTES + 1]);
        let large = request(&[], &[], &message);
        let mut group = Group::new(&large, ANYBODY);
        group.add(&large, Some(&message), 1, -1);
        assert!(matches!(&group.records, Records::Whole(records) if records.as_ptr() == message.as_ptr()));
        assert!(!group.has_room_for(&request(&[], &[], b"a")));
    }
}
