//! An experiment file and its scales.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use residual_zoo_core::ConfigError;
use residual_zoo_data::read_utf8;
use residual_zoo_lab::{Error, ExperimentFile};

/// The text of an experiment, and its origin.
#[derive(Clone, Debug)]
pub struct Source {
    /// The name of the experiment. The name of its report's directory begins with this name.
    pub name: String,
    /// The text of the experiment file.
    pub text: Cow<'static, str>,
    /// The path of the file.
    pub path: PathBuf,
    /// Whether the file is the user's own.
    pub is_own: bool,
}

impl Source {
    /// Reads the experiment in the file `path`.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let name = path.file_stem().unwrap_or_default();
        Ok(Self {
            name: name.to_string_lossy().into_owned(),
            text: read_utf8(path)?.into(),
            path: path.into(),
            is_own: true,
        })
    }

    /// Parses the file with its scales.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`ExperimentFile::new`].
    pub fn file(&self) -> Result<ExperimentFile<'_>, Error> {
        ExperimentFile::new(&self.text, &self.path)
    }
}

/// Returns the requested scale of `file`. If none is requested, returns `usual` or, if the file lacks it, the first
/// scale. Returns `None` if the file has no scales.
///
/// # Errors
///
/// Returns an error if the file lacks the requested scale.
pub fn chosen_scale<'a>(
    file: &ExperimentFile<'a>,
    asked: Option<&str>,
    usual: &str,
) -> Result<Option<&'a str>, ConfigError> {
    match asked {
        Some(asked) => file.scale(asked).map(Some),
        None => Ok(file.scale(usual).ok().or(file.scales().first().copied())),
    }
}
