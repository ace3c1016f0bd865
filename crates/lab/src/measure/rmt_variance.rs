//! Measures the change in variance caused by storage and retrieval. Compares the expressions of Table 1 with measured
//! activations and gradients (Mak & Flanigan, Tables 1 and 2).

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Tensor};
use residual_zoo_backend::OnBackend;
use residual_zoo_rmt::formulas::variance_ratios;
use residual_zoo_rmt::memory::{retrieve, store, xavier};

use super::{Quantities, Setting, quantities};
use crate::{Error, PlannedRun};

pub(super) const NAMES: &[&str] = &[
    "forward",
    "backward",
    "forward by Table 1",
    "backward by Table 1",
];

pub(super) fn measure<C>(run: &PlannedRun<C>, setting: &Setting) -> Result<Quantities, Error> {
    let (fan_in, fan_out) = (run.size("fan in")?, run.size("fan out")?);
    let (operation, vectors) = match run.values.get("d_v") {
        Some(&d_v) if run.values.contains_key("stores") => (Operation::Store, d_v as usize),
        Some(&d_v) => (Operation::Retrieve, d_v as usize),
        None => (Operation::Linear, 1),
    };
    let task = Ratios {
        operation,
        vectors,
        fans: [fan_in, fan_out],
        seed: setting.seed,
    };
    let (forward, backward): (f64, f64) = setting.backend.run(setting.gpu, task)?;
    let closed = variance_ratios(fan_in, fan_out);
    let values = [forward, backward, closed.forward, closed.backward];
    Ok(quantities(NAMES, values))
}

/// A row of Table 1.
#[derive(Clone, Copy)]
enum Operation {
    /// X_out = Σ_h w^(h) ⊗ x_in, with R data vectors of D_v numbers.
    Store,
    /// x_out = w ·₁ X_in, with a matrix X_in of D_v columns.
    Retrieve,
    /// x_out = W x_in.
    Linear,
}

/// σ²_{x_out} / σ²_{x_in} and, for the gradients g, σ²_{g_in} / σ²_{g_out} of an operation, as means over `DRAWS` draws
/// of its weights. The weights have the variance of Xavier initialisation; x_in and g_out are drawn from N(0, 1).
struct Ratios {
    operation: Operation,
    /// D_v, or 1 for a linear map.
    vectors: usize,
    fans: [usize; 2],
    seed: u64,
}

const DRAWS: usize = 24;
const TOKENS: usize = 32;

impl OnBackend for Ratios {
    type Output = (f64, f64);

    fn run<B: AutodiffBackend>(self, device: B::Device) -> (f64, f64) {
        B::seed(&device, self.seed);
        let [fan_in, fan_out] = self.fans;
        let normal = |size: usize| {
            let distribution = Distribution::Normal(0.0, 1.0);
            Tensor::<B, 3>::random([1, TOKENS, size], distribution, &device)
        };
        let (mut forward, mut backward) = (0.0, 0.0);
        for _ in 0..DRAWS {
            let x = normal(fan_in * self.vectors).require_grad();
            let w = |shape| xavier::<B>(1.0, shape, self.fans, &device).val();
            let y = match self.operation {
                Operation::Store => store(w([fan_in, fan_out]), x.clone()),
                Operation::Retrieve => retrieve(w([fan_out, fan_in]), x.clone()),
                Operation::Linear => x.clone().matmul(w([fan_in, fan_out]).unsqueeze()),
            };
            let g_out = normal(fan_out * self.vectors);
            let grads = (y.clone() * g_out.clone()).sum().backward();
            forward += mean_square(y.inner()) / mean_square(x.clone().inner());
            // A missing gradient is zero.
            let g_in = x.grad(&grads).map_or(0.0, mean_square);
            backward += g_in / mean_square(g_out.inner());
        }
        (forward / DRAWS as f64, backward / DRAWS as f64)
    }
}

/// Returns the variance of numbers whose mean is zero.
fn mean_square<B: Backend>(x: Tensor<B, 3>) -> f64 {
    let mean: Option<f64> = (x.clone() * x).mean().into_data().iter().next();
    mean.unwrap_or(f64::NAN)
}
