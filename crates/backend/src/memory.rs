//! Measures the memory that work takes, by GPU memory pools and by a counting allocator.

use burn::tensor::backend::AutodiffBackend;

use crate::{BackendError, BackendKind, OnBackend, PeakAlloc};

impl BackendKind {
    /// Returns the size in bytes of the backend's memory pool on the GPU, for the calling thread. The size includes
    /// free parts of the pool. `None` without a pool.
    pub fn pool_size(self, gpu: Option<usize>) -> Option<u64> {
        match self {
            #[cfg(feature = "cuda")]
            Self::Cuda => {
                let device = burn::backend::cuda::CudaDevice::new(gpu.unwrap_or(0));
                reserved::<burn::cubecl::cuda::CudaRuntime>(&device)
            }
            #[cfg(feature = "vulkan")]
            Self::Vulkan => {
                reserved::<burn::cubecl::wgpu::WgpuRuntime>(&crate::on_backend::wgpu_device(gpu))
            }
            #[cfg(feature = "wgpu")]
            Self::Wgpu => {
                reserved::<burn::cubecl::wgpu::WgpuRuntime>(&crate::on_backend::wgpu_device(gpu))
            }
            _ => {
                let _ = gpu;
                None
            }
        }
    }

    /// Gives the free part of the backend's memory pool back to the GPU.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`run`](Self::run).
    pub fn shrink_pool(self, gpu: Option<usize>) -> Result<(), BackendError> {
        self.run(gpu, Shrink)
    }
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

/// Measures the peak memory of work.
///
/// On Flex, the measurement counts Rust's allocations of at least 256 bytes, which include nearly every tensor. The
/// program must declare the counting allocator:
///
/// ```
/// use residual_zoo_backend::PeakAlloc;
///
/// #[global_allocator]
/// static MEMORY: PeakAlloc = PeakAlloc;
/// # fn main() {}
/// ```
///
/// With LibTorch on a GPU, the result is the memory of the tensors. With the other backends, the result is the size of
/// the memory pool. LibTorch reports no memory on a CPU.
#[derive(Clone, Copy, Debug)]
pub struct PeakMemory {
    kind: BackendKind,
    gpu: Option<usize>,
}

impl PeakMemory {
    /// Starts a measurement on a backend and a GPU, given as for [`BackendKind::run`]. Make one measurement at a time,
    /// because the process has one set of counters.
    pub fn start(kind: BackendKind, gpu: Option<usize>) -> Self {
        PeakAlloc::reset();
        // Ignores an error, because a broken backend reports it when work starts.
        let _ = kind.shrink_pool(gpu);
        #[cfg(feature = "tch")]
        if let (BackendKind::LibTorch, Some(gpu)) = (kind, gpu) {
            residual_zoo_kernels::libtorch::reset_memory(gpu);
        }
        Self { kind, gpu }
    }

    /// Returns the maximum number of bytes in use since the start, or the size of the memory pool; `None` if unknown.
    pub fn bytes(&self) -> Option<u64> {
        match self.kind {
            // A program always uses some memory, so zero means that the allocator does not count.
            BackendKind::Flex => Some(PeakAlloc::most() as u64).filter(|bytes| *bytes > 0),
            #[cfg(feature = "tch")]
            BackendKind::LibTorch => residual_zoo_kernels::libtorch::peak_memory(self.gpu?),
            _ => self.kind.pool_size(self.gpu),
        }
    }
}

/// Returns the number of bytes that Rust has allocated and not freed, without allocations below 256 bytes; `None` in a
/// program that does not count them.
pub fn allocated() -> Option<u64> {
    Some(PeakAlloc::in_use() as u64).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_counting_allocator_nothing_is_known() {
        let peak = PeakMemory::start(BackendKind::Flex, None);
        assert_eq!((peak.bytes(), allocated()), (None, None));
        assert_eq!(PeakMemory::start(BackendKind::LibTorch, None).bytes(), None);
    }
}
