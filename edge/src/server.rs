//! An edge: its threads, its listening socket, and what Python may ask of it.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderName;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::AbortHandle;

use crate::caller::Caller;
use crate::connection::{serve, serve_tls};
use crate::core::{Core, Registered, Shape};
use crate::dispatch::{self, StoredRows};
use crate::encode;
use crate::grpc::Status;
use crate::limits::Limits;
use crate::link::{Link, Mail};
use crate::listener::Listener;
use crate::lock::lock;
use crate::relief;
use crate::rows::ROW;
use crate::threads::block_signals;
use crate::tls::Shown;
use crate::unread::CallUnread;

const BACKLOG: u32 = 4_096;
/// Before the next try when there is no descriptor for a connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);
const CLOSE: Duration = Duration::from_secs(2);
/// Connection ids leave the highest bit of a token to rows.
const MAX_ID: u32 = 0x7fff_ffff;

pub struct Server {
    pub core: Arc<Core>,
    listeners: Mutex<Vec<(Arc<Listener>, SocketAddr)>>,
    ids: Arc<AtomicU32>,
    runtime: Mutex<Option<Runtime>>,
    accepting: Mutex<Vec<AbortHandle>>,
    stored: UnboundedSender<StoredRows>,
}

impl Server {
    pub fn start(
        methods: impl IntoIterator<Item = (String, Shape)>, metadata: Vec<HeaderName>, limits: Limits, busy: Bytes,
        expired: Bytes, threads: usize,
    ) -> io::Result<Self> {
        let core = Core::new(methods, metadata, limits, busy, expired)?;
        let clocks = core.clone();
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .thread_name("edge")
            .enable_all()
            .on_thread_start(move || {
                block_signals();
                clocks.threads.add_this_thread();
            })
            .build()?;
        let (stored, answers) = mpsc::unbounded_channel();
        runtime.spawn(dispatch::run(core.clone(), answers));
        runtime.spawn(relief::run(core.clone()));
        Ok(Server {
            core,
            listeners: Mutex::default(),
            ids: Arc::default(),
            runtime: Mutex::new(Some(runtime)),
            accepting: Mutex::default(),
            stored,
        })
    }

    /// Take connections there from now on.
    pub fn listen(&self, listen: Listen, listener: Listener) -> io::Result<()> {
        let runtime = lock(&self.runtime);
        let Some(runtime) = runtime.as_ref() else { return Err(io::Error::other("the edge is closed")) };
        let socket = {
            let _inside = runtime.enter();
            bind(listen)?
        };
        let (listener, address) = (Arc::new(listener), socket.local_addr()?);
        lock(&self.listeners).push((listener.clone(), address));
        let accepting = runtime.spawn(accept(socket, listener, self.core.clone(), self.ids.clone()));
        lock(&self.accepting).push(accepting.abort_handle());
        Ok(())
    }

    /// The listener of that name, and where it listens.
    pub fn listener(&self, name: &str) -> Option<(Arc<Listener>, SocketAddr)> {
        lock(&self.listeners).iter().find(|(listener, _)| &*listener.name == name).cloned()
    }

    /// Where the first one listens.
    pub fn address(&self) -> Option<SocketAddr> {
        lock(&self.listeners).first().map(|(_, address)| *address)
    }

    /// Who calls, or how the calls end that have asked.
    pub fn identify(&self, token: u64, found: Result<Caller, Status>) {
        if let Some(link) = self.link(token) {
            link.send(Mail::Caller { number: token as u32, found: found.map(Arc::new) });
        }
    }

    /// rows: its columns fit each other. Does nothing once the edge is closed.
    pub fn answer_rows(&self, rows: StoredRows) {
        let _ = self.stored.send(rows);
    }

    pub fn answer_row(&self, token: u64, body: &[u8]) {
        dispatch::answer_encoded(&self.core, token, body);
    }

    pub fn refuse_row(&self, token: u64, status: Status, error: &[u8]) {
        dispatch::refuse(&self.core, token, status, error);
    }

    pub fn answer_single(&self, token: u64, status: &[u8]) {
        dispatch::answer_single(&self.core, token, status);
    }

    pub fn as_calls(&self, tokens: &[u64]) {
        dispatch::as_calls(&self.core, tokens);
    }

    /// The only answer of a unary call. tell: with an event once it is held no longer, whatever became of it. Returns
    /// false when there was no room for it: then the call is refused.
    pub fn respond(&self, token: u64, body: &[u8], tell: bool) -> bool {
        if !tell {
            return self.send(token, body, None);
        }
        let unread = CallUnread::unary(&self.core.inbox, token);
        let sent = self.send(token, body, Some(&unread));
        unread.tell_if_unused();
        sent
    }

    /// One more message of a stream. Returns whether Python may write on; when not, it is told once it may, or that
    /// the call is gone.
    pub fn write(&self, token: u64, body: &[u8]) -> bool {
        let Some(unread) = self.core.stream(token) else { return false };
        self.send(token, body, Some(&unread)) && unread.may_write()
    }

