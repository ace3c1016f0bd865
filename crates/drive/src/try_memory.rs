//! Measures or estimates the memory of training a model, by running two steps of the model or of smaller copies.
//!
//! A measurement runs the whole model on one sequence or on one micro-batch. An estimate extrapolates from four
//! measured peaks to more layers and sequences. The peaks are measured with one and two layers, on a few sequences and
//! on twice as many.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use residual_zoo_backend::{BackendKind, PeakMemory};
use residual_zoo_core::recompute::{self, Recompute};
use residual_zoo_core::{ConfigError, Cost, ModelConfig, Vocabulary};
use residual_zoo_data::{
    Corpus, Examples, ImageSet, ShapesConfig, Source, SyntheticConfig, Tokenizer, Tokens,
    unless_stopped,
};
use residual_zoo_runs::RunConfig;
use residual_zoo_train::Interrupter;
use serde_json::Value;

use crate::open_corpus;
use crate::size::least_state;
use crate::{Error, time};

/// A model at its full shape, whose training memory is measured or estimated.
pub struct Trial<C> {
    config: RunConfig<C>,
    vocabulary: Vocabulary,
    /// The data of the copy task, or drawn images; `None` for random tokens.
    drawn: Option<Arc<Corpus>>,
    depths: Depths,
}

impl<C: ModelConfig> Trial<C> {
    /// Prepares the model of a run with this vocabulary (see [`Basis`](crate::Basis)) and sequences of full length. The
    /// copy task keeps its data. Random tokens and drawn images replace texts and images, which need not be on this
    /// machine.
    ///
    /// # Errors
    ///
    /// Returns an error if the config cannot be trained, or if the data are too short for a sequence.
    pub fn new(config: &RunConfig<C>, vocabulary: Vocabulary) -> Result<Self, Error> {
        let mut config = config.clone();
        let time = config.time();
        config.data.validate()?;
        let drawn = match &mut config.data.source {
            Source::Copying(copying) => {
                copying.noise = copying.most_noise.unwrap_or(copying.noise);
                Some(Arc::new(open_corpus(&config.data, &Interrupter::new())?))
            }
            Source::Images(images) => {
                let ([_, size, _], outputs) = (images.size(), images.classes());
                images.set = ImageSet::Shapes(ShapesConfig {
                    images: FEW_IMAGES,
                    size,
                    ..ShapesConfig::default()
                });
                let classes = images.classes();
                let mut corpus = open_corpus(&config.data, &Interrupter::new())?;
                // The labels are the classes of the shapes.
                corpus.outputs = outputs.max(classes);
                Some(Arc::new(corpus))
            }
            _ => {
                config.data.source = Source::Synthetic(SyntheticConfig::default());
                config.train.time = Some(time);
                None
            }
        };
        config.validate(vocabulary)?;
        let mut depths = Depths::of(&config.model)?;
        // Recomputation groups span several layers, so scale by whole groups.
        if let Some(Recompute::Every(layers)) = config.train.recompute {
            depths.least = depths.least.saturating_mul(layers.max(1)).min(depths.all);
            depths.step = depths.step.saturating_mul(layers.max(1));
        }
        Ok(Self {
            config,
            vocabulary,
            drawn,
            depths,
        })
    }

    /// Returns the cost of the model.
    pub fn cost(&self) -> Cost {
        self.config.model.cost(self.vocabulary)
    }

    /// Measures the peaks from which [`Peaks::at`] extrapolates to other numbers of layers and sequences. Returns
    /// `None` if the backend does not count memory. If the user stops the program, Flex stops soon; other backends stop
    /// after the current part of a step.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`time()`], and [`Error::Stopped`].
    pub fn peaks(&self, kind: BackendKind, gpu: Option<usize>) -> Result<Option<Peaks>, Error> {
        let few = self.few();
        let mut peaks = [[0; 2]; 2];
        // The largest copy runs first, so that all four peaks include the memory that threads keep afterwards.
        for layers in (1..=self.layers().min(2)).rev() {
            for times in [2, 1] {
                let size = (self.depths.copy(layers), times * few);
                let Some(peak) = self.peak(size, kind, gpu)? else {
                    return Ok(None);
                };
                peaks[layers - 1][times - 1] = peak;
            }
        }
        if self.layers() == 1 {
            peaks[1] = peaks[0];
        }
        Ok(Some(Peaks { peaks, few }))
    }

