//! Handles the differences between operating systems (in terminals, signals, locks and memory), program output, and
//! teams of processes. No other crate depends on the operating system, except for file permissions and settings of C
//! libraries.
//!
//! On systems other than Unix, the program does not notice a closed terminal. The dashboard cannot suspend the process,
//! and files cannot be compared by identity. Only Linux reports which signals were ignored at the start. Elsewhere,
//! SIGHUP stops a run despite `nohup`.

#![forbid(unsafe_code)]

pub mod console;
mod fault;
pub mod memory;
pub mod mutex;
pub mod output;
pub mod panics;
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

pub use fault::{Blame, Fault};
pub use os::files;
pub use os::process;
pub use os::signals;
pub use text::{counted, harmless, short_numbers};

/// The terminal of this process.
pub mod terminal {
    pub use super::os::terminal::{
        Keys, columns, enable_interrupt, is_dumb, is_gone, is_in_background, is_raw,
        output_columns, suspend,
    };

    /// The meaning of a key in the dashboard.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Key {
        /// `q`, and Ctrl-C if it is not a signal.
        Stop,
        /// Tab, → or ↓.
        Next,
        /// Shift-tab, ← or ↑.
        Previous,
        /// Ctrl-Z.
        Suspend,
    }
}
