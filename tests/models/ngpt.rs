//! The constraint of nGPT, in any composition: after every optimizer step, its weight vectors have length 1, and
//! nothing else changes.

use std::path::Path;

use burn::backend::{Autodiff, Flex};
use burn::tensor::{Distribution, TensorData};
use residual_zoo::core::params::{self, ParamInfo, Role};
use residual_zoo::core::{ModelConfig as _, Muon, Tensors, contract};
use residual_zoo::data::{Corpus, Source, SyntheticConfig};
use residual_zoo::laurel::LaurelConfig;
use residual_zoo::recurrent::Form;
use residual_zoo::runs::OptimizerKind;
use residual_zoo::streams::HyperConfig;
use residual_zoo::train::Trainer;
use residual_zoo::train::checkpoint::{self, Journal};
use residual_zoo::{ConnectionConfig, ModelConfig as Zoo, RunConfig};
use residual_zoo_testing::zoo::{connections, gpt2, in_turn, ngpt, recurrence};

type B = Autodiff<Flex>;

fn trainer(model: &Zoo, optimizer: OptimizerKind, weight_decay: f64) -> Trainer<B, Zoo> {
    let text = "(model: Gpt2(), train: (batch: 2, warmup: 0, steps: 8, learning_rate: 1e-2, \
                validate_batches: 2))";
    let mut config: RunConfig = RunConfig::parse(text, Path::new("test.ron")).unwrap();
    config.model = model.clone();
    config.train.optimizer = optimizer;
    config.train.weight_decay = weight_decay;
    config.data.source = Source::Synthetic(SyntheticConfig {
        tokens: 20_000,
        seed: 4,
        ..SyntheticConfig::default()
    });
    let corpus = Corpus::open(&config.data).unwrap();
    Trainer::new(config, &corpus, Default::default()).unwrap()
}

fn steps(trainer: &mut Trainer<B, Zoo>, count: usize) {
    for _ in 0..count {
        assert_eq!(trainer.step().unwrap().skipped, None);
    }
}

fn weights(trainer: &Trainer<B, Zoo>) -> Tensors {
    params::export::<B, _>(trainer.model())
}

/// Returns the largest difference between 1 and the length of a vector along the stream, in one matrix of nGPT.
fn off_the_sphere(info: &ParamInfo, data: &TensorData) -> f64 {
    let values: Vec<f64> = data.iter().collect();
    let [rows, columns] = info.shape[..] else {
        panic!("{} is no matrix", info.name);
    };
    let is_rows = info.name.contains("proj") || info.name.contains("tokens");
    let [vectors, length] = match is_rows {
        true => [rows, columns],
        false => [columns, rows],
    };
    let value = |vector: usize, i: usize| match is_rows {
        true => values[vector * columns + i],
        false => values[i * columns + vector],
    };
    let off = (0..vectors).map(|vector| {
        let squares = (0..length).map(|i| value(vector, i).powi(2));
        (squares.sum::<f64>().sqrt() - 1.0).abs()
    });
    off.fold(0.0, f64::max)
}

/// Asserts that all of nGPT's vectors in a model have length 1. Returns the number of their matrices.
fn is_on_the_sphere(trainer: &Trainer<B, Zoo>, what: &str) -> usize {
    let weights = weights(trainer);
    let list = params::list::<B, _>(trainer.model()).into_iter();
    let unit: Vec<_> = list.filter(|info| info.role == Role::Unit).collect();
    for info in &unit {
        let off = off_the_sphere(info, &weights[&info.name]);
        assert!(off < 1e-5, "{what}: {} is off by {off:.1e}", info.name);
        assert!(info.trainable, "{what}: {}", info.name);
    }
    unit.len()
}

#[test]
fn vectors_have_length_1_after_steps_of_every_optimizer() {
    let _alone = contract::alone();
    for optimizer in [
        OptimizerKind::AdamW,
        OptimizerKind::Sgd { momentum: 0.9 },
        OptimizerKind::Muon(Muon::default()),
    ] {
        let mut trainer = trainer(&ngpt(), optimizer, 0.1);
        let what = format!("{optimizer:?}");
        // The embeddings have two matrices, and each of two layers has seven.
        assert_eq!(is_on_the_sphere(&trainer, &what), 2 + 2 * 7);
        let before = weights(&trainer);
        steps(&mut trainer, 3);
        is_on_the_sphere(&trainer, &what);
        for (name, after) in weights(&trainer) {
            assert_ne!(after, before[&name], "{what}: {name} was not trained");
        }
    }
}

