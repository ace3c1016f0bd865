//! The self-dependency unit of the Highway Transformer (Chai, Jin and Hou, "Highway Transformer: self-gating enhanced
//! self-attentive networks", 2020, <https://arxiv.org/abs/2004.08178>):
//!
//! ```text
//! x_{i+1} = LN(x_i + f(x_i) + ψ(x_i W_1 + b_1) ⊙ (x_i W_2 + b_2))
//! ```
//!
//! In the paper, the norm follows the sum. With the authors' `pre_lnorm`, only f has a norm.

use burn::module::Module;
use burn::tensor::activation::sigmoid;
use burn::tensor::backend::Backend;
use residual_zoo_core::ops::activation::tanh;
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Frame, Linear, Norm, NormParams,
    Plain, Sites, Stream, check, linear, std_of_width,
};
use serde::{Deserialize, Serialize};

/// x_i + f(x_i) + ψ(x_i W_1 + b_1) ⊙ (x_i W_2 + b_2). With [`NormPlace::Post`], a norm follows the sum.
#[derive(Module, Debug)]
pub struct SelfDependency<B: Backend> {
    /// W_1 `[D, D]` and b_1 `[D]`.
    gate: Linear<B>,
    /// W_2 `[D, D]` and b_2 `[D]`.
    value: Linear<B>,
    norm: Norm<B>,
    psi: Psi,
}

/// The function ψ of the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Psi {
    /// tanh.
    #[default]
    Tanh,
    /// The logistic function.
    Sigmoid,
}

/// The position of the norms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NormPlace {
    /// After each sum, as in the paper. There is no final norm.
    #[default]
    Post,
    /// At the beginning of each branch, as with the authors' `pre_lnorm`.
    Pre,
}

impl<B: Backend> Connection<B> for SelfDependency<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let x = stream.x;
        let gate = self.gate.forward(x.clone());
        let gate = match self.psi {
            Psi::Tanh => tanh(gate),
            Psi::Sigmoid => sigmoid(gate),
        };
        let unit = gate * self.value.forward(x.clone());
        Stream {
            x: self.norm.forward(f.plus(x) + unit),
            ..stream
        }
    }
}

/// The config of [`SelfDependency`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SelfDependencyConfig {
    /// The function ψ of the gate.
    pub psi: Psi,
    /// The position of the norms.
    pub norm: NormPlace,
    /// Whether the two maps, and the norms with `norm: Post`, have biases.
    pub bias: bool,
    /// ε of the norms with `norm: Post`, added to the variance.
    pub norm_eps: f64,
}

impl Default for SelfDependencyConfig {
    fn default() -> Self {
        Self {
            psi: Psi::Tanh,
            norm: NormPlace::Post,
            bias: true,
            norm_eps: 1e-5,
        }
    }
}

impl SelfDependencyConfig {
    fn norm_params(&self) -> NormParams {
        norm_params(self.bias)
    }
}

/// Returns the parameters of a norm: a scale, and a shift if there are biases.
pub(crate) fn norm_params(bias: bool) -> NormParams {
    match bias {
        true => NormParams::ScaleAndShift,
        false => NormParams::Scale,
    }
}

impl Design for SelfDependencyConfig {
    type Connection<B: Backend> = SelfDependency<B>;
    type Ends<B: Backend> = Plain;

    fn name(&self) -> &'static str {
        "highway transformer"
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        if self.norm == NormPlace::Post {
            on.need_sublayers("SelfDependency", "it takes the norms out of sublayers")?;
        }
        check::positive("norm_eps", self.norm_eps)
    }

    fn frame(&self, _: usize) -> Frame {
        let pre = self.norm == NormPlace::Pre;
        Frame {
            pre_norm: pre,
            final_norm: pre,
            ..Frame::default()
        }
    }

    fn connection<B: Backend>(
        &self,
        on: &Sites,
        _: usize,
        device: &B::Device,
    ) -> SelfDependency<B> {
        let map = || {
            linear(
                on.width,
                on.width,
                self.bias,
                std_of_width(on.width),
                device,
            )
        };
        SelfDependency {
            gate: map(),
            value: map(),
            norm: match self.norm {
                NormPlace::Post => Norm::layer(self.norm_params(), on.width, self.norm_eps, device),
                NormPlace::Pre => Norm::identity(),
            },
            psi: self.psi,
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    fn cost(&self, on: &Sites) -> Cost {
        let norm = match self.norm {
            NormPlace::Post => self.norm_params().cost(on.width),
            NormPlace::Pre => Cost::default(),
        };
        (Cost::linear(on.width, on.width, self.bias) * 2 + norm) * on.count
    }
}
