//! The backends that were compiled in, chosen at run time.
//!
//! Burn's backends are types. A task that is to run on any of them implements [`OnBackend`], and
//! [`BackendKind::run`] picks the type.

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Tensor, backend::AutodiffBackend};
use residual_zoo_data::Corpus;
use residual_zoo_train::bench::{StepTime, time_steps};
use residual_zoo_train::{Error, RunOptions, Summary, panic_message};

use crate::RunConfig;

/// A backend of Burn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// Pure Rust on the CPU.
    Flex,
    /// LibTorch, on the CPU unless a GPU index is given.
    LibTorch,
    /// CUDA.
    Cuda,
    /// WGPU on Vulkan, with SPIR-V shaders.
    Vulkan,
    /// WGPU on the platform's default graphics API, with WGSL shaders.
    Wgpu,
}

/// Why a backend cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// No backend has this name.
    #[error("there is no backend `{0}`; choose one of: {list}", list = names(&BackendKind::ALL))]
    Unknown(String),
    /// The backend's cargo feature is off.
    #[error(
        "this program was built without backend `{0}`: add `--features {feature}` to the cargo \
         command, or choose one of: {list}",
        feature = .0.feature(),
        list = names(&BackendKind::compiled())
    )]
    NotCompiled(BackendKind),
    /// No backend's cargo feature is on.
    #[error("this program was built without any backend: add `--features flex`")]
    None,
    /// The backend has no GPUs to choose from.
    #[error("backend `{0}` computes on the CPU; leave `--gpu` out, or choose another backend")]
    NoGpu(BackendKind),
    /// The backend found no device or no driver.
    #[error("backend `{kind}` did not start: {reason}; docs/backends.md lists what it needs")]
    Unusable {
        /// The backend.
        kind: BackendKind,
        /// What it said.
        reason: String,
    },
}

/// Work that runs on any backend.
pub trait OnBackend {
    /// What it gives.
    type Output;

    /// Does the work on `device`.
    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output;
}

impl BackendKind {
    /// Every backend the zoo knows, the default first.
    pub const ALL: [Self; 5] = [
        Self::Flex,
        Self::LibTorch,
        Self::Cuda,
        Self::Vulkan,
        Self::Wgpu,
    ];

    /// The backends that were compiled in, the default first.
    pub fn compiled() -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|kind| kind.is_compiled())
            .collect()
    }

    /// The first compiled backend.
    ///
    /// # Errors
    ///
    /// [`BackendError::None`] without one.
    pub fn first() -> Result<Self, BackendError> {
        Self::compiled().first().copied().ok_or(BackendError::None)
    }

    /// Runs `task` on this backend, on the GPU of index `gpu` where one is given and on the
    /// backend's default device otherwise.
    ///
    /// # Errors
    ///
    /// When the backend was not compiled in, or finds no device or driver.
    pub fn run<T: OnBackend>(self, gpu: Option<usize>, task: T) -> Result<T::Output, BackendError> {
        match self {
            #[cfg(feature = "flex")]
            Self::Flex if gpu.is_some() => Err(BackendError::NoGpu(self)),
            #[cfg(feature = "flex")]
            Self::Flex => start::<burn::backend::Flex, T>(self, Default::default(), task),
            #[cfg(feature = "tch")]
            Self::LibTorch => {
                use burn::backend::libtorch::LibTorchDevice::{Cpu, Cuda};
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

    /// Trains on this backend as [`residual_zoo_train::run`] does.
    ///
    /// The model and its training are compiled here, once for all programs that call this.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); inside, as [`residual_zoo_train::run`].
    pub fn train(
        self,
        gpu: Option<usize>,
        config: RunConfig,
        corpus: &Corpus,
        options: &RunOptions,
    ) -> Result<Result<Summary, Error>, BackendError> {
        let task = Train {
            config,
            corpus,
            options,
        };
        self.run(gpu, task)
    }

    /// Times steps on this backend as [`residual_zoo_train::bench::time_steps`] does.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run); inside, as [`residual_zoo_train::bench::time_steps`].
    pub fn time_steps(
        self,
        gpu: Option<usize>,
        config: RunConfig,
        corpus: &Corpus,
        steps: (usize, usize),
    ) -> Result<Result<StepTime, Error>, BackendError> {
        let task = Time {
            config,
            corpus,
            steps,
        };
        self.run(gpu, task)
    }

    /// The bytes of the GPU that its memory pool holds for the calling thread, in use or kept for
    /// later; `None` without a pool.
    pub fn pool_size(self, gpu: Option<usize>) -> Option<u64> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda => {
                let device = burn::backend::cuda::CudaDevice::new(gpu.unwrap_or(0));
                reserved::<burn::cubecl::cuda::CudaRuntime>(&device)
            }
            #[cfg(feature = "vulkan")]
            Self::Vulkan => reserved::<burn::cubecl::wgpu::WgpuRuntime>(&wgpu_device(gpu)),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => reserved::<burn::cubecl::wgpu::WgpuRuntime>(&wgpu_device(gpu)),
            _ => {
                let _ = gpu;
                None
            }
        }
    }

    /// Gives back what its memory pool keeps for later.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn shrink_pool(self, gpu: Option<usize>) -> Result<(), BackendError> {
        self.run(gpu, Shrink)
    }

    /// Whether its cargo feature is on.
    pub fn is_compiled(self) -> bool {
        match self {
            Self::Flex => cfg!(feature = "flex"),
            Self::LibTorch => cfg!(feature = "tch"),
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Vulkan => cfg!(feature = "vulkan"),
            Self::Wgpu => cfg!(feature = "wgpu"),
        }
    }

    /// The cargo feature that compiles it in, which is also its name on a command line.
    pub fn feature(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            Self::LibTorch => "tch",
            Self::Cuda => "cuda",
            Self::Vulkan => "vulkan",
            Self::Wgpu => "wgpu",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.feature())
    }
}

