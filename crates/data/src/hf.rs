//! Tokenizers of the `tokenizers` crate, trained by the zoo or read from a `tokenizer.json`.

mod file;

use std::num::NonZero;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use residual_zoo_system::memory::{memory, own_memory};
use residual_zoo_system::panics::caught;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::{
    AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Trainer,
};

use crate::DataError;
use crate::chunks::chunks;
use crate::meanwhile::{State, meanwhile, unless_stopped};
use crate::progress::{OnProgress, Stage, report};

/// Bytes of text tokenized at once. The crate needs about 100 times as much memory.
pub(crate) const CHUNK: usize = 1 << 13;
/// Number of chunks that are distributed among the threads at a time.
const GROUP: usize = 256;
/// Maximum number of bytes of a word from which merges are learned. Longer words are cut.
const LONGEST_WORD: usize = 1 << 12;
/// Maximum number of bytes between two places where a text can be cut, for a tokenizer that reads texts in chunks.
pub(crate) const LONGEST_PIECE: usize = if cfg!(test) { 1 << 16 } else { 1 << 22 };
/// Bytes of text read between two checks of the available memory.
const CHECKED: usize = 1 << 25;
/// Allowed vocabulary sizes. Every byte needs a token, and the trainer reserves memory for the
/// vocabulary.
pub(crate) const VOCAB_SIZES: RangeInclusive<usize> = 256..=1 << 20;

pub(crate) struct Hf {
    inner: tokenizers::Tokenizer,
    /// The JSON that `inner` was read from, verbatim, because serializing `inner` may round
    /// numbers.
    json: String,
    vocab_size: usize,
    separable: bool,
}

impl Hf {
    /// Reads the content of a `tokenizer.json`. `origin` names the file in errors. Building a large tokenizer takes
    /// seconds, so the work is abandoned when the user stops the process.
    pub(crate) fn from_json(json: String, origin: &str) -> Result<Self, DataError> {
        let origin = origin.to_owned();
        unless_stopped(move || Self::build(json, &origin))?
    }

    fn build(json: String, origin: &str) -> Result<Self, DataError> {
        let failed = |e: &dyn std::fmt::Display| DataError::tokenizer(origin, e);
        let inner = contain(|| file::read(&json)).map_err(|e| {
            failed(&format!(
                "cannot be read as a Hugging Face tokenizer.json: {e}"
            ))
        })?;
        let max = inner.get_vocab(true).into_values().max();
        let Some(vocab_size) = max.map(|id| id as usize + 1) else {
            return Err(failed(&"its vocabulary is empty"));
        };
        let most = *VOCAB_SIZES.end();
        if vocab_size > most {
            let largest = vocab_size - 1;
            let problem = format!("it has the token id {largest}; ids must be below {most}");
            return Err(failed(&problem));
        }
        let separable = is_separable(&inner);
        Ok(Self {
            inner,
            json,
            vocab_size,
            separable,
        })
    }

