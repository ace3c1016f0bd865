//! Properties that every architecture must have, as one test.
//!
//! An architecture calls [`check`] from its own tests with a small config:
//!
//! ```ignore
//! #[test]
//! fn keeps_the_contract() {
//!     let config = MyConfig { n_layer: 2, width: 60, ..MyConfig::default() };
//!     contract::check::<Autodiff<Flex>, _>(&PlainModel(config), &Default::default());
//! }
//! ```

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{
    Distribution, Int, Tensor, TensorData,
    backend::{AutodiffBackend, Backend},
};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::ops::loss::Loss;
use crate::params::{ParamInfo, Role};
use crate::recompute::Seeds;
use crate::{
    Cache, ImageSize, Input, LanguageModel, ModelConfig, Recompute, Vocabulary, autodiff, params,
    product_roundoff, recompute,
};

/// Number of sequences in a test batch. The test sizes are odd and differ, so a transposed or wrongly reshaped axis
/// does not fit.
const BATCH: usize = 3;
/// Number of positions of the test sequences.
pub const TIME: usize = 63;
/// Number of token ids of the test models.
pub const VOCAB: usize = 37;

/// Waits until no other test holds the guard, and returns it.
///
/// Every test that computes gradients holds the guard. In Burn 0.21, a backward pass also drops seemingly unused nodes
/// from the graphs of other threads (`GraphCleaner::cleanup_orphaned_entries`). A tensor on its way from one operation
/// to the next looks unused. The gradients of the tensors before it can then be lost.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks a model built by `config`, which must have no dropout and a context of at least [`TIME`].
///
/// 1. Logits are finite and `[batch, time, vocab]`, at the lengths 1, 2 and [`TIME`].
/// 2. The model is causal: a change at position t changes logits from t on, and none before t.
/// 3. The sequences of a batch are independent.
/// 4. Every trainable parameter has a finite, non-zero gradient.
/// 5. Logits are the same after the parameters are exported and imported into another model.
/// 6. An incremental pass gives the same logits as a full pass over the tokens so far. If the cache can join rows,
///    sequences that began at different times can continue together.
/// 7. The number of trainable parameters equals the number that the config counts.
/// 8. The class logits are the logits of the last position.
/// 9. The model without autodiff gives the same logits.
/// 10. With [recomputed](crate::recompute) activations, the loss is the same, bit for bit where operations are not
///     fused. The gradients are the same up to rounding.
/// 11. A new model is on its [constraint set](crate::ModelConfig::constrain), up to rounding. `constrain` changes every
///     [unit matrix](crate::unit) of another model, and nothing else.
///
/// Waits until no other test holds the [guard](alone).
///
/// # Panics
///
/// Panics if a property is violated. The message names it.
pub fn check<B, C>(config: &C, device: &B::Device)
where
    B: AutodiffBackend,
    C: ModelConfig,
{
    let _alone = alone();
    let vocabulary = VOCAB.into();
    let model = shaken::<B, C>(config, vocabulary, device);
    let sample = Sample::text(TIME, device);
    keeps_shape(&model, device);
    is_causal(&model, device);
    behaves::<B, C>(config, vocabulary, &model, &sample, device);
    decodes_as_it_reads(&model, device);
    joins_rows(&model, device);
    classifies_by_the_last_position(&model, device);
    // On short sequences, `Layers` cuts the pass at each update of the stream.
    let few = Sample::text(4, device);
    recomputes_what_it_computed::<B, C>(&model, Recompute::Layers, &few);
    recomputes_what_it_computed::<B, C>(&model, Recompute::Every(1), &sample);
}

