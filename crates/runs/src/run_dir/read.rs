//! Reads the files of a run directory.

use std::path::Path;

use residual_zoo_core::ModelConfig;
use residual_zoo_data::{
    Corpus, DataConfig, DataError, Examples, Tokenizer, TokenizerConfig, is_on_hub,
};

use super::{CONFIG, DATA, DataIdentity, HISTORY, METRICS, Start, TOKENIZER};
use crate::error::{ANOTHER_RUN, FROM_ITS_WEIGHTS, IF_MERGED};
use crate::log::read_lines;
use crate::{Error, Row, RunConfig, disk};

/// Reads the config of the run in `path`.
///
/// # Errors
///
/// Returns an error if `path` is not a run directory, or its config does not parse.
pub fn read_config<C: ModelConfig>(path: &Path) -> Result<RunConfig<C>, Error> {
    let config = path.join(CONFIG);
    if !config.is_file() {
        let problem = match path.exists() {
            true if path.join("config.json").is_file() => format!(
                "has no {CONFIG}, but the config.json of an exported model; make a run of it by `residual-zoo import`"
            ),
            true if path.join(HISTORY).is_file() => {
                format!("has lost its {CONFIG}; restore it, for instance from a backup")
            }
            true => format!("has no {CONFIG}; give a run directory"),
            false => "does not exist; give a run directory".into(),
        };
        return Err(Error::NoRun {
            path: path.into(),
            problem,
        });
    }
    disk::refuse_link(&config)?;
    RunConfig::read(&config)
}

/// Reads the tokenizer of the run in `path`.
///
/// # Errors
///
/// Returns an error if the tokenizer is missing or does not parse.
pub fn read_tokenizer(path: &Path) -> Result<Tokenizer, Error> {
    let path = path.join(TOKENIZER);
    disk::refuse_link(&path)?;
    let text = residual_zoo_data::read_utf8(&path)?;
    Tokenizer::from_long_json(text).map_err(|e| match e.is_stop() {
        true => e.into(),
        false => Error::Checkpoint {
            path: path.clone(),
            problem: format!("{e}"),
        },
    })
}

/// Checks that the run in `path` has the tokenizer of `corpus`. `otherwise` ends the error, with another remedy if
/// there is one.
///
/// # Errors
///
/// Returns an error if the tokenizers differ, or the tokenizer of the run cannot be read.
pub fn check_tokenizer(path: &Path, corpus: &Corpus, otherwise: &str) -> Result<(), Error> {
    if read_tokenizer(path)?.fingerprint() == corpus.tokenizer.fingerprint() {
        return Ok(());
    }
    let problem = match corpus.train {
        Examples::Images(_) => format!(
            "was trained on other classes or on text, so its outputs have other meanings; use images of the same classes{otherwise}"
        ),
        _ => format!(
            "was trained with another tokenizer, so its token ids have other meanings; use the same data, or pass its \
             tokenizer.json with `--tokenizer`{otherwise}"
        ),
    };
    Err(Error::NoRun {
        path: path.into(),
        problem,
    })
}

/// Checks the paths in the config of the run in `path`, which may come from others. `data` is its data config, with the
/// fields that the user has replaced. A text or tokenizer outside the run must be the one of its training. So no other
/// file is read on, tokenized or stored, and nothing is downloaded. A cache is refused, even inside the run, because
/// the content of a cache is trusted.
///
/// # Errors
///
/// Returns [`Error::Outside`], or an error for a run without a tokenizer or data.
pub fn check_paths(path: &Path, data: &DataConfig) -> Result<(), Error> {
    let run = std::fs::canonicalize(path).map_err(Error::io("read", path))?;
    let is_outside = |place: &Path| {
        // Files on the hub are compared with their cached copies.
        if is_on_hub(place) {
            return true;
        }
        let place = std::path::absolute(place).unwrap_or_else(|_| place.into());
        // A path that does not exist yet is located by its parent.
        let known = place
            .ancestors()
            .find_map(|part| std::fs::canonicalize(part).ok());
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
        let why = ", and what is in a cache is trusted";
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
            let why = ", outside of the run and not the text that it was trained on; give the data with `--data`";
            return Err(outside("data.source", text, why));
        }
    }
    Ok(())
}

/// Reads the identity of the data of the run in `path`.
///
/// # Errors
///
/// Returns an error if the file is missing, as in a run that has not trained, or does not parse.
pub fn read_data(path: &Path) -> Result<DataIdentity, Error> {
    let run = path;
    let path = path.join(DATA);
    disk::refuse_link(&path)?;
    if !path.exists() {
        return Err(Error::NoRun {
            path: run.into(),
            problem: format!(
                "has no `{DATA}`, so nothing is known of its data; {IF_MERGED}, train its model by \
                 `train {0}/config.ron --init-from {0} --run NEW`, otherwise restore the file",
                run.display()
            ),
        });
    }
    let text = residual_zoo_data::read_utf8(&path)?;
    let problem = |e: serde_json::Error| Error::Checkpoint {
        path: path.clone(),
        problem: format!("is damaged: {e}; restore it, or {ANOTHER_RUN}"),
    };
    serde_json::from_str(&text).map_err(problem)
}

/// Reads the starts of the run in `path`. An incomplete last line is left out.
///
/// # Errors
///
/// Returns an error if the file is missing or a line does not parse.
pub fn read_history(path: &Path) -> Result<Vec<Start>, Error> {
    let run = path;
    let path = path.join(HISTORY);
    disk::refuse_link(&path)?;
    if !path.exists() {
        return Err(Error::NoRun {
            path: run.into(),
            problem: format!(
                "has lost its {HISTORY}; restore it, or {FROM_ITS_WEIGHTS}: `--init-from {}`",
                run.display()
            ),
        });
    }
    read_lines(&path, u64::MAX)
}

/// Reads the metrics of the run in `path`. An incomplete last line is left out.
///
/// # Errors
///
/// Returns an error if the file is missing, a line does not parse, or the steps do not increase.
pub fn read_metrics(path: &Path) -> Result<Vec<Row>, Error> {
    rows(&path.join(METRICS), u64::MAX)
}

/// The rows in the first `bytes` bytes of a file. Their steps must increase.
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
                "line {}: its step is not after that of the line before; delete one of them",
                i + 2
            ),
        }),
    }
}
