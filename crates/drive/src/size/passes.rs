//! The memory of a trained model that reads sequences, extrapolated from small copies that read short sequences.
//!
//! The copies have one and two layers, a small vocabulary, and weights of zero. With a depth loop, the core of a copy
//! has one and two layers. The memory is a sum of parts, each a polynomial:
//!
//! ```text
//! part         grows with
//! weights      layers; the tables also with the vocabulary
//! fixed        nothing: workspaces of threads
//! pass         sequences × (1, tokens, tokens²); results passed to later layers also × layers
//! cache        sequences × layers × (1, tokens)
//! logits       sequences × vocabulary
//! ```

use burn::module::{Module as _, ModuleMapper, Param};
use burn::tensor::activation::log_softmax;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};
use residual_zoo_backend::{BackendKind, OnBackend, PeakMemory, allocated};
use residual_zoo_core::{LanguageModel as _, ModelConfig, Vocabulary};
use residual_zoo_evaluate::MOST_LOGITS;
use residual_zoo_runs::RunConfig;
use residual_zoo_system::stop;

use super::reading::Reading;
use crate::try_memory::{Depths, TOKENS, with_depth};

/// The intended product of the tokens in a pass and the parameters of a layer. The product limits the time of the
/// passes.
const WORK: usize = 4 << 30;

/// The smallest number of tokens to which [`WORK`] limits a pass. With fewer tokens, caches have room for more tokens
/// than they hold.
const LEAST_TOKENS: usize = 128;

/// Maximum number of ids, and of outputs, of a copy.
const FEW_IDS: usize = 256;

/// The largest quadratic part that is taken for noise, as a share of a pass over the longest sequence. A part up to
/// this size counts as zero, because extrapolation would enlarge it.
const CHANCE: f64 = 0.05;

/// Number of tokens that a server reads at once.
const SERVED: usize = 1 << 13;

/// The bytes of each part of the memory.
#[derive(Clone, Debug)]
pub(super) struct Passes {
    /// All weights.
    weights: f64,
    fixed: f64,
    /// A pass over a sequence in the first layers, at 1, 1/2 and 1/4 of the longest length.
    pass: [f64; 3],
    /// The sum that all further layers add to a pass over a sequence of the longest length.
    handed_on: f64,
    /// The cache of a sequence in all layers, at 1 and 1/2 of the longest length.
    cache: [f64; 2],
    /// The number of tokens of the longest sequence that was read.
    longest: usize,
    /// Maximum number of tokens that the model reads.
    context: usize,
    outputs: usize,
    revises: bool,
}

impl Passes {
    /// Measures the copies of a model that reads `together` sequences of up to `time` tokens. Returns `None` if the
    /// copies cannot be built or may not fit into the `available` bytes, or if the user stops the program.
    pub(super) fn measure<C: ModelConfig>(
        config: &RunConfig<C>,
        vocabulary: Vocabulary,
        (kind, gpu): (BackendKind, Option<usize>),
        (together, time, reading): (usize, usize, Reading),
        available: f64,
    ) -> Option<Self> {
        let model = &config.model;
        let whole_pass = model.revises() && reading == Reading::Evaluation;
        let [ids, outputs] = [vocabulary.ids(), vocabulary.outputs];
        let small = Vocabulary::new(ids.min(FEW_IDS), outputs.min(FEW_IDS));
        let depths = Depths::of(model).ok()?;
        let copy = |layers: usize, sizes: &[(usize, usize)]| {
            let (model, _) = with_depth(model, layers).ok()?;
            let copy = Copy {
                model: &model,
                vocabulary: small,
                sizes,
                whole_pass,
            };
            kind.run(gpu, copy).ok()?
        };
        let least = with_depth(model, depths.least).ok()?.0;
        let parameters = least.cost(small).params.other;
        let parameters = parameters.saturating_mul(least.passes()) / depths.least.max(1);
        let tokens = (WORK / parameters.max(1)).clamp(LEAST_TOKENS, TOKENS);
        let tokens = 1 << tokens.ilog2();
        let longest = time.min(tokens);
        let few = (tokens / longest).clamp(1, together);
        let deeper = depths.further() > 0;
        let layers = [depths.copy(1 + usize::from(deeper)), depths.least];
        // A copy that may not fit is not built, because it could end the program.
        if size_of_copy(model, small, layers, 2 * few * longest)? > available {
            return None;
        }
        let part = |of: usize| (few, (longest / of).max(1));
        // The deeper copy runs first, so that all passes include the memory that threads keep afterwards.
        let two = match deeper {
            true => Some(copy(layers[0], &[part(1)])?),
            false => None,
        };
        let one = copy(
            depths.least,
            &[(2 * few, longest), part(1), part(2), part(4)],
        )?;
        let [double, whole, half, quarter] = one.passes[..] else {
            return None;
        };
        let next = match &two {
            Some(two) => *two.passes.first()?,
            None => whole,
        };
        let few = few as f64;
        let further = depths.further() as f64;
        let fixed = (2.0 * whole.pass - double.pass).clamp(0.0, whole.pass);
        let of_layers = |one: f64, two: f64| further * (two - one).max(0.0) / few;
        let cache = whole.cache / few + of_layers(whole.cache, next.cache);
        let share = match whole.cache > 0.0 {
            true => half.cache / whole.cache,
            false => 0.0,
        };
        let layer = two.map_or(0.0, |two| two.weights - one.weights);
        let all = |vocabulary| model.cost(vocabulary).params.total() as f64;
        Some(Self {
            weights: one.weights + further * layer + 4.0 * (all(vocabulary) - all(small)),
            fixed,
            pass: [whole, half, quarter].map(|taken| (taken.pass - fixed).max(0.0) / few),
            handed_on: of_layers(whole.pass, next.pass),
            cache: [cache, cache * share],
            longest,
            context: model.shape().context,
            outputs,
            revises: model.revises(),
        })
    }

