//! The config of a depth loop.

use burn::tensor::backend::Backend;
use residual_zoo_core::{ConfigError, Cost, Ends, ResidualBlock, check};
use serde::{Deserialize, Serialize};

use crate::{Loops, draw};

/// The number of loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Times {
    /// The same number in every pass.
    Fixed(usize),
    /// In each training step Poisson(λ) + 1, with ln λ from N(ln mean − 1/8, 1/4), as in Huginn. The number follows
    /// from the seed of the run and the step. Other passes have `mean` loops.
    Drawn {
        /// The mean of λ.
        mean: usize,
    },
}

/// The order in which the layers of the core are repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoopOrder {
    /// The core as a whole: a b a b.
    #[default]
    Cycle,
    /// Each layer by itself: a a b b. Each layer has its own stream.
    Repeat,
}

/// The way in which e, the end of the prelude, enters each loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inject {
    /// s: e only starts the first loop.
    #[default]
    None,
    /// s + e.
    Add,
    /// \[s; e\] · W, with a trained W of shape `[2 · width, width]`. s comes first.
    Linear,
}

/// The state before the first loop, s_0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum LoopStart {
    /// e.
    #[default]
    Embedding,
    /// Zero.
    Zero,
    /// Drawn from N(0, std²) for each position; the number is std. Each training step draws a new state, and other
    /// passes always use the same one.
    Random(f64),
}

/// A signal that tells the core which loop it is in. It is added to s before e enters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Timestep {
    /// None.
    #[default]
    None,
    /// Sinusoids of the position and of the loop (Universal Transformer).
    Sinusoid,
    /// A trained vector for each loop.
    Learned,
}

/// The config of [`Loops`] around the layers of a model. The model's `n_layer` counts the layers of the prelude, of the
/// core and of the coda, each once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoopsConfig {
    /// Number of layers before the core.
    pub prelude: usize,
    /// Number of layers after the core.
    pub coda: usize,
    /// Number of loops.
    pub times: Times,
    /// Number of loops outside training steps. `None` means the number of `times`.
    pub evaluated: Option<usize>,
    /// Truncated backpropagation: only the last loops give a gradient, at most this many. `None` means all. The
    /// gradient of e through these loops is never cut.
    pub backward: Option<usize>,
    /// The order of the repeated layers.
    pub order: LoopOrder,
    /// The way in which e enters each loop.
    pub inject: Inject,
    /// The state before the first loop.
    pub start: LoopStart,
    /// The signal that tells the core which loop it is in.
    pub timestep: Timestep,
    /// Whether the final norm of the model, with the same parameters, is also applied between the last loop and the coda
    /// (Huginn).
    pub norm: bool,
}

impl Default for LoopsConfig {
    /// Two loops over all layers.
    fn default() -> Self {
        Self {
            prelude: 0,
            coda: 0,
            times: Times::Fixed(2),
            evaluated: None,
            backward: None,
            order: LoopOrder::Cycle,
            inject: Inject::None,
            start: LoopStart::Embedding,
            timestep: Timestep::None,
            norm: false,
        }
    }
}

/// The forms of three papers. The layers belong to the model around them.
impl LoopsConfig {
    /// The Universal Transformer (Dehghani et al. 2018, section 2.1) without adaptive halting:
    ///
    /// ```text
    /// s_r = layer(s_{r-1} + P^r),  s_0 = e
    /// ```
    ///
    /// P^r are sinusoids of the position and of the loop (eqs. 6 and 7). The model has one layer, norms of the sum
    /// (`norm_places: Original`) and no other positions.
    pub fn universal(times: usize) -> Self {
        Self {
            times: Times::Fixed(times),
            timestep: Timestep::Sinusoid,
            ..Self::default()
        }
    }

    /// The looped transformer (Yang et al. 2023, section 4):
    ///
    /// ```text
    /// s_r = core(s_{r-1} + e),  s_0 = 0
    /// ```
    ///
    /// In the authors' code, the core ends with the final norm in each loop, the number of loops grows in training, and
    /// only the last loops get a gradient and a loss. Here the final norm comes after the last loop.
    pub fn looped(times: usize) -> Self {
        Self {
            times: Times::Fixed(times),
            inject: Inject::Add,
            start: LoopStart::Zero,
            ..Self::default()
        }
    }

    /// Huginn (Geiping et al. 2025, section 3):
    ///
    /// ```text
    /// s_r    = core([s_{r-1}; e] · W),  s_0 ~ N(0, 2/5)
    /// logits = unembed(coda(norm(s_loops)))
    /// ```
    ///
    /// Two layers before and two after the core, λ with a mean of 32, and a gradient through the last 8 loops. The
    /// model has 8 layers and `norm_places: Sandwich`. The norm after the loops is used again before the unembedding.
    /// The variance of the state is that of Huginn's weights, 2/(5 D), times the factor D of `scaled_embedding`.
    pub fn huginn() -> Self {
        Self {
            prelude: 2,
            coda: 2,
            times: Times::Drawn { mean: 32 },
            backward: Some(8),
            inject: Inject::Linear,
            start: LoopStart::Random(0.4_f64.sqrt()),
            norm: true,
            ..Self::default()
        }
    }
}

/// Maximum number of loops. A cache has keys and values for each loop, and each loop takes the time of the core, so
/// larger numbers are typing errors.
pub const MOST_LOOPS: usize = 4096;

/// Consecutive layers of a model that are used equally often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of streams that these layers are on, one after the other.
    pub streams: usize,
    /// Number of layers of each stream.
    pub layers: usize,
    /// Number of passes over the layers, on average.
    pub times: usize,
}

