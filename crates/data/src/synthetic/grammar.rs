//! The grammar of the synthetic language: its words, and the words that may follow in each state.

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
/// Maximum number of adjectives before a noun.
const MOST_ADJECTIVES: usize = 2;

/// Returns the words of the language, sorted. The id of a word is its index.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Number {
    Singular,
    Plural,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Subject,
    Object,
}

/// The state of the grammar after a prefix. The state determines the probabilities of all further words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Opening,
    Determiner { topic: usize, role: Role },
    Noun(NounPhrase),
    Verb { topic: usize, number: Number },
    Stop,
}

/// The state within a noun phrase, after its determiner and some adjectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NounPhrase {
    topic: usize,
    role: Role,
    /// The grammatical number that the determiner sets, if it sets one.
    number: Option<Number>,
    /// Number of adjectives so far.
    adjectives: usize,
}

/// A next word, its probability and the state after it.
pub(super) type Transition = (&'static str, f64, State);

impl State {
    /// Returns all words that may follow.
    pub fn next(self) -> Vec<Transition> {
        match self {
            Self::Opening => {
                let role = Role::Subject;
                let after = |topic| Self::Determiner { topic, role };
                let topics = TOPICS.iter().enumerate();
                share(1.0, topics.map(|(topic, word)| (*word, after(topic))))
            }
            Self::Determiner { topic, role } => {
                let phrase = |number| NounPhrase {
                    topic,
                    role,
                    number,
                    adjectives: 0,
                };
                let words = DETERMINERS.map(|(word, number)| (word, Self::Noun(phrase(number))));
                share(1.0, words)
            }
            Self::Noun(phrase) => phrase.next(),
            Self::Verb { topic, number } => {
                let role = Role::Object;
                let after = Self::Determiner { topic, role };
                let words = VERBS[topic].map(|forms| (forms[number as usize], after));
                share(1.0, words)
            }
            Self::Stop => vec![(".", 1.0, Self::Opening)],
        }
    }
}

impl NounPhrase {
    /// Returns the transitions to another adjective and to the noun.
    fn next(self) -> Vec<Transition> {
        let more = match self.adjectives < MOST_ADJECTIVES {
            true => 0.5,
            false => 0.0,
        };
        let adjective = State::Noun(Self {
            adjectives: self.adjectives + 1,
            ..self
        });
        let mut next = share(more, ADJECTIVES.map(|word| (word, adjective)));
        let numbers = match self.number {
            Some(number) => vec![number],
            None => vec![Number::Singular, Number::Plural],
        };
        for &number in &numbers {
            let topic = self.topic;
            let after = match self.role {
                Role::Subject => State::Verb { topic, number },
                Role::Object => State::Stop,
            };
            let words = NOUNS[topic].map(|forms| (forms[number as usize], after));
            next.extend(share((1.0 - more) / numbers.len() as f64, words));
        }
        next.retain(|(_, p, _)| *p > 0.0);
        next
    }
}

/// Divides the probability `total` among words in proportion to 1, 1/2, 1/3, …, like word
/// frequencies (Zipf's law).
fn share(total: f64, words: impl IntoIterator<Item = (&'static str, State)>) -> Vec<Transition> {
    let words: Vec<_> = words.into_iter().collect();
    let norm: f64 = (1..=words.len()).map(|rank| 1.0 / rank as f64).sum();
    let weigh = |(i, (word, state))| (word, total / norm / (i + 1) as f64, state);
    words.into_iter().enumerate().map(weigh).collect()
}