    /// Estimates the number of bytes of the model and of `rows` sequences of `time` tokens.
    pub(super) fn needed(&self, rows: usize, time: usize, reading: Reading) -> f64 {
        let (all, outputs) = (rows as f64, self.outputs as f64);
        let [pass, cache] = [self.pass(time), self.cache(time)];
        let work = match reading {
            // All logits, their log-probabilities, and intermediate results.
            Reading::Evaluation if self.revises => all * (pass + 4.0 * 4.0 * time as f64 * outputs),
            // A continuation is added to a copy of the cache, which may grow by half. Logits are computed in parts.
            Reading::Evaluation => {
                let part = (MOST_LOGITS as f64).max(all * outputs);
                let logits = 4.0 * 4.0 * part.min(all * time as f64 * outputs);
                all * (cache + pass.max(1.5 * cache)) + logits
            }
            Reading::Serving => {
                let read = (SERVED / time).clamp(1, rows) as f64;
                read * (pass + 8.0 * outputs) + all * cache
            }
            Reading::Generation { read } => {
                // A cache that is full grows by half.
                let room = (time + time / 2).min(self.context);
                all * (self.pass(read) + 8.0 * outputs + self.cache(room))
            }
        };
        self.weights + self.fixed + work
    }

    /// Returns the number of bytes of a pass over a sequence of `time` tokens, without its cache.
    fn pass(&self, time: usize) -> f64 {
        let t = time as f64 / self.longest as f64;
        let [whole, half, quarter] = self.pass;
        // With t in units of the longest length: a + b t + c t².
        let c = 8.0 / 3.0 * ((whole - half) - 2.0 * (half - quarter));
        let [b, c] = match c > CHANCE * whole {
            true => [2.0 * (whole - half) - 1.5 * c, c],
            false => [2.0 * (whole - half), 0.0],
        };
        let a = whole - b - c;
        (a + b * t + c * t * t).max(whole.min(whole * t)) + self.handed_on * t
    }

    /// Returns the number of bytes of the cache of a sequence of `time` tokens.
    fn cache(&self, time: usize) -> f64 {
        let t = time as f64 / self.longest as f64;
        let [whole, half] = self.cache;
        let slope = match self.longest < LEAST_TOKENS {
            // A cache has a minimum size.
            true => whole,
            false => 2.0 * (whole - half),
        };
        whole + slope * (t - 1.0).max(0.0)
    }
}

/// Estimates the number of bytes of a copy with `n_layer` layers that reads `tokens` tokens. The estimate consists of
/// the weights, the features of `unit` layers, and the keys and values of each repeated pass through a layer.
fn size_of_copy<C: ModelConfig>(
    model: &C,
    vocabulary: Vocabulary,
    [n_layer, unit]: [usize; 2],
    tokens: usize,
) -> Option<f64> {
    let copy = |layers| Some(with_depth(model, layers).ok()?.0);
    let params = |layers| Some(copy(layers)?.cost(vocabulary).params);
    let width = model.shape().width.max(1);
    // A matrix product has as many output features as its matrix has parameters per input feature.
    let features = params(unit)?.other / width + width * model.copies();
    let repeated = copy(n_layer)?.passes().saturating_sub(n_layer);
    let features = features + 2 * width * repeated;
    Some(4.0 * params(n_layer)?.total() as f64 + 4.0 * tokens as f64 * features as f64)
}

