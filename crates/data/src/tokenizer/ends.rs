//! The tokens that begin and end a text.

use std::collections::BTreeSet;

use super::{Kind, Tokenizer};
use crate::DataError;

/// The token that GPT-2, GPT-NeoX and others put between documents.
const END_OF_TEXT: &str = "<|endoftext|>";

/// The ids with which a model begins and ends a text, if they differ from the defaults of [`Tokenizer::with_ends`]; and
/// other special ids.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends {
    begin: Option<u32>,
    end: Option<u32>,
    /// Further ids that end a text, in ascending order. Generation ends at them too.
    more: Vec<u32>,
    /// The padding id.
    pub(super) pad: Option<u32>,
    /// The id of unknown text.
    pub(super) unknown: Option<u32>,
}

impl Ends {
    /// Returns the ids `begin` and `end`, if they are set, with their field names in a tokenizer file.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let all = [("begin", self.begin), ("end", self.end)];
        all.into_iter().filter_map(|(name, id)| Some((name, id?)))
    }
}

impl Tokenizer {
    /// Returns the same tokenizer with these ids for the tokens that begin and end a text. For `end`, `None` means
    /// `<|endoftext|>`. For `begin`, `None` means the token that ends a text.
    ///
    /// # Errors
    ///
    /// Returns an error for an id without a token.
    pub fn with_ends(self, begin: Option<u32>, end: Option<u32>) -> Result<Self, DataError> {
        if let Some(id) = begin.into_iter().chain(end).find(|id| !self.has_token(*id)) {
            let problem = format!("no token has the id {id}, so it cannot begin or end a text");
            return Err(DataError::tokenizer("of a model", problem));
        }
        // An id that equals the default is not set, so that tokenizers with the same ids are equal.
        let end = end.filter(|end| self.token_id(END_OF_TEXT) != Some(*end));
        let mut tokenizer = self;
        (tokenizer.ends.begin, tokenizer.ends.end) = (None, end);
        tokenizer.ends.begin = begin.filter(|begin| tokenizer.end_of_text() != Some(*begin));
        Ok(tokenizer)
    }

    /// Returns the same tokenizer with the ids that another project uses for padding and for unknown text. An export
    /// writes them; the zoo itself does not use them. Ids without a token are left out.
    #[must_use]
    pub fn with_names(self, pad: Option<u32>, unknown: Option<u32>) -> Self {
        let [pad, unknown] = [pad, unknown].map(|id| id.filter(|id| self.has_token(*id)));
        let mut tokenizer = self;
        (tokenizer.ends.pad, tokenizer.ends.unknown) = (pad, unknown);
        tokenizer
    }

    /// Returns the same tokenizer with these ids for further tokens that end a text, such as the end of a turn in a
    /// chat. Generation ends at them too. Ids without a token are left out.
    #[must_use]
    pub fn with_more_ends(self, more: impl IntoIterator<Item = u32>) -> Self {
        let end = self.end_of_text();
        let more = more.into_iter().filter(|id| end != Some(*id));
        let more: BTreeSet<u32> = more.filter(|id| self.has_token(*id)).collect();
        let mut tokenizer = self;
        tokenizer.ends.more = more.into_iter().collect();
        tokenizer
    }

    /// Returns the ids of further tokens that end a text, in ascending order.
    pub fn more_ends(&self) -> &[u32] {
        &self.ends.more
    }

    /// Whether the token `id` ends a text.
    pub fn ends_text(&self, id: u32) -> bool {
        self.end_of_text() == Some(id) || self.ends.more.binary_search(&id).is_ok()
    }

    /// Returns the padding id, if there is one.
    pub fn pad(&self) -> Option<u32> {
        self.ends.pad
    }

    /// Returns the id of unknown text, if there is one.
    pub fn unknown(&self) -> Option<u32> {
        self.ends.unknown
    }

    /// Returns the id that precedes a text: [`begin_of_text`](Self::begin_of_text), or 0 if there is none.
    pub fn first_id(&self) -> u32 {
        self.begin_of_text().unwrap_or(0)
    }

    /// Returns the id of the token that begins a text: the id that is set, or [`end_of_text`](Self::end_of_text).
    pub fn begin_of_text(&self) -> Option<u32> {
        self.ends.begin.or_else(|| self.end_of_text())
    }

    /// Returns the id of the token that ends a text: the id that is set, or the id of `<|endoftext|>`, if there is one.
    pub fn end_of_text(&self) -> Option<u32> {
        self.ends.end.or_else(|| self.token_id(END_OF_TEXT))
    }

    /// Returns the id of a token of a `tokenizer.json`.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        match self.kind() {
            Kind::Hf(hf) => hf.id(token),
            _ => None,
        }
    }

    /// Returns the text of `id`, if it is `<|endoftext|>` or an added token of a `tokenizer.json`.
    pub fn special_token(&self, id: u32) -> Option<String> {
        match self.kind() {
            Kind::Hf(hf) if hf.id(END_OF_TEXT) == Some(id) => Some(END_OF_TEXT.to_owned()),
            Kind::Hf(hf) => hf.added(id),
            _ => None,
        }
    }

    /// Whether a token has this id.
    pub fn has_token(&self, id: u32) -> bool {
        match self.kind() {
            Kind::Hf(hf) => hf.has(id),
            kind => (id as usize) < kind.tokens(),
        }
    }
}
