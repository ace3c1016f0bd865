//! Sets fields of a config with `--set PATH=VALUE`: finds each field by its path and parses its RON value.

mod value;

use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_system::counted;
use serde::Deserialize as _;
use serde_json::{Value, json};
use serde_path_to_error::Segment;

use self::value::{is_string, parse};
use crate::form::{Misfit, form};
use crate::ron_text::OTHER_FORM;
use crate::wording::{NAMES, in_plain_words, of_composition, of_unknown_name, unknown};
use crate::{Error, RunConfig, did_you_mean};

impl<M: ModelConfig> RunConfig<M> {
    /// Sets individual fields. Each assignment is `path=value`, such as `train.steps=100`. The path consists of field
    /// names and list indices, separated by dots. The path can omit the names of architectures. The value is written as
    /// in a RON file, such as `3e-4`, `None`, `Kausik` or `PerLayer(Laurel(weights: Softmax))`. Other text, such as a
    /// file path, needs no quotes. In a composition, a field of an architecture, such as `model.width`, is set in every
    /// layer.
    ///
    /// # Errors
    ///
    /// Returns an error if a field is unknown, or if a value has the wrong type. Also returns an error if an assignment
    /// undoes an earlier one, or if a number in the config is not finite. Also returns an error if an assignment sets
    /// `train.steps` although the config has a budget in tokens.
    pub fn set(self, assignments: &[String]) -> Result<Self, Error> {
        if let (false, Some(error)) = (assignments.is_empty(), self.not_finite()) {
            return Err(error.into());
        }
        refuse_undone(assignments)?;
        let set = assignments.iter().try_fold(self, |config, assignment| {
            config
                .set_one(assignment)
                .map_err(|problem| Error::Override {
                    assignment: assignment.clone(),
                    problem,
                })
        })?;
        let sets_steps = |it: &&String| it.split('=').next().map(str::trim) == Some("train.steps");
        match (set.train.tokens, assignments.iter().find(sets_steps)) {
            (Some(tokens), Some(assignment)) => Err(Error::Override {
                assignment: assignment.clone(),
                problem: format!(
                    "the config has a budget of tokens instead, `train.tokens` = {tokens}; set that, or add \
                     --set train.tokens=None"
                ),
            }),
            _ => Ok(set.with_budget()),
        }
    }

    fn set_one(self, assignment: &str) -> Result<Self, String> {
        let (path, text) = assignment
            .split_once('=')
            .ok_or("must be PATH=VALUE, such as train.steps=100")?;
        let path = path.trim();
        let mut tree = serde_json::to_value(&self).map_err(|error| error.to_string())?;
        if let Some(of_layers) = in_each_layer(&tree["model"], path) {
            let mut each = of_layers.iter().map(|path| format!("{path}={text}"));
            return each.try_fold(self, |config, assignment| config.set_one(&assignment));
        }
        if is_of_composition(path) {
            Self::compose(&mut tree["model"]);
        }
        Self::complete(&mut tree, path)?;
        let field = find(&mut tree, path)?;
        let value = match (&*field, parse(text)) {
            // Text without quotes, such as a path, may have any form. Text in quotes must be a RON string.
            (
                Value::String(_),
                Ok(Value::Number(_) | Value::Bool(_) | Value::Array(_)) | Err(_),
            ) if !is_string(text) => Value::String(text.into()),
            (_, value) => value?,
        };
        let (before, given) = (std::mem::replace(field, value.clone()), value);
        let set = Self::of_tree(&mut tree).map_err(|error| {
            match parse(text) {
                _ if text.trim().is_empty() => return "the value is empty".into(),
                Err(problem) if text.contains('(') => return problem,
                _ => {}
            }
            let message = error.inner().to_string();
            let form = match message.contains("invalid type") || message.contains("invalid length")
            {
                true => Self::form(&tree, path, text),
                false => None,
            };
            if let Some(form) = form {
                return format!("{OTHER_FORM}; write `{path}={form}`");
            }
            match before {
                Value::Number(_) | Value::Bool(_) => {
                    format!(
                        "{}; the field was {before} before",
                        in_plain_words(&message)
                    )
                }
                before => {
                    let message = error.to_string();
                    let of_name = of_unknown_name(&message);
                    of_name.unwrap_or_else(|| in_plain_words(&message) + &named_number(&before))
                }
            }
        })?;
        let mut tree = serde_json::to_value(&set).map_err(|error| error.to_string())?;
        match find(&mut tree, path) {
            Ok(made) if lacks_names(&given, made) => Err(NAMES.into()),
            _ => Ok(set),
        }
    }

