//! μP: the parameters that have their own learning rates, and the coordinate check (Yang et al. 2022, Appendix D.1).

use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};
use residual_zoo::core::contract::alone;
use residual_zoo::core::params::{self, Role};
use residual_zoo::core::{
    Architecture, Embeddings, Frame, ModelConfig, Mup, Plain, PlainModel, ResidualBlock, Seen,
    Stream, Tensors, Transfer as _,
};
use residual_zoo::data::{Corpus, DataConfig, Source, SyntheticConfig};
use residual_zoo::gpt2::{Gpt2Base, Gpt2Config};
use residual_zoo::rmt::{RmtBase, RmtConfig};
use residual_zoo::runs::{MinLearningRate, RunConfig, TrainConfig};
use residual_zoo::tokenformer::{TokenFormerBase, TokenFormerConfig};
use residual_zoo::train::Trainer;

/// Returns the settings of μP with this base.
fn mup<S>(base: S) -> Mup<S> {
    Mup {
        base,
        init_std: 0.6,
        input: 1.0,
        attention: 1.0,
        output: 1.0,
    }
}

/// Returns a model that is `m` times as wide as the smallest. If μP is on, the smallest model is its base.
fn gpt2(m: usize, is_mup: bool) -> Gpt2Config {
    let base = Gpt2Base {
        width: 64,
        n_head: 4,
        d_ff: None,
    };
    Gpt2Config {
        n_layer: 2,
        n_head: 4 * m,
        width: 64 * m,
        context: 16,
        bias: false,
        tied: false,
        mup: is_mup.then(|| mup(base)),
        ..Gpt2Config::default()
    }
}

/// Returns an RMT. `m` must be a square.
fn rmt(m: usize, is_mup: bool) -> RmtConfig {
    let root = m.isqrt();
    let base = RmtBase {
        d_k: 16,
        d_v: 16,
        rank: 4,
        d_ff: None,
    };
    RmtConfig {
        n_layer: 2,
        d_k: 16 * root,
        d_v: 16 * root,
        rank: 4 * root,
        context: 16,
        scaled_outputs: true,
        mup: is_mup.then(|| mup(base)),
        ..RmtConfig::default()
    }
}

fn tokenformer(m: usize, is_mup: bool) -> TokenFormerConfig {
    let base = TokenFormerBase {
        width: 64,
        n_head: 4,
        n_attn: 64,
        n_ffn: 256,
    };
    TokenFormerConfig {
        n_layer: 2,
        n_head: 4 * m,
        width: 64 * m,
        context: 16,
        mup: is_mup.then(|| mup(base)),
        ..TokenFormerConfig::default()
    }
}

/// Returns the names and roles of a model's parameters.
fn roles<A: Architecture>(config: &A) -> Vec<(String, Role)> {
    let model = config.build::<Flex>(11, &Default::default()).unwrap();
    let list = params::list::<Flex, _>(&model).into_iter();
    list.filter(|p| p.trainable)
        .map(|p| (p.name, p.role))
        .collect()
}

#[test]
fn hidden_weights_are_slower_in_wider_models_and_nothing_else_is() {
    for (name, role) in roles(&gpt2(2, true)) {
        let expected = if role == Role::Weight { 0.5 } else { 1.0 };
        assert_eq!(gpt2(2, true).rate(&name), expected, "{name}");
        assert_eq!(gpt2(1, true).rate(&name), 1.0, "{name}");
        assert_eq!(gpt2(2, false).rate(&name), 1.0, "{name}");
    }
    for (name, role) in roles(&tokenformer(2, true)) {
        let expected = if role == Role::Weight { 0.5 } else { 1.0 };
        assert_eq!(tokenformer(2, true).rate(&name), expected, "{name}");
        assert_eq!(tokenformer(2, false).rate(&name), 1.0, "{name}");
    }
    for (name, role) in roles(&rmt(4, true)) {
        // W_1 and W_2 read four times as many features, and keys read twice as many.
        let expected = match name.rsplit('.').next() {
            Some("w_1" | "w_2") => 0.25,
            _ if role == Role::Weight || name.ends_with(".key") => 0.5,
            _ => 1.0,
        };
        assert_eq!(rmt(4, true).rate(&name), expected, "{name}");
        assert_eq!(rmt(4, false).rate(&name), 1.0, "{name}");
    }
}