impl LoopsConfig {
    /// Checks every field, for a model of `n_layer` layers.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub fn validate(&self, n_layer: usize) -> Result<(), ConfigError> {
        let wrong = |field: &str, problem: String| Err(ConfigError::new(field, problem));
        check::at_least_one("times", self.mean())?;
        check::at_most("times", self.mean(), MOST_LOOPS)?;
        for (field, value) in [("evaluated", self.evaluated), ("backward", self.backward)] {
            let value = value.unwrap_or(1);
            check::at_least_one(field, value)?;
            check::at_most(field, value, MOST_LOOPS)?;
        }
        let (prelude, coda) = (self.prelude, self.coda);
        if prelude.saturating_add(coda) >= n_layer {
            let problem = format!(
                "is {prelude} and `coda` is {coda}, but `n_layer` is {n_layer}, so no layer is left for the core; give \
                 the model at least {} layers",
                prelude.saturating_add(coda).saturating_add(1)
            );
            return wrong("prelude", problem);
        }
        if let LoopStart::Random(std) = self.start {
            check::positive("start", std)?;
        }
        if self.backward.is_some() && self.order == LoopOrder::Repeat {
            let problem = "is set, but with `order: Repeat` only the last layer of the core would get a gradient; use \
                           `order: Cycle`, or leave it out";
            return wrong("backward", problem.into());
        }
        if self.backward.is_some() && self.inject == Inject::None {
            let problem = "is set, but with `inject: None` the layers before the last loops would get no gradient; use \
                           `inject: Add` or `inject: Linear`, or leave it out";
            return wrong("backward", problem.into());
        }
        if self.timestep != Timestep::Learned {
            return Ok(());
        }
        match self.times {
            Times::Drawn { .. } => wrong(
                "timestep",
                "is Learned, which has a vector for each loop, but `times` is Drawn, which has no largest number; use \
                 `timestep: Sinusoid`, or `times: Fixed(…)`"
                    .into(),
            ),
            Times::Fixed(times) if self.evaluated() > times => wrong(
                "evaluated",
                format!(
                    "is {}, but `timestep: Learned` has vectors for {times} loops; give at most {times}",
                    self.evaluated()
                ),
            ),
            Times::Fixed(_) => Ok(()),
        }
    }

    /// Number of loops, on average over training steps. The number 1 that Huginn adds to a drawn number is left out.
    pub fn mean(&self) -> usize {
        match self.times {
            Times::Fixed(times) | Times::Drawn { mean: times } => times,
        }
    }

    /// Number of loops outside training steps.
    pub fn evaluated(&self) -> usize {
        self.evaluated.unwrap_or(self.mean())
    }

    /// Number of loops of a pass. `seed` is the seed of the training step, and `None` outside training.
    pub fn loops(&self, seed: Option<u64>) -> usize {
        match (self.times, seed) {
            (_, None) => self.evaluated(),
            (Times::Fixed(times), Some(_)) => times,
            (Times::Drawn { mean }, Some(seed)) => draw::loops(mean, seed),
        }
    }

    /// Whether a training pass draws random numbers on the device.
    pub fn draws(&self) -> bool {
        matches!(self.start, LoopStart::Random(_))
    }

    /// Whether trained weights of `before` fit this config.
    pub fn continues(&self, before: &Self) -> bool {
        let rows = |config: &Self| match config.timestep {
            Timestep::Learned => config.mean(),
            Timestep::None | Timestep::Sinusoid => 0,
        };
        let fixed = |config: &Self| (config.prelude, config.coda, config.order, config.inject);
        fixed(self) == fixed(before)
            && self.timestep == before.timestep
            && rows(self) == rows(before)
    }

    /// The prelude, the core and the coda of a model of `n_layer` layers, without empty parts.
    pub fn parts(&self, n_layer: usize) -> Vec<Part> {
        let core = n_layer
            .saturating_sub(self.prelude)
            .saturating_sub(self.coda);
        let once = |layers| Part {
            streams: 1,
            layers,
            times: 1,
        };
        let times = self.mean();
        let core = match self.order {
            LoopOrder::Cycle => Part {
                times,
                ..once(core)
            },
            LoopOrder::Repeat => Part {
                streams: core,
                layers: 1,
                times,
            },
        };
        let parts = [once(self.prelude), core, once(self.coda)];
        parts
            .into_iter()
            .filter(|part| part.layers * part.streams > 0)
            .collect()
    }

    /// Makes the loops over `layers`, on a stream of `width` features. `ends` are the ends of the streams of
    /// [`parts`](Self::parts), in order.
    ///
    /// # Panics
    ///
    /// Panics if [`validate`](Self::validate) rejects the config, or if there are not as many ends as streams.
    pub fn init<B: Backend, R: ResidualBlock<B>, E: Ends<B>>(
        &self,
        layers: Vec<R>,
        ends: Vec<E>,
        width: usize,
        device: &B::Device,
    ) -> Loops<B, R, E> {
        Loops::new(self, layers, ends, width, device)
    }

    /// Cost of the injection and of the signals, on a stream of `width` features of a model of `n_layer` layers. The
    /// layers of the core count in [`parts`](Self::parts).
    pub fn cost(&self, width: usize, n_layer: usize) -> Cost {
        let (times, parts) = (self.mean(), self.parts(n_layer));
        let cores = match self.order {
            LoopOrder::Cycle => 1,
            LoopOrder::Repeat => parts.iter().map(|part| part.streams).max().unwrap_or(1),
        };
        let adapter = match self.inject {
            Inject::Linear => {
                Cost::linear(2 * width, width, false).applied(times.saturating_mul(cores))
            }
            Inject::None | Inject::Add => Cost::default(),
        };
        let timestep = match self.timestep {
            Timestep::Learned => Cost::vector(width) * times,
            Timestep::None | Timestep::Sinusoid => Cost::default(),
        };
        adapter + timestep
    }
}
