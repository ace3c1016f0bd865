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
    /// Poisson(λ) + 1 in each training step, with ln λ from N(ln mean − 1/8, 1/4), as in Huginn. The run's seed and the
    /// step determine this number. Other passes have `mean` loops, unless `evaluated` is set.
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

/// The input of the core in each loop. s is the state before the loop, and e the output of the prelude.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inject {
    /// s alone. With `LoopStart::Embedding`, e is still the initial state s_0; otherwise, e has no effect.
    #[default]
    None,
    /// s + e.
    Add,
    /// \[s; e\] · W, with a trained W of shape `[2 · width, width]`.
    Linear,
}

/// The state before the first loop, s_0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum LoopStart {
    /// e, the output of the prelude.
    #[default]
    Embedding,
    /// Zero.
    Zero,
    /// Drawn from N(0, std²) for each position, with this std. Each training pass draws a new state. Other passes
    /// always use the same state.
    Random(f64),
}

/// A signal that tells the core which loop it is in. The signal is added to s before e is injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Timestep {
    /// No signal.
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
    /// Number of loops outside training steps. `None` means the number in `times`.
    pub evaluated: Option<usize>,
    /// Maximum number of loops with a gradient, counted from the last one (truncated backpropagation). These loops also
    /// pass a gradient to e. `None` means all loops.
    pub backward: Option<usize>,
    /// The order in which the layers of the core are repeated.
    pub order: LoopOrder,
    /// The input of the core in each loop.
    pub inject: Inject,
    /// The state before the first loop.
    pub start: LoopStart,
    /// The signal that tells the core which loop it is in.
    pub timestep: Timestep,
    /// Whether the final norm of the model, with the same parameters, is also applied between the last loop and the
    /// coda (Huginn).
    pub norm: bool,
}

impl Default for LoopsConfig {
    /// Returns a config of two loops over all layers.
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

/// Constructors for three papers. They set only the loop, and describe the layers that the surrounding model needs.
impl LoopsConfig {
    /// Returns the loop of the Universal Transformer (Dehghani et al. 2018, section 2.1), without adaptive halting:
    ///
    /// ```text
    /// s_r = layer(s_{r-1} + P^r),  s_0 = e
    /// ```
    ///
    /// P^r are sinusoids of the position and of the loop (eqs. 6 and 7). The model has one layer, a norm after each
    /// residual sum (`norm_places: Original`), and no other position encoding.
    pub fn universal(times: usize) -> Self {
        Self {
            times: Times::Fixed(times),
            timestep: Timestep::Sinusoid,
            ..Self::default()
        }
    }

    /// Returns the loop of the looped transformer (Yang et al. 2023, section 4):
    ///
    /// ```text
    /// s_r = core(s_{r-1} + e),  s_0 = 0
    /// ```
    ///
    /// In the authors' code, the final norm ends each loop, the number of loops grows during training, and only the
    /// last loops get a gradient and a loss. With this config, the number of loops is fixed, the final norm follows
    /// only the last loop, and the loss is on the last loop.
    pub fn looped(times: usize) -> Self {
        Self {
            times: Times::Fixed(times),
            inject: Inject::Add,
            start: LoopStart::Zero,
            ..Self::default()
        }
    }

    /// Returns the loop of Huginn (Geiping et al. 2025, section 3):
    ///
    /// ```text
    /// s_r    = core([s_{r-1}; e] · W),  s_0 ~ N(0, 2/5)
    /// logits = unembed(coda(norm(s_loops)))
    /// ```
    ///
    /// The prelude and the coda have two layers each, λ has a mean of 32, and the last 8 loops get a gradient. The
    /// model has 8 layers, `norm_places: Sandwich` and `init: Huginn(132)`. The norm after the loops is used again before
    /// the unembedding.
    /// The variance of the random state is the variance of Huginn's weights, 2/(5 D), times D, because
    /// `scaled_embedding` multiplies x_0 by √D.
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

/// Maximum number of loops. The size of a cache and the time of a pass grow with the number of loops, so larger numbers
/// are probably typos.
pub const MOST_LOOPS: usize = 4096;

/// Consecutive layers of a model that run equally often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of consecutive streams that these layers form.
    pub streams: usize,
    /// Number of layers on each stream.
    pub layers: usize,
    /// Number of passes over the layers: [`LoopsConfig::mean`] for the core, otherwise 1.
    pub times: usize,
    /// Number of these passes that have a backward pass in training.
    pub trained: usize,
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

