//! Options that several commands share.

use std::path::Path;
use std::str::FromStr;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use residual_zoo_backend::{BackendError, BackendKind};
use residual_zoo_core::{ConfigError, ModelConfig, Precision};
use residual_zoo_data::Source as Data;
use residual_zoo_data::{DataConfig, ImagesConfig, SyntheticConfig, TokenizerConfig, is_on_hub};
use residual_zoo_drive::Place;
use residual_zoo_runs::{Choice, Error, Run, SavedWeights, did_you_mean, names_of};
use residual_zoo_train::dashboard::Display;

/// The backend to compute on.
#[derive(Args, Debug, Clone)]
pub struct BackendArgs {
    /// The backend to compute on, if it is compiled in (`--features`) [default: the first one that is compiled in]
    #[arg(long, value_name = "NAME", value_parser = backends())]
    pub backend: Option<BackendKind>,
    /// Index of the GPU, counted from 0 [default: the backend's choice; for tch the first GPU, if there is one]
    #[arg(long, value_name = "INDEX", value_parser = parsed::<usize>("a whole number of at least 0"))]
    gpu: Option<usize>,
    /// Compute on the CPU with tch, even if the machine has a GPU
    #[arg(long, conflicts_with = "gpu")]
    cpu: bool,
}

/// Returns the parser of a backend name. Help and completions list the names.
fn backends() -> impl TypedValueParser<Value = BackendKind> {
    let names = BackendKind::ALL.map(BackendKind::feature);
    PossibleValuesParser::new(names).try_map(|name| name.parse::<BackendKind>())
}

impl BackendArgs {
    /// Returns the requested backend, by default the first compiled one, and the GPU that this backend computes on.
    /// [`BackendKind::run`] takes both.
    ///
    /// # Errors
    ///
    /// Returns an error if the program was built without the requested backend or without any, or if the CPU is
    /// requested from a backend for GPUs.
    pub fn device(&self) -> Result<(BackendKind, Option<usize>), BackendError> {
        let kind = self.kind()?;
        Ok((kind, self.gpu_for(kind)?))
    }

    /// Returns the GPU that `kind` computes on; see [`device`](Self::device).
    ///
    /// # Errors
    ///
    /// Returns an error if the CPU is requested from a backend for GPUs.
    pub fn gpu_for(&self, kind: BackendKind) -> Result<Option<usize>, BackendError> {
        match self.cpu {
            true if kind.has_cpu() => Ok(None),
            true => Err(BackendError::NoCpu(kind)),
            false => Ok(self.gpu.or_else(|| kind.default_gpu())),
        }
    }

    /// Returns the GPU that the user has named, if any.
    pub fn named_gpu(&self) -> Option<usize> {
        self.gpu
    }

    /// Returns the command-line arguments that choose the GPU or the CPU.
    pub fn place(&self) -> Vec<String> {
        let gpu = self.gpu.map(|gpu| ["--gpu".to_owned(), gpu.to_string()]);
        let cpu = self.cpu.then(|| "--cpu".to_owned());
        gpu.into_iter().flatten().chain(cpu).collect()
    }

    /// Returns the requested backend, by default the first compiled one.
    ///
    /// # Errors
    ///
    /// Returns an error if the program was built without the requested backend or without any.
    pub fn kind(&self) -> Result<BackendKind, BackendError> {
        let kind = self.backend.map_or_else(BackendKind::first, Ok)?;
        kind.check_compiled()?;
        Ok(kind)
    }
}

/// The backend and the precision of a trained model.
#[derive(Args, Debug, Clone)]
pub struct PlaceArgs {
    #[command(flatten)]
    backend: BackendArgs,
    /// Number format of matrix products and attention: F32, Tf32 or Bf16, as in train.precision [default: F32; Tf32
    /// with the backend cuda]
    #[arg(long, value_name = "FORMAT", value_parser = str::parse::<Precision>)]
    precision: Option<Precision>,
}

impl PlaceArgs {
    /// Returns the place where the model computes.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`BackendArgs::device`].
    pub fn place(&self) -> Result<Place, BackendError> {
        let (kind, gpu) = self.backend.device()?;
        Ok(Place {
            kind,
            gpu,
            precision: self.precision,
        })
    }
}

