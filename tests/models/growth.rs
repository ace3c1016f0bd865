//! Models grow from the checkpoint of a smaller model: their weights and the optimizer's moments.

use std::path::Path;

use burn::backend::{Autodiff, Flex};
use burn::tensor::TensorData;
use residual_zoo::core::contract::alone;
use residual_zoo::core::{Transfer as _, params};
use residual_zoo::data::{Corpus, Source, SyntheticConfig};
use residual_zoo::gpt2::Gpt2Config;
use residual_zoo::laurel::LaurelConfig;
use residual_zoo::recurrent::{Alpha, RecurrentConfig};
use residual_zoo::rmt::RmtConfig;
use residual_zoo::tokenformer::{TokenFormerConfig, from_transformer};
use residual_zoo::train::Trainer;
use residual_zoo::train::checkpoint::{self, Journal};
use residual_zoo::train::optimizer::Moments;
use residual_zoo::{ModelConfig, RunConfig};

type B = Autodiff<Flex>;

fn small() -> TokenFormerConfig {
    TokenFormerConfig {
        n_layer: 1,
        n_head: 2,
        width: 16,
        n_attn: Some(11),
        n_ffn: Some(33),
        context: 24,
        ..TokenFormerConfig::default()
    }
}

fn trainer(model: ModelConfig) -> Trainer<B, ModelConfig> {
    let text = "(model: Gpt2(), train: (batch: 4, warmup: 2, steps: 40, learning_rate: 1e-2, \
                validate_batches: 4))";
    let mut config: RunConfig = RunConfig::parse(text, Path::new("test.ron")).unwrap();
    config.model = model;
    config.data.source = Source::Synthetic(SyntheticConfig {
        tokens: 20_000,
        seed: 4,
        ..SyntheticConfig::default()
    });
    let corpus = Corpus::open(&config.data).unwrap();
    Trainer::new(config, &corpus, Default::default()).unwrap()
}

fn steps(trainer: &mut Trainer<B, ModelConfig>, count: usize) {
    for _ in 0..count {
        trainer.step().unwrap();
    }
}

fn numbers(data: &TensorData) -> Vec<f64> {
    data.iter().collect()
}

fn grows(compose: impl Fn(TokenFormerConfig) -> ModelConfig) {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("checkpoint");
    let mut trained = trainer(compose(small()));
    let untrained_loss = trained.validate().unwrap().loss;
    steps(&mut trained, 20);
    checkpoint::save(&trained, &Journal::default(), &directory).unwrap();

    let config = small().grown(17, 40).unwrap();
    let mut grown = trainer(compose(config));
    checkpoint::load_weights(&mut grown, &trained.config.model, &directory).unwrap();
    let (before, after) = (
        trained.validate().unwrap().loss,
        grown.validate().unwrap().loss,
    );
    assert!(
        before < untrained_loss - 0.3,
        "it was not trained: {before}"
    );
    assert!((before - after).abs() < 1e-5, "{before} became {after}");

    let old = trained.optimizer.export(trained.model());
    let new = grown.optimizer.export(grown.model());
    let mut longer = 0;
    fn second(moments: &Moments) -> &TensorData {
        moments.second.as_ref().expect("those of AdamW")
    }
    for (name, old) in &old {
        let new = &new[name];
        assert_eq!(new.steps, 20, "{name}");
        for (old, new) in [(&old.first, &new.first), (second(old), second(new))] {
            let (old, new) = (numbers(old), numbers(new));
            assert_eq!(old, new[..old.len()], "{name}");
            assert!(new[old.len()..].iter().all(|x| *x == 0.0), "{name}");
            longer += usize::from(new.len() > old.len());
        }
    }
    // The keys and values of five Pattentions grow, with two moments each.
    assert_eq!((old.len(), longer), (new.len(), 20));

    // The schedule starts from the beginning, and the appended pairs learn.
    assert_eq!(grown.progress.step, 0);
    steps(&mut grown, 20);
    assert!(grown.validate().unwrap().loss < after);
    let again = grown.optimizer.export(grown.model());
    let keys = again.iter().find(|(name, _)| name.ends_with("ffn.keys"));
    let first = numbers(&keys.unwrap().1.first);
    assert!(first[33 * 16..].iter().any(|x| *x != 0.0));
}

