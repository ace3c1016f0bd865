//! Reproduces the tables of LAuReL.

use residual_zoo::core::{Architecture, Design, Frame, Sites};
use residual_zoo::gpt2::Gpt2Config;
use residual_zoo::laurel::{Augmentation, LaurelConfig, Weights, formulas};
use serde_json::{Value, json};

use super::{figure, round};

/// The number of layers and the width of Table 5. The width follows from the parameters of one layer.
const LAUREL: (usize, usize) = (24, 768);

/// Returns PA as in section 2.3, with a product of rank `r` for h.
fn pa_low_rank(k: usize, r: usize) -> LaurelConfig {
    LaurelConfig {
        augmentation: Augmentation::PreviousLowRank { k, rank: r },
        ..Default::default()
    }
}

pub fn table_5() -> Value {
    let (n_layer, width) = LAUREL;
    let (k, r) = (3, 32);
    let variants = [
        LaurelConfig::rw(),
        LaurelConfig::lr(r),
        LaurelConfig::pa(k),
        pa_low_rank(k, r),
        LaurelConfig::rw_lr(r),
        LaurelConfig::rw_lr_pa(k, r),
    ];
    let row = |(i, config): (usize, LaurelConfig)| {
        let delta = config
            .cost(&Sites::sublayers(width, n_layer, 1))
            .params
            .total();
        let printed = figure(&format!("/laurel/table5/rows/{i}/printed_delta_millions"));
        let unexplained = printed * 1e6 - delta as f64;
        json!({
            "formula_delta": delta,
            "formula_per_sublayer_instead": 2 * delta,
            "printed_minus_formula": round(unexplained, 0),
            "residual_in_units_of_layers_times_D": round(unexplained / (n_layer * width) as f64, 2),
        })
    };
    let rows: Value = variants.into_iter().enumerate().map(row).collect();
    json!({ "layers": n_layer, "inferred_D": width, "k": k, "r": r, "rows": rows })
}

#[test]
fn layers_of_width_768_explain_the_baselines_of_laurels_table_5() {
    let layer = Gpt2Config {
        width: LAUREL.1,
        d_ff: Some(2048),
        bias: false,
        ..Default::default()
    };
    let found = layer.block_cost(0, 1, &Frame::default()).params.total() as f64;
    let at = |name: &str| figure(&format!("/laurel/table5/{name}_millions"));
    let printed = round((at("baseline28") - at("baseline")) / 4.0, 4);
    assert_eq!(printed, at("per_layer"));
    // The value is the difference of two sizes, each printed to 0.01 million, divided by 4 layers.
    assert!((found - printed * 1e6).abs() <= 2500.0, "{found}");
}

#[test]
fn a_norm_of_the_correction_gives_the_sizes_of_laurels_table_5() {
    let (n_layer, width) = LAUREL;
    // The sizes are printed to 0.01 million, and each value is a difference of two sizes.
    for (config, printed) in [
        (LaurelConfig::lr(32), 1.20e6),
        (LaurelConfig::pa(3), 0.02e6),
        (LaurelConfig::rw_lr(32), 1.20e6),
    ] {
        let norm = true;
        let normed = LaurelConfig { norm, ..config };
        let found = normed
            .cost(&Sites::sublayers(width, n_layer, 1))
            .params
            .total() as f64;
        assert!((found - printed).abs() <= 5000.0, "{normed:?}: {found}");
    }
}

pub fn section_3_2_1() -> Value {
    let (n_layer, r, width) = (20, 4, 1000);
    json!({
        "N": n_layer,
        "r": r,
        "D": width,
        "value": LaurelConfig::rw_lr(r).cost(&Sites::sublayers(width, n_layer, 1)).params.total(),
        "printed": formulas::rw_lr_model(n_layer, r, width),
    })
}

#[test]
fn laurels_formulas_count_what_the_configs_do() {
    let (k, r, width) = (3, 4, 10);
    let of = |weights, augmentation| LaurelConfig {
        weights,
        augmentation,
        ..Default::default()
    };
    let rw_per_dimension = LaurelConfig {
        per_dimension: true,
        ..LaurelConfig::rw()
    };
    for (config, formula) in [
        (LaurelConfig::lr(r), formulas::lr(r, width)),
        (LaurelConfig::pa(k), formulas::pa(k)),
    ] {
        let norm = true;
        let normed = LaurelConfig { norm, ..config };
        assert_eq!(
            normed.cost(&Sites::sublayers(width, 1, 1)).params.total(),
            formula + width
        );
    }
    let mut cases = vec![
        (rw_per_dimension, formulas::rw_per_dimension(width)),
        (LaurelConfig::lr(r), formulas::lr(r, width)),
        (LaurelConfig::pa(k), formulas::pa(k)),
        (pa_low_rank(k, r), formulas::pa_low_rank(k, r, width)),
    ];
    for weights in [
        Weights::One,
        Weights::Softmax,
        Weights::DoubleSoftmax,
        Weights::Sigmoid,
        Weights::TwoSigmoids,
        Weights::Raw,
    ] {
        let alone = formulas::rw(weights);
        cases.push((of(weights, Augmentation::Identity), alone));
        cases.push((
            of(weights, Augmentation::LowRankPerStream { k, rank: r }),
            alone + formulas::lr_pa(k, r, width),
        ));
    }
    for (config, params) in cases {
        assert_eq!(
            config.cost(&Sites::sublayers(width, 1, 1)).params.total(),
            params,
            "{config:?}"
        );
    }
}
