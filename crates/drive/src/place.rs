//! The place where a trained model computes: backend, GPU and precision.

use std::fmt;

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_backend::{BackendKind, OnBackend};
use residual_zoo_core::{ConfigError, Precision};

use crate::{Error, usual_precision};

/// Backend, GPU and precision with which a trained model computes.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The backend.
    pub kind: BackendKind,
    /// The index of the GPU.
    pub gpu: Option<usize>,
    /// Number format of matrix products and attention. `None` means the [`usual_precision`] of the backend, whatever
    /// precision the model was trained in.
    pub precision: Option<Precision>,
}

impl From<(BackendKind, Option<usize>)> for Place {
    fn from((kind, gpu): (BackendKind, Option<usize>)) -> Self {
        Self {
            kind,
            gpu,
            precision: None,
        }
    }
}

impl Place {
    /// Returns the precision in which the model computes.
    pub fn precision(self) -> Precision {
        self.precision.unwrap_or(usual_precision(self.kind))
    }

    /// Runs `task` on this backend and GPU, in this precision.
    ///
    /// # Errors
    ///
    /// Returns an error if the backend cannot be used, or has no products in this precision.
    pub(crate) fn run<T: OnBackend>(self, task: T) -> Result<T::Output, Error> {
        let done = self.kind.run(self.gpu, Inside(self.precision(), task))?;
        Ok(done?)
    }
}

/// Writes a suffix for the name of a model or a backend, such as `, GPU 0, bf16`. The suffix names a chosen GPU, or the
/// CPU as LibTorch's device, and the precision if it is not f32.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gpu {
            Some(gpu) => write!(f, ", GPU {gpu}")?,
            None if self.kind == BackendKind::LibTorch => f.write_str(", CPU")?,
            None => {}
        }
        match self.precision() {
            Precision::F32 => Ok(()),
            other => write!(f, ", {other}"),
        }
    }
}

/// A task in a precision.
struct Inside<T>(Precision, T);

impl<T: OnBackend> OnBackend for Inside<T> {
    type Output = Result<T::Output, ConfigError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let Self(precision, task) = self;
        let checked = precision.check::<B>(&device);
        checked.map_err(|error| ConfigError::new(format!("--{}", error.field), error.problem))?;
        precision.set_up();
        Ok(precision.during(|| task.run::<B>(device)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_says_what_is_not_usual() {
        let said = |kind, gpu, precision| {
            Place {
                kind,
                gpu,
                precision,
            }
            .to_string()
        };
        let bf16 = Some(Precision::Bf16);
        assert_eq!(said(BackendKind::Flex, None, None), "");
        assert_eq!(said(BackendKind::LibTorch, None, None), ", CPU");
        assert_eq!(said(BackendKind::LibTorch, Some(1), bf16), ", GPU 1, bf16");
        assert_eq!(said(BackendKind::Cuda, None, None), ", TF32");
        assert_eq!(said(BackendKind::Vulkan, None, Some(Precision::F32)), "");
    }
}
