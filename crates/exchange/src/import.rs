//! Reads models of other projects.

use std::path::{Path, PathBuf};

use residual_zoo_core::{ConfigError, ModelConfig as _, Tensors, Vocabulary};
use residual_zoo_data::json::problem;
use residual_zoo_data::{DataConfig, Source, Tokenizer, TokenizerConfig, check_is_file};
use residual_zoo_models::{ModelConfig, RunConfig};
use residual_zoo_runs::run_dir::{RunDir, Start};
use residual_zoo_runs::{TrainConfig, checkpoint};
use serde_json::Value;

use crate::ends::Ends;
use crate::export::OWN_TYPE;
use crate::json::{Fields, read_fields, read_with_nulls_if_any};
use crate::llama::{self, Family};
use crate::pickle;
use crate::torch::TorchFile;
use crate::weights::{read_safetensors, read_torch};
use crate::{Error, gpt2, tokenformer, tokenizer, weights};

/// Options of an import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The tokenizer: `bytes`, a `tokenizer.json` or nanoGPT's `meta.pkl`. `None` means the tokenizer beside the
    /// weights.
    pub tokenizer: Option<String>,
    /// Number of attention heads, if the files do not state it.
    pub n_head: Option<usize>,
    /// Changes to config fields, such as `model.dropout=0`.
    pub set: Vec<String>,
}

/// A model of another project.
pub struct Imported {
    /// The kind of the files.
    pub kind: &'static str,
    /// The weights file, or the index of several weights files.
    pub path: PathBuf,
    /// The config of the run that [`write`](Self::write) makes.
    pub config: RunConfig,
    /// The tokenizer, with as many ids as the token table has rows.
    pub tokenizer: Tokenizer,
    /// The weights, by their names in the zoo.
    pub weights: Tensors,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// Learning rate of runs that continue from an imported model, as in nanoGPT's finetuning example.
const LEARNING_RATE: f64 = 3e-5;

/// Reads the model at `path`: a Hugging Face directory, or a file of nanoGPT or of TokenFormer's authors. The path of a
/// safetensors file means its directory. The directory of nanoGPT's `ckpt.pt` or of the authors' `pytorch_model.bin`
/// means this file. A Hugging Face directory has a model of a supported class, or a model that the zoo exported.
///
/// # Errors
///
/// Returns an error if a file is missing, damaged or of another kind. Also returns an error if an option does not fit
/// the model, if the tensors do not fit the model, or if the tokenizer does not fit the tensors.
pub fn import(path: &Path, options: &ImportOptions) -> Result<Imported, Error> {
    let found = find(path)?;
    let Found {
        kind,
        path: file,
        model,
        vocab_size,
        files,
        ends,
        weights,
    } = found.read(options.n_head)?;
    let found = RunConfig {
        data: DataConfig {
            source: Source::Imported,
            ..DataConfig::default()
        },
        train: TrainConfig {
            learning_rate: LEARNING_RATE,
            ..TrainConfig::default()
        },
        model,
    };
    let config = found.clone().set(&options.set)?;
    config.validate(vocab_size)?;
    let mut notes = Vec::new();
    if config.model != found.model {
        notes.push(
            "the model differs from its files, because some fields were changed with `--set`"
                .to_owned(),
        );
    }
    for file in &files {
        check_is_file(file)?;
    }
    let most_parameters = most_parameters(&files);
    // Checks the size before the model is built.
    let needed = config.model.cost(vocab_size).params.total();
    if needed > most_parameters {
        let problem = format!(
            "has at most {most_parameters} numbers, but the model of its config has {needed} parameters"
        );
        return Err(Error::file(file, problem));
    }
    let weights = weights(&config.model)?;
    let found = match &options.tokenizer {
        Some(name) => tokenizer::given(name)?.into(),
        None => {
            let directory = file.parent().unwrap_or(Path::new("."));
            let found = tokenizer::in_directory(directory, vocab_size)?;
            found.ok_or_else(|| Error::file(directory, NO_TOKENIZER))?
        }
    };
    let (tokenizer, more) = ends.set(found)?;
    notes.extend(more);
    let tokens = tokenizer.vocab_size();
    if tokens > vocab_size {
        let problem = format!(
            "has a table of {vocab_size} token ids, but the tokenizer has {tokens}; give the model's own with \
             `--tokenizer`"
        );
        return Err(Error::file(file, problem));
    }
    if tokens < vocab_size {
        notes.push(format!(
            "{} of {vocab_size} token ids have no token; they are kept, so the logits equal the original's",
            vocab_size - tokens
        ));
    }
    Ok(Imported {
        kind,
        path: file,
        config,
        tokenizer: tokenizer.padded(vocab_size)?,
        weights,
        notes,
    })
}

const NO_TOKENIZER: &str = "has no tokenizer.json; give the model's tokenizer with `--tokenizer`: bytes, the path of a \
                            tokenizer.json, or nanoGPT's meta.pkl";

impl Imported {
    /// Writes an untrained run, with the model as its checkpoint.
    ///
    /// # Errors
    ///
    /// Returns an error if `directory` exists and is not empty, or if a file cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(), Error> {
        let mut run = RunDir::open(directory)?;
        let start = Start {
            version: env!("CARGO_PKG_VERSION").into(),
            changes: vec![format!(
                "imported from {}, {}",
                self.path.display(),
                self.kind
            )],
            ..Start::default()
        };
        let mut config = self.config.clone();
        let is_plain = self.tokenizer.is_bytes() && self.tokenizer.begin_of_text().is_none();
        config.data.tokenizer = match is_plain {
            true => TokenizerConfig::Bytes,
            false => TokenizerConfig::File(directory.join("tokenizer.json")),
        };
        let checkpoint = run.checkpoint(0);
        let save = || checkpoint::write_weights(&checkpoint, &self.weights);
        run.begin(&config, (&self.tokenizer, None), &start, save)?;
        Ok(())
    }

