//! Reads the files of a run directory.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use residual_zoo_core::ModelConfig;
use residual_zoo_data::{
    Corpus, DataConfig, DataError, Examples, Source, Tokenizer, TokenizerConfig, is_on_hub,
    is_there, one_line,
};
use residual_zoo_system::Blame as _;
use serde::Deserialize;

use super::{CONFIG, DATA, DataIdentity, HISTORY, METRICS, Start, TOKENIZER};
use crate::log::read_lines;
use crate::{Error, Remedy, Row, RunConfig, checkpoint, disk, parse_ron};

/// Reads the config of the run in `path`.
///
/// # Errors
///
/// Returns an error if `path` is not a run directory, or its config does not parse.
pub fn read_config<C: ModelConfig>(path: &Path) -> Result<RunConfig<C>, Error> {
    let config = path.join(CONFIG);
    if let Err(error) = fs::symlink_metadata(&config) {
        if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) {
            // Symbolic links that form a loop have an error of their own.
            is_there(path)?;
            return Err(Error::io("read", &config)(error));
        }
        let problem = match is_there(path)? {
            true if path.join("config.json").is_file() => format!(
                "has no {CONFIG}, but the config.json of an exported model; make a run of it with `residual-zoo import`"
            ),
            true if path.join(HISTORY).is_file() => {
                format!("has lost its {CONFIG}; restore it, for instance from a backup")
            }
            true if path.is_file() && is_own_config(path) => {
                let run = path.parent().unwrap_or(path).display();
                format!("is the config of a run; give its directory, {run}")
            }
            true if path.is_file() => match path.extension().is_some_and(|it| it == "ron") {
                true => not_trained(path),
                false => "is a file; give a run directory".into(),
            },
            true => match (checkpoint::step_of(path), path.ancestors().nth(2)) {
                (Some(step), Some(run)) => format!(
                    "is a checkpoint; give its run, {}; `--checkpoint {step}` or `--init-checkpoint {step}` chooses it",
                    run.display()
                ),
                _ => format!("has no {CONFIG}; give a run directory"),
            },
            false => "does not exist; give a run directory".into(),
        };
        return Err(Error::NoRun {
            path: path.into(),
            problem,
        });
    }
    disk::refuse_link(&config)?;
    RunConfig::read(&config).map_err(|error| match error {
        error @ Error::Parse { .. } => error.then("; restore it, or ", Remedy::AnotherRun),
        error => error,
    })
}

/// Whether `path` is the config in the directory of a run.
fn is_own_config(path: &Path) -> bool {
    path.ends_with(CONFIG) && path.with_file_name(HISTORY).exists()
}

/// Describes the problem that the run file `path` was given instead of a trained run.
pub fn not_trained(path: &Path) -> String {
    let file = one_line(path.display());
    format!(
        "is a run file; train it first with `residual-zoo train {file} --run DIR`, and give that DIR"
    )
}

/// Reads the tokenizer of the run in `path`.
///
/// # Errors
///
/// Returns an error if the tokenizer is missing or does not parse.
pub fn read_tokenizer(path: &Path) -> Result<Tokenizer, Error> {
    let file = path.join(TOKENIZER);
    disk::refuse_link(&file)?;
    let text = residual_zoo_data::read_utf8(&file);
    let read = text.and_then(Tokenizer::from_long_json);
    read.map_err(|error| tokenizer_error(path, error))
}

/// Returns the error for an unreadable tokenizer of the run in `run`. If the user stopped the process, returns `error`
/// unchanged.
pub fn tokenizer_error(run: &Path, error: DataError) -> Error {
    let problem = match error {
        error if error.is_stop() => return error.into(),
        DataError::NotFound { .. } => "is missing".into(),
        error => format!("cannot be read ({error})"),
    };
    wrong_tokenizer(run, &problem)
}

