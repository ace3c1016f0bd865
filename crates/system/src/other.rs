//! Functions for systems other than Unix.

/// Files.
pub mod files {
    use std::fs::Metadata;
    use std::io::{Error, ErrorKind, Result};
    use std::path::Path;

    /// Whether both are the same file. Unknown on these systems, so true.
    pub fn is_same(_: &Metadata, _: &Metadata) -> bool {
        true
    }

    /// Returns the time of the last change of a file or its metadata. Unknown on these systems.
    pub fn changed(_: &Metadata) -> Option<(i64, i64)> {
        None
    }

    /// Whether the file has other names too. Unknown on these systems, so false.
    pub fn has_other_names(_: &Metadata) -> bool {
        false
    }

    /// Replaces the directory `old` with `new`. `old` is missing for a moment.
    ///
    /// # Errors
    ///
    /// Returns I/O errors.
    pub fn replace_directory(new: &Path, old: &Path) -> Result<()> {
        std::fs::remove_dir_all(old)?;
        std::fs::rename(new, old)
    }

    /// Checks that this process may write to a file, or create files in a directory. Unknown on these systems.
    ///
    /// # Errors
    ///
    /// Never returns an error.
    pub fn check_writable(_: &Path) -> Result<()> {
        Ok(())
    }

    /// Opens a pipe or a device for writing.
    ///
    /// # Errors
    ///
    /// Returns I/O errors.
    pub fn open_pipe(path: &Path) -> Result<std::fs::File> {
        std::fs::OpenOptions::new().write(true).open(path)
    }

    /// Whether this error means that the symbolic links of a path form a loop. Unknown on these systems, so false.
    pub fn is_link_loop(_: &Error) -> bool {
        false
    }

    /// Whether this locking error means that the file system has no locks.
    pub fn has_no_locks(error: &Error) -> bool {
        error.kind() == ErrorKind::Unsupported
    }
}

/// Processes.
pub mod process {
    use std::process::Command;

    /// Returns the name of this machine. Unknown on these systems.
    pub fn host() -> Option<String> {
        None
    }

    /// Ends this process at once.
    pub fn kill_self() -> ! {
        std::process::abort()
    }

    /// Whether a process with this number exists. Unknown on these systems, so true.
    pub fn exists(_: u32) -> bool {
        true
    }

    /// Keeps Ctrl-C from reaching the process that `command` starts. Impossible on these systems.
    pub fn in_own_group(_: &mut Command) {}

    /// Restarts this program with more environment variables. Impossible on these systems.
    pub fn restart(_: Vec<(&'static str, &'static str)>) {}
}

/// Signals.
pub mod signals {
    use std::io;

    /// Calls `stop` with signal number 2, on a separate thread, at each Ctrl-C.
    ///
    /// # Errors
    ///
    /// Returns an error if Ctrl-C cannot be caught.
    pub fn on_stop(mut stop: impl FnMut(i32) + Send + 'static) -> io::Result<()> {
        ctrlc::set_handler(move || stop(2)).map_err(io::Error::other)
    }

    /// Does nothing: these systems have no signal that suspends a process.
    ///
    /// # Errors
    ///
    /// Never returns an error.
    pub fn on_suspension(_: impl FnMut(bool) + Send + 'static) -> io::Result<()> {
        Ok(())
    }

    /// Returns zero: these systems have no signal that suspends a process.
    pub fn stopped() -> std::time::Duration {
        std::time::Duration::ZERO
    }

    /// Does nothing: these systems have no signal for a write beyond the file size limit.
    pub fn large_files_are_errors() {}
}

/// The terminal.
pub mod terminal {
    use std::io;
    use std::time::Duration;

    use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
    use crossterm::terminal::{is_raw_mode_enabled, size};

    use crate::terminal::Key;

    /// Waits for keys.
    pub struct Keys;

    impl Keys {
        /// Prepares to wait for keys.
        ///
        /// # Errors
        ///
        /// Never returns an error.
        pub fn new() -> io::Result<Self> {
            Ok(Self)
        }

        /// Returns the keys that arrive within this time.
        ///
        /// # Errors
        ///
        /// Returns an error if the terminal cannot be read.
        pub fn wait(&mut self, time: Duration, _: impl FnOnce() -> bool) -> io::Result<Vec<Key>> {
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

    /// Whether standard input is a terminal that is gone. Unknown on these systems, so false.
    pub fn is_gone() -> bool {
        false
    }

    /// Whether the terminal cannot move its cursor.
    pub fn is_dumb() -> bool {
        std::env::var_os("TERM").is_some_and(|term| term == "dumb")
    }

    /// Whether another process owns the terminal. Unknown on these systems, so false.
    pub fn is_in_background() -> bool {
        false
    }

    /// Whether the terminal is in raw mode, in which it delivers keys at once.
    pub fn is_raw() -> bool {
        is_raw_mode_enabled().unwrap_or(false)
    }

    /// Returns the number of columns of the terminal, if known.
    pub fn columns() -> Option<usize> {
        size().ok().map(|(columns, _)| columns.into())
    }

    /// Returns the number of columns of the terminal on standard output; `None` if standard output is not a terminal.
    pub fn output_columns() -> Option<usize> {
        let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
        columns().filter(|_| is_terminal)
    }

    /// Does nothing: Ctrl-C is a key on these systems.
    pub fn enable_interrupt() {}

    /// Does nothing: impossible on these systems.
    pub fn suspend() {}
}
