//! Passes whose products are in bf16, or in CUDA's TF32, differ from f32 passes only by rounding.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::path::Path;

use burn::backend::{Autodiff, Flex};
use burn::tensor::{Distribution, Int, Tensor, TensorData, backend::AutodiffBackend};
use residual_zoo_backend::{BackendKind, OnBackend};
use residual_zoo_drive::{Place, usual_precision};
use residual_zoo_evaluate::{Options as Evaluation, Task};
use residual_zoo_kernels::plain_only;
use residual_zoo_models::core::ops::linear::product;
use residual_zoo_models::core::ops::loss::{Loss, log_z_and_target};
use residual_zoo_models::core::{ConfigError, Precision, Recompute, matmul, product_roundoff};
use residual_zoo_models::data::Corpus;
use residual_zoo_models::runs::run_dir;
use residual_zoo_models::{ModelConfig as Zoo, Run, RunConfig};
use residual_zoo_testing::my_turn;
use residual_zoo_testing::pass::{Outcome, Values, run};
use residual_zoo_testing::program::Scratch;
use residual_zoo_testing::reference::{Case, cases};
use residual_zoo_testing::runs::{self, MODELS, assert_same, differences, outcome};
use residual_zoo_train::{Interrupter, RunOptions, Summary};

use crate::parity::{VOCAB, weights};
use crate::tested;

/// The error bound for products in fewer bits, as a multiple of the effect of rounding the weights alone. This effect,
/// measured in f32, shows how sensitive a model is.
///
/// A product in fewer bits rounds six values in place of one: x, w and the result, and the gradients of all three. For
/// independent errors of equal effect, the expected effect is √6 times the effect of one. The bound is twice this
/// expectation, so it finds errors that are larger than a few roundings.
const BOUND: f64 = 2.0 * 2.449_489_742_783_178;

/// Rounds x to nearest, ties to even. Keeps `bits` bits after the first.
fn rounded(x: f32, bits: u32) -> f32 {
    let cut = f32::MANTISSA_DIGITS - 1 - bits;
    let odd = (x.to_bits() >> cut) & 1;
    f32::from_bits((x.to_bits() + (1 << (cut - 1)) - 1 + odd) >> cut << cut)
}

/// Returns the case's weights, with the factors of products rounded.
fn rounded_weights(case: &Case, bits: u32) -> BTreeMap<String, TensorData> {
    let weights = case.weights.iter().map(|(name, weight)| {
        // α and β of LAuReL and A of hyper-connections are not factors of a product.
        let stays = weight.shape.len() == 1 || name.ends_with("connection.mixing");
        let numbers = weight.iter::<f32>();
        let numbers = numbers.map(|x| if stays { x } else { rounded(x, bits) });
        let weight = TensorData::new(numbers.collect::<Vec<_>>(), weight.shape.clone());
        (name.clone(), weight)
    });
    weights.collect()
}

/// Runs a pass in `precision`. Also returns the number of bits after the first that factors of products keep. Returns
/// `None` if the device lacks the precision, or keeps all bits.
struct InFewerBits<'a>(&'a Case, Precision);

impl OnBackend for InFewerBits<'_> {
    type Output = Option<(u32, Outcome)>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let Self(case, precision) = self;
        precision.check::<B>(&device).ok()?;
        precision.set_up();
        let bits = match precision {
            Precision::F32 | Precision::Tf32 => -product_roundoff::<B>(&device).log2() as u32 - 1,
            Precision::Bf16 => 7,
        };
        let pass = || case.pass::<B>(&case.config, &case.weights, &device);
        let found = (bits < f32::MANTISSA_DIGITS - 1).then(|| (bits, precision.during(pass)));
        Precision::F32.set_up();
        found
    }
}

/// Computes products in `precision`, and their gradients. The factors have sides of at least 256, for which a backend
/// may have separate kernels. Returns `None` if the device lacks the precision.
struct LargeProducts(Precision);