    /// Returns the form that the value at `path` in `tree` must have. `given` is the value as written, in a form that
    /// does not fit. The rest of the tree is valid.
    fn form(tree: &Value, path: &str, given: &str) -> Option<String> {
        form(given, &|text| {
            let mut tree = tree.clone();
            let place = find(&mut tree, path).ok()?;
            let Ok(value) = parse(text) else {
                return Some(Misfit::Other);
            };
            *place = value;
            let error = Self::of_tree(&mut tree).err()?;
            Some(Misfit::of(&error.inner().to_string()))
        })
    }

    /// Makes a config from a tree. If an enum has a variant called `None`, as `NormParams` does, replaces null with
    /// that name.
    fn of_tree(tree: &mut Value) -> Result<Self, serde_path_to_error::Error<serde_json::Error>> {
        loop {
            let error = match serde_path_to_error::deserialize(&*tree) {
                Ok(config) => return Ok(config),
                Err(error) => error,
            };
            let at = error
                .path()
                .iter()
                .try_fold(&mut *tree, |at, segment| match segment {
                    Segment::Map { key } => at.get_mut(key),
                    Segment::Enum { variant } => at.get_mut(variant),
                    Segment::Seq { index } => at.get_mut(index),
                    Segment::Unknown => None,
                });
            match at {
                Some(at) if at.is_null() => *at = "None".into(),
                _ => return Err(error),
            }
        }
    }

    /// Turns a model of one architecture into a composition, if the zoo has compositions, so that the fields of a
    /// composition can be set.
    fn compose(model: &mut Value) {
        let whole = composition(model).filter(|whole| M::deserialize(whole).is_ok());
        if let Some(whole) = whole {
            *model = whole;
        }
    }

    /// Adds the field at `path` as `None` if a config can have this field but `tree` omits it.
    ///
    /// # Errors
    ///
    /// Returns an error that lists the existing fields if there is no such field.
    fn complete(tree: &mut Value, path: &str) -> Result<(), String> {
        let Some((parent, name)) = path.rsplit_once('.') else {
            return Ok(());
        };
        let mut with = tree.clone();
        let parent = enter_variant(find(&mut with, parent)?, name);
        let Some(fields) = parent
            .as_object_mut()
            .filter(|fields| !fields.contains_key(name))
        else {
            return Ok(());
        };
        fields.insert(name.into(), Value::Null);
        match Self::deserialize(&with).map_err(|error| error.to_string()) {
            Ok(_) => *tree = with,
            // After the unknown field, serde's message lists all fields, including omitted ones.
            Err(error) => {
                if let Some(known) = error.strip_prefix(&format!("unknown field `{name}`")) {
                    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
                    return Err(unknown_field(name, &known));
                }
            }
        }
        Ok(())
    }

    /// Returns an error for the first number that is not finite. JSON would lose such a number.
    fn not_finite(&self) -> Option<ConfigError> {
        let text = self.to_hashed_text();
        // The fields that enclose the current line, with their indentation.
        let mut path: Vec<(usize, &str)> = Vec::new();
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(": ").unwrap_or(("", line));
            let (indent, name) = (line.len() - line.trim_start().len(), name.trim());
            path.retain(|(outer, _)| *outer < indent);
            if !name.is_empty() {
                path.push((indent, name));
            }
            // Quoted text may contain any words, so only the part before the quotes is checked.
            let value = value.split('"').next().unwrap_or_default();
            let mut words = value.split(['(', ')', ',', ' ']);
            let found = words.find(|word| matches!(*word, "NaN" | "inf" | "-inf"))?;
            let path: Vec<&str> = path.iter().map(|(_, name)| *name).collect();
            Some(ConfigError::new(
                path.join("."),
                format!("is {found}; it must be a finite number"),
            ))
        })
    }
}

