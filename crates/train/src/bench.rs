//! Times an optimizer step and its parts.

use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use residual_zoo_core::ops::forms::recorded;
use residual_zoo_core::ops::precision::matmul;
use residual_zoo_core::ops::profile;
use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_data::{Corpus, DataError};
use residual_zoo_system::stop;
use serde::{Deserialize, Serialize};

use residual_zoo_runs::{Error, RunConfig, vocabulary};

use crate::Trainer;

/// Seconds per part of an optimizer step: medians over the measured steps, and the range of the whole step. On a GPU,
/// the parts can add up to more than the step, because each part waits for the device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepTime {
    /// Drawing the batch and copying it to the device.
    pub data: f64,
    /// Forward pass and loss.
    pub forward: f64,
    /// Backward pass.
    pub backward: f64,
    /// Clipping and the optimizer's update.
    pub optimizer: f64,
    /// The whole step.
    pub step: f64,
    /// The fastest whole step.
    pub fastest: f64,
    /// The slowest whole step.
    pub slowest: f64,
    /// Training tokens per second at the median step.
    pub tokens_per_second: f64,
    /// Training FLOP/s at the median step, according to the model's cost.
    pub flops_per_second: f64,
    /// Number of parameters of the model.
    pub parameters: usize,
    /// The operations that ran in their plain form, because the backend has no fast form of them.
    #[serde(default)]
    pub plain: Vec<String>,
}

/// The measured maximum speeds of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// FLOP/s of a large matrix product, at the current [`Precision`](residual_zoo_core::Precision).
    pub product: f64,
    /// Bytes read and written per second by an operation on every element of a large tensor.
    pub copy: f64,
}

impl Rates {
    /// Measures both speeds: the best of several products and of several negations. If an operation takes less than 3
    /// ms, tries a larger one, because a small operation spends much of its time in the launch. With fusion, the
    /// backend may skip work, which makes the measured speeds too high.
    pub fn measure<B: Backend>(device: &B::Device) -> Self {
        let product = |side: usize| {
            let square = Tensor::<B, 2>::ones([side, side], device);
            let work = 2.0 * (side as f64).powi(3);
            (work, fastest(|| matmul(square.clone(), square.clone())))
        };
        let copy = |count: usize| {
            let row = Tensor::<B, 1>::ones([count], device);
            let work = (2 * count * size_of::<f32>()) as f64;
            (work, fastest(|| row.clone().neg()))
        };
        Self {
            product: best_rate(product, &[1024, 2048, 4096, 8192]),
            // Some GPUs bind buffers of at most 128 MiB.
            copy: best_rate(copy, &[1 << 24, 1 << 25]),
        }
    }
}

/// Measures the shortest time, in seconds, until the result of `operation` can be read. Takes up to eight measurements
/// within half a second.
fn fastest<B: Backend, const D: usize>(operation: impl Fn() -> Tensor<B, D>) -> f64 {
    let time = || {
        let start = Instant::now();
        let first = operation().slice(std::array::from_fn::<_, D, _>(|_| 0..1));
        first.into_data();
        start.elapsed().as_secs_f64()
    };
    shortest(time)
}

/// Returns the shortest of up to eight times. A first call, which compiles kernels, does not count. No call begins
/// after the times add up to half a second, because a CPU without bf16 instructions can take seconds for a product.
fn shortest(mut time: impl FnMut() -> f64) -> f64 {
    time();
    let (mut best, mut sum, mut count) = (f64::INFINITY, 0.0, 0);
    while count < 8 && sum < 0.5 {
        let seconds = time();
        best = best.min(seconds);
        sum += seconds;
        count += 1;
    }
    best
}

/// Returns the best ratio of work to time over the `sizes`, up to the first size that takes at least 3 ms.
fn best_rate(measure: impl Fn(usize) -> (f64, f64), sizes: &[usize]) -> f64 {
    let mut best = 0.0_f64;
    for size in sizes {
        let (work, seconds) = measure(*size);
        best = best.max(work / seconds);
        if seconds >= 3e-3 {
            break;
        }
    }
    best
}

