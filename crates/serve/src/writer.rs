//! Converts tokens to text, on the engine's thread. A text in the request's `stop` list therefore ends a sequence at
//! once, even if the client reads nothing.

use std::collections::VecDeque;

use residual_zoo_data::{StreamDecoder, Tokenizer};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedSender;

use crate::engine::Scored;
use crate::request::{ApiError, Request};
use crate::unread::{self, Unread};

/// A part of a choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// The text, which follows the text of earlier pieces.
    pub text: String,
    /// The tokens that begin in this text, if they are asked for.
    pub tokens: Vec<Token>,
    /// The reason why the choice ends here, "stop" or "length"; `None` if it continues.
    pub finish: Option<&'static str>,
    /// Tokens generated so far.
    pub generated: usize,
}

/// A token of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// The token.
    pub scored: Scored,
    /// The offset at which the text of the token begins, in characters of the choice's text.
    pub start: usize,
}

/// Writes the text of a choice and sends it in pieces.
pub struct Writer {
    pieces: UnboundedSender<Result<Piece, ApiError>>,
    unread: Unread,
    /// The place of the choice in the queue; `None` once the choice has ended.
    place: Option<OwnedSemaphorePermit>,
    /// The decoder of the tokens; `None` once the choice has ended.
    decoder: Option<StreamDecoder>,
    tokenizer: Tokenizer,
    stop: Vec<String>,
    max_tokens: usize,
    has_tokens: bool,
    generated: usize,
    /// Text that may begin a text in `stop`.
    held: String,
    /// Tokens whose text has not been sent.
    tokens: VecDeque<Token>,
    /// The numbers of characters that were decoded and that were sent.
    decoded: usize,
    sent: usize,
}

impl Writer {
    /// Makes the writer of the choice `index` of `request`. The choice keeps its `place` in the queue until its last
    /// token.
    ///
    /// # Errors
    ///
    /// Returns an error if the prompt cannot be decoded, or if there is no memory for it in the response.
    pub fn new(
        index: usize,
        request: &Request,
        tokenizer: &Tokenizer,
        pieces: UnboundedSender<Result<Piece, ApiError>>,
        unread: Unread,
        place: OwnedSemaphorePermit,
    ) -> Result<Self, ApiError> {
        let mut writer = Self {
            pieces,
            unread,
            place: Some(place),
            decoder: Some(tokenizer.stream()),
            tokenizer: tokenizer.clone(),
            stop: request.stop.clone(),
            max_tokens: request.max_tokens,
            has_tokens: request.top.is_some(),
            generated: 0,
            held: String::new(),
            tokens: VecDeque::new(),
            decoded: 0,
            sent: 0,
        };
        let wanted = &request.choices[index];
        // A prompt that is to be scored is written once it has its scores.
        if !request.scores(wanted) {
            // The decoder needs the preceding text: a first token may lose its space.
            let mut text = String::new();
            for id in &wanted.prompt {
                text += &writer.decode(*id)?;
            }
            let rest = writer.rest_of_prompt()?;
            if request.echo && !wanted.is_empty {
                text += &rest;
                writer.decoded = text.chars().count();
                writer.send_prompt(text)?;
            } else if writer.max_tokens == 0 {
                writer.send_prompt(String::new())?;
            }
        }
        Ok(writer)
    }

    /// Whether the choice has ended, or its client has gone.
    pub fn is_over(&self) -> bool {
        self.decoder.is_none() || self.pieces.is_closed()
    }

    /// Writes the scored tokens of the prompt.
    pub fn prompt(&mut self, scored: Vec<Scored>) {
        let texts = scored.into_iter().map(|scored| self.take(scored));
        let text = texts.collect::<Result<String, _>>();
        let sent = text.and_then(|text| {
            let rest = self.rest_of_prompt()?;
            self.send_prompt(text + &rest)
        });
        if let Err(error) = sent {
            self.fail(error);
        }
    }

    /// Writes the next token.
    pub fn token(&mut self, scored: Scored) {
        if let Err(error) = self.write(scored) {
            self.fail(error);
        }
    }

