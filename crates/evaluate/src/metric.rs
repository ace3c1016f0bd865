//! Metrics of a task, with their standard errors.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::document::Document;
use crate::score::Score;
use crate::task::{Kind, Task};

/// The scores of a document: a line of the samples file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The number of the document.
    pub doc_id: usize,
    /// The log-likelihoods of the continuations, in nats. A text has one, the sum over its windows.
    pub log_likelihoods: Vec<f64>,
    /// For each continuation, whether it consists of the most likely tokens.
    pub is_greedy: Vec<bool>,
    /// Number of predicted tokens.
    pub tokens: usize,
    /// Whether the document is a text, with one log-likelihood for all its windows.
    #[serde(skip)]
    of_text: bool,
}

impl Sample {
    /// Makes a sample without scores. For a text without tokens, this sample is already complete.
    pub(crate) fn new(doc_id: usize, document: &Document) -> Self {
        let of_text = matches!(document, Document::Roll { .. });
        Self {
            doc_id,
            log_likelihoods: if of_text { vec![0.0] } else { vec![] },
            is_greedy: if of_text { vec![true] } else { vec![] },
            tokens: 0,
            of_text,
        }
    }

    /// Adds the score of the next request, which predicts `tokens` tokens.
    pub(crate) fn add(&mut self, score: &Score, tokens: usize) {
        self.tokens += tokens;
        match (
            self.of_text,
            self.log_likelihoods.first_mut(),
            self.is_greedy.first_mut(),
        ) {
            (true, Some(sum), Some(is_greedy)) => {
                *sum += score.log_likelihood;
                *is_greedy &= score.is_greedy;
            }
            _ => {
                self.log_likelihoods.push(score.log_likelihood);
                self.is_greedy.push(score.is_greedy);
            }
        }
    }

    /// Whether all numbers are finite.
    pub(crate) fn is_finite(&self) -> bool {
        self.log_likelihoods.iter().all(|value| value.is_finite())
    }

    /// Whether the sample can belong to `document`.
    pub(crate) fn is_of(&self, document: &Document) -> bool {
        let (count, least) = match document {
            Document::Choose { pairs, .. } => (pairs.len(), 1),
            Document::Continue { .. } => (1, 1),
            Document::Roll { .. } => (1, 0),
        };
        let is_logarithm = |value: &f64| value.is_finite() && *value <= 1e-3;
        self.log_likelihoods.len() == count
            && self.is_greedy.len() == count
            && self.tokens >= least
            && self.log_likelihoods.iter().all(is_logarithm)
    }
}

/// Converts a number of tokens, words or bytes of a document to 32 bits, because a task can have millions of documents.
/// No document needs more bits.
fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The part of a sample that metrics need.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Found {
    /// The log-likelihood of a continuation or a text.
    log_likelihood: f64,
    tokens: u32,
    /// Whether the continuation or the choice is right.
    is_right: bool,
    /// Whether the choice with the highest likelihood per length is right.
    is_right_by_length: bool,
}

impl Found {
    /// Returns the part of `sample` that the metrics of `document` need. The sample must have the right number of
    /// values.
    pub fn of(document: &Document, sample: &Sample) -> Self {
        let values = &sample.log_likelihoods;
        let (is_right, is_right_by_length) = match document {
            Document::Choose { lengths, gold, .. } => {
                let pairs = values.iter().zip(lengths);
                let by_length: Vec<f64> = pairs.map(|(value, n)| value / *n as f64).collect();
                (
                    first_largest(values) == *gold,
                    first_largest(&by_length) == *gold,
                )
            }
            _ => (sample.is_greedy[0], false),
        };
        Self {
            log_likelihood: values[0],
            tokens: count(sample.tokens),
            is_right,
            is_right_by_length,
        }
    }
}

/// A metric of a task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// The name, as in `lm_eval`. `token_perplexity` and `bits_per_token` are additional metrics.
    pub name: &'static str,
    /// The value.
    pub value: f64,
    /// The standard error; `None` with a single document.
    pub error: Option<f64>,
    /// Whether higher values are better.
    pub higher_is_better: bool,
}

