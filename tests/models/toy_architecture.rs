//! A new architecture is one file (`tests/models/toy.rs`) and one line of the enum.

use burn::backend::{Autodiff, Flex};
use burn::tensor::backend::Backend;
use residual_zoo::Composition;
use residual_zoo::backend::BackendKind;
use residual_zoo::core::{Architecture, EmbeddingsOf, ModelConfig, PlainModel, contract};
use residual_zoo::data::{Corpus, DataConfig, Source, SyntheticConfig};
use residual_zoo::lab::{Options, Verdict, run_experiment};
use residual_zoo::laurel::LaurelConfig;
use residual_zoo::recurrent::RecurrentConfig;
use residual_zoo::train::{
    Interrupter, RunConfig, RunOptions,
    dashboard::{Display, Title},
    run,
};
use toy::ToyConfig;

use crate::toy;

residual_zoo::zoo! {
    /// The zoo with one more architecture.
    pub enum BiggerZoo {
        /// GPT-2, the baseline.
        Gpt2(residual_zoo::gpt2::Gpt2Config, residual_zoo::gpt2::Block),
        /// The new architecture.
        Toy(crate::toy::ToyConfig, crate::toy::Block),
    }
}

fn toy() -> ToyConfig {
    ToyConfig {
        n_layer: 2,
        width: 60,
        context: 64,
    }
}

fn composed() -> Composition<BiggerZoo> {
    Composition::of(toy())
}

#[test]
fn it_keeps_the_contract() {
    let device = Default::default();
    contract::check::<Autodiff<Flex>, _>(&PlainModel(toy()), &device);
    contract::check::<Autodiff<Flex>, _>(&composed(), &device);
}

#[test]
fn it_composes() {
    let laurel = composed().per_sublayer(LaurelConfig::rw_lr(4));
    let recurrent = composed().recurrent(RecurrentConfig {
        block: 8,
        ..RecurrentConfig::default()
    });
    let device = Default::default();
    contract::check::<Autodiff<Flex>, _>(&laurel, &device);
    contract::check::<Autodiff<Flex>, _>(&recurrent, &device);
    let text = "(model: Composed(
        layers: [Toy(n_layer: 2, width: 32, context: 64)],
        connection: PerSublayer(Laurel(weights: Softmax)),
        recurrence: (block: 16),
    ))";
    let config: RunConfig<Composition<BiggerZoo>> =
        RunConfig::parse(text, "toy.ron".as_ref()).unwrap();
    assert_eq!(config.model.name(), "recurrent (LAuReL-RW (Toy))");
}

#[test]
fn it_trains_from_ron_with_the_same_trainer() {
    let directory = tempfile::tempdir().unwrap();
    let text = "(model: Toy(n_layer: 1, width: 32, context: 32), \
                train: (steps: 60, warmup: 5, learning_rate: 1e-2, validate_every: 60, validate_batches: 4))";
    let mut config: RunConfig<Composition<BiggerZoo>> =
        RunConfig::parse(text, "toy.ron".as_ref()).unwrap();
    assert_eq!(config.model.name(), "Toy");
    config.data.source = Source::Synthetic(SyntheticConfig {
        tokens: 20_000,
        seed: 3,
    });
    let corpus = Corpus::open(&DataConfig {
        ..config.data.clone()
    })
    .unwrap();
    let options = RunOptions {
        directory: directory.path().join("toy"),
        display: Display::Quiet,
        title: Title::default(),
        peak_tflops: None,
        init_from: None,
        allow_config_change: false,
        stop: Interrupter::new(),
    };
    let summary = run::<Autodiff<Flex>, _>(config, &corpus, &options, Default::default()).unwrap();
    // It learns more than the frequencies of words.
    let unigram = corpus.entropy.unwrap().unigram;
    assert!(
        summary.valid_loss < unigram,
        "{} is not below {unigram}",
        summary.valid_loss
    );
}

#[test]
fn the_names_of_its_parameters_do_not_depend_on_the_enum() {
    use residual_zoo::core::params;
    let device = Default::default();
    let alone = toy().build::<Flex>(10, &device).unwrap();
    let in_zoo = composed().build::<Flex>(10, &device).unwrap();
    let names = |list: Vec<params::ParamInfo>| -> Vec<String> {
        list.into_iter().map(|p| p.name).collect()
    };
    assert_eq!(
        names(params::list::<Flex, _>(&alone)),
        names(params::list::<Flex, _>(&in_zoo))
    );
}

#[test]
fn a_zoo_of_ones_own_runs_experiments() {
    let directory = tempfile::tempdir().unwrap();
    let text = r#"(
      title: "Is a wider toy better?",
      about: "Two runs, two seeds.",
      data: (source: Synthetic(tokens: 4000)),
      train: (steps: 4, batch: 2, warmup: 1, validate_batches: 1),
      runs: [
        (name: "toy", model: Toy(n_layer: 1, width: 8, context: 16), vary: (field: "model.width", name: "width", over: [8, 16])),
      ],
      columns: ["parameters", "valid_loss"],
      claims: [
        (says: "It has more parameters", source: "here", test: Higher(quantity: "parameters", run: "toy, width 16", than: "toy, width 8")),
      ],
    )"#;
    let options = Options::new(directory.path(), BackendKind::Flex);
    let run = || {
        let path = "toy.ron".as_ref();
        run_experiment::<Composition<BiggerZoo>>(text, path, Some(2), &options).unwrap()
    };
    let results = run();
    assert_eq!(results.missing(), [""; 0]);
    assert_eq!(results.observations().len(), 4);
    assert_eq!(results.claims()[0].verdict, Verdict::Holds);
    assert!(results.to_markdown("toy-").contains("experiment toy.ron"));
    // Nothing is trained twice.
    assert_eq!(run().observations(), results.observations());
}
