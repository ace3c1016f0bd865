//! FLOPs of TokenFormer and transformer against the length of the text, exact (Wang et al., Table 3,
//! Figure 5).

mod common;
#[macro_use]
#[path = "common/experiment.rs"]
mod experiment;

use experiment::{Measure, Quantities, Setting, quantities, value};
use residual_zoo::experiment::Planned;
use residual_zoo::tokenformer::formulas::{Shape, transformer_flops, transformer_params};

fn main() -> std::process::ExitCode {
    let measure = Measure {
        names: &[
            "parameters counted",
            "FLOPs as printed",
            "FLOPs counted",
            "token-token FLOPs",
        ],
        is_random: false,
        reads_data: false,
        of: measure,
    };
    experiment!("tokenformer", "tokenformer_cost", Some(measure))
}

/// FLOPs of the forward pass on a text of `text length` tokens, without embedding and unembedding.
fn measure(run: &Planned, _: &Setting) -> anyhow::Result<Quantities> {
    let size = |name: &str| anyhow::Ok(value(run, name)? as usize);
    let (n_layer, width, time) = (size("layers")?, size("width")?, size("text length")?);
    let [params, printed, counted] = match run.values.contains_key("n_attn") {
        true => {
            let shape = Shape {
                n_layer,
                width,
                n_attn: size("n_attn")?,
                n_ffn: size("n_ffn")?,
            };
            [
                shape.params_counted(),
                shape.flops_as_printed(time),
                shape.flops_counted(time),
            ]
        }
        false => {
            let flops = transformer_flops(n_layer, width, time);
            [transformer_params(n_layer, width), flops, flops]
        }
    };
    Ok(quantities([
        ("parameters counted", params as f64),
        ("FLOPs as printed", printed as f64),
        ("FLOPs counted", counted as f64),
        (
            "token-token FLOPs",
            (4 * n_layer * width * time * time) as f64,
        ),
    ]))
}
