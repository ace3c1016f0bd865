//! Answers, whole or as a stream, in OpenAI's form.

use std::convert::Infallible;
use std::sync::Arc;

use axum::http::header;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::future::try_join_all;
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt as _};
use residual_zoo_data::Tokenizer;
use serde::Serialize;

use crate::choice::{Choice, Logprobs};
use crate::request::{ApiError, Request};
use crate::writer::Piece;

/// What all parts of an answer say.
pub struct Head {
    /// The id of the answer.
    pub id: String,
    /// When it began, in seconds since 1970.
    pub created: u64,
    /// The name of the model.
    pub model: String,
    /// The decoder of tokens.
    pub tokenizer: Tokenizer,
    /// Whether tokens have log-probabilities.
    pub has_logprobs: bool,
}

/// An answer, or a part of one.
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

/// A choice in an answer.
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
    /// An answer as JSON.
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

    fn piece(&self, index: usize, piece: Piece) -> Result<String, ApiError> {
        let mut logprobs = self.has_logprobs.then(Logprobs::default);
        if let Some(logprobs) = &mut logprobs {
            logprobs.extend(piece.tokens, &self.tokenizer)?;
        }
        let said = Said {
            index,
            text: piece.text,
            logprobs,
            finish_reason: piece.finish,
        };
        Ok(self.answer(vec![said], None))
    }

    /// All of a choice, and its number of tokens.
    async fn all_of(&self, mut choice: Choice) -> Result<(Said, usize), ApiError> {
        let mut said = Said {
            index: choice.index,
            text: String::new(),
            logprobs: self.has_logprobs.then(Logprobs::default),
            finish_reason: None,
        };
        while let Some(piece) = choice.next().await? {
            said.text += &piece.text;
            said.finish_reason = piece.finish;
            if let Some(logprobs) = &mut said.logprobs {
                logprobs.extend(piece.tokens, &self.tokenizer)?;
            }
        }
        Ok((said, choice.generated))
    }
}

/// The answer once all choices have ended.
///
/// # Errors
///
/// The error of the first choice that fails.
pub async fn whole(
    head: Head,
    request: &Request,
    choices: Vec<Choice>,
) -> Result<Response, ApiError> {
    let all = choices.into_iter().map(|choice| head.all_of(choice));
    let (answers, generated): (Vec<Said>, Vec<usize>) =
        try_join_all(all).await?.into_iter().unzip();
    let usage = Usage::new(request.prompt_tokens, generated.iter().sum());
    let json = [(header::CONTENT_TYPE, "application/json")];
    Ok((json, head.answer(answers, Some(usage))).into_response())
}

/// What a choice of a stream has left to say.
enum Part {
    /// A piece of text, as JSON.
    Piece(String),
    /// It has ended, after so many tokens.
    Ended(usize),
    /// It failed.
    Failed(ApiError),
}

/// The answer as server-sent events, each as soon as there is text.
pub fn streamed(head: Head, request: &Request, choices: Vec<Choice>) -> Response {
    let head = Arc::new(head);
    let parts = choices.into_iter().map(|choice| {
        let head = head.clone();
        let parts = stream::unfold(Some(choice), move |choice| {
            let head = head.clone();
            async move {
                let mut choice = choice?;
                Some(match choice.next().await {
                    Ok(Some(piece)) => match head.piece(choice.index, piece) {
                        Ok(data) => (Part::Piece(data), Some(choice)),
                        Err(error) => (Part::Failed(error), None),
                    },
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

/// An answer that is being sent in parts.
struct Stream {
    parts: SelectAll<BoxStream<'static, Part>>,
    head: Arc<Head>,
    /// The tokens of the prompts, if the numbers of tokens are wanted.
    usage: Option<usize>,
    generated: usize,
}

impl Stream {
    /// What is sent next, and the stream unless that is the end.
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
