//! A choice of an answer: from tokens to text that a client reads.

use std::collections::VecDeque;

use residual_zoo_data::{StreamDecoder, Tokenizer};
use serde::{Serialize, Serializer};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::engine::{Event, Scored};
use crate::request::{ApiError, Request};

/// A part of a choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Text that follows what came before.
    pub text: String,
    /// The tokens that begin in this text.
    pub logprobs: Option<Logprobs>,
    /// Why the choice ends here, if it does: "stop" or "length".
    pub finish: Option<&'static str>,
}

/// The tokens of a text, in OpenAI's form.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Logprobs {
    /// Each token as text.
    pub tokens: Vec<String>,
    /// Its log-probability in nats. The first token of a text has none.
    pub token_logprobs: Vec<Option<f64>>,
    /// The most likely tokens in its place.
    pub top_logprobs: Vec<Option<Top>>,
    /// Where its text begins, in characters of the text of the choice.
    pub text_offset: Vec<usize>,
}

impl Logprobs {
    fn push(&mut self, token: Token) {
        self.tokens.push(token.text);
        self.token_logprobs.push(token.log_probability);
        self.top_logprobs.push(token.top);
        self.text_offset.push(token.start);
    }

    /// Adds the tokens that follow.
    pub fn extend(&mut self, more: Self) {
        self.tokens.extend(more.tokens);
        self.token_logprobs.extend(more.token_logprobs);
        self.top_logprobs.extend(more.top_logprobs);
        self.text_offset.extend(more.text_offset);
    }
}

/// Tokens as text, with their log-probabilities: an object in JSON.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Top(Vec<(String, f64)>);

impl Serialize for Top {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, value)| (token, value)))
    }
}

struct Token {
    text: String,
    log_probability: Option<f64>,
    top: Option<Top>,
    start: usize,
}

/// A choice that is being generated.
pub struct Choice {
    /// Its place in the answer.
    pub index: usize,
    /// Tokens generated so far.
    pub generated: usize,
    events: UnboundedReceiver<Event>,
    tokenizer: Tokenizer,
    /// `None` at the end.
    decoder: Option<StreamDecoder>,
    stop: Vec<String>,
    max_tokens: usize,
    has_logprobs: bool,
    /// The prompt, if it begins the text and has no scores.
    echoed: Option<String>,
    /// Text that may begin a stop.
    held: String,
    /// Tokens whose text has not been sent.
    tokens: VecDeque<Token>,
    /// Characters decoded, and sent.
    decoded: usize,
    sent: usize,
}

impl Choice {
    /// The choice `index` of `request`, whose tokens come from `events`.
    ///
    /// # Errors
    ///
    /// When the prompt cannot be decoded.
    pub fn new(
        index: usize,
        request: &Request,
        tokenizer: &Tokenizer,
        events: UnboundedReceiver<Event>,
    ) -> Result<Self, ApiError> {
        let mut choice = Self {
            index,
            generated: 0,
            events,
            tokenizer: tokenizer.clone(),
            decoder: Some(tokenizer.stream()),
            stop: request.stop.clone(),
            max_tokens: request.max_tokens,
            has_logprobs: request.top.is_some(),
            echoed: None,
            held: String::new(),
            tokens: VecDeque::new(),
            decoded: 0,
            sent: 0,
        };
        let wanted = &request.choices[index];
        // A prompt with scores comes as an event.
        if !request.scores(wanted) {
            // The decoder has to know what was before: a first token may lose its space.
            let mut text = String::new();
            for id in &wanted.prompt {
                text += &choice.decode(*id)?;
            }
            if wanted.is_empty {
                text.clear();
            }
            if request.echo {
                choice.decoded = text.chars().count();
                choice.echoed = Some(text);
            }
        }
        Ok(choice)
    }