impl OnBackend for LargeProducts {
    type Output = Option<Vec<(&'static str, Vec<TensorData>)>>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let Self(precision) = self;
        precision.check::<B>(&device).ok()?;
        precision.set_up();
        let [n, k, m] = [300, 320, 260];
        // Between −1 and 1, the same on every device.
        let draw = |shape: [usize; 4]| {
            let of = |i: usize| ((i * 2_654_435_761) % 65_536) as f32 / 32_768.0 - 1.0;
            let values: Vec<f32> = (0..shape.iter().product()).map(of).collect();
            Tensor::<B, 4>::from_data(TensorData::new(values, shape), &device).require_grad()
        };
        let swap = |x: Tensor<B, 4>, axes: [usize; 2]| x.swap_dims(axes[0], axes[1]);
        let factors = [
            ("one product", draw([1, 1, n, k]), draw([1, 1, k, m]), None),
            ("six products", draw([2, 3, n, k]), draw([2, 3, k, m]), None),
            (
                "transposed factors",
                draw([2, 3, k, n]),
                draw([2, 3, m, k]),
                Some([2, 3]),
            ),
            (
                "heads of rows",
                draw([2, n, 3, k]),
                draw([2, k, 3, m]),
                Some([1, 2]),
            ),
        ];
        let all = factors.map(|(name, a, b, axes)| {
            let of = |x: &Tensor<B, 4>| axes.map_or(x.clone(), |axes| swap(x.clone(), axes));
            let product = precision.during(|| matmul(of(&a), of(&b)));
            let gradients = product.clone().square().sum().backward();
            let gradient = |x: &Tensor<B, 4>| x.grad(&gradients).unwrap().into_data();
            let product = product.into_data();
            (
                name,
                [product, gradient(&a), gradient(&b)]
                    .map(|x| x.convert::<f32>())
                    .into(),
            )
        });
        Precision::F32.set_up();
        Some(all.into())
    }
}

#[test]
fn large_products_and_their_gradients_are_right_up_to_rounding() {
    let _turn = my_turn();
    let exact = BackendKind::Flex.run(None, LargeProducts(Precision::F32));
    let exact = exact.unwrap().unwrap();
    for kind in tested() {
        for (precision, tolerance) in [
            (Precision::F32, 2e-5),
            (Precision::Tf32, 2e-3),
            (Precision::Bf16, 1e-2),
        ] {
            let found = kind.run(kind.default_gpu(), LargeProducts(precision));
            let Some(found) = found.unwrap_or_else(|e| panic!("{e}")) else {
                continue;
            };
            for ((name, exact), (_, found)) in exact.iter().zip(&found) {
                for (what, (exact, found)) in ["product", "gradient of a", "gradient of b"]
                    .iter()
                    .zip(exact.iter().zip(found))
                {
                    let largest = exact.iter::<f64>().fold(0.0, |m: f64, x| m.max(x.abs()));
                    let apart = exact.iter::<f64>().zip(found.iter::<f64>());
                    let apart = apart.fold(0.0, |m: f64, (a, b)| m.max((a - b).abs()));
                    assert!(
                        apart <= tolerance * largest,
                        "{kind}, {precision:?}, {name}, {what}: {apart} of {largest}"
                    );
                }
            }
        }
    }
}

