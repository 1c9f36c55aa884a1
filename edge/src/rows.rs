//! Enqueue requests that Python has, by token. They outlive their connection: their bytes are in memory until Python
//! has answered.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use slab::Slab;

use crate::budget::Hold;
use crate::inbox::Begun;
use crate::link::Link;
use crate::lock::lock;
use crate::single::Asked;

/// Set in the token of a row. The others are a connection and a call of it.
pub const ROW: u64 = 1 << 63;

pub struct Row {
    pub link: Arc<Link>,
    pub call: u32,
    /// One of many requests of an EnqueueStream, at this place.
    pub in_stream: bool,
    pub place: u64,
    /// Whether the answer has the dues.
    pub relative: bool,
    pub hold: Option<Hold>,
    /// Of a door's request.
    pub single: Option<Box<Single>>,
}

/// A door's request, as long as Python may still have it served as a call.
pub struct Single {
    pub asked: Asked,
    pub begun: Begun,
    pub body: Bytes,
}

#[derive(Default)]
pub struct Rows {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    rows: Slab<(u32, Row)>,
    last: u32,
}

impl Rows {
    /// Returns the token: a place that is used again has another number.
    pub fn add(&self, row: Row) -> u64 {
        let mut state = lock(&self.state);
        state.last = (state.last + 1) & 0x7fff_ffff;
        let number = state.last;
        let at = state.rows.insert((number, row));
        ROW | u64::from(number) << 32 | at as u64
    }

    /// The rows of these tokens, for their last use; `None` for one that was answered before.
    pub fn remove(&self, tokens: &[u64]) -> Vec<Option<Row>> {
        let mut state = lock(&self.state);
        tokens.iter().map(|&token| state.remove(token)).collect()
    }

    /// What a door has read of this row, which stays: from now on it is a call's. `None` where nothing is read.
    pub fn take_single(&self, token: u64) -> Option<Single> {
        lock(&self.state).get_mut(token)?.single.take().map(|single| *single)
    }

    pub fn len(&self) -> usize {
        lock(&self.state).rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl State {
    fn get_mut(&mut self, token: u64) -> Option<&mut Row> {
        let (at, number) = (token as u32 as usize, (token >> 32) as u32 & 0x7fff_ffff);
        self.rows.get_mut(at).filter(|(has, _)| token & ROW != 0 && *has == number).map(|(_, row)| row)
    }

    fn remove(&mut self, token: u64) -> Option<Row> {
        self.get_mut(token)?;
        self.rows.try_remove(token as u32 as usize).map(|(_, row)| row)
    }
}