    /// The next piece; `None` after the last one.
    ///
    /// # Errors
    ///
    /// When the model fails, or the server stops.
    pub async fn next(&mut self) -> Result<Option<Piece>, ApiError> {
        let only_prompt = (self.max_tokens == 0).then_some("length");
        if let Some(text) = self.echoed.take()
            && (only_prompt.is_some() || !text.is_empty())
        {
            return Ok(Some(self.piece(text, only_prompt, true)));
        }
        while self.decoder.is_some() {
            match self.events.recv().await {
                Some(Event::Prompt(scored)) => {
                    let texts = scored.into_iter().map(|scored| self.take(scored));
                    let text = texts.collect::<Result<String, _>>()?;
                    return Ok(Some(self.piece(text, only_prompt, only_prompt.is_some())));
                }
                Some(Event::Token(scored)) => {
                    self.generated += 1;
                    let is_end = Some(scored.id) == self.tokenizer.end_of_text();
                    if !is_end {
                        let text = self.take(scored)?;
                        self.held += &text;
                    }
                    let end = match is_end {
                        true => Some("stop"),
                        false => (self.generated == self.max_tokens).then_some("length"),
                    };
                    if end.is_some()
                        && let Some(decoder) = self.decoder.take()
                    {
                        self.held += &decoder.finish().map_err(internal)?;
                    }
                    if let Some(piece) = self.release(end) {
                        return Ok(Some(piece));
                    }
                }
                Some(Event::NotFinite) => {
                    let problem =
                        "the model gives numbers that are not finite; it diverged in training";
                    return Err(ApiError::new(500, "not_finite", problem));
                }
                None => {
                    let problem = "the server is stopping; try again later";
                    return Err(ApiError::new(503, "stopping", problem));
                }
            }
        }
        Ok(None)
    }

    /// The held text up to a stop, or up to what may begin one. `None` if there is nothing to send yet.
    fn release(&mut self, end: Option<&'static str>) -> Option<Piece> {
        let stops = self.stop.iter();
        if let Some(at) = stops
            .clone()
            .filter_map(|stop| self.held.find(stop.as_str()))
            .min()
        {
            self.held.truncate(at);
            let text = std::mem::take(&mut self.held);
            return Some(self.piece(text, Some("stop"), false));
        }
        let kept = match end {
            Some(_) => 0,
            None => stops
                .map(|stop| overlap(&self.held, stop))
                .max()
                .unwrap_or(0),
        };
        let rest = self.held.split_off(self.held.len() - kept);
        let text = std::mem::replace(&mut self.held, rest);
        (end.is_some() || !text.is_empty()).then(|| self.piece(text, end, end.is_some()))
    }

    /// A piece with `text` and the tokens that begin in it, or `all` tokens.
    fn piece(&mut self, text: String, finish: Option<&'static str>, all: bool) -> Piece {
        self.sent += text.chars().count();
        if finish.is_some() {
            self.decoder = None;
            // The engine gives the sequence up.
            self.events.close();
        }
        let sent = self.sent;
        let count = self
            .tokens
            .iter()
            .take_while(|token| all || token.start < sent)
            .count();
        let mut logprobs = Logprobs::default();
        self.tokens
            .drain(..count)
            .for_each(|token| logprobs.push(token));
        Piece {
            text,
            logprobs: self.has_logprobs.then_some(logprobs),
            finish,
        }
    }

    /// The text that a token completes. The token waits until its text is sent.
    fn take(&mut self, scored: Scored) -> Result<String, ApiError> {
        let start = self.decoded;
        let text = self.decode(scored.id)?;
        self.decoded += text.chars().count();
        if self.has_logprobs {
            let mut top = Top::default();
            for (id, value) in scored.top {
                let text = self.text_of(id)?;
                // Of two tokens with the same text, the more likely one counts.
                if top.0.iter().all(|(other, _)| *other != text) {
                    top.0.push((text, value));
                }
            }
            self.tokens.push_back(Token {
                text: self.text_of(scored.id)?,
                log_probability: scored.log_probability,
                top: scored.log_probability.map(|_| top),
                start,
            });
        }
        Ok(text)
    }

    fn decode(&mut self, id: u32) -> Result<String, ApiError> {
        match &mut self.decoder {
            Some(decoder) => decoder.push(id).map_err(internal),
            None => Ok(String::new()),
        }
    }

    /// A token as text; one that is no text in itself, such as a part of a character, by its id.
    fn text_of(&self, id: u32) -> Result<String, ApiError> {
        let text = self.tokenizer.decode(&[id]).map_err(internal)?;
        Ok(match text.is_empty() || text.contains('\u{fffd}') {
            true => format!("token_id:{id}"),
            false => text,
        })
    }
}

/// The bytes at the end of `text` that begin `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let mut lengths = (1..stop.len())
        .rev()
        .filter(|length| stop.is_char_boundary(*length));
    lengths
        .find(|length| text.ends_with(&stop[..*length]))
        .unwrap_or(0)
}

fn internal(error: impl std::fmt::Display) -> ApiError {
    ApiError::new(500, "internal", error.to_string())
}
