//! Records the operations that run in their plain form, with several passes over memory instead of one.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The operations that have run in their plain form; `None` without a recording.
static PLAIN: Mutex<Option<BTreeSet<&'static str>>> = Mutex::new(None);

/// Notes that `operation` runs in its plain form, and returns `inputs`.
pub fn plain<T>(operation: &'static str, inputs: T) -> T {
    let mut recorded = PLAIN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(recorded) = recorded.as_mut() {
        recorded.insert(operation);
    }
    inputs
}

/// Runs `work`. Returns its result and the names of the operations that ran in their plain form during `work`, in any
/// thread.
pub fn recorded<T>(work: impl FnOnce() -> T) -> (T, Vec<&'static str>) {
    let put = |operations| {
        let mut recorded = PLAIN.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *recorded, operations)
    };
    put(Some(BTreeSet::new()));
    let done = work();
    let operations = put(None).unwrap_or_default();
    (done, operations.into_iter().collect())
}
