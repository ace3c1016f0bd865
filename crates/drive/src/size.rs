//! Checks that a model fits into the machine's memory.

use residual_zoo_backend::{BackendKind, allocated};
use residual_zoo_core::recompute::Recompute;
use residual_zoo_core::{ConfigError, ModelConfig, Vocabulary};
use residual_zoo_report::bytes;
use residual_zoo_runs::RunConfig;
use residual_zoo_system::Blame as _;
use residual_zoo_system::memory::{Amount, memory};

use crate::{Error, Trial};

mod passes;
mod reading;

pub use reading::{Reading, Sequences, check_reading};

/// The use of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Loading the model's weights.
    Load,
    /// Training the model.
    Train,
}

/// Refuses a model that the machine cannot hold, before anything is allocated. The estimate is a lower bound, so an
/// accepted model may still be too large.
///
/// # Errors
///
/// Returns an error with the minimum number of bytes that the model needs, if the machine has less memory.
pub fn check_size<C: ModelConfig>(
    config: &RunConfig<C>,
    vocabulary: Vocabulary,
    (kind, gpu): (BackendKind, Option<usize>),
    purpose: Use,
) -> Result<(), ConfigError> {
    let on_cpu = kind == BackendKind::Flex || (kind == BackendKind::LibTorch && gpu.is_none());
    let needed = match purpose {
        Use::Train if on_cpu => least_memory(config, vocabulary),
        // Weights for a GPU pass through the machine's memory.
        _ => weights(config, vocabulary),
    };
    let Some(total) = memory().map(|memory| memory.total) else {
        return Ok(());
    };
    if needed <= total.bytes as f64 {
        return Ok(());
    }
    let (field, value) = largest(config, vocabulary, purpose, total.bytes as f64);
    let value = value.map(|value| format!("is {value}, with which the model "));
    let problem = format!(
        "{}needs at least {} of memory, and there are {}; make it smaller",
        value.unwrap_or_default(),
        bytes(needed),
        shown(total)
    );
    Err(ConfigError::new(field, problem))
}

/// Returns the field whose size keeps a model from fitting into `total` bytes, and its value if the value is a single
/// number.
fn largest<C: ModelConfig>(
    config: &RunConfig<C>,
    vocabulary: Vocabulary,
    purpose: Use,
    total: f64,
) -> (&'static str, Option<usize>) {
    let state = match purpose {
        Use::Load => weights(config, vocabulary),
        Use::Train => least_state(config, vocabulary),
    };
    let mut one = config.clone();
    one.train.batch = 1;
    let context = config.model.shape().context;
    let length = match (config.data.time(), config.train.time) {
        (Some(_), _) => ("data.source", None),
        (None, Some(time)) => ("train.time", Some(time)),
        (None, None) => ("model.context", Some(context)),
    };
    let params = config.model.cost(vocabulary).params;
    let has_long_table = params.embedding > params.total() / 2 && context > vocabulary.outputs;
    match purpose {
        _ if state > total && has_long_table => ("model.context", Some(context)),
        Use::Train if state <= total && least_memory(&one, vocabulary) <= total => {
            ("train.batch", Some(config.train.batch))
        }
        Use::Train if state <= total => length,
        _ => ("model", None),
    }
}

/// Refuses to train a model whose steps are estimated to take more than the `available` bytes of this machine. The
/// check comes before the model is built. [`available_memory`] returns the available bytes and what limits them.
///
/// Clear cases are decided at once, by the sizes of the model alone. In all other cases, smaller copies of the model
/// are run for two steps each, which takes a few seconds. No model is refused on a GPU. For LibTorch on a CPU, Flex is
/// measured instead, if it is compiled in.
///
/// # Errors
///
/// Returns an error with the approximate number of bytes of a step, if the step does not fit. Returns
/// [`Error::Stopped`] if the user stops the program during the check.
pub fn check_memory<C: ModelConfig>(
    config: &RunConfig<C>,
    vocabulary: Vocabulary,
    (kind, gpu): (BackendKind, Option<usize>),
    available: Option<Amount>,
) -> Result<(), Error> {
    // LibTorch does not count its tensors on a CPU. Flex's tensors are about as large, so Flex is measured instead, if
    // it is compiled in.
    let is_like_flex = kind == BackendKind::LibTorch && gpu.is_none();
    let has_flex = BackendKind::compiled().contains(&BackendKind::Flex);
    let kind = if is_like_flex && has_flex {
        BackendKind::Flex
    } else {
        kind
    };
    let Some(limit) = available.filter(|_| is_counted(kind)) else {
        return Ok(());
    };
    let available = limit.bytes as f64;
    let smaller = match config.train.batch {
        1 => "make the model or train.time smaller",
        _ => "make it smaller and train.accumulate larger",
    };
    let recompute = match config.train.recompute {
        None => ", or set train.recompute=Layers",
        Some(_) => "",
    };
    let refuse = |about: &str, needed: f64| {
        let problem = format!(
            "is {}, with which a step takes {about} {} of memory, but there are only {}; {smaller}{recompute}",
            config.train.batch,
            bytes(needed),
            shown(limit)
        );
        Err(ConfigError::new("train.batch", problem).into())
    };
    if ample(config, vocabulary) <= available {
        return Ok(());
    }
    let least = least_memory(config, vocabulary);
    if least > available {
        return refuse("at least", least);
    }
    match estimated(config, vocabulary, (kind, gpu), available)? {
        Some(needed) if needed > available => refuse("about", needed),
        _ => Ok(()),
    }
}