#[test]
fn a_checkpoint_and_its_moments_grow() {
    let _alone = alone();
    grows(ModelConfig::of);
}

#[test]
fn a_checkpoint_grows_inside_a_composition() {
    let _alone = alone();
    grows(|config| ModelConfig::of(config).per_layer(LaurelConfig::rw_lr(4)));
}

#[test]
fn a_parameter_that_took_no_part_in_the_loss_starts_anew() {
    let _alone = alone();
    // With two blocks there is no carry yet, so α has never had a gradient.
    let of = ModelConfig::of(small()).recurrent(RecurrentConfig {
        block: 12,
        ..RecurrentConfig::default()
    });
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("checkpoint");
    let mut trained = trainer(of.clone());
    steps(&mut trained, 2);
    checkpoint::save(&trained, &Journal::default(), &directory).unwrap();
    let mut restored = trainer(of.clone());
    checkpoint::load(&mut restored, &directory).unwrap();
    assert_eq!(restored.progress.step, 2);
    assert_eq!(
        restored.validate().unwrap().loss,
        trained.validate().unwrap().loss
    );

    // The config fixes α at another value. The checkpoint's value is kept, and the name of α is returned.
    let fixed = ModelConfig::of(small()).recurrent(RecurrentConfig {
        block: 12,
        alpha: Alpha::Fixed(0.25),
        ..RecurrentConfig::default()
    });
    let mut fixed = trainer(fixed);
    let kept = checkpoint::load_weights(&mut fixed, &of, &directory).unwrap();
    assert_eq!(kept, ["block.alpha"]);

    // Without the moments file, all moments are fresh.
    std::fs::remove_file(directory.join("optimizer.safetensors")).unwrap();
    let mut fresh = trainer(of.clone());
    checkpoint::load_weights(&mut fresh, &of, &directory).unwrap();
    assert!(fresh.optimizer.export(fresh.model()).is_empty());
    assert_eq!(
        fresh.validate().unwrap().loss,
        trained.validate().unwrap().loss
    );
}

#[test]
fn weights_alone_leave_the_moments_behind() {
    let _alone = alone();
    let mut trained = trainer(ModelConfig::of(small()));
    steps(&mut trained, 3);
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("checkpoint");
    checkpoint::save(&trained, &Journal::default(), &directory).unwrap();
    let mut fresh = trainer(ModelConfig::of(small()));
    checkpoint::load_parameters(&mut fresh, &trained.config.model, &directory).unwrap();
    assert!(fresh.optimizer.export(fresh.model()).is_empty());
    assert_eq!(
        fresh.validate().unwrap().loss,
        trained.validate().unwrap().loss
    );
}

