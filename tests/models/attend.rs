//! Attention with one input and with three inputs, and with changed queries, keys and values.

use std::collections::BTreeMap;

use burn::backend::Flex;
use burn::module::Module;
use burn::tensor::{Distribution, Tensor, TensorData, backend::Backend};
use residual_zoo::core::{
    Architecture, Branch, BranchFn, Connection, Frame, NormPlaces, Plain, ResidualBlock, Stream,
    params,
};
use residual_zoo::llama::LlamaConfig;
use residual_zoo::{ModelConfig as Zoo, Zoo as Entry};
use residual_zoo_testing::zoo::{WIDTH, architectures, gpt2, llama};

/// x + f(x), where each branch reads x three times.
#[derive(Module, Clone, Debug)]
struct Thrice;

impl<B: Backend> Connection<B> for Thrice {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let inputs = [(); 3].map(|()| stream.x.clone());
        Stream {
            x: f.attend(inputs, |heads| heads) + stream.x,
            ..stream
        }
    }
}

/// x + f(x), where attention reads x for q and k, and x ⊙ x for v.
#[derive(Module, Clone, Debug)]
struct OtherValues;

impl<B: Backend> Connection<B> for OtherValues {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let x = stream.x.clone();
        let v = x.clone() * x.clone();
        Stream {
            x: f.attend([x.clone(), x, v], |heads| heads) + stream.x,
            ..stream
        }
    }
}

fn entry(model: &Zoo) -> &Entry {
    &model.layers[0]
}

/// Returns random weights of the first layer. Each test draws them only once, because concurrent tests draw from the
/// same generator.
fn weights(of: &Entry) -> BTreeMap<String, TensorData> {
    let (device, frame) = (Default::default(), Frame::default());
    params::export::<Flex, _>(&of.block::<Flex, Plain>(0, &frame, Plain::default, &device))
}

/// Returns the outputs of the first layer for x, with these weights: over the whole sequence, and in three pieces.
fn outputs<C: Connection<Flex>>(
    of: &Entry,
    weights: &BTreeMap<String, TensorData>,
    connection: impl Fn() -> C,
    x: &Tensor<Flex, 3>,
) -> [Vec<f32>; 2] {
    let (device, frame) = (x.device(), Frame::default());
    let block = of.block::<Flex, C>(0, &frame, connection, &device);
    let block = params::import::<Flex, _>(block, weights.clone()).unwrap();
    let whole = block.forward(Stream::new(x.clone()), None).x;
    let mut cache = block.new_cache();
    let pieces = [(0, 4), (4, 1), (5, 6)].map(|(from, count)| {
        let piece = Stream::new(x.clone().narrow(1, from, count));
        block.forward(piece, Some(&mut cache)).x
    });
    let pieces = Tensor::cat(pieces.into(), 1);
    [whole, pieces].map(|y| y.into_data().iter::<f32>().collect())
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

#[test]
fn three_equal_inputs_are_one_input() {
    let x = Tensor::random(
        [2, 11, WIDTH],
        Distribution::Normal(0.0, 1.0),
        &Default::default(),
    );
    let mut tested = 0;
    for (name, model) in architectures() {
        let size = entry(&model).attention().unwrap();
        if !size.three_inputs {
            continue;
        }
        let weights = weights(entry(&model));
        let [plain, _] = outputs(entry(&model), &weights, || Plain, &x);
        let [thrice, in_pieces] = outputs(entry(&model), &weights, || Thrice, &x);
        assert!(difference(&plain, &thrice) < 1e-5, "{name}");
        assert!(difference(&thrice, &in_pieces) < 1e-5, "{name}, in pieces");
        let [other, in_pieces] = outputs(entry(&model), &weights, || OtherValues, &x);
        assert!(difference(&plain, &other) > 1e-3, "{name}, other values");
        assert!(
            difference(&other, &in_pieces) < 1e-5,
            "{name}, other values in pieces"
        );
        tested += 1;
    }
    assert!(tested >= 5, "{tested} architectures");
}

#[test]
fn attention_that_also_depends_on_x_itself_reads_one_input() {
    let size = |model: &Zoo| entry(model).attention().unwrap();
    assert!(size(&gpt2()).three_inputs && size(&llama()).three_inputs);
    assert!(!size(&residual_zoo_testing::zoo::ngpt()).three_inputs);
    for places in [NormPlaces::Sandwich, NormPlaces::Original] {
        let config = LlamaConfig {
            norm_places: places,
            ..LlamaConfig::default()
        };
        assert!(!config.attention().unwrap().three_inputs, "{places:?}");
    }
}