#[test]
fn a_composition_has_the_rates_of_its_layers() {
    use residual_zoo::{ModelConfig as Zoo, laurel::LaurelConfig};
    // Both models have 256 features, so that both can be layers of one model.
    let other = RmtConfig {
        n_layer: 2,
        d_k: 16,
        d_v: 8,
        mup: Some(mup(RmtBase {
            d_k: 4,
            d_v: 8,
            rank: 12,
            d_ff: None,
        })),
        context: 16,
        ..RmtConfig::default()
    };
    let model = Zoo::in_turn([gpt2(2, true).into(), other.into()]).per_layer(LaurelConfig::lr(2));
    let model = match model.validate() {
        Ok(()) => model,
        Err(error) => panic!("{error}"),
    };
    let built = model.build::<Flex>(11, &Default::default()).unwrap();
    let mut seen = 0;
    for p in params::list::<Flex, _>(&built) {
        let rate = model.rate(&p.name);
        let expected = match p.name.as_str() {
            name if name.contains(".connection.") => 1.0,
            name if name.ends_with("qkv.weight") => 0.5,
            name if name.ends_with("r_q") => 0.25,
            _ => continue,
        };
        assert_eq!(rate, expected, "{}", p.name);
        seen += 1;
    }
    // A and B of two connections, and one parameter in each layer.
    assert_eq!(seen, 6);
}

/// The parts of a model, under their names in the model.
#[derive(Module, Debug)]
struct Probe<B: Backend, E, R> {
    embeddings: E,
    block: Layers<B, R>,
}

#[derive(Module, Debug)]
struct Layers<B: Backend, R> {
    layers: Vec<R>,
    _backend: std::marker::PhantomData<B>,
}

impl<B: Backend, E: Embeddings<B>, R: ResidualBlock<B>> Probe<B, E, R> {
    /// Returns the stream before and after every layer, then the logits.
    fn coordinates(&self, ids: Tensor<B, 2, Int>) -> Vec<Tensor<B, 3>> {
        let mut stream = Stream::new(self.embeddings.embed(ids, &Seen::default()));
        let mut found = vec![stream.x.clone()];
        for layer in &self.block.layers {
            stream = layer.forward(stream, None);
            found.push(stream.x.clone());
        }
        found.push(self.embeddings.unembed(stream.x));
        found
    }
}

const STEPS: usize = 4;

/// Returns the root mean square of the change of every coordinate, after a few steps at a constant learning rate.
fn changes<A: Architecture>(config: A, seed: u64) -> Vec<f64> {
    let run = RunConfig {
        model: PlainModel(config.clone()),
        data: DataConfig {
            source: Source::Synthetic(SyntheticConfig {
                tokens: 20_000,
                seed: 4,
                ..SyntheticConfig::default()
            }),
            ..DataConfig::default()
        },
        train: TrainConfig {
            seed,
            batch: 4,
            warmup: 0,
            steps: 100,
            learning_rate: 1e-2,
            min_learning_rate: MinLearningRate::Ratio(1.0),
            weight_decay: 0.0,
            ..TrainConfig::default()
        },
    };
    let corpus = Corpus::open(&run.data).unwrap();
    let mut trainer = Trainer::<Autodiff<Flex>, _>::new(run, &corpus, Default::default()).unwrap();
    let ids = Tensor::<Flex, 1, Int>::arange(0..16, &Default::default()).reshape([1, 16]);
    let coordinates = |weights: Tensors| {
        let (device, frame) = (Default::default(), Frame::default());
        let layer = |i| config.block::<Flex, Plain>(i, &frame, Plain::default, &device);
        let probe = Probe {
            embeddings: config.embeddings::<Flex>(corpus_vocabulary(&corpus), &frame, &device),
            block: Layers {
                layers: (0..config.shape().n_layer).map(layer).collect(),
                _backend: std::marker::PhantomData,
            },
        };
        let probe = params::import::<Flex, _>(probe, weights).unwrap();
        probe.coordinates(ids.clone())
    };
    let before = coordinates(params::export(&trainer.inner_model()));
    for _ in 0..STEPS {
        trainer.step().unwrap();
    }
    let after = coordinates(params::export(&trainer.inner_model()));
    let change = |(a, b): (Tensor<Flex, 3>, Tensor<Flex, 3>)| {
        let mean = (a - b).square().mean().into_data();
        mean.iter::<f64>().next().unwrap().sqrt()
    };
    after.into_iter().zip(before).map(change).collect()
}

