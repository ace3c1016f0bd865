//! An allocator that counts memory.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, with a count of the bytes in use. It ignores small allocations, because all threads share
/// the counters, and a tokenizer makes millions of small allocations a second. Tensors are rarely small.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeakAlloc;

/// The smallest counted allocation, in bytes.
const COUNTED: usize = 256;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

impl PeakAlloc {
    /// Returns the number of counted bytes in use.
    pub(crate) fn in_use() -> usize {
        IN_USE.load(Relaxed)
    }

    /// Returns the maximum number of bytes in use since the last [`reset`](Self::reset).
    pub(crate) fn most() -> usize {
        MOST.load(Relaxed)
    }

    /// Resets the peak to the bytes in use.
    pub(crate) fn reset() {
        MOST.store(Self::in_use(), Relaxed);
    }
}

fn add(size: usize) {
    if size >= COUNTED {
        let in_use = IN_USE.fetch_add(size, Relaxed) + size;
        MOST.fetch_max(in_use, Relaxed);
    }
}

fn subtract(size: usize) {
    if size >= COUNTED {
        IN_USE.fetch_sub(size, Relaxed);
    }
}

// SAFETY: every call passes its arguments on to the system's allocator. Counting does not allocate.
unsafe impl GlobalAlloc for PeakAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this function, which is also the contract of the system's allocator.
        let pointer = unsafe { System.alloc(layout) };
        if !pointer.is_null() {
            add(layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        if !pointer.is_null() {
            add(layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) };
        subtract(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let new = unsafe { System.realloc(pointer, layout, size) };
        if !new.is_null() {
            subtract(layout.size());
            add(size);
        }
        new
    }
}