impl FromStr for BackendKind {
    type Err = BackendError;

    fn from_str(name: &str) -> Result<Self, BackendError> {
        let kind = Self::ALL.into_iter().find(|kind| kind.feature() == name);
        kind.ok_or_else(|| BackendError::Unknown(name.into()))
    }
}

fn names(kinds: &[BackendKind]) -> String {
    kinds
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(any(feature = "wgpu", feature = "vulkan"))]
fn wgpu_device(gpu: Option<usize>) -> burn::backend::wgpu::WgpuDevice {
    use burn::backend::wgpu::WgpuDevice::{DefaultDevice, DiscreteGpu};
    gpu.map_or(DefaultDevice, DiscreteGpu)
}

#[cfg(any(feature = "cuda", feature = "vulkan", feature = "wgpu"))]
fn reserved<R: burn::cubecl::Runtime>(device: &R::Device) -> Option<u64> {
    let usage = R::client(device).memory_usage();
    usage.ok().map(|usage| usage.bytes_reserved)
}

struct Shrink;

impl OnBackend for Shrink {
    type Output = ();

    fn run<B: AutodiffBackend>(self, device: B::Device) {
        B::memory_cleanup(&device);
    }
}

struct Train<'a> {
    config: RunConfig,
    corpus: &'a Corpus,
    options: &'a RunOptions,
}

impl OnBackend for Train<'_> {
    type Output = Result<Summary, Error>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        residual_zoo_train::run::<B, _>(self.config, self.corpus, self.options, device)
    }
}

struct Time<'a> {
    config: RunConfig,
    corpus: &'a Corpus,
    steps: (usize, usize),
}

impl OnBackend for Time<'_> {
    type Output = Result<StepTime, Error>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        time_steps::<B, _>(self.config, self.corpus, self.steps, device)
    }
}

/// Runs `task` once a first computation has shown that the device works: backends without a
/// driver panic there, which is no way to tell a user.
fn start<B, T>(kind: BackendKind, device: B::Device, task: T) -> Result<T::Output, BackendError>
where
    B: burn::tensor::backend::Backend,
    T: OnBackend,
{
    // The first panic tells the cause; it may be another thread's, and others follow from it.
    let first = Arc::new(Mutex::new(None));
    let heard = first.clone();
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.get_or_insert_with(|| panic_message(panic.payload()));
    }));
    let probe = panic::catch_unwind(AssertUnwindSafe(|| {
        Tensor::<B, 1>::ones([1], &device).into_data();
    }));
    panic::set_hook(hook);
    if probe.is_ok() {
        return Ok(task.run::<burn::backend::Autodiff<B>>(device));
    }
    let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
    let reason = first.unwrap_or_else(|| "it gave no reason".into());
    Err(BackendError::Unusable { kind, reason })
}