    /// Returns the smaller number of sequences on which the [`Peaks`] are measured.
    fn few(&self) -> usize {
        (TOKENS / self.positions()).clamp(1, self.config.train.batch)
    }

    /// Returns the config of the smallest copy that [`peaks`](Self::peaks) measures.
    ///
    /// # Errors
    ///
    /// Returns an error if the config cannot be changed.
    pub fn smallest(&self) -> Result<RunConfig<C>, Error> {
        let mut config = self.config.clone();
        (config.model, _) = with_depth(&config.model, self.depths.least)?;
        config.train.batch = self.few();
        Ok(config)
    }

    /// Measures the peak of the smallest copy. The other copies take at most four times this memory. Returns `None` if
    /// the backend does not count memory.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`time()`], and [`Error::Stopped`].
    pub fn smallest_peak(
        &self,
        kind: BackendKind,
        gpu: Option<usize>,
    ) -> Result<Option<u64>, Error> {
        self.peak((self.depths.least, self.few()), kind, gpu)
    }

    /// Estimates from `peaks` the bytes of a step on one sequence.
    pub fn estimate(&self, peaks: &Peaks) -> u64 {
        peaks.at(self.layers(), 1).max(self.least())
    }

    /// Returns a lower bound on the peak: the bytes of the weights, gradients and moments, which all exist at the end
    /// of a backward pass. Extrapolated peaks can be lower. A copy with few layers can have its peak at the logits
    /// instead, where each further layer adds less memory.
    fn least(&self) -> u64 {
        least_state(&self.config, self.vocabulary) as u64
    }

    /// Returns the approximate number of positions of a sequence. For images, assumes patches of 4 × 4 pixels, which
    /// are usual for small images.
    fn positions(&self) -> usize {
        match self.config.data.image() {
            Some([_, height, width]) => (height * width / 16).max(1),
            None => self.config.time(),
        }
    }

    /// Returns the depth of the model, in layers as [`Peaks`] counts them.
    fn layers(&self) -> usize {
        self.depths.further() + 1
    }

    /// Estimates from `peaks` the bytes of a step on a whole micro-batch. If a step has several micro-batches, adds the
    /// sum of their gradients: 4 bytes for each parameter.
    pub fn whole(&self, peaks: &Peaks) -> u64 {
        let train = &self.config.train;
        let sums = match train.accumulate {
            1 => 0,
            _ => 4 * self.cost().params.total() as u64,
        };
        peaks.at(self.layers(), train.batch).max(self.least()) + sums
    }

    /// Runs two steps of the model on one sequence, and returns the peak. Returns `None` if the backend does not count
    /// memory.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`time()`], and [`Error::Stopped`].
    pub fn take(&self, kind: BackendKind, gpu: Option<usize>) -> Result<Option<u64>, Error> {
        self.peak((self.depths.all, 1), kind, gpu)
    }

    /// Like [`take`](Self::take), on all sequences of a micro-batch.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`time()`], and [`Error::Stopped`].
    pub fn take_whole(&self, kind: BackendKind, gpu: Option<usize>) -> Result<Option<u64>, Error> {
        self.peak((self.depths.all, self.config.train.batch), kind, gpu)
    }

    /// Whether the recomputation `Layers` cuts at each update of the stream.
    fn cuts_updates(&self) -> bool {
        let shape = self.config.model.shape();
        let elements = self.config.train.batch * self.positions() * shape.width;
        let parameters = self.cost().params.other;
        recompute::updates_are_free(self.depths.all, elements, parameters)
    }

