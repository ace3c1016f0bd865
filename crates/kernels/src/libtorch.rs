//! Bindings (`libtorch.cpp`) for LibTorch functions that the crate `tch` lacks.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use burn_tch::TchTensor;
use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

use crate::AdamW;

unsafe extern "C" {
    fn zoo_gradients(
        y: *const C_tensor,
        grad: *const C_tensor,
        leaves: *const *const C_tensor,
        count: c_int,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn zoo_layer_norm_backward(
        grad: *const C_tensor,
        x: *const C_tensor,
        mean: *const C_tensor,
        factor: *const C_tensor,
        gamma: *const C_tensor,
        beta: *const C_tensor,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn zoo_adamw(
        x: *const *const C_tensor,
        grad: *const *const C_tensor,
        m: *const *const C_tensor,
        v: *const *const C_tensor,
        count: c_int,
        step: *const C_tensor,
        inverse_scale: *const C_tensor,
        lr: f64,
        beta_1: f64,
        beta_2: f64,
        decay: f64,
        eps: f64,
    ) -> *mut c_char;
    fn zoo_sum_of_squares(
        parts: *const *const C_tensor,
        count: c_int,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn zoo_allow_tf32(allow: c_int) -> *mut c_char;
    fn zoo_deterministic(on: c_int) -> *mut c_char;
    fn zoo_peak_memory(gpu: c_int, bytes: *mut i64) -> *mut c_char;
    fn zoo_reset_memory(gpu: c_int) -> *mut c_char;
    fn zoo_start_profile() -> *mut c_char;
    fn zoo_end_profile(path: *const c_char) -> *mut c_char;
    fn free(pointer: *mut c_void);
}

/// Returns the message of a failed call as an error.
fn result(message: *mut c_char) -> Result<(), String> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: a message is a C string that nothing else holds.
    let text = unsafe { CStr::from_ptr(message) }
        .to_string_lossy()
        .into_owned();
    // SAFETY: `strdup` allocated the message.
    unsafe { free(message.cast()) };
    Err(text)
}

/// Panics if a call failed, as the crate `tch` does.
pub(crate) fn check(message: *mut c_char) {
    if let Err(text) = result(message) {
        panic!("LibTorch: {text}");
    }
}

/// Returns the gradients of Σ y · grad with respect to the leaves of the graph of `y`.
pub(crate) fn gradients<const N: usize>(
    y: &Tensor,
    grad: &Tensor,
    leaves: [Tensor; N],
) -> [Tensor; N] {
    let pointers = leaves.each_ref().map(Tensor::as_ptr);
    let mut out = [null_mut(); N];
    // SAFETY: the tensors live until the call returns, and `out` has room for each gradient.
    check(unsafe {
        zoo_gradients(
            y.as_ptr(),
            grad.as_ptr(),
            pointers.as_ptr().cast(),
            N as c_int,
            out.as_mut_ptr(),
        )
    });
    // SAFETY: each pointer is a new tensor that nothing else holds.
    out.map(|x| unsafe { Tensor::from_ptr(x) })
}

/// A layer norm over the last axis: its inputs, and the mean and 1 / √(variance + ε) of each row.
pub(crate) struct LayerNorm<'a> {
    pub(crate) x: &'a Tensor,
    pub(crate) gamma: Option<&'a Tensor>,
    pub(crate) beta: Option<&'a Tensor>,
    pub(crate) mean: &'a Tensor,
    pub(crate) factor: &'a Tensor,
}

/// Returns the gradients of the `N` inputs of a layer norm: of x, and of γ and β if the norm has them.
pub(crate) fn layer_norm_backward<const N: usize>(norm: &LayerNorm, grad: &Tensor) -> [Tensor; N] {
    let pointer = |x: Option<&Tensor>| x.map_or(null(), Tensor::as_ptr);
    let inputs = 1 + usize::from(norm.gamma.is_some()) + usize::from(norm.beta.is_some());
    assert_eq!(inputs, N, "a gradient for each input");
    let mut out = [null_mut(); N];
    // SAFETY: the tensors live until the call returns, and `out` has room for each gradient.
    check(unsafe {
        zoo_layer_norm_backward(
            grad.as_ptr(),
            norm.x.as_ptr(),
            norm.mean.as_ptr(),
            norm.factor.as_ptr(),
            pointer(norm.gamma),
            pointer(norm.beta),
            out.as_mut_ptr(),
        )
    });
    // SAFETY: each pointer is a new tensor that nothing else holds.
    out.map(|x| unsafe { Tensor::from_ptr(x) })
}

/// Takes a step of AdamW on the parameters of one device. Each state is `[x, m, v, gradient]`; x, m and v are updated
/// in place, and the gradients may change too.
pub(crate) fn adamw(step: AdamW, states: &[[&Tensor; 4]]) {
    let Some([x, ..]) = states.first() else {
        return;
    };
    let options = (Kind::Float, x.device());
    let time = Tensor::full([1i64; 0], step.time as f64, options);
    let inverse = (step.scale != 1.0).then(|| Tensor::full([1i64; 0], 1.0 / step.scale, options));
    let [x, m, v, grad] = [0, 1, 2, 3].map(|i| {
        let pointers = states.iter().map(|state| state[i].as_ptr());
        pointers.collect::<Vec<_>>()
    });
    // SAFETY: the tensors live until the call returns, and each list has the same number of tensors.
    check(unsafe {
        zoo_adamw(
            x.as_ptr().cast(),
            grad.as_ptr().cast(),
            m.as_ptr().cast(),
            v.as_ptr().cast(),
            states.len() as c_int,
            time.as_ptr(),
            inverse.as_ref().map_or(null(), Tensor::as_ptr),
            step.lr,
            step.beta_1,
            step.beta_2,
            step.weight_decay,
            step.eps,
        )
    });
}

/// Returns the sum of squares of all elements of all tensors, as a tensor of shape `[1]`.
pub(crate) fn sum_of_squares(parts: &[&Tensor]) -> Tensor {
    let pointers: Vec<_> = parts.iter().map(|x| x.as_ptr()).collect();
    let mut out = null_mut();
    // SAFETY: the tensors live until the call returns.
    check(unsafe {
        zoo_sum_of_squares(pointers.as_ptr().cast(), parts.len() as c_int, &raw mut out)
    });
    // SAFETY: the pointer is a new tensor that nothing else holds.
    unsafe { Tensor::from_ptr(out) }
}

/// Whether products of f32 numbers on CUDA round their factors to TF32.
static TF32: AtomicBool = AtomicBool::new(false);

/// Sets whether products and convolutions of f32 numbers on CUDA round their factors to TF32.
pub fn allow_tf32(allow: bool) {
    TF32.store(allow, Relaxed);
    // SAFETY: the function takes only a number.
    check(unsafe { zoo_allow_tf32(allow.into()) });
}

/// Returns the number that must divide the length of a row, so that tensor cores read rows of type `kind` fast. Returns
/// `None` for f32 without TF32, and for types other than bf16 and f32.
pub(crate) fn unit(kind: Kind) -> Option<i64> {
    match kind {
        Kind::BFloat16 => Some(8),
        Kind::Float if TF32.load(Relaxed) => Some(4),
        _ => None,
    }
}

/// Whether an operation on `x` uses its form for CUDA. It does on a GPU. With `RESIDUAL_ZOO_OPS=cuda`, which is for
/// tests, it does on any device.
pub(crate) fn is_cuda(x: &Tensor) -> bool {
    static EVERYWHERE: LazyLock<bool> =
        LazyLock::new(|| std::env::var_os("RESIDUAL_ZOO_OPS").is_some_and(|v| v == "cuda"));
    *EVERYWHERE || matches!(x.device(), Device::Cuda(_))
}

/// Returns x, contiguous in memory.
pub(crate) fn contiguous(x: TchTensor) -> TchTensor {
    match x.tensor.is_contiguous() {
        true => x,
        false => TchTensor::new(x.tensor.contiguous()),
    }
}

/// Runs `work` with f32 products that do not round their factors to TF32.
pub(crate) fn in_f32<T>(work: impl FnOnce() -> T) -> T {
    let allowed = TF32.load(Relaxed);
    if !allowed {
        return work();
    }
    allow_tf32(false);
    let done = work();
    allow_tf32(true);
    done
}

/// Sets whether every operation uses a deterministic kernel. An operation without such a kernel then fails. The setting
/// holds for the whole process.
pub(crate) fn deterministic(on: bool) {
    // SAFETY: the function takes only a number.
    check(unsafe { zoo_deterministic(on.into()) });
}

/// Returns the number of GPUs that LibTorch finds.
pub fn gpus() -> usize {
    usize::try_from(tch::Cuda::device_count()).unwrap_or(0)
}

/// Starts a recording of LibTorch's operations and the GPU's kernels.
pub(crate) fn start_profile() -> Result<(), String> {
    // SAFETY: the function takes no arguments.
    result(unsafe { zoo_start_profile() })
}

/// Ends the recording, and writes it to `path`, in the format of the viewers of Chrome and Perfetto.
pub(crate) fn end_profile(path: &std::path::Path) -> Result<(), String> {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())
        .map_err(|_| "the path has a zero byte".to_owned())?;
    // SAFETY: the string lives until the call returns.
    result(unsafe { zoo_end_profile(path.as_ptr()) })
}

/// Returns the peak memory of tensors on GPU number `gpu` since the last call of [`reset_memory`], in bytes; `None`
/// without such a GPU.
pub fn peak_memory(gpu: usize) -> Option<u64> {
    let mut bytes = 0;
    // SAFETY: `bytes` has room for the number.
    result(unsafe { zoo_peak_memory(gpu as c_int, &raw mut bytes) }).ok()?;
    u64::try_from(bytes).ok()
}

/// Gives the unused memory in PyTorch's cache back to the GPUs, and restarts the peak measurement on GPU number `gpu`.
/// Does nothing without a GPU.
pub fn reset_memory(gpu: usize) {
    // SAFETY: the function takes only a number. Without a GPU, the call fails, and there is no memory to give back.
    let _ = result(unsafe { zoo_reset_memory(gpu as c_int) });
}
