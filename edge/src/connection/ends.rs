//! How calls end before they are answered.

use h2::Reason;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Connection, size};
use crate::call::{Call, Phase};
use crate::clock::now_ms;
use crate::core::Shape;
use crate::grpc::Status;
use crate::inbox::{Event, Kind};

/// HTTP/2 takes no more.
const LARGEST_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// To send GOAWAY to a client that is cut.
const FAREWELL_MS: u64 = 1_000;

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    pub(super) fn remove(&mut self, number: u32) -> Option<Call> {
        let call = self.calls.remove(&number)?;
        self.choked.remove(&number);
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
        let waiting = u64::from(self.waiting) * u64::from(self.sizes.stream);
        self.h2.set_target_window_size(size(u64::from(self.sizes.connection) + waiting).min(LARGEST_WINDOW_BYTES));
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use bytes::Bytes;
    use h2::client::SendRequest;
    use http::Request;
    use tokio::io::DuplexStream;

    use super::super::{WindowSizes, builder};
    use super::*;
    use crate::core::Core;
    use crate::limits::Limits;
    use crate::link::Link;
    use crate::listener::Listener;
    use crate::tls::Shown;
    use crate::watch::{Watch, Watched};

    const PATH: &str = "/t/Stream";

    async fn world(limits: Limits) -> (Connection<DuplexStream>, SendRequest<Bytes>) {
        let core =
            Core::new([(PATH.to_owned(), Shape::Stream)], Vec::new(), limits, Bytes::new(), Bytes::new()).unwrap();
        let listener = Arc::new(Listener::plain(&core.limits));
        let link = Link::new(1, Arc::from("ipv4:127.0.0.1:1"), listener, &core.unread);
        let (watch, sizes) = (Arc::new(Watch::default()), WindowSizes::new(&core.limits, true));
        let (client, server) = tokio::io::duplex(1 << 16);
        let server = builder(&core.limits, sizes).handshake(Watched::new(server, watch.clone()));
        let (server, client) = tokio::join!(server, h2::client::handshake(client));
        let (calls, client) = client.unwrap();
        tokio::spawn(client);
        (Connection::new(server.unwrap(), core, link, watch, sizes, Shown::default()), calls)
    }

    fn call(timeout: &str) -> Request<()> {
        let head = Request::post(format!("http://edge{PATH}")).header("content-type", "application/grpc");
        head.header("grpc-timeout", timeout).body(()).unwrap()
    }

    #[tokio::test]
    async fn a_call_that_ends_while_it_is_not_read_is_forgotten() {
        let (mut connection, mut calls) = world(Limits { unread_bytes_per_connection: 0, ..Limits::default() }).await;
        let _unread = connection.link.unread.answer(Bytes::from_static(b"x"), None);
        for _ in 0..5 {
            let (answer, _body) = calls.send_request(call("20m"), false).unwrap();
            tokio::select! {
                _ = poll_fn(|cx| connection.poll(cx)) => panic!("the connection has ended"),
                answer = answer => assert_eq!(answer.unwrap().headers()["grpc-status"], "4"),
            }
        }
        assert!(connection.calls.is_empty() && connection.choked.is_empty());
    }

    #[tokio::test]
    async fn windows_for_calls_that_wait_are_no_larger_than_http2_has() {
        let (connection_window_bytes, windows_bytes) = (1 << 30, 1 << 40);
        let limits =
            Limits { connection_window_bytes, stream_window_bytes: 1 << 28, windows_bytes, ..Limits::default() };
        let (mut connection, mut calls) = world(limits).await;
        connection.core.calls_budget.pause(true);
        let mut bodies = Vec::new();
        while connection.waiting < 8 {
            let (_, mut body) = calls.send_request(call("1H"), false).unwrap();
            body.send_data(Bytes::from_static(&[0, 0, 0, 0, 9]), false).unwrap();
            bodies.push(body);
            let waiting = connection.waiting;
            poll_fn(|cx| {
                assert!(connection.poll(cx).is_pending());
                if connection.waiting > waiting { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
        }
    }
}
