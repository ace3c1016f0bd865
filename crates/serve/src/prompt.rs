//! Reads prompts in the forms in which a client may send them.

use residual_zoo_data::Tokenizer;
use serde_json::Value;

use crate::request::{ApiError, Limits, brief};

/// The token ids of a prompt, and whether it was empty. The only token of an empty prompt is not from the client.
pub type Prompt = (Vec<u32>, bool);

/// Reads the prompts in any of OpenAI's four forms: a text, texts, ids, or lists of ids. Without a value, there is one
/// empty prompt.
///
/// # Errors
///
/// Returns the problem of the first invalid prompt, with its number if the prompts are a list. Also returns an error if
/// the list is empty, or longer than the maximum number of choices.
pub fn prompts(
    value: &Value,
    tokenizer: &Tokenizer,
    limits: &Limits,
) -> Result<Vec<Prompt>, ApiError> {
    let wrong = |problem: &str| Err(ApiError::field("prompt", problem));
    let forms = format!(
        "is {}; it must be a text, a list of texts, a list of token ids, or a list of such lists",
        brief(value)
    );
    let one = |item: &Value| match item {
        Value::String(text) => encoded(text, tokenizer, limits),
        Value::Array(ids) => numbered(ids, tokenizer, limits),
        _ => Err(ApiError::field("prompt", &forms)),
    };
    match value {
        Value::Null => Ok(vec![(vec![tokenizer.first_id()], true)]),
        Value::String(_) => Ok(vec![one(value)?]),
        Value::Array(list) => match list.first() {
            None => wrong("is an empty list; give at least one text"),
            Some(Value::Number(_)) => Ok(vec![one(value)?]),
            Some(_) if list.len() > limits.choices => wrong(&format!(
                "has {} texts; ask for at most {} choices at once",
                list.len(),
                limits.choices
            )),
            Some(_) => {
                let of = |(number, item)| {
                    one(item).map_err(|error| ApiError {
                        message: format!("{} (number {number} of the list)", error.message),
                        ..error
                    })
                };
                (1..).zip(list).map(of).collect()
            }
        },
        _ => wrong(&forms),
    }
}

fn encoded(text: &str, tokenizer: &Tokenizer, limits: &Limits) -> Result<Prompt, ApiError> {
    match tokenizer.encode(text) {
        Ok(ids) if ids.is_empty() => Ok((vec![tokenizer.first_id()], true)),
        Ok(ids) => checked(ids, limits),
        Err(error) => Err(ApiError {
            message: format!("`prompt`: {error}"),
            ..ApiError::field("prompt", "")
        }),
    }
}

fn numbered(ids: &[Value], tokenizer: &Tokenizer, limits: &Limits) -> Result<Prompt, ApiError> {
    let vocabulary = tokenizer.vocab_size() as u64;
    let id = |id: &Value| match id.as_u64() {
        Some(id) if id < vocabulary => Ok(id as u32),
        _ => {
            let problem = format!(
                "has the token {}; ids are whole numbers below {vocabulary}",
                brief(id)
            );
            Err(ApiError::field("prompt", problem))
        }
    };
    match ids.is_empty() {
        true => Err(ApiError::field(
            "prompt",
            "is an empty list of tokens; give at least one",
        )),
        false => checked(ids.iter().map(id).collect::<Result<_, _>>()?, limits),
    }
}

/// Checks the length of a prompt. A prompt may exceed the context by one token, because the last token is scored but
/// not read.
fn checked(ids: Vec<u32>, limits: &Limits) -> Result<Prompt, ApiError> {
    let (count, most) = (ids.len(), limits.context + 1);
    match count <= most {
        true => Ok((ids, false)),
        false => Err(ApiError {
            code: "context_length_exceeded",
            ..ApiError::field(
                "prompt",
                format!("has {count} tokens, but may have at most {most}; shorten it"),
            )
        }),
    }
}
