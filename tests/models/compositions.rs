//! Every architecture and every composition passes the contract test, counts its cost, and can be written
//! in RON and read back.
//!
//! The recurrence closes its last block without a carry (eq. 10). For α > 0, logits of a prefix therefore differ from
//! logits of a longer sequence at the same positions. The contract checks properties that hold for every model. For
//! sequences of one length, no logit depends on later tokens. For each piece, an incremental pass gives the logits of a
//! full pass over the tokens so far.

use std::collections::BTreeMap;

use burn::backend::{Autodiff, Flex};
use burn::tensor::{Int, Tensor, TensorData};
use residual_zoo::core::{
    Architecture, ConfigError, LanguageModel, ModelConfig, Vocabulary, contract, params,
};
use residual_zoo::gpt2::Gpt2Config;
use residual_zoo::laurel::{Augmentation, LaurelConfig, Weights};
use residual_zoo::recurrent::{Alpha, Form, RecurrentConfig};
use residual_zoo::rmt::RmtConfig;
use residual_zoo::runs::generate::{Generator, Generators, Sampling};
use residual_zoo::tokenformer::TokenFormerConfig;
use residual_zoo::{ModelConfig as Zoo, RunConfig};
use residual_zoo_testing::zoo::{
    architectures, compositions, connections, gpt2, in_turn, loops, recurrence, rmt, streams,
    tokenformer,
};

fn parse(model: &str) -> Result<Zoo, String> {
    let text = format!("(model: {model})");
    let config = RunConfig::parse(&text, "test.ron".as_ref());
    Ok(config.map_err(|e| e.to_string())?.model)
}

fn all() -> impl Iterator<Item = (&'static str, Zoo)> {
    architectures()
        .into_iter()
        .chain(connections())
        .chain(compositions())
        .chain(streams())
        .chain(loops())
}

#[test]
fn every_architecture_keeps_the_contract() {
    for (name, config) in architectures().into_iter().chain(connections()) {
        println!("{name}");
        contract::check::<Autodiff<Flex>, _>(&config, &Default::default());
    }
}

#[test]
fn every_composition_keeps_the_contract() {
    assert!(compositions().len() >= 8 && streams().len() >= 20);
    for (name, config) in compositions().into_iter().chain(streams()) {
        println!("{name}");
        contract::check::<Autodiff<Flex>, _>(&config, &Default::default());
    }
}

#[test]
fn every_depth_loop_keeps_the_contract() {
    for (name, config) in loops() {
        println!("{name}");
        contract::check::<Autodiff<Flex>, _>(&config, &Default::default());
    }
}

#[test]
fn texts_side_by_side_are_the_texts_one_by_one() {
    let device = Default::default();
    let greedy = Sampling {
        temperature: 0.0,
        ..Sampling::default()
    };
    for (name, config) in all() {
        let vocabulary = Vocabulary::from(13);
        let model = config.build::<Flex>(vocabulary, &device).unwrap();
        let context = config.shape().context;
        let sizes = (vocabulary.ids(), context);
        // One prompt is longer than the context, and every text reaches the end of the context.
        let prompt = |length: usize| (0..length).map(|i| (7 * i * i % 13) as u32).collect();
        let prompts: Vec<Vec<u32>> = [3, 1, context + 2, context / 2].map(prompt).to_vec();
        let count = 2 * context;
        let mut together = vec![Vec::new(); prompts.len()];
        let all = Generators::new(&model, sizes, &prompts, greedy.clone(), &device).unwrap();
        for new in all.take(3 * context) {
            for (text, new) in together.iter_mut().zip(new) {
                text.extend(new);
            }
        }
        for (prompt, together) in prompts.iter().zip(together) {
            let one = Generator::new(&model, sizes, prompt, greedy.clone(), &device).unwrap();
            let one: Vec<u32> = one.take(count).collect();
            assert_eq!(
                together[..count],
                one,
                "{name}, a prompt of {}",
                prompt.len()
            );
        }
    }
}

#[test]
fn every_composition_survives_ron() {
    for (name, model) in all() {
        let text = "(model: Gpt2())";
        let mut config = RunConfig::parse(text, "test.ron".as_ref()).unwrap();
        config.model = model;
        let ron = config.to_ron();
        let again = RunConfig::parse(&ron, "test.ron".as_ref());
        assert_eq!(
            config,
            again.unwrap_or_else(|e| panic!("{name}: {e}\n{ron}"))
        );
    }
}