    /// Trains a byte-level BPE with GPT-2's pre-tokenizer on `pieces`, which have `all` bytes in total and can be
    /// tokenized separately. `vocab_size` is in [`VOCAB_SIZES`].
    pub(crate) fn train(
        vocab_size: usize,
        pieces: impl Iterator<Item = Result<String, DataError>> + Send,
        all: usize,
        progress: OnProgress,
    ) -> Result<Self, DataError> {
        let failed = |e| DataError::tokenizer("training", e);
        let byte_level = ByteLevel::new(false, false, true);
        let mut inner = tokenizers::Tokenizer::new(BPE::default());
        inner
            .with_pre_tokenizer(Some(PreTokenizerWrapper::from(byte_level)))
            .with_post_processor(Some(PostProcessorWrapper::from(byte_level)))
            .with_decoder(Some(DecoderWrapper::from(byte_level)));
        let mut trainer = BpeTrainer::builder()
            .vocab_size(vocab_size)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .show_progress(false)
            .build();
        let (mut done, mut problem) = (0, None);
        let (before, mut checked) = (own_memory(), 0);
        let fits = || {
            check_merges(
                own_memory(),
                before,
                memory().map(|memory| memory.available.bytes),
            )
        };
        let pieces = pieces.map_while(|piece| {
            let reported = piece.and_then(|piece| {
                done += piece.len();
                if done - checked > CHECKED {
                    checked = done;
                    fits()?;
                }
                // The actual training follows the last piece.
                let stage = if done < all {
                    Stage::Learning
                } else {
                    Stage::Training
                };
                report(progress, stage, done, all).map(|()| piece)
            });
            reported.map_err(|error| problem = Some(error)).ok()
        });
        let words = |piece: &str| {
            let mut words = PreTokenizedString::from(piece);
            byte_level.pre_tokenize(&mut words)?;
            let words = words.get_splits(OffsetReferential::Original, OffsetType::Byte);
            Ok(words.into_iter().flat_map(|(word, ..)| cut(word)).collect())
        };
        let counted = trainer.feed(pieces, words);
        if let Some(problem) = problem {
            return Err(problem);
        }
        counted.map_err(failed)?;
        fits()?;
        let train = move |_: &State| {
            let mut model = BPE::default();
            contain(|| trainer.train(&mut model)).map(|_| model)
        };
        let trained = meanwhile(train, |_| report(progress, Stage::Training, all, all))?;
        let model = trained.unwrap_or_else(|| Err(PANICKED.into()));
        inner.with_model(model.map_err(failed)?);
        Self::from_json(inner.to_string(false).map_err(failed)?, "training")
    }

    /// Whether a text keeps its tokens if it is cut before white space that follows another kind of character.
    pub(crate) fn is_separable(&self) -> bool {
        self.separable
    }

    pub(crate) fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Returns the id of a token.
    pub(crate) fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Whether a token has this id.
    pub(crate) fn has(&self, id: u32) -> bool {
        self.inner.id_to_token(id).is_some()
    }

    /// Returns the text of an added token.
    pub(crate) fn added(&self, id: u32) -> Option<String> {
        let mut added = self.inner.get_added_tokens_decoder();
        Some(added.remove(&id)?.content)
    }

    pub(crate) fn json(&self) -> &str {
        &self.json
    }

    /// Returns the ids of `text`. The work is done in a thread of its own, because it cannot be interrupted within a
    /// piece. If `progress` fails, the thread ends after the pieces that it has begun.
    pub(crate) fn encode(
        self: &Arc<Self>,
        text: String,
        progress: &mut dyn FnMut(usize) -> Result<(), DataError>,
    ) -> Result<Vec<u32>, DataError> {
        let (hf, bytes) = (self.clone(), text.len());
        let chunk = if self.separable { CHUNK } else { usize::MAX };
        let ids = meanwhile(
            move |state| hf.encode_by(&text, chunk, state),
            &mut *progress,
        )?;
        let ids = ids.unwrap_or_else(|| Err(DataError::tokenizer("encoding", PANICKED)))?;
        progress(bytes)?;
        Ok(ids)
    }

    fn encode_by(&self, text: &str, chunk: usize, state: &State) -> Result<Vec<u32>, DataError> {
        let mut ids = Vec::new();
        let mut pieces = chunks(text, chunk);
        loop {
            let group: Vec<&str> = pieces.by_ref().take(GROUP).collect();
            if group.is_empty() {
                return Ok(ids);
            }
            if self.separable && group.iter().any(|piece| piece.len() > LONGEST_PIECE) {
                return Err(uncut());
            }
            for encoded in self.encode_group(&group, state) {
                ids.extend(encoded?);
            }
        }
    }