/// Estimates the number of bytes of training from steps of smaller copies, if these fit into the `available` bytes. The
/// trainer reports problems with the config. The only error is [`Error::Stopped`].
fn estimated<C: ModelConfig>(
    config: &RunConfig<C>,
    vocabulary: Vocabulary,
    (kind, gpu): (BackendKind, Option<usize>),
    available: f64,
) -> Result<Option<f64>, Error> {
    let estimate = || -> Result<Option<f64>, Error> {
        let trial = Trial::new(config, vocabulary)?;
        if ample(&trial.smallest()?, vocabulary) > AMPLE * available {
            return Ok(None);
        }
        // The largest copy has twice the layers and sequences of the smallest.
        let smallest = trial.smallest_peak(kind, gpu)?;
        if smallest.is_none_or(|smallest| 4.0 * smallest as f64 > available) {
            return Ok(None);
        }
        let peaks = trial.peaks(kind, gpu)?;
        Ok(peaks.map(|peaks| trial.whole(&peaks) as f64))
    };
    match estimate() {
        Err(error) if !error.is_stop() => Ok(None),
        found => found,
    }
}

/// Whether the memory of a backend is counted.
fn is_counted(kind: BackendKind) -> bool {
    kind == BackendKind::Flex && allocated().is_some()
}

/// Shows an amount such as `3.2 GiB on this machine, swap included`.
fn shown(memory: Amount) -> String {
    format!("{} {}", bytes(memory.bytes as f64), memory.limit.words())
}

/// Returns the memory that this program can still get, if the system reports it. This memory consists of free memory,
/// swap included, and of memory that earlier models have left to the allocator.
pub fn available_memory() -> Option<Amount> {
    let resident = memory_stats::memory_stats()?.physical_mem as u64;
    let left = resident.saturating_sub(allocated().unwrap_or(resident));
    let Amount { bytes, limit } = memory()?.available;
    Some(Amount {
        bytes: bytes + left,
        limit,
    })
}

fn weights<C: ModelConfig>(config: &RunConfig<C>, vocabulary: Vocabulary) -> f64 {
    4.0 * config.model.cost(vocabulary).params.total() as f64
}

/// Returns the number of bytes of the weights, their average, the gradients, the moments, and the sum of gradients over
/// micro-batches. One process is assumed to train all weights.
fn state<C: ModelConfig>(config: &RunConfig<C>, vocabulary: Vocabulary) -> f64 {
    let sums = if config.train.accumulate > 1 {
        1.0
    } else {
        0.0
    };
    let average = if config.train.ema.is_some() { 1.0 } else { 0.0 };
    (2.0 + sums + average) * weights(config, vocabulary) + moments(config, vocabulary)
}

/// Returns the number of bytes of the optimizer's moments.
fn moments<C: ModelConfig>(config: &RunConfig<C>, vocabulary: Vocabulary) -> f64 {
    4.0 * config
        .train
        .optimizer
        .moments(config.model.cost(vocabulary).params) as f64
}

/// Returns a lower bound on the number of bytes of weights, gradients and moments. The bound counts only trained
/// weights, because costs omit all other weights. The bound counts no moments if several processes divide the moments
/// among themselves.
pub(crate) fn least_state<C: ModelConfig>(config: &RunConfig<C>, vocabulary: Vocabulary) -> f64 {
    let moments = match config.train.shard_optimizer {
        true => 0.0,
        false => moments(config, vocabulary),
    };
    2.0 * weights(config, vocabulary) + moments
}

