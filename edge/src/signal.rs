//! A descriptor that is readable while something waits for Python.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

pub struct Signal(File);

impl Signal {
    pub fn new() -> io::Result<Self> {
        // SAFETY: eventfd() takes no pointers; a result that is not negative is a descriptor that nobody else owns.
        unsafe {
            let descriptor = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if descriptor < 0 { Err(io::Error::last_os_error()) } else { Ok(Signal(File::from_raw_fd(descriptor))) }
        }
    }

    pub fn fileno(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn raise(&self) {
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    /// Whether it was raised.
    pub fn lower(&self) -> bool {
        (&self.0).read(&mut [0; 8]).is_ok()
    }
}
