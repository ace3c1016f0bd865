//! Depth loops in compositions: refused settings, costs, the number of loops, and files.

use burn::backend::{Autodiff, Flex};
use burn::tensor::{Int, Tensor, TensorData};
use residual_zoo::core::recompute::{self, Seeds};
use residual_zoo::core::{
    Cost, LanguageModel, ModelConfig, NormPlaces, Transfer, Vocabulary, contract, params,
};
use residual_zoo::drive::Trial;
use residual_zoo::gpt2::Gpt2Config;
use residual_zoo::llama::LlamaConfig;
use residual_zoo::loops::{Inject, LoopOrder, LoopStart, LoopsConfig, Times, Timestep};
use residual_zoo::recurrent::Form;
use residual_zoo::resnet::BlockKind;
use residual_zoo::streams::DeepNormConfig;
use residual_zoo::vit::Patches;
use residual_zoo::{ModelConfig as Zoo, RunConfig};
use residual_zoo_testing::zoo::{gpt2, huginn, recurrence, resnet};

fn fixed(times: usize) -> LoopsConfig {
    LoopsConfig {
        times: Times::Fixed(times),
        ..LoopsConfig::default()
    }
}

fn with_timestep(times: usize, timestep: Timestep) -> LoopsConfig {
    LoopsConfig {
        timestep,
        ..fixed(times)
    }
}

#[test]
fn what_does_not_go_with_a_loop_is_refused() {
    let looped = || gpt2().looped(fixed(2));
    let normed = LoopsConfig {
        norm: true,
        ..fixed(2)
    };
    let deep = LoopsConfig {
        prelude: 1,
        coda: 1,
        ..fixed(2)
    };
    let loops_first = LoopsConfig::huginn();
    for (model, field, says) in [
        (
            looped().recurrent(recurrence(8, Form::Paper)),
            "loops",
            "`recurrence` is set too",
        ),
        (
            looped().on_patches(Patches::default()),
            "loops",
            "`patches` is set too",
        ),
        (
            resnet(BlockKind::Basic).looped(fixed(2)),
            "loops",
            "not of a ResNet",
        ),
        (
            gpt2()
                .per_sublayer(DeepNormConfig::default())
                .looped(normed),
            "loops.norm",
            "no final norm",
        ),
        (gpt2().looped(deep), "loops.prelude", "at least 3 layers"),
        (gpt2().looped(fixed(0)), "loops.times", "at least 1"),
        (
            gpt2()
                .per_layer(DeepNormConfig::default())
                .looped(loops_first),
            "loops.prelude",
            "at least 5 layers",
        ),
    ] {
        let error = model.validate().unwrap_err();
        assert_eq!(error.field, field, "{error}");
        assert!(error.problem.contains(says), "{error}");
    }
    assert_eq!(looped().name(), "looped (GPT-2)");
}

#[test]
fn the_core_counts_once_in_parameters_and_each_time_in_flops() {
    let deep = |loops: Option<LoopsConfig>| {
        let model = Zoo::of(Gpt2Config {
            n_layer: 5,
            n_head: 4,
            width: 48,
            context: 64,
            ..Gpt2Config::default()
        });
        let model = match loops {
            Some(loops) => model.looped(loops),
            None => model,
        };
        model.cost(37)
    };
    let plain = deep(None);
    assert_eq!(deep(Some(fixed(1))), plain);
    let layer = {
        let one = |n_layer| {
            let of = Gpt2Config {
                n_layer,
                n_head: 4,
                width: 48,
                context: 64,
                ..Gpt2Config::default()
            };
            Zoo::of(of).cost(37).forward_flops
        };
        one(2) - one(1)
    };
    for order in [LoopOrder::Cycle, LoopOrder::Repeat] {
        let loops = LoopsConfig {
            prelude: 1,
            coda: 2,
            order,
            ..fixed(4)
        };
        let found = deep(Some(loops));
        // The loops add three passes over two layers.
        assert_eq!(found.forward_flops, plain.forward_flops + 3 * 2 * layer);
        assert_eq!(found.params, plain.params);
    }
    let drawn = LoopsConfig {
        times: Times::Drawn { mean: 4 },
        inject: Inject::Linear,
        ..LoopsConfig::default()
    };
    let adapter = Cost::linear(2 * 48, 48, false);
    let expected = plain.forward_flops + 3 * 5 * layer + 4 * adapter.forward_flops;
    let found = deep(Some(drawn.clone()));
    assert_eq!(found.forward_flops, expected);
    assert_eq!(found.training_flops(), 3 * expected);
    // The first two of four loops have no backward pass, which costs twice as much as a forward pass.
    let cut = deep(Some(LoopsConfig {
        backward: Some(2),
        ..drawn.clone()
    }));
    let cut_part = 2 * 5 * layer + 2 * adapter.forward_flops;
    assert_eq!((cut.forward_flops, cut.params), (expected, found.params));
    assert_eq!(cut.training_flops(), 3 * expected - 2 * cut_part);
    let all = deep(Some(LoopsConfig {
        backward: Some(9),
        ..drawn
    }));
    assert_eq!(all, found);
}

