//! Functions for Unix.

/// Files.
pub mod files {
    use std::fs::Metadata;
    use std::io::{Error, ErrorKind, Result};
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

    /// Whether both are the same file, whatever their names.
    pub fn is_same(a: &Metadata, b: &Metadata) -> bool {
        (a.dev(), a.ino()) == (b.dev(), b.ino())
    }

    /// Returns the time of the last change of a file or its metadata. No program can set this time.
    pub fn changed(file: &Metadata) -> Option<(i64, i64)> {
        Some((file.ctime(), file.ctime_nsec()))
    }

    /// Whether the file has other names too.
    pub fn has_other_names(file: &Metadata) -> bool {
        file.nlink() > 1
    }

    /// Replaces the directory `old` with `new`, and deletes the content of `old` or leaves it at `new`. The replacement
    /// is atomic on Linux and macOS if the file system can exchange names; otherwise, `old` is missing for a moment.
    ///
    /// # Errors
    ///
    /// Returns I/O errors.
    pub fn replace_directory(new: &Path, old: &Path) -> Result<()> {
        #[cfg(any(target_os = "linux", target_os = "macos"))]
        {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            use rustix::io::Errno;
            match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
                Err(Errno::NOSYS | Errno::INVAL | Errno::NOTSUP) => {}
                exchanged => return Ok(exchanged?),
            }
        }
        std::fs::remove_dir_all(old)?;
        std::fs::rename(new, old)
    }

    /// Checks that this process may write to a file, or create files in a directory.
    ///
    /// # Errors
    ///
    /// Returns the error that writing would give.
    pub fn check_writable(path: &Path) -> Result<()> {
        use rustix::fs::Access;
        // Files in a directory can be opened only with the right to pass through it.
        let through = if path.is_dir() {
            Access::EXEC_OK
        } else {
            Access::empty()
        };
        Ok(rustix::fs::access(path, Access::WRITE_OK | through)?)
    }

    /// Opens a pipe for writing. Fails if no program reads the pipe, instead of waiting for a reader.
    ///
    /// # Errors
    ///
    /// Returns I/O errors.
    pub fn open_pipe(path: &Path) -> Result<std::fs::File> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(rustix::io::Errno::NXIO) => {
                return Err(Error::other("it is a pipe that no program reads"));
            }
            file => file?,
        };
        rustix::fs::fcntl_setfl(&file, OFlags::WRONLY)?;
        Ok(file.into())
    }

    /// Whether this error means that the symbolic links of a path form a loop.
    pub fn is_link_loop(error: &Error) -> bool {
        error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
    }

    /// Whether this locking error means that the file system has no locks.
    pub fn has_no_locks(error: &Error) -> bool {
        error.raw_os_error() == Some(rustix::io::Errno::NOLCK.raw_os_error())
            || error.kind() == ErrorKind::Unsupported
    }
}

/// Processes.
pub mod process {
    use std::ffi::OsString;
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use rustix::process::{Pid, Signal, getpid, kill_process, test_kill_process};

    /// Returns the name of this machine.
    pub fn host() -> Option<String> {
        let host = rustix::system::uname();
        Some(host.nodename().to_string_lossy().into_owned())
    }

    /// Ends this process with SIGKILL.
    pub fn kill_self() -> ! {
        kill_process(getpid(), Signal::KILL).ok();
        std::process::abort()
    }

    /// Whether a process with this number exists on this machine.
    pub fn exists(number: u32) -> bool {
        let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
        let found = |pid| match test_kill_process(pid) {
            Err(error) => error == rustix::io::Errno::PERM,
            Ok(()) => true,
        };
        pid.is_some_and(found)
    }

    /// Keeps Ctrl-C from reaching the process that `command` starts.
    pub fn in_own_group(command: &mut Command) {
        command.process_group(0);
    }

    /// Restarts this program in the same process, with more environment variables. Returns only on failure.
    pub fn restart(environment: Vec<(&'static str, &'static str)>) {
        let Ok(program) = std::env::current_exe() else {
            return;
        };
        let mut arguments = std::env::args_os();
        let mut again = Command::new(program);
        if let Some(name) = arguments.next() {
            again.arg0::<OsString>(name);
        }
        // `exec` returns only on failure.
        let _ = again.args(arguments).envs(environment).exec();
    }
}

/// Signals.
pub mod signals {
    use std::io;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{Arc, OnceLock};
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::process::{Signal, getpid, getppid, getsid, kill_process};
    use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    /// The signal of a write beyond the file size limit. signal-hook has no name for it.
    const SIGXFSZ: i32 = Signal::XFSZ.as_raw();

    /// Calls `stop` with the number of the signal, on a separate thread, at each Ctrl-C, SIGTERM or SIGHUP. A signal
    /// that was ignored at the start of the process, as under `nohup`, stays ignored.
    ///
    /// # Errors
    ///
    /// Returns an error if the signals cannot be caught.
    pub fn on_stop(stop: impl FnMut(i32) + Send + 'static) -> io::Result<()> {
        let mut signals = Signals::new(heard(&[SIGHUP, SIGINT, SIGTERM]))?;
        let thread = thread::Builder::new().name("signals".into());
        thread.spawn(move || signals.forever().for_each(stop))?;
        Ok(())
    }

