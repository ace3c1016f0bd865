//! Model costs by the formulas of papers, as published and as counted here.

use residual_zoo_core::ModelConfig;
use residual_zoo_recurrent::formulas::{recurrent_operations, regular_operations};
use residual_zoo_rmt::formulas::{RmtShape, TransformerShape, training_flops};
use residual_zoo_tokenformer::formulas::{Shape, transformer_flops, transformer_params};

use super::{Quantities, Setting, quantities};
use crate::{Error, PlannedRun};

pub(super) const RMT: &[&str] = &[
    "parameters as printed",
    "parameters counted",
    "FLOPs as printed",
    "FLOPs counted",
    "inference bytes",
    "training FLOPs as printed",
    "training FLOPs counted",
];

/// Returns the cost of an RMT or a transformer with a given size of the residual stream (Mak & Flanigan, Figure 1 and
/// Table 7).
///
/// All other dimensions are GPT2-medium's (footnote 4). The size of the stream is D for a transformer, and D_k D_v for
/// an RMT. FLOPs are given per token for the forward pass and, for a run with `tokens`, also for the whole training.
pub(super) fn rmt<C>(run: &PlannedRun<C>, setting: &Setting) -> Result<Quantities, Error> {
    let (n_layer, d_ff, heads, d_head, context) = (24, 4096, 16, 64, 512);
    let (vocab_size, stream) = (setting.vocab_size, run.size("stream size")?);
    let [params, params_counted, flops, flops_counted, bytes] =
        match run.values.contains_key("is RMT") {
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
                    shape.inference_bytes(),
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
                    shape.inference_bytes(),
                ]
            }
        };
    let values = [params, params_counted, flops, flops_counted, bytes];
    let mut found = quantities(RMT, values.map(|value| value as f64));
    if let Some(&tokens) = run.values.get("tokens") {
        let training = [flops, flops_counted].map(|flops| training_flops(flops, tokens));
        found.extend(quantities(&RMT[5..], training));
    }
    Ok(found)
}

pub(super) const TOKENFORMER: &[&str] = &[
    "parameters counted",
    "FLOPs as printed",
    "FLOPs counted",
    "token-token FLOPs",
];

/// Returns the parameters and the FLOPs of a TokenFormer or a transformer, without embedding and unembedding (Wang et
/// al., Table 3, Figure 5). FLOPs are given for the forward pass on a sequence of `text length` tokens.
pub(super) fn tokenformer<C>(run: &PlannedRun<C>) -> Result<Quantities, Error> {
    let (n_layer, width) = (run.size("layers")?, run.size("width")?);
    let time = run.size("text length")?;
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
    let token_token = 4 * n_layer * width * time * time;
    let values = [params, printed, counted, token_token];
    Ok(quantities(TOKENFORMER, values.map(|value| value as f64)))
}

pub(super) const RECURRENT: &[&str] = &["operations", "FLOPs of a sequence"];

/// Returns the estimated operations of a recurrent or an ordinary transformer on one sequence (Kausik, section 5.1).
/// For a run with a model, also returns the counted FLOPs.
pub(super) fn recurrent<C: ModelConfig>(
    run: &PlannedRun<C>,
    setting: &Setting,
) -> Result<Quantities, Error> {
    let n_layer = run.size("layers")?;
    let (time, width) = (run.size("sequence length")?, run.size("width")?);
    let operations = match run.values.contains_key("block") {
        true => recurrent_operations(n_layer, time, width, run.size("block")?),
        false => regular_operations(n_layer, time, width),
    };
    let mut found = quantities(RECURRENT, [operations as f64]);
    if let Some(config) = &run.config {
        let per_token = config.model.cost(setting.vocab_size).forward_flops;
        found.extend(quantities(&RECURRENT[1..], [(per_token * time) as f64]));
    }
    Ok(found)
}
