//! A synthetic language whose entropy rate is known exactly.
//!
//! A sentence says what someone does somewhere, as in
//! `downtown some quiet drivers call one busy tailor .`. Its first word sets the topic, the
//! determiner may set the number, and noun and verb agree with both across any number of
//! adjectives. So the next word depends on words several places back, which a bigram model cannot
//! see, while every prefix determines the state of the grammar. That makes it a *unifilar*
//! source, whose entropy rate is the mean over states of the entropy of the next word (Shannon,
//! "A mathematical theory of communication", 1948, section 7).

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

const TOPICS: [&str; 4] = ["downtown", "offshore", "upstairs", "outdoors"];
const DETERMINERS: [(&str, Option<Number>); 5] = [
    ("the", None),
    ("one", Some(Number::Singular)),
    ("some", Some(Number::Plural)),
    ("each", Some(Number::Singular)),
    ("many", Some(Number::Plural)),
];
const ADJECTIVES: [&str; 6] = ["old", "quiet", "busy", "tall", "young", "clever"];
/// Nouns by topic, singular and plural.
const NOUNS: [[[&str; 2]; 3]; 4] = [
    [
        ["driver", "drivers"],
        ["tailor", "tailors"],
        ["mayor", "mayors"],
    ],
    [
        ["sailor", "sailors"],
        ["diver", "divers"],
        ["whale", "whales"],
    ],
    [
        ["guest", "guests"],
        ["cook", "cooks"],
        ["tenant", "tenants"],
    ],
    [
        ["farmer", "farmers"],
        ["ranger", "rangers"],
        ["horse", "horses"],
    ],
];
/// Verbs by topic, singular and plural.
const VERBS: [[[&str; 2]; 2]; 4] = [
    [["calls", "call"], ["hires", "hire"]],
    [["tows", "tow"], ["spots", "spot"]],
    [["greets", "greet"], ["feeds", "feed"]],
    [["leads", "lead"], ["tracks", "track"]],
];
const MOST_ADJECTIVES: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Number {
    Singular,
    Plural,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Subject,
    Object,
}

/// What a prefix says about the rest of the sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Opening,
    Determiner {
        topic: usize,
        role: Role,
    },
    Noun {
        topic: usize,
        role: Role,
        number: Option<Number>,
        adjectives: usize,
    },
    Verb {
        topic: usize,
        number: Number,
    },
    Stop,
}

/// A next word, its probability and the state after it.
type Transition = (&'static str, f64, State);

impl State {
    /// The grammar.
    fn next(self) -> Vec<Transition> {
        match self {
            Self::Opening => {
                let topics = TOPICS.iter().enumerate();
                share(
                    1.0,
                    topics.map(|(topic, word)| {
                        (
                            *word,
                            Self::Determiner {
                                topic,
                                role: Role::Subject,
                            },
                        )
                    }),
                )
            }
            Self::Determiner { topic, role } => share(
                1.0,
                DETERMINERS.map(|(word, number)| {
                    (
                        word,
                        Self::Noun {
                            topic,
                            role,
                            number,
                            adjectives: 0,
                        },
                    )
                }),
            ),
            Self::Noun {
                topic,
                role,
                number,
                adjectives,
            } => {
                let more = if adjectives < MOST_ADJECTIVES {
                    0.5
                } else {
                    0.0
                };
                let adjective = Self::Noun {
                    topic,
                    role,
                    number,
                    adjectives: adjectives + 1,
                };
                let mut next = share(more, ADJECTIVES.map(|word| (word, adjective)));
                let numbers = match number {
                    Some(number) => vec![number],
                    None => vec![Number::Singular, Number::Plural],
                };
                for number in &numbers {
                    let after = match role {
                        Role::Subject => Self::Verb {
                            topic,
                            number: *number,
                        },
                        Role::Object => Self::Stop,
                    };
                    let words = NOUNS[topic].map(|forms| (forms[*number as usize], after));
                    next.extend(share((1.0 - more) / numbers.len() as f64, words));
                }
                next.retain(|(_, p, _)| *p > 0.0);
                next
            }
            Self::Verb { topic, number } => {
                let after = Self::Determiner {
                    topic,
                    role: Role::Object,
                };
                share(
                    1.0,
                    VERBS[topic].map(|forms| (forms[number as usize], after)),
                )
            }
            Self::Stop => vec![(".", 1.0, Self::Opening)],
        }
    }
}

/// Shares the probability `total` among words in proportion to 1, 1/2, 1/3, …, as word
/// frequencies do (Zipf's law).
fn share(total: f64, words: impl IntoIterator<Item = (&'static str, State)>) -> Vec<Transition> {
    let words: Vec<_> = words.into_iter().collect();
    let norm: f64 = (1..=words.len()).map(|rank| 1.0 / rank as f64).sum();
    let weigh = |(i, (word, state))| (word, total / norm / (i + 1) as f64, state);
    words.into_iter().enumerate().map(weigh).collect()
}

/// How many tokens of the synthetic language to draw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SyntheticConfig {
    /// Number of tokens, training and validation together.
    pub tokens: usize,
    /// Seed of the draw.
    pub seed: u64,
}

impl Default for SyntheticConfig {
    fn default() -> Self {
        Self {
            tokens: 1_000_000,
            seed: 1,
        }
    }
}

/// Most tokens that are drawn; they are held in memory.
pub const MOST_TOKENS: usize = 1 << 30;

/// The least possible loss of three kinds of model, exactly, in nats per token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entropy {
    /// Of a model that sees all earlier tokens: the entropy rate of the source.
    pub rate: f64,
    /// Of a model that sees one earlier token.
    pub bigram: f64,
    /// Of a model that sees none.
    pub unigram: f64,
}

