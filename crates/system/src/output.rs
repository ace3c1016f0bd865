//! Writes to standard output and standard error, on a separate thread. A reader that stops reading, such as a pager,
//! blocks the writer, but does not keep the program from ending.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

/// The time that a reader has to read output once the program is ending.
const PATIENCE: Duration = Duration::from_millis(300);
/// Time between two checks of whether the program is ending.
const TICK: Duration = Duration::from_millis(20);

/// The target of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Bytes to write, and the sender that reports the result.
type Job = (Stream, Vec<u8>, SyncSender<io::Result<()>>);

/// Whether the program is ending.
static HURRY: AtomicBool = AtomicBool::new(false);
/// Whether a reader was too slow.
static STUCK: AtomicBool = AtomicBool::new(false);

/// Makes later writes give up on readers that are too slow.
pub fn hurry() {
    HURRY.store(true, Ordering::Release);
}

/// Writes text and waits until it is written; after [`hurry`], waits a moment at most.
///
/// # Errors
///
/// Returns I/O errors.
pub fn write(stream: Stream, text: &[u8]) -> io::Result<()> {
    let is_hurried = || HURRY.load(Ordering::Acquire);
    if is_hurried() && STUCK.load(Ordering::Acquire) {
        return Ok(());
    }
    let Some(jobs) = jobs() else {
        return write_now(stream, text);
    };
    let (done, written) = mpsc::sync_channel(1);
    if jobs.send((stream, text.to_owned(), done)).is_err() {
        return write_now(stream, text);
    }
    let mut deadline = None;
    loop {
        match written.recv_timeout(TICK) {
            Ok(written) => return written,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) if is_hurried() => {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
                if Instant::now() >= deadline {
                    STUCK.store(true, Ordering::Release);
                    return Ok(());
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Returns the queue of the writing thread, if the thread could be started.
fn jobs() -> Option<&'static Sender<Job>> {
    static JOBS: OnceLock<Option<Sender<Job>>> = OnceLock::new();
    let start = || {
        let (sender, receiver) = mpsc::channel::<Job>();
        let thread = thread::Builder::new().name("output".into());
        let write = move || {
            for (stream, text, done) in receiver {
                done.send(write_now(stream, &text)).ok();
            }
        };
        thread.spawn(write).is_ok().then_some(sender)
    };
    JOBS.get_or_init(start).as_ref()
}

fn write_now(stream: Stream, text: &[u8]) -> io::Result<()> {
    fn to(mut out: impl Write, text: &[u8]) -> io::Result<()> {
        out.write_all(text)?;
        out.flush()
    }
    match stream {
        Stream::Out => to(io::stdout().lock(), text),
        Stream::Err => to(io::stderr().lock(), text),
    }
}