/// Checks an image model built by `config`, which must have no dropout, on images of this `size`. Logits must be finite
/// and `[batch, 1, classes]`, and every part of the image must affect them. Properties 3 to 5, 7 and 9 to 11 of
/// [`check`] must hold too.
///
/// Waits until no other test holds the [guard](alone).
///
/// # Panics
///
/// Panics if a property is violated. The message names it.
pub fn check_images<B, C>(config: &C, size: ImageSize, device: &B::Device)
where
    B: AutodiffBackend,
    C: ModelConfig,
{
    let _alone = alone();
    let vocabulary = Vocabulary::of_images(size, VOCAB);
    let model = shaken::<B, C>(config, vocabulary, device);
    let sample = Sample::images(size, device);
    let logits = model.forward(sample.input.clone());
    assert_eq!(logits.dims(), [BATCH, 1, VOCAB], "shape of the logits");
    assert!(
        values(logits).iter().all(|x| x.is_finite()),
        "finite logits"
    );
    sees_every_part(&model, size, device);
    behaves::<B, C>(config, vocabulary, &model, &sample, device);
    for cut in [Recompute::Layers, Recompute::Every(1)] {
        recomputes_what_it_computed::<B, C>(&model, cut, &sample);
    }
}

/// Draws all trained parameters of a model again. `seed` alone decides the draws. Numbers from the backend's random
/// generator, which all threads share, would depend on other tests.
pub fn redrawn<B: Backend, M: Module<B>>(model: M, from: Distribution, seed: u64) -> M {
    let mut weights = params::export(&model);
    for (name, drawn) in drawn(&model, from, seed) {
        weights.insert(name, drawn);
    }
    params::import(model, weights).expect("tensors of the same shapes")
}

/// Draws a tensor for each trained parameter of a model.
fn drawn<B: Backend, M: Module<B>>(
    model: &M,
    from: Distribution,
    seed: u64,
) -> BTreeMap<String, TensorData> {
    let mut rng = StdRng::seed_from_u64(seed);
    let draw = |info: ParamInfo| {
        let drawn = TensorData::random::<f32, _, _>(info.shape, from, &mut rng);
        (info.name, drawn)
    };
    let all = params::list(model).into_iter();
    all.filter(|info| info.trainable).map(draw).collect()
}

/// Builds the model of `config` with reproducible, non-zero trained weights. Each trained weight that the model draws
/// is replaced by a number from N(0, 0.1²), and such a number is added to every other trained weight.
fn shaken<B, C>(config: &C, vocabulary: Vocabulary, device: &B::Device) -> C::Model<B>
where
    B: AutodiffBackend,
    C: ModelConfig,
{
    assert!(
        config.shape().dropout == 0.0,
        "the contract needs a config without dropout"
    );
    let build = || {
        config
            .build::<B>(vocabulary, device)
            .expect("a valid config")
    };
    let (model, other) = (build(), params::export(&build()));
    counts_parameters::<B, C>(config, vocabulary, &model);
    let mut weights = params::export(&model);
    for (name, noise) in drawn(&model, Distribution::Normal(0.0, 0.1), 7) {
        let weight = &weights[&name];
        // Initial zeros would hide terms, and errors in them. Weights that are equal in two models were not drawn.
        let weight = match *weight == other[&name] {
            true => {
                let sums = weight.iter::<f32>().zip(noise.iter::<f32>());
                let sums: Vec<f32> = sums.map(|(weight, noise)| weight + noise).collect();
                TensorData::new(sums, weight.shape.clone())
            }
            false => noise,
        };
        weights.insert(name, weight);
    }
    params::import(model, weights).expect("tensors of the same config")
}

/// Checks the properties that language models and image models share.
fn behaves<B, C>(
    config: &C,
    vocabulary: Vocabulary,
    model: &C::Model<B>,
    sample: &Sample<B>,
    device: &B::Device,
) where
    B: AutodiffBackend,
    C: ModelConfig,
{
    keeps_rows_independent(model, &sample.input);
    reaches_every_parameter::<B, C>(model, sample);
    let other = config
        .build::<B>(vocabulary, device)
        .expect("a valid config");
    stays_on_its_constraints::<B, C>(config, &other, model);
    survives_export(model, other, &sample.input);
    let inner = config.assemble::<B::InnerBackend>(vocabulary, device);
    validates_as_it_trains::<B, C>(model, inner, sample);
}

