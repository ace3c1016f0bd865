//! Locks a mutex in spite of earlier panics.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// Locks a mutex even if a thread panicked while it held the lock. A panic while drawing must not block other threads.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like [`lock`], but returns `None` if the mutex stays locked for `time`.
pub fn lock_within<T>(mutex: &Mutex<T>, time: Duration) -> Option<MutexGuard<'_, T>> {
    let deadline = Instant::now() + time;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return None,
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(5)),
        }
    }
}
