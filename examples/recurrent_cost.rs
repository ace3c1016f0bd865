//! Operations of the recurrent transformer and of an ordinary one against the length of the
//! sequence: as section 5.1 estimates them, and the FLOPs of the models themselves.

mod common;
#[macro_use]
#[path = "common/experiment.rs"]
mod experiment;

use experiment::{Measure, Quantities, Setting, quantities, value};
use residual_zoo::core::ModelConfig as _;
use residual_zoo::experiment::Planned;
use residual_zoo::recurrent::formulas::{recurrent_operations, regular_operations};

fn main() -> std::process::ExitCode {
    let measure = Measure {
        names: &["operations", "FLOPs of a sequence"],
        is_random: false,
        reads_data: false,
        of: measure,
    };
    experiment!("recurrent", "recurrent_cost", Some(measure))
}

fn measure(run: &Planned, setting: &Setting) -> anyhow::Result<Quantities> {
    let size = |name: &str| anyhow::Ok(value(run, name)? as usize);
    let (n_layer, time, width) = (size("layers")?, size("sequence length")?, size("width")?);
    let operations = match run.values.contains_key("block") {
        true => recurrent_operations(n_layer, time, width, size("block")?),
        false => regular_operations(n_layer, time, width),
    };
    let mut found = quantities([("operations", operations as f64)]);
    if let Some(config) = &run.config {
        let per_token = config.model.cost(setting.vocab_size).forward_flops;
        found.extend(quantities([(
            "FLOPs of a sequence",
            (per_token * time) as f64,
        )]));
    }
    Ok(found)
}
