//! Documents as tokens.

use std::sync::Arc;

use residual_zoo_data::{DataError, Tokenizer};

use crate::task::Document;

/// A continuation of a context whose likelihood is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The number of the document.
    pub document: usize,
    /// Tokens of the document, which the windows of a long text share.
    tokens: Arc<[u32]>,
    /// Where the context begins, where the continuation begins, and its end.
    places: [usize; 3],
}

impl Request {
    /// The tokens before, at least one.
    pub fn context(&self) -> &[u32] {
        let [start, cut, _] = self.places;
        &self.tokens[start..cut]
    }

    /// The tokens, at least one.
    pub fn continuation(&self) -> &[u32] {
        let [_, cut, end] = self.places;
        &self.tokens[cut..end]
    }
}

/// How texts become requests.
pub struct Requests<'a> {
    /// The tokenizer of the model.
    pub tokenizer: &'a Tokenizer,
    /// The most tokens that the model reads.
    pub most: usize,
    /// Tokens of a long text that each window predicts.
    pub stride: usize,
}

impl Requests<'_> {
    /// The requests of a document.
    ///
    /// # Errors
    ///
    /// What is wrong with the document: a text that the tokenizer does not know, or that is too long.
    pub fn of(&self, number: usize, document: &Document) -> Result<Vec<Request>, String> {
        match document {
            Document::Continue {
                context,
                continuation,
            } => Ok(vec![self.pair(number, context, continuation)?]),
            Document::Choose { pairs, .. } => {
                let requests = pairs
                    .iter()
                    .map(|(context, choice)| self.pair(number, context, choice));
                requests.collect()
            }
            Document::Roll { text, .. } => self.roll(number, text),
        }
    }

    /// The request of a continuation. It has the tokens of both together that follow those of the context. A context
    /// that is too long loses its beginning.
    fn pair(&self, document: usize, context: &str, continuation: &str) -> Result<Request, String> {
        // White space at the end of a context often belongs to the next token.
        let (context, space) = context.split_at(context.trim_end().len());
        let both = self.encode(&format!("{context}{space}{continuation}"))?;
        let before = match context {
            "" => vec![],
            context => self.encode(context)?,
        };
        let cut = before.len().min(both.len());
        let (mut context, mut continuation) = (before, both[cut..].to_vec());
        if context.is_empty() {
            let first = self.tokenizer.first_id();
            context = vec![first];
            if continuation.first() == Some(&first) {
                continuation.remove(0);
            }
        }
        if continuation.is_empty() || continuation.len() > self.most {
            return Err(format!(
                "an answer of {} tokens, but the model can score 1 to {}; leave it out",
                continuation.len(),
                self.most
            ));
        }
        let room = self.most + 1 - continuation.len();
        let start = context.len().saturating_sub(room);
        let places = [start, context.len(), context.len() + continuation.len()];
        context.append(&mut continuation);
        Ok(Request {
            document,
            tokens: context.into(),
            places,
        })
    }

    /// The requests of a text. Each window predicts the next tokens, after as many tokens before as there is room for;
    /// the first one begins with the token between documents.
    fn roll(&self, document: usize, text: &str) -> Result<Vec<Request>, String> {
        let mut tokens = self.encode(text)?;
        let first = self.tokenizer.first_id();
        tokens.insert(0, first);
        let tokens: Arc<[u32]> = tokens.into();
        let mut requests = Vec::new();
        // The first token is not predicted.
        let mut done = 1;
        while done < tokens.len() {
            let new = if done == 1 { self.most } else { self.stride };
            let end = (done + new).min(tokens.len());
            let start = match done {
                1 => 0,
                // The window has as many tokens as the model reads, and one more that is only predicted. It does not
                // have the first one.
                _ => (end - 1).saturating_sub(self.most).max(1),
            };
            requests.push(Request {
                document,
                tokens: tokens.clone(),
                places: [start, done, end],
            });
            done = end;
        }
        match requests.is_empty() {
            true => Err("an empty text".into()),
            false => Ok(requests),
        }
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        self.tokenizer
            .encode(text)
            .map_err(|e: DataError| e.to_string())
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

    fn roll(text: &str, most: usize, stride: usize) -> Vec<(String, String)> {
        texts(&requests(&bytes(), most, stride).roll(0, text).unwrap())
    }

    #[test]
    fn windows_predict_each_token_once() {
        // As lm_eval's windows, which predict as many tokens as fit.
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
        let pair = |context, continuation| {
            texts(&[requests.pair(0, context, continuation).unwrap()]).remove(0)
        };
        assert_eq!(pair("ab", " cd"), ("ab".into(), " cd".into()));
        // Space at the end of the context moves to the continuation.
        assert_eq!(pair("ab ", "cd"), ("ab".into(), " cd".into()));
        assert_eq!(pair("", "cd"), ("\0".into(), "cd".into()));
        // Eight tokens are read, and the ninth is predicted.
        assert_eq!(pair("abcdefghij", "xyz"), ("efghij".into(), "xyz".into()));
        assert!(requests.pair(0, "a", "123456789").is_err());
        assert!(requests.pair(0, "a", "").is_err());
    }
}
