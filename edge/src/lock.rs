//! Locking that outlives a panic: the other connections must go on.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Every critical section of this crate leaves its data whole at each step, so a poisoned lock is still good.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