/// The checkpoint of a run.
#[derive(Args, Debug, Clone, Copy)]
pub struct CheckpointArgs {
    /// The checkpoint to use: a number of steps, `best` (the saved one with the lowest validation loss) or
    /// `newest`
    #[arg(long, value_name = "STEP|best|newest", default_value_t = Choice::Newest)]
    pub checkpoint: Choice,
    /// The weights of the checkpoint: `trained`, or `ema`, their average, if the run keeps one (`train.ema`)
    #[arg(long, value_name = "trained|ema", default_value_t = SavedWeights::Trained)]
    pub weights: SavedWeights,
}

impl CheckpointArgs {
    /// Opens the run in `directory` at this checkpoint.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Run::open`].
    pub fn open<C: ModelConfig>(self, directory: &Path) -> Result<Run<C>, Error> {
        Ok(Run::open(directory)?.at(self.checkpoint).with(self.weights))
    }
}

/// The file endings of texts. Files with markup are read as plain text.
pub const TEXTS: [&str; 11] = [
    "txt", "md", "jsonl", "gz", "zst", "parquet", "csv", "tsv", "json", "html", "xml",
];

/// The training data.
#[derive(Args, Debug, Clone)]
pub struct DataArgs {
    /// The data: a text file, a directory of text, JSON Lines (.jsonl), each plain or compressed (.gz, .zst), Parquet
    /// (.parquet), an address on the Hugging Face hub (hf://datasets/OWNER/NAME/PATH), `tinyshakespeare` (downloaded
    /// once) or `synthetic` (needs no file). For a run on images: the directory of CIFAR's binary files, or one with
    /// `train` and `val` [default: `data.source` of the RON file]
    #[arg(long, value_name = "PATH|NAME")]
    pub data: Option<String>,
    /// The tokenizer of text: `bytes`, `chars`, `bpe:SIZE` (trained on the text), the path of a Hugging Face
    /// tokenizer.json, or the address of a model on the hub (hf://OWNER/NAME) [default: `data.tokenizer` of the RON
    /// file, or `chars` if the file has none]
    #[arg(long, value_name = "NAME|PATH")]
    pub tokenizer: Option<String>,
}

impl DataArgs {
    /// Puts the options into a config. `set` holds the assignments of `--set` to this config.
    ///
    /// # Errors
    ///
    /// Returns an error if a path does not exist, or if the size of a tokenizer is not a number. Also returns an error
    /// if an option gives a file or a tokenizer for data that need none, or if an assignment sets the field of an
    /// option.
    pub fn apply(&self, config: &mut DataConfig, set: &[String]) -> Result<(), ConfigError> {
        if let Some(name) = &self.data {
            // For images, `--data` only gives their location.
            let field = match &config.source {
                Data::Images(_) => "data.source.set",
                _ => "data.source",
            };
            refuse_doubled("--data", field, set)?;
            let is_known = ["tinyshakespeare", "synthetic"].contains(&name.as_str());
            // A dangling link is reported when it is opened.
            if !is_known && !exists(name.as_ref()) && !Path::new(name).is_symlink() {
                let meant = did_you_mean(name, ["tinyshakespeare", "synthetic"].iter());
                let problem = format!(
                    "`{name}` does not exist{meant}; give a file, a directory, hf://datasets/OWNER/NAME/PATH, tinyshakespeare or \
                     synthetic"
                );
                return Err(ConfigError::new("--data", problem));
            }
            config.source = match (name.as_str(), &config.source) {
                ("tinyshakespeare", _) => Data::TinyShakespeare,
                ("synthetic", _) => Data::Synthetic(SyntheticConfig::default()),
                (path, Data::Cifar10(_)) => Data::Cifar10(path.into()),
                (path, Data::Images(images)) => match images.set.at(path.into()) {
                    Some(set) => Data::Images(ImagesConfig {
                        set,
                        ..images.clone()
                    }),
                    None => {
                        let problem = format!(
                            "is `{path}`, but {} need no file; leave it out",
                            images.set.name()
                        );
                        return Err(ConfigError::new("--data", problem));
                    }
                },
                (path, _) => Data::Path(path.into()),
            };
        }
        if let Some(name) = &self.tokenizer {
            refuse_doubled("--tokenizer", "data.tokenizer", set)?;
            if config.source.paths().is_empty() && config.source != Data::TinyShakespeare {
                // For images, `--data` only gives their location, so it cannot replace them with a text.
                let or_text = match config.source {
                    Data::Images(_) | Data::Cifar10(_) => "",
                    _ => ", or give a text with `--data`",
                };
                let problem = format!(
                    "is `{name}`, but these data need no tokenizer: {}; leave it out{or_text}",
                    config.source
                );
                return Err(ConfigError::new("--tokenizer", problem));
            }
            config.tokenizer = match (name.as_str(), name.strip_prefix("bpe:")) {
                ("bytes", _) => TokenizerConfig::Bytes,
                ("chars", _) => TokenizerConfig::Chars,
                (path, None) if !exists(path.as_ref()) && !Path::new(path).is_symlink() => {
                    let meant = match path.to_lowercase() {
                        lower if lower.starts_with("bpe") => " (did you mean `bpe:1024`?)",
                        lower if lower == "byte" || lower == "bytes" => " (did you mean `bytes`?)",
                        lower if lower.starts_with("char") => " (did you mean `chars`?)",
                        _ => "",
                    };
                    let problem = format!(
                        "`{path}` does not exist{meant}; the tokenizers are bytes, chars, bpe:SIZE, \
                         the path of a tokenizer.json, or hf://OWNER/NAME"
                    );
                    return Err(ConfigError::new("--tokenizer", problem));
                }
                (path, None) => TokenizerConfig::File(path.into()),
                (_, Some(size)) => {
                    let vocab_size = size.parse().map_err(|_| {
                        let problem = format!("`{size}` is not a size; try bpe:1024");
                        ConfigError::new("--tokenizer", problem)
                    })?;
                    TokenizerConfig::Bpe { vocab_size }
                }
            };
        }
        Ok(())
    }
}