#[test]
fn weight_decay_applies_to_no_parameter() {
    let _alone = contract::alone();
    let muon = Muon {
        weight_decay: Some(0.5),
        ..Muon::default()
    };
    let no_decay = Muon {
        weight_decay: Some(0.0),
        ..muon
    };
    for pair in [
        [(OptimizerKind::AdamW, 0.0), (OptimizerKind::AdamW, 0.5)],
        [
            (OptimizerKind::Muon(no_decay), 0.0),
            (OptimizerKind::Muon(muon), 0.5),
        ],
    ] {
        // Other tests draw from the same generator, so both models get their initial weights from one model.
        let first = weights(&trainer(&ngpt(), pair[0].0, 0.0));
        let [without, with] = pair.map(|(optimizer, weight_decay)| {
            let mut trainer = trainer(&ngpt(), optimizer, weight_decay);
            let model = params::import::<B, _>(trainer.model().clone(), first.clone());
            trainer.replace_model(model.unwrap());
            steps(&mut trainer, 2);
            weights(&trainer)
        });
        assert_ne!(first, without);
        assert_eq!(without, with);
    }
}

#[test]
fn a_resumed_run_is_the_same_run() {
    let _alone = contract::alone();
    let new = || trainer(&ngpt(), OptimizerKind::AdamW, 0.1);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("checkpoint");
    let mut whole = new();
    steps(&mut whole, 2);
    checkpoint::save(&whole, &Journal::default(), &path).unwrap();
    steps(&mut whole, 2);
    let mut resumed = new();
    checkpoint::load(&mut resumed, &path).unwrap();
    steps(&mut resumed, 2);
    assert_eq!(weights(&resumed), weights(&whole));
}

/// Returns compositions with nGPT, each with its number of unit matrices.
fn composed() -> Vec<(&'static str, Zoo, usize)> {
    vec![
        (
            "nGPT, then GPT-2",
            in_turn([ngpt(), gpt2()]).per_sublayer(LaurelConfig::rw_lr(3)),
            2 + 7,
        ),
        (
            "GPT-2, then nGPT",
            in_turn([gpt2(), ngpt()]).per_layer(LaurelConfig::rw_lr(3)),
            7,
        ),
        (
            "hyper-connections around nGPT",
            ngpt().per_sublayer(HyperConfig::default()),
            2 + 2 * 7,
        ),
        (
            "recurrent nGPT",
            ngpt().recurrent(recurrence(8, Form::Paper)),
            2 + 2 * 7,
        ),
    ]
}

#[test]
fn in_a_composition_only_the_vectors_of_ngpt_are_constrained() {
    for (name, config, unit) in composed() {
        let device = Default::default();
        let model = config.build::<B>(23, &device).unwrap();
        let from = Distribution::Normal(0.0, 0.5);
        let model = contract::redrawn::<B, _>(model, from, 3);
        let (before, list) = (params::export::<B, _>(&model), params::list::<B, _>(&model));
        let model = config.constrain(model);
        let after = params::export::<B, _>(&model);
        assert_eq!(params::list::<B, _>(&model), list, "{name}");
        let mut changed = 0;
        for info in list {
            let [before, after] = [&before, &after].map(|all| &all[&info.name]);
            if before == after {
                assert_ne!(info.role, Role::Unit, "{name}: {}", info.name);
                continue;
            }
            assert_eq!(info.role, Role::Unit, "{name}: {}", info.name);
            assert!(off_the_sphere(&info, after) < 1e-5, "{name}: {}", info.name);
            changed += 1;
        }
        assert_eq!(changed, unit, "{name}");
    }
}

#[test]
fn compositions_stay_on_the_sphere_in_training() {
    let _alone = contract::alone();
    for (name, config, unit) in composed() {
        let mut trainer = trainer(&config, OptimizerKind::AdamW, 0.1);
        steps(&mut trainer, 2);
        assert_eq!(is_on_the_sphere(&trainer, name), unit, "{name}");
    }
}

/// Returns the name of `model`'s connection in RON.
fn kind(model: &Zoo) -> &'static str {
    let placed = serde_json::to_value(&model.connection).unwrap();
    let connection = placed.as_object().unwrap().values().next().unwrap();
    let name = connection.as_object().unwrap().keys().next().unwrap();
    let names = ConnectionConfig::NAMES.iter().map(|(name, _)| *name);
    names.into_iter().find(|known| known == name).unwrap()
}

#[test]
fn every_connection_around_ngpt_keeps_the_contract() {
    // The first sublayer of an x_0 mix reads (r + m) x_0. nGPT normalises this factor away, so r and m of that sublayer
    // have no gradient. The first layer with a U-net skip reads (1 + w_0) x_n. MUDD needs attention that reads three
    // inputs. Shared values need attention that can lack its value projection.
    let left_out = ["InitialMix", "Skips", "Mudd", "ValueShared"];
    // Tests one form of each connection. The contract of all forms is tested around a GPT-2.
    let mut seen: Vec<&str> = left_out.into();
    let others = connections().into_iter().filter(|(_, model)| {
        let kind = kind(model);
        let is_new = !seen.contains(&kind);
        seen.push(kind);
        is_new
    });
    for (name, around) in others {
        println!("{name}");
        let config = Zoo {
            layers: ngpt().layers,
            ..around
        };
        contract::check::<B, _>(&config, &Default::default());
    }
}
