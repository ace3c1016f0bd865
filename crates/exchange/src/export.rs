//! Writes models for Hugging Face's `transformers`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use burn::backend::Flex;
use residual_zoo_core::{
    Architecture as _, ConfigError, Design as _, ModelConfig as _, Tensors, params,
};
use residual_zoo_models::{ConnectionConfig, ModelConfig, PlacedConnection, Run, Zoo};
use residual_zoo_models::{gpt2, laurel, llama, loops, ngpt, recurrent, rmt, streams, tokenformer};
use residual_zoo_runs::checkpoint::{read_finite_tensors, write_tensors};
use residual_zoo_runs::{Error as RunError, disk};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Error;
use crate::card::card;
use crate::gpt2::{HEAD, HUGGING_FACE, HfConfig, PREFIX, UNEMBEDDING};
use crate::llama::Family;
use crate::weights::transpose;

/// Options of an export.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// The licence of the weights, as Hugging Face names it: `mit`, `apache-2.0`, ….
    pub license: Option<String>,
}

/// The result of an export.
pub struct Exported {
    /// The class that reads the model: a class of `transformers`, or the class in the exported Python module.
    pub class: &'static str,
    /// The exported checkpoint.
    pub checkpoint: PathBuf,
    /// Notes about damaged checkpoints and files.
    pub notes: Vec<String>,
}

const GPT2: &str = "GPT2LMHeadModel";
const OWN: &str = "ResidualZooForCausalLM";
/// The Python module for models that `transformers` does not have.
pub const MODULE: &str = "modeling_residual_zoo";
/// The `model_type` of models that come with [`MODULE`].
pub const OWN_TYPE: &str = "residual_zoo";

/// Writes the chosen checkpoint of `run` to the new directory `directory`: configs, weights, tokenizer and a model
/// card. A GPT-2 becomes a `GPT2LMHeadModel`. A Llama (the modern decoder) becomes the class of `transformers` that has
/// its settings, such as `LlamaForCausalLM`. Other models of GPT-2, Llama, nGPT, RMT and TokenFormer layers, with any
/// connection, recurrence or loops, come with the code that `trust_remote_code` runs.
///
/// # Errors
///
/// Returns an error if `directory` exists and is not empty, or is a link or the current directory. Also returns an
/// error if the run has no good checkpoint, if the checkpoint does not fit the config's model, or if the model cannot
/// be exported. Returns I/O errors too.
pub fn export(run: &Run, directory: &Path, options: &ExportOptions) -> Result<Exported, Error> {
    if run.config.data.time().is_some() {
        let problem = "was not trained on text, so it is not a language model that can be exported";
        return Err(Error::file(run.directory(), problem));
    }
    let parts = parts(&run.config.model)?;
    if !is_free(directory) {
        let problem = "already exists and is not an empty directory; give another, or delete it";
        return Err(Error::file(directory, problem));
    }
    if directory.is_symlink() || is_current(directory) {
        let problem = "is a link or the current directory; give a new directory";
        return Err(Error::file(directory, problem));
    }
    let newest = run.checkpoint()?;
    let notes = newest.notes();
    let checkpoint = newest.path;
    let path = run.weights_in(&checkpoint)?;
    let (weights, _) = read_finite_tensors(&path)?;
    // The config may have been edited since the weights were written.
    let model = (run.config.model).assemble::<Flex>(run.vocabulary(), &Default::default());
    params::check::<Flex, _>(&model, &weights)
        .map_err(|source| RunError::Import { path, source })?;
    let (run, weights) = absorbed(run, weights);
    let run = &run;
    let files = Files::of(run, weights, &parts);
    let absolute = std::path::absolute(directory);
    let directory =
        &absolute.map_err(|e| Error::file(directory, format!("cannot be found: {e}")))?;
    let aside = aside(directory);
    remove_leftovers(directory);
    disk::remove_directory(&aside)?;
    disk::create_directories(&aside)?;
    let written = files.write(run, &aside, &checkpoint, options);
    let written = written.and_then(|()| {
        disk::rename(&aside, directory).map_err(|error| {
            // The directory was free when this export began.
            match aside.exists() && !is_free(directory) {
                true => Error::file(directory, TAKEN),
                false => error.into(),
            }
        })
    });
    if let Err(error) = written {
        disk::remove_directory(&aside).ok();
        return Err(error);
    }
    Ok(Exported {
        class: files.class,
        checkpoint,
        notes,
    })
}

const TAKEN: &str =
    "was written by another export or program meanwhile, and is kept; give another directory";

