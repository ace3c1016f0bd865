//! What differs between systems: waiting for keys, signals, and terminals that go away.

#[cfg(unix)]
pub use unix::is_gone;
#[cfg(unix)]
pub(super) use unix::{Keys, enable_interrupt, is_in_background, is_raw, suspend};

#[cfg(not(unix))]
pub use other::is_gone;
#[cfg(not(unix))]
pub(super) use other::{Keys, enable_interrupt, is_in_background, is_raw, suspend};

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// `q`, and Ctrl-C where it is not a signal.
    Stop,
    /// Tab, → or ↓.
    Next,
    /// Shift-tab, ← or ↑.
    Previous,
    /// Ctrl-Z.
    Suspend,
}

#[cfg(unix)]
mod unix {
    use std::io;
    use std::os::fd::AsRawFd;
    use std::thread;
    use std::time::Duration;

    use mio::unix::SourceFd;
    use mio::{Events, Interest, Poll, Token};
    use rustix::io::{Errno, read};
    use rustix::process::{Signal, getpgrp, kill_current_process_group};
    use rustix::termios::{
        LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcgetpgrp, tcsetattr,
    };

    use super::Key;

    /// Waits for keys. crossterm 0.29 waits for ever where the terminal goes away meanwhile, and misses
    /// keys that come together with a new size, so the few keys are read here.
    pub(in super::super) struct Keys {
        poll: Poll,
        events: Events,
    }

    impl Keys {
        pub(in super::super) fn new() -> io::Result<Self> {
            let poll = Poll::new()?;
            let stdin = io::stdin().as_raw_fd();
            let keys = poll.registry();
            keys.register(&mut SourceFd(&stdin), Token(0), Interest::READABLE)?;
            Ok(Self {
                poll,
                events: Events::with_capacity(4),
            })
        }

        /// The keys that come within this time. An error means that the terminal is gone.
        pub(in super::super) fn wait(&mut self, time: Duration) -> io::Result<Vec<Key>> {
            match self.poll.poll(&mut self.events, Some(time)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Vec::new()),
                polled => polled?,
            }
            if self.events.is_empty() || !super::super::is_open() {
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

    /// The keys that a terminal has sent.
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

    /// Whether standard input is a terminal that has gone away, as when its window is closed.
    pub fn is_gone() -> bool {
        matches!(tcgetpgrp(io::stdin()), Err(Errno::IO))
    }

    /// Whether another process has the terminal.
    pub(in super::super) fn is_in_background() -> bool {
        tcgetpgrp(io::stdin()).is_ok_and(|group| group != getpgrp())
    }

    /// Whether the terminal passes keys on at once. A shell turns that off when the process stops.
    pub(in super::super) fn is_raw() -> bool {
        let mode = tcgetattr(io::stdin());
        mode.is_ok_and(|mode| !mode.local_modes.contains(LocalModes::ICANON))
    }

    /// Turns Ctrl-C into a signal again, but not Ctrl-Z and Ctrl-\, which would leave the screen as it
    /// is.
    pub(in super::super) fn enable_interrupt() {
        const DISABLED: u8 = if cfg!(target_os = "linux") { 0 } else { 0xff };
        let Ok(mut mode) = tcgetattr(io::stdin()) else {
            return;
        };
        mode.local_modes |= LocalModes::ISIG;
        mode.special_codes[SpecialCodeIndex::VSUSP] = DISABLED;
        mode.special_codes[SpecialCodeIndex::VQUIT] = DISABLED;
        tcsetattr(io::stdin(), OptionalActions::Now, &mode).ok();
    }

    /// Stops the processes of this job until it continues.
    pub(in super::super) fn suspend() {
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
            // A mouse, a pasted accent, a torn sequence.
            assert_eq!(keys(b"\x1b[<0;1;1M\xc3\xa9\x1b["), []);
        }
    }
}

#[cfg(not(unix))]
mod other {
    use std::io;
    use std::time::Duration;

    use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
    use ratatui::crossterm::terminal::is_raw_mode_enabled;

    use super::Key;

    /// Waits for keys.
    pub(in super::super) struct Keys;

    impl Keys {
        pub(in super::super) fn new() -> io::Result<Self> {
            Ok(Self)
        }

        /// The keys that come within this time.
        pub(in super::super) fn wait(&mut self, time: Duration) -> io::Result<Vec<Key>> {
            let mut keys = Vec::new();
            if event::poll(time)?
                && let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
            {
                let control = key.modifiers.contains(KeyModifiers::CONTROL);
                keys.extend(match key.code {
                    KeyCode::Char('q') => Some(Key::Stop),
                    KeyCode::Char('c') if control => Some(Key::Stop),
                    KeyCode::Tab | KeyCode::Right | KeyCode::Down => Some(Key::Next),
                    KeyCode::BackTab | KeyCode::Left | KeyCode::Up => Some(Key::Previous),
                    _ => None,
                });
            }
            Ok(keys)
        }
    }

    /// Whether standard input is a terminal that has gone away. Not known here.
    pub fn is_gone() -> bool {
        false
    }

    pub(in super::super) fn is_in_background() -> bool {
        false
    }

    pub(in super::super) fn is_raw() -> bool {
        is_raw_mode_enabled().unwrap_or(false)
    }

    pub(in super::super) fn enable_interrupt() {}

    pub(in super::super) fn suspend() {}
}
