//! `--try`: the memory of every model of an experiment, estimated and measured.

use residual_zoo_backend::BackendKind;
use residual_zoo_core::ModelConfig;
use residual_zoo_runs::RunConfig;

use residual_zoo_drive::Trial;
use residual_zoo_drive::{Basis, available_memory, basis_notes};
use residual_zoo_lab::{Error, PlannedRun};
use residual_zoo_train::Interrupter;

use crate::{print, write};

const MEBIBYTE: f64 = (1 << 20) as f64;

/// Trains every model for two steps, on one sequence at a time, and compares the peak memory with the estimate. On
/// Flex, skips a model that is estimated not to fit.
pub(super) fn try_models<C: ModelConfig>(
    planned: &[PlannedRun<C>],
    kind: BackendKind,
    gpu: Option<usize>,
) -> Result<(), Error> {
    print(
        "Memory in MiB. The whole is estimated for the batch of the config; estimate and tried are for \
         one\nsequence. Whole and estimate are extrapolated from one and two layers and sequences, and \
         are at\nleast the size of weights, gradients and moments. They are too low if a deep model \
         reaches its peak\nat another point of a step. Off is the difference between estimate and \
         tried, in percent.",
    )?;
    print(&format!(
        "{:<44} {:>10} {:>10} {:>10} {:>10} {:>7}",
        "model", "vocabulary", "whole", "estimate", "tried", "off"
    ))?;
    let mut tried: Vec<&RunConfig<C>> = Vec::new();
    let (mut beyond, mut bases) = (Vec::new(), Vec::new());
    for run in planned {
        let Some(config) = &run.config else { continue };
        if tried.iter().any(|other| other.model == config.model) {
            continue;
        }
        tried.push(config);
        // Printed before the steps, which can take minutes.
        write(&format!("{:<44}", run.name))?;
        let basis = Basis::of_config(&config.data, &Interrupter::new());
        let done = basis.map_err(Error::from).and_then(|basis| {
            let done = try_model(config, &basis, kind, gpu);
            bases.push((run.name.as_str(), basis));
            done
        });
        match done {
            Ok(true) => {}
            Ok(false) => beyond.push(run.name.as_str()),
            Err(error) => {
                print(&format!(" {:>10}", "failed"))?;
                return Err(error);
            }
        }
    }
    for note in basis_notes(bases.iter().map(|(name, basis)| (*name, basis))) {
        print(&note)?;
    }
    if !beyond.is_empty() {
        print(&format!(
            "not tried, for lack of memory: {}",
            beyond.join(", ")
        ))?;
    }
    Ok(())
}

/// Fills the row of a model. Returns whether the model was tried.
fn try_model<C: ModelConfig>(
    config: &RunConfig<C>,
    basis: &Basis,
    kind: BackendKind,
    gpu: Option<usize>,
) -> Result<bool, Error> {
    write(&format!(" {:>10}", basis.shown()))?;
    let trial = Trial::new(config, basis.vocabulary)?;
    let Some(peaks) = trial.peaks(kind, gpu)? else {
        trial.take(kind, gpu)?;
        print(&format!(
            " two steps ran; backend `{kind}` does not report its memory here"
        ))?;
        return Ok(true);
    };
    let estimate = trial.estimate(&peaks);
    let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / MEBIBYTE);
    let (whole, one) = (mebibytes(trial.whole(&peaks)), mebibytes(estimate));
    write(&format!(" {whole:>10} {one:>10}"))?;
    let available = available_memory().filter(|_| kind == BackendKind::Flex);
    if available.is_some_and(|available| estimate > available.bytes) {
        print(&format!(" {:>10}", "–"))?;
        return Ok(false);
    }
    let (mut tried, mut off) = ("–".to_owned(), "–".to_owned());
    if let Some(taken) = trial.take(kind, gpu)? {
        tried = mebibytes(taken);
        off = format!("{:+.1}", 100.0 * (estimate as f64 / taken as f64 - 1.0));
    }
    print(&format!(" {tried:>10} {off:>7}"))?;
    Ok(true)
}
