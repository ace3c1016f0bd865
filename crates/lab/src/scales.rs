//! The scales of an experiment. A file first states the settings that all scales share, and then the differences of
//! each scale.
//!
//! The fields of a scale are put into the text of the experiment, which is then parsed. Each part of this text keeps
//! its position in the file, so errors name the line and column in the file.

mod tree;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_runs::{Error as RunError, budget, did_you_mean, parse_ron};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::{Error, Experiment};
use tree::{COMPOSITION, Fields, Value};

/// The lists whose entries can have `scales`.
const LISTS: [&str; 3] = ["runs", "charts", "claims"];
/// Fields that refer to runs or lines by name: the list, and the field of its entries.
const REFERENCES: [(&str, &str); 4] = [
    ("runs", "after"),
    ("runs", "line"),
    ("charts", "lines"),
    ("claims", "test"),
];

/// Names that no scale may have, because the report names of `--only` and of sweeps end with them.
const TAKEN: [&str; 2] = ["only", "sweep"];

/// A part of the file, and the problem with it.
type Wrong<'a> = (&'a str, String);

/// An experiment file with its scales.
#[derive(Clone, Debug)]
pub struct ExperimentFile<'a> {
    text: &'a str,
    path: PathBuf,
    /// The fields, if the file parses and has scales or fields that models share.
    fields: Option<Fields<'a>>,
    scales: Vec<&'a str>,
}

/// The text of an experiment at one scale.
#[derive(Clone, Debug)]
pub struct ExperimentText<'a> {
    file: &'a str,
    path: PathBuf,
    text: String,
    /// Parts of the file, and where they begin in `text`; empty if `text` is the whole file.
    parts: Vec<(usize, &'a str)>,
}

/// The fields that distinguish an experiment file from a run file. One of them suffices, because `runs` can be inside
/// the scales.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Own {
    runs: Option<IgnoredAny>,
    scales: Option<IgnoredAny>,
}

impl Own {
    /// Reads the fields; `None` if the text is not RON.
    fn of(text: &str) -> Option<Self> {
        parse_ron(text, Path::new("")).ok()
    }
}

impl<'a> ExperimentFile<'a> {
    /// Reads RON text. Errors name the text by `path`.
    ///
    /// # Errors
    ///
    /// Returns [`RunError::Parse`] if the text is not RON, if its `scales` are not fields, or if a scale has a reserved
    /// name.
    pub fn new(text: &'a str, path: &Path) -> Result<Self, Error> {
        let mut file = Self {
            text,
            path: path.into(),
            fields: None,
            scales: Vec::new(),
        };
        let Some(fields) = tree::parse(text) else {
            // The error of this parse has the position of a wrong bracket or comma. Other errors are found when an
            // experiment is parsed.
            let _: IgnoredAny = parse_ron(text, path)?;
            return Ok(file);
        };
        if let Some(scales) = fields.get("scales") {
            let scales = scales.clone().fields();
            let scales = scales.map_err(|(part, problem)| {
                // An empty list has no text of its own, so the error points to the name of the field.
                let name = fields.name_of("scales").filter(|_| part.is_empty());
                file.error((name.unwrap_or(part), problem))
            })?;
            file.scales = scales.entries.iter().map(|(name, _)| *name).collect();
            if let Some(name) = file.scales.iter().find(|name| TAKEN.contains(name)) {
                let problem = "cannot be the name of a scale, because the directories of other reports end with it; rename \
                               the scale";
                return Err(file.error((name, problem.into())));
            }
        }
        file.fields = ["scales", "model"]
            .iter()
            .any(|field| fields.get(field).is_some())
            .then_some(fields);
        Ok(file)
    }

    /// Whether a text is an experiment rather than a run.
    pub fn is_experiment(text: &str) -> bool {
        Own::of(text).is_some_and(|own| own.runs.is_some() || own.scales.is_some())
    }

