//! Requirements on every backend that is compiled in: the reference cases, agreement with Flex, and stopped runs.
//! `ZOO_BACKENDS=cuda,vulkan` tests only these backends.

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

/// The backends to test: all that are compiled in, or the ones in `ZOO_BACKENDS`.
fn tested() -> Vec<BackendKind> {
    let Ok(names) = std::env::var("ZOO_BACKENDS") else {
        return BackendKind::compiled();
    };
    let kind = |name: &str| {
        let kind: BackendKind = name.parse()?;
        kind.check_compiled().map(|()| kind)
    };
    let kinds = names.split(',').map(kind);
    kinds
        .collect::<Result<_, _>>()
        .unwrap_or_else(|error| panic!("ZOO_BACKENDS={names}: {error}"))
}

/// The unit roundoff of the factors of the backend's products.
fn roundoff(kind: BackendKind) -> f64 {
    struct Roundoff;
    impl OnBackend for Roundoff {
        type Output = f64;
        fn run<B: AutodiffBackend>(self, device: B::Device) -> f64 {
            product_roundoff::<B>(&device)
        }
    }
    kind.run(kind.default_gpu(), Roundoff)
        .unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn cuda_rounds_the_factors_of_products_to_tf32_and_no_other_backend_does() {
    for kind in tested() {
        let bits = if kind == BackendKind::Cuda { 11 } else { 24 };
        assert_eq!(roundoff(kind), 0.5_f64.powi(bits), "{kind}");
    }
}

/// The tested backends whose products are in f32. `bf16.rs` tests the others.
fn in_f32() -> Vec<BackendKind> {
    let is_exact = |kind: &BackendKind| roundoff(*kind) <= 0.5_f64.powi(24);
    let (exact, rounded): (Vec<_>, Vec<_>) = tested().into_iter().partition(is_exact);
    for kind in rounded {
        println!("{kind} is left out, because it rounds the factors of products");
    }
    exact
}
