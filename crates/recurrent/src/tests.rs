use std::sync::atomic::{AtomicUsize, Ordering};

use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::tensor::{Distribution, Tensor};
use residual_zoo_core::ops::attention::KvCache;
use residual_zoo_core::{
    Architecture, Cost, Frame, Plain, ResidualBlock, Stream, contract, materialise, params,
};
use residual_zoo_gpt2::{Block, Gpt2Config, Init};

use crate::{Alpha, Form, Recurrent, RecurrentConfig};

type B = Flex;
const WIDTH: usize = 12;

fn layers(count: usize) -> Vec<Block<B>> {
    let config = Gpt2Config {
        n_layer: count,
        n_head: 2,
        width: WIDTH,
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

/// Pairs each layer with plain ends of its stream.
fn plain<R>(layers: Vec<R>) -> Vec<(R, Plain)> {
    layers.into_iter().map(|layer| (layer, Plain)).collect()
}

fn recurrent(alpha: f64, form: Form, layers: Vec<Block<B>>) -> Recurrent<B, Block<B>> {
    let config = RecurrentConfig {
        block: 4,
        alpha: Alpha::Trainable(alpha),
        form,
    };
    config.init(plain(layers), &Default::default())
}

fn random(time: usize) -> Tensor<B, 3> {
    Tensor::random(
        [2, time, WIDTH],
        Distribution::Normal(0.0, 1.0),
        &Default::default(),
    )
}

fn forward<R: ResidualBlock<B>>(block: &R, x: Tensor<B, 3>) -> Tensor<B, 3> {
    block.forward(Stream::new(x), None).x
}

fn difference(a: Tensor<B, 3>, b: Tensor<B, 3>) -> f64 {
    let difference: Vec<f64> = (a - b).abs().max().into_data().iter().collect();
    difference[0]
}

#[test]
fn up_to_one_block_it_is_tau_of_tau() {
    for form in [Form::Paper, Form::Code] {
        for time in 1..=4 {
            let (tau, x) = (layers(1), random(time));
            let expected = forward(&tau[0], forward(&tau[0], x.clone()));
            let y = forward(&recurrent(0.5, form, tau), x);
            assert_eq!(y.into_data(), expected.into_data());
        }
    }
}

#[test]
fn without_a_carry_both_forms_agree() {
    for time in [3, 4, 7, 8, 13] {
        let (tau, x) = (layers(2), random(time));
        let paper = forward(&recurrent(0.0, Form::Paper, tau.clone()), x.clone());
        let code = forward(&recurrent(0.0, Form::Code, tau.clone()), x.clone());
        assert!(difference(paper, code) < 1e-6);
        // With α > 0, the forms differ if the sequence has more than one block.
        let paper = forward(&recurrent(0.5, Form::Paper, tau.clone()), x.clone());
        let code = forward(&recurrent(0.5, Form::Code, tau), x);
        assert_eq!(difference(paper, code) > 1e-3, time > 4, "{time} tokens");
    }
}

#[test]
fn alpha_is_kept_between_0_and_1() {
    let (tau, x) = (layers(1), random(13));
    let of = |alpha: Alpha| {
        let config = RecurrentConfig {
            block: 4,
            alpha,
            ..RecurrentConfig::default()
        };
        config.init(plain(tau.clone()), &Default::default())
    };
    let at = |alpha: f64| forward(&of(Alpha::Fixed(alpha)), x.clone());
    for form in [Alpha::Trainable, Alpha::StraightThrough] {
        for (outside, end) in [(6.0, 1.0), (-5.0, 0.0)] {
            let mut block = of(form(0.5));
            let alpha = block.alpha.take().expect("α");
            block.alpha = Some(alpha.map(|alpha| alpha * 0.0 + outside));
            assert!(difference(forward(&block, x.clone()), at(end)) < 1e-6);
        }
    }
    // The sigmoid initially has the given value.
    let sigmoid = forward(&of(Alpha::Sigmoid(0.3)), x.clone());
    assert!(difference(sigmoid, at(0.3)) < 1e-5);
}

#[test]
fn alpha_learns_at_the_ends_of_its_range_and_straight_through_beyond_them() {
    let _alone = contract::alone();
    type B = Autodiff<Flex>;
    let device = Default::default();
    let config = Gpt2Config {
        n_head: 2,
        width: WIDTH,
        init: Some(Init::Fixed(0.3)),
        ..Gpt2Config::default()
    };
    // The absolute gradient of α, after α has moved by `by` from its initial value.
    let gradient = |alpha: Alpha, by: f64| {
        let recurrence = RecurrentConfig {
            block: 4,
            alpha,
            ..RecurrentConfig::default()
        };
        let layers: Vec<Block<B>> = vec![config.block(0, &Frame::default(), || Plain, &device)];
        let mut block = recurrence.init(plain(layers), &device);
        let moved = |x: Tensor<B, 1>| (x + by).detach().require_grad();
        block.alpha = block.alpha.map(|alpha| alpha.map(moved));
        let x = Tensor::random([2, 13, WIDTH], Distribution::Normal(0.0, 1.0), &device);
        let y = block.forward(Stream::new(x), None).x;
        let grads = (y.clone() * y).sum().backward();
        let alpha = block.alpha.or(block.alpha_logit).expect("α").val();
        alpha.grad(&grads).expect("a gradient").into_scalar().abs()
    };
    for start in [0.0, 1.0] {
        assert!(gradient(Alpha::Trainable(start), 0.0) > 0.0, "at {start}");
        assert!(
            gradient(Alpha::StraightThrough(start), 0.0) > 0.0,
            "at {start}"
        );
    }
    assert!(gradient(Alpha::Sigmoid(0.5), 0.0) > 0.0);
    assert_eq!(gradient(Alpha::Trainable(0.0), -0.1), 0.0);
    assert!(gradient(Alpha::StraightThrough(0.0), -0.1) > 0.0);
}

#[test]
fn a_fixed_alpha_is_not_trained() {
    type B = Autodiff<Flex>;
    let trainable = |alpha: Alpha| {
        let config = RecurrentConfig {
            alpha,
            ..RecurrentConfig::default()
        };
        let none: Vec<Block<B>> = Vec::new();
        let list = params::list::<B, _>(&config.init(plain(none), &Default::default()));
        let trained = list.iter().filter(|p| p.trainable).count();
        assert_eq!(config.cost(|_| Cost::default(), 64).params.total(), trained);
        trained
    };
    assert_eq!(trainable(Alpha::Fixed(0.5)), 0);
    for form in [Alpha::Trainable, Alpha::StraightThrough, Alpha::Sigmoid] {
        assert_eq!(trainable(form(0.5)), 1);
    }
}

#[test]
fn read_in_pieces_it_gives_what_a_full_pass_gives() {
    for form in [Form::Paper, Form::Code] {
        for count in [1, 3] {
            let (block, x) = (recurrent(0.4, form, layers(count)), random(19));
            for pieces in [
                vec![19],
                vec![1; 19],
                vec![4, 4, 4, 7],
                vec![3, 6, 2, 8],
                vec![9, 10],
            ] {
                let (mut cache, mut seen) = (block.new_cache(), 0);
                for piece in pieces {
                    let part = Stream::new(x.clone().narrow(1, seen, piece));
                    let y = block.forward(part, Some(&mut cache)).x;
                    let full = forward(&block, x.clone().narrow(1, 0, seen + piece));
                    let expected = full.narrow(1, seen, piece);
                    let error = difference(y, expected);
                    assert!(
                        error < 2e-5,
                        "{form:?}, {count} layers, {seen}+{piece}: {error}"
                    );
                    seen += piece;
                }
            }
        }
    }
}

#[test]
fn reading_takes_memory_constant_in_the_length() {
    let block = recurrent(0.5, Form::Paper, layers(2));
    let mut cache = block.new_cache();
    let mut held = Vec::new();
    for _ in 0..6 {
        for _ in 0..4 {
            block.forward(Stream::new(random(1)), Some(&mut cache));
        }
        let layer = |layer: &crate::streaming::LayerCache<B, _>| {
            let caches = [&layer.left, &layer.right, &layer.closing];
            let tokens = |((kv, _), _): &<Block<B> as ResidualBlock<B>>::Cache| {
                KvCache::seen(&Some(&mut kv.clone())).same().unwrap()
            };
            let streams = [&layer.carry, &layer.next_carry, &layer.hidden];
            (caches.map(tokens), streams.map(crate::streaming::length))
        };
        let layers: Vec<_> = cache.layers.iter().map(layer).collect();
        held.push((crate::streaming::length(&cache.open), layers));
    }
    // After the third block, the cache holds two carries from earlier blocks and all tokens of the block.
    assert_eq!(held[2], (4, vec![([4, 8, 4], [4, 4, 4]); 2]));
    assert!(held[2..].iter().all(|h| *h == held[2]), "{held:?}");
}

/// A block that returns x + 1, counts the tokens that it sees, and records the longest window.
#[derive(Module, Clone, Debug, Default)]
struct Probe;

static TOKENS: AtomicUsize = AtomicUsize::new(0);
static WINDOW: AtomicUsize = AtomicUsize::new(0);

impl ResidualBlock<B> for Probe {
    type Cache = ();

    fn new_cache(&self) {}

    fn forward(&self, stream: Stream<B>, _: Option<&mut ()>) -> Stream<B> {
        let time = stream.x.dims()[1];
        TOKENS.fetch_add(time, Ordering::Relaxed);
        WINDOW.fetch_max(time, Ordering::Relaxed);
        let x = stream.x + 1.0;
        Stream { x, ..stream }
    }
}

#[test]
fn tau_sees_every_token_twice_in_windows_of_two_blocks() {
    let config = RecurrentConfig {
        block: 5,
        ..RecurrentConfig::default()
    };
    let block = config.init(plain(vec![Probe]), &Default::default());
    for time in [1, 5, 7, 10, 33] {
        TOKENS.store(0, Ordering::Relaxed);
        WINDOW.store(0, Ordering::Relaxed);
        forward(&block, random(time));
        assert_eq!(TOKENS.load(Ordering::Relaxed), 2 * time);
        assert!(WINDOW.load(Ordering::Relaxed) <= 10);
    }
}

#[test]
fn impossible_settings_name_the_field() {
    let field = |config: RecurrentConfig| config.validate().unwrap_err().field;
    let block = RecurrentConfig {
        block: 0,
        ..RecurrentConfig::default()
    };
    assert_eq!(field(block), "block");
    for alpha in [-0.1, 1.5, f64::NAN] {
        let alpha = RecurrentConfig {
            alpha: Alpha::Fixed(alpha),
            ..RecurrentConfig::default()
        };
        assert_eq!(field(alpha), "alpha");
    }
}