    /// Returns the number of parameters.
    pub fn parameters(&self) -> usize {
        let vocabulary = Vocabulary::from(self.tokenizer.vocab_size());
        self.config.model.cost(vocabulary).params.total()
    }
}

/// Reads the weights of a model.
type ReadWeights = Box<dyn FnOnce(&ModelConfig) -> Result<Tensors, Error>>;

/// A model that was found in files. Its weights may not have been read yet.
struct Found {
    kind: &'static str,
    path: PathBuf,
    model: ModelConfig,
    vocab_size: usize,
    /// The weights files.
    files: Vec<PathBuf>,
    ends: Ends,
    /// Reads the weights of `model`, or of this model after changes with `--set`.
    weights: ReadWeights,
}

/// Files of a known kind.
enum Files {
    /// A directory with a `config.json` and weights files.
    HuggingFace { directory: PathBuf },
    /// A file that `torch.save` wrote.
    Torch(PathBuf),
}

/// Finds the files at `path`.
fn find(path: &Path) -> Result<Files, Error> {
    if path.join("config.ron").exists() {
        return Err(Error::file(path, "is already a run"));
    }
    let is_name = |path: &Path| path.is_relative() && path.components().count() == 2;
    if !path.exists() && is_name(path) {
        let problem = format!(
            "does not exist; a model on the hub is hf://{}",
            path.display()
        );
        return Err(Error::file(path, problem));
    }
    let named = |directory: &Path| directory.join("config.json").exists();
    if path.is_dir() {
        let weights = ["pytorch_model.bin", "ckpt.pt"].map(|name| path.join(name));
        return match (named(path), weights.into_iter().find(|file| file.exists())) {
            (true, _) => Ok(Files::HuggingFace {
                directory: path.into(),
            }),
            (false, Some(file)) => Ok(Files::Torch(file)),
            (false, None) => {
                let problem = "has neither config.json nor pytorch_model.bin nor ckpt.pt; give the directory of a \
                               model";
                Err(Error::file(path, problem))
            }
        };
    }
    if path
        .extension()
        .is_some_and(|ending| ending == "safetensors")
    {
        let directory = path.parent().unwrap_or(Path::new("")).to_owned();
        return match named(&directory) {
            true => Ok(Files::HuggingFace { directory }),
            false => Err(Error::file(
                path,
                "has no config.json beside it, which says what model it is",
            )),
        };
    }
    Ok(Files::Torch(path.into()))
}

