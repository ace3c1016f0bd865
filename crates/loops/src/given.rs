//! A state that replaces the random one.

use std::cell::RefCell;

use burn::tensor::TensorData;

thread_local! {
    static GIVEN: RefCell<Option<TensorData>> = const { RefCell::new(None) };
}

/// Restores the surrounding state, even after a panic.
struct Around(Option<TensorData>);

impl Drop for Around {
    fn drop(&mut self) {
        GIVEN.set(self.0.take());
    }
}

/// Runs `pass`, in which [`LoopStart::Random`](crate::LoopStart::Random) is `state` `[batch, time, width]` on this
/// thread. Use it to compare with another implementation, or to start from several states.
///
/// # Panics
///
/// `pass` panics if the stream has another shape.
pub fn starting_from<T>(state: TensorData, pass: impl FnOnce() -> T) -> T {
    let _around = Around(GIVEN.replace(Some(state)));
    pass()
}

/// The state that replaces the random one on this thread.
pub(crate) fn given() -> Option<TensorData> {
    GIVEN.with_borrow(Clone::clone)
}
