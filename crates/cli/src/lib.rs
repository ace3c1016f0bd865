//! The options that programs share, errors as exit codes, and signals.

#![forbid(unsafe_code)]

mod compare;
mod experiment;
mod jobs;
mod settings;
mod sweep;
mod trial;

use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use clap::Args;
use residual_zoo_backend::{BackendError, BackendKind};
use residual_zoo_core::ConfigError;
use residual_zoo_data::Source as Data;
use residual_zoo_data::{
    DataConfig, DataError, ImagesConfig, SyntheticConfig, TokenizerConfig, is_on_hub,
};
use residual_zoo_exchange::Error as ExchangeError;
use residual_zoo_lab::{Error, Verdict};
use residual_zoo_report::{Table, Tone, wrap};
use residual_zoo_runs::{Choice, Error as RunError, names_of};
use residual_zoo_system::signals::{on_stop, on_suspension};
use residual_zoo_system::terminal::{is_gone, output_columns};
use residual_zoo_system::{harmless, output};
use residual_zoo_train::Interrupter;
pub use residual_zoo_train::dashboard::warn;
use residual_zoo_train::dashboard::{Display, is_open, restore_terminal, suspend_screen};

pub use compare::CompareArgs;
pub use experiment::{ExperimentArgs, Files, Source, experiment_main};
pub use jobs::JobsArgs;
pub use settings::start;
pub use sweep::SweepArgs;

/// The backend to compute on.
#[derive(Args, Debug, Clone)]
pub struct BackendArgs {
    /// Backend: flex, tch, cuda, vulkan or wgpu, if it was compiled in by `--features` [default: the first
    /// one that was]
    #[arg(long, value_name = "NAME")]
    pub backend: Option<BackendKind>,
    /// Index of the GPU [default: the backend's choice; for tch the CPU]
    #[arg(long, value_name = "INDEX")]
    pub gpu: Option<usize>,
}

impl BackendArgs {
    /// The backend that was asked for, or the first one.
    ///
    /// # Errors
    ///
    /// When it was not compiled in.
    pub fn kind(&self) -> Result<BackendKind, BackendError> {
        let kind = self.backend.map_or_else(BackendKind::first, Ok)?;
        kind.check_compiled()?;
        Ok(kind)
    }
}

/// The checkpoint of a run.
#[derive(Args, Debug, Clone, Copy)]
pub struct CheckpointArgs {
    /// The checkpoint to use: a number of steps, or `best`, the one with the lowest validation loss
    #[arg(long, value_name = "STEP|best", default_value_t = Choice::Newest)]
    pub checkpoint: Choice,
}

/// The data to train on.
#[derive(Args, Debug, Clone)]
pub struct DataArgs {
    /// What to train on: a text file, a directory of text, JSON lines (.jsonl), each plain or
    /// compressed (.gz, .zst), Parquet (.parquet), an address on the Hugging Face hub
    /// (hf://datasets/OWNER/NAME/PATH), `tinyshakespeare` (downloaded once) or `synthetic` (needs no
    /// file); for a run on images, the directory of CIFAR's binary files, or one with `train` and `val`
    #[arg(long, value_name = "PATH|NAME")]
    pub data: Option<String>,
    /// Tokenizer of text: `bytes`, `chars`, `bpe:SIZE` (trained on the text), the path of a
    /// Hugging Face tokenizer.json, or the address of a model on the hub (hf://OWNER/NAME)
    #[arg(long, value_name = "NAME|PATH")]
    pub tokenizer: Option<String>,
}

