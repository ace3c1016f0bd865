//! Value residual, ResFormer (Zhou et al., "Value residual learning", 2024, <https://arxiv.org/abs/2410.17897>): the
//! attention of layer l ≥ 1 has
//!
//! ```text
//! λ_1 v_0 + λ_2 v_l  in place of  v_l
//! ```
//!
//! v_0 are the values of the first layer. λ_1 and λ_2 are ½, or learned. Everything else is as with plain connections.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Plain, Sites, Stream,
};
use serde::{Deserialize, Serialize};

use crate::values::{merged, need_equal_attention, with_first_values};

/// x + f(x), where attention uses λ_1 v_0 + λ_2 v. The stream carries v_0 `[batch, time, heads · d]`.
#[derive(Module, Debug)]
pub struct ValueResidual<B: Backend> {
    /// λ_1 and λ_2, `[2]`, if learned; `None` in the first layer.
    lambda: Option<Param<Tensor<B, 1>>>,
    is_attention: bool,
}

/// λ_1 and λ_2, if fixed.
const FIXED: f64 = 0.5;

impl<B: Backend> ValueResidual<B> {
    /// Computes λ_1 v_0 + λ_2 v, `[batch, time, heads · d]`.
    fn mix(&self, first: Tensor<B, 3>, v: Tensor<B, 3>) -> Tensor<B, 3> {
        match &self.lambda {
            Some(lambda) => {
                let [one, two] = [0, 1].map(|i| lambda.val().narrow(0, i, 1).unsqueeze());
                first * one + v * two
            }
            None => (first + v) * FIXED,
        }
    }
}

impl<B: Backend> Connection<B> for ValueResidual<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        match self.is_attention {
            true => with_first_values(stream, f, |heads, first| self.mix(first, merged(&heads.v))),
            false => Plain.update(stream, f),
        }
    }
}

/// The kind of λ_1 and λ_2, the weights of the values: fixed or learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ValueResidualForm {
    /// ½ and ½, fixed. The paper and its code call this the identity form.
    Identity,
    /// Two scalars for each layer but the first, initially ½.
    #[default]
    Learnable,
}

/// The config of [`ValueResidual`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValueResidualConfig {
    /// The kind of λ_1 and λ_2, the weights of the values: fixed or learned.
    pub form: ValueResidualForm,
}

impl Design for ValueResidualConfig {
    type Connection<B: Backend> = ValueResidual<B>;
    type Ends<B: Backend> = Plain;

    fn name(&self) -> &'static str {
        "value residual"
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        let acts = "it changes the values of attention";
        need_equal_attention(on, "ValueResidual", acts).map(|_| ())
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> ValueResidual<B> {
        let is_attention = on.is_attention(i);
        let learned = self.form == ValueResidualForm::Learnable && is_attention && i > 0;
        let start = Initializer::Constant { value: FIXED };
        ValueResidual {
            lambda: learned.then(|| start.init([2], device)),
            is_attention,
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    fn cost(&self, on: &Sites) -> Cost {
        match self.form {
            ValueResidualForm::Identity => Cost::default(),
            ValueResidualForm::Learnable => Cost::vector(2) * (on.layers() - 1),
        }
    }
}
