//! Work for any backend.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, Once, PoisonError};

use burn::backend::Autodiff;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

use crate::error::out_of_memory;
use crate::{BackendError, BackendKind, panic_message};

/// Work that can run on any backend.
pub trait OnBackend {
    /// The result of the work.
    type Output;

    /// Does the work on `device`.
    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output;
}

/// Does nothing.
struct Nothing;

impl OnBackend for Nothing {
    type Output = ();

    fn run<B: AutodiffBackend>(self, _: B::Device) {}
}

impl BackendKind {
    /// Checks that this backend can compute on the GPU of index `gpu`, or on its default device.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`run`](Self::run).
    pub fn check_device(self, gpu: Option<usize>) -> Result<(), BackendError> {
        self.run(gpu, Nothing)
    }

    /// Runs `task` on this backend, on the GPU of index `gpu` if given. Without `gpu`, Flex and LibTorch use the CPU,
    /// and the other backends use their default device.
    ///
    /// # Errors
    ///
    /// Returns an error if the backend is not compiled, has no such GPU, cannot start (for instance, without a driver),
    /// or runs out of memory.
    pub fn run<T: OnBackend>(self, gpu: Option<usize>, task: T) -> Result<T::Output, BackendError> {
        match self {
            #[cfg(feature = "flex")]
            Self::Flex if gpu.is_some() => Err(BackendError::NoGpu(self)),
            #[cfg(feature = "flex")]
            Self::Flex => start::<burn::backend::Flex, T>(self, Default::default(), task),
            #[cfg(feature = "tch")]
            Self::LibTorch => {
                use burn::backend::libtorch::LibTorchDevice::{Cpu, Cuda};
                let found = residual_zoo_kernels::libtorch::gpus();
                if let Some(index) = gpu.filter(|index| *index >= found) {
                    return Err(BackendError::NoSuchGpu { index, found });
                }
                // By default, PyTorch's convolutions are in TF32.
                residual_zoo_kernels::libtorch::allow_tf32(false);
                let device = gpu.map_or(Cpu, Cuda);
                start::<burn::backend::LibTorch, T>(self, device, task)
            }
            #[cfg(feature = "cuda")]
            Self::Cuda => {
                let device = burn::backend::cuda::CudaDevice::new(gpu.unwrap_or(0));
                start::<burn::backend::Cuda, T>(self, device, task)
            }
            #[cfg(feature = "vulkan")]
            Self::Vulkan => start::<burn::backend::Vulkan, T>(self, wgpu_device(gpu), task),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => start::<burn::backend::Wgpu, T>(self, wgpu_device(gpu), task),
            #[allow(unreachable_patterns)]
            _ => {
                let _ = (gpu, task);
                Err(BackendError::NotCompiled(self))
            }
        }
    }
}

#[cfg(any(feature = "wgpu", feature = "vulkan"))]
pub(crate) fn wgpu_device(gpu: Option<usize>) -> burn::backend::wgpu::WgpuDevice {
    use burn::backend::wgpu::WgpuDevice::{DefaultDevice, DiscreteGpu};
    gpu.map_or(DefaultDevice, DiscreteGpu)
}

/// Runs `task` after a first computation has shown that the device works. Without a driver, backends panic in that
/// computation, and the user gets an error instead.
#[cfg(any(
    feature = "flex",
    feature = "tch",
    feature = "cuda",
    feature = "vulkan",
    feature = "wgpu"
))]
fn start<B, T>(kind: BackendKind, device: B::Device, task: T) -> Result<T::Output, BackendError>
where
    B: Backend,
    T: OnBackend,
{
    /// Names of Burn's configuration files, in the current directory and its parents.
    const SETTINGS: [&str; 4] = ["burn.toml", "Burn.toml", "cubecl.toml", "CubeCL.toml"];
    let unusable = |reason| BackendError::Unusable { kind, reason };
    let here = std::env::current_dir().map_err(|error| {
        unusable(format!(
            "the current directory is gone ({error}); change to another one"
        ))
    })?;
    // Reading a pipe would block Burn, so only regular files are allowed.
    let mut settings = here
        .ancestors()
        .flat_map(|directory| SETTINGS.map(|name| directory.join(name)));
    if let Some(path) = settings.find(|path| path.exists() && !path.is_file()) {
        return Err(unusable(format!(
            "`{}` is not a regular file; remove it",
            path.display()
        )));
    }
    // The first panic has the cause. It may be in another thread, and other panics follow from it.
    let first = Arc::new(Mutex::new(None));
    let heard = first.clone();
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.get_or_insert_with(|| panic_message(panic.payload()));
    }));
    // Runs the backward pass of a product, which makes Burn read its configuration (`burn.toml`).
    let probe = panic::catch_unwind(AssertUnwindSafe(|| {
        let one = Tensor::<Autodiff<B>, 1>::ones([1], &device).require_grad();
        let gradients = (one.clone() * one.clone()).sum().backward();
        one.grad(&gradients).map(Tensor::into_data)
    }));
    panic::set_hook(hook);
    if probe.is_ok() {
        return unless_out_of_memory(kind, || task.run::<Autodiff<B>>(device));
    }
    let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
    Err(unusable(
        first.unwrap_or_else(|| "it gave no reason".into()),
    ))
}

/// Runs `work`, in which a backend panics if its device has no memory left. Such a panic becomes an error.
#[cfg(any(
    feature = "flex",
    feature = "tch",
    feature = "cuda",
    feature = "vulkan",
    feature = "wgpu"
))]
fn unless_out_of_memory<T>(kind: BackendKind, work: impl FnOnce() -> T) -> Result<T, BackendError> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if out_of_memory(&panic_message(info.payload())).is_none() {
                print(info);
            }
        }));
    });
    // Values that `work` has changed are not used after a panic.
    panic::catch_unwind(AssertUnwindSafe(work)).or_else(|panic| {
        match out_of_memory(&panic_message(&*panic)) {
            Some(wanted) => Err(BackendError::OutOfMemory { kind, wanted }),
            None => panic::resume_unwind(panic),
        }
    })
}