    /// Whether a text has the fields of a run file and no others.
    pub fn is_run(text: &str) -> bool {
        /// The fields of [`RunConfig`](residual_zoo_runs::RunConfig).
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            #[serde(rename = "model")]
            _model: IgnoredAny,
            #[serde(default, rename = "data")]
            _data: Option<IgnoredAny>,
            #[serde(default, rename = "train")]
            _train: Option<IgnoredAny>,
        }
        parse_ron::<Fields>(text, Path::new("")).is_ok()
    }

    /// Returns the names of the scales, in order.
    pub fn scales(&self) -> &[&'a str] {
        &self.scales
    }

    /// Returns the text at `scale`. Without `scale`, returns the text at the first scale, if the file has scales.
    ///
    /// # Errors
    ///
    /// Returns an error for a scale that the file does not have, or `scales` that do not fit.
    pub fn at(&self, scale: Option<&str>) -> Result<ExperimentText<'a>, Error> {
        let mut at = ExperimentText {
            file: self.text,
            path: self.path.clone(),
            text: self.text.to_owned(),
            parts: Vec::new(),
        };
        let scale = match scale {
            Some(scale) => self.scale(scale)?,
            None => self.scales.first().copied().unwrap_or_default(),
        };
        if let Some(fields) = self.fields.clone() {
            let fields = self.resolve(fields, scale);
            let fields = fields.map_err(|wrong| self.error(wrong))?;
            at.text.clear();
            Value::Fields(fields).write(&mut at.text, &mut at.parts);
        }
        Ok(at)
    }

    /// Finds the scale with this name.
    ///
    /// # Errors
    ///
    /// Returns an error if no scale has this name.
    pub fn scale(&self, scale: &str) -> Result<&'a str, ConfigError> {
        let known = self.scales.iter().find(|known| **known == scale);
        known.copied().ok_or_else(|| {
            let problem = match self.scales.is_empty() {
                true => "is given, but the file has no scales; leave it out".to_owned(),
                false => {
                    let meant = did_you_mean(scale, self.scales.iter());
                    format!(
                        "is not a scale of the experiment{meant}; give one of {}",
                        self.scales.join(", ")
                    )
                }
            };
            ConfigError::new(format!("--scale {scale}"), problem)
        })
    }
}

impl<'a> ExperimentFile<'a> {
    /// Resolves the fields at `scale`, and adds the shared fields to each model.
    fn resolve(&self, whole: Fields<'a>, scale: &'a str) -> Result<Fields<'a>, Wrong<'a>> {
        let Some(mut whole) = self.at_scale(whole, scale)? else {
            return Err((
                scale,
                "is None, but only runs, charts and claims can be left out".into(),
            ));
        };
        let shared = whole.remove("model").map(Value::fields).transpose()?;
        if let Some(shared) = shared.as_ref().filter(|shared| !shared.name.is_empty()) {
            let problem = "is an architecture, but `model` here has the fields that all models share: `(width: 64)`";
            return Err((shared.name, problem.into()));
        }
        let mut renamed = BTreeMap::new();
        for (list, value) in &mut whole.entries {
            let (true, Value::List(entries)) = (LISTS.contains(list), value.open()) else {
                continue;
            };
            let mut kept = Vec::new();
            for entry in std::mem::take(entries) {
                let before = entry.fields()?;
                let name = before.text("name");
                let Some(mut entry) = self.at_scale(before, scale)? else {
                    continue;
                };
                if *list == "runs" {
                    renamed.extend(name.zip(entry.text("name")));
                    if let (Some(shared), Some(model)) = (&shared, entry.get_mut("model")) {
                        share(shared, model);
                    }
                }
                kept.push(Value::Fields(entry));
            }
            *entries = kept;
        }
        for (list, field) in REFERENCES {
            if let Some(Value::List(entries)) = whole.get_mut(list) {
                for entry in entries {
                    if let Value::Fields(entry) = entry
                        && let Some(value) = entry.get_mut(field)
                    {
                        value.replace(&renamed);
                    }
                }
            }
        }
        Ok(whole)
    }