/// Returns a lower bound on the number of bytes of training: the state, the logits, and the streams that are kept after
/// layers.
pub fn least_memory<C: ModelConfig>(config: &RunConfig<C>, vocabulary: Vocabulary) -> f64 {
    let shape = config.model.shape();
    let tokens = config.train.batch as f64 * config.time() as f64;
    let kept = match config.train.recompute {
        Some(Recompute::Every(layers)) => shape.n_layer / layers.max(1),
        _ => shape.n_layer,
    };
    let width = shape.width as f64 * config.model.copies() as f64;
    let logits = 4.0 * vocabulary.outputs as f64;
    least_state(config, vocabulary) + tokens * (logits + 4.0 * width * kept as f64)
}

/// The smallest factor by which [`ample`] exceeds the memory that a measured model takes.
const AMPLE: f64 = 3.0;

/// Returns an upper estimate of the number of bytes of training: 3 to 24 times the bytes that measured models of the
/// zoo take.
fn ample<C: ModelConfig>(config: &RunConfig<C>, vocabulary: Vocabulary) -> f64 {
    let shape = config.model.shape();
    let flops = config.model.cost(vocabulary).forward_flops as f64;
    let width = shape.width as f64;
    let copies = config.model.copies() as f64;
    let activations = match config.data.image() {
        // FLOPs are per image. Measured models take about one byte for four FLOPs.
        Some(_) => flops,
        // The first term is for the layers, the second for products that are wider than the stream.
        None => 512.0 * width * copies * config.model.passes() as f64 + 16.0 * flops / width,
    };
    let tokens = config.train.batch as f64 * config.time() as f64;
    let logits = 12.0 * vocabulary.outputs as f64;
    2.0 * state(config, vocabulary) + tokens * (logits + activations)
}

#[cfg(test)]
mod tests {
    use residual_zoo_core::PlainModel;
    use residual_zoo_gpt2::Gpt2Config;

    use super::*;

    fn of_width(width: usize) -> RunConfig<PlainModel<Gpt2Config>> {
        RunConfig::new(PlainModel(Gpt2Config {
            width,
            n_head: 1,
            ..Gpt2Config::default()
        }))
    }

    #[test]
    fn what_no_machine_holds_is_refused_and_what_fits_is_not() {
        let flex = (BackendKind::Flex, None);
        let check = |width, purpose| check_size(&of_width(width), 50.into(), flex, purpose);
        for purpose in [Use::Load, Use::Train] {
            check(64, purpose).unwrap();
            let error = check(1_000_000, purpose).unwrap_err().to_string();
            assert!(error.starts_with("`model` needs at least"), "{error}");
            assert!(error.contains("of memory, and there are"), "{error}");
        }
    }

    #[test]
    fn the_field_that_is_too_large_is_named() {
        let refused = |change: fn(&mut RunConfig<PlainModel<Gpt2Config>>)| {
            let mut config = of_width(64);
            change(&mut config);
            let flex = (BackendKind::Flex, None);
            let error = check_size(&config, 50.into(), flex, Use::Train).unwrap_err();
            error.to_string()
        };
        for (error, expected) in [
            (
                refused(|config| config.train.batch = 1 << 40),
                "`train.batch` is 1099511627776, with which",
            ),
            (
                refused(|config| config.train.time = Some(1 << 40)),
                "`train.time` is 1099511627776, with which",
            ),
            (
                refused(|config| (config.train.time, config.model.0.context) = (Some(8), 1 << 40)),
                "`model.context` is 1099511627776, with which",
            ),
        ] {
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn training_takes_at_least_four_times_the_weights_and_more_with_the_batch() {
        let mut config = of_width(64);
        let vocabulary = Vocabulary::from(50);
        config.train.batch = 1;
        let one = least_memory(&config, vocabulary);
        assert!(one > 4.0 * weights(&config, vocabulary));
        config.train.batch = 1000;
        assert!(least_memory(&config, vocabulary) > 100.0 * weights(&config, vocabulary));
    }

    #[test]
    fn shared_moments_are_not_counted() {
        let vocabulary = Vocabulary::from(50);
        let mut config = of_width(64);
        let weights = weights(&config, vocabulary);
        assert_eq!(least_state(&config, vocabulary), 4.0 * weights);
        config.train.shard_optimizer = true;
        assert_eq!(least_state(&config, vocabulary), 2.0 * weights);
    }

    #[test]
    fn what_is_ample_is_more_than_what_is_needed_at_least() {
        for (width, batch) in [(1, 1), (64, 8), (64, 10_000), (4096, 1)] {
            let mut config = of_width(width);
            config.train.batch = batch;
            for vocabulary in [2, 50, 50_000].map(Vocabulary::from) {
                let least = least_memory(&config, vocabulary);
                assert!(
                    ample(&config, vocabulary) > AMPLE * least / 2.0,
                    "{width} {batch}"
                );
            }
        }
    }
}
