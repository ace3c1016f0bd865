//! Turns documents into token requests.

use std::sync::Arc;

use residual_zoo_data::{DataError, Tokenizer};
use residual_zoo_system::counted;

use crate::Error;
use crate::document::Document;
use crate::python::is_space;

/// A request for the likelihood of a continuation of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The number of the document.
    pub document: usize,
    /// Tokens of the document, which the windows of a long text share.
    tokens: Arc<Vec<u32>>,
    /// Indices into `tokens`: the start of the context, the start of the continuation, and the end of the continuation.
    places: [usize; 3],
}

impl Request {
    /// Returns the context, which has at least one token.
    pub fn context(&self) -> &[u32] {
        let [start, cut, _] = self.places;
        &self.tokens[start..cut]
    }

    /// Returns the continuation, which has at least one token.
    pub fn continuation(&self) -> &[u32] {
        let [_, cut, end] = self.places;
        &self.tokens[cut..end]
    }
}

/// Receives a request. After an error, no further requests are made.
pub type Take<'a> = &'a mut dyn FnMut(Request) -> Result<(), Error>;

/// Returns false when no more requests should be made.
pub type GoesOn<'a> = &'a mut dyn FnMut() -> bool;

/// Makes token requests out of documents.
#[derive(Clone, Copy)]
pub struct Requests<'a> {
    /// The tokenizer of the model.
    pub tokenizer: &'a Tokenizer,
    /// Maximum number of tokens that the model reads.
    pub most: usize,
    /// Number of tokens that each window of a long text predicts, except the first window, which predicts `most`.
    pub stride: usize,
}

/// The number of bytes of a text that are tokenized at once if tokens are bytes.
const PART: usize = 1 << 20;

/// The number of windows that are made between two calls of [`GoesOn`].
const WINDOWS: usize = 1 << 12;

/// A context as tokens.
struct Read<'a> {
    text: &'a str,
    /// White space at the end of the context, which belongs to the continuation.
    space: &'a str,
    /// Number of the context's tokens.
    count: usize,
    /// The last tokens, as many as the model can read.
    last: Vec<u32>,
}

