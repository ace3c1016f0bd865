//! Reproduces the tables of the Residual Matrix Transformer.

use residual_zoo::core::Architecture;
use residual_zoo::gpt2::Gpt2Config;
use residual_zoo::rmt::formulas::{RmtShape, TransformerShape, training_flops, variance_ratios};
use residual_zoo::rmt::{Positions, RmtConfig};
use serde_json::{Value, json};

use super::{GPT2, figure, file, norm_scales, percent, round};

fn rmt_presets() -> [RmtConfig; 4] {
    let (m46, m134) = (RmtConfig::m46(), RmtConfig::m134());
    [m46, m134, RmtConfig::m206(), RmtConfig::m305()]
}

/// Returns the transformer with which an RMT is compared: D = R D_v, H = R and D_h = D_v (footnotes 2, 3).
fn transformer(rmt: &RmtConfig) -> Gpt2Config {
    Gpt2Config {
        n_layer: rmt.n_layer,
        n_head: rmt.rank,
        width: rmt.rank * rmt.d_v,
        d_ff: Some(rmt.d_ff()),
        context: rmt.context,
        bias: false,
        tied: false,
        inverse_layer_scale: true,
        norm_eps: 1e-6,
        ..Default::default()
    }
}

fn transformer_shape(config: &Gpt2Config) -> TransformerShape {
    TransformerShape {
        n_layer: config.n_layer,
        width: config.width,
        d_ff: config.d_ff(),
        n_head: config.n_head,
        d_head: config.width / config.n_head,
        vocab_size: GPT2,
        context: config.context,
    }
}

pub fn constants() -> Value {
    json!({ "V": GPT2, "N": RmtConfig::default().context })
}

pub fn table_8() -> Value {
    let row = |rmt| {
        let config = transformer(&rmt);
        let (params, norms) = (config.cost(GPT2).params, norm_scales(&config));
        let shape = transformer_shape(&config);
        json!({
            "L": config.n_layer,
            "D": config.width,
            "D_FF": config.d_ff(),
            "H": config.n_head,
            "D_h": shape.d_head,
            "exact_no_norms": params.total() - norms,
            "norm_scales": norms,
            "non_embedding": params.other - norms,
            "table7_formula": shape.params_as_printed(),
            "twenty_x_non_embedding": 20 * shape.layer_params(),
        })
    };
    rmt_presets().map(row).into_iter().collect()
}

pub fn table_9() -> Value {
    let row = |config: RmtConfig| {
        let shape = RmtShape::new(&config, GPT2);
        let norms = norm_scales(&config);
        let exact = |config: &RmtConfig| config.cost(GPT2).params.total() - norms;
        let without_positions = RmtConfig {
            positions: Positions::Alibi,
            ..config.clone()
        };
        let ratio = config.shape().width as f64 / transformer(&config).width as f64;
        json!({
            "L": config.n_layer,
            "D_k": config.d_k,
            "D_v": config.d_v,
            "R": config.rank,
            "D_FF": config.d_ff(),
            "residual_size": config.shape().width,
            "residual_ratio_to_transformer": round(ratio, 3),
            "exact_no_norms": exact(&config),
            "norm_scales": norms,
            "core_ff_weights": shape.core_params(),
            "key_vectors": shape.key_params(),
            "table7_formula": shape.params_as_printed(),
            "table7_shortfall": exact(&config) - shape.params_as_printed(),
            "exact_without_positions_no_norms": exact(&without_positions),
            "twenty_x_core_ff": 20 * shape.core_params(),
        })
    };
    rmt_presets().map(row).into_iter().collect()
}

pub fn section_4_4() -> Value {
    let sizes = [6, 12, 24, 32, 48, 64].map(|d_k| {
        let config = RmtConfig {
            d_k,
            ..RmtConfig::m134()
        };
        let params = config.cost(GPT2).params.total() - norm_scales(&config);
        (config.shape().width, d_k, params)
    });
    let (smallest, largest) = (sizes[0].2 as f64, sizes[5].2 as f64);
    let row = |(size, d_k, params)| json!({ "residual_size": size, "D_k": d_k, "params": params });
    json!({
        "rows": sizes.map(row),
        "spread_percent": percent(largest, smallest),
    })
}