    fn peak(
        &self,
        (layers, sequences): (usize, usize),
        kind: BackendKind,
        gpu: Option<usize>,
    ) -> Result<Option<u64>, Error> {
        let mut config = self.config.clone();
        (config.model, _) = with_depth(&config.model, layers)?;
        config.train.batch = sequences;
        // `Layers` cuts a pass over fewer sequences into smaller parts.
        if config.train.recompute == Some(Recompute::Layers) && !self.cuts_updates() {
            config.train.recompute = Some(Recompute::Every(1));
        }
        let corpus = match &self.drawn {
            Some(corpus) => corpus.clone(),
            None => {
                let count = self.config.time().saturating_mul(40);
                let fraction = self.config.data.valid_fraction;
                Arc::new(random_tokens(self.vocabulary, fraction, count)?)
            }
        };
        Error::unless_stopped()?;
        let memory = PeakMemory::start(kind, gpu);
        let steps = move || time(kind, gpu, config, &corpus, (0, 2));
        let timed = match kind {
            // A pass of a large model on the CPU can take minutes, so a stop does not wait for its end.
            BackendKind::Flex => unless_stopped(steps).map_err(Error::from),
            _ => Ok(steps()),
        };
        // If the user has stopped the step, `Error::Stopped` is clearer than the step's own error.
        Error::unless_stopped()?;
        timed??;
        Ok(memory.bytes())
    }
}

/// Number of images that are drawn in place of a run's images.
const FEW_IMAGES: usize = 16;

/// Approximate number of tokens in the smaller of the two batches of [`Peaks`]. With fewer tokens, weights would take
/// most of the memory, and the peak would be at another point of a step than in training.
pub(crate) const TOKENS: usize = 1024;

/// Peaks of memory in bytes, for one and two layers, on `few` sequences and on twice as many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peaks {
    peaks: [[u64; 2]; 2],
    few: usize,
}

impl Peaks {
    /// Extrapolates the peak to L layers and S sequences. Weights grow with the layers, logits with the sequences and
    /// activations with both. Let pij be the peak of i layers on j × `few` sequences, and s = S / `few`:
    ///
    /// ```text
    /// peak(L, S) = p11 + (L − 1)(p21 − p11) + (s − 1)(p12 − p11)
    ///            + (L − 1)(s − 1)(p22 − p21 − p12 + p11)
    /// ```
    ///
    /// The extrapolation is exact if all layers take equal memory and all peaks are at the same point of a step. The
    /// result is too low for a deep model whose connections keep a result for each earlier layer, such as attention
    /// residuals. The memory of these results grows with the square of the depth.
    pub fn at(&self, layers: usize, sequences: usize) -> u64 {
        let [[p11, p12], [p21, p22]] = self.peaks.map(|peaks| peaks.map(|peak| peak as f64));
        let (l, s) = (
            layers as f64 - 1.0,
            sequences as f64 / self.few as f64 - 1.0,
        );
        let peak = p11 + l * (p21 - p11) + s * (p12 - p11) + l * s * (p22 - p21 - p12 + p11);
        peak.max(0.0).round() as u64
    }
}

/// The depths of a model and of its smaller copies, in layers. If the layers of a model differ, as in a ResNet, they
/// are measured together and count as one layer of [`Peaks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depths {
    /// The depth of the model.
    pub all: usize,
    /// The smallest valid depth, which counts as one layer of [`Peaks`].
    pub least: usize,
    /// Number of layers of the model that make up each further layer of [`Peaks`].
    pub step: usize,
}