    /// Ends the choice with an error.
    pub fn fail(&mut self, error: ApiError) {
        self.end();
        self.send(Err(error));
    }

    /// Frees the place of the choice, before the client can know that the choice has ended.
    fn end(&mut self) {
        (self.decoder, self.place) = (None, None);
    }

    fn write(&mut self, scored: Scored) -> Result<(), ApiError> {
        self.generated += 1;
        let is_end = self.tokenizer.ends_text(scored.id);
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
        self.release(end)
    }

    /// If the text is only a prompt, returns its end: a part of a character that no token completes.
    fn rest_of_prompt(&mut self) -> Result<String, ApiError> {
        match (self.max_tokens, &self.decoder) {
            (0, Some(decoder)) => decoder.clone().finish().map_err(internal),
            _ => Ok(String::new()),
        }
    }

    fn send_prompt(&mut self, text: String) -> Result<(), ApiError> {
        let end = (self.max_tokens == 0).then_some("length");
        match end.is_some() || !text.is_empty() {
            true => self.send_piece(text, end, end.is_some()),
            false => Ok(()),
        }
    }

    /// Sends the held text up to a text in `stop`, or up to the possible beginning of one.
    fn release(&mut self, end: Option<&'static str>) -> Result<(), ApiError> {
        let stops = self.stop.iter();
        if let Some(at) = stops
            .clone()
            .filter_map(|stop| self.held.find(stop.as_str()))
            .min()
        {
            self.held.truncate(at);
            let text = std::mem::take(&mut self.held);
            return self.send_piece(text, Some("stop"), false);
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
        match end.is_some() || !text.is_empty() {
            true => self.send_piece(text, end, end.is_some()),
            false => Ok(()),
        }
    }

    /// Sends a piece with `text` and the tokens that begin in it, or `all` tokens.
    fn send_piece(
        &mut self,
        text: String,
        finish: Option<&'static str>,
        all: bool,
    ) -> Result<(), ApiError> {
        // The memory for the tokens of this piece has already been taken.
        self.unread.add(unread::of_text(&text))?;
        self.sent += text.chars().count();
        if finish.is_some() {
            self.end();
        }
        let sent = self.sent;
        let count = self
            .tokens
            .iter()
            .take_while(|token| all || token.start < sent)
            .count();
        let piece = Piece {
            text,
            tokens: self.tokens.drain(..count).collect(),
            finish,
            generated: self.generated,
        };
        self.send(Ok(piece));
        Ok(())
    }

    /// Sends a piece. If the client has gone, the engine notices at the next step.
    fn send(&self, piece: Result<Piece, ApiError>) {
        let _ = self.pieces.send(piece);
    }

    /// Returns the text that a token completes. The token waits until its text is sent.
    fn take(&mut self, scored: Scored) -> Result<String, ApiError> {
        let before = self.decoded;
        let text = self.decode(scored.id)?;
        self.decoded += text.chars().count();
        if self.has_tokens {
            self.unread.add(unread::of_token(&scored))?;
            // The text may begin with U+FFFD for earlier bytes that were held back but are not a character.
            let own = self.tokenizer.decode(&[scored.id]).map_err(internal)?;
            let start = match text.ends_with(&own) && !own.is_empty() {
                true => self.decoded - own.chars().count(),
                false => before,
            };
            self.tokens.push_back(Token { scored, start });
        }
        Ok(text)
    }

    fn decode(&mut self, id: u32) -> Result<String, ApiError> {
        match &mut self.decoder {
            Some(decoder) => decoder.push(id).map_err(internal),
            None => Ok(String::new()),
        }
    }
}

/// Returns the number of bytes at the end of `text` that are also the beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let mut lengths = (1..stop.len())
        .rev()
        .filter(|length| stop.is_char_boundary(*length));
    lengths
        .find(|length| text.ends_with(&stop[..*length]))
        .unwrap_or(0)
}

