//! Requests for completions, and the errors of invalid requests.

use residual_zoo_data::{Tokenizer, derive_seed};
use residual_zoo_runs::generate::Sampling;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::prompt::prompts;

/// An error in OpenAI's format.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: u16,
    /// The problem and how to fix it.
    pub message: String,
    /// The field that is wrong.
    pub param: Option<String>,
    /// The error code, for programs.
    pub code: &'static str,
}

impl ApiError {
    /// Makes an error without a field.
    pub fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code,
        }
    }

    pub(crate) fn field(param: &'static str, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::new(
                400,
                "invalid_value",
                format!("`{param}` {}", message.into()),
            )
        }
    }

    /// Returns the seconds after which the client should try again, if another try may succeed.
    pub fn retry_after(&self) -> Option<u64> {
        matches!(self.status, 429 | 503).then_some(1)
    }

    /// Returns the body of the response.
    pub fn body(&self) -> Value {
        let kind = match self.status {
            401 | 403 => "authentication_error",
            429 | 503 => "overloaded_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        let Self {
            message,
            param,
            code,
            ..
        } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

/// The limits on a request.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum number of tokens that the model reads.
    pub context: usize,
    /// Maximum number of tokens to generate for each choice.
    pub max_tokens: usize,
    /// Maximum number of choices of a request.
    pub choices: usize,
}

/// The body of a request. Each field is read as any value and checked afterwards, so that an error can name the field.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Body {
    model: Value,
    prompt: Value,
    max_tokens: Value,
    temperature: Value,
    top_p: Value,
    top_k: Value,
    n: Value,
    best_of: Value,
    stream: Value,
    stream_options: Value,
    logprobs: Value,
    echo: Value,
    stop: Value,
    seed: Value,
    presence_penalty: Value,
    frequency_penalty: Value,
    logit_bias: Value,
    suffix: Value,
    user: Value,
}

/// A request that has been checked.
#[derive(Clone, Debug)]
pub struct Request {
    /// The choices, in the order of the response.
    pub choices: Vec<Wanted>,
    /// Texts that end a choice.
    pub stop: Vec<String>,
    /// Whether tokens are sent as they are generated.
    pub stream: bool,
    /// Whether a stream ends with the token counts.
    pub include_usage: bool,
    /// Whether a choice begins with its prompt.
    pub echo: bool,
    /// The number of most likely tokens that are reported for each token.
    pub top: Option<usize>,
    /// Maximum number of tokens to generate for each choice.
    pub max_tokens: usize,
    /// Number of tokens of all prompts. Each prompt counts once, however many choices it has.
    pub prompt_tokens: usize,
}

impl Request {
    /// Whether the tokens of the prompt are scored.
    pub fn scores(&self, wanted: &Wanted) -> bool {
        self.echo && self.top.is_some() && !wanted.is_empty
    }
}

/// A choice that a client wants.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The ids of the prompt.
    pub prompt: Vec<u32>,
    /// Whether the prompt was empty. Its only token is then not from the client.
    pub is_empty: bool,
    /// The way in which the tokens are drawn.
    pub sampling: Sampling,
}

/// Maximum number of tokens of a request, because the response is held in memory. Each token counts 1 + `logprobs`
/// times.
const MOST_TOKENS: usize = 1 << 20;

/// Maximum number of texts in `stop`, of bytes in each of these texts, and of tokens in `logprobs`.
const MOST_STOPS: usize = 16;
const MOST_STOP_BYTES: usize = 1000;
const MOST_TOP: u64 = 20;