/// Bytes of a pass over some sequences.
#[derive(Clone, Copy, Debug)]
struct Taken {
    /// The peak, without weights and cache.
    pass: f64,
    /// The cache.
    cache: f64,
}

/// Bytes of a copy.
#[derive(Clone, Debug)]
struct Found {
    weights: f64,
    passes: Vec<Taken>,
}

/// A small copy of a model, and the numbers of sequences and of tokens that it reads.
struct Copy<'a, C> {
    model: &'a C,
    vocabulary: Vocabulary,
    sizes: &'a [(usize, usize)],
    /// Whether all logits of a sequence are computed in one pass, without a cache.
    whole_pass: bool,
}

impl<C: ModelConfig> OnBackend for Copy<'_, C> {
    type Output = Option<Found>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        self.found::<B::InnerBackend>(&device)
    }
}

impl<C: ModelConfig> Copy<'_, C> {
    fn found<B: Backend>(&self, device: &B::Device) -> Option<Found> {
        self.model.validate().ok()?;
        let before = allocated()? as f64;
        // Nothing depends on the values of the weights, and drawing them would take longer than the passes.
        let model = self
            .model
            .assemble::<B>(self.vocabulary, device)
            .map(&mut Zeros);
        let mut passes = Vec::new();
        for &(rows, time) in self.sizes {
            if stop::is_asked() {
                return None;
            }
            let ids = Tensor::<B, 2, Int>::zeros([rows, time], device);
            let memory = PeakMemory::start(BackendKind::Flex, None);
            let cache = match self.whole_pass {
                true => {
                    log_softmax(model.forward(ids), 2).into_data();
                    0.0
                }
                false => {
                    let mut cache = model.new_cache();
                    model.predict(ids, &mut cache).into_data();
                    let with_it = allocated()? as f64;
                    drop(cache);
                    with_it - allocated()? as f64
                }
            };
            passes.push((memory.bytes()? as f64, cache));
        }
        let with_it = allocated()? as f64;
        drop(model);
        let weights = with_it - allocated()? as f64;
        let taken = |(most, cache): (f64, f64)| Taken {
            pass: (most - before - weights - cache).max(0.0),
            cache,
        };
        let passes = passes.into_iter().map(taken).collect();
        Some(Found { weights, passes })
    }
}

/// Sets every parameter to zeros.
struct Zeros;

impl<B: Backend> ModuleMapper<B> for Zeros {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let zeros = Tensor::zeros(param.lazy_shape(), &param.lazy_device());
        let id = param.id;
        param.transform_for_load(zeros, id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(pass: impl Fn(f64) -> f64) -> Passes {
        Passes {
            weights: 0.0,
            fixed: 0.0,
            pass: [128.0, 64.0, 32.0].map(pass),
            handed_on: 0.0,
            cache: [128.0 * 7.0 + 5.0, 64.0 * 7.0 + 5.0],
            longest: 128,
            context: 1 << 20,
            outputs: 10,
            revises: false,
        }
    }

    #[test]
    fn polynomials_of_the_length_are_extrapolated_exactly() {
        for [a, b, c] in [[0.0, 3.0, 0.0], [50.0, 3.0, 0.0], [50.0, 0.5, 2.0]] {
            let exact = |t: f64| a + b * t + c * t * t;
            let passes = passes(exact);
            for time in [128, 1000, 131_072] {
                let (found, expected) = (passes.pass(time), exact(time as f64));
                assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
            }
            assert_eq!(passes.cache(40_960), 40_960.0 * 7.0 + 5.0);
        }
    }

    #[test]
    fn chance_is_not_taken_for_a_square() {
        // The point at 128 tokens is 0.3 % above the line.
        let noisy = passes(|t| 1000.0 * t * if t > 100.0 { 1.003 } else { 1.0 });
        let found = noisy.pass(131_072) / (1000.0 * 131_072.0);
        assert!((0.9..1.1).contains(&found), "{found}");
        // If longer sequences take fewer bytes per token, the extrapolated bytes still grow with the length.
        let less = passes(|t| 1000.0 * t.sqrt());
        assert!(less.pass(1 << 17) > less.pass(1 << 10));
    }
}
