//! How calls end before they are answered.

use h2::Reason;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Connection;
use crate::call::{Call, Phase};
use crate::clock::now_ms;
use crate::core::Shape;
use crate::grpc::Status;
use crate::inbox::{Event, Kind};

/// To send GOAWAY to a client that is cut.
const FAREWELL_MS: u64 = 1_000;

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    pub(super) fn remove(&mut self, number: u32) -> Option<Call> {
        let call = self.calls.remove(&number)?;
        self.count_waiting(call.phase, Phase::Quiet);
        if call.phase == Phase::Waiting {
            self.core.budget(call.method.shape).forget(self.link.id, number);
        }
        if call.deadline_ms >= 0 {
            self.deadlines.remove(&(call.deadline_ms as u64, number));
        }
        self.deadlines.remove(&(call.expires_ms, number));
        if call.method.shape == Shape::Stream {
            self.core.remove_stream(self.link.token(number));
        }
        Some(call)
    }

    /// The edge itself ends the call. Python is told if it knows of it.
    pub(super) fn refuse(&mut self, number: u32, code: u32, message: impl Into<String>) {
        self.end_for(number, "refused", code, message);
    }

    /// For want of room.
    pub(super) fn end_busy(&mut self, number: u32, message: String) {
        self.end_with(number, "refused", &self.core.busy(message));
    }

    pub(super) fn end_for(&mut self, number: u32, reason: &'static str, code: u32, message: impl Into<String>) {
        self.end_with(number, reason, &Status::new(code, message));
    }

    pub(super) fn end_with(&mut self, number: u32, reason: &'static str, status: &Status) {
        if let Some(call) = self.remove(number) {
            self.core.figures.calls_refused.add_one();
            self.tell_gone(&call, number, reason);
            call.end(status);
        }
    }

    /// The windows are as wide as the calls that wait need it.
    pub(super) fn count_waiting(&mut self, was: Phase, is: Phase) {
        match (was == Phase::Waiting, is == Phase::Waiting) {
            (false, true) => self.waiting += 1,
            (true, false) => self.waiting -= 1,
            _ => return,
        }
        self.h2.set_target_window_size(self.sizes.connection + self.waiting * self.sizes.stream);
    }

    pub(super) fn cancelled(&mut self, number: u32) {
        if let Some(call) = self.remove(number) {
            self.tell_gone(&call, number, "cancelled");
            self.count_reset();
        }
    }

    pub(super) fn tell_gone(&self, call: &Call, number: u32, reason: &'static str) {
        if call.told {
            self.core
                .inbox
                .put_event(Event { reason: reason.into(), ..Event::of(self.link.token(number), Kind::Gone) });
        }
    }

    pub(super) fn count_reset(&mut self) {
        self.core.figures.resets.add_one();
        match self.resets_left.checked_sub(1) {
            Some(left) => self.resets_left = left,
            None => self.end_flood(),
        }
    }

    /// Of a call whose body is not read, only this says that its client has given up. A row's answer is in vain then,
    /// which costs less than to watch all of them.
    pub(super) fn look_for_reset(&mut self, number: u32) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        let watched = call.told || call.method.shape == Shape::RowStream || call.phase == Phase::Waiting;
        if watched && call.is_reset(&self.link, number) {
            self.cancelled(number);
        }
    }

    /// GOAWAY with ENHANCE_YOUR_CALM: this client costs more than it is served.
    pub(super) fn end_flood(&mut self) {
        if !self.lifetime.ends_within(now_ms(), FAREWELL_MS) {
            self.core.figures.connections_cut.add_one();
            self.h2.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            self.lifetime.end_by(now_ms() + FAREWELL_MS);
        }
    }
}