/// Times `steps` optimizer steps of one micro-batch each. These steps alternate with the same number of steps that are
/// timed part by part. The first `warmup` steps compile and tune kernels, and are not measured. With the environment
/// variable `RESIDUAL_ZOO_PROFILE=FILE`, one more step is recorded in this file ([`profile`]).
///
/// # Errors
///
/// Returns the errors of [`Trainer::new`] and [`Trainer::step`]. Also returns an error if `RESIDUAL_ZOO_PROFILE` does
/// not name a file in an existing folder, or if the profile cannot be recorded. If the user stops the program, returns
/// an error after the current step or, in a step that is timed part by part, after the current part.
pub fn time_steps<B: AutodiffBackend, C: ModelConfig>(
    config: RunConfig<C>,
    corpus: &Corpus,
    (warmup, steps): (usize, usize),
    device: B::Device,
) -> Result<StepTime, Error> {
    let profile_to = profile_to()?;
    let mut config = config;
    config.train.accumulate = 1;
    let mut trainer = Trainer::<B, C>::new(config, corpus, device)?;
    for _ in 0..warmup {
        trainer.step()?;
        unless_stopped()?;
    }
    // A GPU works on one part while the next part is prepared. Timing each part prevents this overlap, so whole steps
    // are timed separately.
    let (mut whole, mut times) = (Vec::new(), Vec::new());
    let (timed, plain) = recorded(|| {
        for _ in 0..steps {
            whole.push(time_whole_step(&mut trainer)?);
            times.push(time_parts(&mut trainer)?);
        }
        Ok::<_, Error>(())
    });
    timed?;
    if let Some(path) = profile_to {
        let recorded = profile(&path, || time_whole_step(&mut trainer));
        let problem = |problem| ConfigError::new("RESIDUAL_ZOO_PROFILE", problem);
        recorded.map_err(problem)??;
    }
    let part = |i: usize| median(times.iter().map(|parts| parts[i]).collect());
    let step = median(whole.clone());
    Ok(StepTime {
        data: part(0),
        forward: part(1),
        backward: part(2),
        optimizer: part(3),
        step,
        fastest: whole.iter().copied().fold(f64::INFINITY, f64::min),
        slowest: whole.iter().copied().fold(0.0, f64::max),
        tokens_per_second: trainer.tokens_per_step() as f64 / step,
        flops_per_second: trainer.step_flops() / step,
        parameters: trainer.config.model.cost(vocabulary(corpus)).params.total(),
        plain: plain.into_iter().map(str::to_owned).collect(),
    })
}

/// Returns the file that `RESIDUAL_ZOO_PROFILE` names, if it is set.
fn profile_to() -> Result<Option<PathBuf>, ConfigError> {
    let Some(path) = std::env::var_os("RESIDUAL_ZOO_PROFILE").map(PathBuf::from) else {
        return Ok(None);
    };
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    if path.as_os_str().is_empty() || path.is_dir() || !folder.is_dir() {
        let problem = format!(
            "is `{}`; give a file in a folder that exists",
            path.display()
        );
        return Err(ConfigError::new("RESIDUAL_ZOO_PROFILE", problem));
    }
    Ok(Some(path))
}

/// Measures the seconds from the start of a step until the device is idle.
fn time_whole_step<B: AutodiffBackend, C: ModelConfig>(
    trainer: &mut Trainer<B, C>,
) -> Result<f64, Error> {
    let start = Instant::now();
    trainer.step()?;
    // An error of the device is ignored here. A later read of a result reports the error with its cause.
    B::sync(trainer.device()).ok();
    unless_stopped()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Measures the seconds that each part of a step takes. A part ends when the device is idle.
fn time_parts<B: AutodiffBackend, C: ModelConfig>(
    trainer: &mut Trainer<B, C>,
) -> Result<[f64; 4], Error> {
    let device = trainer.device().clone();
    let mut clock = Instant::now();
    let mut lap = || {
        // An error of the device is ignored here. A later read of a result reports the error with its cause.
        B::sync(&device).ok();
        let seconds = clock.elapsed().as_secs_f64();
        clock = Instant::now();
        seconds
    };
    let batch = trainer.upload(&trainer.batch(0)?);
    let data = lap();
    unless_stopped()?;
    let (loss, mut recording) = trainer.forward(batch, 0);
    let statistics = recording.take_statistics();
    let forward = lap();
    unless_stopped()?;
    let mut grads = GradientsParams::new();
    trainer.backward(&loss, recording, &mut grads);
    let backward = lap();
    unless_stopped()?;
    trainer.update(loss.cross_entropy.inner(), grads, statistics);
    let optimizer = lap();
    unless_stopped()?;
    Ok([data, forward, backward, optimizer])
}

/// Fails if the user has asked this process to end.
fn unless_stopped() -> Result<(), Error> {
    match stop::is_asked() {
        true => Err(DataError::Stopped.into()),
        false => Ok(()),
    }
}

/// Returns the median, or NaN if there are no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::{best_rate, median, shortest};

    #[test]
    fn the_rate_is_the_best_up_to_a_size_that_takes_long() {
        let measure = |size: usize| match size {
            1 => (1.0, 1e-3),
            2 => (10.0, 2e-3),
            3 => (6.0, 3e-3),
            _ => panic!("size {size} is not needed"),
        };
        assert_eq!(best_rate(measure, &[1, 2, 3, 4]), 10.0 / 2e-3);
    }

    #[test]
    fn an_operation_of_seconds_counts_once_and_a_short_one_eight_times() {
        let timed = |times: &[f64]| {
            let mut left = times.iter().copied();
            let best = shortest(|| left.next().unwrap());
            (best, left.count())
        };
        assert_eq!(timed(&[2.0, 3.0, 1.0]), (3.0, 1));
        assert_eq!(timed(&[0.2, 0.3, 0.4, 0.1]), (0.3, 1));
        let short = [1e-3, 9e-3, 8e-3, 7e-3, 6e-3, 5e-3, 4e-3, 3e-3, 2e-3, 1e-3];
        assert_eq!(timed(&short), (2e-3, 1));
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(vec![]).is_nan());
    }
}
