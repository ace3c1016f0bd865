//! The time that a model takes to read a prompt and to generate a token (Menghani et al., section 3.2.2).

use std::time::Instant;

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use residual_zoo_backend::OnBackend;
use residual_zoo_core::{ConfigError, LanguageModel, ModelConfig};

use super::{Quantities, Setting, quantities};
use crate::{Error, PlannedRun};
use residual_zoo_drive::{Use, check_size};

pub(super) const NAMES: &[&str] = &["prefill ms", "decode ms"];

/// Times a model with newly initialised weights on one sequence: a prompt of half the context, then at most
/// [`MOST_TOKENS`] tokens, one by one.
pub(super) fn measure<C: ModelConfig>(
    run: &PlannedRun<C>,
    setting: &Setting,
) -> Result<Quantities, Error> {
    let config = run.config.as_ref();
    let config = config.ok_or_else(|| ConfigError::new("model", "is missing"))?;
    let backend = (setting.backend, setting.gpu);
    check_size(config, setting.vocab_size.into(), backend, Use::Load)?;
    let task = Latency {
        model: &config.model,
        vocab_size: setting.vocab_size,
        seed: setting.seed,
    };
    let times: [f64; 2] = setting.backend.run(setting.gpu, task)??;
    Ok(quantities(NAMES, times.map(|seconds| 1e3 * seconds)))
}

/// Number of times that the prompt is read, each time with a new cache.
const PROMPTS: usize = 12;
/// Maximum number of tokens that are read one by one.
const MOST_TOKENS: usize = 96;

struct Latency<'a, C> {
    model: &'a C,
    vocab_size: usize,
    seed: u64,
}

impl<C: ModelConfig> OnBackend for Latency<'_, C> {
    type Output = Result<[f64; 2], ConfigError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        measure_on::<B::InnerBackend, C>(&self, &device)
    }
}

fn measure_on<B: Backend, C: ModelConfig>(
    task: &Latency<C>,
    device: &B::Device,
) -> Result<[f64; 2], ConfigError> {
    B::seed(device, task.seed);
    let model = task.model.build::<B>(task.vocab_size, device)?;
    let context = task.model.shape().context;
    let prompt = (context / 2).max(1);
    let ids = |count: usize| {
        let ids = (0..count).map(|i| (i * 7919 % task.vocab_size) as i32);
        let data = TensorData::new(ids.collect::<Vec<_>>(), [1, count]);
        Tensor::<B, 2, Int>::from_data(data, device)
    };
    // Reading the logits waits for the computation.
    let time = |count: usize, cache: &mut _| {
        let ids = ids(count);
        let start = Instant::now();
        drop(model.predict(ids, cache).into_data());
        start.elapsed().as_secs_f64()
    };
    let mut prefill = Vec::new();
    let mut cache = model.new_cache();
    for _ in 0..PROMPTS {
        cache = model.new_cache();
        prefill.push(time(prompt, &mut cache));
    }
    let tokens = (context - prompt).clamp(1, MOST_TOKENS);
    let decode: Vec<f64> = (0..tokens).map(|_| time(1, &mut cache)).collect();
    // The fastest time counts, because other work on the machine can only add time.
    let fastest = |times: Vec<f64>| times.into_iter().fold(f64::INFINITY, f64::min);
    Ok([fastest(prefill), fastest(decode)])
}
