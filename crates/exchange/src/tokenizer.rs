//! Tokenizers of other projects.

use std::path::Path;

use residual_zoo_data::{Tokenizer, TokenizerConfig, read_file, read_utf8};
use serde_json::{Value as Json, json};

use crate::Error;
use crate::export::KIND;
use crate::pickle::{MOST_BYTES, Pickle, Value};

/// The tokenizer beside the weights, if there is one: `tokenizer.json`, the `vocab.json` and `merges.txt` of GPT-2, or
/// nanoGPT's `meta.pkl`.
///
/// # Errors
///
/// A damaged file.
pub fn in_directory(directory: &Path) -> Result<Option<Tokenizer>, Error> {
    let file = directory.join("tokenizer.json");
    if file.exists() {
        let own = of_zoo(directory, &file)?;
        return own.map_or_else(|| of_file(&file), Ok).map(Some);
    }
    let characters = directory.join("meta.pkl");
    if characters.exists() {
        return of_characters(&characters).map(Some);
    }
    let [vocabulary, merges] = ["vocab.json", "merges.txt"].map(|name| directory.join(name));
    match vocabulary.exists() && merges.exists() {
        true => Ok(Some(of_gpt2(&vocabulary, &merges)?)),
        false => Ok(None),
    }
}

/// The tokenizer that a user gives: `bytes`, a `tokenizer.json`, or the `meta.pkl` of a text of characters of nanoGPT.
///
/// # Errors
///
/// A missing or damaged file.
pub fn given(name: &str) -> Result<Tokenizer, Error> {
    let path = Path::new(name);
    match name {
        "bytes" => Ok(Tokenizer::train(&TokenizerConfig::Bytes, &[])?),
        _ if path.extension().is_some_and(|ending| ending == "pkl") => of_characters(path),
        _ => of_file(path),
    }
}

/// The tokenizer of an exported model of the zoo, if `transformers` has no such kind.
fn of_zoo(directory: &Path, file: &Path) -> Result<Option<Tokenizer>, Error> {
    let settings = directory.join("tokenizer_config.json");
    if !settings.exists() {
        return Ok(None);
    }
    let read = |path: &Path| -> Result<Json, Error> {
        let damaged = |e: serde_json::Error| Error::file(path, format!("is damaged: {e}"));
        serde_json::from_str(&read_utf8(path)?).map_err(damaged)
    };
    let kind = read(&settings)?;
    let words = || -> Result<Vec<String>, Error> {
        let json = read(file)?;
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
            let problem = "is damaged: its token ids are not 0, 1, 2, …, or there are added tokens, which characters and \
                           words do not have";
            return Err(Error::file(file, problem));
        }
        Ok(words.into_iter().map(|(_, word)| word).collect())
    };
    Ok(match kind[KIND].as_str() {
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

/// GPT-2's byte-level BPE, from its two files.
fn of_gpt2(vocabulary: &Path, merges: &Path) -> Result<Tokenizer, Error> {
    let damaged = |e: serde_json::Error| Error::file(vocabulary, format!("is damaged: {e}"));
    let tokens: Json = serde_json::from_str(&read_utf8(vocabulary)?).map_err(damaged)?;
    let text = read_utf8(merges)?;
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with("#version"));
    let pairs: Option<Vec<_>> = lines.map(|line| line.split_once(' ')).collect();
    let problem = "is damaged: a merge is not two tokens with a space between";
    let pairs = pairs.ok_or_else(|| Error::file(merges, problem))?;
    let end = "<|endoftext|>";
    let added = tokens.get(end).map(|id| {
        json!({ "id": id, "content": end, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true })
    });
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let file = json!({
        "version": "1.0",
        "added_tokens": added.into_iter().collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "vocab": tokens, "merges": pairs,
        },
    });
    let origin = format!("`{}`", vocabulary.display());
    Ok(Tokenizer::from_hf_json(file.to_string(), &origin)?)
}

/// nanoGPT's table of characters. Its ids must be in the order of the characters, as they are in its own data sets.
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