impl Requests<'_> {
    /// Makes the requests of the document `number` of `task`. An empty text has no requests.
    ///
    /// # Errors
    ///
    /// Returns an error if a continuation is empty or too long, or if a text has characters that the tokenizer does not
    /// know. Returns [`Error::Stopped`] if `goes_on` returns false, and the errors of `take`.
    pub fn of(
        &self,
        (task, number): (&str, usize),
        document: &Document,
        take: Take,
        goes_on: GoesOn,
    ) -> Result<(), Error> {
        let failed = |failure: Failure| match failure {
            Failure::Wrong(problem) => Error::Document {
                task: task.into(),
                document: number,
                problem,
            },
            Failure::Other(error) => error,
        };
        let made = match document {
            Document::Continue {
                context,
                continuation,
            } => self
                .read(context, goes_on)
                .and_then(|read| self.pair(number, &read, continuation, goes_on))
                .and_then(|request| Ok(take(request)?)),
            Document::Choose { pairs, .. } => self.pairs(number, pairs, take, goes_on),
            Document::Roll { text, .. } => self.roll(number, text, take, goes_on),
        };
        made.map_err(failed)
    }

    fn pairs(
        &self,
        document: usize,
        pairs: &[(Arc<String>, Arc<String>)],
        take: Take,
        goes_on: GoesOn,
    ) -> Result<(), Failure> {
        let mut before: Option<(&Arc<String>, Read)> = None;
        for (context, continuation) in pairs {
            let read = match before {
                Some((other, read)) if Arc::ptr_eq(other, context) => read,
                _ => self.read(context, goes_on)?,
            };
            take(self.pair(document, &read, continuation, goes_on)?)?;
            before = Some((context, read));
        }
        Ok(())
    }

    fn read<'a>(&self, context: &'a str, goes_on: GoesOn) -> Result<Read<'a>, Failure> {
        // White space at the end of a context often belongs to the next token.
        let (mut text, space) = context.split_at(context.trim_end_matches(is_space).len());
        if self.tokenizer.is_bytes() {
            // Text beyond the model's context need not be tokenized.
            text = &text[text.floor_char_boundary(text.len().saturating_sub(self.most + 1))..];
        }
        let mut last = match text {
            "" => vec![],
            text => self.encode(text, goes_on)?,
        };
        let count = last.len();
        last.drain(..count.saturating_sub(self.most));
        last.shrink_to_fit();
        Ok(Read {
            text,
            space,
            count,
            last,
        })
    }

    /// Makes the request for a continuation. Context and continuation are tokenized together, and the tokens after the
    /// context's tokens are the continuation. A context that is too long loses its beginning.
    fn pair(
        &self,
        document: usize,
        read: &Read,
        continuation: &str,
        goes_on: GoesOn,
    ) -> Result<Request, Failure> {
        let both = [read.text, read.space, continuation].concat();
        let both = self.encode(&both, goes_on)?;
        let mut continuation = &both[read.count.min(both.len())..];
        let first = [self.tokenizer.first_id()];
        let context = match read.last.as_slice() {
            [] => {
                continuation = continuation.strip_prefix(&first).unwrap_or(continuation);
                &first[..]
            }
            last => last,
        };
        if continuation.is_empty() || continuation.len() > self.most {
            return Err(Failure::Wrong(format!(
                "an answer of {}, but the model can score 1 to {}; leave it out",
                counted(continuation.len(), "token"),
                self.most
            )));
        }
        let room = self.most + 1 - continuation.len();
        let context = &context[context.len().saturating_sub(room)..];
        let tokens = [context, continuation].concat();
        Ok(Request {
            document,
            places: [0, context.len(), tokens.len()],
            tokens: tokens.into(),
        })
    }

    /// Makes the requests of a text. Each window predicts the next tokens, after as many earlier tokens as fit. The
    /// first window begins with the token between documents.
    fn roll(
        &self,
        document: usize,
        text: &str,
        take: Take,
        goes_on: GoesOn,
    ) -> Result<(), Failure> {
        // `kept` has the tokens that are still needed, beginning with index `from`. The first token is not predicted.
        let (mut kept, mut from) = (vec![self.tokenizer.first_id()], 0);
        let (mut done, mut count) = (1, 0);
        let mut rest = text;
        while !rest.is_empty() {
            let part = match self.tokenizer.is_bytes() {
                true => rest.floor_char_boundary(PART),
                false => rest.len(),
            };
            let (part, after) = rest.split_at(part);
            rest = after;
            kept.extend(self.encode(part, goes_on)?);
            let tokens = Arc::new(std::mem::take(&mut kept));
            let there = from + tokens.len();
            while done < there {
                let new = if done == 1 { self.most } else { self.stride };
                if done + new > there && !rest.is_empty() {
                    break;
                }
                let end = (done + new).min(there);
                let start = match done {
                    1 => 0,
                    // This window has as many tokens as the model reads, and a last token that is only predicted. The
                    // window no longer includes the token between documents.
                    _ => (end - 1).saturating_sub(self.most).max(1),
                };
                take(Request {
                    document,
                    tokens: tokens.clone(),
                    places: [start - from, done - from, end - from],
                })?;
                done = end;
                count += 1;
                if count % WINDOWS == 0 && !goes_on() {
                    return Err(Failure::Other(Error::Stopped));
                }
            }
            let needed = done.saturating_sub(self.most).max(from);
            if !rest.is_empty() {
                kept = tokens[needed - from..].to_vec();
                from = needed;
            }
        }
        Ok(())
    }

    fn encode(&self, text: &str, goes_on: GoesOn) -> Result<Vec<u32>, Failure> {
        let mut progress = |_| match goes_on() {
            true => Ok(()),
            false => Err(DataError::Stopped),
        };
        self.tokenizer
            .encode_with(text, &mut progress)
            .map_err(|error| match error {
                DataError::Stopped => Failure::Other(Error::Stopped),
                error => Failure::Wrong(error.to_string()),
            })
    }
}