impl Depths {
    /// Finds the depths of `model`.
    ///
    /// # Errors
    ///
    /// Returns an error if the config cannot be changed.
    pub fn of<C: ModelConfig>(model: &C) -> Result<Self, Error> {
        let depth = with_depth(model, 1)?.1;
        let all = depth.unwrap_or(model.shape().n_layer);
        // If layers alternate between architectures, a valid depth contains each architecture.
        let is_valid = |depth: &usize| {
            let model = with_depth(model, *depth);
            model.is_ok_and(|(model, _)| model.validate().is_ok())
        };
        let least = match depth {
            Some(_) => (1..all).find(is_valid).unwrap_or(all),
            // Layers that differ are measured together.
            None => all,
        };
        let step = match model.repeats() {
            // The layers before and after the repeated layers are in every copy.
            Some(repeats) => {
                let mut steps = (1..=all).map(|times| times * repeats.max(1));
                steps
                    .find(|step| is_valid(&(least + step)))
                    .unwrap_or(least)
            }
            None => least,
        };
        Ok(Self { all, least, step })
    }

    /// Returns the depth of a copy that counts as `layers` layers of [`Peaks`].
    pub fn copy(&self, layers: usize) -> usize {
        let further = self.step.saturating_mul(layers.saturating_sub(1));
        self.least.saturating_add(further)
    }

    /// Returns the number of layers of [`Peaks`] after the first.
    pub fn further(&self) -> usize {
        (self.all - self.least).div_ceil(self.step.max(1))
    }
}

/// Gives `model` a depth of `n_layer` layers, and returns its previous depth. A model without an `n_layer` field is
/// left unchanged.
///
/// The depth is every field called `n_layer` in the JSON form of the config, at any level. A composition has such a
/// field for each architecture.
pub(crate) fn with_depth<C: ModelConfig>(
    model: &C,
    n_layer: usize,
) -> Result<(C, Option<usize>), Error> {
    let invalid = |error: serde_json::Error| ConfigError::new("model", error.to_string());
    let mut tree = serde_json::to_value(model).map_err(invalid)?;
    let before = set_depth(&mut tree, n_layer);
    Ok((serde_json::from_value(tree).map_err(invalid)?, before))
}

/// Sets every field called `n_layer`. Returns the largest value that the fields had; `None` without such a field.
fn set_depth(tree: &mut Value, n_layer: usize) -> Option<usize> {
    match tree {
        Value::Object(fields) => {
            let mut before = None;
            if let Some(value) = fields.get_mut("n_layer") {
                let value = std::mem::replace(value, n_layer.into());
                before = value.as_u64().map(|value| value as usize);
            }
            let inner = fields.values_mut().map(|field| set_depth(field, n_layer));
            inner.fold(before, Ord::max)
        }
        Value::Array(entries) => {
            let inner = entries.iter_mut().map(|entry| set_depth(entry, n_layer));
            inner.fold(None, Ord::max)
        }
        _ => None,
    }
}

/// Draws `count` random tokens.
fn random_tokens(
    vocabulary: Vocabulary,
    valid_fraction: f64,
    count: usize,
) -> Result<Corpus, Error> {
    let (ids, outputs) = (vocabulary.ids(), vocabulary.outputs);
    let mut rng = StdRng::seed_from_u64(1);
    let mut train: Vec<u32> = (0..count)
        .map(|_| rng.random_range(0..outputs as u32))
        .collect();
    let valid = train.split_off((count as f64 * (1.0 - valid_fraction)) as usize);
    Ok(Corpus {
        train: Examples::Text(Tokens::from_vec(train)),
        valid: Examples::Text(Tokens::from_vec(valid)),
        tokenizer: Tokenizer::words((0..ids).map(|id| id.to_string()).collect())?,
        outputs,
        bytes_per_token: None,
        identity: String::new(),
        entropy: None,
        note: None,
    })
}

