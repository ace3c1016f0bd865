use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Int, Tensor, TensorData};
use residual_zoo_core::ops::loss::Loss;
use residual_zoo_core::params::{self, Role};
use residual_zoo_core::recompute::Recording;
use residual_zoo_core::{
    DecoderOf, LanguageModel, Muon, MuonForm, Mup, PlainModel, Recompute, Transfer as _,
};
use residual_zoo_data::{CopyConfig, Corpus, DataConfig, Source, SyntheticConfig, derive_seed};
use residual_zoo_gpt2::{Gpt2Base, Gpt2Config};

use crate::checkpoint::Journal;
use crate::trainer::read;
use residual_zoo_runs::generate::{Generator, Sampling};
use residual_zoo_runs::{Ema, OptimizerKind, RunConfig, Schedule, TrainConfig};

use crate::average::tests::of_average;
use crate::{Trainer, checkpoint};

pub(crate) type B = Autodiff<Flex>;
pub(crate) type Config = PlainModel<Gpt2Config>;
pub(crate) type Model = DecoderOf<B, Gpt2Config>;

pub(crate) fn config() -> RunConfig<Config> {
    let model = PlainModel(Gpt2Config {
        n_layer: 2,
        n_head: 2,
        width: 16,
        context: 12,
        tied: false,
        dropout: 0.1,
        ..Gpt2Config::default()
    });
    let train = TrainConfig {
        batch: 3,
        warmup: 2,
        steps: 20,
        validate_batches: 3,
        ..TrainConfig::default()
    };
    let source = Source::Synthetic(SyntheticConfig {
        tokens: 5_000,
        seed: 2,
        ..SyntheticConfig::default()
    });
    let data = DataConfig {
        source,
        ..DataConfig::default()
    };
    RunConfig { model, data, train }
}

/// Returns a config for the copying task, with sequences of 8, then 12, then 20 tokens.
fn copying() -> RunConfig<Config> {
    let mut config = config();
    config.model.0.context = 20;
    config.train.schedule = Schedule::Kausik;
    config.data.source = Source::Copying(CopyConfig {
        tokens: 2,
        noise: 4,
        most_noise: Some(16),
        selective: false,
    });
    config
}

/// Burn has one random generator per process, so tests that seed it take turns.
pub(crate) fn my_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn trainer(config: &RunConfig<Config>) -> Trainer<B, Config> {
    let corpus = Corpus::open(&config.data).unwrap();
    Trainer::new(config.clone(), &corpus, Default::default()).unwrap()
}

pub(crate) fn weights(model: &Model) -> BTreeMap<String, Vec<f64>> {
    let numbers = |data: TensorData| data.iter::<f64>().collect();
    params::export::<B, _>(model)
        .into_iter()
        .map(|(name, data)| (name, numbers(data)))
        .collect()
}

#[test]
fn a_step_is_adamw_with_decay_of_weights_alone() {
    let _turn = my_turn();
    let mut config = config();
    config.train.weight_decay = 0.5;
    config.train.grad_clip = None;
    assert_steps(&config, adamw);
    // Under μP, hidden weights have a learning rate of their own, which does not change the effect of weight decay.
    let base = Gpt2Base {
        width: config.model.0.width / 2,
        n_head: 1,
        d_ff: None,
    };
    config.model.0.mup = Some(Mup {
        base,
        init_std: 0.5,
        input: 2.0,
        attention: 1.5,
        output: 3.0,
    });
    assert_steps(&config, adamw);
}

/// Equals PyTorch's `SGD` with a momentum of 0.9.
#[test]
fn a_step_is_sgd_with_decay_of_weights_alone() {
    let _turn = my_turn();
    let mut config = config();
    config.train.weight_decay = 0.5;
    config.train.grad_clip = None;
    config.train.optimizer = OptimizerKind::Sgd { momentum: 0.9 };
    assert_steps(&config, |_, lr, _, decay, (x, g), [m, _]| {
        *m = 0.9 * *m + g + decay * *x;
        *x -= lr * *m;
    });
}