/// The words of the language, sorted; a word's index is its token id.
pub fn vocabulary() -> Vec<String> {
    let mut words: Vec<&str> = vec!["."];
    words.extend(TOPICS);
    words.extend(DETERMINERS.map(|(word, _)| word));
    words.extend(ADJECTIVES);
    words.extend(NOUNS.as_flattened().as_flattened());
    words.extend(VERBS.as_flattened().as_flattened());
    words.sort_unstable();
    words.into_iter().map(String::from).collect()
}

/// Draws `config.tokens` tokens, sentence after sentence.
pub fn sample(config: &SyntheticConfig) -> Vec<u32> {
    let ids: BTreeMap<String, u32> = vocabulary().into_iter().zip(0..).collect();
    let mut rng = StdRng::seed_from_u64(config.seed);
    let mut state = State::Opening;
    let mut tokens = Vec::with_capacity(config.tokens);
    while tokens.len() < config.tokens {
        let next = state.next();
        let mut rest: f64 = rng.random();
        let chosen = next.iter().find(|(_, p, _)| {
            rest -= p;
            rest < 0.0
        });
        // Rounding may leave a sliver of probability after the last word.
        if let Some(&(word, _, after)) = chosen.or(next.last()) {
            tokens.push(ids[word]);
            state = after;
        }
    }
    tokens
}

/// The exact entropies of the language.
///
/// A sentence has at most eleven words and each starts anew from the opening, so the expected
/// visits of every state in one sentence are a finite sum, and their shares are the stationary
/// distribution.
pub fn entropy() -> Entropy {
    let mut visits: BTreeMap<State, f64> = BTreeMap::new();
    // How often each word leads into each state.
    let mut arrivals: BTreeMap<&str, BTreeMap<State, f64>> = BTreeMap::new();
    let mut front = BTreeMap::from([(State::Opening, 1.0)]);
    while !front.is_empty() {
        let mut reached = BTreeMap::new();
        for (state, mass) in front {
            *visits.entry(state).or_default() += mass;
            for (word, p, after) in state.next() {
                *arrivals.entry(word).or_default().entry(after).or_default() += mass * p;
                if after != State::Opening {
                    *reached.entry(after).or_default() += mass * p;
                }
            }
        }
        front = reached;
    }
    let length: f64 = visits.values().sum();
    let mix = |states: &BTreeMap<State, f64>| next_word_entropy(states) / length;
    Entropy {
        rate: visits
            .iter()
            .map(|(state, n)| mix(&BTreeMap::from([(*state, *n)])))
            .sum(),
        bigram: arrivals.values().map(mix).sum(),
        unigram: mix(&visits),
    }
}

