//! What differs between operating systems: terminals, signals, locks and memory; the output; and processes that work
//! together. No other crate asks which system it is on, apart from file permissions and the settings of C libraries.
//!
//! On systems that are not Unix, a terminal that goes away is not noticed, the process cannot be suspended from
//! the dashboard, and two directories cannot be told apart by their files' identity. Which signals were ignored
//! at the start is known on Linux only: elsewhere, `nohup` does not keep SIGHUP from stopping a run.

#![forbid(unsafe_code)]

pub mod memory;
pub mod output;
pub mod panics;
mod places;
pub mod stop;
pub mod team;
mod text;

#[cfg(not(unix))]
mod other;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
use other as os;
#[cfg(unix)]
use unix as os;

pub use os::files;
pub use os::process;
pub use os::signals;
pub use places::is_wrong_place;
pub use text::{harmless, short_numbers};

/// The terminal of this process.
pub mod terminal {
    pub use super::os::terminal::{
        Keys, columns, enable_interrupt, is_dumb, is_gone, is_in_background, is_raw,
        output_columns, suspend,
    };

    /// What a key of the dashboard asks for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Key {
        /// `q`, and Ctrl-C where it is not a signal.
        Stop,
        /// Tab, → or ↓.
        Next,
        /// Shift-tab, ← or ↑.
        Previous,
        /// Ctrl-Z.
        Suspend,
    }
}