/// Whether `directory` does not exist or is empty.
fn is_free(directory: &Path) -> bool {
    match std::fs::read_dir(directory) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Returns the run and its weights, with the added pairs of a tuned TokenFormer turned into ordinary pairs.
fn absorbed(run: &Run, mut weights: Tensors) -> (Run, Tensors) {
    let mut run = run.clone();
    for layer in &mut run.config.model.layers {
        if let Zoo::TokenFormer(config) = layer {
            (*config, weights) = config.absorb(weights);
        }
    }
    (run, weights)
}

/// Whether `directory`, which will be replaced, is the current directory of the process.
fn is_current(directory: &Path) -> bool {
    let current = std::env::current_dir().and_then(std::fs::canonicalize);
    let found = std::fs::canonicalize(directory);
    current.is_ok_and(|current| found.is_ok_and(|found| found == current))
}

/// Maximum number of bytes of the directory's name in the names of unfinished exports. The rest is for the process id,
/// because file systems allow names of at most 255 bytes.
const MOST_NAME: usize = 230;

/// Returns the prefix that the names of all unfinished exports to `directory` share.
fn unfinished(directory: &Path) -> String {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    format!("{}.", &name[..name.floor_char_boundary(MOST_NAME)])
}

/// Returns the directory that holds the files until the export is complete.
fn aside(directory: &Path) -> PathBuf {
    let name = unfinished(directory);
    directory.with_file_name(format!("{name}{}.partial", std::process::id()))
}

/// Deletes the leftovers of killed exports to `directory`, if nothing was written to them for an hour.
fn remove_leftovers(directory: &Path) {
    let name = unfinished(directory);
    let is_one = |path: &Path| {
        let found = path.file_name().and_then(|name| name.to_str());
        let process = found.and_then(|found| {
            let rest = found.strip_prefix(&name)?;
            rest.strip_suffix(".partial")?.parse::<u32>().ok()
        });
        process.is_some()
    };
    let is_old = |path: &Path| {
        let changed = std::fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
        let age = changed.ok().and_then(|changed| changed.elapsed().ok());
        age.is_some_and(|age| age > Duration::from_secs(3600))
    };
    let entries = directory
        .parent()
        .and_then(|parent| std::fs::read_dir(parent).ok());
    let paths = entries
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.path());
    for path in paths.filter(|path| is_one(path) && is_old(path)) {
        disk::remove_directory(&path).ok();
    }
}

/// The parts of an exported model.
struct Files {
    class: &'static str,
    config: Value,
    weights: Tensors,
    /// The Python module, if `transformers` does not have the model.
    module: Option<String>,
}

impl Files {
    fn of(run: &Run, weights: Tensors, parts: &[&str]) -> Self {
        let vocab_size = run.tokenizer.vocab_size();
        let ends @ [begin, end] = ends(run);
        if let Some(Zoo::Gpt2(config)) = run.config.model.plain()
            && let Some(hf) = HfConfig::write(config, vocab_size, ends)
        {
            return Self {
                class: GPT2,
                config: to_json(&hf),
                weights: gpt2_weights(config, weights),
                module: None,
            };
        }
        if let Some(Zoo::Llama(config)) = run.config.model.plain()
            && let Some((family, hf)) = Family::of(config, vocab_size)
        {
            let hf = hf.ending(ends);
            return Self {
                class: family.class(),
                config: to_json(&hf),
                weights: family.format().write(weights, config.n_layer),
                module: None,
            };
        }
        let config = json!({
            "model_type": OWN_TYPE,
            "architectures": [OWN],
            "auto_map": {
                "AutoConfig": format!("{MODULE}.ResidualZooConfig"),
                "AutoModelForCausalLM": format!("{MODULE}.{OWN}"),
            },
            "vocab_size": vocab_size,
            "num_hidden_layers": run.config.model.shape().n_layer,
            "hidden_size": run.config.model.shape().width,
            "max_position_embeddings": run.config.model.shape().context,
            "bos_token_id": begin,
            "eos_token_id": end,
            "tie_word_embeddings": false,
            "use_cache": false,
            "dtype": "float32",
            "model": to_json(&run.config.model),
        });
        Self {
            class: OWN,
            config,
            weights,
            module: Some(module(&run.config.model, parts)),
        }
    }

    fn write(
        &self,
        run: &Run,
        directory: &Path,
        checkpoint: &Path,
        options: &ExportOptions,
    ) -> Result<(), Error> {
        let write = |name: &str, text: &str| disk::write(&directory.join(name), text.as_bytes());
        let [begin, end] = ends(run);
        let mut generation = json!({ "bos_token_id": begin, "eos_token_id": end, "use_cache": self.module.is_none() });
        if let more @ [_, ..] = run.tokenizer.more_ends() {
            let all: Vec<u32> = end.into_iter().chain(more.iter().copied()).collect();
            generation["eos_token_id"] = json!(all);
        }
        let mut tokenizer = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": run.config.model.shape().context,
            "clean_up_tokenization_spaces": false,
            KIND: run.tokenizer.kind_name(),
        });
        let file = run.tokenizer.to_hf_json();
        let [pad, unknown] = names(run, &file);
        let names = ["bos_token", "eos_token", "pad_token", "unk_token"];
        // An ordinary token is not named, because `transformers` would then split texts at it.
        for (name, id) in names.into_iter().zip([begin, end, pad, unknown]) {
            if let Some(token) = id.and_then(|id| run.tokenizer.special_token(id)) {
                tokenizer[name] = token.into();
            }
        }
        write("config.json", &pretty(&self.config))?;
        write("generation_config.json", &pretty(&generation))?;
        write("tokenizer.json", &file)?;
        write("tokenizer_config.json", &pretty(&tokenizer))?;
        if let Some(module) = &self.module {
            write(&format!("{MODULE}.py"), module)?;
        }
        write(
            "README.md",
            &card(
                run,
                checkpoint,
                options,
                (self.class, self.module.is_some()),
            )?,
        )?;
        let weights = directory.join("model.safetensors");
        write_tensors(&weights, &self.weights, Some(("format", "pt".into())))?;
        Ok(())
    }
}

