//! A panic ends its connection and nothing else, and frees what the connection held.

mod client;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use client::{begun, call};
use delayedge::clock::now_ms;
use delayedge::core::{Core, Registered, Shape};
use delayedge::dispatch::{self, StoredRows};
use delayedge::inbox::Kind;
use delayedge::limits::Limits;
use delayedge::link::{Link, Mail};
use delayedge::listener::Listener;
use delayedge::rows::Row;
use delayedge::tls::Shown;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};

/// A socket that panics at its end.
struct Panics(DuplexStream);

impl AsyncRead for Panics {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.0).poll_read(cx, buffer);
        if matches!(read, Poll::Ready(Ok(()))) && buffer.filled().len() == before {
            panic!("the end, on purpose");
        }
        read
    }
}

impl AsyncWrite for Panics {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

fn core() -> Arc<Core> {
    let methods = [("/t/Unary".to_owned(), Shape::Unary), ("/t/Stream".to_owned(), Shape::Stream)];
    Core::new(methods, Vec::new(), Limits::default(), Bytes::new(), Bytes::new()).unwrap()
}

fn link(core: &Core) -> Arc<Link> {
    Link::new(1, Arc::from("ipv4:127.0.0.1:1"), Arc::new(Listener::plain(&core.limits)), &core.unread)
}

/// HTTP/2 of a client, up to a stream that is open and a message of 3 bytes in it, and a unary call half received; and
/// a second one, whose message is compressed.
fn three_calls() -> Vec<u8> {
    let stream = call(1, "/t/Stream", "identity", b"\0\0\0\0\x03abc");
    let plain = call(3, "/t/Unary", "identity", b"\0\0\0\0\x09abc");
    let compressed = call(5, "/t/Unary", "gzip", b"\x01\0\0\0\x99\x1f\x8b\x08\0");
    [begun(), stream, plain, compressed].concat()
}

#[tokio::test]
async fn a_panic_is_counted_and_frees_what_its_connection_held() {
    let core = core();
    let (mut client, server) = tokio::io::duplex(1 << 16);
    let link = link(&core);
    let registered = Registered::new(&core, &link).unwrap();
    let task =
        tokio::spawn(delayedge::connection::serve(Panics(server), core.clone(), link, registered, Shown::default()));
    client.write_all(&three_calls()).await.unwrap();
    let until = now_ms() + 10_000;
    while core.calls.load(std::sync::atomic::Ordering::Relaxed) < 3 || core.inbox.events() < 2 {
        assert!(now_ms() < until);
        tokio::task::yield_now().await;
    }
    assert!(core.calls_budget.used() > 0);
    drop(client);
    assert!(task.await.unwrap_err().is_panic());
    assert_eq!(core.figures.panics.get(), 1);
    assert_eq!((core.connections(), core.calls.load(std::sync::atomic::Ordering::Relaxed)), (0, 0));
    let (_, events) = core.inbox.take(1 << 20);
    let told: Vec<Kind> = events.iter().map(|event| event.kind).collect();
    assert_eq!(told, [Kind::Call, Kind::Message, Kind::Gone]);
    drop(events);
    assert_eq!((core.calls_budget.used(), core.calls_budget.waiting(), core.unread.used()), (0, 0, 0));
}

/// Columns that do not fit are a panic there. Python's are looked at before.
#[tokio::test]
async fn a_panic_about_one_group_ends_the_answers_of_no_other() {
    let core = core();
    let link = link(&core);
    let row = |call| {
        let link = link.clone();
        Row { link, call, in_stream: false, place: 0, relative: false, hold: None, single: None }
    };
    let stored = |token, count| StoredRows {
        queue: 0,
        token: vec![token],
        count,
        uid: 1,
        first_seq: vec![0],
        due: Vec::new(),
        duplicate: Vec::new(),
    };
    let (send, answers) = tokio::sync::mpsc::unbounded_channel();
    let [bad, good] = [1, 2].map(|call| core.rows.add(row(call)));
    send.send(stored(bad, Vec::new())).unwrap();
    send.send(stored(good, vec![1])).unwrap();
    drop(send);
    dispatch::run(core.clone(), answers).await;
    assert_eq!(core.figures.panics.get(), 1);
    assert!(matches!(&link.take_mail()[..], [Mail::Row { call: 2, .. }]));
}
