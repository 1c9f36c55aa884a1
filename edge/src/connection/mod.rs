//! One connection: a task that takes requests in, and sends what Python has answered.
//!
//! All of HTTP/2 is in this task. It runs when its socket, its timer or its mail has something.

mod answers;
mod ends;
mod requests;
mod time;

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;

use crate::budget::Asker;
use crate::call::Call;
use crate::caller::Callers;
use crate::clock::now_ms;
use crate::core::{Core, Registered, Shape, Window};
use crate::inbox::{Event, Kind, Question};
use crate::limits::Limits;
use crate::link::Link;
use crate::timing::{Alarm, Lifetime};
use crate::tls::{self, Shown};
use crate::unread::Answer;
use crate::watch::{Watch, Watched};

/// A client that resets calls before they were looked at gets so many in one read of its socket.
const MAX_PENDING_RESETS: usize = 100;
/// Of an answer that HTTP/2 cuts into frames at once.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// HTTP/2 gives a connection no less.
const LEAST_WINDOW_BYTES: u32 = 65_535;
/// Of the 2^31 - 1 that it may have: the rest is for the calls that wait.
const MAX_WINDOW_BYTES: u32 = 1 << 30;
/// Small frames fill a window with more memory than it has bytes: h2 counts 256 bytes less its own for each, and ends
/// the connection above this. So much is what the messages of clients that wait for no answer come to.
const DATA_FRAME_BUDGET_PER_BYTE: usize = 2;
/// A stream may send such a part of its connection's window.
const STREAMS_PER_WINDOW: u32 = 4;
/// Bytes that a connection may inflate before others have a turn: tokio looks at sockets once in 61 turns.
const TURN_BYTES: usize = 16 << 10;

/// Serves a connection to its end. A panic unwinds through here; what the connection holds is freed by that.
pub async fn serve<T: AsyncRead + AsyncWrite + Unpin>(
    socket: T, core: Arc<Core>, link: Arc<Link>, registered: Registered, shown: Shown,
) {
    let watch = Arc::new(Watch::default());
    let tls_bytes = link.listener.tls.as_ref().map_or(0, |_| tls::CONNECTION_BYTES);
    let window = Window::new(&core, core.limits.connection_window_bytes + tls_bytes);
    let sizes = WindowSizes::new(&core.limits, window.is_some());
    let handshake = builder(&core.limits, sizes).handshake(Watched::new(socket, watch.clone()));
    match tokio::time::timeout(Duration::from_millis(core.limits.handshake_ms), handshake).await {
        Ok(Ok(h2)) => {
            let mut connection = Connection::new(h2, core.clone(), link, watch, sizes, shown);
            poll_fn(|cx| connection.poll(cx)).await;
        }
        Ok(Err(_)) => {}
        Err(_) => core.figures.connections_cut.add_one(),
    }
    drop(window);
    drop(registered); // after the connection and its calls
}

/// As serve(), over TLS. place: of the handshake.
pub async fn serve_tls<T: AsyncRead + AsyncWrite + Unpin>(
    socket: T, core: Arc<Core>, link: Arc<Link>, registered: Registered, place: OwnedSemaphorePermit,
) {
    let Some(tls) = link.listener.tls.as_ref() else { return };
    let most_ms = tls.handshake_ms(&core.limits);
    let accepted = tokio::time::timeout(Duration::from_millis(most_ms), tls.accept(socket)).await;
    drop(place);
    match accepted {
        Ok(Ok(stream)) => {
            let shown = tls::shown(stream.get_ref().1);
            serve(stream, core, link, registered, shown).await;
        }
        Ok(Err(why)) => core.handshake_failed(&link, &why),
        Err(_) => {
            core.figures.connections_cut.add_one();
            core.handshake_failed(&link, &format!("not done within {most_ms} ms"));
        }
    }
}

/// What a client may send before there is room for it.
#[derive(Clone, Copy)]
struct WindowSizes {
    /// Of the connection, beside one of a stream for each call that waits.
    connection: u32,
    stream: u32,
}

impl WindowSizes {
    fn new(limits: &Limits, wide: bool) -> Self {
        let widest = if wide { size(limits.connection_window_bytes).min(MAX_WINDOW_BYTES) } else { 0 };
        let connection = widest.max(LEAST_WINDOW_BYTES);
        WindowSizes { connection, stream: size(limits.stream_window_bytes).min(connection / STREAMS_PER_WINDOW) }
    }
}