/// Returns ‖a − b‖₂ over all gradients.
fn distance(a: &BTreeMap<String, Values>, b: &BTreeMap<String, Values>) -> f64 {
    let pairs = a
        .iter()
        .flat_map(|(name, a)| a.data.iter().zip(&b[name].data));
    pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn gradients_of_products_in_fewer_bits_are_those_in_f32_up_to_rounding() {
    let _turn = my_turn();
    let device = Default::default();
    let mut failures = Vec::new();
    for case in &cases() {
        let on_flex = |weights: &BTreeMap<String, TensorData>| {
            case.pass::<Autodiff<Flex>>(&case.config, weights, &device)
        };
        let exact = LazyCell::new(|| on_flex(&case.weights));
        for kind in tested() {
            for precision in [Precision::F32, Precision::Tf32, Precision::Bf16] {
                let found = kind.run(kind.default_gpu(), InFewerBits(case, precision));
                let Some((bits, found)) = found.unwrap_or_else(|e| panic!("{e}")) else {
                    continue;
                };
                let rounded = on_flex(&rounded_weights(case, bits));
                let logits =
                    |a: &Outcome| BTreeMap::from([("logits".to_owned(), a.logits.clone())]);
                let [of_logits, of_gradients] = [
                    distance(&logits(&found), &logits(&exact))
                        / distance(&logits(&rounded), &logits(&exact)),
                    distance(&found.gradients, &exact.gradients)
                        / distance(&rounded.gradients, &exact.gradients),
                ];
                let line = format!(
                    "{:32} {kind:8} {bits:2} bits: logits {of_logits:.2}, gradients {of_gradients:.2}",
                    case.name
                );
                println!("{line}");
                // The errors must have the size of rounding errors: neither zero nor larger.
                let is_rounding = |factor| (0.1..=BOUND).contains(&factor);
                // The gradient of a ReLU jumps at 0. With ten bits, rounding causes so few jumps that often only one of
                // the two rounded passes has any.
                let jumps = case.arch == "resnet" && precision != Precision::Bf16;
                if !is_rounding(of_logits) || !(jumps || is_rounding(of_gradients)) {
                    failures.push(line);
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

struct Gradients(Zoo, BTreeMap<String, TensorData>, TensorData);

impl OnBackend for Gradients {
    type Output = [Outcome; 2];

    fn run<B: AutodiffBackend>(self, device: B::Device) -> [Outcome; 2] {
        let Self(config, weights, ids) = self;
        [Precision::F32, Precision::Bf16].map(|precision| {
            let (weights, inputs, targets) = (weights.clone(), ids.clone(), ids.clone());
            precision.during(|| run::<B, Zoo>(&config, VOCAB, weights, inputs, targets, &device))
        })
    }
}

/// A sum of hundreds of gradients in bf16 would lose the small ones.
#[test]
fn the_gradients_of_all_uses_of_a_parameter_are_summed_in_f32() {
    let _turn = my_turn();
    let context = 1024;
    let model = format!(
        "(model: Composed(recurrence: (block: 2), \
         layers: [Gpt2(n_layer: 1, n_head: 2, width: 16, context: {context})]))"
    );
    let config: RunConfig = RunConfig::parse(&model, Path::new("long.ron")).unwrap();
    let ids = (0..context as i64).map(|i| i * i * 7 % VOCAB as i64);
    let ids = TensorData::new(ids.collect::<Vec<_>>(), [1, context]);
    for kind in kinds() {
        let task = Gradients(config.model.clone(), weights(&config.model), ids.clone());
        let [exact, found] = kind.run(kind.default_gpu(), task).unwrap();
        for (name, exact) in &exact.gradients {
            let pairs = || exact.data.iter().zip(&found.gradients[name].data);
            let error = pairs().map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            let size = exact.data.iter().map(|a| a * a).sum::<f64>().sqrt();
            println!("{kind}, {name}: {:.1e} of {size:.1e}", error / size);
            assert!(
                error <= 0.02 * size,
                "{kind}, {name}: {error:.1e} of {size:.1e}"
            );
        }
    }
}

/// Computes the loss, and the gradients of the inputs and of a table of 1027 tokens, in f32 and in bf16.
struct Ragged;

impl OnBackend for Ragged {
    type Output = [[Vec<f64>; 3]; 2];

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        const TOKENS: usize = 1027;
        let (rows, width) = (1100, 64);
        let draw = |rows| {
            let draw = Distribution::Normal(0.0, 0.3);
            Tensor::<B, 2>::random([rows, width], draw, &device).require_grad()
        };
        let (x, table) = (draw(rows), draw(TOKENS));
        let targets = (0..rows).map(|i| (i * 7919 % TOKENS) as i32);
        let targets = targets.collect::<Vec<_>>();
        let targets = Tensor::<B, 1, Int>::from_ints(&targets[..], &device);
        let numbers = |data: TensorData| data.iter::<f64>().collect::<Vec<_>>();
        [Precision::F32, Precision::Bf16].map(|precision| {
            let logits = precision.during(|| product(x.clone(), table.clone().transpose()));
            let loss = Loss::classification(logits, targets.clone()).objective(1e-4);
            let gradients = loss.backward();
            let of = |x: &Tensor<B, 2>| numbers(x.grad(&gradients).unwrap().into_data());
            [numbers(loss.into_data()), of(&x), of(&table)]
        })
    }
}

/// On CUDA, the zoo pads an odd number of tokens with further columns, for the tensor cores.
#[test]
fn an_odd_number_of_tokens_changes_a_pass_in_bf16_only_by_rounding() {
    let _turn = my_turn();
    for kind in kinds() {
        let [exact, found] = kind.run(kind.default_gpu(), Ragged).unwrap();
        for (exact, found) in exact.iter().zip(&found) {
            let pairs = exact.iter().zip(found);
            let error = pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            let size = exact.iter().map(|a| a * a).sum::<f64>().sqrt();
            assert!(error <= 0.01 * size, "{kind}: {error:.1e} of {size:.1e}");
            assert!(exact.len() == found.len() && size > 0.0);
        }
    }
}

/// Computes log Z of a row with one NaN logit, for each position of the NaN.
struct WithNan;

impl OnBackend for WithNan {
    type Output = Vec<f64>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Vec<f64> {
        let count = 70;
        let logits = Tensor::<B, 2>::zeros([count, count], &device);
        let logits = logits.mask_fill(
            Tensor::diag_mask([count, count], 0, &device).bool_not(),
            f32::NAN,
        );
        let targets = Tensor::<B, 1, Int>::zeros([count], &device);
        let log_z = log_z_and_target(logits, targets).narrow(1, 0, 1);
        log_z.into_data().iter().collect()
    }
}

#[test]
fn a_logit_that_is_not_a_number_shows_in_log_z() {
    for kind in tested() {
        let log_z = kind.run(kind.default_gpu(), WithNan).unwrap();
        assert!(log_z.iter().all(|x| x.is_nan()), "{kind}: {log_z:?}");
    }
}

#[cfg(feature = "tch")]
#[test]
fn a_gpu_that_does_not_exist_is_an_error_that_counts_the_others() {
    use residual_zoo_system::Blame as _;

    let error = BackendKind::LibTorch.run(Some(99), WithNan).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("there is no GPU 99: LibTorch finds "),
        "{text}"
    );
    assert!(error.is_bad_input());
}

#[cfg(feature = "tch")]
#[test]
fn memory_that_a_device_does_not_have_is_an_error() {
    use residual_zoo_system::Blame as _;

    struct Huge;
    impl OnBackend for Huge {
        type Output = ();

        fn run<B: AutodiffBackend>(self, device: B::Device) {
            let x = Tensor::<B, 1>::ones([1_usize << 44], &device);
            println!("{:?}", x.sum().into_data());
        }
    }
    let kind = BackendKind::LibTorch;
    let error = kind.run(kind.default_gpu(), Huge).unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("backend `tch` is out of memory: it has no room for another "),
        "{text}"
    );
    assert!(text.contains("make the batch smaller"), "{text}");
    assert!(!error.is_bad_input());
}

struct Check(Precision);

impl OnBackend for Check {
    type Output = Result<(), ConfigError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        self.0.check::<B>(&device)
    }
}

struct Usual;

impl OnBackend for Usual {
    type Output = Precision;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Precision {
        Precision::usual::<B>(&device)
    }
}

/// Returns the tested backends that have products in bf16.
fn kinds() -> impl Iterator<Item = BackendKind> {
    let has = |kind: &BackendKind| {
        kind.run(kind.default_gpu(), Check(Precision::Bf16))
            .unwrap_or_else(|e| panic!("{e}"))
            .is_ok()
    };
    tested().into_iter().filter(has)
}

#[test]
fn backends_without_bf16_say_why() {
    let _turn = my_turn();
    for kind in tested() {
        let usual = kind.run(kind.default_gpu(), Usual).unwrap();
        assert_eq!(usual, usual_precision(kind));
        kind.run(kind.default_gpu(), Check(usual)).unwrap().unwrap();
        // Without the zoo's kernels, CUDA has no products in f32.
        let is_plain = plain_only() || cfg!(feature = "fusion");
        let without_kernels = kind == BackendKind::Cuda && is_plain;
        let f32 = kind.run(kind.default_gpu(), Check(Precision::F32));
        assert_eq!(f32.unwrap().is_ok(), !without_kernels, "{kind}");
        let checked = kind
            .run(kind.default_gpu(), Check(Precision::Bf16))
            .unwrap();
        match kind {
            BackendKind::LibTorch => checked.unwrap(),
            BackendKind::Flex => {
                let problem = checked.unwrap_err().to_string();
                assert!(
                    problem.contains("precision") && problem.contains("--backend tch"),
                    "{problem}"
                );
            }
            // Support depends on the device.
            _ => println!("{kind}: {checked:?}"),
        }
    }
}

struct Train<'a>(RunConfig, &'a Path);

impl OnBackend for Train<'_> {
    type Output = Summary;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Summary {
        let Self(config, directory) = self;
        let corpus = Corpus::open(&config.data).unwrap();
        let options = RunOptions {
            allow_config_change: true,
            ..RunOptions::new(directory)
        };
        let _turn = my_turn();
        residual_zoo_train::run::<B, _>(config, &corpus, &options, device).unwrap()
    }
}