/// Refuses an assignment that overwrites an earlier one. An assignment may change a part of an earlier value.
fn refuse_undone(assignments: &[String]) -> Result<(), Error> {
    // An assignment without a value causes its own error elsewhere.
    let is_whole = assignments.iter().all(|it| it.contains('='));
    let fields = assignments.iter().filter(|_| is_whole);
    let fields: Vec<Vec<&str>> = fields.map(|it| names_of(it)).collect();
    for (i, field) in fields.iter().enumerate() {
        let mut earlier = fields[..i].iter().enumerate();
        let undone = earlier.find_map(|(at, earlier)| Some((at, contained(earlier, field)?)));
        if let Some((earlier, longer)) = undone {
            let problem = match longer > 0 {
                true => {
                    "sets a part of it, which would be lost; give that after it, or leave one of them out"
                }
                false => "sets the same field; leave one of them out",
            };
            return Err(Error::Override {
                assignment: assignments[i].clone(),
                problem: format!("`{}` {problem}", assignments[earlier]),
            });
        }
    }
    Ok(())
}

/// Returns the names of the fields in a path, or in `PATH=VALUE`. Omits the names of architectures and other variants,
/// because they are optional in a path.
pub fn names_of(path: &str) -> Vec<&str> {
    let path = path.split('=').next().unwrap_or_default();
    let names = path.split('.').map(str::trim);
    names
        .filter(|name| !name.starts_with(char::is_uppercase))
        .collect()
}

/// Whether two paths, or `PATH=VALUE`, lead to the same field, or one of them to a part of the other.
pub fn overlaps(path: &str, other: &str) -> bool {
    let (path, other) = (names_of(path), names_of(other));
    contained(&path, &other)
        .or(contained(&other, &path))
        .is_some()
}

/// Returns the number of names by which the path to a part is longer, if `part` leads to the field at `whole` or to a
/// part of it, and `None` otherwise. In a composition, a path without a layer is about every layer.
pub fn contained(part: &[&str], whole: &[&str]) -> Option<usize> {
    if part.starts_with(whole) {
        return Some(part.len() - whole.len());
    }
    let is_in_each_layer = matches!(part, ["model", field, ..] if !COMPOSITION.contains(field));
    if matches!(whole, ["model", "layers"] | ["model", "layers", _]) && is_in_each_layer {
        return Some(1);
    }
    let is_shared = of_one_layer(part).is_none() || of_one_layer(whole).is_none();
    let [whole, part] = [whole, part].map(|it| of_one_layer(it).unwrap_or(it.to_vec()));
    (is_shared && part.starts_with(&whole)).then(|| part.len() - whole.len())
}

/// Removes `layers` and the index of a layer from the names in a path; `None` if the path is not about a part of one
/// layer.
fn of_one_layer<'a>(names: &[&'a str]) -> Option<Vec<&'a str>> {
    match names {
        ["model", "layers", _, rest @ ..] if !rest.is_empty() => Some([&["model"], rest].concat()),
        _ => None,
    }
}

/// The fields of a composition. All other fields of a model belong to an architecture.
const COMPOSITION: [&str; 5] = ["connection", "recurrence", "loops", "patches", "layers"];

/// Whether a path leads to a field of a composition, or to a part of it.
fn is_of_composition(path: &str) -> bool {
    let field = path
        .strip_prefix("model.")
        .and_then(|path| path.split('.').next());
    field.is_some_and(|field| COMPOSITION.contains(&field))
}

