//! Reads the parts of a `tokenizer.json` that the ids of a text depend on, and passes them to the
//! `tokenizers` crate one by one.
//!
//! The crate's own reader copies the file into a tree several times, and panics on some settings. This reader refuses
//! settings that make tokenization random. It also refuses settings with which the crate panics or takes excessive
//! memory, either while reading the file or later, while tokenizing some text.

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

/// Maximum nesting depth of a normalizer, pre-tokenizer or decoder. The crate copies all content at
/// each level. Files in use have up to 6 levels.
const MOST_LEVELS: usize = 16;
/// Maximum number of bytes of a normalizer, pre-tokenizer or decoder. Files in use have a few hundred.
const MOST_SETTINGS: usize = 1 << 16;
/// Maximum factor by which a normalizer, pre-tokenizer or decoder makes a text longer. Llama's factor is 12.
const MOST_GROWTH: f64 = 64.0;
/// Maximum number of objects in a normalizer, pre-tokenizer or decoder. Each object may go through the whole text.
/// Files in use have about ten.
const MOST_PARTS: usize = 200;
/// Maximum number of bytes of an added token.
const LONGEST_ADDED: usize = 1 << 10;
/// Maximum number of bytes of all added tokens. The crate builds a state machine with a state for each byte, and the
/// time for this grows faster than linearly. Files in use have about 30,000 bytes.
const MOST_ADDED: usize = 1 << 17;
/// Maximum number of bytes of a prefix or suffix that a model adds to tokens, and of the model's unknown token. All of
/// them are copied for every token of a text. Files in use have up to 20.
const LONGEST_AFFIX: usize = 1 << 8;
/// Maximum characters of a word that a WordPiece model looks up in parts. The time grows with the cube of this number.
/// Files in use have 100.
const LONGEST_WORD: usize = 1 << 8;
/// Maximum number of bytes of a piece of a Unigram model. At each position of a text, all pieces that begin there are
/// copied. Files in use have up to 64.
const LONGEST_UNIGRAM: usize = 1 << 8;
/// Approximate bytes of memory for a token or a merge.
const ENTRY: usize = 160;
/// Bytes of memory that the tokens and merges of any file may take.
const MEMORY: usize = 56 << 20;
/// Additional bytes of memory for each byte of the file.
const MEMORY_PER_BYTE: usize = 3;

/// The parts of a `tokenizer.json` that are used. Special tokens are never added and texts may have any length, so the
/// post-processor, truncation and padding are ignored.
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