    /// Calls `suspended(true)` on a separate thread before SIGTSTP stops the process, and `suspended(false)` when the
    /// process continues. Also calls `suspended(true)` before SIGQUIT ends the process. Measures the time for which the
    /// process is [`stopped`].
    ///
    /// As by default, SIGTSTP does not stop a process that no shell can continue, or that receives SIGCONT first.
    ///
    /// # Errors
    ///
    /// Returns an error if the signals cannot be caught.
    pub fn on_suspension(mut suspended: impl FnMut(bool) + Send + 'static) -> io::Result<()> {
        measure_stops()?;
        let mut signals = Signals::new(heard(&[SIGTSTP, SIGQUIT, SIGCONT]))?;
        let thread = thread::Builder::new().name("suspension".into());
        thread.spawn(move || {
            loop {
                let came: Vec<i32> = signals.wait().collect();
                if came.contains(&SIGQUIT) {
                    suspended(true);
                    emulate_default_handler(SIGQUIT).ok();
                }
                if came.contains(&SIGTSTP) && !came.contains(&SIGCONT) && !is_orphan() {
                    suspended(true);
                    if !signals.pending().any(|signal| signal == SIGCONT) {
                        kill_process(getpid(), Signal::STOP).ok();
                    }
                    suspended(false);
                }
            }
        })?;
        Ok(())
    }

    /// Whether the parent is in another session, so that no shell can continue this process.
    fn is_orphan() -> bool {
        let session = |process| getsid(process).ok();
        getppid().is_none_or(|parent| session(Some(parent)) != session(None))
    }

    /// Nanoseconds for which the process was stopped.
    static STOPPED: AtomicU64 = AtomicU64::new(0);

    /// Whether a SIGCONT arrived, and `STOPPED` does not yet include the stop that it ended.
    static CONTINUED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

    /// Returns the time for which SIGTSTP or SIGSTOP stopped the process, since the call of [`on_suspension`].
    pub fn stopped() -> Duration {
        let is_being_measured = || {
            let continued = CONTINUED.get();
            continued.is_some_and(|continued| continued.load(Ordering::Acquire))
        };
        for _ in 0..100 {
            if !is_being_measured() {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        Duration::from_nanos(STOPPED.load(Ordering::Acquire))
    }

    /// Starts a thread that measures stops. In a stopped process, a thread sleeps longer than it asked for. On a busy
    /// machine, it does so too, but then no SIGCONT arrives.
    fn measure_stops() -> io::Result<()> {
        const TICK: Duration = Duration::from_millis(50);
        let continued = CONTINUED.get_or_init(Arc::default).clone();
        signal_hook::flag::register(SIGCONT, continued.clone())?;
        let thread = thread::Builder::new().name("stops".into());
        thread.spawn(move || {
            let (mut last, mut before) = (Instant::now(), Duration::ZERO);
            loop {
                thread::sleep(TICK);
                let gap = last.elapsed().saturating_sub(TICK);
                last = Instant::now();
                // The signal may arrive a tick after the gap.
                if continued.load(Ordering::Acquire) {
                    let stopped = gap.max(before).as_nanos() as u64;
                    STOPPED.fetch_add(stopped, Ordering::AcqRel);
                    continued.store(false, Ordering::Release);
                    before = Duration::ZERO;
                } else {
                    before = gap;
                }
            }
        })?;
        Ok(())
    }

    /// Turns a write beyond the file size limit (`ulimit -f`) into an error. By default, such a write ends the process.
    pub fn large_files_are_errors() {
        signal_hook::flag::register(SIGXFSZ, Arc::default()).ok();
    }

    /// Returns the `signals` that this process does not ignore.
    fn heard(signals: &[i32]) -> Vec<i32> {
        let ignored = ignored();
        let is_heard = |signal: &i32| ignored & (1 << (signal - 1)) == 0;
        signals.iter().copied().filter(is_heard).collect()
    }

    /// Returns the signals that this process ignores, one bit each. Known on Linux only; elsewhere zero.
    fn ignored() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .unwrap_or(0)
    }
}

/// The terminal.
pub mod terminal {
    use std::io;
    use std::os::fd::AsRawFd;
    use std::thread;
    use std::time::Duration;

    use mio::unix::SourceFd;
    use mio::{Events, Interest, Poll, Token};
    use rustix::io::{Errno, read};
    use rustix::process::{Signal, getpgrp, kill_current_process_group};
    use rustix::termios::{
        LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcgetpgrp, tcgetwinsize,
        tcsetattr,
    };

    use crate::terminal::Key;

    /// Waits for keys. Reads the few keys without crossterm, because crossterm 0.29 waits forever if the terminal
    /// closes during the wait. crossterm also misses keys that arrive together with a new size.
    pub struct Keys {
        poll: Poll,
        events: Events,
    }

