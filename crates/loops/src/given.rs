//! Replaces the random state with a given state.

use std::cell::RefCell;

use burn::tensor::TensorData;

thread_local! {
    static GIVEN: RefCell<Option<TensorData>> = const { RefCell::new(None) };
}

/// Restores the previous state, even after a panic.
struct Around(Option<TensorData>);

impl Drop for Around {
    fn drop(&mut self) {
        GIVEN.set(self.0.take());
    }
}

/// Runs `pass` with `state` `[batch, time, width]` instead of [`LoopStart::Random`](crate::LoopStart::Random), on this
/// thread. Use it to compare with another implementation, or to start from several states.
///
/// # Panics
///
/// `pass` can panic if the shape of `state` differs from the shape of the stream.
pub fn starting_from<T>(state: TensorData, pass: impl FnOnce() -> T) -> T {
    let _around = Around(GIVEN.replace(Some(state)));
    pass()
}

/// Returns the state that replaces the random state on this thread; `None` if no state is given.
pub(crate) fn given() -> Option<TensorData> {
    GIVEN.with_borrow(Clone::clone)
}
