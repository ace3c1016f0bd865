//! Targets for configs and the files of a run directory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};

use burn::backend::{Autodiff, Flex};
use burn::module::{AutodiffModule, Module};
use burn::tensor::Tensor;
use residual_zoo_exchange::{ImportOptions, import};
use residual_zoo_models::core::{ModelConfig as _, params};
use residual_zoo_models::data::{Corpus, Source, SyntheticConfig};
use residual_zoo_models::runs::{checkpoint as files, run_dir};
use residual_zoo_models::{ModelConfig, RunConfig};
use residual_zoo_train::{Trainer, checkpoint as checkpoints};

use crate::{Scratch, Verdict, refused};

type B = Autodiff<Flex>;
type Model<B> = <ModelConfig as residual_zoo_models::core::ModelConfig>::Model<B>;

/// The vocabulary size used for validation.
const VOCABULARY: usize = 11;
/// Maximum parameters and layers of a valid config for which a model is built.
const SMALL: (usize, usize) = (10_000, 20);

/// A RON config.
pub fn config(data: &[u8]) -> Verdict {
    let scratch = Scratch::new();
    let path = scratch.file("c.ron", data);
    let config = RunConfig::read(&path).map_err(refused)?;
    use_config(&config)
}

/// Assignments of `--set`, one per line, to a config that contains all architectures.
pub fn set(data: &[u8]) -> Verdict {
    static BASE: LazyLock<RunConfig> = LazyLock::new(|| {
        let text = "(model: Composed(layers: [ \
                    Gpt2(n_layer: 3, n_head: 2, width: 8, context: 6), \
                    TokenFormer(n_layer: 3, n_head: 2, width: 8, context: 6), \
                    Rmt(n_layer: 3, d_k: 2, d_v: 4, rank: 2, context: 6)], \
                    connection: PerSublayer(Laurel())))";
        RunConfig::parse(text, Path::new("base.ron")).unwrap()
    });
    let text = std::str::from_utf8(data).map_err(refused)?;
    let assignments: Vec<String> = text.lines().map(str::to_owned).collect();
    let config = BASE.clone().set(&assignments).map_err(refused)?;
    use_config(&config)
}

/// Checks that a config survives being written. If it is valid and small, also checks that the
/// model it describes can be built.
fn use_config(config: &RunConfig) -> Verdict {
    let text = config.to_ron();
    let again = RunConfig::parse(&text, Path::new("again.ron")).unwrap();
    // Compares the texts, because a NaN is not equal to itself.
    assert_eq!(again.to_ron(), text);
    config.data.validate().map_err(refused)?;
    config.validate(VOCABULARY).map_err(refused)?;
    config.tokens_per_step();

    let cost = config.model.cost(VOCABULARY);
    if cost.params.total() <= SMALL.0 && config.model.shape().n_layer <= SMALL.1 {
        let model = config.model.build::<B>(VOCABULARY, &Default::default());
        let trained = params::list::<B, _>(&model.unwrap()).into_iter();
        let trained = trained.filter(|param| param.trainable);
        let count: usize = trained.map(|p| p.shape.iter().product::<usize>()).sum();
        assert_eq!(count, cost.params.total());
        forget();
    }
    Ok(())
}

/// The weights of another project, as PyTorch saves them.
pub fn weights(data: &[u8]) -> Verdict {
    let scratch = Scratch::new();
    let path = scratch.file("weights.pt", data);
    let options = |n_head| ImportOptions {
        tokenizer: Some("bytes".into()),
        n_head,
        set: Vec::new(),
    };
    // The file of a TokenFormer does not contain the number of heads.
    let imported = import(&path, &options(None)).or_else(|_| import(&path, &options(Some(1))));
    let imported = imported.map_err(refused)?;
    let found = imported
        .weights
        .values()
        .map(|tensor| tensor.num_elements());
    // A tensor that is shared in the file, such as a tied table, is stored once.
    assert!(found.sum::<usize>() <= 4 * data.len());
    imported.write(&path.with_extension("run")).map_err(refused)
}

/// Runs a backward pass, so that Burn forgets dropped parameters.
fn forget() {
    let one = Tensor::<B, 1>::ones([1], &Default::default()).require_grad();
    one.sum().backward();
}

