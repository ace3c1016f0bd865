//! The user's request that this process end.

use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);

/// Remembers that the user asked this process to end, by a signal or a key.
pub fn ask() {
    ASKED.store(true, Ordering::Relaxed);
}

/// Whether the user asked this process to end. Work that can safely be abandoned, such as reading a file, then ends
/// early.
pub fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}
