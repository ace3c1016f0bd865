//! Shared values, SVFormer (Zhou et al., "Value residual learning", 2024, <https://arxiv.org/abs/2410.17897>): the
//! attention of layer l ≥ 1 has
//!
//! ```text
//! v_0  in place of  v_l
//! ```
//!
//! v_0 are the values of the first layer, and no other layer has a value projection.

use burn::module::Module;
use burn::tensor::backend::Backend;
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Frame, Plain, Sites, Stream,
};
use serde::{Deserialize, Serialize};

use crate::values::{need_equal_attention, with_first_values};

/// x + f(x), where attention uses v_0. The stream carries v_0 `[batch, time, heads · d]`.
#[derive(Module, Clone, Debug)]
pub struct ValueShared {
    is_attention: bool,
}

impl<B: Backend> Connection<B> for ValueShared {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        match self.is_attention {
            true => with_first_values(stream, f, |_, first| first),
            false => Plain.update(stream, f),
        }
    }
}

/// The config of [`ValueShared`]. It has no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValueSharedConfig {}

impl Design for ValueSharedConfig {
    type Connection<B: Backend> = ValueShared;
    type Ends<B: Backend> = Plain;

    fn name(&self) -> &'static str {
        "shared values"
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        let acts = "it replaces the values of attention";
        match need_equal_attention(on, "ValueShared", acts)?.without_values {
            true => Ok(()),
            false => Err(ConfigError::new(
                "ValueShared",
                "needs an attention that can lack its value projection, as in GPT-2 and Llama; use one of them",
            )),
        }
    }

    fn frame(&self, _: usize) -> Frame {
        Frame {
            own_values: false,
            ..Frame::default()
        }
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, _: &B::Device) -> ValueShared {
        ValueShared {
            is_attention: on.is_attention(i),
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    /// Returns zero: the connection has no parameters, and the layers' own costs omit the missing value projections.
    fn cost(&self, _: &Sites) -> Cost {
        Cost::default()
    }
}
