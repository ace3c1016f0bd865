//! Reproduces the tables of the recurrent transformer.

use residual_zoo::ModelConfig as Zoo;
use residual_zoo::core::{ModelConfig, Vocabulary};
use residual_zoo::gpt2::Gpt2Config;
use residual_zoo::recurrent::{RecurrentConfig, formulas};
use serde_json::{Value, json};

use super::{figure, percent, round};

/// Returns the model of Table 1 with `n_layer` layers.
pub fn image(n_layer: usize) -> Gpt2Config {
    base(n_layer, 1024, 32, 4)
}

/// Returns the model of Table 3.
fn copy() -> Gpt2Config {
    base(1, 4128, 96, 6)
}

/// Returns the model of Table 5 with `n_layer` layers.
fn shakespeare(n_layer: usize) -> Gpt2Config {
    base(n_layer, 256, 384, 6)
}

pub fn base(n_layer: usize, context: usize, width: usize, n_head: usize) -> Gpt2Config {
    Gpt2Config {
        n_layer,
        n_head,
        width,
        context,
        bias: false,
        ..Default::default()
    }
}

pub fn table_2() -> Value {
    let params = |config: Zoo| config.cost(Vocabulary::new(256, 10)).params.total();
    json!({
        "regular_4": params(Zoo::of(image(4))),
        "regular_1": params(Zoo::of(image(1))),
        "recurrent_1_with_alpha": params(Zoo::of(image(1)).recurrent(RecurrentConfig::image())),
    })
}

pub fn table_3() -> Value {
    let recurrent = |recurrence| Zoo::of(copy()).recurrent(recurrence).cost(16).params;
    let fixed = recurrent(RecurrentConfig::selective_copy());
    json!({
        "copy": fixed.total(),
        "with_alpha": recurrent(RecurrentConfig::copy()).total(),
        "of_which_positions": fixed.embedding - 16 * copy().width,
    })
}

pub fn table_6() -> Value {
    let params = |config: Zoo| config.cost(65).params.total();
    let recurrent = |of| params(Zoo::of(of).recurrent(RecurrentConfig::shakespeare()));
    let long = Gpt2Config {
        context: 1024,
        ..shakespeare(1)
    };
    json!({
        "regular_6": params(Zoo::of(shakespeare(6))),
        "regular_1": params(Zoo::of(shakespeare(1))),
        "recurrent_1_with_alpha": recurrent(shakespeare(1)),
        "recurrent_1_with_1024_positions": recurrent(long),
    })
}

fn regular_operations(of: &Gpt2Config) -> usize {
    formulas::regular_operations(of.n_layer, of.context, of.width)
}

fn recurrent_operations(of: &Gpt2Config, recurrence: &RecurrentConfig) -> usize {
    formulas::recurrent_operations(of.n_layer, of.context, of.width, recurrence.block)
}

/// Returns the copy model at the width that Table 4 implies.
fn narrow_copy() -> Gpt2Config {
    Gpt2Config {
        width: 32,
        ..copy()
    }
}

pub fn operations() -> Value {
    let values = [
        regular_operations(&image(4)),
        regular_operations(&image(1)),
        recurrent_operations(&image(1), &RecurrentConfig::image()),
        recurrent_operations(&copy(), &RecurrentConfig::copy()),
        recurrent_operations(&narrow_copy(), &RecurrentConfig::copy()),
        regular_operations(&shakespeare(6)),
        regular_operations(&shakespeare(1)),
        recurrent_operations(&shakespeare(1), &RecurrentConfig::shakespeare()),
    ];
    let row = |(i, value): (usize, usize)| {
        let printed = figure(&format!("/recurrent/operations/rows/{i}/printed"));
        json!({ "value": value, "relative_percent": percent(value as f64, printed) })
    };
    values.into_iter().enumerate().map(row).collect()
}

/// According to section 6.2, the copy model needs about 1 % of the operations of a transformer with four layers.
#[test]
fn the_copiers_share_of_operations_is_one_or_two_percent() {
    let share = |of: Gpt2Config| {
        let four = Gpt2Config {
            n_layer: 4,
            ..of.clone()
        };
        let found = recurrent_operations(&of, &RecurrentConfig::copy()) as f64;
        round(100.0 * found / regular_operations(&four) as f64, 2)
    };
    assert_eq!((share(narrow_copy()), share(copy())), (1.15, 1.89));
}