fn adamw(t: i32, lr: f64, rate: f64, decay: f64, (x, g): (&mut f64, f64), [m, v]: &mut [f64; 2]) {
    *m = 0.9 * *m + 0.1 * g;
    *v = 0.95 * *v + 0.05 * g * g;
    let (m, v) = (*m / (1.0 - 0.9f64.powi(t)), *v / (1.0 - 0.95f64.powi(t)));
    *x -= lr * (rate * m / (v.sqrt() + 1e-8) + decay * *x);
}

/// Asserts that `update` gives the results of three steps. `update` gets the number of the step, the learning rate, its
/// factor, the weight decay, a number with its gradient, and its moments.
fn assert_steps(
    config: &RunConfig<Config>,
    update: impl Fn(i32, f64, f64, f64, (&mut f64, f64), &mut [f64; 2]),
) {
    let mut trainer = trainer(config);
    let roles: BTreeMap<String, Role> = params::list::<B, _>(trainer.model())
        .into_iter()
        .map(|p| (p.name, p.role))
        .collect();
    let mut expected = weights(trainer.model());
    let mut moments: BTreeMap<String, Vec<[f64; 2]>> = BTreeMap::new();
    for t in 1..=3 {
        let lr = trainer.learning_rate();
        let batch = trainer.upload(&trainer.batch(0).unwrap());
        let (loss, recording) = trainer.forward(batch, 0);
        let grads = gradients_of(&trainer, &loss, recording);
        let mut gradients = Gradients {
            grads: &grads,
            found: Vec::new(),
        };
        trainer.model().visit(&mut gradients);
        let names = params::list::<B, _>(trainer.model())
            .into_iter()
            .map(|p| p.name);
        for (name, gradient) in names.zip(gradients.found) {
            let decay = if roles[&name] == Role::Weight {
                0.5
            } else {
                0.0
            };
            let rate = config.model.rate(&name);
            let x = expected.get_mut(&name).unwrap();
            let moments = moments
                .entry(name)
                .or_insert_with(|| vec![[0.0; 2]; x.len()]);
            for ((x, g), moments) in x.iter_mut().zip(gradient).zip(moments) {
                update(t, lr, rate, decay, (x, g), moments);
            }
        }
        trainer.update(loss.cross_entropy.inner(), grads, vec![]);
    }
    for (name, found) in weights(trainer.model()) {
        for (a, b) in found.iter().zip(&expected[&name]) {
            assert!((a - b).abs() < 1e-6, "{name}: {a} is not {b}");
        }
    }
    let decays: Vec<Role> = roles.into_values().collect();
    assert!(decays.contains(&Role::Bias) && decays.contains(&Role::Unembedding));
}

#[test]
fn clipping_acts_on_the_norm_of_all_gradients_together() {
    let _turn = my_turn();
    let norm_and_change = |grad_clip| {
        let mut config = config();
        config.train.grad_clip = grad_clip;
        // With a huge eps, a step of AdamW moves each weight in proportion to its gradient.
        config.train.eps = 1e6;
        config.train.learning_rate = 1e6;
        config.train.weight_decay = 0.0;
        config.train.warmup = 0;
        let mut trainer = trainer(&config);
        let before = weights(trainer.model());
        let norm = trainer.step().unwrap().grad_norm;
        let after = weights(trainer.model());
        let square = |(name, x): (&String, &Vec<f64>)| -> f64 {
            x.iter()
                .zip(&before[name])
                .map(|(a, b)| (a - b).powi(2))
                .sum()
        };
        (norm, after.iter().map(square).sum::<f64>().sqrt())
    };
    let (norm, free) = norm_and_change(None);
    assert!((free / norm - 1.0).abs() < 1e-3, "{free} is not {norm}");
    let (same_norm, clipped) = norm_and_change(Some(0.1));
    assert_eq!(norm, same_norm, "the norm is reported before clipping");
    assert!((clipped / 0.1 - 1.0).abs() < 1e-3, "{clipped} is not 0.1");
    let (_, loose) = norm_and_change(Some(1e3));
    assert!((loose / norm - 1.0).abs() < 1e-3);
}