#[test]
fn a_gpt2_of_twice_the_width_starts_near_the_loss_of_the_narrow_one() {
    let _alone = alone();
    let narrow = Gpt2Config {
        n_layer: 2,
        n_head: 2,
        width: 16,
        context: 24,
        ..Gpt2Config::default()
    };
    let wide = Gpt2Config {
        n_head: 4,
        width: 32,
        ..narrow.clone()
    };
    let mut trained = trainer(ModelConfig::of(narrow.clone()));
    steps(&mut trained, 30);
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("checkpoint");
    checkpoint::save(&trained, &Journal::default(), &directory).unwrap();
    let mut widened = trainer(ModelConfig::of(wide.clone()));
    let fresh = widened.validate().unwrap().loss;
    let narrow_config = narrow;
    let narrow = ModelConfig::of(narrow_config.clone());
    checkpoint::load_parameters(&mut widened, &narrow, &directory).unwrap();
    // Net2Net adds noise of 1 % between copies, which hardly changes the loss.
    let (before, after) = (
        trained.validate().unwrap().loss,
        widened.validate().unwrap().loss,
    );
    assert!(
        (after - before).abs() < 0.02 * (fresh - before),
        "{before} {after} {fresh}"
    );
    let before = widened.validate().unwrap().loss;
    steps(&mut widened, 20);
    assert!(widened.validate().unwrap().loss < before);

    let mut tokenformer = trainer(ModelConfig::of(small()));
    let error = checkpoint::load_parameters(&mut tokenformer, &narrow, &directory).unwrap_err();
    assert!(
        error.to_string().contains("gives 16 pairs; set it to that"),
        "{error}"
    );
    let mut rmt = trainer(ModelConfig::of(RmtConfig {
        n_layer: 1,
        d_k: 4,
        d_v: 4,
        rank: 1,
        context: 24,
        ..RmtConfig::default()
    }));
    let error = checkpoint::load_parameters(&mut rmt, &narrow, &directory).unwrap_err();
    let expected = "is RMT, which cannot start from weights of GPT-2";
    assert!(error.to_string().contains(expected), "{error}");

    // The moments of a widened matrix do not fit, so nothing is loaded.
    let mut widened = trainer(ModelConfig::of(wide.clone()));
    let before = widened.validate().unwrap().loss;
    let error = checkpoint::load_weights(&mut widened, &narrow, &directory).unwrap_err();
    assert!(error.to_string().contains("use grow-fresh"), "{error}");
    assert_eq!(widened.validate().unwrap().loss, before);

    // Only plain models are widened.
    let laurel = |config| ModelConfig::of(config).per_sublayer(LaurelConfig::rw());
    let mut composed = trainer(laurel(wide));
    let narrow = laurel(narrow_config);
    let error = checkpoint::load_parameters(&mut composed, &narrow, &directory).unwrap_err();
    assert!(error.to_string().contains("is composed"), "{error}");
}

#[test]
fn a_tokenformer_whose_norms_have_parameters_takes_no_gpt2() {
    let _alone = alone();
    let config = TokenFormerConfig {
        n_attn: None,
        norm_params: residual_zoo::core::NormParams::Scale,
        ..small()
    };
    let none = Default::default();
    let error = from_transformer(&config, &none).unwrap_err();
    assert!(error.to_string().contains("`norm_params`"), "{error}");
}

#[test]
fn a_pretrained_gpt2_becomes_a_tokenformer_to_train() {
    let _alone = alone();
    let gpt2 = Gpt2Config {
        n_layer: 2,
        n_head: 2,
        width: 16,
        context: 24,
        ..Gpt2Config::default()
    };
    for (bias, affine_final_norm) in [(true, true), (false, true), (false, false)] {
        let gpt2 = Gpt2Config {
            bias,
            ..gpt2.clone()
        };
        let config = TokenFormerConfig {
            n_layer: 2,
            n_attn: None,
            n_ffn: None,
            affine_final_norm,
            ..small()
        };
        let gpt2 = ModelConfig::of(gpt2);
        let mut trained = trainer(gpt2.clone());
        steps(&mut trained, 5);
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("checkpoint");
        checkpoint::save(&trained, &Journal::default(), &directory).unwrap();
        let weights = params::export::<B, _>(trained.model());
        let expected = from_transformer(&config, &weights).unwrap();

        let mut tokenformer = trainer(ModelConfig::of(config));
        let error = checkpoint::load_weights(&mut tokenformer, &gpt2, &directory).unwrap_err();
        assert!(error.to_string().contains("use grow-fresh"), "{error}");
        checkpoint::load_parameters(&mut tokenformer, &gpt2, &directory).unwrap();
        for (name, tensor) in params::export::<B, _>(tokenformer.model()) {
            assert_eq!(numbers(&tensor), numbers(&expected[&name]), "{name}");
        }
        let before = tokenformer.validate().unwrap().loss;
        steps(&mut tokenformer, 20);
        assert!(tokenformer.validate().unwrap().loss < before);
    }
}