    /// Returns the ids of each piece. Starts threads that encode several pieces at a time. In a shared thread pool, a
    /// slow piece would delay other work.
    fn encode_group(&self, group: &[&str], state: &State) -> Vec<Result<Vec<u32>, DataError>> {
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(piece) = group.get(i) else {
                    return;
                };
                let ids = match state.is_left() {
                    true => Err(DataError::Stopped),
                    false => self.encode_piece(piece),
                };
                state.add(piece.len());
                done.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push((i, ids));
            }
        };
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        thread::scope(|scope| {
            for _ in 1..threads.min(group.len()) {
                // If no further thread can be started, the existing threads do all of the work.
                thread::Builder::new().spawn_scoped(scope, work).ok();
            }
            work();
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_unstable_by_key(|(i, _)| *i);
        done.into_iter().map(|(_, ids)| ids).collect()
    }

    fn encode_piece(&self, piece: &str) -> Result<Vec<u32>, DataError> {
        let encoding = contain(|| self.inner.encode_fast(piece, false));
        let encoding = encoding.map_err(|e| DataError::tokenizer("encoding", e))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Decodes `ids`. Ids without a token have no text.
    pub(crate) fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        contain(|| self.inner.decode(ids, false)).map_err(|e| DataError::tokenizer("decoding", e))
    }
}

/// Refuses to learn merges if they would take more memory than is available. `before` and `now` are the memory of this
/// process, in bytes, before and after it collected the words. `available` is the number of bytes that the process may
/// still use.
fn check_merges(
    now: Option<u64>,
    before: Option<u64>,
    available: Option<u64>,
) -> Result<(), DataError> {
    /// Minimum ratio of the merges' memory to the words' memory. Measured: 5 to 6 for random words.
    const MORE: u64 = 4;
    let (Some(now), Some(before), Some(available)) = (now, before, available) else {
        return Ok(());
    };
    let needed = now.saturating_sub(before).saturating_mul(MORE);
    if needed <= available {
        return Ok(());
    }
    let [needed, available] = [needed, available].map(|bytes| bytes as f64 / f64::from(1 << 30));
    let problem = format!(
        "the text has so many distinct words that learning merges takes {needed:.1} GiB more, but {available:.1} GiB are \
         available; use `--tokenizer bytes`, or a tokenizer.json, such as from a run on a part of the text"
    );
    Err(DataError::tokenizer("training", problem))
}

/// Returns the characters that stand for bytes in a byte-level tokenizer, each with its byte. In GPT-2's table,
/// printable characters stand for themselves, and characters from U+0100 on stand for the other bytes.
pub(crate) fn bytes() -> impl Iterator<Item = (char, u8)> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut other = 0x100;
    (0..=u8::MAX).map(move |byte| match is_printable(byte) {
        true => (byte.into(), byte),
        false => {
            other += 1;
            (char::from_u32(other - 1).unwrap_or_default(), byte)
        }
    })
}

/// Cuts a word into the parts from which merges are learned, because the time of merging grows with the square of a
/// word's length.
fn cut(word: &str) -> Vec<String> {
    let mut rest = word;
    let mut parts = Vec::new();
    while rest.len() > LONGEST_WORD {
        let (part, tail) = rest.split_at(rest.floor_char_boundary(LONGEST_WORD));
        parts.push(part.to_owned());
        rest = tail;
    }
    parts.push(rest.to_owned());
    parts
}

const PANICKED: &str = "the `tokenizers` crate panicked with the settings of this tokenizer; \
                        use another tokenizer.json";

const SLOW: &str = "a regular expression of this tokenizer takes too long on this text; \
                    give another text or another tokenizer.json";

/// Runs `call`, which calls the `tokenizers` crate, and turns a panic into an error.
///
/// The crate panics on some texts with some files. For example, a regular expression panics when it gives up after ten
/// million steps. A `Replace` whose pattern matches between two characters leaves offsets at which another normalizer
/// may panic. The module `file` refuses files that are known to cause panics; this function catches all other panics.
fn contain<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> tokenizers::Result<T> {
    // A panic leaves the tokenizer usable, because only its caches change, and they are updated all at once.
    caught(call).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>();
        let is_slow = message.is_some_and(|message| message.contains("retry-limit"));
        Err(if is_slow { SLOW } else { PANICKED }.into())
    })
}

/// Returns the error for a text that cannot be cut.
pub(crate) fn uncut() -> DataError {
    let problem = format!(
        "the text has more than {} MiB without white space, which take too much memory; use `--tokenizer bytes`, or \
         break these lines",
        LONGEST_PIECE >> 20
    );
    DataError::tokenizer("encoding", problem)
}

