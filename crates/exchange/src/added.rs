//! Reads added tokens from the files beside a tokenizer, as `transformers` does.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use crate::Error;
use crate::json::{Fields, read_fields_if_any, read_with_nulls_if_any};

/// The fields of `tokenizer_config.json` and `special_tokens_map.json` with one special token each.
const NAMED: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];
/// Fields that name several special tokens. `transformers` 5 reads the second field only if the first is not used.
const EXTRA: &str = "extra_special_tokens";
const ADDITIONAL: &str = "additional_special_tokens";
/// Special tokens that GPT-2's tokenizer has even if the files do not mention them.
const IMPLIED: [&str; 3] = ["bos_token", "eos_token", "unk_token"];
const DECODER: &str = "added_tokens_decoder";

/// A token that a tokenizer finds in a text before the tokenizer's own model, such as BPE, sees the text.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Added {
    content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

impl Added {
    fn new(content: &str, special: bool) -> Self {
        Self {
            content: content.into(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: !special,
            special,
        }
    }

    /// Reads a token, written as a string or as an object with its fields. Returns `None` for any other value.
    fn of(value: &Value, special: bool) -> Option<Self> {
        if let Some(content) = value.as_str() {
            return Some(Self::new(content, true));
        }
        let flag = |name: &str| value.get(name).and_then(Value::as_bool);
        let special = special || flag("special") == Some(true);
        let plain = Self::new(value.get("content")?.as_str()?, special);
        Some(Self {
            single_word: flag("single_word").unwrap_or(plain.single_word),
            lstrip: flag("lstrip").unwrap_or(plain.lstrip),
            rstrip: flag("rstrip").unwrap_or(plain.rstrip),
            normalized: flag("normalized").unwrap_or(plain.normalized),
            ..plain
        })
    }
}

/// The special tokens in fields that list several, merged from the files as `transformers` 5.23 does.
#[derive(Default)]
struct Several {
    /// Tokens that are values of a JSON object.
    named: Vec<Value>,
    extra: Option<Value>,
    additional: Option<Value>,
}

impl Several {
    /// Reads the tokens in `tokenizer_config.json`.
    fn of(settings: &Fields) -> Self {
        let mut found = Self {
            named: Vec::new(),
            extra: settings.get(EXTRA).cloned(),
            additional: settings.get(ADDITIONAL).cloned(),
        };
        let is_empty = match &found.extra {
            Some(Value::Array(values)) => values.is_empty(),
            Some(Value::Object(values)) => values.is_empty(),
            other => other.as_ref().is_none_or(Value::is_null),
        };
        if is_empty && found.additional.is_some() {
            found.extra = found.additional.take();
        }
        found.take_named();
        found
    }

    /// Adds the tokens in `special_tokens_map.json`.
    fn extend(&mut self, map: &Fields) {
        if let Some(additional) = map.get(ADDITIONAL) {
            self.additional = Some(additional.clone());
        }
        match (map.get(EXTRA), &mut self.extra) {
            (Some(Value::Array(more)), Some(Value::Array(known))) => {
                known.extend(more.iter().cloned());
            }
            (Some(extra), _) => self.extra = Some(extra.clone()),
            (None, _) => {}
        }
        self.take_named();
    }

    fn take_named(&mut self) {
        if let Some(Value::Object(tokens)) = &self.extra {
            self.named.extend(tokens.values().cloned());
            self.extra = None;
        }
    }

    /// Returns the unordered tokens and the ordered tokens. The ordered tokens get ids in their order.
    fn tokens(self) -> (Vec<Added>, Vec<Added>) {
        let read = |values: Vec<Value>| {
            let tokens = values.iter().filter_map(|value| Added::of(value, true));
            tokens.collect()
        };
        match self.extra.or(self.additional) {
            Some(Value::Array(values)) => (read(self.named), read(values)),
            _ => (read(self.named), Vec::new()),
        }
    }
}

/// The added tokens in the files beside a tokenizer, in the order in which they get ids.
pub struct Beside {
    /// Tokens with the ids that the files give them.
    numbered: Vec<(u64, Added)>,
    /// Special tokens without an id.
    named: Vec<Added>,
    /// The tokens of `named` that come from an object, which has no order.
    unordered: BTreeSet<String>,
    /// A special token that the tokenizer has even if no file mentions it.
    implied: Option<String>,
    /// The token named by `bos_token`.
    pub begin: Option<String>,
    /// The token named by `eos_token`.
    pub end: Option<String>,
    /// The token named by `pad_token`.
    pub pad: Option<String>,
    /// The token named by `unk_token`.
    pub unknown: Option<String>,
}

const REMEDY: &str = "use `--tokenizer` with a tokenizer.json that has all added tokens";

impl Beside {
    /// Reads the added tokens in `directory`. `implied` is the token for the beginning, the end and unknown text if the
    /// files do not mention them, not even as `null`.
    ///
    /// # Errors
    ///
    /// Returns an error if a file is damaged.
    pub fn read(directory: &Path, implied: Option<&str>) -> Result<Self, Error> {
        let damaged = |file: &str, name: &str| {
            let problem = format!("is damaged: `{name}` is not a token");
            Error::file(directory.join(file), problem)
        };
        const SETTINGS: &str = "tokenizer_config.json";
        const MAP: &str = "special_tokens_map.json";
        let settings = read_with_nulls_if_any(&directory.join(SETTINGS))?;
        let (mut special, mut several) = (settings.clone(), Several::of(&settings));
        let (mut numbered, mut map) = (Vec::new(), Fields::default());
        let decoder = settings.get(DECODER).and_then(Value::as_object);
        if let Some(decoder) = decoder {
            for (id, value) in decoder.iter().filter(|(_, value)| !value.is_null()) {
                let token = Added::of(value, false).zip(id.parse().ok());
                let (token, id) = token.ok_or_else(|| damaged(SETTINGS, id))?;
                numbered.push((id, token));
            }
        } else {
            map = read_with_nulls_if_any(&directory.join(MAP))?;
            several.extend(&map);
            special.extend(map.clone());
        }
        let told = special.len();
        if let Some(token) = implied {
            for name in IMPLIED {
                special.entry(name).or_insert_with(|| token.into());
            }
        }
        let implied = implied.filter(|_| special.len() > told);
        special.retain(|_, value| !value.is_null());
        let (mut named, mut unordered) = (Vec::new(), BTreeSet::new());
        for (field, value) in NAMED
            .iter()
            .filter_map(|name| Some((*name, special.get(*name)?)))
        {
            let file = if map.contains_key(field) {
                MAP
            } else {
                SETTINGS
            };
            named.push(Added::of(value, true).ok_or_else(|| damaged(file, field))?);
        }
        let (without_order, in_order) = several.tokens();
        unordered.extend(without_order.iter().map(|token| token.content.clone()));
        named.extend(without_order.into_iter().chain(in_order));
        if decoder.is_none() {
            let file = "added_tokens.json";
            for (content, id) in read_fields_if_any(&directory.join(file))? {
                let id = id.as_u64().ok_or_else(|| damaged(file, &content))?;
                let is_special = named.iter().any(|token| token.content == content);
                numbered.push((id, Added::new(&content, is_special)));
            }
        }
        numbered.sort_by_key(|(id, _)| *id);
        let content = |name: &str| Some(Added::of(special.get(name)?, true)?.content);
        Ok(Self {
            numbered,
            named,
            unordered,
            implied: implied.map(str::to_owned),
            begin: content("bos_token"),
            end: content("eos_token"),
            pad: content("pad_token"),
            unknown: content("unk_token"),
        })
    }