#[test]
fn accumulated_gradients_are_those_of_one_large_batch() {
    let _turn = my_turn();
    let mut config = config();
    config.model.0.dropout = 0.0;
    config.train.accumulate = 2;
    let mut two = trainer(&config);
    let (a, b) = (two.batch(0).unwrap(), two.batch(1).unwrap());
    assert_ne!(a.inputs, b.inputs);
    let step = two.step().unwrap();

    config.train.accumulate = 1;
    config.train.batch *= 2;
    let mut one = trainer(&config);
    let mut large = a;
    large.inputs.extend(&b.inputs);
    large.targets.extend(&b.targets);
    large.batch *= 2;
    let (loss, recording) = one.forward(one.upload(&large), 0);
    let grads = gradients_of(&one, &loss, recording);
    let large = one.update(loss.cross_entropy.inner(), grads, vec![]);

    assert!((step.loss - large.loss).abs() < 1e-5);
    assert!((step.grad_norm / large.grad_norm - 1.0).abs() < 1e-4);
    assert_eq!(one.progress.tokens, two.progress.tokens);
    assert_eq!(one.progress.flops, two.progress.flops);
}

#[test]
fn a_restored_checkpoint_continues_bit_for_bit() {
    let _turn = my_turn();
    let nanochat = Muon {
        form: MuonForm::Nanochat { beta_2: 0.9 },
        ..Muon::default()
    };
    let optimizers = [
        OptimizerKind::AdamW,
        OptimizerKind::Sgd { momentum: 0.9 },
        OptimizerKind::Muon(Muon::default()),
        OptimizerKind::Muon(nanochat),
    ];
    for optimizer in optimizers {
        let mut config = config();
        config.train.optimizer = optimizer;
        config.train.ema = Some(Ema::default());
        continues_bit_for_bit(&config);
    }
}

#[test]
fn a_budget_of_tokens_gives_the_steps_that_reach_it() {
    let _turn = my_turn();
    let mut config = config();
    let per_step = config.tokens_per_step() as f64;
    for (tokens, steps) in [(1.0, 1), (7.0 * per_step, 7), (7.0 * per_step + 1.0, 8)] {
        config.train.tokens = Some(tokens);
        assert_eq!(trainer(&config).config.train.steps, steps);
    }
}

#[test]
fn the_moments_of_another_optimizer_are_an_error() {
    let _turn = my_turn();
    let directory = tempfile::tempdir().unwrap();
    let of = |optimizer| {
        let mut config = config();
        config.train.optimizer = optimizer;
        config
    };
    let sgd = of(OptimizerKind::Sgd { momentum: 0.9 });
    let muon = of(OptimizerKind::Muon(Muon::default()));
    let pairs = [
        (config(), sgd.clone()),
        (sgd, muon.clone()),
        (muon, config()),
    ];
    for (i, (from, to)) in pairs.iter().enumerate() {
        let path = directory.path().join(format!("step-0000000{i}"));
        let mut trained = trainer(from);
        trained.step().unwrap();
        checkpoint::save(&trained, &Journal::default(), &path).unwrap();
        let error = checkpoint::load(&mut trainer(to), &path).unwrap_err();
        assert!(error.to_string().contains(".second`"), "{error}");
    }
}

fn continues_bit_for_bit(config: &RunConfig<Config>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("step-00000003");
    let mut straight = trainer(config);
    for _ in 0..3 {
        straight.step().unwrap();
    }
    checkpoint::save(&straight, &Journal::default(), &path).unwrap();
    let mut resumed = trainer(config);
    checkpoint::load(&mut resumed, &path).unwrap();
    assert_eq!(resumed.progress, straight.progress);
    for _ in 0..3 {
        let (a, b) = (straight.step().unwrap(), resumed.step().unwrap());
        assert_eq!((a.loss, a.grad_norm), (b.loss, b.grad_norm));
    }
    assert_eq!(weights(straight.model()), weights(resumed.model()));
    assert_eq!(of_average(&straight), of_average(&resumed));
    assert_eq!(straight.validate().unwrap(), resumed.validate().unwrap());
}

