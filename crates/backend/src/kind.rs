//! The backends by name.

use std::fmt;
use std::str::FromStr;

use crate::BackendError;

/// A backend of Burn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendKind {
    /// Pure Rust on the CPU.
    Flex,
    /// LibTorch, on a GPU or on the CPU.
    LibTorch,
    /// CUDA.
    Cuda,
    /// WGPU on Vulkan, with SPIR-V shaders.
    Vulkan,
    /// WGPU on the platform's default graphics API, with WGSL shaders.
    Wgpu,
}

impl BackendKind {
    /// Every backend that the zoo knows, the default first.
    pub const ALL: [Self; 5] = [
        Self::Flex,
        Self::LibTorch,
        Self::Cuda,
        Self::Vulkan,
        Self::Wgpu,
    ];

    /// Returns the compiled backends, the default first.
    pub fn compiled() -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|kind| kind.is_compiled())
            .collect()
    }

    /// Returns the first compiled backend.
    ///
    /// # Errors
    ///
    /// Returns [`BackendError::None`] if no backend is compiled.
    pub fn first() -> Result<Self, BackendError> {
        Self::compiled().first().copied().ok_or(BackendError::None)
    }

    /// Whether the backend's cargo feature is on.
    pub fn is_compiled(self) -> bool {
        match self {
            Self::Flex => cfg!(feature = "flex"),
            Self::LibTorch => cfg!(feature = "tch"),
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Vulkan => cfg!(feature = "vulkan"),
            Self::Wgpu => cfg!(feature = "wgpu"),
        }
    }

    /// Checks that the backend is compiled.
    ///
    /// # Errors
    ///
    /// Returns [`BackendError::NotCompiled`] if its cargo feature is off.
    pub fn check_compiled(self) -> Result<(), BackendError> {
        match self.is_compiled() {
            true => Ok(()),
            false => Err(BackendError::NotCompiled(self)),
        }
    }

    /// Whether the backend can compute on the CPU, as [`run`](Self::run) then does if its `gpu` is `None`.
    pub fn has_cpu(self) -> bool {
        matches!(self, Self::Flex | Self::LibTorch)
    }

    /// Returns the GPU on which the backend computes if the user names neither a GPU nor the CPU. `None` means the CPU,
    /// or a device that the backend chooses itself.
    pub fn default_gpu(self) -> Option<usize> {
        match self {
            #[cfg(feature = "tch")]
            Self::LibTorch => (residual_zoo_kernels::libtorch::gpus() > 0).then_some(0),
            _ => None,
        }
    }

    /// Returns the cargo feature of the backend, which is also its name on a command line.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_backend_is_found_by_its_name_alone() {
        for kind in BackendKind::ALL {
            assert_eq!(kind.to_string().parse::<BackendKind>().unwrap(), kind);
        }
        let error = "metal".parse::<BackendKind>().unwrap_err().to_string();
        assert!(error.contains("`metal`") && error.contains("flex, tch, cuda, vulkan, wgpu"));
    }
}
