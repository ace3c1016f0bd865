use std::collections::BTreeSet;

use burn::backend::{Autodiff, Flex};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Distribution, Tensor, TensorData, backend::Backend};
use residual_zoo_core::recompute::{self, Seeds};
use residual_zoo_core::{
    Architecture, Cost, Frame, Plain, Recompute, ResidualBlock, Stream, contract, materialise,
    through,
};
use residual_zoo_gpt2::{Block, Gpt2Config, Init};

use crate::{
    Inject, LoopOrder, LoopStart, Loops, LoopsConfig, Times, Timestep, draw, starting_from,
};

type A = Autodiff<Flex>;
const WIDTH: usize = 12;

fn layers<B: Backend>(count: usize) -> Vec<Block<B>> {
    let config = Gpt2Config {
        n_layer: count,
        n_head: 2,
        width: WIDTH,
        context: 64,
        init: Some(Init::Fixed(0.3)),
        ..Gpt2Config::default()
    };
    let device = Default::default();
    let layers: Vec<_> = (0..count)
        .map(|i| config.block(i, &Frame::default(), || Plain, &device))
        .collect();
    layers.iter().for_each(materialise);
    layers
}

fn loops<B: Backend>(config: &LoopsConfig, layers: Vec<Block<B>>) -> Loops<B, Block<B>> {
    config.validate(layers.len()).expect("a valid config");
    let streams = config
        .parts(layers.len())
        .iter()
        .map(|part| part.streams)
        .sum();
    let loops = config.init(layers, vec![Plain; streams], WIDTH, &Default::default());
    materialise(&loops);
    loops
}

fn random<B: Backend>(time: usize) -> Tensor<B, 3> {
    let normal = Distribution::Normal(0.0, 1.0);
    Tensor::random([2, time, WIDTH], normal, &Default::default())
}

fn forward<B: Backend>(block: &impl ResidualBlock<B>, x: Tensor<B, 3>) -> Tensor<B, 3> {
    block.forward(Stream::new(x), None).x
}

fn difference<B: Backend>(a: Tensor<B, 3>, b: Tensor<B, 3>) -> f64 {
    let difference: Vec<f64> = (a - b).abs().max().into_data().iter().collect();
    difference[0]
}

#[test]
fn drawn_loops_have_the_mean_and_the_spread_of_their_distribution() {
    let count = 20_000;
    let drawn: Vec<f64> = (0..count)
        .map(|seed| draw::loops(32, seed) as f64)
        .collect();
    let mean = drawn.iter().sum::<f64>() / count as f64;
    let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count as f64;
    // E Poisson(λ) + 1 = 33, and the variance is E λ + var λ = 32 + 32² (e^¼ − 1).
    assert!((mean - 33.0).abs() < 0.6, "mean {mean}");
    let expected = 32.0 + 1024.0 * (0.25_f64.exp() - 1.0);
    assert!(
        (variance / expected - 1.0).abs() < 0.15,
        "variance {variance}, expected {expected}"
    );
    assert!(drawn.iter().all(|x| *x >= 1.0));
    let config = LoopsConfig::huginn();
    for seed in [0, 1, u64::MAX] {
        assert_eq!(config.loops(Some(seed)), draw::loops(32, seed));
        assert_eq!(config.loops(Some(seed)), config.loops(Some(seed)));
    }
    let several: BTreeSet<usize> = (0..10).map(|seed| config.loops(Some(seed))).collect();
    assert!(several.len() > 3, "{several:?}");
    assert_eq!(config.loops(None), 32);
    let fewer = LoopsConfig {
        evaluated: Some(5),
        ..config
    };
    assert_eq!(
        (fewer.loops(None), fewer.loops(Some(1))),
        (5, draw::loops(32, 1))
    );
}

#[test]
fn the_random_state_of_a_position_is_normal_and_its_own() {
    let all: Vec<f64> = (0..100).flat_map(|t| draw::state(t, 200, 2.0)).collect();
    let count = all.len() as f64;
    let mean = all.iter().sum::<f64>() / count;
    let square = all.iter().map(|x| x * x).sum::<f64>() / count;
    assert!(
        mean.abs() < 0.06 && (square / 4.0 - 1.0).abs() < 0.05,
        "{mean} {square}"
    );
    let of = |t| draw::state(t, 8, 1.0).collect::<Vec<_>>();
    assert_eq!(of(3), of(3));
    assert_ne!(of(3), of(4));
}

#[test]
fn layers_are_repeated_in_the_given_order() {
    let _alone = contract::alone();
    let (layers, x) = (layers::<Flex>(4), random(9));
    let config = |order| LoopsConfig {
        prelude: 1,
        coda: 1,
        order,
        ..LoopsConfig::default()
    };
    for (order, expected) in [
        (LoopOrder::Cycle, [0, 1, 2, 1, 2, 3]),
        (LoopOrder::Repeat, [0, 1, 1, 2, 2, 3]),
    ] {
        let in_turn = expected
            .iter()
            .fold(x.clone(), |x, layer| forward(&layers[*layer], x));
        let found = forward(&loops(&config(order), layers.clone()), x.clone());
        assert_eq!(found.into_data(), in_turn.into_data(), "{order:?}");
    }
}