#[test]
fn ron_says_what_is_composed() {
    let found = parse(
        "Composed(
            layers: [Rmt(n_layer: 4, d_k: 8, d_v: 8), Gpt2(n_layer: 4, width: 64)],
            connection: PerLayer(Laurel(
                weights: Sigmoid,
                augmentation: LowRankPerStream(k: 3, rank: 4),
            )),
            recurrence: (block: 16, alpha: Fixed(0.25), form: Code),
        )",
    );
    let rmt = RmtConfig {
        n_layer: 4,
        d_k: 8,
        d_v: 8,
        ..RmtConfig::default()
    };
    let gpt2 = Gpt2Config {
        n_layer: 4,
        width: 64,
        ..Gpt2Config::default()
    };
    let laurel = LaurelConfig {
        weights: Weights::Sigmoid,
        augmentation: Augmentation::LowRankPerStream { k: 3, rank: 4 },
        ..LaurelConfig::default()
    };
    let recurrence = RecurrentConfig {
        block: 16,
        alpha: Alpha::Fixed(0.25),
        form: Form::Code,
    };
    let expected = Zoo::in_turn([rmt.into(), gpt2.into()])
        .per_layer(laurel)
        .recurrent(recurrence);
    assert_eq!(found.unwrap(), expected);
}

#[test]
fn one_architecture_and_nothing_else_is_written_as_that_architecture() {
    let gpt2 = parse("Composed(layers: [Gpt2(n_layer: 2)])").unwrap();
    assert_eq!(gpt2, parse("Gpt2(n_layer: 2)").unwrap());
    let mut config = RunConfig::parse("(model: Rmt())", "test.ron".as_ref()).unwrap();
    config.model = gpt2;
    assert!(config.to_ron().contains("model: Gpt2("));
}

#[test]
fn a_field_inside_a_composition_can_be_set() {
    let text = "(model: Composed(
        layers: [TokenFormer(n_layer: 2)],
        connection: PerSublayer(Laurel(augmentation: LowRank(rank: 4))),
    ))";
    let config = RunConfig::parse(text, "test.ron".as_ref()).unwrap();
    let set = |assignment: &str| config.clone().set(&[assignment.to_string()]);
    let wider = |width, rank| {
        let wider = TokenFormerConfig {
            n_layer: 2,
            width,
            ..TokenFormerConfig::default()
        };
        Zoo::of(wider).per_sublayer(LaurelConfig::lr(rank))
    };
    assert_eq!(set("model.layers.0.width=96").unwrap().model, wider(96, 4));
    let set_rank = set("model.connection.augmentation.rank=9").unwrap();
    assert_eq!(set_rank.model, wider(768, 9));
    assert!(set("model.layers.0.rank=9").is_err());
}

