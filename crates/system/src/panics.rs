//! Catches panics of other crates and returns them as errors.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `call` and returns its panic as an error. During the call, a panic on this thread prints nothing.
///
/// After a panic, the caller must not use data that `call` changes, unless the data are valid anyway.
///
/// # Errors
///
/// Returns the payload of the panic.
pub fn caught<T>(call: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = take_hook();
        set_hook(Box::new(move |info| {
            if !is_caught() {
                print(info);
            }
        }));
    });
    let outer = CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    CAUGHT.set(outer);
    result
}

/// Whether [`caught`] catches panics on this thread, so that a hook has nothing to do.
pub fn is_caught() -> bool {
    CAUGHT.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_the_thread_prints_again_afterwards() {
        assert_eq!(caught(|| 7).unwrap(), 7);
        let inner = caught(|| {
            assert!(is_caught());
            caught(|| panic!("inner")).unwrap_err();
            assert!(is_caught());
            panic!("outer")
        });
        let inner: Result<(), _> = inner;
        assert_eq!(inner.unwrap_err().downcast_ref(), Some(&"outer"));
        assert!(!is_caught());
    }
}
