//! Counters for the node's metrics.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::lock::lock;

#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add_one(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[derive(Default)]
pub struct Figures {
    pub connections_taken: Counter,
    pub connections_refused: Counter,
    /// Cut because they were slow, silent, hostile or did not read.
    pub connections_cut: Counter,
    /// Of TLS.
    pub handshakes_failed: Counter,
    /// Enqueue requests that were handed over as rows.
    pub requests_taken: Counter,
    /// Other calls and requests that were handed over.
    pub calls_begun: Counter,
    /// Calls that the edge itself ended with an error.
    pub calls_refused: Counter,
    /// Calls that clients reset.
    pub resets: Counter,
    pub panics: Counter,
}

/// The CPU time of the runtime's threads.
#[derive(Default)]
pub struct ThreadClocks(Mutex<Clocks>);

#[derive(Default)]
struct Clocks {
    running: Vec<libc::clockid_t>,
    /// Of those that have ended.
    seconds: f64,
}

impl ThreadClocks {
    /// Called on each thread as it starts.
    pub fn add_this_thread(&self) {
        let mut clock = 0;
        // SAFETY: pthread_self() is this thread, which runs, and `clock` is valid for the call to fill.
        if unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) } == 0 {
            lock(&self.0).running.push(clock);
        }
    }

    pub fn seconds(&self) -> f64 {
        let clocks = lock(&self.0);
        clocks.seconds + clocks.running.iter().map(|&clock| thread_seconds(clock)).sum::<f64>()
    }

    /// The threads are about to end: others may get their clocks' numbers.
    pub fn end(&self) {
        let mut clocks = lock(&self.0);
        let running = std::mem::take(&mut clocks.running);
        clocks.seconds += running.into_iter().map(thread_seconds).sum::<f64>();
    }
}

fn thread_seconds(clock: libc::clockid_t) -> f64 {
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `used` is valid for the call to fill; the clock of a thread that has ended is an error, not a fault.
    if unsafe { libc::clock_gettime(clock, &mut used) } != 0 {
        return 0.0;
    }
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}
