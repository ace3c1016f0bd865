//! What the size of the residual stream costs: parameters and FLOPs of RMT and transformer, as
//! Table 7 prints them and as they are counted (Mak & Flanigan, Figure 1, Table 7).

use residual_zoo_rmt::formulas::{RmtShape, TransformerShape, training_flops};

use super::{Quantities, Setting, quantities};
use crate::{Error, PlannedRun};

pub(super) const NAMES: &[&str] = &[
    "parameters as printed",
    "parameters counted",
    "FLOPs as printed",
    "FLOPs counted",
    "training FLOPs as printed",
    "training FLOPs counted",
];

/// GPT2-medium's dimensions (footnote 4) with a stream of another size: D of a transformer, or
/// D_k D_v of an RMT. FLOPs are of the forward pass, per token; with `tokens`, also of training.
pub(super) fn measure<C>(run: &PlannedRun<C>, setting: &Setting) -> Result<Quantities, Error> {
    let (n_layer, d_ff, heads, d_head, context) = (24, 4096, 16, 64, 512);
    let (vocab_size, stream) = (setting.vocab_size, run.size("stream size")?);
    let [params, params_counted, flops, flops_counted] = match run.values.contains_key("is RMT") {
        true => {
            let shape = RmtShape {
                n_layer,
                d_k: stream / d_head,
                d_v: d_head,
                rank: heads,
                d_ff,
                vocab_size,
                context,
            };
            [
                shape.params_as_printed(),
                shape.params_counted(),
                shape.flops_of_printed_totals(),
                shape.flops_counted(),
            ]
        }
        false => {
            let shape = TransformerShape {
                n_layer,
                width: stream,
                d_ff,
                n_head: heads,
                d_head,
                vocab_size,
                context,
            };
            [
                shape.params_as_printed(),
                shape.params_counted(),
                shape.flops_as_printed(),
                shape.flops_counted(),
            ]
        }
    };
    let mut found = quantities([
        ("parameters as printed", params as f64),
        ("parameters counted", params_counted as f64),
        ("FLOPs as printed", flops as f64),
        ("FLOPs counted", flops_counted as f64),
    ]);
    if let Some(&tokens) = run.values.get("tokens") {
        found.extend(quantities([
            ("training FLOPs as printed", training_flops(flops, tokens)),
            (
                "training FLOPs counted",
                training_flops(flops_counted, tokens),
            ),
        ]));
    }
    Ok(found)
}