/// Whether tokenizing the chunks of a text separately gives the tokens of the whole text.
fn is_separable(tokenizer: &tokenizers::Tokenizer) -> bool {
    let normalizes_apart = matches!(
        tokenizer.get_normalizer(),
        None | Some(NormalizerWrapper::NFC(_))
    );
    let splits_apart = matches!(
        tokenizer.get_pre_tokenizer(),
        Some(PreTokenizerWrapper::ByteLevel(b)) if b.use_regex && !b.add_prefix_space
    );
    // A text is cut before white space that follows another kind of character. At a cut, a token that must be a single
    // word would not see the word before it.
    let spans_a_cut = |content: &str| content.trim_start().contains(char::is_whitespace);
    let looks_back =
        |token: &AddedToken| token.single_word && token.content.starts_with(char::is_whitespace);
    normalizes_apart
        && splits_apart
        && tokenizer
            .get_added_tokens_decoder()
            .values()
            .all(|token| !token.rstrip && !spans_a_cut(&token.content) && !looks_back(token))
}

#[cfg(test)]
mod tests {
    use residual_zoo_system::Blame as _;

    use super::*;
    use crate::testing::random_text;

    const TEXT: &str = "It's the tale of the cat and the hat, the cat's hat.\r\n\r\nThe end.  ";

    fn train(vocab_size: usize, text: &str) -> Result<Hf, DataError> {
        let pieces = std::iter::once(Ok(text.to_owned()));
        Hf::train(vocab_size, pieces, text.len(), &mut |_, _, _| true)
    }

    fn ids(hf: &Hf, text: &str, chunk: usize) -> Vec<u32> {
        hf.encode_by(text, chunk, &State::default()).unwrap()
    }

    #[test]
    fn chunks_have_the_tokens_of_the_whole_text() {
        let bpe = train(300, TEXT).unwrap();
        assert!(bpe.separable);
        for seed in 0..200 {
            let text = random_text(seed, 400) + TEXT;
            let [cut, whole] = [7, usize::MAX].map(|chunk| ids(&bpe, &text, chunk));
            assert_eq!(cut, whole, "{text:?}");
        }
    }

    #[test]
    fn training_is_deterministic() {
        let text = (0..20)
            .map(|seed| random_text(seed, 500))
            .collect::<String>();
        let first = train(700, &text).unwrap();
        for _ in 0..3 {
            assert_eq!(train(700, &text).unwrap().json(), first.json());
        }
    }

    #[test]
    fn truncation_and_padding_of_a_file_are_ignored() {
        let mut bpe = train(300, TEXT).unwrap();
        let params = tokenizers::TruncationParams {
            max_length: 2,
            ..Default::default()
        };
        bpe.inner.with_truncation(Some(params)).unwrap();
        bpe.inner.with_padding(Some(tokenizers::PaddingParams {
            strategy: tokenizers::PaddingStrategy::Fixed(100),
            ..Default::default()
        }));
        let file = Hf::from_json(bpe.inner.to_string(true).unwrap(), "file").unwrap();
        assert_eq!(file.decode(&ids(&file, TEXT, CHUNK)).unwrap(), TEXT);
    }

    #[test]
    fn a_file_with_dropout_is_refused() {
        let json = train(300, TEXT).unwrap().json;
        let with = |dropout| {
            let file = json.replace("\"dropout\":null", &format!("\"dropout\":{dropout}"));
            Hf::from_json(file, "file")
        };
        assert!(with("0.0").is_ok());
        let error = with("0.1").err().unwrap();
        assert!(error.is_bad_input() && error.to_string().contains("`dropout`"));
    }

