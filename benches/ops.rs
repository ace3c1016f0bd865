//! Times the fast and the plain form of each operation, forward and backward, on every backend that is compiled in. The
//! sizes come from `experiments/gpt2/bench.ron` and `experiments/rmt/bench.ron`. On Burn's GPU backends, the benchmark
//! also times the kernels for matrix products.
//!
//! ```sh
//! cargo bench --bench ops                                                          # all operations on Flex
//! cargo bench --bench ops -- attention                                             # only attention
//! cargo bench --bench ops --no-default-features --features cuda                    # on CUDA
//! ```

// `criterion_group!` generates a function without a doc comment.
#![allow(missing_docs)]

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use burn::module::Param;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{
    Distribution, ElementConversion as _, FloatDType, Int, Tensor, TensorData, module,
};
use criterion::{
    BenchmarkGroup, Criterion, criterion_group, criterion_main, measurement::WallTime,
};
use residual_zoo::backend::{BackendKind, OnBackend};
use residual_zoo::core::ops::attention::{DotAttention, split_heads};
use residual_zoo::core::ops::optimizer::{AdamW, adamw, adamw_plain};
use residual_zoo::core::ops::{activation, embedding, loss, mix, sinkhorn};
use residual_zoo::core::{Linear, Norm, NormParams, product, product_of_parts};
use residual_zoo_kernels::matmul_candidates;

type Vector<B> = Tensor<<B as AutodiffBackend>::InnerBackend, 1>;

fn random<B: AutodiffBackend, const D: usize>(
    shape: [usize; D],
    device: &B::Device,
) -> Tensor<B, D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device).require_grad()
}

/// Waits for all work on `device`.
fn wait<B: Backend>(device: &B::Device) {
    B::sync(device).unwrap_or_else(|error| panic!("{error}"));
}

/// Times the forward and the backward pass of `f`.
fn time<B: AutodiffBackend, const D: usize>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    device: &B::Device,
    name: &str,
    f: impl Fn() -> Tensor<B, D>,
) {
    group.bench_function(name, |bench| {
        bench.iter(|| {
            black_box(f().sum().backward());
            wait::<B>(device);
        });
    });
}

