mod contract;

use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::tensor::{Int, Tensor, TensorData, backend::Backend};

use crate::ops::activation;
use crate::ops::attention::{DotAttention, KvCache};
use crate::ops::loss::Loss;
use crate::params::{self, ImportError, Role};
use crate::{
    Activation, Branch, BranchFn, Cache, Connection, Ends, Increment, Plain, ResidualBlock, Stack,
    Stream, TokenEmbeddings, TokenEmbeddingsOptions, Update, Vocabulary, check,
};

type B = Flex;
type AB = Autodiff<Flex>;

fn values<B: Backend, const D: usize>(x: Tensor<B, D>) -> Vec<f64> {
    x.into_data().iter::<f64>().collect()
}

#[test]
fn numbers_fit_into_32_bits() {
    for (value, positive, not_negative) in [
        (1e-3, true, true),
        (0.0, false, true),
        (1e-50, false, true),
        (-1.0, false, false),
        (1e50, false, false),
        (f64::NAN, false, false),
    ] {
        assert_eq!(check::positive("x", value).is_ok(), positive, "{value}");
        assert_eq!(
            check::not_negative("x", value).is_ok(),
            not_negative,
            "{value}"
        );
    }
}

#[test]
fn a_fraction_below_1_is_below_1_in_32_bits_too() {
    for value in [0.0, 1e-50, 0.5, 0.999_999_9] {
        check::fraction("x", value).unwrap();
    }
    for value in [-0.1, 0.999_999_99, 0.999_999_999_99, 1.0, f64::NAN] {
        let error = check::fraction("x", value).unwrap_err().to_string();
        assert!(error.contains("below 1, also in 32 bits"), "{error}");
    }
}

#[test]
fn no_whole_number_of_a_config_is_above_the_bound() {
    #[derive(Clone, serde::Serialize)]
    enum Part {
        Named { rank: usize },
        Several(Vec<Part>),
        Seeds(u64, i64),
    }
    #[derive(serde::Serialize)]
    struct Config {
        scale: f64,
        part: Option<Part>,
    }
    let error = |part: &Part| {
        let (scale, part) = (1e300, Some(part.clone()));
        check::sizes(&Config { scale, part }).err()
    };
    for rank in [0, check::MOST] {
        assert_eq!(error(&Part::Named { rank }), None);
    }
    assert_eq!(error(&Part::Seeds(0, i64::MIN)), None);
    let several = Part::Several(vec![Part::Seeds(1, 1), Part::Named { rank: usize::MAX }]);
    for (part, field) in [
        (
            Part::Named {
                rank: check::MOST + 1,
            },
            "part.rank",
        ),
        (several, "part.1.rank"),
        (Part::Seeds(1, i64::MAX), "part.1"),
    ] {
        let error = error(&part).unwrap();
        assert_eq!(error.field, field);
        assert!(
            error.problem.ends_with("; it must be at most 16777216"),
            "{error}"
        );
    }
}

#[test]
fn a_vocabulary_is_bounded_too() {
    let (most, image) = (check::MOST, |size: [usize; 3]| {
        Vocabulary::of_images(size.into(), 2)
    });
    for good in [most.into(), image([3, 4096, 4096]), image([most, 1, 1])] {
        good.validate().unwrap();
    }
    for (bad, field) in [
        (Vocabulary::new(0, 1), "vocab_size"),
        (Vocabulary::new(most + 1, 1), "vocab_size"),
        (Vocabulary::new(1, usize::MAX), "outputs"),
        (image([0, 1, 1]), "channels of the images"),
        (image([1, usize::MAX, 1]), "height of the images"),
        (image([1, 1, most + 1]), "width of the images"),
        (image([1, 4097, 4096]), "pixels of an image"),
    ] {
        assert_eq!(bad.validate().unwrap_err().field, field);
    }
}

/// f(x) = 2 x.
#[derive(Module, Clone, Debug)]
struct Double;

impl<B: Backend> Branch<B> for Double {
    type Cache = ();
    fn new_cache(&self) {}
    fn forward(&self, x: Tensor<B, 3>, _: Option<&mut ()>) -> Tensor<B, 3> {
        x * 2.0
    }
}

