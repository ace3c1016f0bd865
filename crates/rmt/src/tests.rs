use burn::backend::{Autodiff, Flex};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Distribution, Int, Tensor, TensorData, backend::Backend};
use residual_zoo_core::{
    Architecture, Branch, Embeddings, Frame, PlainModel, Seen, Vocabulary, contract, params,
};

use crate::memory::{retrieve, store, xavier};
use crate::{Attention, FeedForward, NormKind, Positions, Rmt, RmtConfig, RmtEmbeddings, naive};

type B = Autodiff<Flex>;

/// Returns a config whose sizes all differ, so that a transposed or wrongly flattened axis does not fit.
fn small() -> RmtConfig {
    RmtConfig {
        n_layer: 2,
        d_k: 7,
        d_v: 5,
        rank: 3,
        d_ff: Some(22),
        context: 64,
        ..RmtConfig::default()
    }
}

#[test]
fn the_paper_form_keeps_the_contract() {
    contract::check::<B, _>(&PlainModel(small()), &Default::default());
}

#[test]
fn the_code_form_keeps_the_contract() {
    contract::check::<B, _>(&PlainModel(small().code_form()), &Default::default());
}

#[test]
fn every_switch_stands_alone() {
    let switches = [
        RmtConfig {
            norm: NormKind::RmsNorm,
            ..small()
        },
        RmtConfig {
            positions: Positions::Alibi,
            ..small()
        },
        RmtConfig {
            inverse_layer_scale: true,
            d_ff: None,
            ..small()
        },
    ];
    for config in switches {
        contract::check::<B, _>(&PlainModel(config), &Default::default());
    }
}

/// Draws weights large enough that every term matters.
fn redrawn<M: Module<B>>(module: M) -> M {
    contract::redrawn(module, Distribution::Normal(0.2, 0.4), 1)
}

struct Gradients<'a>(&'a GradientsParams, Vec<TensorData>);

impl ModuleVisitor<B> for Gradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let gradient = self.0.get::<Flex, D>(param.id);
        self.1.push(gradient.expect("a gradient").into_data());
    }
}

/// Returns the values of `f` and the gradients of a weighted sum of these values.
fn outcome<M: Module<B> + burn::module::AutodiffModule<B>>(
    module: &M,
    f: impl Fn(&M) -> Tensor<B, 3>,
) -> Vec<TensorData> {
    let _alone = contract::alone();
    let y = f(module);
    // A different weight for each entry.
    let weights = Tensor::<B, 1, Int>::arange(0..y.shape().num_elements() as i64, &y.device());
    let weights = weights.float().sin().reshape(y.dims());
    let loss = (y.clone() * weights).sum();
    let grads = GradientsParams::from_grads(loss.backward(), module);
    let mut gradients = Gradients(&grads, vec![y.into_data()]);
    module.visit(&mut gradients);
    gradients.1
}

fn assert_equal(fast: Vec<TensorData>, naive: Vec<TensorData>) {
    assert_eq!(fast.len(), naive.len());
    for (fast, naive) in fast.into_iter().zip(naive) {
        assert_eq!(fast.shape, naive.shape);
        let naive: Vec<f64> = naive.iter().collect();
        let largest = naive.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        assert!(largest > 0.0);
        for (a, b) in fast.iter::<f64>().zip(naive) {
            assert!((a - b).abs() <= 1e-5 * largest, "{a} is not {b}");
        }
    }
}

fn forms() -> [RmtConfig; 2] {
    [small(), small().code_form()]
}

#[test]
fn the_fast_branches_equal_the_naive_ones_in_values_and_gradients() {
    let device = Default::default();
    let x = Tensor::<B, 3>::random([2, 9, 35], Distribution::Normal(0.3, 1.0), &device);
    for config in forms() {
        let attention = redrawn(Attention::new(&config, 1, &Frame::default(), &device));
        let fast = outcome(&attention, |m| m.forward(x.clone(), None));
        assert_equal(
            fast,
            outcome(&attention, |m| naive::attention(m, x.clone())),
        );

        let feed_forward = redrawn(FeedForward::new(&config, &Frame::default(), &device));
        let fast = outcome(&feed_forward, |m| m.forward(x.clone(), None));
        let naive = outcome(&feed_forward, |m| naive::feed_forward(m, x.clone()));
        assert_equal(fast, naive);
    }
}

#[test]
fn the_fast_embeddings_equal_the_naive_ones_in_values_and_gradients() {
    let device = Default::default();
    let ids = Tensor::<B, 2, Int>::from_data([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], &device);
    for config in forms() {
        let vocabulary = Vocabulary::new(11, 13);
        let embeddings = redrawn(RmtEmbeddings::new(
            &config,
            vocabulary,
            &Frame::default(),
            &device,
        ));
        let fast = outcome(&embeddings, |m| {
            m.unembed(m.embed(ids.clone(), &Seen::default()))
        });
        let naive = outcome(&embeddings, |m| {
            naive::unembed(m, naive::embed(m, ids.clone()))
        });
        assert_equal(fast, naive);
    }
}

/// Returns the mean and the variance.
fn moments(x: &[f64]) -> (f64, f64) {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    (mean, variance)
}

fn values<const D: usize>(x: Tensor<B, D>) -> Vec<f64> {
    x.into_data().iter().collect()
}

