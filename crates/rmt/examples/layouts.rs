//! Times three ways to compute retrieval, forward and backward:
//! `cargo run --release -p residual-zoo-rmt --example layouts`.

use std::time::Instant;

use burn::backend::{Autodiff, Flex};
use burn::tensor::{Distribution, Tensor};
use residual_zoo_rmt::{memory, naive};

type B = Autodiff<Flex>;

fn main() {
    println!("milliseconds forward and backward: median (fastest) of 9\n");
    println!(
        "{:>5} {:>4} {:>4} {:>4}   one product  per token     per vector",
        "batch·time", "D_k", "D_v", "3R"
    );
    for [tokens, d_k, d_v, r] in [
        [1024, 16, 16, 12],
        [2048, 32, 32, 36],
        [2048, 32, 64, 36],
        [1024, 64, 64, 48],
    ] {
        let device = Default::default();
        let random = |shape: [usize; 3]| {
            Tensor::<B, 3>::random(shape, Distribution::Normal(0.0, 1.0), &device).require_grad()
        };
        let keys = Tensor::<B, 2>::random([r, d_k], Distribution::Normal(0.0, 1.0), &device);
        let keys = keys.require_grad();
        let x = random([1, tokens, d_v * d_k]);
        let one_product = time(|| memory::retrieve(keys.clone(), x.clone()).sum());
        let by_rows = x.clone().reshape([1, tokens, d_k, d_v]);
        let per_token = time(|| keys.clone().unsqueeze::<4>().matmul(by_rows.clone()).sum());
        let per_vector = time(|| naive::retrieve(keys.clone(), by_rows.clone()).sum());
        println!(
            "{tokens:>10} {d_k:>4} {d_v:>4} {r:>4}   {one_product}  {per_token}  {per_vector}"
        );
    }
}

/// Times `f` and its backward pass. Returns the median and, in parentheses, the smallest of 9 times, in milliseconds.
fn time(f: impl Fn() -> Tensor<B, 1>) -> String {
    let mut times: Vec<f64> = (0..10)
        .map(|_| {
            let clock = Instant::now();
            let _gradients = f().backward();
            clock.elapsed().as_secs_f64() * 1e3
        })
        .skip(1)
        .collect();
    times.sort_by(f64::total_cmp);
    format!("{:7.2} ({:.2})", times[4], times[0])
}
