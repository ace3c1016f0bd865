//! The tokens that begin and end a text, as `transformers` stores them for a model.

use std::path::Path;

use residual_zoo_data::{Tokenizer, one_line};
use serde_json::Value;

use crate::Error;
use crate::json::{Fields, read_fields_if_any};
use crate::tokenizer::Found;

/// The fields of `config.json` and `generation_config.json` for the tokens that begin and end a text.
pub const FIELDS: [&str; 2] = ["bos_token_id", "eos_token_id"];

/// The values in `config.json` and `generation_config.json` for the tokens that begin and end a text.
#[derive(Debug, Default)]
pub struct Ends {
    /// The values of each field, with the files that they come from. The first value with a token counts.
    ids: [Vec<(&'static str, Value)>; 2],
}

impl Ends {
    /// Reads the `generation_config.json` in `directory`. `config` has the fields of the `config.json` there.
    ///
    /// # Errors
    ///
    /// Returns an error if a file is damaged.
    pub fn read(directory: &Path, config: &Fields) -> Result<Self, Error> {
        const GENERATION: &str = "generation_config.json";
        let generation = read_fields_if_any(&directory.join(GENERATION))?;
        let values = |field| {
            let files = [(GENERATION, &generation), ("config.json", config)];
            let values = files.map(|(file, fields)| Some((file, fields.get(field)?.clone())));
            values.into_iter().flatten().collect()
        };
        Ok(Self {
            ids: FIELDS.map(values),
        })
    }

    /// Returns the tokenizer with these tokens, and notes for the user. A text begins with the tokenizer's `bos_token`,
    /// as in `lm_eval`, and ends where `generation_config.json` says, as in `transformers`. If the tokenizer or
    /// `generation_config.json` names no token, the other files are used. If several ids end a text, the first one also
    /// separates texts.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Tokenizer::with_ends`].
    pub fn set(&self, found: Found) -> Result<(Tokenizer, Vec<String>), Error> {
        let Found {
            tokenizer,
            begin,
            end,
            pad,
            unknown,
            mut notes,
        } = found;
        let [begins, ends] = &self.ids;
        let begins = ids(&tokenizer, FIELDS[0], begins, &mut notes);
        if let ([first, _, ..], None) = (&begins[..], begin) {
            let count = begins.len();
            notes.push(format!(
                "a text begins with one of {count} ids; only the first, {first}, is used"
            ));
        }
        let begin = begin.or(begins.first().copied());
        let ends = ids(&tokenizer, FIELDS[1], ends, &mut notes);
        let end = ends.first().copied().or(end);
        let tokenizer = tokenizer.with_ends(begin, end)?.with_more_ends(ends);
        Ok((tokenizer.with_names(pad, unknown), notes))
    }
}

/// Returns the token ids in the first of `values` that has any.
fn ids(
    tokenizer: &Tokenizer,
    field: &str,
    values: &[(&'static str, Value)],
    notes: &mut Vec<String>,
) -> Vec<u32> {
    let mut odd: Vec<&Value> = Vec::new();
    for (file, value) in values {
        let list = value
            .as_array()
            .map_or(std::slice::from_ref(value), Vec::as_slice);
        let id = |value: &Value| {
            let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
            id.filter(|id| tokenizer.has_token(*id))
        };
        let found: Vec<u32> = list.iter().filter_map(id).collect();
        // One note for each file, because a list can be long.
        let wrong = list.iter().find(|value| id(value).is_none());
        if let Some(wrong) = wrong.filter(|wrong| !odd.contains(wrong)) {
            notes.push(format!(
                "`{field}` of {file} is {}, which is not a token of the tokenizer, and is left out",
                one_line(wrong)
            ));
            odd.push(wrong);
        }
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}
