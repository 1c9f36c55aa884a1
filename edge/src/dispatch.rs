//! Answers of rows, from one call for a group to the connections that wait for them.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::core::Core;
use crate::encode::{self, Stored};
use crate::grpc::Status;
use crate::inbox::{Event, Kind};
use crate::link::{Link, Mail};
use crate::rows::{Row, Single};

/// What was stored of r requests with n messages together.
pub struct StoredRows {
    pub token: Vec<u64>,
    pub count: Vec<u32>,
    /// Where they are; of rows that have named one it is not looked at.
    pub queue: u32,
    pub uid: u64,
    pub first_seq: Vec<i64>,
    /// i64[n] ms, or empty.
    pub due: Vec<i64>,
    /// u8[r], or empty: none is.
    pub duplicate: Vec<u8>,
}

impl StoredRows {
    /// What is wrong with the lengths, if anything is.
    pub fn misfit(&self) -> Option<String> {
        let r = self.token.len();
        let messages: u64 = self.count.iter().map(|&count| u64::from(count)).sum();
        if self.count.len() != r || self.first_seq.len() != r {
            let (count, first_seq) = (self.count.len(), self.first_seq.len());
            return Some(format!("token has {r} rows, count {count} and first_seq {first_seq}"));
        }
        if !self.duplicate.is_empty() && self.duplicate.len() != r {
            return Some(format!("token has {r} rows, duplicate {}", self.duplicate.len()));
        }
        if !self.due.is_empty() && self.due.len() as u64 != messages {
            return Some(format!("due has {} rows, count adds up to {messages}", self.due.len()));
        }
        None
    }
}

/// Runs on the runtime, where waking a connection costs no system call. A panic is one group's: the answers of all
/// others come through here as well.
pub async fn run(core: Arc<Core>, mut stored: UnboundedReceiver<StoredRows>) {
    while let Some(rows) = stored.recv().await {
        if catch_unwind(AssertUnwindSafe(|| answer(&core, &rows))).is_err() {
            core.figures.panics.add_one();
        }
    }
}

/// rows: its columns fit each other.
pub fn answer(core: &Core, rows: &StoredRows) {
    let mut woken = Vec::new();
    let mut at = 0;
    for (place, row) in core.rows.remove(&rows.token).into_iter().enumerate() {
        let count = rows.count[place];
        let end = at + count as usize;
        if let Some(row) = row {
            let first_seq = rows.first_seq[place];
            if let Some(single) = &row.single {
                let due_ms = rows.due.get(at).copied().or(single.asked.time_ms).unwrap_or(0);
                let answer = single.asked.stored(rows.queue, rows.uid, due_ms, first_seq);
                send(row, answer, &mut woken);
                at = end;
                continue;
            }
            let due: Vec<u8> = match rows.due.get(at..end) {
                Some(due) if row.relative => due.iter().flat_map(|due| due.to_le_bytes()).collect(),
                _ => Vec::new(),
            };
            let duplicate = rows.duplicate.get(place).is_some_and(|&duplicate| duplicate != 0);
            let answer = encode::stored(&Stored { uid: rows.uid, first_seq, count, due: &due, duplicate });
            send(row, answer, &mut woken);
        }
        at = end;
    }
    let mut seen = HashSet::new();
    for link in woken {
        if seen.insert(link.id) {
            link.wake();
        }
    }
}

/// Answer one row that Python has served as a call, with an encoded EnqueueResponse.
pub fn answer_encoded(core: &Core, token: u64, body: &[u8]) {
    let Some(row) = core.rows.remove(&[token]).pop().flatten() else { return };
    let mut woken = Vec::new();
    send(row, encode::framed(body), &mut woken);
    for link in woken {
        link.wake();
    }
}

/// Refuse one row: status ends an Enqueue, error is an answer in an EnqueueStream.
pub fn refuse(core: &Core, token: u64, status: Status, error: &[u8]) {
    let Some(row) = core.rows.remove(&[token]).pop().flatten() else { return };
    let (link, call) = (row.link.clone(), row.call);
    let mut woken = Vec::new();
    if row.in_stream {
        send(row, encode::refused(error), &mut woken);
    } else {
        woken.extend(link.put(Mail::End { call, status }).then_some(link));
    }
    for link in woken {
        link.wake();
    }
}

/// Say what became of what a door has read, in the way of a door that says so in its answers.
pub fn answer_single(core: &Core, token: u64, status: &[u8]) {
    let Some(single) = core.rows.take_single(token) else { return };
    let Some(row) = core.rows.remove(&[token]).pop().flatten() else { return };
    let mut woken = Vec::new();
    send(row, single.asked.answer(status), &mut woken);
    for link in woken {
        link.wake();
    }
}

/// Have Python serve these as calls, whatever was read of them.
pub fn as_calls(core: &Core, tokens: &[u64]) {
    for &token in tokens {
        if let Some(Single { begun, body, .. }) = core.rows.take_single(token) {
            core.figures.calls_begun.add_one();
            core.inbox.put_event(Event { begun: Some(begun), body: Some(body), ..Event::of(token, Kind::Call) });
        }
    }
}

fn send(row: Row, answer: Bytes, woken: &mut Vec<Arc<Link>>) {
    let Row { link, call, place, hold, .. } = row;
    drop(hold);
    let mail = match link.unread.answer(answer, None) {
        Some(answer) => Mail::Row { call, place, answer },
        None => Mail::NoRoom { call },
    };
    if link.put(mail) {
        woken.push(link);
    }
}