/// A batch with its targets.
struct Sample<B: Backend> {
    input: Input<B>,
    /// `[batch, scored]`.
    targets: Tensor<B, 2, Int>,
}

impl<B: AutodiffBackend> Sample<B> {
    fn text(time: usize, device: &B::Device) -> Self {
        let ids = ids(BATCH, time + 1, device);
        Self {
            input: ids.clone().narrow(1, 0, time).into(),
            targets: ids.narrow(1, 1, time),
        }
    }

    fn images(size: ImageSize, device: &B::Device) -> Self {
        Self {
            input: images(size, device).into(),
            targets: ids(BATCH, 1, device),
        }
    }
}

/// Draws random images.
fn images<B: Backend>(size: ImageSize, device: &B::Device) -> Tensor<B, 4> {
    let shape = [BATCH, size.channels, size.height, size.width];
    let values = Distribution::Normal(0.0, 1.0);
    let values = TensorData::random::<f32, _, _>(shape, values, &mut StdRng::seed_from_u64(8));
    Tensor::from_data(values, device)
}

fn sees_every_part<B: Backend>(model: &impl LanguageModel<B>, size: ImageSize, device: &B::Device) {
    let image = images::<B>(size, device).narrow(0, 0, 1);
    let before = model.forward(image.clone());
    // One image per value, in which only this value differs.
    let count = size.values();
    let one = Tensor::<B, 2>::eye(count, device);
    let others = image.reshape([1, count]) * (one.clone().neg() + 1.0) + one * 5.0;
    let ImageSize {
        channels,
        height,
        width,
    } = size;
    let after = model.forward(others.reshape([count, channels, height, width]));
    let effects = values((after - before).abs().max_dim(2));
    for (at, effect) in effects.into_iter().enumerate() {
        let (channel, row, column) = (at / (height * width), at / width % height, at % width);
        assert!(
            effect > 1e-5,
            "row {row}, column {column} of channel {channel} has no effect"
        );
    }
}

fn counts_parameters<B: AutodiffBackend, C: ModelConfig>(
    config: &C,
    vocabulary: Vocabulary,
    model: &C::Model<B>,
) {
    let counted = config.cost(vocabulary).params.total();
    let trainable = params::list::<B, _>(model)
        .into_iter()
        .filter(|p| p.trainable);
    let trainable: usize = trainable.map(|p| p.shape.iter().product::<usize>()).sum();
    assert_eq!(trainable, counted, "parameter count: model, then config");
}

fn keeps_shape<B: Backend>(model: &impl LanguageModel<B>, device: &B::Device) {
    for time in [1, 2, TIME] {
        let logits = model.forward(ids(BATCH, time, device));
        assert_eq!(logits.dims(), [BATCH, time, VOCAB], "shape of the logits");
        assert!(
            values(logits).iter().all(|x| x.is_finite()),
            "finite logits at length {time}"
        );
    }
}

fn is_causal<B: Backend>(model: &impl LanguageModel<B>, device: &B::Device) {
    let ids = ids(BATCH, TIME, device);
    let before = model.forward(ids.clone());
    for t in [1, TIME / 2, TIME - 1] {
        let other = (ids.clone().narrow(1, t, 1) + 1).remainder_scalar(VOCAB as i64);
        let after = model.forward(ids.clone().slice_assign([0..BATCH, t..t + 1], other));
        let earlier = |x: &Tensor<B, 3>| x.clone().narrow(1, 0, t);
        let later = |x: &Tensor<B, 3>| x.clone().narrow(1, t, TIME - t);
        assert_close(earlier(&after), earlier(&before), &format!("causal at {t}"));
        let effect = (later(&after) - later(&before)).abs().max();
        assert!(
            scalar(effect) > 1e-4,
            "the token at {t} has no effect from {t} on"
        );
    }
}

