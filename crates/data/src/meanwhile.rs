//! Runs work that cannot be interrupted.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use residual_zoo_system::panics::{caught, is_caught};
use residual_zoo_system::stop;

use crate::DataError;

/// The time between two calls of `goes_on` in [`meanwhile`].
const OFTEN: Duration = Duration::from_millis(50);

/// The time for which work still goes on after a stop. A stopped run must read small files to save itself, even on a
/// busy machine.
const QUICK: Duration = Duration::from_millis(200);

/// Ends work in several parts, such as the reads of a file, soon after the user stops the process.
#[derive(Debug, Default)]
pub struct Patience {
    /// The time at which the stop was noticed.
    asked: Option<Instant>,
}

impl Patience {
    /// Checks whether the work may go on.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::Stopped`] 200 ms after the first check that noticed a stop by the user.
    pub fn check(&mut self) -> Result<(), DataError> {
        if !stop::is_asked() {
            return Ok(());
        }
        match self.asked.get_or_insert_with(Instant::now).elapsed() < QUICK {
            true => Ok(()),
            false => Err(DataError::Stopped),
        }
    }
}

/// Messages between the work and its caller.
#[derive(Debug, Default)]
pub(crate) struct State {
    done: AtomicUsize,
    is_left: AtomicBool,
}

impl State {
    /// Adds `bytes` to the number of bytes that are done.
    pub fn add(&self, bytes: usize) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether the caller no longer waits for the work.
    pub fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Relaxed)
    }
}

/// Runs `work` in a thread of its own, and abandons slow work when the user stops the process. Abandoned work may go on
/// until the process ends, so it must not change anything that the process uses later.
///
/// # Errors
///
/// Returns [`DataError::Stopped`] if the user stops the process, and an error if the thread cannot be started.
///
/// # Panics
///
/// Panics if `work` panics.
pub fn unless_stopped<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, DataError> {
    let mut patience = Patience::default();
    let goes_on = move |_| patience.check();
    // A panic of the work becomes a panic of the caller, as without a thread.
    let is_caught = is_caught();
    let work = move |_: &State| match is_caught {
        true => caught(work),
        false => catch_unwind(AssertUnwindSafe(work)),
    };
    match meanwhile(work, goes_on)? {
        Some(Ok(done)) => Ok(done),
        Some(Err(panic)) => resume_unwind(panic),
        None => unreachable!("a panic is caught"),
    }
}

/// Runs `work` in a thread of its own. From time to time, calls `goes_on` with the number of bytes that are done. If
/// `goes_on` fails, the thread is abandoned, and its [`State`] says so. Returns `None` if the work panicked.
///
/// # Errors
///
/// Returns the error of `goes_on`, and an error if the thread cannot be started.
pub(crate) fn meanwhile<T: Send + 'static>(
    work: impl FnOnce(&State) -> T + Send + 'static,
    mut goes_on: impl FnMut(usize) -> Result<(), DataError>,
) -> Result<Option<T>, DataError> {
    let state = Arc::new(State::default());
    let (send, receive) = mpsc::channel();
    let of_thread = state.clone();
    let thread = thread::Builder::new().spawn(move || send.send(work(&of_thread)));
    thread.map_err(DataError::Thread)?;
    loop {
        match receive.recv_timeout(OFTEN) {
            Ok(done) => return Ok(Some(done)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                let goes_on = goes_on(state.done.load(Ordering::Relaxed));
                if goes_on.is_err() {
                    state.is_left.store(true, Ordering::Relaxed);
                }
                goes_on?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ends_or_is_left() {
        let done = meanwhile(|_| 7, |_| Ok(())).unwrap();
        assert_eq!(done, Some(7));
        let (told, tell) = mpsc::channel();
        let endless = move |state: &State| {
            state.add(3);
            while !state.is_left() {
                thread::sleep(Duration::from_millis(1));
            }
            told.send(()).unwrap();
        };
        let left = meanwhile(endless, |done| match done {
            0 => Ok(()),
            _ => Err(DataError::Stopped),
        });
        assert!(matches!(left.unwrap_err(), DataError::Stopped));
        tell.recv().unwrap();
    }
}