#[test]
fn a_larger_checkpoint_or_another_model_is_refused() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("checkpoint");
    let larger = ModelConfig::of(small().grown(17, 40).unwrap());
    let trained = trainer(larger.clone());
    checkpoint::save(&trained, &Journal::default(), &directory).unwrap();
    let mut smaller = trainer(ModelConfig::of(small()));
    let error = checkpoint::load_weights(&mut smaller, &larger, &directory).unwrap_err();
    assert!(error.to_string().contains("cannot shrink"), "{error}");
    let other = TokenFormerConfig {
        width: 32,
        ..small().grown(17, 40).unwrap()
    };
    let mut other = trainer(ModelConfig::of(other));
    assert!(checkpoint::load_weights(&mut other, &larger, &directory).is_err());
}

#[test]
fn feed_forward_networks_widen_inside_connections_alone() {
    let _alone = alone();
    let model = |around: &str, entries: usize, d_ff: usize| {
        let entry = format!("Gpt2(n_layer: 2, n_head: 2, width: 16, context: 24, d_ff: {d_ff}),");
        let entries = entry.repeat(entries);
        let text = format!("(model: Composed(layers: [{entries}], {around}))");
        let config: Result<RunConfig, _> = RunConfig::parse(&text, "grown.ron".as_ref());
        config.unwrap().model
    };
    let grow = |around: &str, entries: usize| {
        let narrow = model(around, entries, 32);
        let mut trained = trainer(narrow.clone());
        steps(&mut trained, 30);
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("checkpoint");
        checkpoint::save(&trained, &Journal::default(), &directory).unwrap();
        let mut widened = trainer(model(around, entries, 64));
        let fresh = widened.validate().unwrap().loss;
        checkpoint::load_parameters(&mut widened, &narrow, &directory)
            .map_err(|e| e.to_string())?;
        let before = trained.validate().unwrap().loss;
        Ok::<_, String>((before, widened.validate().unwrap().loss, fresh))
    };
    let plain = "connection: None";
    for (around, entries) in [
        ("connection: PerSublayer(SkipInit(start: 0.5))", 1),
        (
            "connection: PerSublayer(Laurel(weights: Softmax, augmentation: LowRank(rank: 2)))",
            1,
        ),
        ("connection: PerSublayer(Hyper(n: 2))", 2),
        ("connection: PerLayer(Tree(d_ff: 8))", 1),
        ("connection: PerLayer(Dense())", 1),
        (plain, 2),
    ] {
        let (before, after, fresh) = grow(around, entries).unwrap();
        assert!(
            (after - before).abs() < 0.02 * (fresh - before),
            "{around}: {before} {after} {fresh}"
        );
    }
    let error = grow("connection: None, recurrence: (block: 4)", 1).unwrap_err();
    assert!(error.contains("is composed"), "{error}");
}

#[test]
fn first_weights_of_another_composition_are_refused_by_the_field() {
    let parse = |text: &str| {
        let text = format!("(model: Composed({text}))");
        let config: Result<RunConfig, _> = RunConfig::parse(&text, "grown.ron".as_ref());
        config.unwrap().model
    };
    let first = parse("layers: [Gpt2(n_layer: 2)], recurrence: (block: 4)");
    for (text, field) in [
        ("layers: [Gpt2(n_layer: 2)]", "model.recurrence"),
        (
            "layers: [Gpt2(n_layer: 2), Gpt2(n_layer: 2)], recurrence: (block: 4)",
            "model.layers",
        ),
        (
            "layers: [Gpt2(n_layer: 3)], recurrence: (block: 4)",
            "model.layers.0.n_layer",
        ),
    ] {
        assert_eq!(parse(text).grows_from(&first).unwrap_err().field, field);
    }
    assert!(first.grows_from(&first).is_ok());
    // Only a plain GPT-2 becomes a TokenFormer.
    let sizes = "n_layer: 2, n_head: 2, width: 16";
    for around in [
        "connection: PerSublayer(ReZero())",
        "recurrence: (block: 4)",
    ] {
        let first = parse(&format!("layers: [Gpt2({sizes})], {around}"));
        let other = parse(&format!("layers: [TokenFormer({sizes})], {around}"));
        let error = other.grows_from(&first).unwrap_err();
        assert!(
            error.problem.contains("become weights of TokenFormer"),
            "{error}"
        );
    }
}