    /// Whether there are no added tokens.
    pub fn is_empty(&self) -> bool {
        self.numbered.is_empty() && self.named.is_empty()
    }

    /// Adds the tokens to the content of a `tokenizer.json`. Tokens beyond a table of `vocab_size` ids cannot be used
    /// and are left out. Returns whether the content has changed, and the tokens that were left out, except the implied
    /// one.
    ///
    /// # Errors
    ///
    /// Returns the problem if a token's id in a file differs from the id that the token gets, or if the token's id is
    /// unknown.
    pub fn add_to(&self, file: &mut Value, vocab_size: usize) -> Result<(bool, Vec<&str>), String> {
        let before = file["added_tokens"].take();
        let mut list: Vec<Value> = before.as_array().cloned().unwrap_or_default();
        let vocabulary: HashMap<&str, u64> = match &file["model"]["vocab"] {
            Value::Object(tokens) => {
                let tokens = tokens.iter();
                tokens
                    .filter_map(|(token, id)| Some((token.as_str(), id.as_u64()?)))
                    .collect()
            }
            // An array holds tokens with their scores.
            Value::Array(tokens) => {
                let tokens = (0..).zip(tokens);
                tokens
                    .filter_map(|(id, token)| Some((token.get(0)?.as_str()?, id)))
                    .collect()
            }
            _ => HashMap::new(),
        };
        let id_of = |token: &Value| token["id"].as_u64().unwrap_or_default();
        let places = list.iter().enumerate().filter_map(|(place, token)| {
            let content = token["content"].as_str()?.to_owned();
            Some((content, place))
        });
        let mut places: HashMap<String, usize> = places.collect();
        // `tokenizers` assigns new ids in the same way.
        let mut next = vocabulary.len() as u64;
        next = list
            .iter()
            .map(|token| id_of(token) + 1)
            .fold(next, Ord::max);
        let (mut left_out, mut unordered) = (Vec::new(), 0);
        let numbered = self.numbered.iter().map(|(id, token)| (Some(*id), token));
        let named = self.named.iter().map(|token| (None, token));
        for (declared, token) in numbered.chain(named) {
            let content = token.content.as_str();
            if content.is_empty() {
                continue;
            }
            let place = places.get(content).copied();
            let known = place.map(|place| id_of(&list[place]));
            let known = known.or_else(|| vocabulary.get(content).copied());
            let id = known.unwrap_or(next);
            if id.max(declared.unwrap_or(0)) >= vocab_size as u64 {
                if self.implied.as_deref() != Some(content) {
                    left_out.push(content);
                }
                continue;
            }
            if let Some(declared) = declared.filter(|declared| *declared != id) {
                return Err(format!(
                    "gives the added token {content:?} the id {declared}, but its id is {id}, after the tokens before it; \
                     {REMEDY}"
                ));
            }
            if known.is_none() && self.unordered.contains(content) {
                unordered += 1;
            }
            if unordered > 1 {
                return Err(format!(
                    "names {content:?} and other added tokens without their ids; {REMEDY}"
                ));
            }
            next = next.max(id + 1);
            let mut entry = json!(token);
            entry["id"] = id.into();
            match place {
                Some(place) if declared.is_some() => list[place] = entry,
                Some(_) => {}
                None => {
                    places.insert(content.into(), list.len());
                    list.push(entry);
                }
            }
        }
        file["added_tokens"] = list.into();
        left_out.dedup();
        Ok((file["added_tokens"] != before, left_out))
    }
}
