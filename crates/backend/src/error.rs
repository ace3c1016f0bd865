//! Errors about choosing and using a backend.

use std::any::Any;

use residual_zoo_system::{Blame, Fault};

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
        /// The requested index.
        index: usize,
        /// The number of GPUs that LibTorch finds.
        found: usize,
    },
    /// The device has no memory left for a tensor.
    #[error(
        "backend `{kind}` is out of memory{}; make the batch smaller (train.batch, with a larger train.accumulate, or \
         `--batch`), or set train.recompute=Layers; `residual-zoo plan --memory` estimates a step, and checkpoints are \
         intact",
        wanted.as_ref().map_or(String::new(), |wanted| format!(": it has no room for another {wanted}"))
    )]
    OutOfMemory {
        /// The backend.
        kind: BackendKind,
        /// The size of the tensor, if it is known.
        wanted: Option<String>,
    },
    /// The backend could not start, for instance because it found no device or no driver.
    #[error("backend `{kind}` did not start: {reason}; docs/backends.md lists what it needs")]
    Unusable {
        /// The backend.
        kind: BackendKind,
        /// The message of the backend.
        reason: String,
    },
}

impl Blame for BackendError {
    fn fault(&self) -> Fault {
        match self {
            Self::Unusable { .. } | Self::OutOfMemory { .. } => Fault::Machine,
            _ => Fault::Input,
        }
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

/// Returns the first line of a panic's message; "it gave no reason" if the panic has no text.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it gave no reason")
        .lines()
        .next()
        .unwrap_or_default()
        .to_string()
}

/// Recognises panic messages about exhausted memory, from PyTorch on a GPU or a CPU, or from the CUDA driver. Returns
/// `Some(Some(size))` if the message states the size of the tensor, `Some(None)` if it states no size, and `None` for
/// other messages.
pub fn out_of_memory(message: &str) -> Option<Option<String>> {
    const WANTED: [&str; 2] = ["Tried to allocate ", "tried to allocate "];
    let says = [
        "CUDA out of memory",
        "DefaultCPUAllocator: can't allocate memory",
        "CUDA_ERROR_OUT_OF_MEMORY",
    ];
    if !says.iter().any(|words| message.contains(words)) {
        return None;
    }
    let wanted = WANTED.iter().find_map(|words| message.split(words).nth(1));
    let mut words = wanted.unwrap_or_default().split_whitespace();
    let size = words.next().zip(words.next());
    Some(size.map(|(number, unit)| format!("{number} {}", unit.trim_end_matches('.'))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_for_lack_of_memory_is_recognized() {
        for (message, wanted) in [
            (
                "called `Result::unwrap()` on an `Err` value: Torch(\"CUDA out of memory. Tried to allocate 2.00 GiB. GPU \
                 0 has a total capacity of 79.10 GiB of which 1.19 GiB is free.",
                Some("2.00 GiB"),
            ),
            (
                "Torch(\"[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you \
                 tried to allocate 17592186044416 bytes. Error code 12",
                Some("17592186044416 bytes"),
            ),
            (
                "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
                None,
            ),
        ] {
            let found = out_of_memory(message);
            assert_eq!(found, Some(wanted.map(str::to_owned)), "{message}");
        }
        assert_eq!(out_of_memory("index out of bounds"), None);
    }
}
