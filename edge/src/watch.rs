//! What passes by on a connection's socket: when bytes came, whether a header is too long in coming, and floods.
//!
//! HTTP/2 frame: u24 length, u8 type, u8 flags, u32 stream, then `length` bytes. Before the first one come 24 bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clock::now_ms;

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Control frames that a client may send at once. grpc-go sends a ping with nearly every answer that it reads.
const BURST: u64 = 2_000;
const PER_SECOND: u64 = 200;
const PER_USEFUL_FRAME: u64 = 4;
const PER_WRITE: u64 = 2;
const BYTES_PER_WINDOW: u64 = 4 << 10;
const SETTINGS_COST: u64 = 20;

/// Shared between the socket and its connection.
#[derive(Default)]
pub struct Watch {
    pub flooded: AtomicBool,
    /// When bytes came last.
    pub read_ms: AtomicU64,
    /// Since when a frame other than DATA, or a header block, is incomplete; 0: none is.
    pub incomplete_since_ms: AtomicU64,
}

/// A socket that is watched.
pub struct Watched<T> {
    socket: T,
    watch: Arc<Watch>,
    frames: Frames,
}

impl<T> Watched<T> {
    pub fn new(socket: T, watch: Arc<Watch>) -> Self {
        watch.read_ms.store(now_ms(), Relaxed);
        Watched { socket, watch, frames: Frames::new(now_ms()) }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.socket).poll_read(cx, buffer);
        let came = &buffer.filled()[before..];
        if !came.is_empty() {
            let now = now_ms();
            this.watch.read_ms.store(now, Relaxed);
            this.frames.pass(came, now);
            this.watch.incomplete_since_ms.store(this.frames.incomplete_since_ms, Relaxed);
            if this.frames.flooded {
                this.watch.flooded.store(true, Relaxed);
            }
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.socket).poll_write(cx, data);
        this.frames.wrote(&written);
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.socket).poll_write_vectored(cx, data);
        this.frames.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

/// The frames of one direction, of which only the heads are read.
struct Frames {
    skip: usize,
    head: [u8; HEAD_BYTES],
    filled: usize,
    payload_of: u8,
    in_header_block: bool,
    incomplete_since_ms: u64,
    flooded: bool,
    allowance: u64,
    refilled_ms: u64,
}

impl Frames {
    fn new(now_ms: u64) -> Self {
        Frames {
            skip: PREFACE_BYTES,
            head: [0; HEAD_BYTES],
            filled: 0,
            payload_of: DATA,
            in_header_block: false,
            incomplete_since_ms: 0,
            flooded: false,
            allowance: BURST,
            refilled_ms: now_ms,
        }
    }

    fn pass(&mut self, mut bytes: &[u8], now_ms: u64) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if self.skip > 0 {
                return; // `incomplete_since_ms` is as it was when the frame began
            }
            if self.filled == 0 && !self.in_header_block {
                self.incomplete_since_ms = 0;
            }
            if bytes.is_empty() {
                return;
            }
            let wanted = (HEAD_BYTES - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + wanted].copy_from_slice(&bytes[..wanted]);
            self.filled += wanted;
            bytes = &bytes[wanted..];
            if self.incomplete_since_ms == 0 {
                self.incomplete_since_ms = now_ms;
            }
            if self.filled < HEAD_BYTES {
                return;
            }
            self.filled = 0;
            self.begin_frame(now_ms);
        }
    }

    /// A client that reads answers opens its windows, and measures its round trips with pings.
    fn wrote(&mut self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count)) = written {
            self.allowance = (self.allowance + PER_WRITE + *count as u64 / BYTES_PER_WINDOW).min(BURST);
        }
    }

    fn begin_frame(&mut self, now_ms: u64) {
        let [a, b, c, kind, flags, ..] = self.head;
        self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
        self.payload_of = kind;
        match kind {
            HEADERS | CONTINUATION => self.in_header_block = flags & END_HEADERS == 0,
            // A request may be long in coming; its call looks after that.
            DATA => self.incomplete_since_ms = 0,
            _ => {}
        }
        self.count(kind, now_ms);
    }

    fn count(&mut self, kind: u8, now_ms: u64) {
        if kind == HEADERS || (kind == DATA && self.skip > 0) {
            self.allowance = (self.allowance + PER_USEFUL_FRAME).min(BURST);
            return;
        }
        let cost = if kind == SETTINGS { SETTINGS_COST } else { 1 };
        if self.allowance < cost {
            let refill = (now_ms - self.refilled_ms) * PER_SECOND / 1_000;
            self.refilled_ms = now_ms;
            self.allowance = (self.allowance + refill).min(BURST);
        }
        match self.allowance.checked_sub(cost) {
            Some(left) => self.allowance = left,
            None => self.flooded = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: u8 = 6;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let mut out = (payload as u32).to_be_bytes()[1..].to_vec();
        out.extend([kind, flags, 0, 0, 0, 1]);
        out.resize(HEAD_BYTES + payload, 0);
        out
    }

    fn begun() -> Frames {
        let mut frames = Frames::new(0);
        frames.pass(&[0; PREFACE_BYTES], 0);
        frames
    }

    #[test]
    fn a_header_that_comes_byte_by_byte_is_incomplete_since_its_first() {
        let mut frames = begun();
        for (at, byte) in frame(HEADERS, END_HEADERS, 20).iter().enumerate() {
            assert_eq!(frames.incomplete_since_ms, if at == 0 { 0 } else { 1_000 });
            frames.pass(&[*byte], 1_000 + at as u64);
        }
        assert_eq!(frames.incomplete_since_ms, 0);
    }

    #[test]
    fn a_header_block_is_incomplete_until_its_last_continuation() {
        let mut frames = begun();
        frames.pass(&frame(HEADERS, 0, 5), 10);
        frames.pass(&frame(CONTINUATION, 0, 5), 20);
        assert_eq!(frames.incomplete_since_ms, 10);
        frames.pass(&frame(CONTINUATION, END_HEADERS, 5), 30);
        assert_eq!(frames.incomplete_since_ms, 0);
    }

    #[test]
    fn slow_data_is_not_a_slow_header() {
        let mut frames = begun();
        frames.pass(&frame(DATA, 0, 100)[..50], 10);
        assert_eq!(frames.incomplete_since_ms, 0);
    }

    #[test]
    fn pings_without_calls_are_a_flood_and_with_calls_are_not() {
        let (mut idle, mut busy) = (begun(), begun());
        for _ in 0..=BURST {
            idle.pass(&frame(PING, 0, 8), 0);
            busy.pass(&[frame(HEADERS, END_HEADERS, 3), frame(DATA, 1, 9), frame(PING, 0, 8)].concat(), 0);
        }
        assert!(idle.flooded && !busy.flooded);
    }

    #[test]
    fn pings_and_windows_for_what_is_read_are_no_flood() {
        let mut frames = begun();
        for _ in 0..2 * BURST {
            frames.wrote(&Poll::Ready(Ok(100)));
            frames.pass(&[frame(PING, 0, 8), frame(8, 0, 4)].concat(), 0);
        }
        assert!(!frames.flooded);
    }

    #[test]
    fn a_ping_each_10_ms_is_no_flood() {
        let mut frames = begun();
        for at in 0..10_000 {
            frames.pass(&frame(PING, 0, 8), at * 10);
        }
        assert!(!frames.flooded);
    }
}