fn ids<B: burn::tensor::backend::Backend>() -> Tensor<B, 2, Int> {
    Tensor::from_data([[3, 1, 4, 1, 5, 9, 2, 6]], &Default::default())
}

/// Returns the logits of `model` with `weights`, or with its own weights if none are given. Also returns the weights.
fn logits(
    model: &Zoo,
    weights: Option<&residual_zoo::core::Tensors>,
) -> (TensorData, residual_zoo::core::Tensors) {
    let built = model.build::<Flex>(37, &Default::default()).unwrap();
    let built = match weights {
        Some(weights) => params::import(built, weights.clone()).unwrap(),
        None => built,
    };
    let weights = params::export(&built);
    (built.forward(ids()).into_data(), weights)
}

#[test]
fn the_number_of_loops_of_a_trained_model_can_be_set() {
    let mut model = gpt2().looped(with_timestep(2, Timestep::Sinusoid));
    let (two, weights) = logits(&model, None);
    let other = gpt2().looped(with_timestep(3, Timestep::Sinusoid));
    let (three, _) = logits(&other, Some(&weights));
    assert_ne!(two, three);
    model.set_loops(3).unwrap();
    assert_eq!(logits(&model, Some(&weights)).0, three);
    model.set_loops(2).unwrap();
    assert_eq!(logits(&model, Some(&weights)).0, two);

    let mut learned = gpt2().looped(with_timestep(3, Timestep::Learned));
    let (_, weights) = logits(&learned, None);
    learned.set_loops(2).unwrap();
    logits(&learned, Some(&weights));
    let error = learned.set_loops(4).unwrap_err().to_string();
    assert!(error.contains("`loops` is 4"), "{error}");
    assert!(error.contains("at most 3"), "{error}");
    let error = gpt2().set_loops(4).unwrap_err().to_string();
    assert!(error.contains("GPT-2, has no depth loop"), "{error}");
    let error = huginn().set_loops(0).unwrap_err().to_string();
    assert!(error.contains("at least 1"), "{error}");
}

#[test]
fn a_training_step_has_the_loops_of_its_seed() {
    let _alone = contract::alone();
    type A = Autodiff<Flex>;
    let config = LoopsConfig {
        times: Times::Drawn { mean: 3 },
        ..LoopsConfig::default()
    };
    let (_, weights) = logits(&gpt2().looped(config.clone()), None);
    let built = |config: &LoopsConfig| {
        let model = gpt2().looped(config.clone());
        let model = model.build::<A>(37, &Default::default()).unwrap();
        params::import(model, weights.clone()).unwrap()
    };
    let drawn = built(&config);
    let mut numbers = Vec::new();
    for step in 0..8 {
        let seeds = Seeds {
            device: None,
            step: Some(step),
        };
        let pass = || drawn.forward(ids::<A>());
        let (found, _) = recompute::record::<A, _>(seeds, None, pass);
        let number = config.loops(Some(step));
        let expected = built(&fixed(number)).forward(ids::<A>());
        assert_eq!(found.into_data(), expected.into_data(), "{number} loops");
        numbers.push(number);
    }
    numbers.dedup();
    assert!(numbers.len() > 2, "{numbers:?}");
    assert!(!gpt2().looped(config).draws() && huginn().draws());
}

