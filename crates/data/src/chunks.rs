//! Splits a text into pieces that can be tokenized separately.

/// Splits `text` into consecutive pieces of at least `size` bytes; only the last may be shorter. Each piece but the
/// first begins with white space that follows another kind of character.
///
/// GPT-2's pre-tokenizer splits at every such position and never looks back across it.
pub(crate) fn chunks(text: &str, size: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (chunk, tail) = rest.split_at(cut(rest, size.max(1)).unwrap_or(rest.len()));
        rest = tail;
        Some(chunk)
    })
}

/// Returns the first position at or after byte `from` where `text` can be cut.
pub(crate) fn cut(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    // An ASCII byte is never part of a longer character.
    (from..bytes.len()).find(|&i| {
        bytes[i].is_ascii_whitespace()
            && text[..i]
                .chars()
                .next_back()
                .is_some_and(|c| !c.is_whitespace())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random_text;

    #[test]
    fn chunks_are_cut_before_white_space_and_lose_nothing() {
        for seed in 0..200 {
            let text = random_text(seed, 300);
            let pieces: Vec<_> = chunks(&text, 20).collect();
            assert_eq!(pieces.concat(), text);
            for pair in pieces.windows(2) {
                assert!(pair[0].len() >= 20);
                assert!(pair[0].ends_with(|c: char| !c.is_whitespace()), "{pair:?}");
                assert!(pair[1].starts_with(char::is_whitespace), "{pair:?}");
            }
        }
        assert_eq!(chunks("", 5).count(), 0);
        assert_eq!(chunks(&"x".repeat(1000), 5).count(), 1);
    }
}