/// `metrics.jsonl` of a run.
pub fn metrics(data: &[u8]) -> Verdict {
    let scratch = Scratch::new();
    scratch.file("metrics.jsonl", data);
    let rows = run_dir::read_metrics(scratch.path()).map_err(refused)?;
    let lines: Vec<String> = rows
        .iter()
        .map(|row| serde_json::to_string(row).unwrap() + "\n")
        .collect();
    scratch.file("metrics.jsonl", lines.concat().as_bytes());
    assert_eq!(run_dir::read_metrics(scratch.path()).unwrap(), rows);
    Ok(())
}

/// Trains a small TokenFormer, which can grow.
type SmallTrainer = Trainer<B, ModelConfig>;

fn trainer() -> SmallTrainer {
    let text = "(model: TokenFormer(n_layer: 1, n_head: 1, width: 4, n_attn: 3, n_ffn: 3, \
                context: 8), train: (steps: 3, batch: 1, warmup: 1, validate_batches: 1))";
    let mut config = RunConfig::parse(text, Path::new("small.ron")).unwrap();
    config.data.source = Source::Synthetic(SyntheticConfig {
        tokens: 1_000,
        seed: 5,
        ..SyntheticConfig::default()
    });
    let corpus = Corpus::open(&config.data).unwrap();
    // Burn has one random generator per process.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Trainer::new(config, &corpus, Default::default()).unwrap()
}

/// The files of a good checkpoint of a small model, by name and including the manifest.
pub fn good_checkpoint() -> &'static BTreeMap<String, Vec<u8>> {
    static FILES: LazyLock<BTreeMap<String, Vec<u8>>> = LazyLock::new(|| {
        let scratch = Scratch::new();
        let directory = scratch.path().join("checkpoint");
        let mut trainer = trainer();
        trainer.step().unwrap();
        checkpoints::save(&trainer, &Default::default(), &directory).unwrap();
        let entries = fs::read_dir(&directory).unwrap().map(Result::unwrap);
        let read = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        };
        entries.map(read).collect()
    });
    &FILES
}

/// A checkpoint in which one file is `data`, without verifying the manifest. Tries `data` as the weights
/// to sample from, the first weights of a run, the moments of the optimizer, and the progress.
pub fn checkpoint(data: &[u8]) -> Verdict {
    thread_local!(static TRAINER: RefCell<SmallTrainer> = RefCell::new(trainer()));
    TRAINER.with_borrow_mut(|trainer| {
        let shapes = |model: &Model<B>| {
            let list = params::list::<B, _>(model).into_iter();
            list.map(|info| (info.name, info.shape)).collect::<Vec<_>>()
        };
        let before = shapes(trainer.model());

        let alone = Scratch::new();
        alone.file("model.safetensors", data);
        let model = trainer.inner_model();
        let model = files::load_model::<Flex, _>(model, alone.path()).map_err(refused);
        if let Ok(model) = &model {
            assert_eq!(shapes(&Model::<B>::from_inner(model.clone())), before);
            assert!(model.num_params() > 0);
        }
        let begun = checkpoints::load_weights(trainer, &trainer.config.model.clone(), alone.path())
            .map_err(refused);
        let mut verdict = model.and(Ok(())).or(begun.and(Ok(())));
        for name in ["optimizer.safetensors", "state.json"] {
            let scratch = Scratch::new();
            for (name, good) in good_checkpoint() {
                scratch.file(name, good);
            }
            scratch.file(name, data);
            let loaded = checkpoints::load(trainer, scratch.path()).map_err(refused);
            verdict = verdict.or(loaded.and(Ok(())));
        }
        assert_eq!(shapes(trainer.model()), before);
        forget();
        verdict
    })
}

/// `manifest.json` beside the other files of a good checkpoint.
pub fn manifest(data: &[u8]) -> Verdict {
    let scratch = Scratch::new();
    let directory = files::directory(Path::new(""), 3);
    let file = |name: &str, data: &[u8]| {
        let path = directory.join(name);
        scratch.file(path.to_str().unwrap(), data);
    };
    for (name, good) in good_checkpoint() {
        file(name, good);
    }
    file("manifest.json", data);
    let newest = files::newest(scratch.path()).map_err(refused)?;
    assert_eq!(newest.path, scratch.path().join(&directory));
    let parse = |data: &[u8]| serde_json::from_slice::<serde_json::Value>(data).unwrap();
    assert_eq!(parse(data), parse(&good_checkpoint()["manifest.json"]));
    Ok(())
}