#[test]
fn reading_in_pieces_is_reading_the_whole() {
    let _alone = contract::alone();
    let random_start = LoopsConfig {
        prelude: 1,
        coda: 1,
        inject: Inject::Linear,
        start: LoopStart::Random(1.0),
        times: Times::Drawn { mean: 3 },
        backward: Some(1),
        ..LoopsConfig::default()
    };
    let sinusoids = LoopsConfig {
        order: LoopOrder::Repeat,
        ..LoopsConfig::universal(3)
    };
    for config in [random_start, sinusoids] {
        let (block, x) = (loops(&config, layers::<Flex>(4)), random::<Flex>(13));
        let whole = forward(&block, x.clone());
        let mut cache = block.new_cache();
        let mut from = 0;
        for count in [5, 1, 7] {
            let piece = Stream::new(x.clone().narrow(1, from, count));
            let y = block.forward(piece, Some(&mut cache)).x;
            let expected = whole.clone().narrow(1, from, count);
            assert!(difference(y, expected) < 1e-4, "{config:?} from {from}");
            from += count;
        }
    }
}

/// Collects the gradient of each parameter, in the order of the fields.
struct Collect<'a> {
    gradients: &'a GradientsParams,
    found: Vec<Option<TensorData>>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let gradient = self.gradients.get::<B::InnerBackend, D>(param.id);
        self.found.push(gradient.map(Tensor::into_data));
    }
}

/// Returns the output for x, and the gradient of Σ y² with respect to each parameter.
fn pass(
    block: &Loops<A, Block<A>>,
    x: &Tensor<A, 3>,
    seeds: Seeds,
    cut: Option<Recompute>,
) -> (TensorData, Vec<Option<TensorData>>) {
    let x = x.clone().detach().require_grad();
    let (y, recording) = recompute::record(seeds, cut, || forward(block, x));
    let mut gradients = GradientsParams::new();
    recording.add_gradients((y.clone() * y.clone()).sum(), block, &mut gradients);
    let mut collect = Collect {
        gradients: &gradients,
        found: Vec::new(),
    };
    block.visit(&mut collect);
    (y.into_data(), collect.found)
}

#[track_caller]
fn are_close(found: &[Option<TensorData>], expected: &[Option<TensorData>]) {
    assert_eq!(found.len(), expected.len());
    assert!(expected.iter().any(Option::is_some));
    for (found, expected) in found.iter().zip(expected) {
        let (found, expected) = match (found, expected) {
            (Some(found), Some(expected)) => (found, expected),
            (None, None) => continue,
            _ => panic!("one of two gradients is missing"),
        };
        let largest = expected
            .iter::<f64>()
            .fold(1e-3, |most, x| x.abs().max(most));
        for (a, b) in found.iter::<f64>().zip(expected.iter::<f64>()) {
            assert!((a - b).abs() < 1e-4 * largest, "{a} is not {b}");
        }
    }
}

#[test]
fn a_truncated_gradient_is_the_gradient_of_the_last_loops() {
    let _alone = contract::alone();
    let config = |times, backward| LoopsConfig {
        prelude: 1,
        coda: 1,
        times: Times::Fixed(times),
        backward,
        inject: Inject::Linear,
        start: LoopStart::Random(1.0),
        ..LoopsConfig::default()
    };
    let x = random::<A>(9);
    let whole = loops(&config(4, None), layers::<A>(4));
    // The same weights with another number of loops.
    let with = |times, backward| {
        let mut block = whole.clone();
        block.config = config(times, backward);
        block
    };
    let none = Seeds::default();
    let first = with(2, None);
    let state = first.before_coda(x.clone()).into_data();
    let expected = starting_from(state, || pass(&with(2, None), &x, none, None));
    let (y, truncated) = pass(&with(4, Some(2)), &x, none, None);
    let (same, all) = pass(&whole, &x, none, None);
    assert_eq!(y, same, "truncation changes only gradients");
    are_close(&truncated, &expected.1);
    for cut in [Recompute::Layers, Recompute::Every(1)] {
        let (y, again) = pass(&with(4, Some(2)), &x, none, Some(cut));
        assert_eq!(y, same);
        are_close(&again, &truncated);
    }
    // The earlier loops do have a gradient without truncation: it changes the sum over the loops.
    let pairs = || all.iter().flatten().zip(truncated.iter().flatten());
    let values = pairs().flat_map(|(a, b)| a.iter::<f64>().zip(b.iter::<f64>()));
    let changes = values.map(|(a, b)| (a - b).abs() / b.abs().max(1e-3));
    assert!(changes.fold(0.0, f64::max) > 0.1);
    assert!(truncated.iter().all(Option::is_some));
}