impl Files {
    fn read(self, n_head: Option<usize>) -> Result<Found, Error> {
        match self {
            Self::HuggingFace { directory } => {
                no_heads(n_head)?;
                read_hugging_face(&directory)
            }
            Self::Torch(path) => read_saved(path, n_head),
        }
    }
}

/// Refuses a given number of heads, for files that state the number.
fn no_heads(n_head: Option<usize>) -> Result<(), ConfigError> {
    match n_head {
        None => Ok(()),
        Some(_) => Err(ConfigError::new(
            "--heads",
            "is only for a TokenFormer; leave it out",
        )),
    }
}

fn read_hugging_face(directory: &Path) -> Result<Found, Error> {
    let file = directory.join("config.json");
    let fields = read_fields(&file)?;
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    // Old files have no `model_type`, only the class.
    let class = || fields.get("architectures")?.get(0)?.as_str();
    match text("model_type") {
        Some("gpt2") => {}
        Some(OWN_TYPE) => return read_own(directory, fields),
        Some(kind) if let Some(family) = Family::named(kind) => {
            return read_llama(directory, family, fields);
        }
        None if class().is_some_and(|class| class.starts_with("GPT2")) => {}
        kind => {
            let kind = kind.map_or("without model_type".into(), |kind| {
                format!("of a model of type {kind}")
            });
            let problem = format!("is {kind}; {KINDS} and models of the zoo can be imported");
            return Err(Error::file(&file, problem));
        }
    }
    let ends = Ends::read(directory, &fields)?;
    let config = gpt2::HfConfig::of(fields);
    let config = config.map_err(|e| Error::file(&file, format!("is damaged: {e}")))?;
    let read = config
        .read()
        .map_err(|e| Error::file(&file, e.to_string()))?;
    let (bias, vocab_size) = (read.bias, config.vocab_size());
    let directory = directory.to_owned();
    let weights = weights_of(&directory)?;
    let path = weights.path();
    Ok(Found {
        kind: "GPT-2 of Hugging Face",
        files: weights.files().to_vec(),
        ends,
        model: ModelConfig::of(read),
        vocab_size,
        path: path.clone(),
        weights: Box::new(move |model| {
            let tensors = weights.read(gpt2::is_buffer)?;
            let tied = is_tied(model);
            let mut tensors = gpt2::normalise(&path, tensors, tied)?;
            if !bias {
                tensors = gpt2::without_biases(&path, tensors)?;
            }
            gpt2::HUGGING_FACE.read(&path, tensors, model, vocab_size.into())
        }),
    })
}

/// The values of Hugging Face's `model_type` that can be imported.
const KINDS: &str = "gpt2, llama, qwen2, qwen3, olmo2, gemma2, nanochat";

/// Reads a model of the class `family`, which becomes the zoo's Llama.
fn read_llama(directory: &Path, family: Family, fields: Fields) -> Result<Found, Error> {
    let file = directory.join("config.json");
    let ends = Ends::read(directory, &fields)?;
    let config = family.config(fields, &read_with_nulls_if_any(&file)?);
    let config = config.map_err(|e| Error::file(&file, format!("is damaged: {e}")))?;
    let read = config.read(family);
    let model = read.map_err(|e| Error::file(&file, e.to_string()))?;
    let vocab_size = config.vocab_size();
    let weights = weights_of(directory)?;
    let path = weights.path();
    Ok(Found {
        kind: family.kind(),
        files: weights.files().to_vec(),
        ends,
        model: ModelConfig::of(model),
        vocab_size,
        path: path.clone(),
        weights: Box::new(move |model| {
            let tensors = weights.read(llama::is_buffer)?;
            let tensors = llama::normalise(&path, tensors, is_tied(model))?;
            family
                .format()
                .read(&path, tensors, model, vocab_size.into())
        }),
    })
}

