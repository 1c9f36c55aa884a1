//! Small writes, each with its sync, by threads that take no interpreter lock.
//!
//! Each goes to the end of its file. Two of one file may be under way at once only where their order is of no matter.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::lock::lock;
use crate::signal::Signal;
use crate::threads::block_signals;

struct Write {
    token: u64,
    descriptor: RawFd,
    data: Vec<u8>,
}

/// What became of a write. An error is an errno; 0: none.
#[derive(Debug)]
pub struct Written {
    pub token: u64,
    pub write_error: i32,
    pub sync_error: i32,
    pub seconds: f64,
}

pub struct Writes {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    todo: Mutex<Todo>,
    more: Condvar,
    done: Mutex<Vec<Written>>,
    signal: Signal,
}

#[derive(Default)]
struct Todo {
    waiting: VecDeque<Write>,
    closed: bool,
}

impl Writes {
    pub fn new(threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            todo: Mutex::default(),
            more: Condvar::new(),
            done: Mutex::default(),
            signal: Signal::new()?,
        });
        let writes = Writes { shared, threads: Mutex::default() };
        for number in 0..threads {
            let shared = writes.shared.clone();
            let named = std::thread::Builder::new().name(format!("write-{number}"));
            lock(&writes.threads).push(named.spawn(move || shared.run())?);
        }
        Ok(writes)
    }

    /// Readable while there is something to take.
    pub fn fileno(&self) -> RawFd {
        self.shared.signal.fileno()
    }

    /// The descriptor must stay open until the write was taken.
    pub fn submit(&self, token: u64, descriptor: RawFd, data: Vec<u8>) {
        lock(&self.shared.todo).waiting.push_back(Write { token, descriptor, data });
        self.shared.more.notify_one();
    }

    /// All that has ended.
    pub fn take(&self) -> Vec<Written> {
        let mut done = lock(&self.shared.done);
        self.shared.signal.lower();
        std::mem::take(&mut *done)
    }

    /// End the threads, once all that was submitted is written.
    pub fn close(&self) {
        lock(&self.shared.todo).closed = true;
        self.shared.more.notify_all();
        let threads = std::mem::take(&mut *lock(&self.threads)); // the lock is not held while they write
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn run(&self) {
        block_signals();
        while let Some(write) = self.next() {
            let began = Instant::now();
            let write_error = write_all(write.descriptor, &write.data);
            // SAFETY: no pointers; a descriptor that is not open is an error.
            let sync_error =
                if write_error == 0 { retry(|| unsafe { libc::fdatasync(write.descriptor) }.into()).1 } else { 0 };
            let seconds = began.elapsed().as_secs_f64();
            let mut done = lock(&self.done);
            if done.is_empty() {
                self.signal.raise();
            }
            done.push(Written { token: write.token, write_error, sync_error, seconds });
        }
    }

    fn next(&self) -> Option<Write> {
        let mut todo = lock(&self.todo);
        loop {
            match todo.waiting.pop_front() {
                None if !todo.closed => todo = self.more.wait(todo).unwrap_or_else(PoisonError::into_inner),
                write => return write,
            }
        }
    }
}

/// The errno, 0 for none. A short write is gone on with: at a signal, or just before the disk is full.
fn write_all(descriptor: RawFd, mut data: &[u8]) -> i32 {
    while !data.is_empty() {
        // SAFETY: the kernel reads no more than the bytes that are there.
        let (written, error) = retry(|| unsafe { libc::write(descriptor, data.as_ptr().cast(), data.len()) as i64 });
        match written {
            0 => return libc::EIO, // no file does this
            1.. => data = &data[written as usize..],
            _ => return error,
        }
    }
    0
}

/// A call's result, and its errno where that is negative; again where a signal came between.
fn retry(call: impl Fn() -> i64) -> (i64, i32) {
    loop {
        let result = call();
        if result >= 0 {
            return (result, 0);
        }
        let error = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        if error != libc::EINTR {
            return (result, error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File, OpenOptions};
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    fn wait(writes: &Writes, count: usize) -> Vec<Written> {
        let (mut taken, began) = (Vec::new(), Instant::now());
        while taken.len() < count && began.elapsed() < Duration::from_secs(10) {
            taken.extend(writes.take());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(taken.len(), count);
        assert!(!writes.shared.signal.lower(), "nothing is left, and nothing is signalled");
        taken
    }

    #[test]
    fn writes_go_to_the_ends_of_their_files() {
        let directory = std::env::temp_dir().join(format!("writes-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let paths: Vec<_> = (0..3).map(|n| directory.join(n.to_string())).collect();
        let files: Vec<File> =
            paths.iter().map(|path| OpenOptions::new().create(true).append(true).open(path).unwrap()).collect();
        let writes = Writes::new(2).unwrap();
        for round in 0..50u8 {
            for (token, file) in files.iter().enumerate() {
                writes.submit(token as u64, file.as_raw_fd(), vec![round; 100]);
            }
            for written in wait(&writes, 3) {
                assert_eq!((written.write_error, written.sync_error), (0, 0));
            }
        }
        let expected: Vec<u8> = (0..50u8).flat_map(|round| [round; 100]).collect();
        for path in &paths {
            assert_eq!(fs::read(path).unwrap(), expected);
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn errors_are_told() {
        let writes = Writes::new(1).unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let read_only = File::open("/dev/null").unwrap();
        let no_file = OpenOptions::new().write(true).open("/dev/null").unwrap(); // takes all, and can't be synced
        writes.submit(1, full.as_raw_fd(), vec![0; 10]);
        writes.submit(2, read_only.as_raw_fd(), vec![0; 10]);
        writes.submit(3, no_file.as_raw_fd(), vec![0; 10]);
        let mut written = wait(&writes, 3);
        written.sort_by_key(|one| one.token);
        let errors: Vec<_> = written.iter().map(|one| (one.write_error, one.sync_error)).collect();
        assert_eq!(errors, [(libc::ENOSPC, 0), (libc::EBADF, 0), (0, libc::EINVAL)]);
    }

    #[test]
    fn closing_writes_what_was_submitted() {
        let path = std::env::temp_dir().join(format!("closing-{}", std::process::id()));
        let file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
        let writes = Writes::new(3).unwrap();
        for _ in 0..100 {
            writes.submit(0, file.as_raw_fd(), vec![7; 10]);
        }
        writes.close();
        assert_eq!(fs::read(&path).unwrap(), vec![7; 1000]);
        assert_eq!(writes.take().len(), 100);
        fs::remove_file(path).unwrap();
    }
}