/// Returns the ids that begin and end a text.
fn ends(run: &Run) -> [Option<u32>; 2] {
    [run.tokenizer.begin_of_text(), run.tokenizer.end_of_text()]
}

/// Returns the ids for padding and for unknown text: the ids that an import found, otherwise the ids that `file`, the
/// `tokenizer.json`, names.
fn names(run: &Run, file: &str) -> [Option<u32>; 2] {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct File {
        padding: Option<Padding>,
        model: Model,
    }
    #[derive(Deserialize)]
    struct Padding {
        pad_token: Option<String>,
    }
    #[derive(Default, Deserialize)]
    struct Model {
        unk_token: Option<String>,
    }
    let File { padding, model } = serde_json::from_str(file).unwrap_or_default();
    let id = |name: Option<String>| run.tokenizer.token_id(&name?);
    let pad = padding.and_then(|padding| padding.pad_token);
    [
        run.tokenizer.pad().or_else(|| id(pad)),
        run.tokenizer.unknown().or_else(|| id(model.unk_token)),
    ]
}

/// The field of `tokenizer_config.json` that names the zoo's kind of tokenizer.
pub const KIND: &str = "residual_zoo_kind";

/// Converts the weights to the names and layout of `GPT2LMHeadModel`.
fn gpt2_weights(config: &gpt2::Gpt2Config, mut weights: Tensors) -> Tensors {
    let head = weights.remove(UNEMBEDDING).and_then(transpose);
    let theirs = HUGGING_FACE.write(weights, config.n_layer).into_iter();
    let mut theirs: Tensors = theirs
        .map(|(name, tensor)| (format!("{PREFIX}{name}"), tensor))
        .collect();
    theirs.extend(head.map(|head| (HEAD.to_owned(), head)));
    if !config.bias {
        crate::gpt2::add_zero_biases(&mut theirs);
    }
    theirs
}

/// Returns the Python code of each part of a model.
fn parts(model: &ModelConfig) -> Result<Vec<&'static str>, Error> {
    let no_code = |field: &str, name: &str, can: &str| {
        let problem = format!("is {name}, which has no code in Python; {can}");
        Err(ConfigError::new(field, problem).into())
    };
    let mut parts = Vec::new();
    for entry in &model.layers {
        let part = match entry {
            Zoo::Gpt2(_) => gpt2::MODELING,
            Zoo::Llama(_) => llama::MODELING,
            Zoo::Ngpt(_) => ngpt::MODELING,
            Zoo::Rmt(_) => rmt::MODELING,
            Zoo::TokenFormer(_) => tokenformer::MODELING,
            other => {
                let can = "GPT-2, Llama, nGPT, RMT and TokenFormer can be exported";
                return no_code("model", other.name(), can);
            }
        };
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    if let Some(PlacedConnection::PerSublayer(placed) | PlacedConnection::PerLayer(placed)) =
        &model.connection
    {
        match connection_parts(placed) {
            Some(files) => parts.extend(files),
            None => {
                let can = "export a model with another connection";
                return no_code("model.connection", placed.name(), can);
            }
        }
    }
    parts.extend(model.recurrence.as_ref().map(|_| recurrent::MODELING));
    parts.extend(model.loops.as_ref().map(|_| loops::MODELING));
    Ok(parts)
}

/// Returns the Python code of a connection; `None` if the connection has none. The code is found by the connection's
/// name in JSON.
fn connection_parts(connection: &ConnectionConfig) -> Option<&'static [&'static str]> {
    if let ConnectionConfig::Laurel(_) = connection {
        return Some(&[laurel::MODELING]);
    }
    let json = to_json(connection);
    let name = json.as_object().and_then(|fields| fields.keys().next())?;
    streams::modeling(name)
}

/// Returns the Python module of a model that consists of these parts.
fn module(model: &ModelConfig, parts: &[&str]) -> String {
    let heading = format!(
        "\"\"\"{}, exported by residual-zoo {}.\"\"\"\n",
        model.name(),
        env!("CARGO_PKG_VERSION")
    );
    let core = [
        include_str!("../modeling/base.py"),
        include_str!("../modeling/stream.py"),
    ];
    let whole = include_str!("../modeling/model.py");
    heading + &[&core, parts, &[whole]].concat().join("\n\n")
}

fn to_json(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_else(|e| unreachable!("plain data: {e}"))
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
