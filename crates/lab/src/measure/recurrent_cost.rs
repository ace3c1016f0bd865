//! Operations of the recurrent transformer and of an ordinary one against the length of the
//! sequence: as section 5.1 estimates them, and the FLOPs of the models themselves.

use residual_zoo_core::ModelConfig;
use residual_zoo_recurrent::formulas::{recurrent_operations, regular_operations};

use super::{Quantities, Setting, quantities};
use crate::{Error, PlannedRun};

pub(super) const NAMES: &[&str] = &["operations", "FLOPs of a sequence"];

pub(super) fn measure<C: ModelConfig>(
    run: &PlannedRun<C>,
    setting: &Setting,
) -> Result<Quantities, Error> {
    let n_layer = run.size("layers")?;
    let (time, width) = (run.size("sequence length")?, run.size("width")?);
    let operations = match run.values.contains_key("block") {
        true => recurrent_operations(n_layer, time, width, run.size("block")?),
        false => regular_operations(n_layer, time, width),
    };
    let mut found = quantities([("operations", operations as f64)]);
    if let Some(config) = &run.config {
        let per_token = config.model.cost(setting.vocab_size).forward_flops;
        found.insert("FLOPs of a sequence".into(), (per_token * time) as f64);
    }
    Ok(found)
}