/// Reads a model of the zoo that was exported with its own code.
fn read_own(directory: &Path, mut config: Fields) -> Result<Found, Error> {
    let file = directory.join("config.json");
    let damaged = |problem: String| Error::file(&file, format!("is damaged: {problem}"));
    let vocab_size = config.get("vocab_size").and_then(Value::as_u64);
    let vocab_size = vocab_size.and_then(|size| usize::try_from(size).ok());
    let vocab_size = vocab_size.ok_or_else(|| damaged("`vocab_size` is not a number".into()))?;
    let ends = Ends::read(directory, &config)?;
    let model = config.remove("model").unwrap_or_default();
    let model = serde_json::from_value(model);
    let model: ModelConfig = model.map_err(|e| damaged(format!("`model`: {}", problem(&e))))?;
    let weights = weights_of(directory)?;
    let path = weights.path();
    Ok(Found {
        kind: "residual-zoo",
        files: weights.files().to_vec(),
        ends,
        path: path.clone(),
        model,
        vocab_size,
        weights: Box::new(move |model| {
            let tensors = weights.read(|_| false)?;
            weights::read_own(&path, tensors, model, vocab_size.into())
        }),
    })
}

fn is_tied(model: &ModelConfig) -> bool {
    match model.layers.first() {
        Some(residual_zoo_models::Zoo::Gpt2(config)) => config.tied,
        Some(residual_zoo_models::Zoo::Llama(config)) => config.tied,
        _ => true,
    }
}

/// The weights files in a Hugging Face directory.
enum WeightFiles {
    Safetensors(Vec<PathBuf>),
    Torch(Vec<PathBuf>),
}

/// Finds the weights, as one file or as shards with an index. Prefers safetensors.
fn weights_of(directory: &Path) -> Result<WeightFiles, Error> {
    let found = |name: &str| -> Result<Option<Vec<PathBuf>>, Error> {
        let one = directory.join(name);
        let index = directory.join(format!("{name}.index.json"));
        match (one.exists(), index.exists()) {
            (true, _) => Ok(Some(vec![one])),
            (false, true) => indexed(directory, &index).map(Some),
            (false, false) => Ok(None),
        }
    };
    if let Some(files) = found("model.safetensors")? {
        return Ok(WeightFiles::Safetensors(files));
    }
    let torch = found("pytorch_model.bin")?;
    torch.map(WeightFiles::Torch).ok_or_else(|| {
        Error::file(
            directory,
            "has neither model.safetensors nor pytorch_model.bin",
        )
    })
}

/// Returns the weights files that an index names. They must be in the directory of the index.
fn indexed(directory: &Path, index: &Path) -> Result<Vec<PathBuf>, Error> {
    let damaged = |problem: String| Error::file(index, format!("is damaged: {problem}"));
    let map = read_fields(index)?.remove("weight_map");
    let map = map.unwrap_or_default();
    let names = map.as_object().into_iter().flatten();
    let names = names.filter(|(_, file)| !file.is_null());
    let names = names.map(|(tensor, file)| {
        let not_a_name = || damaged(format!("the file of {tensor} is not a name"));
        file.as_str().ok_or_else(not_a_name)
    });
    let mut files = names.collect::<Result<Vec<&str>, _>>()?;
    files.sort_unstable();
    files.dedup();
    if files.is_empty() {
        return Err(damaged("it names no file".into()));
    }
    let is_name = |file: &str| Path::new(file).file_name().is_some_and(|name| name == file);
    if let Some(file) = files.iter().find(|file| !is_name(file)) {
        return Err(damaged(format!(
            "it names {file:?}, which is not beside it"
        )));
    }
    Ok(files.into_iter().map(|file| directory.join(file)).collect())
}