/// Returns the error for a `problem` with the tokenizer of the run in `run`. The remedy says how to restore the
/// tokenizer, according to the config and the history of the run.
pub fn wrong_tokenizer(run: &Path, problem: &str) -> Error {
    /// The part of a config that says where its tokenizer comes from.
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Origin {
        data: DataConfig,
    }
    let path = run.join(TOKENIZER);
    let config = residual_zoo_data::read_utf8(&run.join(CONFIG)).ok();
    let config = config.and_then(|text| parse_ron::<Origin>(&text, run).ok());
    let data = config.unwrap_or_default().data;
    let merged = read_history(run).ok().and_then(|mut starts| {
        let last = starts.pop()?;
        last.merged_with.and(last.init_from)
    });
    let delete = match path.exists() {
        true => "delete it, and ",
        false => "",
    };
    let again = |before: &str| {
        let run = run.display();
        // Without a tokenizer, the paths of the run cannot be verified.
        let has_paths =
            matches!(data.tokenizer, TokenizerConfig::File(_)) || !data.source.paths().is_empty();
        let allow = match has_paths {
            true => " --allow-paths",
            false => "",
        };
        format!(
            "{delete}{before}`residual-zoo train --resume {run}{allow}` writes it again from the run's data"
        )
    };
    let origin = match (&data.source, merged, &data.tokenizer) {
        (Source::Imported, ..) => "import the model again, into another directory".into(),
        (_, Some(parent), _) => format!(
            "copy the tokenizer of {}, which was merged",
            parent.display()
        ),
        (_, None, TokenizerConfig::File(file)) if !is_on_hub(file) && !file.exists() => again(
            &format!("put back {}, from which it was made; then ", file.display()),
        ),
        _ => again(""),
    };
    Error::Checkpoint {
        path,
        problem: format!("{problem}; restore it, or {origin}"),
    }
}

/// Checks that the run in `path` has the tokenizer of `corpus`.
///
/// # Errors
///
/// Returns an error if the tokenizers differ, or the tokenizer of the run cannot be read.
pub fn check_tokenizer(path: &Path, corpus: &Corpus) -> Result<(), Error> {
    if read_tokenizer(path)?.fingerprint() == corpus.tokenizer.fingerprint() {
        return Ok(());
    }
    let problem = match corpus.train {
        Examples::Images(_) => {
            "was trained on other classes or on text, so its outputs have other meanings; use images of the same classes"
        }
        _ => {
            "was trained with another tokenizer, so its token ids have other meanings; use the same data, or pass its \
             tokenizer.json with `--tokenizer`"
        }
    };
    Err(Error::NoRun {
        path: path.into(),
        problem: problem.into(),
    })
}

/// Checks the cache, the tokenizer and the texts in the config of the run in `path`. The run may come from someone
/// else. `data` is the run's data config after the changes by the user. A text or tokenizer outside the run must be the
/// one that the run was trained with. This check ensures that no other file is tokenized or stored, and that nothing is
/// downloaded. A cache path is refused, even inside the run, because the content of a cache is trusted.
///
/// # Errors
///
/// Returns [`Error::Outside`] for a path that is refused. Also returns an error if the tokenizer, the data identity or
/// a text is needed for the comparison but cannot be read.
pub fn check_paths(path: &Path, data: &DataConfig) -> Result<(), Error> {
    let run = fs::canonicalize(path).map_err(Error::io("read", path))?;
    let is_outside = |place: &Path| {
        // Files on the hub are outside the run. Their cached copies are compared.
        if is_on_hub(place) {
            return true;
        }
        let place = std::path::absolute(place).unwrap_or_else(|_| place.into());
        // A path that does not exist yet is located by its nearest existing parent.
        let known = place
            .ancestors()
            .find_map(|part| fs::canonicalize(part).ok());
        let has_dots = place
            .components()
            .any(|part| part == std::path::Component::ParentDir);
        has_dots || !known.is_some_and(|known| known.starts_with(&run))
    };
    let exists = |place: &Path| is_on_hub(place) || place.exists();
    let outside = |field, place: &Path, why| Error::Outside {
        run: path.into(),
        field,
        path: place.into(),
        why,
    };
    if let Some(cache) = &data.cache {
        let why = ", and the content of a cache is trusted";
        return Err(outside("data.cache", cache, why));
    }
    if let TokenizerConfig::File(file) = &data.tokenizer
        && exists(file)
        && is_outside(file)
    {
        let found = Tokenizer::train(&data.tokenizer, &[]).map(|tokenizer| tokenizer.fingerprint());
        if found.as_ref().is_err_and(|error| error.is_stop()) {
            return Err(DataError::Stopped.into());
        }
        if found.ok() != Some(read_tokenizer(path)?.fingerprint()) {
            let why = ", outside of the run and not the tokenizer that it was trained with; give that with `--tokenizer`";
            return Err(outside("data.tokenizer", file, why));
        }
    }
    let mut paths = data.source.paths().into_iter();
    if let Some(text) = paths.find(|text| exists(text) && is_outside(text)) {
        let fingerprint = read_tokenizer(path)?.fingerprint();
        let found = Corpus::identity_of_text(data, &fingerprint)?;
        if found != Some(read_data(path)?.identity) {
            let why = ", outside of the run and not the text that it was trained on; if that has changed, continue with \
                       `--allow-paths --allow-config-change`, or give the data with `--data`";
            return Err(outside("data.source", text, why));
        }
    }
    Ok(())
}