/// The reason why there are no requests.
enum Failure {
    /// The document cannot be scored.
    Wrong(String),
    /// Another error.
    Other(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

#[cfg(test)]
mod tests {
    use residual_zoo_data::TokenizerConfig;

    use super::*;

    fn requests(tokenizer: &Tokenizer, most: usize, stride: usize) -> Requests<'_> {
        Requests {
            tokenizer,
            most,
            stride,
        }
    }

    fn bytes() -> Tokenizer {
        Tokenizer::train(&TokenizerConfig::Bytes, &[]).unwrap()
    }

    fn texts(requests: &[Request]) -> Vec<(String, String)> {
        let text = |ids: &[u32]| ids.iter().map(|&id| id as u8 as char).collect();
        let pairs = requests
            .iter()
            .map(|r| (text(r.context()), text(r.continuation())));
        pairs.collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected
            .iter()
            .map(|&(a, b)| (a.into(), b.into()))
            .collect()
    }

    /// Returns the requests of a document, or the problem with it.
    fn made(requests: &Requests, document: &Document) -> Result<Vec<Request>, String> {
        let mut all = Vec::new();
        let mut take = |request| {
            all.push(request);
            Ok(())
        };
        requests
            .of(("task", 0), document, &mut take, &mut || true)
            .map_err(|error| error.to_string())?;
        Ok(all)
    }

    fn roll(text: &str, most: usize, stride: usize) -> Vec<(String, String)> {
        let document = crate::document::roll(Arc::new(text.into()));
        texts(&made(&requests(&bytes(), most, stride), &document).unwrap())
    }

    fn pair(
        requests: &Requests,
        context: &str,
        continuation: &str,
    ) -> Result<(String, String), String> {
        let document = Document::Continue {
            context: context.into(),
            continuation: continuation.into(),
        };
        Ok(texts(&made(requests, &document)?).remove(0))
    }

    #[test]
    fn windows_predict_each_token_once() {
        // Each window predicts as many tokens as fit, as in lm_eval.
        assert_eq!(
            roll("abcdefgh", 4, 4),
            pairs(&[("\0", "abcd"), ("d", "efgh")])
        );
        assert_eq!(
            roll("abcdef", 4, 4),
            pairs(&[("\0", "abcd"), ("bcd", "ef")])
        );
        assert_eq!(roll("abc", 4, 4), pairs(&[("\0", "abc")]));
        // A smaller stride gives each token more context.
        assert_eq!(
            roll("abcdefgh", 4, 2),
            pairs(&[("\0", "abcd"), ("bcd", "ef"), ("def", "gh")])
        );
    }

    #[test]
    fn a_continuation_has_the_tokens_that_follow_its_context() {
        let tokenizer = bytes();
        let requests = requests(&tokenizer, 8, 8);
        let good = |context, continuation| pair(&requests, context, continuation).unwrap();
        assert_eq!(good("ab", " cd"), ("ab".into(), " cd".into()));
        // White space at the end of the context moves to the continuation, even if only Python counts it as white
        // space.
        assert_eq!(good("ab ", "cd"), ("ab".into(), " cd".into()));
        assert_eq!(good("ab\x1c", "cd"), ("ab".into(), "\x1ccd".into()));
        assert_eq!(good("", "cd"), ("\0".into(), "cd".into()));
        assert_eq!(good(" ", "cd"), ("\0".into(), " cd".into()));
        // The token that stands for an empty context is not predicted after itself.
        assert_eq!(good("", "\0cd"), ("\0".into(), "cd".into()));
        // Eight tokens are read, and the ninth is predicted.
        assert_eq!(good("abcdefghij", "xyz"), ("efghij".into(), "xyz".into()));
        assert_eq!(
            good("abcdefghij", "12345678"),
            ("j".into(), "12345678".into())
        );
        assert!(pair(&requests, "a", "123456789").is_err());
        assert!(pair(&requests, "a", "").is_err());
    }

    #[test]
    fn choices_share_their_context() {
        let tokenizer = bytes();
        let requests = requests(&tokenizer, 8, 8);
        let [context, other, a, b] = ["ab ", "ab", "c", "dd"].map(|text| Arc::new(text.to_owned()));
        let document = Document::Choose {
            pairs: vec![(context.clone(), a), (context, b.clone()), (other, b)],
            lengths: vec![1, 2, 2],
            gold: 0,
        };
        assert_eq!(
            texts(&made(&requests, &document).unwrap()),
            pairs(&[("ab", " c"), ("ab", " dd"), ("ab", "dd")])
        );
    }

    #[test]
    fn windows_of_a_long_text_are_those_of_the_whole() {
        let text: String = (0..300_000).map(|i| format!("{i} é日 ")).collect();
        assert!(text.len() > 3 * PART);
        let bytes_of = |ids: &[u32]| ids.iter().map(|id| *id as u8).collect::<Vec<u8>>();
        let whole = [&[0], text.as_bytes()].concat();
        let tokenizer = bytes();
        for (most, stride) in [(64, 64), (64, 7), (1000, 1000), (PART + 10, PART + 10)] {
            let document = crate::document::roll(Arc::new(text.clone()));
            let all = made(&requests(&tokenizer, most, stride), &document).unwrap();
            let mut done = 1;
            for request in &all {
                let new = request.continuation().len();
                let context = request.context().len();
                assert_eq!(bytes_of(request.continuation()), whole[done..done + new]);
                assert_eq!(bytes_of(request.context()), whole[done - context..done]);
                let expected = match done {
                    1 => 1,
                    _ => (most + 1 - new).min(done - 1),
                };
                assert_eq!(context, expected);
                done += new;
                assert!(
                    new == if context == 1 && done <= most + 1 {
                        most
                    } else {
                        stride
                    } || done == whole.len()
                );
            }
            assert_eq!(done, whole.len());
        }
    }

    #[test]
    fn an_empty_text_has_no_requests() {
        assert_eq!(roll("", 4, 4), []);
    }

    #[test]
    fn the_making_of_requests_can_be_stopped() {
        let tokenizer = bytes();
        let document = crate::document::roll(Arc::new("x".repeat(3 * PART)));
        let (mut asked, mut taken) = (0, 0);
        let mut goes_on = || {
            asked += 1;
            asked < 3
        };
        let mut take = |_| {
            taken += 1;
            Ok(())
        };
        let made = requests(&tokenizer, 4, 1).of(("t", 0), &document, &mut take, &mut goes_on);
        assert!(matches!(made, Err(Error::Stopped)));
        assert!(taken <= 2 * WINDOWS, "{taken}");
    }
}
