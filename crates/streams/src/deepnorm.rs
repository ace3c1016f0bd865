//! DeepNorm (Wang et al., "DeepNet: scaling transformers to 1,000 layers", 2022, <https://arxiv.org/abs/2203.00555>):
//!
//! ```text
//! x_{i+1} = LN(α x_i + F(x_i)),  α = (2L)^(1/4)
//! ```
//!
//! F has no norm, and there is no final norm. β = (8L)^(-1/4) multiplies the initial value and output projections of
//! attention, and the initial first and last matrices of each feed-forward network, but not the matrix of a gate. These
//! α and β are for decoder-only models of L layers with two residuals each.

use burn::module::Module;
use burn::tensor::backend::Backend;
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Frame, Norm, NormParams, Plain, Sites,
    Stream, check,
};
use serde::{Deserialize, Serialize};

/// x_{i+1} = LN(α x_i + F(x_i)).
#[derive(Module, Debug)]
pub struct DeepNorm<B: Backend> {
    norm: Norm<B>,
    alpha: f64,
}

impl<B: Backend> Connection<B> for DeepNorm<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let x = stream.x;
        let fx = f.of(x.clone());
        Stream {
            x: self.norm.forward(x * self.alpha + fx),
            ..stream
        }
    }
}

/// The config of [`DeepNorm`]. In a recurrence, each layer has its own stream, so L is 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeepNormConfig {
    /// α. `None` means (2L)^(1/4). With α = β = 1, this is the post-norm of Vaswani et al. 2017.
    pub alpha: Option<f64>,
    /// β. `None` means (8L)^(-1/4).
    pub beta: Option<f64>,
    /// The parameters of the norms.
    pub norm: NormParams,
    /// ε of norms, added to the variance.
    pub norm_eps: f64,
}

impl Default for DeepNormConfig {
    fn default() -> Self {
        Self {
            alpha: None,
            beta: None,
            norm: NormParams::ScaleAndShift,
            norm_eps: 1e-5,
        }
    }
}

impl DeepNormConfig {
    fn alpha(&self, updates: usize) -> f64 {
        self.alpha.unwrap_or((updates as f64).powf(0.25))
    }

    fn beta(&self, updates: usize) -> f64 {
        self.beta.unwrap_or((4.0 * updates as f64).powf(-0.25))
    }
}

impl Design for DeepNormConfig {
    type Connection<B: Backend> = DeepNorm<B>;
    type Ends<B: Backend> = Plain;

    fn name(&self) -> &'static str {
        "DeepNorm"
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        on.need_sublayers("DeepNorm", "it takes the norms out of sublayers")?;
        check::positive("alpha", self.alpha(on.count))?;
        check::positive("beta", self.beta(on.count))?;
        check::positive("norm_eps", self.norm_eps)
    }

    fn frame(&self, updates: usize) -> Frame {
        let beta = self.beta(updates);
        Frame {
            pre_norm: false,
            final_norm: false,
            inner: beta,
            output: beta,
            by_depth: false,
            ..Frame::default()
        }
    }

    fn connection<B: Backend>(&self, on: &Sites, _: usize, device: &B::Device) -> DeepNorm<B> {
        DeepNorm {
            norm: Norm::layer(self.norm, on.width, self.norm_eps, device),
            alpha: self.alpha(on.count),
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    fn cost(&self, on: &Sites) -> Cost {
        self.norm.cost(on.width) * on.count
    }
}