fn ops(criterion: &mut Criterion) {
    struct Ops<'a>(&'a mut Criterion, BackendKind);
    impl OnBackend for Ops<'_> {
        type Output = ();
        fn run<B: AutodiffBackend>(self, device: B::Device) {
            ops_on::<B>(self.0, self.1, &device);
        }
    }
    for kind in BackendKind::compiled() {
        kind.run(kind.default_gpu(), Ops(criterion, kind))
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

fn products(criterion: &mut Criterion) {
    struct Products<'a>(&'a mut Criterion, BackendKind);
    impl OnBackend for Products<'_> {
        type Output = ();
        fn run<B: AutodiffBackend>(self, device: B::Device) {
            products_on::<B::InnerBackend>(self.0, self.1, &device);
        }
    }
    for kind in BackendKind::compiled() {
        kind.run(kind.default_gpu(), Products(criterion, kind))
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Times the fast and the plain form of each operation.
fn ops_on<B: AutodiffBackend>(criterion: &mut Criterion, kind: BackendKind, device: &B::Device) {
    // This is a macro, because a closure cannot return what it borrows.
    macro_rules! group_of {
        ($name:expr) => {
            criterion.benchmark_group(format!("{kind}, {}", $name))
        };
    }
    let mut group = group_of!("GELU of 8 × 256 × 1536");
    let x = random::<B, _>([8, 256, 1536], device);
    time(&mut group, device, "fast", || {
        activation::gelu_tanh(x.clone())
    });
    time(&mut group, device, "plain", || {
        activation::gelu_tanh_plain(x.clone())
    });
    group.finish();

    for width in [384, 1024] {
        let mut group = group_of!(&format!("layer norm of 8 × 256 × {width}"));
        let x = random::<B, _>([8, 256, width], device);
        let norm = Norm::<B>::layer(NormParams::Scale, width, 1e-5, device);
        time(&mut group, device, "fast", || norm.forward(x.clone()));
        time(&mut group, device, "plain", || norm.plain(x.clone()));
        group.finish();
    }

    for time_steps in [256, 1024] {
        let name = format!("attention of 8 × 6 heads, {time_steps} positions");
        let mut group = group_of!(&name);
        let x = random::<B, _>([8, time_steps, 1152], device);
        let heads = DotAttention::new(0.125, time_steps);
        time(&mut group, device, "fast", || {
            heads.packed(split_heads(x.clone(), 18), None)
        });
        time(&mut group, device, "plain", || {
            let x = split_heads(x.clone(), 18);
            heads.plain([0, 6, 12].map(|at| x.clone().narrow(1, at, 6)))
        });
        group.finish();
    }

    let mut group = group_of!("log Z of 2048 × 4096");
    let x = random::<B, _>([2048, 4096], device);
    let targets = || Tensor::<B, 1, Int>::zeros([2048], device);
    time(&mut group, device, "fast", || {
        // The fast form overwrites logits that have no other handle, so a copy is passed.
        loss::log_z_and_target(x.clone() * 1.0, targets())
    });
    time(&mut group, device, "plain", || {
        loss::log_z_and_target_plain(x.clone() * 1.0, targets())
    });
    group.finish();

    let mut group = group_of!("affine map of 2048 × 384 by 384 × 1536");
    let x = random::<B, _>([1, 2048, 384], device);
    let linear = Linear {
        weight: Param::from_tensor(random::<B, 2>([384, 1536], device)),
        bias: Some(Param::from_tensor(random::<B, 1>([1536], device))),
    };
    time(&mut group, device, "fast", || linear.forward(x.clone()));
    time(&mut group, device, "plain", || {
        let bias = linear.bias.as_ref().map(|bias| bias.val().unsqueeze());
        let y = x.clone().matmul(linear.weight.val().unsqueeze());
        bias.map_or(y.clone(), |bias| y + bias)
    });
    group.finish();

    let mut group = group_of!("embedding of 2048 positions from 50,257 × 384");
    let table = random::<B, _>([50_257, 384], device);
    let ids: Vec<i64> = (0..2048).map(|i| i * i % 4093).collect();
    let ids = TensorData::new(ids, [8, 256]);
    let ids = || Tensor::<B, 2, Int>::from_data(ids.clone(), device);
    time(&mut group, device, "fast", || {
        embedding::embedding(table.clone(), ids())
    });
    time(&mut group, device, "plain", || {
        module::embedding(table.clone(), ids())
    });
    group.finish();

    let mut group = group_of!("4 streams of 8 × 256 × 384 mixed to 5");
    let a = random::<B, _>([8, 256, 4, 5], device);
    let h = random::<B, _>([8, 256, 4, 384], device);
    time(&mut group, device, "fast", || {
        mix::mix(a.clone(), h.clone())
    });
    time(&mut group, device, "plain", || {
        mix::plain(a.clone(), h.clone())
    });
    group.finish();

    let mut group = group_of!("4 mixtures of 8 sources of 8 × 256 × 384");
    let w = random::<B, _>([8, 256, 4, 8], device);
    let x: Vec<_> = (0..8)
        .map(|_| random::<B, _>([8, 256, 384], device))
        .collect();
    let stacked = |y| Tensor::<B, 3>::cat(y, 2);
    time(&mut group, device, "fast", || {
        stacked(mix::mixtures(w.clone(), &x))
    });
    time(&mut group, device, "plain", || {
        stacked(mix::mixtures_plain(w.clone(), &x))
    });
    group.finish();

    let mut group = group_of!("attention to 8 sources of 8 × 256 × 384");
    let norm = Norm::rms(384, 1e-6, device);
    let q = random::<B, _>([384], device);
    time(&mut group, device, "fast", || {
        norm.depth_attention(q.clone(), x.clone())
    });
    time(&mut group, device, "plain", || {
        let x: Tensor<B, 4> = Tensor::stack(x.clone(), 2);
        let q = q.clone().reshape([1, 1, 1, 384]);
        let p = burn::tensor::activation::softmax((norm.plain(x.clone()) * q).sum_dim(3), 2);
        (p * x).sum_dim(2).squeeze_dim::<3>(2)
    });
    group.finish();

    let mut group = group_of!("40 normalisations of 8 × 256 matrices of 4 × 4");
    let m = random::<B, _>([8, 256, 4, 4], device);
    time(&mut group, device, "fast", || {
        sinkhorn::sinkhorn(m.clone().exp(), 40, 1e-6)
    });
    time(&mut group, device, "plain", || {
        sinkhorn::plain(m.clone().exp(), 40, 1e-6)
    });
    group.finish();

    for (name, d_in, d_out) in [("retrieval", 16, 18), ("storage", 6, 16)] {
        let name = format!("{name} of 131072 × {d_in} by {d_in} × {d_out}");
        let mut group = group_of!(&name);
        let (x, w) = (
            random::<B, _>([131_072, d_in], device),
            random::<B, _>([d_in, d_out], device),
        );
        time(&mut group, device, "fast", || product(x.clone(), w.clone()));
        time(&mut group, device, "plain", || x.clone().matmul(w.clone()));
        group.finish();
    }

    let mut group = group_of!("norm and retrieval of 8 × 256 × 1024 by 16 × 18");
    let (x, w) = (
        random::<B, _>([8, 256, 1024], device),
        random::<B, _>([16, 18], device),
    );
    let norm = Norm::<B>::layer(NormParams::Scale, 1024, 1e-5, device);
    time(&mut group, device, "fast", || {
        norm.product(x.clone(), w.clone())
    });
    time(&mut group, device, "fast, one after the other", || {
        product_of_parts(norm.forward(x.clone()), w.clone())
    });
    time(&mut group, device, "plain", || {
        let parts = norm.plain(x.clone()).reshape([131_072, 16]);
        parts.matmul(w.clone())
    });
    group.finish();

    let mut group = group_of!("AdamW of 10 million parameters");
    let step = AdamW {
        lr: 1e-3,
        beta_1: 0.9,
        beta_2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        scale: 0.5,
        time: 10,
    };
    type Form<B> = fn(AdamW, [Vector<B>; 4]) -> Option<[Vector<B>; 3]>;
    let forms: [(_, Form<B>); 2] = [
        ("fast", |step, state| adamw(vec![(step, state)]).pop()),
        ("plain", |step, state| Some(adamw_plain(step, state))),
    ];
    for (name, form) in forms {
        let grad: Vector<B> = Tensor::ones([10_000_000], device);
        // The fast form changes a tensor in place if the tensor has no other handle.
        let mut state = Some([0.1, 0.0, 1.0].map(|x| Tensor::full([10_000_000], x, device)));
        group.bench_function(name, |bench| {
            bench.iter(|| {
                let after = state
                    .take()
                    .and_then(|[x, m, v]| form(step, [x, m, v, grad.clone()]));
                state = after;
                wait::<B::InnerBackend>(device);
            });
        });
    }
    group.finish();
}

/// Times each of cubek's kernels for the matrix products of GPT-2 124M, on Burn's GPU backends. For each kernel, prints
/// the largest error, divided by the largest entry of the product.
fn products_on<B: Backend>(criterion: &mut Criterion, kind: BackendKind, device: &B::Device) {
    // Software Vulkan is slow, and its buffers are small, so the products are smaller there.
    let [rows, vocabulary] = match kind {
        BackendKind::Cuda => [8192, 50_304],
        _ => [256, 4096],
    };
    // [m, k, n], and whether each factor is the transposed view of a tensor.
    let shapes = [
        ("fc", [rows, 768, 3072], [false, false]),
        (
            "gradient of the input of fc",
            [rows, 3072, 768],
            [false, true],
        ),
        (
            "gradient of the weights of fc",
            [768, rows, 3072],
            [true, false],
        ),
        ("unembedding", [rows, 768, vocabulary], [false, true]),
        ("a small model", [rows, 48, 192], [false, false]),
    ];
    let dtypes = [FloatDType::F32, FloatDType::BF16];
    let dtypes = dtypes.map(|dtype| B::supports_dtype(device, dtype.into()).then_some(dtype));
    for (name, [m, k, n], [a_is_view, b_is_view]) in shapes {
        for dtype in dtypes.into_iter().flatten() {
            let random = |[height, width]: [usize; 2], is_view: bool| {
                let sides = if is_view {
                    [width, height]
                } else {
                    [height, width]
                };
                let x = Tensor::<B, 2>::random(sides, Distribution::Normal(0.0, 1.0), device);
                let x = x.cast(dtype);
                if is_view { x.transpose() } else { x }
            };
            let (a, b) = (random([m, k], a_is_view), random([k, n], b_is_view));
            let mut exact: Option<Tensor<B, 2>> = None;
            let name = format!("{kind}, products: {name}, {m} × {k} by {k} × {n}, {dtype:?}");
            let mut group = criterion.benchmark_group(&name);
            for kernel in matmul_candidates(&a, &b) {
                // Some kernels fail only when the program waits for their result.
                let first = catch_unwind(AssertUnwindSafe(|| {
                    let result = (kernel.run)();
                    wait::<B>(device);
                    result
                }));
                let first = first.unwrap_or_else(|_| Err("it panics".into()));
                let found = match first {
                    Ok(found) => found,
                    Err(error) => {
                        let reason = error.lines().next().unwrap_or_default();
                        println!("{name}: no {}: {reason:.120}", kernel.name);
                        continue;
                    }
                };
                let exact = exact.get_or_insert_with(|| found.clone()).clone();
                let largest = |x: Tensor<B, 2>| x.abs().max().into_scalar().elem::<f64>();
                let error = largest(found - exact.clone()) / largest(exact);
                println!("{name}: the error of {} is {error:.1e}", kernel.name);
                group.bench_function(&kernel.name, |bench| {
                    bench.iter(|| {
                        black_box((kernel.run)().ok());
                        wait::<B>(device);
                    });
                });
            }
            group.finish();
        }
    }
}

criterion_group! {
    name = all;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = products, ops
}
criterion_main!(all);
