//! Times the fast and the plain form of each operation, forward and backward on Flex, at the sizes of
//! `experiments/gpt2/bench.ron` and `experiments/rmt/bench.ron`.
//!
//! ```sh
//! cargo bench --bench ops                 # all
//! cargo bench --bench ops -- attention    # some
//! ```

// `criterion_group!` generates a function without a doc comment.
#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Duration;

use burn::backend::{Autodiff, Flex};
use burn::tensor::{Distribution, Int, Tensor};
use criterion::{
    BenchmarkGroup, Criterion, criterion_group, criterion_main, measurement::WallTime,
};
use residual_zoo::core::ops::attention::{DotAttention, split_heads};
use residual_zoo::core::ops::optimizer::{AdamW, adamw, adamw_plain};
use residual_zoo::core::ops::{activation, loss};
use residual_zoo::core::{Norm, NormParams, product, product_of_parts};

type B = Autodiff<Flex>;
type Vector = Tensor<Flex, 1>;

fn random<const D: usize>(shape: [usize; D]) -> Tensor<B, D> {
    let x = Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Default::default());
    x.require_grad()
}

/// Times the forward and the backward pass of `f`.
fn time<const D: usize>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    f: impl Fn() -> Tensor<B, D>,
) {
    group.bench_function(name, |bench| {
        bench.iter(|| black_box(f().sum().backward()));
    });
}

fn ops(criterion: &mut Criterion) {
    let device = Default::default();
    let mut group = criterion.benchmark_group("GELU of 8 × 256 × 1536");
    let x = random([8, 256, 1536]);
    time(&mut group, "fast", || activation::gelu_tanh(x.clone()));
    time(&mut group, "plain", || {
        activation::gelu_tanh_plain(x.clone())
    });
    group.finish();

    for width in [384, 1024] {
        let mut group = criterion.benchmark_group(format!("layer norm of 8 × 256 × {width}"));
        let x = random([8, 256, width]);
        let norm = Norm::<B>::layer(NormParams::Scale, width, 1e-5, &device);
        time(&mut group, "fast", || norm.forward(x.clone()));
        time(&mut group, "plain", || norm.plain(x.clone()));
        group.finish();
    }

    for time_steps in [256, 1024] {
        let name = format!("attention of 8 × 6 heads, {time_steps} positions");
        let mut group = criterion.benchmark_group(name);
        let x = random([8, time_steps, 1152]);
        let heads = DotAttention::new(0.125, time_steps);
        time(&mut group, "fast", || {
            heads.packed(split_heads(x.clone(), 18), None)
        });
        time(&mut group, "plain", || {
            let x = split_heads(x.clone(), 18);
            heads.plain([0, 6, 12].map(|at| x.clone().narrow(1, at, 6)))
        });
        group.finish();
    }

    let mut group = criterion.benchmark_group("log Z of 2048 × 4096");
    let x = random([2048, 4096]);
    let targets = || Tensor::<B, 1, Int>::zeros([2048], &device);
    time(&mut group, "fast", || {
        // The fast form overwrites logits without another handle.
        loss::log_z_and_target(x.clone() * 1.0, targets())
    });
    time(&mut group, "plain", || {
        loss::log_z_and_target_plain(x.clone() * 1.0, targets())
    });
    group.finish();

    for (name, d_in, d_out) in [("retrieval", 16, 18), ("storage", 6, 16)] {
        let name = format!("{name} of 131072 × {d_in} by {d_in} × {d_out}");
        let mut group = criterion.benchmark_group(name);
        let (x, w) = (random([131_072, d_in]), random([d_in, d_out]));
        time(&mut group, "fast", || product(x.clone(), w.clone()));
        time(&mut group, "plain", || x.clone().matmul(w.clone()));
        group.finish();
    }

    let mut group = criterion.benchmark_group("norm and retrieval of 8 × 256 × 1024 by 16 × 18");
    let (x, w) = (random([8, 256, 1024]), random([16, 18]));
    let norm = Norm::<B>::layer(NormParams::Scale, 1024, 1e-5, &device);
    time(&mut group, "fast", || norm.product(x.clone(), w.clone()));
    time(&mut group, "fast, one after the other", || {
        product_of_parts(norm.forward(x.clone()), w.clone())
    });
    time(&mut group, "plain", || {
        let parts = norm.plain(x.clone()).reshape([131_072, 16]);
        parts.matmul(w.clone())
    });
    group.finish();

    let mut group = criterion.benchmark_group("AdamW of 10 million parameters");
    let step = AdamW {
        lr: 1e-3,
        beta_1: 0.9,
        beta_2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        scale: 0.5,
        time: 10,
    };
    type Form = fn(AdamW, [Vector; 4]) -> Option<[Vector; 3]>;
    let forms: [(_, Form); 2] = [
        ("fast", |step, state| adamw(vec![(step, state)]).pop()),
        ("plain", |step, state| Some(adamw_plain(step, state))),
    ];
    for (name, form) in forms {
        let grad: Vector = Tensor::ones([10_000_000], &device);
        // The fast form changes a tensor in place if the tensor has no other handle.
        let mut state = Some([0.1, 0.0, 1.0].map(|x| Tensor::full([10_000_000], x, &device)));
        group.bench_function(name, |bench| {
            bench.iter(|| {
                let after = state
                    .take()
                    .and_then(|[x, m, v]| form(step, [x, m, v, grad.clone()]));
                state = after;
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = all;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = ops
}
criterion_main!(all);