/// x_{i+1} = f(x_i) + 10 x_{i-2}, without the last term if x_{i-2} does not exist. The stream carries x_{i-1} and
/// x_{i-2}.
#[derive(Module, Clone, Debug)]
struct TwoBack;

impl<B: Backend> Connection<B> for TwoBack {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let Stream { x, mut carried, .. } = stream;
        let fx = f.of(x.clone());
        let next = match carried.get(1) {
            Some(x) => fx + x.clone() * 10.0,
            None => fx,
        };
        carried.insert(0, x);
        carried.truncate(2);
        Stream {
            x: next,
            carried,
            ..stream
        }
    }
}

fn one() -> Tensor<B, 3> {
    Tensor::ones([1, 1, 1], &Default::default())
}

#[test]
fn a_connection_reads_the_streams_before() {
    let update = Update::new(Double, TwoBack);
    let stream = (0..4).fold(Stream::<B>::new(one()), |stream, _| {
        update.forward(stream, None)
    });
    // 1, 2, 4, 2·4 + 10·1 = 18, 2·18 + 10·2 = 56.
    assert_eq!(values(stream.x), [56.0]);
    assert_eq!(stream.carried.len(), 2);
}

#[test]
fn a_plain_connection_leaves_what_is_carried() {
    let update = Update::new(Double, Plain);
    let stream = Stream::<B> {
        carried: vec![one()],
        ..Stream::new(one())
    };
    let stream = (0..4).fold(stream, |stream, _| update.forward(stream, None));
    assert_eq!(values(stream.x), [81.0]);
    assert_eq!(stream.carried.len(), 1);
}

/// Doubles x_0, and adds 1 to x_L.
#[derive(Module, Clone, Debug)]
struct DoubleAndOne;

impl<B: Backend> Ends<B> for DoubleAndOne {
    fn open(&self, x: Tensor<B, 3>) -> Stream<B> {
        Stream::new(x * 2.0)
    }
    fn close(&self, stream: Stream<B>) -> Tensor<B, 3> {
        stream.x + 1.0
    }
}

#[test]
fn a_stack_opens_and_closes_its_stream() {
    let block = Stack::between(DoubleAndOne, vec![Update::new(Double, Plain)]);
    let stream: Stream<B> = block.forward(Stream::new(one()), None);
    assert_eq!(values(stream.x), [7.0]);
    // A surrounding stream is not touched.
    let outer = Stream::<B> {
        carried: vec![one()],
        ..Stream::new(one())
    };
    assert_eq!(block.forward(outer, None).carried.len(), 1);
}

#[test]
fn an_increment_is_what_a_block_adds() {
    let layers = || Stack::new((0..2).map(|_| Update::new(Double, Plain)).collect());
    let plain: Stream<B> = layers().forward(Stream::new(one()), None);
    let wrapped = Update::new(Increment::new(layers()), Plain);
    assert_eq!(
        values(wrapped.forward(Stream::new(one()), None).x),
        values(plain.x)
    );
}

#[test]
fn attention_is_the_equation() {
    let device = Default::default();
    // Two positions and one head of width 1, so the weights can be computed by hand.
    let row = |a: f32, b: f32| Tensor::<B, 4>::from_data([[[[a], [b]]]], &device);
    let qkv = [row(1.0, 2.0), row(0.5, 1.5), row(10.0, 20.0)];
    let heads = DotAttention::new(0.5, 2);
    let (fast, plain) = (heads.forward(qkv.clone(), None), heads.plain(qkv));
    let (a, b) = ((2.0_f64 * 0.5 * 0.5).exp(), (2.0_f64 * 1.5 * 0.5).exp());
    let expected = [10.0, (10.0 * a + 20.0 * b) / (a + b)];
    for y in [fast, plain] {
        for (found, expected) in values(y).iter().zip(expected) {
            assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
        }
    }
}