fn keeps_rows_independent<B: Backend>(model: &impl LanguageModel<B>, input: &Input<B>) {
    let together = model.forward(input.clone());
    for row in 0..BATCH {
        let alone = model.forward(match input.clone() {
            Input::Ids(ids) => Input::Ids(ids.narrow(0, row, 1)),
            Input::Images(images) => Input::Images(images.narrow(0, row, 1)),
        });
        assert_near(
            alone,
            together.clone().narrow(0, row, 1),
            "batch rows independent",
        );
    }
}

fn reaches_every_parameter<B, C>(model: &C::Model<B>, sample: &Sample<B>)
where
    B: AutodiffBackend,
    C: ModelConfig,
{
    let grads = gradients::<B, C>(model, None, sample).1;
    let mut largest = LargestGradient {
        grads: &grads,
        found: Vec::new(),
    };
    model.visit(&mut largest);
    let trainable = params::list::<B, _>(model);
    let trainable = trainable.iter().filter(|info| info.trainable);
    for (info, gradient) in trainable.zip(largest.found) {
        let gradient = gradient.unwrap_or(0.0);
        let good = gradient.is_finite() && gradient > 0.0;
        assert!(
            good,
            "gradient of `{}`: largest entry {gradient}",
            info.name
        );
    }
}

/// Returns the loss and the gradients of a pass with this recomputation setting.
fn gradients<B, C>(
    model: &C::Model<B>,
    cut: Option<Recompute>,
    sample: &Sample<B>,
) -> (f64, GradientsParams)
where
    B: AutodiffBackend,
    C: ModelConfig,
{
    let input = sample.input.clone();
    let (logits, recording) = recompute::record(Seeds::default(), cut, || model.forward(input));
    let loss = Loss::new(logits, sample.targets.clone()).cross_entropy;
    let value = scalar(loss.clone().inner());
    let mut gradients = GradientsParams::new();
    recording.add_gradients(loss, model, &mut gradients);
    (value, gradients)
}

fn recomputes_what_it_computed<B, C>(model: &C::Model<B>, cut: Recompute, sample: &Sample<B>)
where
    B: AutodiffBackend,
    C: ModelConfig,
{
    let (loss, all) = gradients::<B, C>(model, None, sample);
    let (other_loss, other) = gradients::<B, C>(model, Some(cut), sample);
    // If an activation is not kept, a backend that fuses operations computes sums in another order.
    let device = sample.targets.device();
    let tolerance = match B::name(&device).contains("fusion") {
        true => 1e-6 * loss.abs(),
        false => 0.0,
    };
    assert!(
        (loss - other_loss).abs() <= tolerance,
        "loss {loss}, with recomputed activations ({cut:?}) {other_loss}"
    );
    let mut difference = LargestDifference {
        pair: [&all, &other],
        found: Vec::new(),
    };
    model.visit(&mut difference);
    let list = params::list::<B, _>(model);
    let found = list.iter().zip(difference.found);
    // At lower precision, a sum in another order can round a factor of the next product differently.
    let limit = product_roundoff::<B>(&device).max(1e-5);
    let wrong = found.filter(|(_, difference)| difference.is_nan() || *difference > limit);
    let wrong: Vec<String> = wrong
        .map(|(info, difference)| format!("`{}` {difference:.1e}", info.name))
        .collect();
    assert!(
        wrong.is_empty(),
        "gradients with recomputed activations differ, as shares of their largest entries: {}",
        wrong.join(", ")
    );
}

fn validates_as_it_trains<B, C>(
    model: &C::Model<B>,
    inner: C::Model<B::InnerBackend>,
    sample: &Sample<B>,
) where
    B: AutodiffBackend,
    C: ModelConfig,
{
    let inner = autodiff::without_autodiff::<B, _, _>(model, inner);
    let logits = inner.forward(match sample.input.clone() {
        Input::Ids(ids) => Input::Ids(ids.inner()),
        Input::Images(images) => Input::Images(images.inner()),
    });
    assert_close(
        Tensor::from_inner(logits),
        model.forward(sample.input.clone()),
        "the model without autodiff",
    );
}