#[test]
fn what_stands_at_the_place_of_a_checkpoint_is_kept() {
    let _turn = my_turn();
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    let path = place("step-00000000");
    let trained = trainer(&config());
    let journal = Journal::default();
    let save = |replaces| {
        let saved = checkpoint::save_if(&trained, &journal, &path, replaces, || Ok(()));
        assert!(path.join("manifest.json").is_file());
        saved.unwrap()
    };
    assert_eq!(save(false), None);
    // The run's own checkpoint is replaced.
    assert_eq!(save(true), None);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    assert_eq!(save(false), Some(place("moved-step-00000000")));
    // Another program has put a file or a directory in its place.
    std::fs::remove_dir_all(&path).unwrap();
    std::fs::write(&path, "mine").unwrap();
    let moved = save(true).unwrap();
    assert_eq!(moved, place("moved-step-00000000.2"));
    assert_eq!(std::fs::read_to_string(moved).unwrap(), "mine");
    std::fs::remove_dir_all(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_eq!(save(true), Some(place("moved-step-00000000.3")));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 4);
}

#[test]
fn a_damaged_checkpoint_is_an_error() {
    let _turn = my_turn();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("step-00000001");
    let config = config();
    let mut trained = trainer(&config);
    trained.step().unwrap();
    checkpoint::save(&trained, &Journal::default(), &path).unwrap();
    for file in ["model.safetensors", "optimizer.safetensors", "state.json"] {
        let whole = std::fs::read(path.join(file)).unwrap();
        std::fs::write(path.join(file), &whole[..whole.len() / 2]).unwrap();
        let error = checkpoint::load(&mut trainer(&config), &path).unwrap_err();
        assert!(error.to_string().contains(file), "{error}");
        std::fs::write(path.join(file), whole).unwrap();
    }
    // Undamaged files: first the moments of a parameter that the model does not have, then a checkpoint of another
    // model.
    let tensors = std::fs::read(path.join("optimizer.safetensors")).unwrap();
    let name = b"\\\"embeddings.tokens.weight\\\"";
    let at = tensors.windows(name.len()).position(|w| w == name).unwrap();
    let mut renamed = tensors.clone();
    renamed[at + 2] = b'x';
    std::fs::write(path.join("optimizer.safetensors"), renamed).unwrap();
    let error = checkpoint::load(&mut trainer(&config), &path).unwrap_err();
    assert!(
        error.to_string().contains("xmbeddings.tokens.weight"),
        "{error}"
    );
    std::fs::write(path.join("optimizer.safetensors"), tensors).unwrap();

    let mut other = config;
    other.model.0.width = 32;
    let error = checkpoint::load(&mut trainer(&other), &path).unwrap_err();
    assert!(error.to_string().contains("has shape"), "{error}");
}

fn gradients_of(
    trainer: &Trainer<B, Config>,
    loss: &Loss<B>,
    recording: Recording<B>,
) -> GradientsParams {
    let mut grads = GradientsParams::new();
    trainer.backward(loss, recording, &mut grads);
    grads
}

#[test]
fn a_step_that_is_not_finite_is_skipped_and_counted() {
    let _turn = my_turn();
    let mut trainer = trainer(&config());
    let gradients = |trainer: &Trainer<B, Config>| {
        let (loss, recording) = trainer.forward(trainer.upload(&trainer.batch(0).unwrap()), 0);
        (
            loss.cross_entropy.clone().inner(),
            gradients_of(trainer, &loss, recording),
        )
    };
    trainer.step().unwrap();
    let (weights_before, moments) = (weights(trainer.model()), moments(&trainer));
    let assert_kept = |trainer: &Trainer<B, Config>| {
        assert_eq!(weights(trainer.model()), weights_before);
        assert_eq!(self::moments(trainer), moments);
    };

    let (_, good) = gradients(&trainer);
    let device = Default::default();
    let step = trainer.update(Tensor::from_floats([f32::NAN], &device), good, vec![]);
    assert_eq!(step.skipped, Some(Vec::new()), "the gradients are finite");
    assert_kept(&trainer);

    let (loss, mut bad) = gradients(&trainer);
    let name = "embeddings.norm.gamma";
    let params = params::list::<B, _>(trainer.model());
    let gamma = params.iter().find(|p| p.name == name).unwrap();
    let gradient: Tensor<Flex, 1> = bad.remove(gamma.id).unwrap();
    let poison: Tensor<Flex, 1> = Tensor::from_floats([f32::INFINITY], &device);
    let rest = gradient.narrow(0, 1, gamma.shape[0] - 1);
    bad.register(gamma.id, Tensor::cat(vec![poison, rest], 0));
    let step = trainer.update(loss, bad, vec![]);
    assert_eq!(step.skipped, Some(vec![name.to_string()]));
    assert!(!step.grad_norm.is_finite());
    assert_kept(&trainer);
    let progress = trainer.progress;
    assert_eq!((progress.step, progress.skipped), (3, 2));
    assert_eq!(progress.skipped_in_a_row, 2);
    assert_eq!(progress.tokens, 3 * 3 * 12);

    assert_eq!(trainer.step().unwrap().skipped, None);
    assert_eq!(trainer.progress.skipped_in_a_row, 0);
    assert_eq!(trainer.progress.skipped, 2);
    assert_ne!(weights(trainer.model()), weights_before);
}

