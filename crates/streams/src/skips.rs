//! Skips across depth, as in modded-nanogpt (<https://github.com/KellerJordan/modded-nanogpt>) and nanochat
//! (<https://github.com/karpathy/nanochat>). There is no paper. x_{l+1} is the output of layer l = 0 … L − 1:
//!
//! ```text
//! U-net:    x_{n+k+1} = layer_{n+k}(x_{n+k} + w_k x_{n-k}),  k = 0 … n − 1,  n = L/2
//! backout:  x_L − λ x_{b+1}  at the end
//! ```
//!
//! w_k is a parameter, initially 1, or the logistic function of one, initially σ(−1.5) = 0.18. λ is a parameter, by
//! default initially 0.2. For k = 0, the skip adds w_0 x_n to x_n. With w = 0 and λ = 0, the model equals the plain
//! model.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, activation::sigmoid, backend::Backend};
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Ends, Sites, Stream, check,
};
use serde::{Deserialize, Serialize};

/// layer(x + w_k s), where s is the last kept output. The stream carries x_{b+1} (for the backout, after layer b), then
/// the kept outputs.
#[derive(Module, Debug)]
pub struct Skips<B: Backend> {
    /// w_k, `[1]`, in the second half of the layers.
    w: Option<Param<Tensor<B, 1>>>,
    /// w_k before the sigmoid, `[1]`.
    w_logit: Option<Param<Tensor<B, 1>>>,
    /// Whether a later layer reads the output.
    keeps: bool,
    /// Whether the output is x_{b+1}.
    is_backout: bool,
}

impl<B: Backend> Skips<B> {
    /// Returns w_k, `[1]`.
    fn weight(&self) -> Option<Tensor<B, 1>> {
        let of_logit = |logit: &Param<Tensor<B, 1>>| sigmoid(logit.val());
        let w = self.w.as_ref().map(Param::val);
        w.or_else(|| self.w_logit.as_ref().map(of_logit))
    }

    /// Returns the connection without w_k, so that it acts only after a layer.
    pub(crate) fn only_after(self) -> Self {
        let (w, w_logit) = (None, None);
        Self { w, w_logit, ..self }
    }

    /// Returns the layer's input, x + w_k s, or x if the layer has no w_k. Removes s from the `kept` outputs.
    pub(crate) fn before(&self, x: Tensor<B, 3>, kept: &mut Vec<Tensor<B, 3>>) -> Tensor<B, 3> {
        match self.weight().and_then(|w| Some((w, kept.pop()?))) {
            Some((w, s)) => x + s * w.unsqueeze(),
            None => x,
        }
    }

    /// Keeps x, the layer's output, if a later layer or the backout reads it.
    pub(crate) fn after(&self, x: &Tensor<B, 3>, kept: &mut Vec<Tensor<B, 3>>) {
        if self.keeps {
            kept.push(x.clone());
        }
        if self.is_backout {
            kept.insert(0, x.clone());
        }
    }
}

impl<B: Backend> Connection<B> for Skips<B> {
    fn update<M: Branch<B>>(&self, mut stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let x = f.plus(self.before(stream.x, &mut stream.carried));
        self.after(&x, &mut stream.carried);
        Stream { x, ..stream }
    }
}

/// The end of the stream, x_L − λ x_{b+1}.
#[derive(Module, Debug)]
pub struct BackoutEnd<B: Backend> {
    /// λ, `[1]`, if the end subtracts an output.
    lambda: Option<Param<Tensor<B, 1>>>,
}

impl<B: Backend> Ends<B> for BackoutEnd<B> {
    fn close(&self, stream: Stream<B>) -> Tensor<B, 3> {
        match (&self.lambda, stream.carried.first()) {
            (Some(lambda), Some(x_b)) => stream.x - x_b.clone() * lambda.val().unsqueeze(),
            _ => stream.x,
        }
    }
}

/// The parametrisation of the U-net skip weights, w.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SkipWeight {
    /// A parameter, initially 1: the form of modded-nanogpt from November 2024.
    #[default]
    Raw,
    /// The sigmoid of a parameter that is initially −1.5: the form of modded-nanogpt from September 2025.
    Sigmoid,
}

/// b, the layer whose output is subtracted at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backout {
    /// ⌊L/2⌋, as in nanochat.
    #[default]
    Middle,
    /// The layer with this index, counted from 0 and below L − 1. modded-nanogpt takes layer 8 of 12.
    Layer(usize),
}