#[test]
fn a_field_without_a_layer_is_set_in_every_layer() {
    let text = "(model: Composed(layers: [Gpt2(width: 64), TokenFormer(width: 64)], connection: PerSublayer(ReZero())))";
    let config = RunConfig::parse(text, "test.ron".as_ref()).unwrap();
    let set = |assignment: &str| config.clone().set(&[assignment.to_string()]);
    let of_layers = |model: Zoo| -> Vec<usize> {
        let layers = model.layers.iter();
        layers.map(|layer| layer.shape().n_layer).collect()
    };
    assert_eq!(of_layers(set("model.n_layer=3").unwrap().model), [3, 3]);
    assert!(set("model.n_layer=3").unwrap().model.connection.is_some());
    assert_eq!(
        of_layers(set("model.layers.0.n_layer=3").unwrap().model)[0],
        3
    );
    // A GPT-2 has no n_ffn, and neither architecture has n_layr.
    for (assignment, problem) in [
        ("model.n_ffn=3", "unknown field `n_ffn`"),
        ("model.n_layr=3", "did you mean `n_layer`?"),
        ("model.connections=None", "did you mean `connection`?"),
    ] {
        let error = set(assignment).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    let both = ["model.layers.1.n_layer=3", "model.n_layer=2"].map(String::from);
    let error = config.clone().set(&both).unwrap_err().to_string();
    assert!(
        error.contains("`model.layers.1.n_layer=3` sets the same field"),
        "{error}"
    );
}

#[test]
fn a_layer_of_several_in_turn_can_be_set() {
    let text = "(model: Composed(layers: [Gpt2(width: 64), TokenFormer(width: 64)]))";
    let config = RunConfig::parse(text, "test.ron".as_ref()).unwrap();
    let set = |assignment: &str| config.clone().set(&[assignment.to_string()]);
    let model = set("model.layers.1.n_layer=3").unwrap().model;
    assert_eq!(model.layers[1].shape().n_layer, 3);
    let error = set("model.layers.2.n_layer=3").unwrap_err().to_string();
    assert!(
        error.contains("the list has no entry `2`; it has 2 entries, counted from 0"),
        "{error}"
    );
    let error = set("train.`x=3").unwrap_err().to_string();
    assert!(
        error.contains("unknown field ``x`; the fields are seed, steps, "),
        "{error}"
    );
    assert!(!error.contains(", ,"), "{error}");
}

#[test]
fn ron_that_says_something_else_is_refused() {
    let problem = |model: &str| parse(model).unwrap_err();
    let unknown = problem("Surprise(n_layer: 2)");
    for name in ["Surprise", "Gpt2", "Rmt", "TokenFormer", "Composed"] {
        assert!(unknown.contains(name), "{name} is not in: {unknown}");
    }
    assert!(problem("Rmt(n_layers: 2)").contains("n_layers"));
    assert!(problem("Composed(recurrence: (block: 4))").contains("`layers`"));
    let laurel = problem("Composed(layers: [Gpt2()], augmentation: LowRank(rank: 2))");
    assert!(laurel.contains("`augmentation`"), "{laurel}");
    assert!(problem("Composed(layers: [Gpt2()], recurrence: (size: 2))").contains("size"));
    let nested = problem("Composed(layers: [Composed(layers: [Gpt2()])])");
    assert!(nested.contains("Composed"), "{nested}");
    assert!(problem("Composed(layers: [Gpt2()], connection: Highway)").contains("Highway"));
    let unnamed = problem("Composed(layers: [Gpt2()], connection: PerLayer(Dense(4, 5)))");
    assert!(unnamed.contains("fields have names, as in"), "{unnamed}");
    let text = problem("Composed(layers: [Gpt2()], connection: PerLayer(Dense(\"a\")))");
    assert!(text.contains("fields have names, as in"), "{text}");
    let part = problem("Composed(layers: [Gpt2()], connection: PerSublayer(Mhc(n: 2.5)))");
    assert!(
        part.contains("whole numbers have no decimal point"),
        "{part}"
    );
    let alone = problem("Gpt2(connection: PerLayer(Dense()))");
    assert!(alone.contains("Composed(layers: "), "{alone}");
}

#[test]
fn an_assignment_says_what_a_file_could_say() {
    let config = |model: &str| {
        let text = format!("(model: {model})");
        RunConfig::parse(&text, "test.ron".as_ref()).unwrap()
    };
    let set = |model: &str, assignment: &str| {
        let set = config(model).set(&[assignment.to_string()]);
        set.map_err(|error| error.to_string())
    };
    let dense = "Composed(layers: [Gpt2()], connection: PerLayer(Dense()))";
    for unnamed in [
        "model.connection=PerLayer(Dense(4, 5))",
        r#"model.connection={"PerLayer":{"Dense":[4,5]}}"#,
        "model.connection.PerLayer=Dense(4, 5)",
    ] {
        let error = set(dense, unnamed).unwrap_err();
        assert!(error.contains("fields have names, as in"), "{error}");
    }
    // A model of one architecture is also a composition.
    let composed = set("Gpt2()", "model.connection=PerLayer(Dense())").unwrap();
    assert_eq!(composed, config(dense));
    let plain = set("Gpt2()", "model.connection=None").unwrap();
    assert_eq!(plain, config("Gpt2()"));
    let deeper = set("Gpt2()", "model.layers.0.n_layer=3").unwrap();
    assert_eq!(deeper, config("Gpt2(n_layer: 3)"));
    // `None` is also a value of `NormParams`, which RON writes as `r#None`.
    let deep_norm = |norm: &str| {
        format!("Composed(layers: [Gpt2()], connection: PerSublayer(DeepNorm(norm: {norm})))")
    };
    for none in ["None", "r#None"] {
        let bare = set(
            &deep_norm("Scale"),
            &format!("model.connection.norm={none}"),
        )
        .unwrap();
        assert_eq!(bare, config(&deep_norm("None")), "{none}");
        let whole = format!("model.connection=PerSublayer(DeepNorm(norm: {none}))");
        assert_eq!(
            set("Gpt2()", &whole).unwrap(),
            config(&deep_norm("None")),
            "{none}"
        );
    }
    // Files have the plain name `None`, unless it would have another meaning.
    let bare = config(&deep_norm("None"));
    let written = bare.to_ron();
    assert!(
        written.contains("norm: None,") && !written.contains("r#"),
        "{written}"
    );
    assert_eq!(
        RunConfig::parse(&written, "written.ron".as_ref()).unwrap(),
        bare
    );
    let odd = bare.set(&["data.separator=a: r#None, b".into()]).unwrap();
    let again = RunConfig::parse(&odd.to_ron(), "odd.ron".as_ref()).unwrap();
    assert_eq!(again, odd);
    // A field can be set even if the text omits it because it is `None`.
    let images = set(dense, "model.patches=(size: 4)").unwrap();
    assert_eq!(images.model.patches.unwrap().size, 4);
    assert!(set(dense, "model.patch=(size: 4)").is_err());
}

#[test]
fn a_number_that_is_not_finite_is_not_blamed_on_an_assignment() {
    for (field, number) in [("grad_clip", "NaN"), ("learning_rate", "inf")] {
        let text = format!("(model: Gpt2(), train: ({field}: {number}))");
        let config = RunConfig::parse(&text, "test.ron".as_ref()).unwrap();
        let error = config.set(&["train.steps=3".into()]).unwrap_err();
        let expected = format!("`train.{field}` is {number}; it must be a finite number");
        assert_eq!(error.to_string(), expected);
    }
    let named = r#"(model: Gpt2(), data: (source: Path("an inf of NaN.txt")))"#;
    let named = RunConfig::parse(named, "test.ron".as_ref()).unwrap();
    assert!(named.set(&["train.steps=3".into()]).is_ok());
}

fn refusal(model: &Zoo) -> ConfigError {
    let error = model.validate().unwrap_err();
    assert_eq!(
        model.build::<Flex>(37, &Default::default()).err(),
        Some(error.clone())
    );
    error
}

#[test]
fn what_does_not_compose_is_refused_with_the_reason() {
    for far in [
        gpt2().per_sublayer(LaurelConfig::pa(3)),
        rmt().per_layer(LaurelConfig::rw_pa(2)),
    ] {
        assert!(far.validate().is_ok());
        let error = refusal(&far.recurrent(recurrence(8, Form::Paper)));
        assert_eq!(error.field, "connection.augmentation.k");
        assert!(
            error.problem.contains("each layer starts a new stream"),
            "{error}"
        );
    }

    assert!(refusal(&in_turn([])).problem.contains("is empty"));
    let three = in_turn([gpt2(), rmt(), tokenformer()]);
    assert!(refusal(&three).problem.contains(
        "3 entries, but `n_layer` of each, which counts the layers of the whole model, is 2"
    ));
    let unequal = in_turn([gpt2(), Zoo::of(RmtConfig::default())]);
    let error = refusal(&unequal);
    assert!(
        error.problem.contains("48") && error.problem.contains("1024"),
        "{error}"
    );

    let inside = rmt()
        .per_sublayer(LaurelConfig::lr(0))
        .recurrent(recurrence(8, Form::Paper));
    assert_eq!(refusal(&inside).field, "connection.augmentation.rank");
    let inside = rmt().recurrent(recurrence(0, Form::Paper));
    assert_eq!(refusal(&inside).field, "recurrence.block");
    let broken = Zoo::of(Gpt2Config {
        n_head: 5,
        width: 48,
        n_layer: 2,
        context: 64,
        ..Gpt2Config::default()
    });
    assert_eq!(refusal(&in_turn([gpt2(), broken])).field, "layers.1.n_head");
}

#[test]
fn names_say_what_is_inside() {
    let name = |model: Zoo| model.name();
    assert_eq!(name(gpt2()), "GPT-2");
    assert_eq!(
        name(rmt().per_sublayer(LaurelConfig::rw_lr(2))),
        "LAuReL-RW+LR (RMT)"
    );
    let both = in_turn([gpt2(), tokenformer()]);
    let both = both.recurrent(recurrence(8, Form::Paper));
    assert_eq!(name(both), "recurrent (GPT-2 / TokenFormer)");
}

type Named = BTreeMap<String, TensorData>;

fn weights(of: &Zoo) -> Named {
    params::export(&of.build::<Flex>(37, &Default::default()).unwrap())
}

/// Returns the logits of `model`, with the weights `inside` of the model that it contains.
fn logits(model: &Zoo, inside: &Named) -> Vec<f64> {
    let device = Default::default();
    let model = model.build::<Flex>(37, &device).unwrap();
    let mut weights = params::export(&model);
    for (name, tensor) in inside {
        let deeper = name.replace("block.layers.0.", "block.layers.0.branch.block.");
        let deeper = deeper.replace("block.layers.1.", "block.layers.1.branch.block.");
        let name = if weights.contains_key(name) {
            name.clone()
        } else {
            deeper
        };
        assert!(weights.insert(name, tensor.clone()).is_some());
    }
    let model = params::import(model, weights).unwrap();
    let ids = Tensor::<Flex, 2, Int>::from_data([[3, 1, 4, 1, 5, 9, 2, 6]], &device);
    model.forward(ids).into_data().iter().collect()
}

#[test]
fn a_laurel_with_alpha_and_beta_one_equals_the_plain_model() {
    for of in [gpt2(), rmt(), tokenformer()] {
        let weights = weights(&of);
        let plain = logits(&of, &weights);
        for config in [
            LaurelConfig::lr(4),
            LaurelConfig::pa(3),
            LaurelConfig::default(),
        ] {
            let laurel = logits(&of.clone().per_sublayer(config.clone()), &weights);
            assert!(laurel == plain, "{} with {config:?}", of.name());
            let per_layer = logits(&of.clone().per_layer(config), &weights);
            // f(x) = layer(x) − x has rounding errors.
            for (a, b) in per_layer.iter().zip(&plain) {
                assert!((a - b).abs() < 1e-5, "{a} is not {b}");
            }
        }
    }
}

#[test]
fn the_same_architecture_twice_in_turn_is_the_model_itself() {
    for of in [gpt2(), rmt(), tokenformer()] {
        let (twice, weights) = (in_turn([of.clone(), of.clone()]), weights(&of));
        assert!(logits(&twice, &weights) == logits(&of, &weights));
        assert_eq!(twice.cost(37), of.cost(37));
    }
}

#[test]
fn a_recurrence_with_one_block_is_the_stack_applied_layer_by_layer_twice() {
    // The recurrence computes τ₂(τ₂(τ₁(τ₁(x)))), which is a four-layer stack with each layer twice.
    let of = gpt2();
    let recurrent = of.clone().recurrent(recurrence(64, Form::Paper));
    let deep = Zoo::of(Gpt2Config {
        n_layer: 4,
        n_head: 4,
        width: 48,
        context: 64,
        ..Gpt2Config::default()
    });
    let device = Default::default();
    let model = of.build::<Flex>(37, &device).unwrap();
    let weights = params::export(&model);
    let mut twice = weights.clone();
    twice.retain(|name, _| !name.starts_with("block.layers"));
    for (name, tensor) in weights
        .iter()
        .filter(|(name, _)| name.starts_with("block.layers"))
    {
        for (layer, copies) in [(0, [0, 1]), (1, [2, 3])] {
            let prefix = format!("block.layers.{layer}.");
            if let Some(rest) = name.strip_prefix(&prefix) {
                for copy in copies {
                    twice.insert(format!("block.layers.{copy}.{rest}"), tensor.clone());
                }
            }
        }
    }
    let ids = Tensor::<Flex, 2, Int>::from_data([[3, 1, 4, 1, 5, 9, 2, 6]], &device);
    let deep = deep.build::<Flex>(37, &device).unwrap();
    let expected = params::import(deep, twice).unwrap().forward(ids.clone());
    let mut with_alpha = weights;
    let recurrent = recurrent.build::<Flex>(37, &device).unwrap();
    let alpha = params::export(&recurrent).remove("block.alpha").unwrap();
    with_alpha.insert("block.alpha".into(), alpha);
    let found = params::import(recurrent, with_alpha).unwrap().forward(ids);
    assert_eq!(found.into_data(), expected.into_data());
}

#[test]
fn a_classifier_has_a_head_of_its_own() {
    let device = Default::default();
    for (name, config) in architectures() {
        let vocabulary = Vocabulary::new(256, 10);
        let model = config.build::<Autodiff<Flex>>(vocabulary, &device).unwrap();
        let ids = Tensor::<_, 2, Int>::from_data([[3, 1, 4], [1, 5, 255]], &device);
        assert_eq!(model.classify(ids).dims(), [2, 10], "{name}");
        let list = params::list::<Autodiff<Flex>, _>(&model);
        let trained = list.iter().filter(|p| p.trainable);
        let trained: usize = trained.map(|p| p.shape.iter().product::<usize>()).sum();
        let cost = config.cost(vocabulary);
        assert_eq!(trained, cost.params.total(), "{name}");
        assert!(cost.params.unembedding > 0, "{name}");
    }
}
