//! An experiment's files, and its scales.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use residual_zoo_core::ConfigError;
use residual_zoo_lab::Error;

/// An experiment and where its text comes from.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name, which the directory of its report begins with.
    pub name: String,
    /// Its text.
    pub files: Files,
}

/// The RON files of an experiment.
#[derive(Clone, Debug)]
pub enum Files {
    /// Those of the scales smoke, cpu and paper.
    Scales([&'static str; 3]),
    /// A single file and its path.
    Single(String, PathBuf),
}

impl Source {
    /// The experiment in the file `path`.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let part = |name: Option<&OsStr>| name.unwrap_or_default().to_string_lossy().into_owned();
        let mut name = part(path.file_stem());
        // Every experiment of the zoo has a file of this name; its directory tells which it is.
        let absolute = std::path::absolute(path).unwrap_or_default();
        let directory = part(absolute.parent().and_then(Path::file_name));
        if Scale::from_str(&name, false).is_ok() && !directory.is_empty() {
            name = format!("{directory}-{name}");
        }
        Ok(Self {
            name,
            files: Files::Single(residual_zoo_data::read_utf8(path)?, path.into()),
        })
    }

    /// The text and its path, at `scale` where there are scales.
    pub(super) fn at(&self, scale: Option<Scale>) -> Result<(&str, PathBuf), ConfigError> {
        match (&self.files, scale) {
            (Files::Scales(texts), scale) => {
                let scale = scale.unwrap_or(Scale::Smoke);
                let path = format!("experiments/…/{}/{}.ron", self.name, scale.name());
                Ok((texts[scale as usize], path.into()))
            }
            (Files::Single(text, path), None) => Ok((text, path.clone())),
            (Files::Single(..), Some(scale)) => {
                let problem = "is given, but a single file has no scales; leave it out";
                let field = format!("--scale {}", scale.name());
                Err(ConfigError::new(field, problem))
            }
        }
    }
}

/// A scale of an experiment of the zoo.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Seconds: whether everything works
    Smoke,
    /// From minutes to two hours on two cores with `--jobs 2`, several seeds
    Cpu,
    /// As published, for GPUs
    Paper,
}

impl Scale {
    /// Its name as an option has it.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or(String::new(), |value| value.get_name().to_owned())
    }
}