/// Whether a path exists, or is an address on the hub.
pub(crate) fn exists(path: &Path) -> bool {
    is_on_hub(path) || path.exists()
}

/// Refuses an assignment of `--set` to the field that `option` sets, to a part of it, or to a field that contains it.
///
/// # Errors
///
/// Returns an error with the option and the assignment.
pub fn refuse_doubled(option: &str, field: &str, set: &[String]) -> Result<(), ConfigError> {
    let field = names_of(field);
    let is_same = |set: &&String| names_of(set).iter().zip(&field).all(|(a, b)| a == b);
    match set.iter().find(is_same) {
        None => Ok(()),
        Some(set) => {
            let problem =
                format!("sets what `{option}` sets; leave it out, and use only `{option}`");
            Err(ConfigError::new(format!("--set {set}"), problem))
        }
    }
}

/// Returns the parser of an option that is a number from `least` to `most`.
pub fn number(least: u32, most: u32) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| {
        let number = text.parse().ok();
        let number = number.filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("must be a number from {least} to {most}"))
    }
}

/// Returns the parser of an option that must be `what`, such as "a number".
pub fn parsed<T: FromStr>(what: &'static str) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| text.parse().map_err(|_| format!("must be {what}"))
}

/// Parses an option that must be a finite number above 0.
fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    let number = number.filter(|number: &f64| *number > 0.0 && number.is_finite());
    number.ok_or_else(|| "must be a number above 0".into())
}

/// Options of the display.
#[derive(Args, Debug, Clone)]
pub struct DisplayArgs {
    /// Print lines instead of the terminal dashboard (automatic without a terminal)
    #[arg(long)]
    pub no_tui: bool,
    /// Peak of the device in TFLOP/s, to show the share in use (MFU) [default: no share is shown]
    #[arg(long, value_name = "TFLOPS", value_parser = positive)]
    pub peak_tflops: Option<f64>,
}

impl DisplayArgs {
    /// Returns the dashboard, or lines with `--no-tui` or without a terminal.
    pub fn display(&self) -> Display {
        Display::detect(self.no_tui)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_and_an_assignment_of_the_same_field_are_refused() {
        let refused = |field: &str, set: &str| {
            let refused = refuse_doubled("--data", field, &["train.steps=5".into(), set.into()]);
            refused.is_err_and(|error| {
                let error = error.to_string();
                assert!(error.contains(set) && error.contains("`--data`"), "{error}");
                true
            })
        };
        for set in [
            "data=()",
            "data.source=TinyShakespeare",
            "data.source.tokens=5",
            "data.source.Synthetic.tokens=5",
            " data.source =Synthetic()",
        ] {
            assert!(refused("data.source", set), "{set}");
        }
        for set in [
            "data.tokenizer=Bytes",
            "data.text_field=body",
            "model.data=1",
        ] {
            assert!(!refused("data.source", set), "{set}");
        }
        assert!(!refused("data.source.set", "data.source.Images.crop=4"));
        assert!(refused("data.source.set", "data.source.set=Shapes()"));
        assert!(refused("data.source.set", "data.source.set.path=a"));
    }
}