#[test]
fn a_file_has_loops_only_if_the_model_has() {
    let parse = |model: &str| {
        let text = format!("(model: {model})");
        RunConfig::parse(&text, "test.ron".as_ref()).unwrap()
    };
    let plain = parse("Composed(layers: [Gpt2(n_layer: 2)], recurrence: (block: 4))");
    assert!(!plain.to_ron().contains("loops"), "{}", plain.to_ron());
    let looped = parse(
        "Composed(layers: [Llama(n_layer: 8, norm_places: Sandwich)], loops: (prelude: 2, coda: 2, \
         times: Drawn(mean: 32), backward: 8, inject: Linear, start: Random(0.6324555320336759), norm: true))",
    );
    let llama = LlamaConfig {
        n_layer: 8,
        norm_places: NormPlaces::Sandwich,
        ..LlamaConfig::default()
    };
    assert_eq!(looped.model, Zoo::of(llama).looped(LoopsConfig::huginn()));
    let again = RunConfig::parse(&looped.to_ron(), "again.ron".as_ref()).unwrap();
    assert_eq!(again, looped);
    let set = parse("Gpt2(n_layer: 2)").set(&["model.loops=(times: Fixed(3))".into()]);
    assert_eq!(set.unwrap().model.loops, Some(fixed(3)));
    let start = looped.set(&["model.loops.start=Zero".into()]).unwrap();
    assert_eq!(start.model.loops.unwrap().start, LoopStart::Zero);
}

#[test]
fn weights_go_on_in_loops_with_the_same_parameters() {
    let model = |loops| gpt2().looped(loops);
    let first = model(fixed(2));
    model(fixed(5)).grows_from(&first).unwrap();
    let start = LoopsConfig {
        start: LoopStart::Random(1.0),
        ..fixed(2)
    };
    model(start).grows_from(&first).unwrap();
    let injected = LoopsConfig {
        inject: Inject::Linear,
        ..fixed(2)
    };
    let learned = model(with_timestep(3, Timestep::Learned));
    for other in [
        model(injected),
        model(LoopsConfig {
            prelude: 1,
            ..fixed(2)
        }),
        model(with_timestep(2, Timestep::Learned)),
        learned.clone(),
        gpt2(),
    ] {
        let error = other.grows_from(&first).unwrap_err();
        assert_eq!(error.field, "model.loops");
    }
    let other = model(with_timestep(2, Timestep::Learned));
    assert!(other.grows_from(&learned).is_err());
}

#[test]
fn parameters_of_a_loop_have_their_roles() {
    use residual_zoo::core::params::Role;
    let loops = LoopsConfig {
        inject: Inject::Linear,
        ..with_timestep(3, Timestep::Learned)
    };
    let model = gpt2().looped(loops);
    let built = model.build::<Flex>(Vocabulary::from(37), &Default::default());
    let list = params::list::<Flex, _>(&built.unwrap());
    let role = |name: &str| {
        list.iter()
            .find(|info| info.name == name)
            .map(|info| info.role)
    };
    assert_eq!(role("block.adapter"), Some(Role::Weight));
    assert_eq!(role("block.timestep"), Some(Role::Embedding));
    let hidden = |name: &str| {
        list.iter()
            .any(|info| info.name == name && info.matrices.is_some())
    };
    assert!(hidden("block.adapter") && !hidden("block.timestep"));
    assert!(role("block.layers.1.attention.branch.qkv.weight").is_some());
}

#[test]
fn copies_for_trials_grow_in_the_core() {
    let loops = LoopsConfig {
        prelude: 2,
        coda: 1,
        evaluated: Some(50),
        ..fixed(6)
    };
    let of = |n_layer| {
        Zoo::of(Gpt2Config {
            n_layer,
            n_head: 4,
            width: 48,
            context: 64,
            ..Gpt2Config::default()
        })
    };
    let model = of(9).looped(loops.clone());
    assert_eq!((model.passes(), model.repeats()), (3 + 6 * 6, Some(1)));
    assert_eq!((of(9).passes(), of(9).repeats()), (9, None));
    // Caches and FLOPs of a generation follow the number of loops outside training.
    let read = model.outside_training();
    assert_eq!(read.passes(), 3 + 50 * 6);
    assert_eq!(read.cost(37).params, model.cost(37).params);
    assert!(read.cost(37).forward_flops > 6 * model.cost(37).forward_flops);
    let trial = Trial::new(&RunConfig::new(model), 37.into()).unwrap();
    let smallest = trial.smallest().unwrap().model;
    assert_eq!((smallest.shape().n_layer, smallest.passes()), (4, 3 + 6));
}
