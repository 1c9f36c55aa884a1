//! What a connection does because time has passed.

use std::sync::atomic::Ordering::Relaxed;

use tokio::io::{AsyncRead, AsyncWrite};

use super::Connection;
use crate::call::Call;
use crate::clock::now_ms;
use crate::core::Shape;
use crate::grpc;

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    pub(super) fn next_due(&self, now: u64) -> u64 {
        let limits = &self.core.limits;
        let mut due = self.lifetime.next_due(&self.watch);
        if let Some(&(deadline, _)) = self.deadlines.first() {
            due = due.min(deadline);
        }
        if self.waiting > 0 {
            due = due.min(now + (limits.room_ms / 4).max(1));
        }
        if !self.calls.is_empty() || self.watch.incomplete_since_ms.load(Relaxed) != 0 {
            due = due.min(now + (limits.header_ms.min(limits.request_idle_ms) / 4).clamp(50, 1_000));
        }
        due
    }

    pub(super) fn tick(&mut self, now: u64) {
        while let Some(&(deadline, number)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_first();
            if self.calls.get(&number).is_some_and(|call| call.expires_ms <= now) {
                self.end_with(number, "refused", &self.core.expired());
            } else {
                self.end_for(number, "deadline", grpc::DEADLINE_EXCEEDED, "the deadline has passed");
            }
        }
        self.give_up_idle(now);
        self.give_up_waiting(now);
        let incomplete_since = self.watch.incomplete_since_ms.load(Relaxed);
        if incomplete_since != 0 && now > incomplete_since + self.core.limits.header_ms {
            self.cut();
        }
        if self.lifetime.is_silent(now, &self.watch) {
            self.cut();
        }
        if self.lifetime.is_old(now) {
            self.lifetime.end_by(now + self.core.limits.age_grace_ms);
            self.h2.graceful_shutdown();
        }
        self.is_over |= self.lifetime.is_over(now);
    }

    pub(super) fn cut(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.core.figures.connections_cut.add_one();
        }
    }

    /// Requests that were begun and do not go on.
    pub(super) fn give_up_idle(&mut self, now: u64) {
        let limit_ms = self.core.limits.request_idle_ms;
        let is_idle = |call: &Call| {
            let unary = matches!(call.method.shape, Shape::Row | Shape::Unary);
            call.body.as_ref().is_some_and(|body| {
                (unary || !body.is_between()) && !body.is_waiting() && now > body.progress_ms + limit_ms
            })
        };
        let message = format!("no byte of the request came for {limit_ms} ms");
        for number in self.calls_where(is_idle) {
            if !self.choked.contains(&number) {
                self.refuse(number, grpc::DEADLINE_EXCEEDED, message.clone());
            }
        }
    }

    /// Unary calls: their clients try again. A stream is held up.
    fn give_up_waiting(&mut self, now: u64) {
        if self.waiting == 0 {
            return;
        }
        let limit_ms = self.core.limits.room_ms;
        let is_late = |call: &Call| {
            matches!(call.method.shape, Shape::Row | Shape::Unary)
                && call.waits.as_ref().is_some_and(|waits| now > waits.since_ms + limit_ms)
        };
        for number in self.calls_where(is_late) {
            self.refuse_busy(number);
        }
    }

    pub(super) fn give_up_slow(&mut self) {
        let (limit_ms, now) = (self.core.limits.slow_request_ms, now_ms());
        let is_slow =
            |call: &Call| call.body.as_ref().is_some_and(|body| body.is_receiving() && now > body.began_ms + limit_ms);
        let message = format!("the request was not here after {limit_ms} ms, and others wait");
        for number in self.calls_where(is_slow) {
            self.end_busy(number, message.clone());
        }
    }

    pub(super) fn calls_where(&self, wanted: impl Fn(&Call) -> bool) -> Vec<u32> {
        self.calls.iter().filter(|(_, call)| wanted(call)).map(|(&number, _)| number).collect()
    }
}