/// Computes the metrics of `task` from the samples of its documents, in order.
///
/// # Errors
///
/// Returns an error if a document cannot be read again.
pub(crate) fn metrics(task: &Task, found: &[Found]) -> Result<Vec<Metric>, Error> {
    let likelihoods = || found.iter().map(|found| found.log_likelihood);
    let share = |name, is_right: fn(&Found) -> bool| {
        let values = found.iter().map(|found| f64::from(is_right(found)));
        let (value, error) = mean(values);
        Metric {
            name,
            value,
            error,
            higher_is_better: true,
        }
    };
    Ok(match task.kind {
        Kind::Lambada => vec![
            exponential("perplexity", mean(likelihoods())),
            share("acc", |found| found.is_right),
        ],
        // The choices are contexts, whose lengths do not count.
        Kind::WinoGrande => vec![share("acc", |found| found.is_right)],
        Kind::HellaSwag | Kind::Piqa | Kind::Arc => vec![
            share("acc", |found| found.is_right),
            share("acc_norm", |found| found.is_right_by_length),
        ],
        Kind::WikiText | Kind::Text => {
            let mut units = Vec::with_capacity(found.len());
            for number in 0..found.len() {
                units.push(match task.document(number)? {
                    Document::Roll { words, bytes, .. } => [words, bytes].map(count),
                    _ => [0; 2],
                });
            }
            let words = units.iter().map(|units| f64::from(units[0]));
            let bytes = units.iter().map(|units| f64::from(units[1]));
            let word = ratio(likelihoods().zip(words));
            let byte = ratio(likelihoods().zip(bytes));
            let tokens = found.iter().map(|found| f64::from(found.tokens));
            let token = ratio(likelihoods().zip(tokens));
            vec![
                exponential("word_perplexity", word),
                exponential("byte_perplexity", byte),
                bits("bits_per_byte", byte),
                exponential("token_perplexity", token),
                bits("bits_per_token", token),
            ]
        }
    })
}

/// Returns exp(−mean). Its error is exp(−mean) times the error of the mean.
fn exponential(name: &'static str, (mean, error): (f64, Option<f64>)) -> Metric {
    let perplexity = (-mean).exp();
    lower(name, perplexity, error.map(|error| error * perplexity))
}

fn bits(name: &'static str, (mean, error): (f64, Option<f64>)) -> Metric {
    let bits = std::f64::consts::LN_2;
    lower(name, -mean / bits, error.map(|error| error / bits))
}

fn lower(name: &'static str, value: f64, error: Option<f64>) -> Metric {
    Metric {
        name,
        value,
        error,
        higher_is_better: false,
    }
}

/// Returns the index of the first of the largest values, like numpy's `argmax`.
fn first_largest(values: &[f64]) -> usize {
    let places = 0..values.len();
    places
        .reduce(|best, place| {
            if values[place] > values[best] {
                place
            } else {
                best
            }
        })
        .unwrap_or(0)
}

/// Returns the mean and its standard error.
fn mean(values: impl Iterator<Item = f64> + Clone) -> (f64, Option<f64>) {
    ratio(values.map(|value| (value, 1.0)))
}

/// Returns Σ a / Σ b and its standard error over the documents, linearised: the deviation of a document is (a − ratio ·
/// b) / mean b. Returns 0 if Σ b is 0.
fn ratio(pairs: impl Iterator<Item = (f64, f64)> + Clone) -> (f64, Option<f64>) {
    let count = pairs.clone().count();
    let n = count as f64;
    let whole: f64 = pairs.clone().map(|(_, b)| b).sum();
    if whole == 0.0 {
        return (0.0, None);
    }
    let ratio = pairs.clone().map(|(a, _)| a).sum::<f64>() / whole;
    let squares: f64 = pairs.map(|(a, b)| (a - ratio * b).powi(2)).sum();
    let error = (squares / (n - 1.0) / n).sqrt() / (whole / n);
    (ratio, (count > 1).then_some(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_error_of_a_mean_is_that_of_the_textbook() {
        let (value, error) = mean([1.0, 0.0, 0.0, 1.0, 1.0].into_iter());
        assert!((value - 0.6).abs() < 1e-12);
        // The standard deviation of the sample is √0.3.
        assert!((error.unwrap() - (0.3_f64 / 5.0).sqrt()).abs() < 1e-12);
        assert_eq!(mean([2.0].into_iter()).1, None);
    }

    #[test]
    fn long_texts_weigh_more() {
        let (value, error) = ratio([(-10.0, 10.0), (-40.0, 30.0)].into_iter());
        assert!((value + 1.25).abs() < 1e-12);
        // The deviations are 2.5 and −2.5, and the mean is 20.
        assert!((error.unwrap() - (12.5_f64 / 2.0).sqrt() / 20.0).abs() < 1e-12);
    }

    #[test]
    fn an_empty_text_counts_only_with_its_words() {
        // As in lm_eval, the log-likelihood of an empty text is 0, and it has one word.
        let (value, error) = ratio([(-10.0, 2.0), (0.0, 1.0)].into_iter());
        assert!((value + 10.0 / 3.0).abs() < 1e-12 && error.is_some());
        assert_eq!(ratio([(0.0, 0.0)].into_iter()), (0.0, None));
    }

    #[test]
    fn of_equal_choices_the_first_counts() {
        assert_eq!(first_largest(&[-3.0, -1.0, -1.0]), 1);
        assert_eq!(first_largest(&[f64::NAN]), 0);
    }
}
