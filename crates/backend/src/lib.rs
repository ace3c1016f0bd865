//! Runs work on a compiled backend that is chosen at run time, and measures the memory of that work.
//!
//! Burn's backends are types. A task for any backend implements [`OnBackend`], and [`BackendKind::run`] picks the
//! type.
//!
//! ```
//! use burn::tensor::{Tensor, backend::AutodiffBackend};
//! use residual_zoo_backend::{BackendKind, OnBackend};
//!
//! struct Sum(Vec<f32>);
//!
//! impl OnBackend for Sum {
//!     type Output = f64;
//!
//!     fn run<B: AutodiffBackend>(self, device: B::Device) -> f64 {
//!         let sum = Tensor::<B, 1>::from_floats(&self.0[..], &device).sum();
//!         sum.into_data().iter().next().unwrap_or(0.0)
//!     }
//! }
//!
//! assert_eq!(BackendKind::Flex.run(None, Sum(vec![1.0, 2.0]))?, 3.0);
//! # Ok::<(), residual_zoo_backend::BackendError>(())
//! ```

#![deny(unsafe_code)]

mod alloc;
mod error;
mod kind;
mod memory;
mod on_backend;

pub use alloc::PeakAlloc;
pub use error::{BackendError, panic_message};
pub use kind::BackendKind;
pub use memory::{PeakMemory, allocated};
pub use on_backend::OnBackend;