#[cfg(test)]
mod tests {
    use residual_zoo_core::PlainModel;
    use residual_zoo_gpt2::Gpt2Config;
    use residual_zoo_runs::TrainConfig;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_grows_with_layers_and_sequences_is_extrapolated_exactly() {
        // The ends, weights per layer, logits per sequence, and activations per layer and sequence.
        let exact = |l: u64, s: u64| 1000 + 700 * l + 50 * s + 300 * l * s;
        let peaks = Peaks {
            peaks: [[exact(1, 3), exact(1, 6)], [exact(2, 3), exact(2, 6)]],
            few: 3,
        };
        for (layers, sequences) in [(1, 1), (2, 2), (12, 1), (1, 64), (24, 512)] {
            let expected = exact(layers as u64, sequences as u64);
            assert_eq!(
                peaks.at(layers, sequences),
                expected,
                "{layers} {sequences}"
            );
        }
        // If a second sequence takes less, the estimate is not below zero.
        let peaks = Peaks {
            peaks: [[10, 1], [10, 1]],
            few: 1,
        };
        assert_eq!(peaks.at(1, 100), 0);
    }

    #[test]
    fn an_estimate_has_the_weights_gradients_and_moments() {
        let deep = Gpt2Config {
            n_layer: 24,
            n_head: 1,
            width: 64,
            context: 8,
            ..Gpt2Config::default()
        };
        let config = RunConfig::new(PlainModel(deep));
        let trial = Trial::new(&config, 50.into()).unwrap();
        let parameters = trial.cost().params.total() as u64;
        // Peaks at the logits, which do not grow with the layers.
        let mut peaks = Peaks {
            peaks: [[1000; 2]; 2],
            few: 1,
        };
        assert_eq!(trial.estimate(&peaks), 16 * parameters);
        assert_eq!(trial.whole(&peaks), 16 * parameters);
        peaks.peaks[1] = [20 * parameters; 2];
        assert!(trial.estimate(&peaks) > 20 * parameters);
    }

    #[test]
    fn the_depth_is_set_wherever_it_stands() {
        let mut tree = json!({
            "Composed": {
                "layers": [
                    {"Rmt": {"n_layer": 6, "d_k": 8}},
                    {"Gpt2": {"n_layer": 6, "n_head": 4, "tau": {"n_layers": 3}}},
                ],
                "recurrence": {"block": 16},
            },
        });
        assert_eq!(set_depth(&mut tree, 2), Some(6));
        let layers = &tree["Composed"]["layers"];
        assert_eq!(layers[0]["Rmt"], json!({"n_layer": 2, "d_k": 8}));
        assert_eq!(layers[1]["Gpt2"]["n_layer"], 2);
        assert_eq!(layers[1]["Gpt2"]["tau"]["n_layers"], 3);
        assert_eq!(set_depth(&mut json!({"width": 3}), 2), None);
    }

    #[test]
    fn a_config_of_another_depth_is_otherwise_the_same() {
        let deep = PlainModel(Gpt2Config {
            n_layer: 12,
            width: 96,
            ..Gpt2Config::default()
        });
        let (shallow, before) = with_depth(&deep, 2).unwrap();
        assert_eq!((shallow.0.n_layer, before), (2, Some(12)));
        assert_eq!(
            Gpt2Config {
                n_layer: 12,
                ..shallow.0
            },
            deep.0
        );
    }

    #[test]
    fn what_a_long_context_costs_is_counted_without_its_tokens() {
        let mut config = RunConfig {
            model: PlainModel(Gpt2Config {
                n_layer: 1,
                n_head: 1,
                width: 8,
                context: 1 << 24,
                ..Gpt2Config::default()
            }),
            data: residual_zoo_data::DataConfig::default(),
            train: TrainConfig::default(),
        };
        config.train.batch = 1;
        // The tokens of this text would take 2 GiB.
        let cost = Trial::new(&config, 65.into()).unwrap().cost();
        assert!(cost.params.total() > 8 << 24);
    }

    #[test]
    fn random_tokens_stand_in_for_texts_and_images() {
        let corpus = random_tokens(Vocabulary::new(256, 10), 0.25, 400).unwrap();
        assert_eq!((corpus.tokenizer.vocab_size(), corpus.outputs), (256, 10));
        assert_eq!(corpus.train.tokens(), Some(300));
        corpus.train.check(256, 10).unwrap();
    }
}
