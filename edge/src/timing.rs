//! The times of a connection: when to look again, whether its client is silent, how long it may live.

use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::clock::now_ms;
use crate::limits::Limits;
use crate::watch::Watch;

const NEVER: u64 = u64::MAX;

/// One timer, which is set again only to ring earlier: it may ring for nothing.
pub struct Alarm {
    sleep: Pin<Box<Sleep>>,
    due_ms: u64,
}

impl Alarm {
    pub fn new() -> Self {
        Alarm { sleep: Box::pin(sleep_until(Instant::now())), due_ms: NEVER }
    }

    /// Whether it rings. When not, the context is woken at `due_ms` or before.
    pub fn rings(&mut self, due_ms: u64, now_ms: u64, cx: &mut Context<'_>) -> bool {
        if due_ms == NEVER {
            return false;
        }
        if due_ms <= now_ms {
            self.due_ms = NEVER;
            return true;
        }
        if due_ms < self.due_ms {
            self.due_ms = due_ms;
            self.sleep.as_mut().reset(Instant::now() + Duration::from_millis(due_ms - now_ms));
        }
        if self.sleep.as_mut().poll(cx).is_ready() {
            self.due_ms = NEVER;
            return true;
        }
        false
    }
}

impl Default for Alarm {
    fn default() -> Self {
        Self::new()
    }
}

/// Keepalive and the maximum age.
pub struct Lifetime {
    pings: Option<PingPong>,
    keepalive_ms: u64,
    timeout_ms: u64,
    pinged_ms: Option<u64>,
    old_at_ms: u64,
    ends_at_ms: u64,
}

impl Lifetime {
    /// id: spreads the ends of connections that began together.
    pub fn new(pings: Option<PingPong>, limits: &Limits, max_age_ms: u64, id: u32) -> Self {
        let age = max_age_ms;
        let spread = (age / 5).saturating_mul(u64::from(id.wrapping_mul(0x9e37_79b9) >> 16)) / 65_536;
        Lifetime {
            pings,
            keepalive_ms: limits.keepalive_ms,
            timeout_ms: limits.keepalive_timeout_ms,
            pinged_ms: None,
            old_at_ms: if age == 0 { NEVER } else { now_ms() + age - age / 10 + spread },
            ends_at_ms: NEVER,
        }
    }

    pub fn next_due(&self, watch: &Watch) -> u64 {
        let keepalive = match self.pinged_ms {
            _ if self.keepalive_ms == 0 => NEVER,
            Some(pinged) => pinged + self.timeout_ms + 1,
            None => watch.read_ms.load(Relaxed) + self.keepalive_ms,
        };
        keepalive.min(self.old_at_ms).min(self.ends_at_ms)
    }

    /// Whether the client has not answered a ping. Sends one when it is time.
    pub fn is_silent(&mut self, now: u64, watch: &Watch) -> bool {
        let read = watch.read_ms.load(Relaxed);
        if let Some(pinged) = self.pinged_ms {
            if read < pinged {
                return now > pinged + self.timeout_ms;
            }
            self.pinged_ms = None;
        }
        if self.keepalive_ms > 0 && now >= read + self.keepalive_ms {
            if let Some(pings) = self.pings.as_mut() {
                let mut cx = Context::from_waker(Waker::noop());
                while let Poll::Ready(Ok(_)) = pings.poll_pong(&mut cx) {} // of a ping before
                let _ = pings.send_ping(Ping::opaque());
            }
            self.pinged_ms = Some(now);
        }
        false
    }

    /// Whether the connection has just become too old.
    pub fn is_old(&mut self, now: u64) -> bool {
        let old = now >= self.old_at_ms;
        if old {
            self.old_at_ms = NEVER;
        }
        old
    }

    pub fn end_by(&mut self, at_ms: u64) {
        self.ends_at_ms = self.ends_at_ms.min(at_ms);
    }

    pub fn ends_within(&self, now: u64, ms: u64) -> bool {
        self.ends_at_ms <= now + ms
    }

    pub fn is_over(&self, now: u64) -> bool {
        now >= self.ends_at_ms
    }
}
