//! Launches this crate's CUDA kernels (`cuda/kernels.cu`) on LibTorch's tensors. Tests also run the kernels on a CPU,
//! where they are emulated.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::LazyLock;

use tch::{Device, Kind, Tensor};

use crate::libtorch::check;

static SOURCE: LazyLock<CString> =
    LazyLock::new(|| CString::new(include_str!("cuda/kernels.cu")).unwrap_or_default());

unsafe extern "C" {
    fn zoo_launch(
        source: *const c_char,
        name: *const c_char,
        gpu: c_int,
        columns: c_uint,
        rows: c_uint,
        block: c_uint,
        arguments: *mut *mut c_void,
    ) -> *mut c_char;
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub(crate) enum Arg<'a> {
    /// The elements of a contiguous tensor.
    Of(&'a Tensor),
    /// The elements of a matrix whose rows can have gaps between them.
    Rows(&'a Tensor),
    /// A null pointer.
    Null,
    /// `int`.
    Int(usize),
    /// `i64`.
    Long(usize),
    /// `float`.
    Float(f64),
    /// `bool`.
    Bool(bool),
}

/// The blocks of a launch and the threads of a block.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
    pub(crate) block: usize,
}

impl Grid {
    /// Makes a grid with a thread for each of `count` elements.
    pub(crate) fn threads(count: usize) -> Self {
        Self {
            columns: count.div_ceil(256),
            rows: 1,
            block: 256,
        }
    }

    /// Makes a grid with a large block for each of `count` rows of `x`, which has thousands of columns.
    pub(crate) fn wide_blocks(count: usize, x: &Tensor) -> Self {
        let block = if x.device().is_cuda() { 512 } else { 64 };
        Self {
            block,
            ..Self::blocks(count, x)
        }
    }

    /// Makes a grid with a block for each of `count` rows of `x`.
    pub(crate) fn blocks(count: usize, x: &Tensor) -> Self {
        Self {
            columns: count,
            rows: 1,
            // Emulated threads are slow. Two warps are enough to show that a sum covers all warps.
            block: if x.device().is_cuda() { 256 } else { 64 },
        }
    }
}

/// Launches a kernel on the device of `on`. The arguments must have the types of the kernel's parameters.
pub(crate) fn launch(name: &CStr, on: &Tensor, grid: Grid, arguments: &[Arg]) {
    if grid.columns * grid.rows == 0 {
        return;
    }
    let gpu = match on.device() {
        Device::Cuda(index) => index as c_int,
        _ => -1,
    };
    // Each argument is at the beginning of eight bytes, in little-endian order, as on all processors that CUDA
    // supports.
    let mut values: Vec<[u8; 8]> = arguments
        .iter()
        .map(|argument| match *argument {
            Arg::Of(x) => {
                assert!(x.is_contiguous(), "a kernel reads contiguous tensors");
                assert!(
                    x.device() == on.device(),
                    "a kernel reads tensors of one device"
                );
                (x.data_ptr() as u64).to_le_bytes()
            }
            Arg::Rows(x) => {
                assert!(
                    x.stride()[1] == 1,
                    "a kernel reads the elements of a row in sequence"
                );
                (x.data_ptr() as u64).to_le_bytes()
            }
            Arg::Null => [0; 8],
            Arg::Int(x) => u64::from(x as u32).to_le_bytes(),
            Arg::Long(x) => (x as u64).to_le_bytes(),
            Arg::Float(x) => u64::from((x as f32).to_bits()).to_le_bytes(),
            Arg::Bool(x) => u64::from(x).to_le_bytes(),
        })
        .collect();
    let mut pointers: Vec<*mut c_void> = values.iter_mut().map(|x| x.as_mut_ptr().cast()).collect();
    // SAFETY: the strings and the arguments live until the call returns. PyTorch frees the memory of a tensor only for
    // later work of the same stream.
    check(unsafe {
        zoo_launch(
            SOURCE.as_ptr(),
            name.as_ptr(),
            gpu,
            grid.columns as c_uint,
            grid.rows as c_uint,
            grid.block as c_uint,
            pointers.as_mut_ptr(),
        )
    });
}

/// Returns the number of rows of a tensor, and their width.
pub(crate) fn rows(x: &Tensor) -> [usize; 2] {
    let width = x.size().last().map_or(1, |width| *width as usize);
    [x.numel() / width.max(1), width]
}

/// Allocates an uninitialised tensor for the result of a kernel.
pub(crate) fn empty(sizes: &[i64], kind: Kind, like: &Tensor) -> Tensor {
    Tensor::empty(sizes, (kind, like.device()))
}