impl DataArgs {
    /// Puts the options into a config to which the assignments `set` of `--set` belong.
    ///
    /// # Errors
    ///
    /// A path that does not exist; a tokenizer whose size is not a number; an option for what an assignment sets.
    pub fn apply(&self, config: &mut DataConfig, set: &[String]) -> Result<(), ConfigError> {
        let exists = |path: &str| is_on_hub(path.as_ref()) || Path::new(path).exists();
        if let Some(name) = &self.data {
            // For images, `--data` only says where they are.
            let field = match &config.source {
                Data::Images(_) => "data.source.set",
                _ => "data.source",
            };
            refuse_doubled("--data", field, set)?;
            if !["tinyshakespeare", "synthetic"].contains(&name.as_str()) && !exists(name) {
                let problem = format!(
                    "`{name}` does not exist; give a file, a directory, hf://datasets/OWNER/NAME/PATH, tinyshakespeare or \
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
                // Images stay images with `--data`.
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
                (path, None) if !exists(path) => {
                    let problem = format!(
                        "`{path}` does not exist; the tokenizers are bytes, chars, bpe:SIZE, or \
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

/// Refuses an assignment of `--set` to the field that `option` gives, or to a part of it: one of both would be ignored.
///
/// # Errors
///
/// The option and the assignment.
pub fn refuse_doubled(option: &str, field: &str, set: &[String]) -> Result<(), ConfigError> {
    let field = names_of(field);
    let is_same = |set: &&String| names_of(set).iter().zip(&field).all(|(a, b)| a == b);
    match set.iter().find(is_same) {
        None => Ok(()),
        Some(set) => {
            let problem = format!("sets what `{option}` gives; leave one of them out");
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

/// What to show.
#[derive(Args, Debug, Clone)]
pub struct DisplayArgs {
    /// Print lines instead of the terminal dashboard (automatic without a terminal)
    #[arg(long)]
    pub no_tui: bool,
    /// Peak of the device in TFLOP/s, to show which share of it is in use (MFU)
    #[arg(long, value_name = "TFLOPS")]
    pub peak_tflops: Option<f64>,
}

impl DisplayArgs {
    /// The dashboard or lines.
    pub fn display(&self) -> Display {
        Display::detect(self.no_tui)
    }
}

/// The beginning of the command that runs the example `name` on the backend `kind`.
pub fn example(name: &str, kind: BackendKind) -> String {
    // Flex needs no feature, because it is a default one.
    let features = match kind {
        BackendKind::Flex => String::new(),
        kind => format!(" --features {}", kind.feature()),
    };
    format!("cargo run --release{features} --example {name} --")
}

/// The arguments of this program, as text.
pub fn arguments() -> impl Iterator<Item = String> {
    let arguments = std::env::args_os().skip(1);
    arguments.map(|argument| argument.to_string_lossy().into_owned())
}

/// The command that runs `program` with these arguments, as it is written in a shell.
pub fn command(program: &str, arguments: impl Iterator<Item = String>) -> String {
    let quoted = arguments.map(|argument| quoted(&argument));
    let parts = std::iter::once(program.to_owned()).chain(quoted);
    parts.collect::<Vec<_>>().join(" ")
}

/// A word as it is written in a shell.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The path of a run as a word of a shell that is no option.
pub fn quoted_path(path: &Path) -> String {
    let path = path.to_string_lossy();
    match path.starts_with('-') {
        true => quoted(&format!("./{path}")),
        false => quoted(&path),
    }
}

/// Prints a line to standard output. Control characters are escaped. A reader that stops reading, such as
/// `head`, is no error.
///
/// # Errors
///
/// When the line cannot be written.
pub fn print(text: &str) -> Result<(), Error> {
    write(&format!("{}\n", harmless(text)))
}

/// A table as text, no wider than the terminal where standard output is one.
pub fn fitted(table: &Table) -> String {
    match output_columns() {
        Some(columns) => table.fit(columns),
        None => table.to_text(),
    }
}

/// Text for standard output: in a terminal, its lines are cut between words, and all but the first begin with `indent`.
pub fn wrapped(text: &str, indent: &str) -> String {
    let Some(columns) = output_columns() else {
        return text.to_owned();
    };
    let words = text.trim_start();
    let first = &text[..text.len() - words.len()];
    let room = columns.saturating_sub(first.len().max(indent.len()));
    format!("{first}{}", wrap(words, room).join(&format!("\n{indent}")))
}

/// The name of a verdict, in color where standard output is a terminal and `NO_COLOR` is not set.
pub(crate) fn verdict(verdict: Verdict) -> String {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    painted(verdict, std::io::stdout().is_terminal() && !no_color)
}

fn painted(verdict: Verdict, in_color: bool) -> String {
    let color = match verdict.tone() {
        Tone::Good => "32",
        Tone::Bad => "31",
        Tone::Open => "33",
        Tone::Plain | Tone::Muted => "2",
    };
    match in_color {
        true => format!("\x1b[{color}m{}\x1b[0m", verdict.signed()),
        false => verdict.signed(),
    }
}

/// Writes text to standard output as it is.
pub(crate) fn write(text: &str) -> Result<(), Error> {
    match output::write(output::Stream::Out, text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written.map_err(RunError::io("write", "standard output".as_ref()))?),
    }
}

/// The options of a program, or the exit code where they are wrong or only help was asked for. An error quotes
/// arguments, so it is printed without control characters.
///
/// # Errors
///
/// The exit code.
pub fn options<P: clap::Parser>() -> Result<P, ExitCode> {
    let error = match P::try_parse() {
        Ok(options) => return Ok(options),
        Err(error) => error,
    };
    if error.use_stderr() {
        warn(error.render().to_string().trim_end());
        return Err(ExitCode::from(2));
    }
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    Err(match printed {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let failed = RunError::io("write", "standard output".as_ref());
            report(Err(Error::from(failed(error)).into()))
        }
        _ => ExitCode::SUCCESS,
    })
}

/// The exit code of a program: an error is one line on standard error, and the code 2 when the user
/// asked for what cannot be done, such as to write where nothing can be written, and 1 when the machine or the run failed,
/// such as by a full disk. A command that was stopped before it was done has the code that shells expect, also if it has
/// saved its work: 128 and the number of the signal.
pub fn report(result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    if is_stop(&error) {
        warn(&error.to_string());
        return ExitCode::from(stopped_by());
    }
    warn(&format!("error: {error}"));
    ExitCode::from(if is_bad_input(&error) { 2 } else { 1 })
}

fn is_bad_input(error: &anyhow::Error) -> bool {
    let known = [
        error.downcast_ref().map(Error::is_bad_input),
        error.downcast_ref().map(RunError::is_bad_input),
        error.downcast_ref().map(DataError::is_bad_input),
        error.downcast_ref().map(ExchangeError::is_bad_input),
        error.downcast_ref().map(BackendError::is_bad_input),
        error.downcast_ref().map(|_: &ConfigError| true),
    ];
    known.contains(&Some(true))
}

fn is_stop(error: &anyhow::Error) -> bool {
    let known = [
        error.downcast_ref().map(Error::is_stop),
        error
            .downcast_ref()
            .map(|error| matches!(error, RunError::Data(DataError::Stopped))),
        error
            .downcast_ref()
            .map(|error| matches!(error, DataError::Stopped)),
    ];
    known.contains(&Some(true))
}

/// The number of the first signal that asked this process to end.
static SIGNAL: OnceLock<i32> = OnceLock::new();

/// The exit code of a command that was stopped: by a signal, or by a key, which is like Ctrl-C.
fn stopped_by() -> u8 {
    const SIGHUP: i32 = 1;
    const SIGINT: i32 = 2;
    // The dashboard may notice a terminal that goes away before the signal comes.
    let of_terminal = if is_gone() { SIGHUP } else { SIGINT };
    let signal = *SIGNAL.get().unwrap_or(&of_terminal);
    u8::try_from(128 + signal).unwrap_or(130)
}

/// The time in which several signals are one.
const TOGETHER: Duration = Duration::from_millis(500);

/// A switch that Ctrl-C, SIGTERM or SIGHUP sets, unless they were ignored when the program started; a second
/// signal ends the program at once. The first one is answered by a line, or by the dashboard if it is open. Signals
/// that come together are one, as those of a terminal that goes away, or of `timeout`, which asks the process and
/// its group.
///
/// # Errors
///
/// When signals cannot be caught.
pub fn stop_on_signal() -> Result<Interrupter, Error> {
    let stop = Interrupter::new();
    let (switch, mut first) = (stop.clone(), None);
    on_stop(move |signal| {
        SIGNAL.get_or_init(|| signal);
        let is_one = first.is_some_and(|first: Instant| first.elapsed() < TOGETHER);
        if is_one || first.is_some() && is_gone() {
            return;
        }
        output::hurry();
        if switch.should_stop() && !is_gone() {
            restore_terminal();
            std::process::exit(stopped_by().into());
        }
        first = Some(Instant::now());
        switch.stop(None);
        if !is_open() {
            warn("stopping; Ctrl-C again ends the program at once");
        }
    })
    .and_then(|()| on_suspension(suspend_screen))
    .map_err(|error| Error::Signals(error.to_string()))?;
    Ok(stop)
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

    #[test]
    fn a_verdict_has_a_sign_with_and_without_color() {
        assert_eq!(painted(Verdict::Holds, false), "✓ holds");
        assert_eq!(painted(Verdict::DoesNotHold, false), "✗ does not hold");
        assert_eq!(
            painted(Verdict::Undecided, true),
            "\x1b[33m? undecided\x1b[0m"
        );
    }
}
