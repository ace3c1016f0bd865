//! A choice of a response while it is generated, and its tokens in OpenAI's format.

use residual_zoo_data::Tokenizer;
use serde::{Serialize, Serializer};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::request::ApiError;
use crate::writer::{Piece, Token, internal};

/// A choice that is being generated.
pub struct Choice {
    /// The index of the choice in the response.
    pub index: usize,
    /// Tokens generated so far.
    pub generated: usize,
    pieces: UnboundedReceiver<Result<Piece, ApiError>>,
    has_ended: bool,
}

impl Choice {
    /// Makes the choice `index`, whose pieces arrive in `pieces`.
    pub fn new(index: usize, pieces: UnboundedReceiver<Result<Piece, ApiError>>) -> Self {
        Self {
            index,
            generated: 0,
            pieces,
            has_ended: false,
        }
    }

    /// Returns the next piece, or `None` after the last one.
    ///
    /// # Errors
    ///
    /// Returns the error with which the choice ended, or status 503 if the server stops.
    pub async fn next(&mut self) -> Result<Option<Piece>, ApiError> {
        if self.has_ended {
            return Ok(None);
        }
        let Some(piece) = self.pieces.recv().await else {
            let problem = "the server is stopping; try again later";
            return Err(ApiError::new(503, "stopping", problem));
        };
        let piece = piece?;
        self.generated = piece.generated;
        self.has_ended = piece.finish.is_some();
        Ok(Some(piece))
    }

    /// Waits for the end of the choice. Returns its index in the response, and all pieces as one.
    ///
    /// # Errors
    ///
    /// Returns the error with which the choice ended, or status 503 if the server stops.
    pub async fn whole(mut self) -> Result<(usize, Piece), ApiError> {
        let mut whole = Piece::default();
        while let Some(piece) = self.next().await? {
            whole.text += &piece.text;
            whole.tokens.extend(piece.tokens);
            (whole.finish, whole.generated) = (piece.finish, piece.generated);
        }
        Ok((self.index, whole))
    }
}

/// The tokens of a text, in OpenAI's format.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Logprobs {
    /// Each token as text.
    pub tokens: Vec<String>,
    /// The log-probability of each token, in nats. The first token of a prompt has none.
    pub token_logprobs: Vec<Option<f64>>,
    /// The most likely tokens at each position, and the token itself. The first token of a prompt has none.
    pub top_logprobs: Vec<Option<Top>>,
    /// The offset at which the text of each token begins, in characters of the choice's text.
    pub text_offset: Vec<usize>,
}

impl Logprobs {
    /// Appends `tokens`.
    ///
    /// # Errors
    ///
    /// Returns an error if a token cannot be decoded.
    pub fn extend(&mut self, tokens: Vec<Token>, tokenizer: &Tokenizer) -> Result<(), ApiError> {
        for Token { scored, start } in tokens {
            let mut top = Top::default();
            for (id, value) in scored.top {
                let text = text_of(id, tokenizer)?;
                // If two tokens have the same text, the more likely one counts.
                if top.0.iter().all(|(other, _)| *other != text) {
                    top.0.push((text, value));
                }
            }
            self.tokens.push(text_of(scored.id, tokenizer)?);
            self.token_logprobs.push(scored.log_probability);
            self.top_logprobs.push(scored.log_probability.map(|_| top));
            self.text_offset.push(start);
        }
        Ok(())
    }
}

/// Tokens as text, with their log-probabilities. They are serialized as a JSON object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Top(Vec<(String, f64)>);

impl Serialize for Top {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, value)| (token, value)))
    }
}

/// Returns a token as text. A token that is not text by itself, such as a part of a character, is written as its id.
fn text_of(id: u32, tokenizer: &Tokenizer) -> Result<String, ApiError> {
    let text = tokenizer.decode(&[id]).map_err(internal)?;
    Ok(match text.is_empty() || text.contains('\u{fffd}') {
        true => format!("token_id:{id}"),
        false => text,
    })
}