/// Returns the moments and step counts of every parameter.
fn moments(trainer: &Trainer<B, Config>) -> BTreeMap<String, (usize, Vec<f64>)> {
    let numbers = |m: crate::optimizer::Moments| {
        let both = m
            .first
            .iter::<f64>()
            .chain(m.second.iter().flat_map(|second| second.iter::<f64>()));
        (m.steps, both.collect())
    };
    let state = trainer.optimizer.export(trainer.model());
    state.into_iter().map(|(k, m)| (k, numbers(m))).collect()
}

#[test]
fn the_z_loss_pulls_the_normaliser_and_is_not_reported() {
    let _turn = my_turn();
    let run = |z_loss| {
        let mut config = config();
        config.train.z_loss = z_loss;
        config.train.learning_rate = 1e-2;
        let mut trainer = trainer(&config);
        let first = trainer.step().unwrap().loss;
        for _ in 0..19 {
            trainer.step().unwrap();
        }
        let batch = trainer.upload(&trainer.batch(0).unwrap());
        (
            first,
            read(&trainer.forward(batch, 0).0.log_z_squared.inner()),
        )
    };
    let ((plain, without), (same, with)) = (run(0.0), run(1.0));
    assert_eq!(plain, same);
    assert!(with < 0.5 * without, "{with} is not well below {without}");
}

#[test]
fn a_curriculum_lengthens_sequences_and_lowers_the_learning_rate() {
    let _turn = my_turn();
    let config = copying();
    let mut trainer = trainer(&config);
    let peak = trainer.learning_rate();
    let scale = |trainer: &Trainer<B, Config>| trainer.learning_rate() / peak;
    assert_eq!(
        (trainer.level(), trainer.batch(0).unwrap().time),
        (Some(0), 8)
    );
    assert!(!trainer.advance_curriculum(0.3), "not below 0.3");
    assert!(trainer.advance_curriculum(0.29));
    assert_eq!(
        (trainer.level(), trainer.batch(0).unwrap().time),
        (Some(1), 12)
    );
    assert!((scale(&trainer) - (1.0 - 0.5 * 12.0 / 20.0)).abs() < 1e-12);
    assert!(trainer.advance_curriculum(0.1));
    assert_eq!(
        (trainer.level(), trainer.batch(0).unwrap().time),
        (Some(2), 20)
    );
    assert!((scale(&trainer) - 0.7 * 0.5).abs() < 1e-12);
    assert!(!trainer.advance_curriculum(0.1), "the last level stays");
    let at = |loss: f64| 0.7 * 0.5 * (1.0 - (-loss).exp());
    assert!((scale(&trainer) - at(0.1)).abs() < 1e-12);
    assert!(!trainer.advance_curriculum(0.2));
    assert!((scale(&trainer) - at(0.1)).abs() < 1e-12, "it never rises");
    assert!(!trainer.advance_curriculum(0.05));
    assert!((scale(&trainer) - at(0.05)).abs() < 1e-12);
    let (tokens, flops) = (trainer.tokens_per_step(), trainer.step_flops());
    trainer.step().unwrap();
    assert_eq!(trainer.progress.tokens, tokens as u64);
    assert_eq!((tokens, trainer.progress.flops), (3 * 20, flops));

    let mut unscaled = copying();
    unscaled.train.schedule = Schedule::Cosine;
    let mut unscaled = self::trainer(&unscaled);
    assert!(unscaled.advance_curriculum(0.1));
    assert_eq!(
        unscaled.learning_rate(),
        peak,
        "the cosine ignores the curriculum"
    );

    let mut text = self::trainer(&self::config());
    assert_eq!((text.level(), text.advance_curriculum(0.0)), (None, false));
}