/// Compares two variances over many draws of keys with Table 1: the variances of an operation's output and of the
/// gradient of its input.
fn check_variance(
    [r, d_k, d_v]: [usize; 3],
    [fan_in, fan_out]: [usize; 2],
    closed_form: impl Fn(f64) -> [f64; 2],
    operation: impl Fn(Tensor<B, 2>, Tensor<B, 3>) -> Tensor<B, 3>,
) {
    let _alone = contract::alone();
    let device = Default::default();
    Flex::seed(&device, 5);
    let (mean_in, std_in, mean_out, std_out) = (0.5, 1.5, -0.4, 0.8);
    let variance_w = 2.0 / (fan_in + fan_out) as f64;
    let draws = 300;
    let mut found = [Vec::new(), Vec::new()];
    for _ in 0..draws {
        let keys = xavier::<B>(1.0, [r, d_k], [fan_in, fan_out], &device)
            .val()
            .detach();
        let draw = |width: usize, mean, std| {
            Tensor::<B, 3>::random(
                [1, 8, width * d_v],
                Distribution::Normal(mean, std),
                &device,
            )
        };
        let x = draw(fan_in, mean_in, std_in).require_grad();
        let g_out = draw(fan_out, mean_out, std_out);
        let y = operation(keys, x.clone());
        let grads = (y.clone() * g_out).sum().backward();
        let g_in = Tensor::<B, 3>::from_inner(x.grad(&grads).expect("a gradient"));
        found[0].push(values(y).iter().map(|y| y * y).sum::<f64>() / (8 * fan_out * d_v) as f64);
        found[1].push(values(g_in).iter().map(|g| g * g).sum::<f64>() / (8 * fan_in * d_v) as f64);
    }
    let square = |mean: f64, std: f64| std * std + mean * mean;
    let [forward, backward] = closed_form(variance_w);
    let expected = [
        forward * square(mean_in, std_in),
        backward * square(mean_out, std_out),
    ];
    for (found, expected) in found.iter().zip(expected) {
        let (mean, variance) = moments(found);
        let error = (variance / draws as f64).sqrt();
        // The mean over draws is approximately normal. The standard error itself must be small.
        assert!(error < 0.05 * expected, "{error} of {expected}");
        assert!(
            (mean - expected).abs() < 5.0 * error,
            "{mean} ± {error}, not {expected}"
        );
    }
}

#[test]
fn storage_has_the_variances_of_table_1() {
    let (r, d_k) = (16, 64);
    let closed_form = |variance_w: f64| [r as f64 * variance_w, d_k as f64 * variance_w];
    check_variance([r, d_k, 8], [r, d_k], closed_form, store);
}

#[test]
fn retrieval_has_the_variances_of_table_1() {
    let (r, d_k) = (48, 64);
    let closed_form = |variance_w: f64| [d_k as f64 * variance_w, r as f64 * variance_w];
    check_variance([r, d_k, 8], [d_k, r], closed_form, retrieve);
}

#[test]
fn initial_weights_have_the_variances_that_table_2_assumes() {
    let device = Default::default();
    Flex::seed(&device, 2);
    let config = RmtConfig {
        n_layer: 2,
        d_k: 64,
        d_v: 16,
        rank: 16,
        d_ff: Some(512),
        ..RmtConfig::default()
    };
    let model: Rmt<Flex> = config.build(300, &device).expect("a valid config");
    for (name, data) in params::export(&model) {
        let data: Vec<f64> = data.iter().collect();
        let fans = match name.rsplit('.').next().unwrap_or_default() {
            "gamma" => continue,
            // The variance of `init_std` is 0.02² = 2 / 5000.
            _ if name.starts_with("embeddings.tokens.w")
                || name.starts_with("embeddings.positions.w") =>
            {
                5000
            }
            "r_q" | "r_k" | "r_v" => 64 + 48,
            "w_1" | "w_2" => 256 + 512,
            "weight" => 256 + 300,
            _ => 64 + 16,
        };
        let (_, variance) = moments(&data);
        let expected = 2.0 / fans as f64;
        // Five standard errors of the variance of normal values.
        let error = 5.0 * expected * (2.0 / data.len() as f64).sqrt();
        assert!(
            (variance - expected).abs() < error,
            "{name}: {variance}, not {expected}"
        );
    }
}

#[test]
fn scaled_outputs_start_smaller_by_the_root_of_twice_the_depth() {
    let device = Default::default();
    let config = RmtConfig {
        n_layer: 8,
        d_k: 64,
        rank: 16,
        scaled_outputs: true,
        ..RmtConfig::default()
    };
    let attention = Attention::<B>::new(&config, 0, &Frame::default(), &device);
    let feed_forward = FeedForward::<B>::new(&config, &Frame::default(), &device);
    for keys in [attention.w_o, feed_forward.w_ff] {
        let (_, variance) = moments(&values(keys.val()));
        let expected = 2.0 / (16.0 + 64.0) / 16.0;
        let error = 5.0 * expected * (2.0f64 / 1024.0).sqrt();
        assert!((variance - expected).abs() < error, "{variance}");
    }
}

#[test]
fn the_stream_grows_with_d_k_alone() {
    let wide = RmtConfig { d_k: 14, ..small() };
    let (one, two) = (small().cost(37).params, wide.cost(37).params);
    // Only keys and norm scales grow with D_k; W_1, W_2 and the tables do not.
    let keys = 7 * 3 * (6 * 2 + 3);
    let norms = 7 * 5 * (2 * 2 + 1);
    assert_eq!(two.total() - one.total(), keys + norms);
}

#[test]
fn impossible_sizes_name_the_field() {
    let field = |config: RmtConfig| config.validate().unwrap_err().field;
    let zero = RmtConfig { d_k: 0, ..small() };
    assert_eq!(field(zero), "d_k");
    assert_eq!(field(RmtConfig { rank: 0, ..small() }), "rank");
    let norm_eps = RmtConfig {
        norm_eps: 0.0,
        ..small()
    };
    assert_eq!(field(norm_eps), "norm_eps");
}
