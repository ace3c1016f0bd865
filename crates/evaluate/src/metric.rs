//! Metrics of a task, with their standard errors.

use serde::{Deserialize, Serialize};

use crate::score::Score;
use crate::task::{Document, Kind, Task};

/// What was found of a document: a line of the samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The number of the document.
    pub doc_id: usize,
    /// The log-likelihoods of its continuations, in nats. Of a text there is one, that of all windows.
    pub log_likelihoods: Vec<f64>,
    /// Whether each consists of the most likely tokens.
    pub is_greedy: Vec<bool>,
    /// Tokens that were predicted.
    pub tokens: usize,
}

impl Sample {
    /// The sample of `document` from the scores of its requests.
    pub fn of(doc_id: usize, document: &Document, scores: &[Score], tokens: usize) -> Self {
        let likelihoods = scores.iter().map(|score| score.log_likelihood);
        let mut greedy = scores.iter().map(|score| score.is_greedy);
        let (log_likelihoods, is_greedy) = match document {
            Document::Roll { .. } => (
                vec![likelihoods.sum()],
                vec![greedy.all(|is_greedy| is_greedy)],
            ),
            _ => (likelihoods.collect(), greedy.collect()),
        };
        Self {
            doc_id,
            log_likelihoods,
            is_greedy,
            tokens,
        }
    }
}

impl Sample {
    /// Whether this can be the sample of `document`.
    pub(crate) fn is_of(&self, document: &Document) -> bool {
        let count = match document {
            Document::Choose { pairs, .. } => pairs.len(),
            Document::Continue { .. } | Document::Roll { .. } => 1,
        };
        let is_logarithm = |value: &f64| value.is_finite() && *value <= 1e-3;
        self.log_likelihoods.len() == count
            && self.is_greedy.len() == count
            && self.tokens > 0
            && self.log_likelihoods.iter().all(is_logarithm)
    }
}

/// A metric of a task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Its name, as in `lm_eval`.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// Its standard error; `None` with a single document.
    pub error: Option<f64>,
    /// Whether more is better.
    pub higher_is_better: bool,
}

/// The metrics of `task`. There is a sample for each of its documents, in their order.
pub fn metrics(task: &Task, samples: &[Sample]) -> Vec<Metric> {
    let pairs = || task.documents.iter().zip(samples);
    match task.documents.first() {
        Some(Document::Continue { .. }) => {
            let likelihoods: Vec<f64> = samples
                .iter()
                .map(|sample| sample.log_likelihoods[0])
                .collect();
            let right: Vec<f64> = samples
                .iter()
                .map(|sample| f64::from(sample.is_greedy[0]))
                .collect();
            let (mean, error) = mean(&likelihoods);
            let perplexity = (-mean).exp();
            vec![
                // The error of exp(x) is exp(x) times that of x.
                lower(
                    "perplexity",
                    perplexity,
                    error.map(|error| error * perplexity),
                ),
                higher("acc", &right),
            ]
        }
        Some(Document::Choose { .. }) => {
            let right = |is_normalised: bool| -> Vec<f64> {
                let right = pairs().filter_map(|(document, sample)| match document {
                    Document::Choose { lengths, gold, .. } => {
                        let lengths = lengths.iter().map(|length| match is_normalised {
                            true => *length as f64,
                            false => 1.0,
                        });
                        let values = sample.log_likelihoods.iter().zip(lengths);
                        let values: Vec<f64> =
                            values.map(|(value, length)| value / length).collect();
                        Some(f64::from(first_largest(&values) == *gold))
                    }
                    _ => None,
                });
                right.collect()
            };
            let mut metrics = vec![higher("acc", &right(false))];
            // Its choices are contexts, whose lengths do not count.
            if task.kind != Kind::WinoGrande {
                metrics.push(higher("acc_norm", &right(true)));
            }
            metrics
        }
        Some(Document::Roll { .. }) => {
            let likelihoods: Vec<f64> = samples
                .iter()
                .map(|sample| sample.log_likelihoods[0])
                .collect();
            let per = |unit: fn(&Document) -> usize| {
                let units: Vec<f64> = task
                    .documents
                    .iter()
                    .map(|document| unit(document) as f64)
                    .collect();
                ratio(&likelihoods, &units)
            };
            let tokens: Vec<f64> = samples.iter().map(|sample| sample.tokens as f64).collect();
            let perplexity = |name, (mean, error): (f64, Option<f64>)| {
                let perplexity = (-mean).exp();
                lower(name, perplexity, error.map(|error| error * perplexity))
            };
            let bits = |name, (mean, error): (f64, Option<f64>)| {
                let bits = std::f64::consts::LN_2;
                lower(name, -mean / bits, error.map(|error| error / bits))
            };
            let [word, byte] = [
                per(|document| units(document).0),
                per(|document| units(document).1),
            ];
            let token = ratio(&likelihoods, &tokens);
            vec![
                perplexity("word_perplexity", word),
                perplexity("byte_perplexity", byte),
                bits("bits_per_byte", byte),
                perplexity("token_perplexity", token),
                bits("bits_per_token", token),
            ]
        }
        None => Vec::new(),
    }
}

/// Words and bytes of a text.
fn units(document: &Document) -> (usize, usize) {
    match document {
        Document::Roll { words, bytes, .. } => (*words, *bytes),
        _ => (0, 0),
    }
}

fn lower(name: &'static str, value: f64, error: Option<f64>) -> Metric {
    Metric {
        name,
        value,
        error,
        higher_is_better: false,
    }
}

fn higher(name: &'static str, values: &[f64]) -> Metric {
    let (value, error) = mean(values);
    Metric {
        name,
        value,
        error,
        higher_is_better: true,
    }
}

/// The first of the largest values, as numpy's `argmax`.
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

/// The mean and its standard error.
fn mean(values: &[f64]) -> (f64, Option<f64>) {
    ratio(values, &vec![1.0; values.len()])
}

/// Σ a / Σ b and its standard error over the documents, linearised: the deviation of a document is (a − ratio · b) / mean b.
fn ratio(a: &[f64], b: &[f64]) -> (f64, Option<f64>) {
    let n = a.len() as f64;
    let whole: f64 = b.iter().sum();
    let ratio = a.iter().sum::<f64>() / whole;
    let squares: f64 = a.iter().zip(b).map(|(a, b)| (a - ratio * b).powi(2)).sum();
    let error = (squares / (n - 1.0) / n).sqrt() / (whole / n);
    (ratio, (a.len() > 1).then_some(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_error_of_a_mean_is_that_of_the_textbook() {
        let (value, error) = mean(&[1.0, 0.0, 0.0, 1.0, 1.0]);
        assert!((value - 0.6).abs() < 1e-12);
        // The standard deviation of the sample is √0.3.
        assert!((error.unwrap() - (0.3_f64 / 5.0).sqrt()).abs() < 1e-12);
        assert_eq!(mean(&[2.0]).1, None);
    }

    #[test]
    fn long_texts_weigh_more() {
        let (value, error) = ratio(&[-10.0, -40.0], &[10.0, 30.0]);
        assert!((value + 1.25).abs() < 1e-12);
        // Deviations 2.5 and −2.5 of 20 on average.
        assert!((error.unwrap() - (12.5_f64 / 2.0).sqrt() / 20.0).abs() < 1e-12);
    }

    #[test]
    fn of_equal_choices_the_first_counts() {
        assert_eq!(first_largest(&[-3.0, -1.0, -1.0]), 1);
        assert_eq!(first_largest(&[f64::NAN]), 0);
    }
}
