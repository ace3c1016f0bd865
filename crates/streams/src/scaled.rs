//! A learned factor on the branch:
//!
//! ```text
//! x_{i+1} = x_i + a f(x_i)
//! ```
//!
//! - SkipInit (De and Smith, "Batch normalization biases residual blocks towards the identity function in deep
//!   networks", 2020, <https://arxiv.org/abs/2002.10444>): one scalar per residual, initially 0;
//! - ReZero (Bachlechner et al., "ReZero is all you need: fast convergence at large depth", 2020,
//!   <https://arxiv.org/abs/2003.04887>): the same, without norms in the branches;
//! - LayerScale (Touvron et al., "Going deeper with image transformers", 2021, <https://arxiv.org/abs/2103.17239>): one
//!   factor per feature.
//!
//! The factor a makes the branches initially small, so GPT-2's factor 1/√(2L) on initial output projections is omitted.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Frame, Plain, Sites, Stream, check,
};
use serde::{Deserialize, Serialize};

/// x_{i+1} = x_i + a f(x_i).
#[derive(Module, Debug)]
pub struct Scaled<B: Backend> {
    /// a, `[1]` or `[D]`.
    a: Param<Tensor<B, 1>>,
}

impl<B: Backend> Scaled<B> {
    fn new(width: usize, start: f64, device: &B::Device) -> Self {
        let a = Initializer::Constant { value: start }.init([width], device);
        Self { a }
    }
}

impl<B: Backend> Connection<B> for Scaled<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let x = stream.x;
        Stream {
            x: f.of(x.clone()) * self.a.val().unsqueeze() + x,
            ..stream
        }
    }
}

/// The config of SkipInit, with one factor a per residual.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SkipInitConfig {
    /// Initial a.
    pub start: f64,
}

impl Design for SkipInitConfig {
    type Connection<B: Backend> = Scaled<B>;
    type Ends<B: Backend> = Plain;

    fn name(&self) -> &'static str {
        "SkipInit"
    }

    fn validate(&self, _: &Sites) -> Result<(), ConfigError> {
        check::finite("start", self.start)
    }

    fn frame(&self, _: usize) -> Frame {
        Frame {
            by_depth: false,
            ..Frame::default()
        }
    }

    fn continues(&self, _: &Self) -> bool {
        true
    }

    fn connection<B: Backend>(&self, _: &Sites, _: usize, device: &B::Device) -> Scaled<B> {
        Scaled::new(1, self.start, device)
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    fn cost(&self, on: &Sites) -> Cost {
        Cost::vector(1) * on.count
    }
}

/// The config of LayerScale, with one factor a per feature of each residual.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LayerScaleConfig {
    /// Initial a. `None` means 0.1 for up to 18 layers, 1e-5 for up to 24 and 1e-6 for more, as in the paper. In a
    /// recurrence, each layer has its own stream, so the number of layers is 1.
    pub start: Option<f64>,
}

impl LayerScaleConfig {
    fn start(&self, on: &Sites) -> f64 {
        self.start.unwrap_or(match on.layers() {
            0..=18 => 0.1,
            19..=24 => 1e-5,
            _ => 1e-6,
        })
    }
}

impl Design for LayerScaleConfig {
    type Connection<B: Backend> = Scaled<B>;
    type Ends<B: Backend> = Plain;

    fn name(&self) -> &'static str {
        "LayerScale"
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        check::finite("start", self.start(on))
    }

    fn frame(&self, _: usize) -> Frame {
        Frame {
            by_depth: false,
            ..Frame::default()
        }
    }

    fn continues(&self, _: &Self) -> bool {
        true
    }

    fn connection<B: Backend>(&self, on: &Sites, _: usize, device: &B::Device) -> Scaled<B> {
        Scaled::new(on.width, self.start(on), device)
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    fn cost(&self, on: &Sites) -> Cost {
        Cost::vector(on.width) * on.count
    }
}

/// The config of ReZero. By default, the factor a is initially 0. The branches have no norms, but the final norm stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReZeroConfig {
    /// Initial a.
    pub start: f64,
    /// Whether all residuals of a layer share one a, as in the authors' code. In the paper, each residual has its own.
    pub per_layer: bool,
}

/// x_{i+1} = x_i + a f(x_i), where consecutive residuals can share a.
#[derive(Module, Debug)]
pub struct ReZero<B: Backend> {
    /// a, `[1]`; if `None`, the stream carries it.
    a: Option<Param<Tensor<B, 1>>>,
    /// Whether the next residual uses the same a.
    shared: bool,
}

impl<B: Backend> Connection<B> for ReZero<B> {
    fn update<M: Branch<B>>(&self, mut stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let carried = stream.carried.pop();
        let own = self.a.as_ref().map(|a| a.val().unsqueeze());
        let Some(a) = own.or(carried) else {
            unreachable!("the first residual of a layer has its own");
        };
        Stream {
            x: f.of(stream.x.clone()) * a.clone() + stream.x,
            carried: self.shared.then_some(a).into_iter().collect(),
            ..stream
        }
    }
}

impl ReZeroConfig {
    /// Whether connection `i` has its own a.
    fn owns(&self, on: &Sites, i: usize) -> bool {
        !self.per_layer || i.is_multiple_of(on.per_layer)
    }
}

impl Design for ReZeroConfig {
    type Connection<B: Backend> = ReZero<B>;
    type Ends<B: Backend> = Plain;

    fn name(&self) -> &'static str {
        "ReZero"
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        on.need_sublayers("ReZero", "it takes the norms out of sublayers")?;
        check::finite("start", self.start)
    }

    fn frame(&self, _: usize) -> Frame {
        Frame {
            pre_norm: false,
            by_depth: false,
            ..Frame::default()
        }
    }

    fn continues(&self, before: &Self) -> bool {
        let this = Self {
            start: before.start,
            ..self.clone()
        };
        this == *before
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> ReZero<B> {
        let start = Initializer::Constant { value: self.start };
        ReZero {
            a: self.owns(on, i).then(|| start.init([1], device)),
            shared: !self.owns(on, i + 1),
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    fn cost(&self, on: &Sites) -> Cost {
        let each = if self.per_layer { on.per_layer } else { 1 };
        Cost::vector(on.count / each.max(1))
    }
}