/// Returns the paths of a field of an architecture in each layer of a composition. Returns `None` if `model` is no
/// composition, or if the path is not that of a field of an architecture.
fn in_each_layer(model: &Value, path: &str) -> Option<Vec<String>> {
    let layers = model.get("Composed")?.get("layers")?.as_array()?;
    let field = path.strip_prefix("model.")?;
    let first = field.split('.').next()?;
    let is_of_architecture = !COMPOSITION.contains(&first)
        && !first.starts_with(char::is_uppercase)
        && did_you_mean(first, COMPOSITION.iter()).is_empty();
    let has = |layer: &Value| {
        enter_variant(&mut layer.clone(), first)
            .get(first)
            .is_some()
    };
    let in_layer = |i: usize| format!("model.layers.{i}.{field}");
    (is_of_architecture || layers.iter().any(has))
        .then(|| (0..layers.len()).map(in_layer).collect())
}

/// Returns the composition of a single layer that equals `model`, in the JSON form of a config; `None` if `model` is
/// already a composition.
pub fn composition(model: &Value) -> Option<Value> {
    let whole = json!({"Composed": {"layers": [model], "connection": null, "recurrence": null}});
    model.get("Composed").is_none().then_some(whole)
}

/// Whether `given` has a list where the resulting config has fields. A list would fill the fields by position, so a
/// number could reach the wrong field. Config files cannot have such values either.
fn lacks_names(given: &Value, made: &Value) -> bool {
    match (given, made) {
        (Value::Array(_), Value::Object(_)) => true,
        (Value::Array(given), Value::Array(made)) => given
            .iter()
            .zip(made)
            .any(|(given, made)| lacks_names(given, made)),
        (Value::Object(given), Value::Object(made)) => given
            .iter()
            .any(|(name, given)| made.get(name).is_some_and(|made| lacks_names(given, made))),
        _ => false,
    }
}

/// Describes the previous value of a field if it is a number with a name, such as `Ratio(0.1)`. Returns an empty string
/// for other values.
fn named_number(before: &Value) -> String {
    let fields = before.as_object().filter(|fields| fields.len() == 1);
    match fields.and_then(|fields| fields.iter().next()) {
        Some((name, number @ Value::Number(_))) => {
            format!("; the field was {name}({number}) before")
        }
        _ => String::new(),
    }
}

/// Finds the field at `path`. The path can omit the names of enum variants.
fn find<'a>(tree: &'a mut Value, path: &str) -> Result<&'a mut Value, String> {
    path.split('.').try_fold(tree, |at, field| {
        let at = enter_variant(at, field);
        if let Value::Array(entries) = at {
            let count = entries.len();
            let index = field.parse::<usize>().ok();
            // Refuses indices such as `01`: repeated assignments are noticed only if each entry has a single path.
            if let Some(index) = index.filter(|index| index.to_string() != field) {
                return Err(format!(
                    "`{field}` is not how an index is written; write `{index}`"
                ));
            }
            return index.and_then(|i| entries.get_mut(i)).ok_or_else(|| {
                format!(
                    "the list has no entry `{field}`; it has {}, counted from 0",
                    counted(count, "entry")
                )
            });
        }
        if at.is_null() {
            return Err(format!(
                "`{field}` cannot be set, because the value before it is None; set that as a whole"
            ));
        }
        let known: Vec<String> = match &at {
            Value::Object(fields) => fields.keys().cloned().collect(),
            _ => Vec::new(),
        };
        // The first field that contains a field with this name.
        let mut outer = known.iter();
        let outer = outer.find(|outer| enter_variant(&mut at[*outer], field).get(field).is_some());
        at.get_mut(field).ok_or_else(|| match known.is_empty() {
            true => format!("`{field}` does not exist; the value before it has no fields"),
            false => match outer {
                Some(outer) => format!("unknown field `{field}` (did you mean `{outer}.{field}`?)"),
                None => unknown_field(field, &known),
            },
        })
    })
}