    /// Returns the average number of loops over training steps, without the 1 that is added to each drawn number.
    pub fn mean(&self) -> usize {
        match self.times {
            Times::Fixed(times) | Times::Drawn { mean: times } => times,
        }
    }

    /// Returns the number of loops with a backward pass in a training step with [`mean`](Self::mean) loops.
    fn trained(&self) -> usize {
        self.backward.unwrap_or(usize::MAX).min(self.mean())
    }

    /// Returns the number of loops outside training steps.
    pub fn evaluated(&self) -> usize {
        self.evaluated.unwrap_or(self.mean())
    }

    /// Returns the config for passes outside training steps: `times` is fixed at their number of loops.
    pub fn outside_training(&self) -> Self {
        Self {
            times: Times::Fixed(self.evaluated()),
            evaluated: None,
            ..self.clone()
        }
    }

    /// Returns the number of loops in a pass. `seed` is the seed of the training step, or `None` outside training.
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

    /// Whether weights that were trained with `before` fit this config.
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

    /// Returns the prelude, the core and the coda of a model of `n_layer` layers, without empty parts.
    pub fn parts(&self, n_layer: usize) -> Vec<Part> {
        let core = n_layer
            .saturating_sub(self.prelude)
            .saturating_sub(self.coda);
        let once = |layers| Part {
            streams: 1,
            layers,
            times: 1,
            trained: 1,
        };
        let (times, trained) = (self.mean(), self.trained());
        let core = match self.order {
            LoopOrder::Cycle => Part {
                times,
                trained,
                ..once(core)
            },
            LoopOrder::Repeat => Part {
                streams: core,
                layers: 1,
                times,
                trained,
            },
        };
        let parts = [once(self.prelude), core, once(self.coda)];
        parts
            .into_iter()
            .filter(|part| part.layers * part.streams > 0)
            .collect()
    }

    /// Makes the loops over `layers`, on a stream of `width` features. `ends` has the ends of each stream of
    /// [`parts`](Self::parts), in order.
    ///
    /// # Panics
    ///
    /// Panics if there are not as many ends as streams. With a config that [`validate`](Self::validate) rejects, a pass
    /// can panic too.
    pub fn init<B: Backend, R: ResidualBlock<B>, E: Ends<B>>(
        &self,
        layers: Vec<R>,
        ends: Vec<E>,
        width: usize,
        device: &B::Device,
    ) -> Loops<B, R, E> {
        Loops::new(self, layers, ends, width, device)
    }

    /// Returns the cost of the injection and of the signals, on a stream of `width` features in a model of `n_layer`
    /// layers. The cost of the layers is not included; it follows from [`parts`](Self::parts).
    pub fn cost(&self, width: usize, n_layer: usize) -> Cost {
        let (times, parts) = (self.mean(), self.parts(n_layer));
        let cores = match self.order {
            LoopOrder::Cycle => 1,
            LoopOrder::Repeat => parts.iter().map(|part| part.streams).max().unwrap_or(1),
        };
        let adapter = match self.inject {
            Inject::Linear => Cost::linear(2 * width, width, false).applied_cut(
                times.saturating_mul(cores),
                self.trained().saturating_mul(cores),
            ),
            Inject::None | Inject::Add => Cost::default(),
        };
        let timestep = match self.timestep {
            Timestep::Learned => Cost::vector(width) * times,
            Timestep::None | Timestep::Sinusoid => Cost::default(),
        };
        adapter + timestep
    }
}