/// Reads the tokenizer from the content `json` of a file.
pub(super) fn read(json: &str) -> tokenizers::Result<Tokenizer> {
    let file: File = serde_json::from_str(json)?;
    if file.version.is_some_and(|version| version != "1.0") {
        return Err("its version is not 1.0, the only one supported".into());
    }
    let added = file.added_tokens.iter().map(|token| token.content.len());
    if added.clone().sum::<usize>() > MOST_ADDED || added.max() > Some(LONGEST_ADDED) {
        let problem = format!(
            "its added tokens are too long; one may have up to {LONGEST_ADDED} bytes, all together \
             up to {MOST_ADDED}"
        );
        return Err(problem.into());
    }
    // Each occurrence of such a token would make the crate scan the white space around the token.
    let strips_itself = |token: &&AddedToken| {
        (token.lstrip || token.rstrip) && token.content.chars().all(char::is_whitespace)
    };
    if let Some(token) = file.added_tokens.iter().find(strips_itself) {
        let problem = format!(
            "its added token {:?} is white space and strips white space, which takes too long; set `lstrip` and `rstrip` \
             to false",
            token.content
        );
        return Err(problem.into());
    }
    let normalizer: Option<NormalizerWrapper> = settings(file.normalizer, |part| {
        let precompiled = part.get("type").is_some_and(|kind| kind == "Precompiled");
        match precompiled || part.contains_key("precompiled_charsmap") {
            true => Err("it has a normalizer of type Precompiled, which is not supported"),
            false => Ok(()),
        }
    })?;
    let pre_tokenizer: Option<PreTokenizerWrapper> =
        settings(file.pre_tokenizer, |part| match part.get("length") {
            Some(length) if *length == 0 => {
                Err("it has a pre-tokenizer of `length` 0, which must be at least 1")
            }
            _ => Ok(()),
        })?;
    let decoder: Option<DecoderWrapper> = settings(file.decoder, |part| match part.get("stop") {
        Some(stop) if *stop != 0 => {
            Err("it has a decoder whose `stop` is not 0, which is not supported")
        }
        _ => Ok(()),
    })?;
    let model = model(file.model.get(), json.len())?;
    if let ModelWrapper::BPE(bpe) = &model
        && bpe.dropout.is_some_and(|dropout| dropout > 0.0)
    {
        let problem = "its model skips merges at random, so a text has no definite ids; \
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

/// Parses a normalizer, pre-tokenizer or decoder, after calling `check` on every object in it.
fn settings<T: DeserializeOwned>(
    json: Option<&RawValue>,
    check: impl Fn(&Map<String, Value>) -> Result<(), &'static str>,
) -> tokenizers::Result<Option<T>> {
    let Some(json) = json else {
        return Ok(None);
    };
    if json.get().len() > MOST_SETTINGS {
        let problem =
            format!("its normalizer, pre-tokenizer or decoder has more than {MOST_SETTINGS} bytes");
        return Err(problem.into());
    }
    let value = serde_json::from_str(json.get())?;
    walk(&value, MOST_LEVELS, &check)?;
    let (growth, parts) = growth(&value);
    if growth > MOST_GROWTH || parts > MOST_PARTS {
        let problem = format!(
            "its normalizer, pre-tokenizer or decoder has {parts} parts, which together can make a text \
             {growth:.3e} times as long; at most {MOST_PARTS} and {MOST_GROWTH} are supported"
        );
        return Err(problem.into());
    }
    Ok(Some(serde_json::from_value(value)?))
}

/// Returns the greatest factor by which the parts of a normalizer, pre-tokenizer or decoder together make a text
/// longer, and the number of parts. Unicode normalization counts as a factor of 1, because a second normalization does
/// not lengthen the text further.
fn growth(value: &Value) -> (f64, usize) {
    let length = |text: Option<&Value>| text.and_then(Value::as_str).map_or(0, str::len) as f64;
    let (own, inside): (f64, Vec<&Value>) = match value {
        Value::Array(values) => (1.0, values.iter().collect()),
        Value::Object(object) => {
            let of = |field: &str| object.get(field);
            // The crate also accepts some parts without a `type`.
            let kind = match of("type").and_then(Value::as_str) {
                _ if of("content").is_some() => Some("Replace"),
                _ if of("prepend").is_some() => Some("Prepend"),
                kind => kind,
            };
            let factor = match kind {
                Some("Replace") => {
                    let pattern = of("pattern").and_then(|pattern| pattern.get("String"));
                    let replaced = length(pattern);
                    // A regular expression or an empty pattern may match between any two characters.
                    match replaced > 0.0 {
                        true => length(of("content")) / replaced,
                        false => 1.0 + length(of("content")),
                    }
                }
                Some("Prepend") => 1.0 + length(of("prepend")),
                Some("ByteLevel" | "WordPiece") => 2.0,
                Some("BertNormalizer" | "Metaspace") => 3.0,
                _ => 1.0,
            };
            (factor.max(1.0), object.values().collect())
        }
        _ => return (1.0, 0),
    };
    let parts = usize::from(value.is_object());
    let inside = inside.into_iter().map(growth);
    inside.fold((own, parts), |(a, m), (b, n)| (a * b, m + n))
}

/// Checks every object in `value`, which must have at most `levels` levels.
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
    let inside = inside.ok_or_else(|| {
        format!("its normalizer, pre-tokenizer or decoder has more than {MOST_LEVELS} levels")
    })?;
    let mut values = values.into_iter();
    values.try_for_each(|value| walk(value, inside, check))
}

/// Parses the model of a file of `size` bytes.
fn model(json: &str, size: usize) -> tokenizers::Result<ModelWrapper> {
    #[derive(Deserialize)]
    struct Kind {
        r#type: Option<String>,
        continuing_subword_prefix: Option<String>,
        end_of_word_suffix: Option<String>,
        unk_token: Option<String>,
        max_input_chars_per_word: Option<usize>,
    }
    // The count is an estimate: commas in tokens are counted too, which does no harm.
    let entries = json.bytes().filter(|&byte| byte == b',').count();
    if entries > (MEMORY + MEMORY_PER_BYTE * size) / ENTRY {
        let problem =
            format!("its {entries} tokens and merges are too many for a file of {size} bytes");
        return Err(problem.into());
    }
    let kind: Kind = serde_json::from_str(json)?;
    for (name, text) in [
        ("continuing_subword_prefix", &kind.continuing_subword_prefix),
        ("end_of_word_suffix", &kind.end_of_word_suffix),
        ("unk_token", &kind.unk_token),
    ] {
        if let Some(text) = text.as_ref().filter(|text| text.len() > LONGEST_AFFIX) {
            let bytes = text.len();
            let problem =
                format!("its `{name}` has {bytes} bytes; at most {LONGEST_AFFIX} are supported");
            return Err(problem.into());
        }
    }
    let bpe = || -> tokenizers::Result<_> {
        check_merges(json, kind.continuing_subword_prefix.as_deref())?;
        Ok(serde_json::from_str::<BPE>(json)?.into())
    };
    let word_piece = || -> tokenizers::Result<_> {
        let chars = kind.max_input_chars_per_word.unwrap_or_default();
        if chars > LONGEST_WORD {
            let problem = format!(
                "its `max_input_chars_per_word` is {chars}; at most {LONGEST_WORD} are supported, because longer words take \
                 too long; set it to 100, so that longer words become the unknown token"
            );
            return Err(problem.into());
        }
        Ok(serde_json::from_str::<WordPiece>(json)?.into())
    };
    let word_level = || Ok(serde_json::from_str::<WordLevel>(json)?.into());
    let unigram = || -> tokenizers::Result<_> {
        let unigram: Unigram = serde_json::from_str(json)?;
        let longest = unigram.iter().map(|(piece, _)| piece.len()).max();
        if let Some(bytes) = longest.filter(|bytes| *bytes > LONGEST_UNIGRAM) {
            let problem = format!(
                "it has a piece of {bytes} bytes; at most {LONGEST_UNIGRAM} are supported, because longer ones take too long"
            );
            return Err(problem.into());
        }
        Ok(unigram.into())
    };
    match kind.r#type.as_deref() {
        Some("BPE") => bpe(),
        Some("WordPiece") => word_piece(),
        Some("WordLevel") => word_level(),
        Some("Unigram") => unigram(),
        Some(other) => Err(format!(
            "its model type {other:?} is unknown; it must be BPE, WordPiece, WordLevel or Unigram"
        )
        .into()),
        // Old files have no type. The crate tries the models in this order.
        None => bpe()
            .or_else(|_| word_piece())
            .or_else(|_| word_level())
            .or_else(|_: tokenizers::Error| unigram()),
    }
}

