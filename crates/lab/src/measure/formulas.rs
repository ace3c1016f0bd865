//! Costs of models by the formulas of papers, as published and as counted.

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

/// The cost of an RMT and of a transformer by the size of the residual stream (Mak & Flanigan, Figure 1, Table 7).
///
/// All dimensions but the size of the stream are the dimensions of GPT2-medium (footnote 4). The size of the stream is
/// D of a transformer, or D_k D_v of an RMT. FLOPs are given per token of the forward pass and, for a run with
/// `tokens`, also for training.
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

/// Exact FLOPs of a TokenFormer and a transformer by the length of the text. They count the forward pass on `text
/// length` tokens, without embedding and unembedding (Wang et al., Table 3, Figure 5).
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

/// Estimated operations (Kausik, section 5.1) and counted FLOPs of the recurrent transformer and of an ordinary one, by
/// the length of the sequence.
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
