//! What every thread of this crate does first.

/// Signals are for Python's main thread, whose wake-up descriptor they need.
pub fn block_signals() {
    // SAFETY: `all` is a valid set for the calls to fill and to read; this thread alone is changed.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}