/// Checks the constraints of the `new` model of `config`, and of `model`, which has other weights.
fn stays_on_its_constraints<B, C>(config: &C, new: &C::Model<B>, model: &C::Model<B>)
where
    B: AutodiffBackend,
    C: ModelConfig,
{
    let changes = |model: &C::Model<B>| {
        let after = config.constrain(model.clone());
        let list = params::list::<B, _>(model);
        let what = "ids, shapes and roles of constrained parameters";
        assert_eq!(params::list::<B, _>(&after), list, "{what}");
        let [before, after] = [model, &after].map(|model| params::export::<B, _>(model));
        let changes = list.into_iter().map(|info| {
            let [before, after] = [&before, &after].map(|all| all[&info.name].iter::<f64>());
            let change = before.zip(after).map(|(a, b)| (a - b).abs());
            let change = change.fold(0.0, f64::max);
            (info, change)
        });
        changes.collect::<Vec<_>>()
    };
    for (ParamInfo { name, .. }, change) in changes(new) {
        assert!(
            change < 1e-6,
            "`{name}` of a new model changes by {change:.1e} when it is constrained"
        );
    }
    for (ParamInfo { name, role, .. }, change) in changes(model) {
        let is_unit = role == Role::Unit;
        assert!(
            if is_unit {
                change > 1e-3
            } else {
                change == 0.0
            },
            "`{name}`, {role:?}, changes by {change:.1e} when it is constrained"
        );
    }
}

fn survives_export<B: Backend, M: LanguageModel<B>>(model: &M, other: M, input: &Input<B>) {
    let tensors: BTreeMap<String, TensorData> = params::export::<B, _>(model);
    let loaded = params::import::<B, _>(other, tensors).expect("tensors of the same config");
    let (ours, theirs) = (model.forward(input.clone()), loaded.forward(input.clone()));
    assert_eq!(
        values(ours),
        values(theirs),
        "logits after export and import"
    );
}

fn decodes_as_it_reads<B: Backend>(model: &impl LanguageModel<B>, device: &B::Device) {
    let ids = ids(BATCH, TIME, device);
    // A prompt, single tokens, a chunk that attends to earlier tokens, the rest.
    let pieces = [5, 1, 1, 7, TIME - 14];
    let mut cache = model.new_cache();
    let mut start = 0;
    for new in pieces {
        let logits = model.decode(ids.clone().narrow(1, start, new), &mut cache);
        let seen = model.forward(ids.clone().narrow(1, 0, start + new));
        let expected = seen.narrow(1, start, new);
        assert_near(
            logits,
            expected,
            &format!("incremental pass at {start}, {new} tokens"),
        );
        start += new;
    }
    assert_eq!(start, TIME);

    let mut cache = model.new_cache();
    model.decode(ids.clone().narrow(1, 0, 5), &mut cache);
    let predicted = model.predict(ids.clone().narrow(1, 5, 7), &mut cache);
    let seen = model.forward(ids.narrow(1, 0, 12));
    let expected = seen.narrow(1, 11, 1);
    assert_near(
        predicted.unsqueeze_dim(1),
        expected,
        "prediction after 12 tokens",
    );
}

