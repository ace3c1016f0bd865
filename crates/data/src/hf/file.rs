//! What a `tokenizer.json` has that the ids of a text depend on, given to the `tokenizers` crate in
//! pieces.
//!
//! Its own reader copies the file into a tree several times over, and panics at some settings.
//! Refused here is what would make it panic, take memory out of proportion, now or with some text
//! later, or draw at random.

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, Tokenizer,
};

/// Levels of a normalizer, pre-tokenizer or decoder. The crate copies all that is inside at each;
/// files in use have 6.
const MOST_LEVELS: usize = 16;
/// Bytes of a normalizer, pre-tokenizer or decoder; files in use have some hundred.
const MOST_SETTINGS: usize = 1 << 16;
/// Bytes of an added token, and of all of them: the crate makes a state machine with a state for
/// each, in more than linear time. Files in use have some 30,000.
const LONGEST_ADDED: usize = 1 << 10;
const MOST_ADDED: usize = 1 << 17;
/// Memory that a token or a merge takes, about, of which there is some for any file and some for
/// each of its bytes.
const ENTRY: usize = 160;
const MEMORY: usize = 56 << 20;
const MEMORY_PER_BYTE: usize = 3;

/// The file, without what is of no use here: no special tokens are added, and texts have any
/// length.
#[derive(Deserialize)]
struct File<'a> {
    version: Option<String>,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(borrow)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow)]
    decoder: Option<&'a RawValue>,
    #[serde(borrow)]
    model: &'a RawValue,
}

/// The tokenizer of the file with content `json`.
pub(super) fn read(json: &str) -> tokenizers::Result<Tokenizer> {
    let file: File = serde_json::from_str(json)?;
    if file.version.is_some_and(|version| version != "1.0") {
        return Err("its version is not 1.0".into());
    }
    let added = file.added_tokens.iter().map(|token| token.content.len());
    if added.clone().sum::<usize>() > MOST_ADDED || added.max() > Some(LONGEST_ADDED) {
        return Err("the added tokens are too long".into());
    }
    let normalizer: Option<NormalizerWrapper> = settings(file.normalizer, |part| {
        let precompiled = part.get("type").is_some_and(|kind| kind == "Precompiled");
        match precompiled || part.contains_key("precompiled_charsmap") {
            true => Err("a normalizer of type Precompiled is not supported"),
            false => Ok(()),
        }
    })?;
    let pre_tokenizer: Option<PreTokenizerWrapper> =
        settings(file.pre_tokenizer, |part| match part.get("length") {
            Some(length) if *length == 0 => Err("a pre-tokenizer makes pieces of length 0"),
            _ => Ok(()),
        })?;
    let decoder: Option<DecoderWrapper> = settings(file.decoder, |part| match part.get("stop") {
        Some(stop) if *stop != 0 => Err("a decoder that strips ends is not supported"),
        _ => Ok(()),
    })?;
    let model = model(file.model.get(), json.len())?;
    if let ModelWrapper::BPE(bpe) = &model
        && bpe.dropout.is_some_and(|dropout| dropout > 0.0)
    {
        let problem = "its model leaves out merges at random, so that a text has no ids of its own; \
                       set `dropout` to null";
        return Err(problem.into());
    }
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(normalizer);
    tokenizer.with_pre_tokenizer(pre_tokenizer);
    tokenizer.with_decoder(decoder);
    tokenizer.add_tokens(&file.added_tokens);
    Ok(tokenizer)
}

/// A normalizer, pre-tokenizer or decoder, of which every object passes `check`.
fn settings<T: DeserializeOwned>(
    json: Option<&RawValue>,
    check: impl Fn(&Map<String, Value>) -> Result<(), &'static str>,
) -> tokenizers::Result<Option<T>> {
    let Some(json) = json else {
        return Ok(None);
    };
    if json.get().len() > MOST_SETTINGS {
        return Err(format!("a part has more than {MOST_SETTINGS} bytes of settings").into());
    }
    let value = serde_json::from_str(json.get())?;
    walk(&value, MOST_LEVELS, &check)?;
    Ok(Some(serde_json::from_value(value)?))
}

/// Checks every object in `value`, which has no more than `levels` levels.
fn walk(
    value: &Value,
    levels: usize,
    check: &impl Fn(&Map<String, Value>) -> Result<(), &'static str>,
) -> Result<(), String> {
    let values: Vec<&Value> = match value {
        Value::Array(values) => values.iter().collect(),
        Value::Object(object) => {
            check(object)?;
            object.values().collect()
        }
        _ => return Ok(()),
    };
    let inside = levels.checked_sub(1);
    let inside = inside.ok_or_else(|| format!("more than {MOST_LEVELS} parts in each other"))?;
    let mut values = values.into_iter();
    values.try_for_each(|value| walk(value, inside, check))
}

/// The model of a file of `size` bytes.
fn model(json: &str, size: usize) -> tokenizers::Result<ModelWrapper> {
    #[derive(Deserialize)]
    struct Kind {
        r#type: Option<String>,
        continuing_subword_prefix: Option<String>,
    }
    // A comma in a token counts as well, which does not matter.
    let entries = json.bytes().filter(|&byte| byte == b',').count();
    if entries > (MEMORY + MEMORY_PER_BYTE * size) / ENTRY {
        return Err(format!("{entries} tokens and merges are too many for {size} bytes").into());
    }
    let kind: Kind = serde_json::from_str(json)?;
    let bpe = || -> tokenizers::Result<_> {
        check_merges(json, kind.continuing_subword_prefix.as_deref())?;
        Ok(serde_json::from_str::<BPE>(json)?.into())
    };
    let word_piece = || Ok(serde_json::from_str::<WordPiece>(json)?.into());
    let word_level = || Ok(serde_json::from_str::<WordLevel>(json)?.into());
    let unigram = || Ok(serde_json::from_str::<Unigram>(json)?.into());
    match kind.r#type.as_deref() {
        Some("BPE") => bpe(),
        Some("WordPiece") => word_piece(),
        Some("WordLevel") => word_level(),
        Some("Unigram") => unigram(),
        Some(other) => Err(format!("the model {other:?} is not known").into()),
        // Old files do not say; this is the order in which the crate tries.
        None => bpe()
            .or_else(|_| word_piece())
            .or_else(|_| word_level())
            .or_else(|_: tokenizers::Error| unigram()),
    }
}

/// The second token of a merge must begin with as many bytes as the prefix that it loses.
fn check_merges(model: &str, prefix: Option<&str>) -> tokenizers::Result<()> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Merge {
        Legacy(String),
        Pair(IgnoredAny, String),
    }
    #[derive(Deserialize)]
    struct Merges {
        merges: Vec<Merge>,
    }
    let Some(prefix) = prefix.filter(|prefix| !prefix.is_empty()) else {
        return Ok(());
    };
    for merge in serde_json::from_str::<Merges>(model)?.merges {
        let second = match &merge {
            Merge::Legacy(both) => both.rsplit(' ').next().unwrap_or_default(),
            Merge::Pair(_, second) => second,
        };
        if second.get(prefix.len()..).is_none() {
            return Err(format!("the merge with {second:?} lacks the prefix {prefix:?}").into());
        }
    }
    Ok(())
}
