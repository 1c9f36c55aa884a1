//! What others know of a connection: where to leave mail for it, and what it has not read.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

use crate::budget::{Asker, Hold};
use crate::caller::Caller;
use crate::grpc::Status;
use crate::listener::Listener;
use crate::lock::lock;
use crate::unread::{Answer, ConnectionUnread, Unread};

/// For a connection's task. `call` is the number of a call of it; one that is over is passed over.
pub enum Mail {
    /// The answer to a request of an EnqueueStream, at its place in the stream; or to an Enqueue.
    Row {
        call: u32,
        place: u64,
        answer: Answer,
    },
    /// A unary call's answer, or one more message of a stream.
    Body {
        call: u32,
        answer: Answer,
    },
    End {
        call: u32,
        status: Status,
    },
    /// There was no room for an answer.
    NoRoom {
        call: u32,
    },
    Room {
        call: u32,
        hold: Hold,
    },
    /// A message of a stream was dealt with.
    More {
        call: u32,
    },
    /// Who the calls come from that have waited for the answer to this question.
    Caller {
        number: u32,
        found: Result<Arc<Caller>, Status>,
    },
    /// Others wait for room: give up requests that are slow in coming.
    Relieve,
    Drain,
    Cut,
}

pub struct Link {
    pub id: u32,
    pub peer: Arc<str>,
    pub listener: Arc<Listener>,
    pub unread: Arc<ConnectionUnread>,
    /// `None` once the connection is over.
    mail: Mutex<Option<Vec<Mail>>>,
    ready: Mutex<Vec<u32>>,
    /// The task runs, and will look at `ready` before it sleeps.
    running: AtomicBool,
    task: AtomicWaker,
}

impl Link {
    pub fn new(id: u32, peer: Arc<str>, listener: Arc<Listener>, unread: &Arc<Unread>) -> Arc<Self> {
        Arc::new(Link {
            id,
            peer,
            listener,
            unread: ConnectionUnread::new(unread),
            mail: Mutex::new(Some(Vec::new())),
            ready: Mutex::default(),
            running: AtomicBool::new(false),
            task: AtomicWaker::new(),
        })
    }

    /// The name by which Python knows a call of this connection.
    pub fn token(&self, call: u32) -> u64 {
        u64::from(self.id) << 32 | u64::from(call)
    }

    pub fn send(&self, mail: Mail) {
        if self.put(mail) {
            self.wake();
        }
    }

    /// As send(), but returns whether the connection must be woken: the first of many does it.
    pub fn put(&self, mail: Mail) -> bool {
        match lock(&self.mail).as_mut() {
            Some(waiting) => {
                waiting.push(mail);
                waiting.len() == 1
            }
            None => false,
        }
    }

    pub fn wake(&self) {
        self.task.wake();
    }

    /// The connection's task begins to run.
    pub fn listen(&self, task: &Waker) {
        self.task.register(task);
        self.running.store(true, SeqCst);
    }

    /// The task is about to sleep. Returns whether it may: else there is news of calls.
    pub fn may_sleep(&self) -> bool {
        self.running.store(false, SeqCst);
        let may = lock(&self.ready).is_empty();
        if !may {
            self.running.store(true, SeqCst);
        }
        may
    }

    pub fn take_mail(&self) -> Vec<Mail> {
        lock(&self.mail).as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The connection is over: what comes now, or has come, is for nobody.
    pub fn close(&self) {
        let left = lock(&self.mail).take();
        drop(left); // without the lock: it may hold room
    }

    /// The calls of which HTTP/2 has news.
    pub fn take_ready(&self) -> Vec<u32> {
        std::mem::take(&mut *lock(&self.ready))
    }
}

impl Asker for Link {
    fn granted(&self, call: u32, hold: Hold) {
        self.send(Mail::Room { call, hold });
    }
}

/// Wakes a connection for one of its calls.
pub struct CallWaker {
    link: Arc<Link>,
    call: u32,
    queued: AtomicBool,
}

impl CallWaker {
    pub fn new(link: &Arc<Link>, call: u32) -> Arc<Self> {
        Arc::new(CallWaker { link: link.clone(), call, queued: AtomicBool::new(false) })
    }

    /// The call is looked after now: the next news is news again.
    pub fn rearm(&self) {
        self.queued.store(false, SeqCst);
    }
}

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, SeqCst) {
            lock(&self.link.ready).push(self.call);
            if !self.link.running.load(SeqCst) {
                self.link.wake();
            }
        }
    }
}