pub fn table_7() -> Value {
    let m305 = RmtConfig::m305();
    let rmt = RmtShape::new(&m305, GPT2);
    let transformer = transformer_shape(&transformer(&m305));
    // Table 3 has the number of all tokens, and of the tokens after which the RMT has the transformer's loss.
    let (all, same_loss) = (6.04e9, 3.55e9);
    let saving = |tokens| {
        let of = transformer.flops_counted() as f64 * all;
        percent(rmt.flops_counted() as f64 * tokens, of)
    };
    json!({
        "forward_per_token": {
            "transformer_table7_as_printed_V": transformer.flops_as_printed(),
            "transformer_with_V_times_D": transformer.flops_counted(),
            "rmt_table7_as_printed": rmt.flops_as_printed(),
            "rmt_table7_with_4V_instead_of_4V_Dv": rmt.flops_of_printed_totals(),
            "rmt_sum_of_listed_items": rmt.flops_of_items(),
            "rmt_items_with_positions_at_N": rmt.flops_counted(),
        },
        "training_total_3x_forward": {
            "transformer 6.04e9 tokens, V as printed":
                training_flops(transformer.flops_as_printed(), all),
            "transformer 6.04e9 tokens, V*D": training_flops(transformer.flops_counted(), all),
            "rmt 6.04e9 tokens, 4V": training_flops(rmt.flops_of_printed_totals(), all),
            "rmt 6.04e9 tokens, Table 7 as printed": training_flops(rmt.flops_as_printed(), all),
            "rmt 3.55e9 tokens, 4V": training_flops(rmt.flops_of_printed_totals(), same_loss),
            "rmt 3.55e9 tokens, items with positions at N":
                training_flops(rmt.flops_counted(), same_loss),
        },
        "saving_with_full_vocabulary_terms": {
            "equal_tokens_percent": saving(all),
            "equal_loss_percent": saving(same_loss),
        },
    })
}

pub fn figure_1() -> Value {
    let more = |context: usize, of: fn(&RmtShape) -> usize| {
        let at = |d_k| {
            let config = RmtConfig {
                d_k,
                context,
                ..RmtConfig::m305()
            };
            of(&RmtShape::new(&config, GPT2)) as f64
        };
        percent(at(128), at(64))
    };
    // Parameters are counted at GPT2-medium's context, and FLOPs at the context of the experiments.
    json!({
        "rmt_params_Dk_64_to_128_percent": more(1024, RmtShape::params_counted),
        "rmt_flops_Dk_64_to_128_percent_table7": more(512, RmtShape::flops_as_printed),
        "rmt_flops_Dk_64_to_128_percent_items": more(512, RmtShape::flops_of_items),
    })
}

pub fn table_2() -> Value {
    let RmtConfig { rank, d_k, d_v, .. } = RmtConfig::m305();
    let (d, d_ff) = (rank * d_v, RmtConfig::m305().d_ff());
    let ratios = |(fan_in, fan_out)| {
        let ratios = variance_ratios(fan_in, fan_out);
        json!({
            "fan_in": fan_in,
            "fan_out": fan_out,
            "forward": round(ratios.forward, 4),
            "backward": round(ratios.backward, 4),
        })
    };
    let row = |rmt, transformer| json!({ "rmt": ratios(rmt), "transformer": ratios(transformer) });
    json!({
        "dims": { "R": rank, "D_k": d_k, "D": d, "D_FF": d_ff },
        "attention_storage": row((rank, d_k), (d, d)),
        "attention_retrieval": row((d_k, 3 * rank), (d, 3 * d)),
        "feedforward_storage": row((rank, d_k), (d_ff, d)),
        "feedforward_retrieval": row((d_k, rank), (d, d_ff)),
    })
}

#[test]
fn the_training_flops_in_print_lack_the_width_of_the_vocabulary() {
    let totals = table_7()["training_total_3x_forward"].take();
    for (printed, reading) in [
        ("transformer", "transformer 6.04e9 tokens, V as printed"),
        ("rmt_full", "rmt 6.04e9 tokens, 4V"),
        ("rmt_same_loss", "rmt 3.55e9 tokens, 4V"),
    ] {
        let printed = figure(&format!("/rmt/table7_flops/totals/printed/{printed}"));
        let found = totals[reading].as_f64().unwrap();
        assert!(percent(found, printed).abs() < 1.0, "{reading}: {found}");
    }
}

#[test]
fn variances_are_as_printed_but_for_rmts_feed_forward_network() {
    let file = file();
    for (operation, row) in table_2().as_object().unwrap() {
        for model in ["rmt", "transformer"] {
            let printed = &file["rmt"]["table2_variance"][operation][format!("printed_{model}")];
            let Some(printed) = printed.as_array() else {
                continue;
            };
            let same = ["forward", "backward"]
                .iter()
                .zip(printed)
                .all(|(way, printed)| {
                    let (found, printed) = (row[model][way].as_f64(), printed.as_f64());
                    round(found.unwrap(), 2) == printed.unwrap()
                });
            let differs = model == "rmt" && operation.starts_with("feedforward");
            assert_eq!(same, !differs, "{operation} of {model}");
        }
    }
}

#[test]
fn rmts_formulas_count_what_the_configs_do_and_table_products_and_softmax() {
    for config in rmt_presets() {
        let (cost, shape) = (config.cost(GPT2), RmtShape::new(&config, GPT2));
        let params = shape.params_counted() + norm_scales(&config);
        assert_eq!(cost.params.total(), params);
        let products = 2 * config.rank * config.d_v * (GPT2 + config.context);
        let softmax = 3 * config.n_layer * config.rank * config.context;
        let flops = cost.forward_flops + products + softmax;
        assert_eq!(shape.flops_counted(), flops);

        let config = transformer(&config);
        let (cost, shape) = (config.cost(GPT2), transformer_shape(&config));
        let params = shape.params_counted() + norm_scales(&config);
        assert_eq!(cost.params.total(), params);
        let flops = cost.forward_flops + 2 * config.width * GPT2 + softmax;
        assert_eq!(shape.flops_counted(), flops);
    }
}