/// Reads the body of a request for completions of the model `name`. A request without a seed gets one from `seed`.
///
/// # Errors
///
/// Returns the problem of the first invalid field.
pub fn read(
    body: &[u8],
    name: &str,
    tokenizer: &Tokenizer,
    limits: &Limits,
    seed: impl FnOnce() -> u64,
) -> Result<Request, ApiError> {
    let body = parse(body)?;
    check_model(&body.model, name)?;
    for (field, value, neutral) in [
        ("presence_penalty", &body.presence_penalty, json!(0)),
        ("frequency_penalty", &body.frequency_penalty, json!(0)),
        ("logit_bias", &body.logit_bias, json!({})),
        ("suffix", &body.suffix, json!("")),
    ] {
        let is_neutral = value.is_null() || *value == neutral || value.as_f64() == Some(0.0);
        if !is_neutral {
            return Err(ApiError::field(field, "is not supported; leave it out"));
        }
    }
    let sampling = Sampling {
        temperature: number("temperature", &body.temperature, 0.0, 100.0)?.unwrap_or(1.0),
        top_p: number("top_p", &body.top_p, 0.0, 1.0)?.filter(|top_p| *top_p < 1.0),
        top_k: whole("top_k", &body.top_k, 1, u64::MAX)?
            .map(|k| k.try_into().unwrap_or(usize::MAX)),
        seed: 0,
    };
    if sampling.top_p == Some(0.0) {
        return Err(ApiError::field(
            "top_p",
            "is 0; it must be above 0 and at most 1",
        ));
    }
    let seed = match body.seed {
        Value::Null => seed(),
        // Any integer, including a negative one.
        ref given => match (given.as_u64(), given.as_i64()) {
            (Some(seed), _) => seed,
            (None, Some(seed)) => seed as u64,
            _ => {
                return Err(ApiError::field(
                    "seed",
                    format!("is {}; it must be an integer", brief(given)),
                ));
            }
        },
    };
    let echo = flag("echo", &body.echo)?;
    let top = whole("logprobs", &body.logprobs, 0, MOST_TOP)?.map(|top| top as usize);
    let stream = flag("stream", &body.stream)?;
    let most = limits.choices as u64;
    let n = whole("n", &body.n, 1, most)?.unwrap_or(1) as usize;
    if whole("best_of", &body.best_of, 1, most)?.is_some_and(|best_of| best_of as usize != n) {
        return Err(ApiError::field(
            "best_of",
            "is supported only if it equals `n`; leave it out",
        ));
    }
    let prompts = prompts(&body.prompt, tokenizer, limits)?;
    if prompts.len() * n > limits.choices {
        let problem = format!(
            "has {} texts, {n} choices each; ask for at most {most} choices at once",
            prompts.len()
        );
        return Err(ApiError::field("prompt", problem));
    }
    let prompt_tokens = prompts
        .iter()
        .map(|(ids, is_empty)| if *is_empty { 0 } else { ids.len() });
    let prompt_tokens = prompt_tokens.sum();
    let max_tokens = whole("max_tokens", &body.max_tokens, 0, limits.max_tokens as u64)?;
    let max_tokens = max_tokens.map_or(DEFAULT_TOKENS.min(limits.max_tokens), |most| most as usize);
    if max_tokens == 0 && !echo {
        return Err(ApiError::field(
            "max_tokens",
            "is 0, which leaves nothing to answer without `echo`",
        ));
    }
    let longest = prompts.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
    let tokens = max_tokens + if echo { longest } else { 0 };
    let in_all = tokens
        .saturating_mul(prompts.len() * n)
        .saturating_mul(top.unwrap_or(0) + 1);
    if in_all > MOST_TOKENS {
        let problem = format!(
            "asks for {in_all} tokens in all choices, including `logprobs`; ask for at most {MOST_TOKENS} at once"
        );
        return Err(ApiError::field("max_tokens", problem));
    }
    let each = prompts.into_iter().flat_map(|prompt| vec![prompt; n]);
    let choices = each.enumerate().map(|(i, (prompt, is_empty))| Wanted {
        prompt,
        is_empty,
        sampling: Sampling {
            seed: match i {
                0 => seed,
                i => derive_seed(seed, &[CHOICE, i as u64]),
            },
            ..sampling.clone()
        },
    });
    Ok(Request {
        choices: choices.collect(),
        stop: stops(&body.stop)?,
        stream,
        include_usage: include_usage(&body.stream_options, stream)?,
        echo,
        top,
        max_tokens,
        prompt_tokens,
    })
}

/// Separates the seeds of choices from other derived seeds.
const CHOICE: u64 = 1;

/// The default of `max_tokens`, as in OpenAI's interface.
const DEFAULT_TOKENS: usize = 16;

/// Parses the fields of a body.
fn parse(body: &[u8]) -> Result<Body, ApiError> {
    let invalid =
        |problem: String| ApiError::new(400, "invalid_json", format!("the body {problem}"));
    let text = std::str::from_utf8(body);
    let text = text.map_err(|_| invalid("is not UTF-8; send JSON in UTF-8".into()))?;
    // serde would accept a list, and read its items as the fields in their order.
    if text.trim_start().starts_with('[') {
        return Err(invalid("is a list; send an object".into()));
    }
    serde_json::from_str(text).map_err(|error| {
        let problem = error.to_string();
        let field = problem.split('`').nth(1).map(cut);
        match problem.split('`').next() {
            Some("unknown field ") => ApiError {
                param: field,
                ..ApiError::new(400, "unknown_field", cut(&problem))
            },
            Some("duplicate field ") => invalid(format!("has the {problem}")),
            _ if error.is_data() => invalid("is not an object with the fields of a request".into()),
            _ => invalid(format!("is not valid JSON: {problem}")),
        }
    })
}

