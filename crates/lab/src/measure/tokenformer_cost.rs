//! FLOPs of TokenFormer and transformer against the length of the text, exact (Wang et al., Table 3,
//! Figure 5).

use residual_zoo_tokenformer::formulas::{Shape, transformer_flops, transformer_params};

use super::{Quantities, quantities};
use crate::{Error, PlannedRun};

pub(super) const NAMES: &[&str] = &[
    "parameters counted",
    "FLOPs as printed",
    "FLOPs counted",
    "token-token FLOPs",
];

/// FLOPs of the forward pass on a text of `text length` tokens, without embedding and unembedding.
pub(super) fn measure<C>(run: &PlannedRun<C>) -> Result<Quantities, Error> {
    let (n_layer, width, time) = (
        run.size("layers")?,
        run.size("width")?,
        run.size("text length")?,
    );
    let [params, printed, counted] = match run.values.contains_key("n_attn") {
        true => {
            let shape = Shape {
                n_layer,
                width,
                n_attn: run.size("n_attn")?,
                n_ffn: run.size("n_ffn")?,
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