#[test]
fn runs_in_bf16_repeat_recompute_and_continue_in_f32() {
    for kind in kinds() {
        for (name, model) in MODELS {
            let scratch = Scratch::new();
            let config: RunConfig = RunConfig::read(&runs::config(&scratch, model)).unwrap();
            let train = |run: &str, precision, change: &dyn Fn(&mut RunConfig)| {
                let mut config = config.clone();
                config.train.precision = precision;
                change(&mut config);
                kind.run(kind.default_gpu(), Train(config, &scratch.path(run)))
                    .unwrap();
            };
            let same = |_: &mut RunConfig| ();
            train("f32", None, &same);
            train("bf16", Some(Precision::Bf16), &same);
            train("again", Some(Precision::Bf16), &same);
            let expected = outcome(&scratch.path("bf16"));
            let what = format!("{name} on {kind}");
            let exact = kind == BackendKind::LibTorch;
            let (again, weights) = differences(&scratch.path("again"), &expected);
            if exact {
                assert_same(&scratch.path("again"), &expected, &what);
            }
            train("recomputed", Some(Precision::Bf16), &|config| {
                config.train.recompute = Some(Recompute::Layers);
            });
            let (recomputed, _) = differences(&scratch.path("recomputed"), &expected);
            // The two halves of the run have different precisions.
            train("both", Some(Precision::Bf16), &|config| {
                config.train.steps /= 2
            });
            train("both", None, &same);
            let [f32, bf16, both] =
                ["f32", "bf16", "both"].map(|run| final_loss(&scratch.path(run)));
            println!(
                "{what}: f32 {f32:.4}, bf16 {bf16:.4}, half in each {both:.4}; again {again:.1e}, \
                 recomputed {recomputed:.1e}"
            );
            assert!(bf16 != f32, "{what}: nothing was rounded");
            assert!(
                (bf16 - f32).abs() < 0.02 && (both - f32).abs() < 0.2,
                "{what}"
            );
            // Recomputation sums in another order, and bf16 then rounds some sums in the other direction.
            let exact = exact && !model.contains("recurrence") && !model.contains("k: 2");
            let limit = if exact { 0.0 } else { 1e-2 };
            // With fusion, the second run also sums in another order.
            let of_again = if cfg!(feature = "fusion") { 1e-2 } else { 1e-5 };
            assert!(again <= of_again && weights <= of_again, "{what}");
            assert!(recomputed <= limit, "{what}");
        }
    }
}