/// Checks that sequences that began at different times continue as each sequence would alone.
fn joins_rows<B: Backend>(model: &impl LanguageModel<B>, device: &B::Device) {
    let ids = ids(BATCH, TIME, device);
    let prompt = |row: usize, time: usize| ids.clone().narrow(0, row, 1).narrow(1, 0, time);
    let mut all = model.new_cache();
    if !all.joins() {
        return;
    }
    let mut lengths = Vec::new();
    for (i, length) in [7, 3, 7, 5].into_iter().enumerate() {
        let mut cache = model.new_cache();
        model.predict(prompt(i % BATCH, length), &mut cache);
        match i {
            0 => all = cache,
            _ => all.join(cache),
        }
        lengths.push((i % BATCH, length));
    }
    for step in 0..4 {
        if step == 2 {
            let keep = [true, false, true, true];
            all.keep(&keep);
            lengths.remove(1);
        }
        let next = lengths
            .iter()
            .map(|&(row, length)| prompt(row, length + 1).narrow(1, length, 1));
        let logits = model.predict(Tensor::cat(next.collect(), 0), &mut all);
        for (i, (row, length)) in lengths.iter_mut().enumerate() {
            *length += 1;
            let expected = model
                .forward(prompt(*row, *length))
                .narrow(1, *length - 1, 1);
            let found = logits.clone().narrow(0, i, 1).unsqueeze_dim(1);
            assert_near(
                found,
                expected,
                &format!("row {i} of rows that began at different times"),
            );
        }
    }
}

fn classifies_by_the_last_position<B: Backend>(model: &impl LanguageModel<B>, device: &B::Device) {
    let ids = ids(BATCH, TIME, device);
    let last = model.forward(ids.clone()).narrow(1, TIME - 1, 1);
    let classes = model.classify(ids).unsqueeze_dim(1);
    assert_near(classes, last, "class logits");
}

/// Makes token ids that differ by sequence and position, and are the same on every backend.
fn ids<B: Backend>(batch: usize, time: usize, device: &B::Device) -> Tensor<B, 2, Int> {
    let id = |i: usize| ((i * i * 7 + i * 3 + i / TIME) % VOCAB) as i64;
    let ids: Vec<i64> = (0..batch * time).map(id).collect();
    Tensor::from_data(TensorData::new(ids, [batch, time]), device)
}

fn values<B: Backend, const D: usize>(x: Tensor<B, D>) -> Vec<f64> {
    x.into_data().iter::<f64>().collect()
}

fn scalar<B: Backend>(x: Tensor<B, 1>) -> f64 {
    values(x)[0]
}

/// Checks equality up to rounding, for f32 sums computed in another order.
fn assert_close<B: Backend>(a: Tensor<B, 3>, b: Tensor<B, 3>, claim: &str) {
    assert_within(2e-5, a, b, claim);
}

/// Checks equality of passes of different shapes, in which factors of products can round differently.
fn assert_near<B: Backend>(a: Tensor<B, 3>, b: Tensor<B, 3>, claim: &str) {
    let limit = product_roundoff::<B>(&a.device()).max(2e-5);
    assert_within(limit, a, b, claim);
}

fn assert_within<B: Backend>(limit: f64, a: Tensor<B, 3>, b: Tensor<B, 3>, claim: &str) {
    let scale = scalar(b.clone().abs().max()).max(1.0);
    let error = scalar((a - b).abs().max()) / scale;
    assert!(
        error < limit,
        "{claim}: differs by {error:.1e} of the largest logit"
    );
}

struct LargestGradient<'a> {
    grads: &'a GradientsParams,
    found: Vec<Option<f64>>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for LargestGradient<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if !param.is_require_grad() {
            return;
        }
        let gradient = self.grads.get::<B::InnerBackend, D>(param.id);
        self.found.push(gradient.map(|g| scalar(g.abs().max())));
    }
}

/// The largest difference between two gradients of each parameter, as a share of the first gradient's largest entry.
struct LargestDifference<'a> {
    pair: [&'a GradientsParams; 2],
    found: Vec<f64>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for LargestDifference<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let pair = self.pair.map(|g| g.get::<B::InnerBackend, D>(param.id));
        self.found.push(match pair {
            [Some(a), Some(b)] => scalar((a.clone() - b).abs().max()) / scalar(a.abs().max()),
            [None, None] => 0.0,
            _ => f64::INFINITY,
        });
    }
}