/// The config of [`Skips`]. modded-nanogpt and nanochat place the skips around layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SkipsConfig {
    /// The parametrisation of the U-net skip weights; `None` for no U-net skips. These skips need an even number of
    /// layers.
    pub unet: Option<SkipWeight>,
    /// The initial value of each w's parameter. `None` means 1, or −1.5 with `Sigmoid`.
    pub unet_start: Option<f64>,
    /// The layer whose output is subtracted at the end; `None` for no backout.
    pub backout: Option<Backout>,
    /// The initial λ: 0.2 in nanochat, 0.5 in modded-nanogpt.
    pub backout_start: f64,
}

impl Default for SkipsConfig {
    fn default() -> Self {
        Self {
            unet: Some(SkipWeight::Raw),
            unet_start: None,
            backout: None,
            backout_start: 0.2,
        }
    }
}

impl SkipsConfig {
    /// Returns b on a stream of L = `count` layers; `None` without a backout.
    fn backout_layer(&self, count: usize) -> Option<usize> {
        self.backout.map(|backout| match backout {
            Backout::Middle => count / 2,
            Backout::Layer(b) => b,
        })
    }
}

impl Design for SkipsConfig {
    type Connection<B: Backend> = Skips<B>;
    type Ends<B: Backend> = BackoutEnd<B>;

    fn name(&self) -> &'static str {
        match (self.unet, self.backout) {
            (Some(_), Some(_)) => "U-net skips with backout",
            (None, Some(_)) => "backout",
            _ => "U-net skips",
        }
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        let wrong = |field: &str, problem: String| Err(ConfigError::new(field, problem));
        let (count, of) = match on.around_layers {
            true => (on.count, "layers"),
            false => (on.count, "sublayers or blocks"),
        };
        let alone = match (on.recurrent, on.into_norm) {
            (true, _) => " (in a recurrence, each layer has a stream of its own)",
            (false, true) => "",
            (false, false) => {
                " (each part of a depth loop, and each stage of a ResNet, has a stream of its own)"
            }
        };
        if self.unet.is_none() && self.backout.is_none() {
            let problem = "has neither `unet` nor `backout`, so nothing is skipped; set one, or leave the connection out";
            return wrong("Skips", problem.into());
        }
        if self.unet.is_some() && !count.is_multiple_of(2) {
            let problem = format!(
                "connects the second half of the {of} to the first half, but a stream has {count}{alone}; use an even number, \
                 or `unet: None` with a `backout`"
            );
            return wrong("unet", problem);
        }
        if let Some(b) = self.backout_layer(count)
            && b + 1 >= count
        {
            let problem = format!(
                "subtracts output number {b} of {count} {of} of a stream, counted from 0{alone}, but the last output \
                 would only be scaled; use an earlier layer, or write `backout: None`"
            );
            return wrong("backout", problem);
        }
        if let Some(start) = self.unet_start {
            check::finite("unet_start", start)?;
        }
        check::finite("backout_start", self.backout_start)
    }

    fn continues(&self, before: &Self) -> bool {
        let this = Self {
            unet_start: before.unet_start,
            backout_start: before.backout_start,
            ..self.clone()
        };
        this == *before
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> Skips<B> {
        let second_half = i >= on.count / 2;
        let of = |weight, start| {
            let value = self.unet_start.unwrap_or(start);
            let is_used = second_half && self.unet == Some(weight);
            is_used.then(|| Initializer::Constant { value }.init([1], device))
        };
        Skips {
            w: of(SkipWeight::Raw, 1.0),
            w_logit: of(SkipWeight::Sigmoid, -1.5),
            keeps: self.unet.is_some() && !second_half,
            is_backout: self.backout_layer(on.count) == Some(i),
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, device: &B::Device) -> BackoutEnd<B> {
        let value = self.backout_start;
        let lambda = || Initializer::Constant { value }.init([1], device);
        BackoutEnd {
            lambda: self.backout.is_some().then(lambda),
        }
    }

    fn cost(&self, on: &Sites) -> Cost {
        let skips = match self.unet {
            Some(_) => on.count / 2,
            None => 0,
        };
        Cost::vector(skips + usize::from(self.backout.is_some()))
    }
}