fn size(limit: u64) -> u32 {
    u32::try_from(limit).unwrap_or(u32::MAX)
}

fn builder(limits: &Limits, sizes: WindowSizes) -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(sizes.stream)
        .initial_connection_window_size(sizes.connection)
        .data_frame_budget(DATA_FRAME_BUDGET_PER_BYTE * sizes.connection as usize)
        .max_concurrent_streams(size(limits.max_streams))
        .max_header_list_size(size(limits.max_header_bytes))
        .max_send_buffer_size(SEND_BUFFER_BYTES)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS);
    builder
}

struct Connection<T> {
    h2: h2::server::Connection<Watched<T>, Answer>,
    core: Arc<Core>,
    link: Arc<Link>,
    asker: Arc<dyn Asker>,
    watch: Arc<Watch>,
    sizes: WindowSizes,
    calls: HashMap<u32, Call>,
    shown: Arc<Shown>,
    /// Python was asked who calls.
    asked: bool,
    callers: Callers,
    /// Calls that wait for room.
    waiting: u32,
    last: u32,
    /// Calls that were not looked at yet.
    fresh: Vec<u32>,
    /// Calls that are not read because the client does not read its answers.
    choked: BTreeSet<u32>,
    /// Calls that have more to inflate.
    inflating: BTreeSet<u32>,
    /// Bytes that may be inflated in this turn.
    turn: usize,
    deadlines: BTreeSet<(u64, u32)>,
    alarm: Alarm,
    lifetime: Lifetime,
    resets_left: u64,
    is_over: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    fn new(
        mut h2: h2::server::Connection<Watched<T>, Answer>, core: Arc<Core>, link: Arc<Link>, watch: Arc<Watch>,
        sizes: WindowSizes, shown: Shown,
    ) -> Self {
        Connection {
            asker: link.clone(),
            sizes,
            calls: HashMap::new(),
            shown: shown.into(),
            asked: false,
            callers: Callers::default(),
            waiting: 0,
            last: 0,
            fresh: Vec::new(),
            choked: BTreeSet::new(),
            inflating: BTreeSet::new(),
            turn: 0,
            deadlines: BTreeSet::new(),
            alarm: Alarm::new(),
            lifetime: Lifetime::new(h2.ping_pong(), &core.limits, link.listener.max_age_ms, link.id),
            resets_left: core.limits.max_resets,
            is_over: false,
            h2,
            core,
            link,
            watch,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.link.listen(cx.waker());
        self.turn = TURN_BYTES;
        for number in std::mem::take(&mut self.inflating) {
            self.look_at(number);
        }
        loop {
            for mail in self.link.take_mail() {
                self.receive(mail);
            }
            for number in self.link.take_ready() {
                self.look_at(number);
            }
            if self.is_over {
                return Poll::Ready(());
            }
            match self.h2.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    self.begin(request, respond);
                    continue;
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {}
            }
            if !self.move_on(cx) && self.link.may_sleep() {
                if !self.inflating.is_empty() {
                    cx.waker().wake_by_ref();
                }
                return Poll::Pending;
            }
        }
    }

    /// What follows from what was read and sent. Returns whether HTTP/2 may have something to do again.
    fn move_on(&mut self, cx: &mut Context<'_>) -> bool {
        let mut looked_at = std::mem::take(&mut self.fresh);
        if !self.link.unread.is_full() {
            looked_at.extend(std::mem::take(&mut self.choked));
        }
        let mut moved = !looked_at.is_empty();
        for number in looked_at {
            self.look_at(number);
        }
        if self.watch.flooded.swap(false, Relaxed) {
            self.end_flood();
            moved = true;
        }
        let now = now_ms();
        if self.alarm.rings(self.next_due(now), now, cx) {
            self.tick(now);
            moved = true;
        }
        moved
    }
}

impl<T> Drop for Connection<T> {
    fn drop(&mut self) {
        for (&number, call) in &self.calls {
            let token = self.link.token(number);
            if call.told {
                self.core.inbox.put_event(Event { reason: "connection".into(), ..Event::of(token, Kind::Gone) });
            }
            if call.method.shape == Shape::Stream {
                self.core.remove_stream(token);
            }
        }
        if self.asked {
            let of = Question::left(self.link.peer.clone(), self.link.listener.name.clone());
            let event = Event::of(self.link.token(0), Kind::Left);
            self.core.inbox.put_event(Event { question: Some(Box::new(of)), ..event });
        }
    }
}