/// Checks that the second token of every merge is at least as long as the prefix, because the crate removes as many
/// bytes as the prefix has from the beginning of this token.
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
            let problem =
                format!("the second token {second:?} of a merge lacks the prefix {prefix:?}");
            return Err(problem.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer(normalizer: &str, decoder: &str) -> Result<(), String> {
        let json = format!(
            r#"{{"version": "1.0", "normalizer": {normalizer}, "decoder": {decoder},
                "model": {{"type": "WordLevel", "vocab": {{"a": 0, "?": 1}}, "unk_token": "?"}}}}"#
        );
        read(&json).map(drop).map_err(|error| error.to_string())
    }

    fn replace(from: &str, to: &str) -> String {
        format!(r#"{{"type": "Replace", "pattern": {{"String": "{from}"}}, "content": "{to}"}}"#)
    }

    fn sequence(of: &str, part: &str, times: usize) -> String {
        format!(
            r#"{{"type": "Sequence", "{of}": [{}]}}"#,
            vec![part; times].join(", ")
        )
    }

    fn of_model(model: &str) -> Result<(), String> {
        let json = format!(r#"{{"version": "1.0", "model": {model}}}"#);
        read(&json).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn a_model_that_takes_long_for_each_word_is_refused() {
        let word_piece = |chars: usize, prefix: &str| {
            of_model(&format!(
                r###"{{"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "{prefix}",
                    "max_input_chars_per_word": {chars}, "vocab": {{"a": 0, "?": 1}}}}"###
            ))
        };
        word_piece(100, "##").unwrap();
        let error = word_piece(1_000_000_000, "##").unwrap_err();
        assert!(error.contains("`max_input_chars_per_word`"), "{error}");
        assert!(word_piece(100, &"#".repeat(1 << 20)).is_err());
        // A model without its type.
        let untyped = r###"{"unk_token": "?", "continuing_subword_prefix": "##", "max_input_chars_per_word": 99999999,
            "vocab": {"a": 0, "?": 1}}"###;
        assert!(of_model(untyped).is_err());
        let unigram = |longest: usize| {
            let pieces: Vec<String> = (1..=longest)
                .map(|bytes| format!(r#"["{}", 0.0]"#, "a".repeat(bytes)))
                .collect();
            of_model(&format!(
                r#"{{"type": "Unigram", "unk_id": 0, "vocab": [{}]}}"#,
                pieces.join(",")
            ))
        };
        unigram(64).unwrap();
        assert!(unigram(300).unwrap_err().contains("a piece of 300 bytes"));
        let unknown = "?".repeat(1 << 16);
        let words = format!(
            r#"{{"type": "WordLevel", "unk_token": "{unknown}", "vocab": {{"{unknown}": 0}}}}"#
        );
        assert!(of_model(&words).unwrap_err().contains("`unk_token`"));
    }

    #[test]
    fn added_white_space_that_strips_white_space_is_refused() {
        let added = |content: &str, lstrip: bool| {
            let json = format!(
                r#"{{"version": "1.0", "added_tokens": [{{"id": 1, "content": "{content}", "single_word": false,
                    "lstrip": {lstrip}, "rstrip": false, "normalized": true, "special": false}}],
                    "model": {{"type": "WordLevel", "vocab": {{"a": 0, "?": 1}}, "unk_token": "?"}}}}"#
            );
            read(&json).map(drop).map_err(|error| error.to_string())
        };
        added("<mask>", true).unwrap();
        added("  ", false).unwrap();
        assert!(added("  ", true).unwrap_err().contains("`lstrip`"));
    }

    #[test]
    fn a_tokenizer_that_makes_texts_much_longer_is_refused() {
        let doubling = sequence("normalizers", &replace("a", "aa"), 60);
        let decoding = doubling.replace("normalizers", "decoders");
        let large = sequence("normalizers", &replace("a", &"a".repeat(1000)), 4);
        let untyped = large.replace(r#""type": "Replace", "#, "");
        let anywhere = sequence(
            "normalizers",
            r#"{"type": "Replace", "pattern": {"Regex": ""}, "content": "aaaaaaaa"}"#,
            2,
        );
        let long = sequence("normalizers", r#"{"type": "Lowercase"}"#, 300);
        for normalizer in [&doubling, &large, &untyped, &anywhere, &long] {
            let error = tokenizer(normalizer, "null").unwrap_err();
            assert!(error.contains("times as long"), "{normalizer}: {error}");
        }
        assert!(tokenizer("null", &decoding).is_err());
        // Llama's normalizer and decoder.
        let prepend = r#"{"type": "Prepend", "prepend": "▁"}"#;
        let llama = format!(
            r#"{{"type": "Sequence", "normalizers": [{prepend}, {}]}}"#,
            replace(" ", "▁")
        );
        tokenizer(&llama, &replace("▁", " ")).unwrap();
    }
}
