//! Errors in the choice of a backend.

use std::any::Any;

use crate::BackendKind;

/// A reason why a backend cannot be used.
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
    /// The backend has no CPU to choose.
    #[error("backend `{0}` computes on GPUs; leave `--cpu` out, or choose another backend")]
    NoCpu(BackendKind),
    /// LibTorch has no GPU of this index.
    #[error("there is no GPU {index}: {}", found_gpus(*.found))]
    NoSuchGpu {
        /// The index.
        index: usize,
        /// The number of GPUs that LibTorch finds.
        found: usize,
    },
    /// The backend found no device or no driver.
    #[error("backend `{kind}` did not start: {reason}; docs/backends.md lists what it needs")]
    Unusable {
        /// The backend.
        kind: BackendKind,
        /// The message of the backend.
        reason: String,
    },
}

impl BackendError {
    /// Whether the user asked for something impossible. Otherwise, the machine failed to do something possible.
    pub fn is_bad_input(&self) -> bool {
        !matches!(self, Self::Unusable { .. })
    }
}

fn found_gpus(found: usize) -> String {
    match found {
        0 => "LibTorch finds none; leave `--gpu` out to compute on the CPU, or see docs/backends.md for a libtorch with \
              CUDA and the driver that it needs"
            .into(),
        1 => "LibTorch finds one, `--gpu 0`".into(),
        _ => format!("LibTorch finds {found}, counted from 0"),
    }
}

fn names(kinds: &[BackendKind]) -> String {
    kinds
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

/// The first line of a panic's message.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it gave no reason")
        .lines()
        .next()
        .unwrap_or_default()
        .to_string()
}
