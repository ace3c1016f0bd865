//! Builds responses, whole or as a stream, in OpenAI's format.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Bytes;
use axum::http::header;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::future::try_join_all;
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt as _};
use residual_zoo_data::Tokenizer;
use serde::Serialize;

use crate::choice::{Choice, Logprobs};
use crate::request::{ApiError, Request};
use crate::unread::{Unread, of_piece};
use crate::writer::{Piece, internal};

/// The fields that all parts of a response share.
pub struct Head {
    /// The id of the response.
    pub id: String,
    /// The time when the response began, in seconds since 1970.
    pub created: u64,
    /// The name of the model.
    pub model: String,
    /// The tokenizer, which decodes tokens.
    pub tokenizer: Tokenizer,
    /// Whether the response reports log-probabilities of tokens.
    pub has_logprobs: bool,
    /// The memory of the parts of the response that the client has not read.
    pub unread: Unread,
}

/// A response, or a part of one.
#[derive(Serialize)]
struct Answer<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Said>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

/// A choice in a response.
#[derive(Serialize)]
struct Said {
    index: usize,
    text: String,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
}

impl Usage {
    fn new(prompt_tokens: usize, completion_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
        }
    }
}

impl Head {
    /// Returns the response as JSON, with these choices.
    fn answer(&self, choices: Vec<Said>, usage: Option<Usage>) -> String {
        let answer = Answer {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            choices,
            usage,
        };
        serde_json::to_string(&answer).unwrap_or_else(|error| unreachable!("plain data: {error}"))
    }

    /// Converts a piece of a choice, or a whole choice, to OpenAI's format.
    fn said(&self, index: usize, piece: Piece) -> Result<Said, ApiError> {
        let mut logprobs = self.has_logprobs.then(Logprobs::default);
        if let Some(logprobs) = &mut logprobs {
            logprobs.extend(piece.tokens, &self.tokenizer)?;
        }
        Ok(Said {
            index,
            text: piece.text,
            logprobs,
            finish_reason: piece.finish,
        })
    }

    /// Returns the response with all choices.
    fn whole(self, choices: Vec<(usize, Piece)>, prompt_tokens: usize) -> Result<Whole, ApiError> {
        let generated = choices.iter().map(|(_, choice)| choice.generated).sum();
        let choices = choices.into_iter();
        let said = choices.map(|(index, choice)| self.said(index, choice));
        let said = said.collect::<Result<_, _>>()?;
        let text = self.answer(said, Some(Usage::new(prompt_tokens, generated)));
        let text = text.into_boxed_str();
        self.unread.set(text.len())?;
        Ok(Whole {
            text,
            _room: self.unread,
        })
    }
}

/// Returns the response once all choices have ended.
///
/// # Errors
///
/// Returns the error of the first choice that failed, or status 503 if there is no memory for the response.
pub async fn whole(
    head: Head,
    request: &Request,
    choices: Vec<Choice>,
) -> Result<Response, ApiError> {
    let choices = try_join_all(choices.into_iter().map(Choice::whole)).await?;
    let prompt_tokens = request.prompt_tokens;
    let whole = match head.unread.shared() {
        // Encoding a small response takes less time than a switch to another thread.
        0 => head.whole(choices, prompt_tokens)?,
        _ => in_background(move || head.whole(choices, prompt_tokens)).await?,
    };
    let json = [(header::CONTENT_TYPE, "application/json")];
    Ok((json, Bytes::from_owner(whole)).into_response())
}

/// Runs `work` on another thread, because long texts take a while to encode or decode.
pub async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let task = tokio::task::spawn_blocking(work);
    task.await.unwrap_or_else(|error| Err(internal(error)))
}

/// A whole response. Its memory is free again when its last bytes are dropped.
struct Whole {
    text: Box<str>,
    _room: Unread,
}

impl AsRef<[u8]> for Whole {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

/// The next part of a choice in a stream.
enum Part {
    /// A piece of text, as JSON.
    Piece(String),
    /// The end of the choice, with its number of tokens.
    Ended(usize),
    /// The error with which the choice ends.
    Failed(ApiError),
}

/// Returns the response as server-sent events. Each event is sent as soon as there is text.
pub fn streamed(head: Head, request: &Request, choices: Vec<Choice>) -> Response {
    let head = Arc::new(head);
    let parts = choices.into_iter().map(|choice| {
        let head = head.clone();
        let parts = stream::unfold(Some(choice), move |choice| {
            let head = head.clone();
            async move {
                let mut choice = choice?;
                Some(match choice.next().await {
                    Ok(Some(piece)) => {
                        head.unread.remove(of_piece(&piece));
                        match head.said(choice.index, piece) {
                            Ok(said) => (Part::Piece(head.answer(vec![said], None)), Some(choice)),
                            Err(error) => (Part::Failed(error), None),
                        }
                    }
                    Ok(None) => (Part::Ended(choice.generated), None),
                    Err(error) => (Part::Failed(error), None),
                })
            }
        });
        parts.boxed()
    });
    let stream = Stream {
        parts: stream::select_all(parts.collect::<Vec<_>>()),
        head,
        usage: request.include_usage.then_some(request.prompt_tokens),
        generated: 0,
    };
    let events = stream::unfold(Some(stream), |stream| async move {
        let (data, stream) = stream?.next().await;
        let events = data
            .into_iter()
            .map(|data| Ok::<_, Infallible>(Event::default().data(data)));
        Some((stream::iter(events), stream))
    });
    Sse::new(events.flatten())
        .keep_alive(KeepAlive::default())
        .into_response()
}

/// A response that is being sent in parts.
struct Stream {
    parts: SelectAll<BoxStream<'static, Part>>,
    head: Arc<Head>,
    /// The number of prompt tokens, if the client wants the usage.
    usage: Option<usize>,
    generated: usize,
}

impl Stream {
    /// Returns the events to send next, and the stream unless they are the last.
    async fn next(mut self) -> (Vec<String>, Option<Self>) {
        loop {
            match self.parts.next().await {
                Some(Part::Piece(data)) => return (vec![data], Some(self)),
                Some(Part::Ended(count)) => self.generated += count,
                Some(Part::Failed(error)) => return (vec![error.body().to_string()], None),
                None => {
                    let usage = self.usage.map(|prompt| Usage::new(prompt, self.generated));
                    let usage = usage.map(|usage| self.head.answer(Vec::new(), Some(usage)));
                    return (usage.into_iter().chain(["[DONE]".into()]).collect(), None);
                }
            }
        }
    }
}