fn unknown_field<S: AsRef<str>>(field: &str, known: &[S]) -> String {
    unknown("field", field, known) + of_composition(field)
}

/// Enters the enum variants at `at`, until the value has a field called `field`.
fn enter_variant<'a>(at: &'a mut Value, field: &str) -> &'a mut Value {
    let variant = at.as_object().filter(|fields| fields.len() == 1);
    let variant = variant.and_then(|fields| fields.keys().next()).cloned();
    match variant.filter(|name| name != field && name.starts_with(char::is_uppercase)) {
        Some(name) => enter_variant(&mut at[name], field),
        None => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_set_once_and_its_parts_after_it() {
        let check = |assignments: [&str; 2]| refuse_undone(&assignments.map(String::from));
        for good in [
            ["train.steps=3", "train.batch=3"],
            ["train.log_every=3", "train.log=3"],
            ["model=Gpt2(n_layer: 2)", "model.n_head=3"],
            ["model.layers=[]", "model.layers.0.n_head=3"],
            ["model.layers.0.n_head=3", "model.layers.1.n_head=4"],
            ["model.layers.1=Gpt2()", "model.n_head=3"],
            ["model.connection=None", "model.layers.1=Gpt2()"],
        ] {
            check(good).unwrap();
        }
        for (twice, problem) in [
            (["train.steps=3", "train.steps=3"], "the same field"),
            (["model.n_head=3", "model.Gpt2.n_head=4"], "the same field"),
            (
                ["model.n_head=3", "model.layers.0.Gpt2.n_head=4"],
                "the same field",
            ),
            (
                ["model.layers.1.n_head=4", "model.n_head=3"],
                "the same field",
            ),
            (["model.n_head=3", "model=Gpt2(n_layer: 2)"], "a part of it"),
            (
                ["model.layers.0.n_head=3", "model.layers=[]"],
                "a part of it",
            ),
            (["model.n_head=3", "model.layers=[]"], "a part of it"),
            (["model.n_head=3", "model.layers.1=Gpt2()"], "a part of it"),
        ] {
            let error = check(twice).unwrap_err().to_string();
            for part in [twice[0], twice[1], problem] {
                assert!(error.contains(part), "{part} is not in: {error}");
            }
        }
    }

    #[test]
    fn a_field_without_its_parent_is_found() {
        let mut tree = json!({
            "model": {"Gpt2": {"width": 8, "n_layer": 2}}, "train": {"steps": 1, "time": null}, "data": {"source": "a"},
        });
        for (field, meant) in [
            ("steps", "train.steps"),
            ("time", "train.time"),
            ("width", "model.width"),
        ] {
            assert_eq!(
                find(&mut tree, field).unwrap_err(),
                format!("unknown field `{field}` (did you mean `{meant}`?)")
            );
        }
        let unknown = find(&mut tree, "surprise").unwrap_err();
        assert_eq!(
            unknown,
            "unknown field `surprise`; the fields are data, model, train"
        );
    }

    #[test]
    fn an_entry_of_a_list_has_one_path() {
        let mut tree = json!({"layers": [{"width": 8}, {"width": 16}], "train": {"steps": 1}});
        assert_eq!(find(&mut tree, "layers.1.width").unwrap(), &json!(16));
        for (path, problem) in [
            (
                "steps",
                "unknown field `steps` (did you mean `train.steps`?)",
            ),
            (
                "layer",
                "unknown field `layer` (did you mean `layers`?); the fields are layers, train",
            ),
            (
                "layers.00.width",
                "`00` is not how an index is written; write `0`",
            ),
            (
                "layers.+1.width",
                "`+1` is not how an index is written; write `1`",
            ),
            (
                "layers.01",
                "`01` is not how an index is written; write `1`",
            ),
            (
                "layers.2",
                "the list has no entry `2`; it has 2 entries, counted from 0",
            ),
        ] {
            assert_eq!(find(&mut tree, path).unwrap_err(), problem);
        }
    }
}
