//! A mixture with x_0 before each layer, as in modded-nanogpt (<https://github.com/KellerJordan/modded-nanogpt>) and
//! nanochat (<https://github.com/karpathy/nanochat>):
//!
//! ```text
//! x_{i+1} = layer(r x_i + m x_0)
//! ```
//!
//! r and m are learned, separately for each layer. In both projects, x_0 is the embedding after an RMS norm. In this
//! crate, x_0 is the embedding itself. The connection can also surround each sublayer.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{Branch, BranchFn, ConfigError, Connection, Cost, Design, Sites, Stream};
use serde::{Deserialize, Serialize};

use crate::KeepFirst;

/// x_{i+1} = u + f(u) with u = r x_i + m x_0. The stream carries x_0.
#[derive(Module, Debug)]
pub struct InitialMix<B: Backend> {
    /// The weight of x_i, `[1]`.
    r: Param<Tensor<B, 1>>,
    /// The weight of x_0, `[1]`.
    m: Param<Tensor<B, 1>>,
}

impl<B: Backend> InitialMix<B> {
    /// Computes r x + m x_0.
    pub(crate) fn mix(&self, x: Tensor<B, 3>, x_0: Tensor<B, 3>) -> Tensor<B, 3> {
        let [r, m] = [&self.r, &self.m].map(|p| p.val().unsqueeze());
        x * r + x_0 * m
    }
}

impl<B: Backend> Connection<B> for InitialMix<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let x_0 = stream.carried[0].clone();
        Stream {
            x: f.plus(self.mix(stream.x, x_0)),
            ..stream
        }
    }
}

/// The initial r and m.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum InitialMixStart {
    /// r = 1 and m = 0, which is the plain connection.
    #[default]
    Plain,
    /// r from 1.15 in the first layer to 1.05 in the last, m from 0.20 to 0.05, as in nanochat.
    Nanochat,
}

/// The config of [`InitialMix`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InitialMixConfig {
    /// The initial r and m.
    pub start: InitialMixStart,
}

impl Design for InitialMixConfig {
    type Connection<B: Backend> = InitialMix<B>;
    type Ends<B: Backend> = KeepFirst;

    fn name(&self) -> &'static str {
        "x0 mix"
    }

    fn validate(&self, _: &Sites) -> Result<(), ConfigError> {
        Ok(())
    }

    fn continues(&self, _: &Self) -> bool {
        true
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> InitialMix<B> {
        let depth = i as f64 / (on.count.max(2) - 1) as f64;
        let [r, m] = match self.start {
            InitialMixStart::Plain => [1.0, 0.0],
            InitialMixStart::Nanochat => [1.15 - 0.10 * depth, 0.20 - 0.15 * depth],
        }
        .map(|value| Initializer::Constant { value }.init([1], device));
        InitialMix { r, m }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> KeepFirst {
        KeepFirst
    }

    fn cost(&self, on: &Sites) -> Cost {
        Cost::vector(2) * on.count
    }
}