/// Makes an error of the server itself.
pub fn internal(error: impl std::fmt::Display) -> ApiError {
    ApiError::new(500, "internal", error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use residual_zoo_data::TokenizerConfig;
    use serde_json::{Value, json};
    use tokio::sync::Semaphore;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;
    use crate::request::{Limits, read};
    use crate::room::Room;

    type Pieces = UnboundedReceiver<Result<Piece, ApiError>>;

    /// Makes the writer of a request, with bytes as tokens.
    fn writer(body: &Value) -> (Writer, Pieces) {
        let tokenizer = Tokenizer::train(&TokenizerConfig::Bytes, &[]).unwrap();
        let limits = Limits {
            context: 64,
            max_tokens: 1000,
            choices: 8,
        };
        let body = body.to_string();
        let request = read(body.as_bytes(), "model", &tokenizer, &limits, || 0).unwrap();
        let (sender, pieces) = unbounded_channel();
        let unread = Unread::new(&unread::room());
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let writer = Writer::new(0, &request, &tokenizer, sender, unread, place).unwrap();
        (writer, pieces)
    }

    fn token(id: u8) -> Scored {
        Scored {
            id: id.into(),
            log_probability: None,
            top: Vec::new(),
        }
    }

    /// Writes `bytes` as tokens. Returns the texts of the pieces, the offsets of the tokens, the reason for the end,
    /// and the number of tokens that were taken.
    fn written(
        body: &Value,
        bytes: &[u8],
    ) -> (Vec<String>, Vec<usize>, Option<&'static str>, usize) {
        let (mut writer, mut pieces) = writer(body);
        let mut taken = 0;
        for byte in bytes {
            if writer.is_over() {
                break;
            }
            writer.token(token(*byte));
            taken += 1;
        }
        let (mut texts, mut starts, mut finish) = (Vec::new(), Vec::new(), None);
        while let Ok(piece) = pieces.try_recv() {
            let piece = piece.unwrap();
            assert_eq!(finish, None, "a piece after the end");
            texts.push(piece.text);
            starts.extend(piece.tokens.iter().map(|token| token.start));
            finish = piece.finish;
        }
        (texts, starts, finish, taken)
    }

    #[test]
    fn a_stop_is_noticed_at_the_token_that_completes_it() {
        let stopped = |stop: Value, text: &str| {
            let body = json!({ "prompt": "a", "max_tokens": 1000, "stop": stop });
            let (texts, _, finish, taken) = written(&body, text.as_bytes());
            (texts.concat(), finish, taken)
        };
        assert_eq!(stopped(json!("b"), "aabaa"), ("aa".into(), Some("stop"), 3));
        // A text in `stop` can span tokens that end within characters. Its beginning can occur earlier without the
        // rest.
        assert_eq!(
            stopped(json!("日本"), "x日日本y"),
            ("x日".into(), Some("stop"), 10)
        );
        assert_eq!(
            stopped(json!("aab"), "aaaab!"),
            ("aa".into(), Some("stop"), 5)
        );
        // With several texts in `stop`, the first to appear counts, not the first in the list.
        assert_eq!(
            stopped(json!(["d", "bcx", "bc"]), "abcd"),
            ("a".into(), Some("stop"), 3)
        );
        // U+FFFD stands for bytes that are not a character, as soon as they cannot become one.
        let body = json!({ "prompt": "a", "max_tokens": 1000, "stop": "\u{fffd}" });
        let (texts, _, finish, taken) = written(&body, b"x\xe6x!");
        assert_eq!(
            (texts.concat(), finish, taken),
            ("x".into(), Some("stop"), 3)
        );
        assert_eq!(stopped(json!("zz"), "aaz"), ("aa".into(), None, 3));
    }

    #[test]
    fn the_last_token_releases_all_text() {
        let body = json!({ "prompt": "a", "max_tokens": 3, "stop": "bcd", "logprobs": 0 });
        let (texts, starts, finish, taken) = written(&body, b"abcx");
        assert_eq!(
            (texts.concat().as_str(), finish, taken),
            ("abc", Some("length"), 3)
        );
        assert_eq!(starts, [0, 1, 2]);
        let (texts, starts, ..) = written(&body, "本".as_bytes());
        assert_eq!((texts.concat().as_str(), starts), ("本", vec![0, 0, 0]));
        let (texts, ..) = written(&body, b"a\xe6\x97");
        assert_eq!(texts.concat(), "a\u{fffd}");
    }

    #[test]
    fn a_prompt_that_ends_within_a_character_is_written_whole() {
        let body = json!({ "prompt": [97, 230, 151], "max_tokens": 0, "echo": true });
        let (texts, _, finish, _) = written(&body, b"");
        assert_eq!(
            (texts.concat().as_str(), finish),
            ("a\u{fffd}", Some("length"))
        );
        // The same prompt, with scores.
        let (mut writer, mut pieces) = writer(&json!({
            "prompt": [97, 230, 151], "max_tokens": 0, "echo": true, "logprobs": 0,
        }));
        assert!(!writer.is_over());
        writer.prompt([97, 230, 151].map(token).into());
        assert!(writer.is_over());
        let piece = pieces.try_recv().unwrap().unwrap();
        assert_eq!(
            (piece.text.as_str(), piece.finish),
            ("a\u{fffd}", Some("length"))
        );
        let starts: Vec<usize> = piece.tokens.iter().map(|token| token.start).collect();
        assert_eq!(starts, [0, 1, 1]);
        // After an incomplete character, a token begins where its own text does.
        let body = json!({ "prompt": "a", "max_tokens": 4, "logprobs": 0 });
        let (texts, starts, ..) = written(&body, b"\xe6\x97xy");
        assert_eq!(
            (texts.concat().as_str(), starts),
            ("\u{fffd}xy", vec![0, 0, 1, 2])
        );
        // The first generated token can complete a character of the prompt.
        let body = json!({ "prompt": [97, 230, 151], "max_tokens": 2, "echo": true });
        let (texts, _, finish, _) = written(&body, b"\xa5!");
        assert_eq!((texts.concat().as_str(), finish), ("a日!", Some("length")));
        // An empty prompt has no text.
        let (texts, _, finish, _) = written(&json!({ "max_tokens": 0, "echo": true }), b"");
        assert_eq!((texts.concat().as_str(), finish), ("", Some("length")));
    }

    #[test]
    fn a_choice_frees_its_place_before_its_last_piece_is_read() {
        let body = json!({ "prompt": "a", "max_tokens": 2, "stream": true });
        let (mut writer, mut pieces) = writer(&body);
        writer.token(token(b'x'));
        assert!(writer.place.is_some());
        writer.token(token(b'y'));
        assert!(writer.place.is_none() && pieces.try_recv().is_ok());
    }

    #[test]
    fn an_unread_answer_ends_when_there_is_no_room() {
        let room = Room::new(5000, 20_000);
        let body = json!({ "prompt": "a", "max_tokens": 1000, "logprobs": 0 });
        let (mut writer, mut pieces) = writer(&body);
        writer.unread = Unread::new(&room);
        while !writer.is_over() {
            writer.token(token(b'x'));
        }
        let unread = writer.unread.clone();
        let held = room.missing();
        assert!(held > 0 && unread.shared() <= 20_000 && unread.shared() > 19_000);
        // Other responses have their own memory.
        assert!(Unread::new(&room).add(5000).is_ok());
        let mut count = 0;
        let error = loop {
            match pieces.try_recv().unwrap() {
                Ok(piece) => {
                    unread.remove(unread::of_piece(&piece));
                    count += 1;
                }
                Err(error) => break error,
            }
        };
        assert_eq!((error.status, error.code, count), (503, "no_room", 97));
        // Reading a piece frees its memory.
        assert_eq!((unread.shared(), room.missing()), (0, 0));
    }

    #[test]
    fn who_has_gone_waits_for_nothing() {
        let (writer, pieces) = writer(&json!({ "prompt": "a" }));
        assert!(!writer.is_over());
        drop(pieces);
        assert!(writer.is_over());
    }
}