    #[test]
    fn merges_that_do_not_fit_into_memory_are_refused_with_a_remedy() {
        let gib = |count: u64| Some(count << 30);
        check_merges(gib(2), gib(1), gib(4)).unwrap();
        check_merges(gib(1), gib(2), gib(0)).unwrap();
        check_merges(None, gib(1), gib(0)).unwrap();
        let error = check_merges(gib(3), gib(1), gib(7)).unwrap_err();
        assert!(error.is_bad_input(), "{error}");
        let error = error.to_string();
        assert!(
            error.contains("8.0 GiB more, but 7.0 GiB") && error.contains("--tokenizer bytes"),
            "{error}"
        );
    }

    #[test]
    fn a_pattern_that_takes_exponential_time_is_an_error() {
        let json = r#"{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Split",
            "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": false},
            "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}"#;
        let tokenizer = Hf::from_json(json.into(), "file").unwrap();
        let text = "a".repeat(40) + "b";
        let error = tokenizer.encode_piece(&text).unwrap_err();
        assert!(error.is_bad_input(), "{error}");
        assert!(error.to_string().contains("takes too long"), "{error}");
    }

    #[test]
    fn truncated_files_are_errors() {
        let json = train(300, TEXT).unwrap().json;
        let ends = (0..json.len()).step_by(7);
        for end in ends.filter(|&end| json.is_char_boundary(end)) {
            let error = Hf::from_json(json[..end].into(), "file").err().unwrap();
            assert!(error.is_bad_input() && error.to_string().lines().count() == 1);
        }
    }

    #[test]
    fn tokens_across_a_cut_forbid_chunks() {
        let mut bpe = train(300, TEXT).unwrap();
        for (content, separable) in [("<end>", true), ("   ", true), (" a", true), ("a b", false)] {
            bpe.inner.add_tokens(&[AddedToken::from(content, false)]);
            assert_eq!(is_separable(&bpe.inner), separable, "{content:?}");
        }
    }

    #[test]
    fn added_tokens_with_any_flags_have_the_ids_of_the_whole_text() {
        let base = train(300, TEXT).unwrap().json;
        let contents = [
            "cat", " cat", "\n", "  ", " ", "the cat", "c", "hat.", " \u{e9}", "t\n",
        ];
        let (mut apart, mut together) = (0, 0);
        for seed in 0..600u64 {
            let draw = |bit: u64| crate::derive_seed(seed, &[bit]) & 1 == 0;
            let content = contents[seed as usize % contents.len()];
            let mut bpe = Hf::from_json(base.clone(), "base").unwrap();
            let token = AddedToken::from(content, draw(0))
                .single_word(draw(1))
                .lstrip(draw(2))
                .rstrip(draw(3))
                .normalized(draw(4));
            let other = AddedToken::from(contents[seed as usize * 7 % 10], false).lstrip(draw(5));
            bpe.inner.add_tokens(&[token, other]);
            match is_separable(&bpe.inner) {
                true => apart += 1,
                false => {
                    together += 1;
                    continue;
                }
            }
            let words = ["the", "cat", "cats", "hat.", "\u{e9}t\u{e9}", "c"];
            let gaps = [" ", "  ", "\n", " \n ", "", "."];
            let draw = |i: u64, of: usize| crate::derive_seed(seed, &[9, i]) as usize % of;
            let text: String = (0..60)
                .map(|i| words[draw(2 * i, 6)].to_owned() + gaps[draw(2 * i + 1, 6)])
                .collect();
            let [cut, whole] = [5, usize::MAX].map(|chunk| ids(&bpe, &text, chunk));
            assert_eq!(cut, whole, "{text:?} {content:?}");
        }
        assert!(apart > 50 && together > 50, "{apart} {together}");
    }

    #[test]
    fn a_single_word_that_begins_with_white_space_forbids_chunks() {
        let mut bpe = train(300, TEXT).unwrap();
        bpe.inner
            .add_tokens(&[AddedToken::from(" cat", false).single_word(true)]);
        assert!(!is_separable(&bpe.inner));
        // In the whole text, the token only occurs after a character that is not part of a word.
        let id = bpe.id(" cat").unwrap();
        let found = |text: &str| ids(&bpe, text, CHUNK).contains(&id);
        assert!(found(". cat") && !found("the cat"));
    }
}
