//! Reads tokenizers of other projects.

use std::path::Path;

use residual_zoo_data::{Tokenizer, TokenizerConfig, one_line, read_file, read_utf8};
use serde_json::{Value as Json, json};

use crate::Error;
use crate::added::Beside;
use crate::export::KIND;
use crate::json::{Fields, read_fields, read_fields_if_any};
use crate::pickle::{MOST_BYTES, Pickle, Value};

/// GPT-2's end-of-text token.
const END: &str = "<|endoftext|>";

/// A tokenizer beside the weights of a model.
pub struct Found {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The id of `bos_token`.
    pub begin: Option<u32>,
    /// The id of `eos_token`.
    pub end: Option<u32>,
    /// The id of `pad_token`.
    pub pad: Option<u32>,
    /// The id of `unk_token`.
    pub unknown: Option<u32>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl From<Tokenizer> for Found {
    fn from(tokenizer: Tokenizer) -> Self {
        Self {
            tokenizer,
            begin: None,
            end: None,
            pad: None,
            unknown: None,
            notes: Vec::new(),
        }
    }
}

/// Reads the tokenizer beside the weights of a model, if there is one. The model has a table of `vocab_size` ids. The
/// tokenizer is `tokenizer.json`, the `vocab.json` and `merges.txt` of GPT-2, or nanoGPT's `meta.pkl`. The first two
/// get the added tokens of `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`.
///
/// # Errors
///
/// Returns an error if a file is damaged, if an added token's id in a file differs from the id that the token gets, or
/// if the order of added tokens without ids is unknown.
pub fn in_directory(directory: &Path, vocab_size: usize) -> Result<Option<Found>, Error> {
    let [file, characters, vocabulary, merges] =
        ["tokenizer.json", "meta.pkl", "vocab.json", "merges.txt"].map(|name| directory.join(name));
    let settings = read_fields_if_any(&directory.join("tokenizer_config.json"))?;
    let origin = format!("`{}`", directory.display());
    let is_file = file.exists();
    let (tokenizer, json) = if is_file {
        if let Some(own) = of_zoo(&settings, &file)? {
            return Ok(Some(own.into()));
        }
        (of_file(&file)?, None)
    } else if characters.exists() {
        return Ok(Some(of_characters(&characters)?.into()));
    } else if vocabulary.exists() && merges.exists() {
        let json = of_gpt2(&vocabulary, &merges, &settings)?;
        let tokenizer = Tokenizer::from_hf_json(json.to_string(), &origin)?;
        (tokenizer, Some(json))
    } else {
        return Ok(None);
    };
    let class = settings.get("tokenizer_class").and_then(Json::as_str);
    let is_gpt2 = class.map_or(directory.join("config.json").exists(), |class| {
        class.starts_with("GPT2Tokenizer")
    });
    let beside = Beside::read(directory, is_gpt2.then_some(END))?;
    if beside.is_empty() && !is_gpt2 {
        return Ok(Some(tokenizer.into()));
    }
    let mut json = match json {
        Some(json) => json,
        None => Json::Object(read_fields(&file)?),
    };
    let mut notes = Vec::new();
    if is_file && is_gpt2 && !is_byte_level(&json, &settings) {
        notes.push(OTHER_STEPS.to_owned());
    }
    let added = beside.add_to(&mut json, vocab_size);
    let (is_changed, left_out) = added.map_err(|problem| Error::file(directory, problem))?;
    let tokenizer = match is_changed {
        true => Tokenizer::from_hf_json(json.to_string(), &origin)?,
        false => tokenizer,
    };
    if !left_out.is_empty() {
        notes.push(format!(
            "the table of {vocab_size} token ids has no rows for added tokens, which are left out: {}",
            one_line(left_out.join(", "))
        ));
    }
    let id = |token: &Option<String>| tokenizer.token_id(token.as_ref()?);
    Ok(Some(Found {
        begin: id(&beside.begin),
        end: id(&beside.end),
        pad: id(&beside.pad),
        unknown: id(&beside.unknown),
        tokenizer,
        notes,
    }))
}

const OTHER_STEPS: &str = "tokenizer.json is followed as it is; for this tokenizer_class, `transformers` replaces its \
                           normalizer and pre-tokenizer with GPT-2's, so token ids can differ there";

/// Whether a `tokenizer.json` has GPT-2's normalizer and pre-tokenizer.
fn is_byte_level(json: &Json, settings: &Fields) -> bool {
    let step = &json["pre_tokenizer"];
    let flag = |value: Option<&Json>, default| value.and_then(Json::as_bool).unwrap_or(default);
    json["normalizer"].is_null()
        && step["type"] == "ByteLevel"
        && flag(step.get("use_regex"), true)
        && flag(step.get("add_prefix_space"), true) == flag(settings.get("add_prefix_space"), false)
}

/// Reads the tokenizer that a user names: `bytes`, a `tokenizer.json`, or the `meta.pkl` of nanoGPT's character-level
/// data sets.
///
/// # Errors
///
/// Returns an error if the file is missing or damaged.
pub fn given(name: &str) -> Result<Tokenizer, Error> {
    let path = Path::new(name);
    match name {
        "bytes" => Ok(Tokenizer::train(&TokenizerConfig::Bytes, &[])?),
        _ if path.extension().is_some_and(|ending| ending == "pkl") => of_characters(path),
        _ => of_file(path),
    }
}

/// Returns the tokenizer of an exported model of the zoo, if `transformers` does not have this kind of tokenizer.
fn of_zoo(settings: &Fields, file: &Path) -> Result<Option<Tokenizer>, Error> {
    let words = || -> Result<Vec<String>, Error> {
        let json = Json::Object(read_fields(file)?);
        let vocabulary = json["model"]["vocab"].as_object().into_iter().flatten();
        let mut words: Vec<_> = vocabulary
            .map(|(word, id)| (id.as_u64(), word.clone()))
            .collect();
        words.sort();
        let in_order = (0..).zip(&words).all(|(id, (found, _))| *found == Some(id));
        let added = json["added_tokens"]
            .as_array()
            .is_some_and(|added| !added.is_empty());
        if !in_order || added {
            let problem = "is damaged: its token ids are not 0, 1, 2, …, or there are added tokens, which tokenizers \
                           of characters or words do not have";
            return Err(Error::file(file, problem));
        }
        Ok(words.into_iter().map(|(_, word)| word).collect())
    };
    Ok(match settings.get(KIND).and_then(Json::as_str) {
        Some("bytes") => Some(Tokenizer::train(&TokenizerConfig::Bytes, &[])?),
        Some("chars") => {
            let chars = words()?
                .into_iter()
                .flat_map(|word| word.chars().collect::<Vec<_>>());
            Some(Tokenizer::chars(chars.collect())?)
        }
        Some("words") => Some(Tokenizer::words(words()?)?),
        _ => None,
    })
}

fn of_file(path: &Path) -> Result<Tokenizer, Error> {
    Ok(Tokenizer::train(&TokenizerConfig::File(path.into()), &[])?)
}

/// Makes the `tokenizer.json` of GPT-2's byte-level BPE, from `vocab.json`, `merges.txt` and `tokenizer_config.json`.
fn of_gpt2(vocabulary: &Path, merges: &Path, settings: &Fields) -> Result<Json, Error> {
    let tokens = read_fields(vocabulary)?;
    let text = read_utf8(merges)?;
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with("#version"));
    let pairs: Option<Vec<_>> = lines.map(|line| line.split_once(' ')).collect();
    let problem = "is damaged: a merge is not two tokens with a space between";
    let pairs = pairs.ok_or_else(|| Error::file(merges, problem))?;
    let begins_with_space = settings.get("add_prefix_space") == Some(&Json::Bool(true));
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": begins_with_space, "trim_offsets": true, "use_regex": true,
    });
    Ok(json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "vocab": tokens, "merges": pairs,
        },
    }))
}

/// Reads nanoGPT's character table. The ids must be in the order of the characters, as in nanoGPT's own data sets.
fn of_characters(path: &Path) -> Result<Tokenizer, Error> {
    let failed = |problem: String| Error::file(path, problem);
    let bytes = read_file(path)?;
    if bytes.len() > MOST_BYTES {
        return Err(failed(format!("has more than {MOST_BYTES} bytes")));
    }
    let (pickle, _) = Pickle::read(&bytes).map_err(|e| failed(format!("cannot be read: {e}")))?;
    let table = pickle.field(pickle.top, "itos").map(|id| pickle.get(id));
    let Some(Value::Dict(entries)) = table else {
        return Err(failed("has no table `itos` of characters".into()));
    };
    let mut chars = Vec::new();
    for (id, text) in entries {
        let mut text = pickle.text(*text).unwrap_or_default().chars();
        match (text.next(), text.next()) {
            (Some(c), None) if pickle.size(*id) == Some(chars.len()) => chars.push(c),
            _ => {
                let problem = format!("does not map {} to a character", chars.len());
                return Err(failed(problem));
            }
        }
    }
    Ok(Tokenizer::chars(chars)?)
}
