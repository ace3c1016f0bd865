use std::collections::BTreeMap;
use std::path::Path;

use burn::backend::Flex;
use burn::tensor::{Tensor, TensorData};
use residual_zoo_core::ops::muon::{Hidden, muon};
use residual_zoo_core::ops::optimizer::{AdamW, adamw, adamw_plain};
use residual_zoo_core::params::{self, Role};
use residual_zoo_core::{Muon, MuonForm, Mup};
use residual_zoo_gpt2::Gpt2Base;
use residual_zoo_runs::OptimizerKind;
use residual_zoo_runs::checkpoint::read_tensors;
use serde_json::Value;

use crate::tests::{B, config, my_turn, trainer, weights};

/// A trace of five steps, and its settings.
pub(crate) type Trace = (BTreeMap<String, TensorData>, Value);

pub(crate) fn trace(name: &str) -> Trace {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/optim");
    let (tensors, metadata) = read_tensors(&folder.join(format!("{name}.safetensors"))).unwrap();
    (tensors, serde_json::from_str(&metadata["config"]).unwrap())
}

/// Returns the matrix `[out, in]` of a trace as `[1, in, out]`.
fn matrix(data: &TensorData) -> Tensor<Flex, 3> {
    Tensor::<Flex, 2>::from_data(data.clone(), &Default::default())
        .transpose()
        .unsqueeze()
}

pub(crate) fn assert_close<const D: usize>(
    found: Tensor<Flex, D>,
    expected: Tensor<Flex, D>,
    what: &str,
) {
    let difference = (found - expected).abs().max().into_scalar();
    assert!(difference < 1e-6, "{what}: differs by {difference}");
}

#[test]
fn muon_follows_the_traces_of_all_published_forms() {
    let names = [
        "keller",
        "keller_decay",
        "plain_momentum",
        "one_step",
        "moonshot",
        "nanochat",
    ];
    for name in names {
        let (trace, settings) = trace(&format!("muon_{name}"));
        let number = |key: &str| settings[key].as_f64().unwrap();
        let form = match settings["factor"].as_str().unwrap() {
            "keller" => MuonForm::Keller,
            "moonshot" => MuonForm::Moonlight,
            _ => MuonForm::Nanochat {
                beta_2: number("beta2"),
            },
        };
        let settings = Muon {
            learning_rate: Some(number("lr")),
            momentum: number("momentum"),
            nesterov: settings["nesterov"].as_bool().unwrap(),
            weight_decay: Some(number("decay")),
            steps: settings["steps"].as_u64().map_or(5, |steps| steps as usize),
            form,
        };
        settings.validate().unwrap();
        let [lr, decay] = [settings.learning_rate, settings.weight_decay].map(Option::unwrap);
        for shape in ["wide", "tall", "square"] {
            let at = |what: &str, t: usize| matrix(&trace[&format!("{shape}.{what}.{t}")]);
            let w = at("w", 0);
            let squares = settings.squares(w.dims());
            let mut hidden = Hidden {
                b: w.zeros_like(),
                squares: squares.map(|shape| Tensor::zeros(shape, &w.device())),
                w,
            };
            for t in 1..=5 {
                hidden = muon(&settings, [lr, decay], hidden, at("g", t));
                assert_close(
                    hidden.w.clone(),
                    at("w", t),
                    &format!("{name}, {shape}, step {t}"),
                );
            }
        }
    }
}

#[test]
fn adamw_follows_its_trace() {
    let (trace, settings) = trace("adamw");
    let number = |key: &str| settings[key].as_f64().unwrap();
    let beta = |i: usize| settings["betas"][i].as_f64().unwrap();
    for shape in ["wide", "vector"] {
        let at = |what: &str, t: usize| {
            let data = &trace[&format!("{shape}.{what}.{t}")];
            let count = data.num_elements();
            let mut data = data.clone();
            data.shape = [count].into();
            Tensor::<Flex, 1>::from_data(data, &Default::default())
        };
        let [w, zero] = [at("w", 0), at("w", 0).zeros_like()];
        let mut plain = [w, zero.clone(), zero];
        let mut fast = plain.clone();
        for time in 1..=5 {
            let step = AdamW {
                lr: number("lr"),
                beta_1: beta(0),
                beta_2: beta(1),
                eps: number("eps"),
                weight_decay: number("decay"),
                scale: 1.0,
                time,
            };
            let with_gradient = |[w, m, v]: [_; 3]| [w, m, v, at("g", time)];
            plain = adamw_plain(step, with_gradient(plain));
            fast = adamw(vec![(step, with_gradient(fast))]).remove(0);
            for form in [&plain, &fast] {
                assert_close(
                    form[0].clone(),
                    at("w", time),
                    &format!("{shape}, step {time}"),
                );
            }
        }
    }
}