impl<B: Backend> Loops<B, Block<B>> {
    /// Returns the state after all loops over x, in a model with one layer before the core.
    fn before_coda(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let e = through(&Plain, &self.layers[..1], x, None, None);
        self.loops(&e, &Default::default())
    }
}

#[test]
fn a_random_start_is_drawn_anew_in_each_step_and_repeated_in_recomputation() {
    let _alone = contract::alone();
    let config = LoopsConfig {
        times: Times::Drawn { mean: 3 },
        backward: Some(2),
        start: LoopStart::Random(1.0),
        inject: Inject::Add,
        prelude: 1,
        ..LoopsConfig::default()
    };
    let block = loops(&config, layers::<A>(3));
    let x = random(9);
    let seeds = |device, step| Seeds {
        device: Some(device),
        step: Some(step),
    };
    let (y, gradients) = pass(&block, &x, seeds(1, 1), None);
    assert_eq!(pass(&block, &x, seeds(1, 1), None).0, y);
    assert_ne!(pass(&block, &x, seeds(2, 1), None).0, y);
    for cut in [Recompute::Layers, Recompute::Every(2)] {
        let (again, of_parts) = pass(&block, &x, seeds(1, 1), Some(cut));
        assert_eq!(again, y, "{cut:?}");
        are_close(&of_parts, &gradients);
    }
    // Outside training, the state is always the same.
    let fixed = pass(&block, &x, Seeds::default(), None).0;
    assert_eq!(pass(&block, &x, Seeds::default(), None).0, fixed);
    assert_ne!(fixed, y);
}

#[test]
fn what_makes_no_loop_is_refused() {
    let refused = |config: LoopsConfig, field: &str, says: &str| {
        let error = config.validate(4).expect_err("an invalid config");
        assert_eq!(error.field, field, "{error}");
        assert!(error.problem.contains(says), "{error}");
    };
    let base = LoopsConfig::default;
    let times = |times| LoopsConfig { times, ..base() };
    refused(times(Times::Fixed(0)), "times", "at least 1");
    refused(times(Times::Drawn { mean: 0 }), "times", "at least 1");
    let none = Some(0);
    refused(
        LoopsConfig {
            evaluated: none,
            ..base()
        },
        "evaluated",
        "at least 1",
    );
    refused(
        LoopsConfig {
            backward: none,
            ..base()
        },
        "backward",
        "at least 1",
    );
    for (prelude, coda) in [(4, 0), (0, 4), (2, 2), (usize::MAX, 1)] {
        let config = LoopsConfig {
            prelude,
            coda,
            ..base()
        };
        refused(config, "prelude", "no layer is left for the core");
    }
    for std in [0.0, -1.0, f64::NAN] {
        let start = LoopStart::Random(std);
        refused(LoopsConfig { start, ..base() }, "start", "above 0");
    }
    let repeat = LoopsConfig {
        order: LoopOrder::Repeat,
        backward: Some(1),
        ..base()
    };
    refused(repeat, "backward", "use `order: Cycle`");
    let cut_off = LoopsConfig {
        backward: Some(1),
        ..base()
    };
    refused(cut_off, "backward", "use `inject: Add`");
    let learned = |times, evaluated| LoopsConfig {
        timestep: Timestep::Learned,
        times,
        evaluated,
        ..base()
    };
    refused(
        learned(Times::Drawn { mean: 3 }, None),
        "timestep",
        "`times` is Drawn",
    );
    refused(
        learned(Times::Fixed(3), Some(4)),
        "evaluated",
        "vectors for 3 loops",
    );
    assert!(learned(Times::Fixed(3), Some(2)).validate(4).is_ok());
    for config in [
        LoopsConfig::default(),
        LoopsConfig::universal(6),
        LoopsConfig::looped(12),
    ] {
        config.validate(1).expect("a valid config");
    }
    LoopsConfig::huginn().validate(5).expect("a valid config");
    refused(LoopsConfig::huginn(), "prelude", "at least 5 layers");
}

#[test]
fn the_injection_and_the_vectors_are_counted() {
    let config = LoopsConfig {
        inject: Inject::Linear,
        timestep: Timestep::Learned,
        times: Times::Fixed(3),
        prelude: 1,
        ..LoopsConfig::default()
    };
    let found = config.cost(WIDTH, 3);
    let matrix = 2 * WIDTH * WIDTH;
    assert_eq!(
        found.params,
        (Cost::vector(matrix) + Cost::vector(3 * WIDTH)).params
    );
    assert_eq!(found.forward_flops, 3 * 2 * matrix);
    let repeated = LoopsConfig {
        order: LoopOrder::Repeat,
        ..config
    };
    // e is injected before each of two layers, in each of three loops.
    assert_eq!(repeated.cost(WIDTH, 3).forward_flops, 2 * 3 * 2 * matrix);
    assert_eq!(repeated.cost(WIDTH, 3).params, found.params);
}
