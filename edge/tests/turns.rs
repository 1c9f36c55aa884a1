//! A connection that inflates a large message lets the others have their turns.

mod client;

use std::future::poll_fn;
use std::io::Write;
use std::sync::Arc;
use std::task::Poll;

use client::{begun, call, frame};
use delayedge::core::{Core, Registered, Shape};
use delayedge::limits::Limits;
use delayedge::link::Link;
use delayedge::listener::Listener;
use delayedge::tls::Shown;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use tokio::io::AsyncWriteExt;

const BOMB_BYTES: usize = 12 << 20;
const TURN_BYTES: usize = 32 << 10; // what is read, and what comes of it

fn bomb() -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(vec![1, 0, 0, 0, 0], Compression::best());
    encoder.write_all(&vec![0; BOMB_BYTES]).unwrap();
    let mut message = encoder.finish().unwrap();
    let length = message.len() as u32 - 5;
    message[1..5].copy_from_slice(&length.to_be_bytes());
    message
}

#[tokio::test]
async fn others_have_turns_while_a_bomb_is_inflated() {
    let core = Core::new(
        [("/t/Unary".to_owned(), Shape::Unary)],
        Vec::new(),
        Limits::default(),
        bytes::Bytes::new(),
        bytes::Bytes::new(),
    )
    .unwrap();
    let (mut client, server) = tokio::io::duplex(1 << 16);
    let listener = Arc::new(Listener::plain(&core.limits));
    let link = Link::new(1, Arc::from("ipv4:127.0.0.1:1"), listener, &core.unread);
    let registered = Registered::new(&core, &link).unwrap();
    tokio::spawn(delayedge::connection::serve(server, core.clone(), link, registered, Shown::default()));
    let request = [begun(), call(1, "/t/Unary", "deflate", &bomb()), frame(0, 1, 1, b"")].concat();
    client.write_all(&request).await.unwrap();
    let (inbox, budget) = (core.inbox.clone(), core.calls_budget.clone());
    let mut turns = 0;
    let other = poll_fn(move |cx| {
        if inbox.events() > 0 {
            return Poll::Ready(turns);
        }
        assert!(turns < 1_000_000, "it does not go on");
        turns += usize::from(budget.used() > 0);
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    let turns = tokio::spawn(other).await.unwrap();
    assert!(turns >= BOMB_BYTES / TURN_BYTES, "{turns}");
    let (_, events) = core.inbox.take(BOMB_BYTES);
    assert_eq!(events[0].body.as_ref().unwrap().len(), BOMB_BYTES);
}
