//! What must hold on every backend that is compiled in: the reference cases, agreement with Flex, and
//! stopped runs. `ZOO_BACKENDS=cuda,vulkan` tests some of them only.

#![allow(clippy::unwrap_used)]

mod bf16;
mod fixtures;
mod ops;
mod parity;
mod reuse;
mod stop;

use burn::tensor::backend::AutodiffBackend;
use residual_zoo::backend::{BackendKind, OnBackend};
use residual_zoo::core::product_roundoff;

/// The backends to test: all that are compiled in, or those of `ZOO_BACKENDS`.
fn tested() -> Vec<BackendKind> {
    let Ok(names) = std::env::var("ZOO_BACKENDS") else {
        return BackendKind::compiled();
    };
    let kinds = names.split(',').map(|name| name.parse().unwrap());
    kinds.collect()
}

/// The unit roundoff of the factors of its products.
fn roundoff(kind: BackendKind) -> f64 {
    struct Roundoff;
    impl OnBackend for Roundoff {
        type Output = f64;
        fn run<B: AutodiffBackend>(self, device: B::Device) -> f64 {
            product_roundoff::<B>(&device)
        }
    }
    kind.run(None, Roundoff).unwrap_or_else(|e| panic!("{e}"))
}

/// Those whose products are in f32. `bf16.rs` has the others.
fn in_f32() -> Vec<BackendKind> {
    let mut kinds = tested();
    kinds.retain(|kind| roundoff(*kind) <= 0.5_f64.powi(24));
    kinds
}