/// Returns Keller Jordan's Muon without momentum, so that a step at learning rate 1 has singular values near 1.
fn one_step() -> Muon {
    Muon {
        learning_rate: Some(1.0),
        momentum: 0.0,
        nesterov: false,
        weight_decay: Some(0.0),
        form: MuonForm::Keller,
        ..Muon::default()
    }
}

#[test]
fn muon_takes_each_hidden_matrix_and_adamw_the_rest() {
    let _turn = my_turn();
    let adamw = config();
    let mut hidden = adamw.clone();
    hidden.train.optimizer = OptimizerKind::Muon(one_step());
    // The learning rate of the first warmup step, as a fraction of the peak.
    let share = trainer(&hidden).learning_rate() / hidden.train.learning_rate;
    let [before, by_adamw, by_muon] = [None, Some(&adamw), Some(&hidden)].map(|config| {
        let mut trainer = trainer(config.unwrap_or(&adamw));
        if config.is_some() {
            trainer.step().unwrap();
        }
        weights(trainer.model())
    });
    let mut matrices = 0;
    for p in params::list::<B, _>(trainer(&adamw).model()) {
        let Some(of_p) = p.matrices else {
            assert_eq!(by_muon[&p.name], by_adamw[&p.name], "{}", p.name);
            assert_ne!(p.role, Role::Weight, "{}", p.name);
            continue;
        };
        assert_eq!(p.role, Role::Weight, "{}", p.name);
        let change: Vec<f32> = by_muon[&p.name]
            .iter()
            .zip(&before[&p.name])
            .map(|(after, before)| ((after - before) / share) as f32)
            .collect();
        let change = Tensor::<Flex, 1>::from_floats(&change[..], &Default::default());
        let change = of_p.split(change);
        let [count, d_in, d_out] = change.dims();
        let scale = (d_out as f32 / d_in as f32).max(1.0);
        // The sum of squared singular values, for each matrix by itself.
        let squares = change.square().sum_dim(1).sum_dim(2).into_data();
        for sum in squares.iter::<f32>() {
            let mean = sum / scale / d_in.min(d_out) as f32;
            assert!((0.4..1.4).contains(&mean), "{}: {mean}", p.name);
        }
        matrices += count;
    }
    assert_eq!(matrices, 2 * 6, "q, k, v, proj, fc and proj of two layers");
}

#[test]
fn muon_is_refused_beside_rates_of_mup() {
    let _turn = my_turn();
    let mut config = config();
    config.train.optimizer = OptimizerKind::Muon(Muon::default());
    config.model.0.mup = Some(Mup {
        base: Gpt2Base {
            width: config.model.0.width / 2,
            n_head: 1,
            d_ff: None,
        },
        init_std: 0.5,
        input: 1.0,
        attention: 1.0,
        output: 1.0,
    });
    let corpus = residual_zoo_data::Corpus::open(&config.data).unwrap();
    let made = crate::Trainer::<B, _>::new(config, &corpus, Default::default());
    let error = made.err().unwrap().to_string();
    assert!(
        error.contains("`train.optimizer`") && error.contains("`mup`"),
        "{error}"
    );
}

#[test]
fn settings_of_muon_that_are_impossible_are_named() {
    let with = |change: fn(&mut Muon)| {
        let mut muon = Muon::default();
        change(&mut muon);
        muon.validate().unwrap_err().to_string()
    };
    let errors = [
        ("learning_rate", with(|m| m.learning_rate = Some(0.0))),
        ("momentum", with(|m| m.momentum = 1.0)),
        ("weight_decay", with(|m| m.weight_decay = Some(-1.0))),
        ("steps", with(|m| m.steps = 0)),
        (
            "form.beta_2",
            with(|m| m.form = MuonForm::Nanochat { beta_2: 1.0 }),
        ),
        (
            "steps",
            with(|m| (m.steps, m.form) = (3, MuonForm::Nanochat { beta_2: 0.9 })),
        ),
    ];
    for (field, error) in errors {
        assert!(error.contains(&format!("`{field}`")), "{error}");
    }
}
