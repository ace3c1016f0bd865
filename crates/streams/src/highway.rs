//! Highway networks (Srivastava et al., "Training very deep networks", 2015, <https://arxiv.org/abs/1507.06228>,
//! eq. 3):
//!
//! ```text
//! x_{i+1} = (1 − T) x_i + T f(x_i),  T = σ(x_i W + b)
//! ```

use burn::module::{Initializer, Module};
use burn::tensor::{activation::sigmoid, backend::Backend};
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Linear, Plain, Sites, Stream, check,
    linear, std_of_width,
};
use serde::{Deserialize, Serialize};

/// x_{i+1} = (1 − T) x_i + T f(x_i). The gate reads the stream without a norm.
#[derive(Module, Debug)]
pub struct Highway<B: Backend> {
    /// W `[D, D]` and b `[D]`.
    gate: Linear<B>,
}

impl<B: Backend> Connection<B> for Highway<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let x = stream.x;
        let t = sigmoid(self.gate.forward(x.clone()));
        let fx = f.of(x.clone());
        Stream {
            x: x * (-t.clone() + 1.0) + fx * t,
            ..stream
        }
    }
}

/// The config of [`Highway`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HighwayConfig {
    /// Initial b. The paper uses -1 to -3, so that T is small and x_{i+1} is initially close to x_i.
    pub start: f64,
}

impl Default for HighwayConfig {
    fn default() -> Self {
        Self { start: -2.0 }
    }
}

impl Design for HighwayConfig {
    type Connection<B: Backend> = Highway<B>;
    type Ends<B: Backend> = Plain;

    fn name(&self) -> &'static str {
        "highway"
    }

    fn validate(&self, _: &Sites) -> Result<(), ConfigError> {
        check::finite("start", self.start)
    }

    fn continues(&self, _: &Self) -> bool {
        true
    }

    fn connection<B: Backend>(&self, on: &Sites, _: usize, device: &B::Device) -> Highway<B> {
        let (width, value) = (on.width, self.start);
        let bias = Initializer::Constant { value }.init([width], device);
        Highway {
            gate: Linear {
                bias: Some(bias),
                ..linear(width, width, false, std_of_width(width), device)
            },
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    fn cost(&self, on: &Sites) -> Cost {
        Cost::linear(on.width, on.width, true) * on.count
    }
}