#[test]
fn settings_that_do_not_fit_the_data_are_named() {
    let config = copying();
    config.validate(16).unwrap();
    let problem = |change: &dyn Fn(&mut RunConfig<Config>)| {
        let mut config = config.clone();
        change(&mut config);
        config.validate(16).unwrap_err().to_string()
    };
    assert!(problem(&|c| c.train.time = Some(12)).contains("sequences of 20"));
    assert!(problem(&|c| c.train.sample_every = Some(1)).contains("not text; leave it out"));
    assert!(
        problem(&|c| c.model.0.context = 19).contains("of 20 tokens, more than the context 19")
    );
}

#[test]
fn a_prompt_outside_the_vocabulary_is_named() {
    let _turn = my_turn();
    let trainer = trainer(&config());
    let generate = |prompt: &[u32]| {
        let sampling = Sampling::default();
        let generator = Generator::new(
            trainer.model(),
            (56, 12),
            prompt,
            sampling,
            trainer.device(),
        );
        generator.map(|_| ()).unwrap_err().to_string()
    };
    assert!(generate(&[3, 56]).contains("token id 56, but ids must be below 56"));
    assert!(generate(&[]).contains("no tokens"));
}

#[test]
fn cached_generation_draws_what_full_passes_draw() {
    let _turn = my_turn();
    let mut config = config();
    config.model.0.dropout = 0.0;
    let trainer = trainer(&config);
    let greedy = Sampling {
        temperature: 0.0,
        ..Sampling::default()
    };
    let prompt = [5, 7];
    let device = trainer.device();
    let generator = Generator::new(trainer.model(), (56, 12), &prompt, greedy, device).unwrap();
    let found: Vec<u32> = generator.take(10).collect();

    let mut ids = prompt.map(i64::from).to_vec();
    for _ in 0..10 {
        let data = TensorData::new(ids.clone(), [1, ids.len()]);
        let logits = trainer
            .model()
            .forward(Tensor::<_, 2, Int>::from_data(data, device));
        let last = logits.narrow(1, ids.len() - 1, 1).argmax(2).into_data();
        ids.extend(last.iter::<i64>());
    }
    let expected: Vec<u32> = ids[2..].iter().map(|id| *id as u32).collect();
    assert_eq!(found, expected);
}

#[test]
fn seeds_differ_by_purpose_and_step() {
    let seeds: std::collections::BTreeSet<u64> = (0..3)
        .flat_map(|purpose| (0..100).map(move |step| derive_seed(7, &[purpose, step])))
        .collect();
    assert_eq!(seeds.len(), 300);
    assert_ne!(derive_seed(7, &[0]), derive_seed(8, &[0]));
}

struct Gradients<'a> {
    grads: &'a burn::optim::GradientsParams,
    found: Vec<Vec<f64>>,
}

impl burn::module::ModuleVisitor<B> for Gradients<'_> {
    fn visit_float<const D: usize>(
        &mut self,
        param: &burn::module::Param<burn::tensor::Tensor<B, D>>,
    ) {
        let grad = self.grads.get::<Flex, D>(param.id).unwrap();
        self.found.push(grad.into_data().iter::<f64>().collect());
    }
}

#[test]
fn recomputed_activations_change_no_bit_also_with_dropout() {
    let _turn = my_turn();
    let mut config = config();
    config.model.0.n_layer = 3;
    config.model.0.dropout = 0.2;
    config.train.accumulate = 2;
    let weights_after = |recompute| {
        let train = TrainConfig {
            recompute,
            ..config.train.clone()
        };
        let mut trainer = trainer(&RunConfig {
            train,
            ..config.clone()
        });
        let losses = [(); 3].map(|()| trainer.step().unwrap().loss);
        (losses, weights(trainer.model()))
    };
    let all = weights_after(None);
    for recompute in [Recompute::Layers, Recompute::Every(2), Recompute::Every(9)] {
        assert!(all == weights_after(Some(recompute)), "{recompute:?}");
    }
}