impl WeightFiles {
    fn files(&self) -> &[PathBuf] {
        match self {
            Self::Safetensors(files) | Self::Torch(files) => files,
        }
    }

    /// Returns the weights file, or the index of several weights files.
    fn path(&self) -> PathBuf {
        let index = match self {
            Self::Safetensors(_) => "model.safetensors.index.json",
            Self::Torch(_) => "pytorch_model.bin.index.json",
        };
        match self.files() {
            [one] => one.clone(),
            [first, ..] => first.with_file_name(index),
            [] => PathBuf::new(),
        }
    }

    fn read(&self, is_buffer: fn(&str) -> bool) -> Result<Tensors, Error> {
        match self {
            Self::Safetensors(files) => read_safetensors(files, is_buffer),
            Self::Torch(files) => {
                let each = files.iter().map(|path| {
                    let mut file = TorchFile::open(path)?;
                    let state = file.pickle.top;
                    Ok((path, read_torch(path, &mut file, state, is_buffer)?))
                });
                weights::merged(each)
            }
        }
    }
}

/// Returns the maximum number of parameters that `files` can have. A parameter takes at least two bytes.
fn most_parameters(files: &[PathBuf]) -> usize {
    let bytes = files.iter().filter_map(|file| std::fs::metadata(file).ok());
    bytes.map(|metadata| metadata.len() as usize / 2).sum()
}

/// Reads a model that `torch.save` wrote: a checkpoint of nanoGPT, or the weights of a TokenFormer.
fn read_saved(path: PathBuf, n_head: Option<usize>) -> Result<Found, Error> {
    let mut file = TorchFile::open(&path)?;
    let top = file.pickle.top;
    let [arguments, state] = ["model_args", "model"].map(|key| file.pickle.field(top, key));
    if let (Some(arguments), Some(state)) = (arguments, state) {
        no_heads(n_head)?;
        let read = gpt2::read_nano_gpt(&file.pickle, arguments);
        let (config, vocab_size) = read.map_err(|e| Error::file(&path, e.to_string()))?;
        let there = path.clone();
        return Ok(Found {
            kind: "nanoGPT",
            files: vec![there.clone()],
            ends: Ends::default(),
            path,
            model: ModelConfig::of(config),
            vocab_size,
            weights: Box::new(move |model| {
                let tensors = read_torch(&there, &mut file, state, gpt2::is_buffer)?;
                weights::check_finite(&there, &tensors)?;
                let tensors = gpt2::normalise(&there, tensors, true)?;
                gpt2::NANO_GPT.read(&there, tensors, model, vocab_size.into())
            }),
        });
    }
    let names = match file.pickle.get(top) {
        pickle::Value::Dict(entries) => {
            entries.iter().filter_map(|(key, _)| file.pickle.text(*key))
        }
        _ => return Err(Error::file(&path, NO_MODEL)),
    };
    if !tokenformer::is_one(names) {
        return Err(Error::file(&path, NO_MODEL));
    }
    let tensors = read_torch(&path, &mut file, top, tokenformer::is_buffer)?;
    weights::check_finite(&path, &tensors)?;
    let tensors = tokenformer::normalise(&path, tensors)?;
    let read = tokenformer::config(&tensors, n_head);
    let (config, vocab_size) = read.map_err(|e| Error::file(&path, e.to_string()))?;
    let there = path.clone();
    Ok(Found {
        kind: "TokenFormer",
        files: vec![there.clone()],
        ends: Ends::default(),
        path,
        model: ModelConfig::of(config),
        vocab_size,
        weights: Box::new(move |model| {
            tokenformer::AUTHORS.read(&there, tensors, model, vocab_size.into())
        }),
    })
}

const NO_MODEL: &str = "is neither a checkpoint of nanoGPT (`model` and `model_args`) nor the weights of a TokenFormer; \
                        a GPT-2 of Hugging Face has a config.json beside its weights: give the directory";