    /// Resolves the fields of an experiment or an entry at `scale`; `None` if the scale omits them.
    fn at_scale(
        &self,
        mut whole: Fields<'a>,
        scale: &str,
    ) -> Result<Option<Fields<'a>>, Wrong<'a>> {
        let Some(scales) = whole.remove("scales") else {
            return Ok(Some(whole));
        };
        let scales = scales.fields()?.entries;
        let unknown = scales.iter().find(|(name, _)| !self.scales.contains(name));
        if let Some((name, _)) = unknown {
            let problem = format!(
                "is not a scale of the experiment; the scales are {}",
                self.scales.join(", ")
            );
            return Err((name, problem));
        }
        let twice = (scales.iter().enumerate())
            .find(|(i, (name, _))| scales[..*i].iter().any(|(other, _)| other == name));
        if let Some((_, (name, _))) = twice {
            return Err((name, "is given twice".into()));
        }
        match scales.into_iter().find(|(name, _)| *name == scale) {
            None => Ok(Some(whole)),
            Some((_, Value::Text("None"))) => Ok(None),
            Some((_, own)) => Ok(Some(whole.with(own.fields()?))),
        }
    }

    fn error(&self, (part, problem): Wrong<'a>) -> Error {
        let (line, column) = place(self.text, offset(self.text, part));
        let start: String = part.chars().take_while(|c| *c != '\n').take(40).collect();
        let path = self.path.clone();
        let problem = format!("`{start}` {problem}");
        RunError::Parse {
            path,
            line,
            column,
            problem,
        }
        .into()
    }
}

impl<C: ModelConfig> Experiment<C> {
    /// Reads RON text, at its first scale if it has scales. Errors name the text by `path`.
    ///
    /// # Errors
    ///
    /// Returns an error with the line and column of a mistake in the text.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        ExperimentFile::new(text, path)?.at(None)?.parse()
    }
}

impl ExperimentText<'_> {
    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Parses the experiment.
    ///
    /// # Errors
    ///
    /// Returns an error with the line and column of a mistake in the file.
    pub fn parse<C: ModelConfig>(&self) -> Result<Experiment<C>, Error> {
        let parsed: Experiment<C> =
            parse_ron(&self.text, &self.path).map_err(|error| self.in_file(error))?;
        if let (Some(steps), Some(tokens)) = (budget::written(&self.text), parsed.train.tokens) {
            budget::check((steps, tokens), None, &self.path)?;
        }
        Ok(parsed)
    }

    /// Maps the position of an error in the text to the position in the file.
    fn in_file(&self, mut error: RunError) -> RunError {
        if let RunError::Parse { line, column, .. } = &mut error {
            let lines = self.text.split_inclusive('\n').take(*line - 1);
            let before: usize = lines.map(str::len).sum();
            let rest = self.text[before..].char_indices().nth(*column - 1);
            let at = rest.map_or(self.text.len(), |(at, _)| before + at);
            let known = self.parts.iter().rev().find(|(start, _)| *start <= at);
            if let Some((start, part)) = known {
                // Text after a part, such as a bracket, is not in the file.
                let inside = (at - start).min(part.len());
                (*line, *column) = place(self.file, offset(self.file, part) + inside);
            }
        }
        error
    }
}

/// Adds the fields that all models share to a model or, for a composition, to each layer. Fields that the model sets
/// itself take precedence.
fn share<'a>(shared: &Fields<'a>, model: &mut Value<'a>) {
    if let Value::Fields(fields) = model.open() {
        if fields.name == COMPOSITION.0 {
            fields
                .layers()
                .iter_mut()
                .for_each(|layer| share(shared, layer));
        } else {
            let end = fields.end;
            *fields = shared.clone().with(std::mem::take(fields));
            fields.end = end;
        }
    }
}

/// Returns the byte offset of `part`, which is a slice of `text`.
fn offset(text: &str, part: &str) -> usize {
    part.as_ptr().addr().saturating_sub(text.as_ptr().addr())
}

/// Returns the line and column of the character at `offset`; both count from 1.
fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}