    impl Keys {
        /// Prepares to wait for keys.
        ///
        /// # Errors
        ///
        /// Returns an error if standard input cannot be polled.
        pub fn new() -> io::Result<Self> {
            let poll = Poll::new()?;
            let stdin = io::stdin().as_raw_fd();
            let keys = poll.registry();
            keys.register(&mut SourceFd(&stdin), Token(0), Interest::READABLE)?;
            Ok(Self {
                poll,
                events: Events::with_capacity(4),
            })
        }

        /// Waits up to this time for keys, and returns them. Returns no keys if `wanted` then returns false.
        ///
        /// # Errors
        ///
        /// Returns an error if the terminal is gone.
        pub fn wait(
            &mut self,
            time: Duration,
            wanted: impl FnOnce() -> bool,
        ) -> io::Result<Vec<Key>> {
            match self.poll.poll(&mut self.events, Some(time)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Vec::new()),
                polled => polled?,
            }
            if self.events.is_empty() || !wanted() {
                return Ok(Vec::new());
            }
            let mut events = self.events.iter();
            if events.any(|event| event.is_error() || event.is_read_closed()) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let mut bytes = [0; 1024];
            match read(io::stdin(), &mut bytes) {
                Ok(0) => Err(io::ErrorKind::BrokenPipe.into()),
                Ok(count) => Ok(keys(&bytes[..count])),
                Err(Errno::INTR | Errno::AGAIN) => Ok(Vec::new()),
                Err(error) => Err(error.into()),
            }
        }
    }

    /// Parses the keys that a terminal sent.
    fn keys(mut bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        while let [byte, rest @ ..] = bytes {
            let (key, rest) = match (byte, rest) {
                (0x1b, [b'[' | b'O', b'B' | b'C', rest @ ..]) => (Some(Key::Next), rest),
                (0x1b, [b'[' | b'O', b'A' | b'D' | b'Z', rest @ ..]) => (Some(Key::Previous), rest),
                (b'q' | 0x03, rest) => (Some(Key::Stop), rest),
                (b'\t', rest) => (Some(Key::Next), rest),
                (0x1a, rest) => (Some(Key::Suspend), rest),
                (_, rest) => (None, rest),
            };
            keys.extend(key);
            bytes = rest;
        }
        keys
    }

    /// Whether standard input is a terminal that is gone, for example because its window was closed.
    pub fn is_gone() -> bool {
        matches!(tcgetpgrp(io::stdin()), Err(Errno::IO))
    }

    /// Whether the terminal cannot move its cursor: `TERM` is `dumb`, empty or not set.
    pub fn is_dumb() -> bool {
        let term = std::env::var_os("TERM").unwrap_or_default();
        term.is_empty() || term == "dumb"
    }

    /// Whether another process owns the terminal.
    pub fn is_in_background() -> bool {
        tcgetpgrp(io::stdin()).is_ok_and(|group| group != getpgrp())
    }

    /// Whether the terminal is in raw mode, in which it delivers keys at once. A shell ends this mode when the process
    /// stops.
    pub fn is_raw() -> bool {
        let mode = tcgetattr(io::stdin());
        mode.is_ok_and(|mode| !mode.local_modes.contains(LocalModes::ICANON))
    }

    /// Returns the number of columns of the terminal on standard error, if known.
    pub fn columns() -> Option<usize> {
        let size = tcgetwinsize(io::stderr()).ok()?;
        (size.ws_col > 1).then_some(size.ws_col.into())
    }

    /// Returns the number of columns of the terminal on standard output; `None` if standard output is not a terminal,
    /// or if the number is unknown.
    pub fn output_columns() -> Option<usize> {
        let size = tcgetwinsize(io::stdout()).ok()?;
        (size.ws_col > 1).then_some(size.ws_col.into())
    }

    /// Turns Ctrl-C into a signal again. Ctrl-Z and Ctrl-\ stay keys, because as signals they would leave the screen
    /// as it is.
    pub fn enable_interrupt() {
        const DISABLED: u8 = if cfg!(target_os = "linux") { 0 } else { 0xff };
        let Ok(mut mode) = tcgetattr(io::stdin()) else {
            return;
        };
        mode.local_modes |= LocalModes::ISIG;
        mode.special_codes[SpecialCodeIndex::VSUSP] = DISABLED;
        mode.special_codes[SpecialCodeIndex::VQUIT] = DISABLED;
        tcsetattr(io::stdin(), OptionalActions::Now, &mode).ok();
    }

    /// Stops the processes of this job until the job continues.
    pub fn suspend() {
        kill_current_process_group(Signal::TSTP).ok();
        // The signal may reach another thread first.
        thread::sleep(Duration::from_millis(100));
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn keys_are_known_by_their_bytes() {
            use Key::{Next, Previous, Stop, Suspend};
            assert_eq!(keys(b"kq\t\x1b[C\x1bOB"), [Stop, Next, Next, Next]);
            assert_eq!(keys(b"\x1b[D\x1b[A\x1b[Z"), [Previous; 3]);
            assert_eq!(keys(b"\x1a\x03"), [Suspend, Stop]);
            // A mouse event, a pasted accent, an incomplete sequence.
            assert_eq!(keys(b"\x1b[<0;1;1M\xc3\xa9\x1b["), []);
        }
    }
}