#[test]
fn a_cache_returns_all_it_was_given() {
    let device = Default::default();
    let x = |rows, v: f32| Tensor::<B, 4>::full([rows, 1, 2, 1], v, &device);
    let seen = |cache: &mut KvCache<B>| KvCache::seen(&Some(cache)).same();
    let mut cache = KvCache::new(5);
    assert_eq!(seen(&mut cache), Some(0));
    // Keys and values that attention receives, part by part.
    let all = std::cell::RefCell::new(Vec::new());
    let read = |cache: &mut KvCache<B>, rows, v| {
        cache.attend([x(rows, v), x(rows, v), x(rows, v + 1.0)], |[q, k, v]| {
            all.borrow_mut().push((values(k), values(v)));
            q
        });
        all.take()
    };
    read(&mut cache, 1, 1.0);
    let whole = (vec![1., 1., 3., 3.], vec![2., 2., 4., 4.]);
    assert_eq!(read(&mut cache, 1, 3.0), std::slice::from_ref(&whole));
    assert_eq!(seen(&mut cache), Some(4));
    // Sequences that began later.
    let mut later = KvCache::new(5);
    read(&mut later, 2, 5.0);
    cache.join(later);
    assert_eq!(seen(&mut cache), None);
    cache.keep(&[false, true, true]);
    assert_eq!(seen(&mut cache), Some(2));
    cache.keep(&[false, true]);
    let rest = (vec![5., 5., 7., 7.], vec![6., 6., 8., 8.]);
    assert_eq!(read(&mut cache, 1, 7.0), [rest]);
}

#[test]
fn a_cache_that_grows_returns_all_it_was_given() {
    let device = Default::default();
    let all = std::cell::RefCell::new(Vec::new());
    let mut cache = KvCache::<B>::new(200);
    let mut seen = 0;
    // The reads of 3 and 61 positions fill the smallest room, 64. The next read exceeds the room by one position, the
    // read of 100 by more than half, and the last read fills the context.
    for new in [3, 61, 1, 30, 1, 100, 4] {
        let x: Vec<f32> = (seen..seen + 2 * new).map(|i| i as f32).collect();
        let x = Tensor::<B, 1>::from_floats(x.as_slice(), &device);
        let [k, v] = [0, new].map(|from| x.clone().narrow(0, from, new).reshape([1, 1, new, 1]));
        cache.attend([k.clone(), k, v], |[q, k, v]| {
            all.replace(vec![values(k), values(v)]);
            q
        });
        seen += new;
        let kept = all.take();
        let expected: Vec<f64> = (0..seen).map(|i| i as f64).collect();
        assert_eq!(kept[0], expected);
        // Values are the keys plus the number of positions that were read with them.
        let newest: Vec<f64> = (seen..seen + new).map(|i| i as f64).collect();
        assert_eq!(kept[1][seen - new..], newest);
    }
}

#[test]
fn activations_equal_their_formulas_and_derivatives() {
    let _alone = crate::contract::alone();
    let device = Default::default();
    let points: Vec<f64> = (-60..=60).map(|i| i as f64 / 10.0).collect();
    let c = (2.0 / std::f64::consts::PI).sqrt();
    let u = |x: f64| c * (x + 0.044715 * x * x * x);
    let tanh = |x: f64| 0.5 * x * (1.0 + u(x).tanh());
    let d_tanh = |x: f64| {
        let t = u(x).tanh();
        0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * 0.044715 * x * x)
    };
    // The distribution function of the normal distribution, integrated numerically from the density.
    let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let cdf = |x: f64| {
        let n = 20_000;
        let h = x / n as f64;
        let inner: f64 = (1..n).map(|i| density(i as f64 * h)).sum();
        0.5 + h * (inner + 0.5 * (density(0.0) + density(x)))
    };
    let erf = |x: f64| x * cdf(x);
    let d_erf = |x: f64| cdf(x) + x * density(x);

    type Apply = fn(Tensor<AB, 1>) -> Tensor<AB, 1>;
    let check = |apply: Apply, f: &dyn Fn(f64) -> f64, d: &dyn Fn(f64) -> f64| {
        let data: Vec<f32> = points.iter().map(|x| *x as f32).collect();
        let x = Tensor::<AB, 1>::from_floats(data.as_slice(), &device).require_grad();
        let y = apply(x.clone());
        let grads = y.clone().sum().backward();
        let dx = values(x.grad(&grads).unwrap());
        for ((x, y), dx) in points.iter().zip(values(y)).zip(dx) {
            assert!((y - f(*x)).abs() < 2e-6, "f({x}) is {y}, not {}", f(*x));
            assert!((dx - d(*x)).abs() < 2e-6, "f'({x}) is {dx}, not {}", d(*x));
        }
    };
    check(|x| Activation::GeluTanh.apply(x), &tanh, &d_tanh);
    check(|x| Activation::GeluErf.apply(x), &erf, &d_erf);
    check(activation::gelu_erf_plain, &erf, &d_erf);
    check(activation::gelu_tanh_plain, &tanh, &d_tanh);
    let step = |x: f64| if x > 0.0 { 1.0 } else { 0.0 };
    check(|x| Activation::Relu.apply(x), &|x| x.max(0.0), &step);
    check(activation::tanh, &f64::tanh, &|x| 1.0 - x.tanh().powi(2));
}