fn final_loss(run: &Path) -> f64 {
    let rows = run_dir::read_metrics(run).unwrap();
    rows.last().and_then(|row| row.valid_loss).unwrap()
}

/// A model that was trained in f32 is evaluated in bf16, and the results say so.
#[test]
fn a_trained_model_computes_in_bf16_too() {
    let scratch = Scratch::new();
    let file = runs::config(&scratch, MODELS[0].1);
    let run = scratch.path("run");
    let config: RunConfig = RunConfig::read(&file).unwrap();
    let flex = BackendKind::first().unwrap();
    flex.run(flex.default_gpu(), Train(config, &run)).unwrap();
    let run = Run::open(&run).unwrap();
    let ids: Vec<u32> = (0..run.tokenizer.vocab_size() as u32)
        .cycle()
        .take(300)
        .collect();
    let text = scratch.file("text.txt", run.tokenizer.decode(&ids).unwrap());
    let tasks = [Task::read(text.to_str().unwrap(), None).unwrap()];
    for kind in kinds() {
        let loss = |precision, directory: &str| {
            let options = Evaluation {
                directory: scratch.path(directory),
                batch: 2,
                stride: None,
            };
            let place = Place {
                precision,
                ..(kind, kind.default_gpu()).into()
            };
            let stop = Interrupter::new();
            let found = residual_zoo_drive::evaluate(&run, &tasks, &options, place, &stop).unwrap();
            let results = std::fs::read_to_string(options.directory.join("results.json")).unwrap();
            (found[0].metrics[0].value, found[0].notes.len(), results)
        };
        let name = kind.to_string();
        let (f32, _, results) = loss(None, &name);
        assert!(results.contains(r#""precision": "f32""#), "{results}");
        let (bf16, notes, results) = loss(Some(Precision::Bf16), &name);
        assert!(results.contains(r#""precision": "bf16""#), "{results}");
        assert!(notes > 0, "samples of f32 are not those of bf16");
        assert!(
            bf16 != f32 && (bf16 / f32 - 1.0).abs() < 0.02,
            "{f32} {bf16}"
        );
    }
}
