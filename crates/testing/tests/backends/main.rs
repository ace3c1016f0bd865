//! Requirements on every backend that is compiled in: the reference cases, agreement with Flex, and stopped runs.
//! `ZOO_BACKENDS=cuda,vulkan` tests only these backends.

#![allow(clippy::unwrap_used)]

mod bf16;
mod fixtures;
mod ngpt;
mod ops;
mod parity;
mod reuse;
mod stop;

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_backend::{BackendKind, OnBackend};
use residual_zoo_models::core::{Precision, product_roundoff};
use residual_zoo_testing::my_turn;

/// Returns the backends to test: all that are compiled in, or the backends in `ZOO_BACKENDS`.
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

/// Returns the unit roundoff of the factors in the backend's products.
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
fn products_round_their_factors_to_tf32_only_on_cuda_and_only_if_they_may() {
    let _turn = my_turn();
    for kind in tested() {
        Precision::Tf32.set_up();
        let bits = if kind == BackendKind::Cuda { 11 } else { 24 };
        assert_eq!(roundoff(kind), 0.5_f64.powi(bits), "{kind}");
    }
    for kind in in_f32() {
        assert_eq!(roundoff(kind), 0.5_f64.powi(24), "{kind}");
    }
}

/// Sets the products of all tested backends to f32. Returns the backends that have products in f32.
fn in_f32() -> Vec<BackendKind> {
    struct Has;
    impl OnBackend for Has {
        type Output = bool;
        fn run<B: AutodiffBackend>(self, device: B::Device) -> bool {
            Precision::F32.check::<B>(&device).is_ok()
        }
    }
    Precision::F32.set_up();
    let (exact, rounded): (Vec<_>, Vec<_>) = tested().into_iter().partition(|kind| {
        let has = kind.run(kind.default_gpu(), Has);
        has.unwrap_or_else(|e| panic!("{e}"))
    });
    for kind in rounded {
        println!("{kind} is left out, because it rounds the factors of products");
    }
    exact
}