    /// The last messages of a stream, each with its gRPC prefix, and its end, which leave together.
    pub fn write_last(&self, token: u64, framed: Bytes) {
        let Some(link) = self.link(token) else { return };
        let Some(unread) = self.core.stream(token) else { return };
        let call = token as u32;
        let Some(answer) = link.unread.answer(framed, Some(&unread)) else { return link.send(Mail::NoRoom { call }) };
        let first = link.put(Mail::Body { call, answer });
        if link.put(Mail::End { call, status: Status::new(0, "") }) || first {
            link.wake();
        }
    }

    fn send(&self, token: u64, body: &[u8], unread: Option<&Arc<CallUnread>>) -> bool {
        let Some(link) = self.link(token) else { return false };
        let call = token as u32;
        let answer = link.unread.answer(encode::framed(body), unread);
        let has_room = answer.is_some();
        link.send(answer.map_or(Mail::NoRoom { call }, |answer| Mail::Body { call, answer }));
        has_room
    }

    /// The connection of a call that is not a row.
    fn link(&self, token: u64) -> Option<Arc<Link>> {
        self.core.link(token).filter(|_| token & ROW == 0)
    }

    pub fn end(&self, token: u64, status: Status) {
        if let Some(link) = self.link(token) {
            link.send(Mail::End { call: token as u32, status });
        }
    }

    /// Python has dealt with a message of a stream: the next one may come.
    pub fn more(&self, token: u64) {
        if let Some(link) = self.link(token) {
            link.send(Mail::More { call: token as u32 });
        }
    }

    pub fn pause_reading(&self, on: bool, calls: bool) {
        self.core.rows_budget.pause(on);
        self.core.calls_budget.pause(on && calls);
    }

    /// No new connections, no new calls; what has begun may end, for so long.
    pub fn drain(&self, within: Duration) {
        for accepting in lock(&self.accepting).drain(..) {
            accepting.abort();
        }
        for link in self.core.links() {
            link.send(Mail::Drain);
        }
        let core = self.core.clone();
        if let Some(runtime) = lock(&self.runtime).as_ref() {
            runtime.spawn(async move {
                tokio::time::sleep(within).await;
                for link in core.links() {
                    link.send(Mail::Cut);
                }
            });
        }
        self.core.drain();
    }

    /// End the connections of these peers; returns how many there were.
    pub fn cut(&self, peers: &HashSet<String>) -> usize {
        let mut found = 0;
        for link in self.core.links() {
            if peers.contains(&*link.peer) {
                link.send(Mail::Cut);
                found += 1;
            }
        }
        found
    }

    /// End all connections and threads. Whatever is asked later does nothing.
    pub fn close(&self) {
        let runtime = lock(&self.runtime).take(); // others need not wait for the lock until it has ended
        if let Some(runtime) = runtime {
            self.core.threads.end();
            runtime.shutdown_timeout(CLOSE);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

/// Where an edge listens.
pub enum Listen {
    /// host:port
    Address(String),
    /// A socket that listens. It stays its owner's.
    Socket(OwnedFd),
}

fn bind(listen: Listen) -> io::Result<TcpListener> {
    let listen = match listen {
        Listen::Address(address) => address,
        Listen::Socket(socket) => {
            let listener = std::net::TcpListener::from(socket);
            listener.set_nonblocking(true)?;
            return TcpListener::from_std(listener);
        }
    };
    let address = listen
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{listen:?} is no address to listen on")))?;
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(socket: TcpListener, listener: Arc<Listener>, core: Arc<Core>, ids: Arc<AtomicU32>) {
    loop {
        let place = match &listener.tls {
            None => None,
            Some(tls) => tls.handshakes.clone().acquire_owned().await.ok(),
        };
        let Ok((socket, peer)) = socket.accept().await else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let id = ids.fetch_add(1, Relaxed) & MAX_ID;
        let link = Link::new(id, Arc::from(name_of(peer)), listener.clone(), &core.unread);
        match Registered::new(&core, &link) {
            Some(registered) => {
                let _ = socket.set_nodelay(true);
                core.figures.connections_taken.add_one();
                match place {
                    None => tokio::spawn(serve(socket, core.clone(), link, registered, Shown::default())),
                    Some(place) => tokio::spawn(serve_tls(socket, core.clone(), link, registered, place)),
                };
            }
            None => core.figures.connections_refused.add_one(),
        }
    }
}

/// A peer by gRPC's name for it.
fn name_of(peer: SocketAddr) -> String {
    match peer.ip().to_canonical() {
        IpAddr::V4(ip) => format!("ipv4:{ip}:{}", peer.port()),
        IpAddr::V6(ip) => format!("ipv6:[{ip}]:{}", peer.port()),
    }
}
