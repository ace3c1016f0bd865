//! Gated value residual, SATFormer (Gunasekaran et al., 2026, <https://arxiv.org/abs/2605.03953>): the attention of
//! layer l ≥ 1 has
//!
//! ```text
//! v_l + g v_0  in place of  v_l,   g = gate(u W)
//! ```
//!
//! g is one number per position and key-value head. u is the normalised input of attention, and v_0 are the values of
//! the first layer.

use burn::module::Module;
use burn::tensor::activation::{relu, sigmoid, softmax};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::activation::tanh;
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Linear, Plain, Sites, Stream, check,
    linear, widen,
};
use serde::{Deserialize, Serialize};

use crate::values::{merged, need_equal_attention, per_head, size, with_first_values};

/// x + f(x), where attention uses v + g v_0. The stream carries v_0 `[batch, time, heads · d]`.
#[derive(Module, Debug)]
pub struct ValueGated<B: Backend> {
    /// W `[D, heads]`; `None` in the first layer, and around sublayers without attention.
    gate: Option<Linear<B>>,
    function: ValueGate,
    is_attention: bool,
}

impl<B: Backend> Connection<B> for ValueGated<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        if !self.is_attention {
            return Plain.update(stream, f);
        }
        with_first_values(stream, f, |heads, first| {
            let (v, [_, _, u]) = (merged(&heads.v), heads.u.clone());
            match &self.gate {
                Some(gate) => v + per_head(self.function.of(gate.forward(widen(u))), first),
                None => v,
            }
        })
    }
}

/// The function that the gate applies to z, which is u W plus the bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ValueGate {
    /// max(z, 0), the default of the authors' code.
    #[default]
    Relu,
    /// The logistic function.
    Sigmoid,
    /// tanh(z).
    Tanh,
    /// z.
    Identity,
    /// The softmax over the heads, times the number of heads.
    Softmax,
    /// The softmax over the heads, times the logistic function and the number of heads.
    SoftmaxSigmoid,
}

impl ValueGate {
    /// Computes gate(z) for z `[batch, time, heads]`.
    fn of<B: Backend>(self, z: Tensor<B, 3>) -> Tensor<B, 3> {
        let heads = z.dims()[2] as f64;
        match self {
            Self::Relu => relu(z),
            Self::Sigmoid => sigmoid(z),
            Self::Tanh => tanh(z),
            Self::Identity => z,
            Self::Softmax => softmax(z, 2) * heads,
            Self::SoftmaxSigmoid => softmax(z.clone(), 2) * sigmoid(z) * heads,
        }
    }
}

/// The config of [`ValueGated`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValueGatedConfig {
    /// The function of the gate.
    pub gate: ValueGate,
    /// Whether a bias, initially 0, is added to u W.
    pub bias: bool,
    /// Standard deviation of the initial W. With 0 and the gate `Identity` or `Tanh`, a new connection is the plain
    /// one.
    pub start: f64,
}

impl Default for ValueGatedConfig {
    /// Returns the defaults of the authors' code.
    fn default() -> Self {
        Self {
            gate: ValueGate::Relu,
            bias: false,
            start: 0.02,
        }
    }
}

impl Design for ValueGatedConfig {
    type Connection<B: Backend> = ValueGated<B>;
    type Ends<B: Backend> = Plain;

    fn name(&self) -> &'static str {
        "gated value residual"
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        need_equal_attention(on, "ValueGated", "it changes the values of attention")?;
        check::not_negative("start", self.start)?;
        match self.gate == ValueGate::Relu && self.start == 0.0 {
            true => Err(ConfigError::new(
                "start",
                "is 0, where the gate Relu has no gradient; use a number above 0, such as 0.02",
            )),
            false => Ok(()),
        }
    }

    fn continues(&self, before: &Self) -> bool {
        (self.gate, self.bias) == (before.gate, before.bias)
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> ValueGated<B> {
        let is_attention = on.is_attention(i);
        let heads = size(on).kv_heads;
        let gate = || linear(on.width, heads, self.bias, self.start, device);
        ValueGated {
            gate: (is_attention && i > 0).then(gate),
            function: self.gate,
            is_attention,
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    fn cost(&self, on: &Sites) -> Cost {
        Cost::linear(on.width, size(on).kv_heads, self.bias) * (on.layers() - 1)
    }
}
