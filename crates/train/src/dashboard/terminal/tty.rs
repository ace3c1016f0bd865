//! What differs between systems: waiting for keys, signals, and terminals that go away.

#[cfg(unix)]
pub use unix::is_gone;
#[cfg(unix)]
pub(super) use unix::{Keys, enable_interrupt, is_in_background, is_raw, suspend};

#[cfg(not(unix))]
pub use other::is_gone;
#[cfg(not(unix))]
pub(super) use other::{Keys, enable_interrupt, is_in_background, is_raw, suspend};

/// What waiting for keys has come to.
pub(super) enum Waited {
    Nothing,
    Input,
    /// The terminal does not exist any more.
    Gone,
}

#[cfg(unix)]
mod unix {
    use std::io;
    use std::os::fd::AsRawFd;
    use std::thread;
    use std::time::Duration;

    use mio::unix::SourceFd;
    use mio::{Events, Interest, Poll, Token};
    use rustix::io::Errno;
    use rustix::process::{Signal, getpgrp, kill_current_process_group};
    use rustix::termios::{
        LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcgetpgrp, tcsetattr,
    };

    use super::Waited;

    /// Waits for keys. crossterm 0.29 never returns from `poll` where the terminal goes away meanwhile,
    /// so it is asked only when there is input.
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

        pub(in super::super) fn wait(&mut self, time: Duration) -> io::Result<Waited> {
            match self.poll.poll(&mut self.events, Some(time)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    return Ok(Waited::Nothing);
                }
                polled => polled?,
            }
            let events = || self.events.iter();
            let is_gone = events().any(|event| event.is_error() || event.is_read_closed());
            Ok(match (is_gone, events().next()) {
                (true, _) => Waited::Gone,
                (false, Some(_)) => Waited::Input,
                (false, None) => Waited::Nothing,
            })
        }
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
}

#[cfg(not(unix))]
mod other {
    use std::io;
    use std::time::Duration;

    use ratatui::crossterm::event;
    use ratatui::crossterm::terminal::is_raw_mode_enabled;

    use super::Waited;

    /// Waits for keys.
    pub(in super::super) struct Keys;

    impl Keys {
        pub(in super::super) fn new() -> io::Result<Self> {
            Ok(Self)
        }

        pub(in super::super) fn wait(&mut self, time: Duration) -> io::Result<Waited> {
            Ok(match event::poll(time)? {
                true => Waited::Input,
                false => Waited::Nothing,
            })
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