/// Entropy of the next word when all that is known is how much mass each state has, times the
/// total mass.
fn next_word_entropy(states: &BTreeMap<State, f64>) -> f64 {
    let total: f64 = states.values().sum();
    let mut words: BTreeMap<&str, f64> = BTreeMap::new();
    for (state, mass) in states {
        for (word, p, _) in state.next() {
            *words.entry(word).or_default() += mass * p;
        }
    }
    words.values().map(|mass| -mass * (mass / total).ln()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn language(tokens: usize) -> Vec<u32> {
        sample(&SyntheticConfig { tokens, seed: 5 })
    }

    #[test]
    fn a_bigram_model_stays_a_quarter_above_the_rate() {
        let entropy = entropy();
        assert!(entropy.bigram > 1.25 * entropy.rate, "{entropy:?}");
        assert!(entropy.unigram > entropy.bigram, "{entropy:?}");
    }

    #[test]
    fn every_state_gives_a_distribution_over_distinct_words() {
        let mut seen = vec![State::Opening];
        let mut at = 0;
        while at < seen.len() {
            let next = seen[at].next();
            let total: f64 = next.iter().map(|(_, p, _)| p).sum();
            assert!(
                (total - 1.0).abs() < 1e-12,
                "{:?} sums to {total}",
                seen[at]
            );
            let words: std::collections::BTreeSet<_> = next.iter().map(|(w, ..)| w).collect();
            assert_eq!(
                words.len(),
                next.len(),
                "a word twice: the state would be hidden"
            );
            for (.., after) in next {
                if !seen.contains(&after) {
                    seen.push(after);
                }
            }
            at += 1;
        }
    }

    #[test]
    fn words_are_distinct() {
        let words = vocabulary();
        assert!(words.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn the_rate_is_the_mean_surprise_of_a_long_sample() {
        let words = vocabulary();
        let tokens = language(400_000);
        let mut state = State::Opening;
        let mut surprise = Vec::new();
        for token in &tokens {
            let next = state.next();
            let (_, p, after) = next
                .iter()
                .find(|(word, ..)| *word == words[*token as usize])
                .unwrap();
            surprise.push(-p.ln());
            state = *after;
        }
        // Surprises within a sentence are correlated, so the error is taken over blocks of it.
        let blocks: Vec<f64> = surprise
            .chunks(1000)
            .map(|c| c.iter().sum::<f64>() / c.len() as f64)
            .collect();
        let n = blocks.len() as f64;
        let mean = blocks.iter().sum::<f64>() / n;
        let variance = blocks.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let error = (variance / n).sqrt();
        let rate = entropy().rate;
        assert!(
            (mean - rate).abs() < 4.0 * error,
            "sample {mean} ± {error}, exactly {rate}"
        );
    }

    #[test]
    fn the_bigram_entropy_is_the_loss_of_a_fitted_bigram_model() {
        let tokens = language(400_000);
        let v = vocabulary().len();
        let mut pairs = vec![0.0_f64; v * v];
        let mut firsts = vec![0.0_f64; v];
        for pair in tokens.windows(2) {
            pairs[pair[0] as usize * v + pair[1] as usize] += 1.0;
            firsts[pair[0] as usize] += 1.0;
        }
        let n: f64 = firsts.iter().sum();
        let loss: f64 = (0..v * v)
            .filter(|i| pairs[*i] > 0.0)
            .map(|i| -pairs[i] / n * (pairs[i] / firsts[i / v]).ln())
            .sum();
        let exact = entropy().bigram;
        assert!(
            (loss / exact - 1.0).abs() < 5e-3,
            "fitted {loss}, exactly {exact}"
        );
    }

    #[test]
    fn the_same_seed_gives_the_same_text() {
        assert_eq!(language(1000), language(1000));
        assert_ne!(
            language(1000),
            sample(&SyntheticConfig {
                tokens: 1000,
                seed: 6
            })
        );
        assert_eq!(language(1000), language(2000)[..1000]);
    }
}