/// Reads the data identity of the run in `path`.
///
/// # Errors
///
/// Returns an error if the file is missing, as in an imported or merged run that has not trained, or does not parse.
pub fn read_data(path: &Path) -> Result<DataIdentity, Error> {
    let run = path;
    let path = path.join(DATA);
    disk::refuse_link(&path)?;
    if !path.exists() {
        let lost = Error::NoRun {
            path: run.into(),
            problem: format!("has no `{DATA}`, so nothing is known of its data"),
        };
        return Err(lost.then("; ", Remedy::IfMerged(run.into())));
    }
    let text = residual_zoo_data::read_utf8(&path)?;
    serde_json::from_str(&text).map_err(|e| {
        let problem = format!("is damaged: {e}");
        let damaged = Error::Checkpoint { path, problem };
        damaged.then("; restore it, or ", Remedy::AnotherRun)
    })
}

/// Reads the starts of the run in `path`. Skips an incomplete last line.
///
/// # Errors
///
/// Returns an error if the file is missing, has no complete line, or has a complete line that does not parse.
pub fn read_history(path: &Path) -> Result<Vec<Start>, Error> {
    let run = path;
    let path = path.join(HISTORY);
    disk::refuse_link(&path)?;
    let starts = match path.exists() {
        true => read_lines(&path, u64::MAX)?,
        false => Vec::new(),
    };
    // Every run writes a whole line before its config. Without such a line, it is unknown whether the config was
    // edited.
    if starts.is_empty() {
        let lost = Error::NoRun {
            path: run.into(),
            problem: format!("has lost its {HISTORY}"),
        };
        return Err(lost.then("; restore it, or ", Remedy::FromWeightsOf(run.into())));
    }
    Ok(starts)
}

/// Reads the metrics of the run in `path`. Skips an incomplete last line.
///
/// # Errors
///
/// Returns an error if the file is missing, a line does not parse or has an impossible value, or the steps do not
/// increase.
pub fn read_metrics(path: &Path) -> Result<Vec<Row>, Error> {
    rows(&path.join(METRICS), u64::MAX)
}

/// Reads the rows in the first `bytes` bytes of a file. The steps of the rows must increase.
pub(super) fn rows(path: &Path, bytes: u64) -> Result<Vec<Row>, Error> {
    disk::refuse_link(path)?;
    let rows: Vec<Row> = read_lines(path, bytes)?;
    let odd = rows
        .iter()
        .enumerate()
        .find_map(|(i, row)| Some((i, row.problem()?)));
    if let Some((i, problem)) = odd {
        return Err(Error::Checkpoint {
            path: path.into(),
            problem: format!("line {}: {problem}; fix or delete that line", i + 1),
        });
    }
    let backwards = rows
        .windows(2)
        .position(|pair| pair[0].step >= pair[1].step);
    match backwards {
        None => Ok(rows),
        Some(i) => Err(Error::Checkpoint {
            path: path.into(),
            problem: format!(
                "line {}: its step is not after the step of the line before; delete one of the two lines",
                i + 2
            ),
        }),
    }
}