#[test]
fn the_loss_is_the_mean_surprise_at_the_targets() {
    let device = Default::default();
    let logits = Tensor::<B, 3>::from_data([[[0.0, 1.0, 2.0], [300.0, 0.0, -300.0]]], &device);
    let targets = Tensor::<B, 2, Int>::from_data([[2, 0]], &device);
    let loss = Loss::new(logits, targets);
    let z = (1.0 + 1f64.exp() + 2f64.exp()).ln();
    let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-6, "{a} is not {b}");
    near(values(loss.cross_entropy.clone())[0], (z - 2.0) / 2.0);
    near(
        values(loss.log_z_squared.clone())[0],
        (z * z + 300.0 * 300.0) / 2.0,
    );
    let total = values(loss.objective(1e-4))[0];
    near(
        total,
        (z - 2.0) / 2.0 + 1e-4 * (z * z + 300.0 * 300.0) / 2.0,
    );
    assert_eq!(values(loss.objective(0.0)), values(loss.cross_entropy));
}

#[test]
fn the_gradient_of_the_loss_is_probability_minus_target() {
    let _alone = crate::contract::alone();
    let device = Default::default();
    let x = Tensor::<AB, 3>::from_data([[[0.5, -1.0, 2.0]]], &device).require_grad();
    let loss = Loss::new(x.clone(), Tensor::from_data([[1]], &device)).cross_entropy;
    let grad = values(x.grad(&loss.backward()).unwrap());
    let e = [0.5_f64.exp(), (-1.0_f64).exp(), 2.0_f64.exp()];
    let z: f64 = e.iter().sum();
    for (found, expected) in grad.iter().zip([e[0] / z, e[1] / z - 1.0, e[2] / z]) {
        assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
    }
}

fn embeddings() -> TokenEmbeddings<B> {
    let options = TokenEmbeddingsOptions {
        norm: Some(crate::NormDesign::Layer {
            params: crate::NormParams::Scale,
            eps: 1e-5,
        }),
        ..TokenEmbeddingsOptions::new(5.into(), 4, 3)
    };
    TokenEmbeddings::new(&options, &Default::default())
}

#[test]
fn import_refuses_what_does_not_fit() {
    let model = embeddings();
    let tensors = params::export::<B, _>(&model);
    assert!(params::import::<B, _>(model.clone(), tensors.clone()).is_ok());

    let mut missing = tensors.clone();
    missing.remove("norm.gamma");
    let error = params::import::<B, _>(model.clone(), missing).unwrap_err();
    assert_eq!(error, ImportError::Missing("norm.gamma".into()));

    let mut unexpected = tensors.clone();
    unexpected.insert("norm.beta".into(), TensorData::zeros::<f32, _>([3]));
    let error = params::import::<B, _>(model.clone(), unexpected).unwrap_err();
    assert_eq!(error, ImportError::Unexpected("norm.beta".into()));

    let mut shape = tensors;
    shape.insert("tokens.weight".into(), TensorData::zeros::<f32, _>([3, 5]));
    let error = params::import::<B, _>(model, shape).unwrap_err();
    let (expected, found) = (vec![5, 3], vec![3, 5]);
    assert_eq!(
        error,
        ImportError::Shape {
            name: "tokens.weight".into(),
            expected,
            found
        }
    );
}

#[test]
fn import_keeps_the_identity_of_parameters() {
    let model = embeddings();
    let ids = |m: &TokenEmbeddings<B>| params::list(m).iter().map(|p| p.id).collect::<Vec<_>>();
    let loaded = params::import::<B, _>(model.clone(), params::export(&model)).unwrap();
    assert_eq!(ids(&model), ids(&loaded));
    assert!(params::list(&model).iter().any(|p| p.role == Role::Norm));
}