fn check_model(model: &Value, name: &str) -> Result<(), ApiError> {
    match model {
        Value::Null => Ok(()),
        Value::String(model) if model == name => Ok(()),
        Value::String(model) => Err(ApiError {
            param: Some("model".into()),
            ..ApiError::new(
                404,
                "model_not_found",
                format!(
                    "there is no model {}; this server has {name}",
                    brief(&json!(model))
                ),
            )
        }),
        other => Err(ApiError::field(
            "model",
            format!("is {}; it must be {name}", brief(other)),
        )),
    }
}

fn stops(value: &Value) -> Result<Vec<String>, ApiError> {
    let wrong = |problem: String| ApiError::field("stop", problem);
    let texts = match value {
        Value::Null => return Ok(Vec::new()),
        Value::String(text) => vec![text.clone()],
        Value::Array(list) if list.len() <= MOST_STOPS => {
            let text = |item: &Value| match item {
                Value::String(text) => Ok(text.clone()),
                other => Err(wrong(format!(
                    "has {}; it must be a text or a list of texts",
                    brief(other)
                ))),
            };
            list.iter().map(text).collect::<Result<_, _>>()?
        }
        Value::Array(list) => {
            return Err(wrong(format!(
                "has {} texts; give at most {MOST_STOPS}",
                list.len()
            )));
        }
        other => {
            return Err(wrong(format!(
                "is {}; it must be a text or a list of texts",
                brief(other)
            )));
        }
    };
    if let Some(long) = texts.iter().find(|text| text.len() > MOST_STOP_BYTES) {
        return Err(wrong(format!(
            "has a text of {} bytes; give at most {MOST_STOP_BYTES}",
            long.len()
        )));
    }
    match texts.iter().any(String::is_empty) {
        true => Err(wrong(
            "has an empty text, which would stop at once; leave it out".into(),
        )),
        false => Ok(texts),
    }
}

fn include_usage(options: &Value, stream: bool) -> Result<bool, ApiError> {
    let wrong = |problem: &str| ApiError::field("stream_options", problem);
    match options {
        Value::Null => Ok(false),
        Value::Object(_) if !stream => Err(wrong("is only for `stream: true`")),
        Value::Object(fields) => {
            fields
                .iter()
                .try_fold(false, |found, (name, value)| match (name.as_str(), value) {
                    ("include_usage", Value::Bool(include)) => Ok(*include),
                    // Responses are never obfuscated.
                    ("include_obfuscation", Value::Bool(_)) => Ok(found),
                    _ => Err(wrong("may have `include_usage`, true or false")),
                })
        }
        _ => Err(wrong("must be an object with `include_usage`")),
    }
}

fn flag(field: &'static str, value: &Value) -> Result<bool, ApiError> {
    match value {
        Value::Null => Ok(false),
        Value::Bool(value) => Ok(*value),
        other => Err(ApiError::field(
            field,
            format!("is {}; it must be true or false", brief(other)),
        )),
    }
}

/// Reads a whole number from `least` to `most`, if there is one.
fn whole(
    field: &'static str,
    value: &Value,
    least: u64,
    most: u64,
) -> Result<Option<u64>, ApiError> {
    match value {
        Value::Null => Ok(None),
        given => match given.as_u64() {
            Some(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => {
                let range = match most {
                    u64::MAX => format!("of at least {least}"),
                    most => format!("from {least} to {most}"),
                };
                Err(ApiError::field(
                    field,
                    format!("is {}; it must be a whole number {range}", brief(given)),
                ))
            }
        },
    }
}

/// Reads a number from `least` to `most`, if there is one.
fn number(
    field: &'static str,
    value: &Value,
    least: f64,
    most: f64,
) -> Result<Option<f64>, ApiError> {
    match value {
        Value::Null => Ok(None),
        given => match given.as_f64() {
            Some(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => {
                let problem = format!(
                    "is {}; it must be a number from {least} to {most}",
                    brief(given)
                );
                Err(ApiError::field(field, problem))
            }
        },
    }
}

/// Returns the beginning of a value, for an error message.
pub(crate) fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Returns the beginning of a message.
fn cut(text: &str) -> String {
    text.chars().take(400).collect()
}