fn corpus_vocabulary(corpus: &Corpus) -> residual_zoo::core::Vocabulary {
    residual_zoo::runs::vocabulary(corpus)
}

/// Returns the exponents of the width with which the coordinates change, from the smallest model to a model that is 16
/// times as wide. The exponents are means over three seeds, because the initial weights are random, and other tests of
/// this process draw from the same generator.
fn exponents<A: Architecture>(model: impl Fn(usize) -> A) -> Vec<f64> {
    let _alone = alone();
    let exponents = [1, 2, 3].map(|seed| {
        let (narrow, wide) = (changes(model(1), seed), changes(model(16), seed));
        let exponent = |(wide, narrow): (f64, f64)| (wide / narrow).ln() / 16f64.ln();
        wide.into_iter()
            .zip(narrow)
            .map(exponent)
            .collect::<Vec<_>>()
    });
    let mean = |i| {
        exponents
            .iter()
            .map(|of_seed: &Vec<f64>| of_seed[i])
            .sum::<f64>()
            / 3.0
    };
    (0..exponents[0].len()).map(mean).collect()
}

fn check(name: &str, with: Vec<f64>, without: Vec<f64>) {
    println!("{name}: {with:.2?} with, {without:.2?} without");
    // A wrong power of the width in an initialisation, learning rate or multiplier is wrong by at least a square root,
    // which is an exponent of ½.
    for exponent in &with {
        assert!(exponent.abs() < 0.25, "{name}, with: {with:?}");
    }
    let drifts = without.iter().any(|exponent| *exponent > 0.5);
    assert!(drifts, "{name}, without: {without:?}");
}

#[test]
fn coordinates_of_gpt2_change_alike_at_widths_64_and_1024() {
    check(
        "GPT-2",
        exponents(|m| gpt2(m, true)),
        exponents(|m| gpt2(m, false)),
    );
}

#[test]
fn coordinates_of_the_rmt_change_alike_with_64_and_1024_features() {
    check(
        "RMT",
        exponents(|m| rmt(m, true)),
        exponents(|m| rmt(m, false)),
    );
}

#[test]
fn coordinates_of_tokenformer_change_alike_at_widths_64_and_1024() {
    let exponents = |is_mup| exponents(|m| tokenformer(m, is_mup));
    check("TokenFormer", exponents(true), exponents(false));
}

#[test]
fn a_start_beside_mup_is_refused() {
    fn refused(config: impl Architecture) {
        let error = config.validate().unwrap_err().to_string();
        assert!(
            error.contains("`mup` sets the initial weights; leave one out"),
            "{error}"
        );
    }
    refused(Gpt2Config {
        init: Some(residual_zoo::gpt2::Init::Fixed(0.02)),
        ..gpt2(1, true)
    });
    refused(RmtConfig {
        init_std: 0.08,
        ..rmt(1, true)
    });
    refused(TokenFormerConfig {
        init: residual_zoo::tokenformer::PairInit::Fixed(0.02),
        ..tokenformer(1, true)
    });
}
