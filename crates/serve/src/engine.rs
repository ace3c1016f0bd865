//! Continues many sequences with one model.
//!
//! Only the engine uses the model, on the thread that calls `serve`. Each running sequence takes one row of the batch.
//! A step continues each sequence by one token. A step with 32 sequences takes a few times as long as a step with one.
//!
//! A prompt is read alone, or together with prompts of equal length. Its sequence then joins the running sequences, and
//! leaves them when it ends. With a recurrence, all rows of a batch stay at the same position. Sequences that begin
//! together therefore form a group, and groups take turns.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvError};

use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use rand::SeedableRng;
use rand::rngs::StdRng;
use residual_zoo_core::{Cache, LanguageModel};
use residual_zoo_runs::generate::Sampling;

use crate::request::ApiError;
use crate::writer::Writer;

/// A sequence that a client wants.
pub struct Job {
    /// The number of the request. Requests, not sequences, compete for the rows of the batch.
    pub request: u64,
    /// The ids of the prompt: at least 1, and at most context + 1.
    pub prompt: Vec<u32>,
    /// The way in which tokens are drawn.
    pub sampling: Sampling,
    /// The number of most likely tokens that are reported for each token; `None` reports no log-probabilities.
    pub top: Option<usize>,
    /// Whether the tokens of the prompt are scored.
    pub scores_prompt: bool,
    /// The writer of the tokens, which knows when the sequence is over.
    pub writer: Writer,
}

/// A token and its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The token.
    pub id: u32,
    /// The logarithm of its probability at temperature 1; `None` if it was not computed.
    pub log_probability: Option<f64>,
    /// The most likely tokens, and the token itself.
    pub top: Vec<(u32, f64)>,
}

impl Scored {
    /// Scores the token `id` by `logits`, and lists the `count` most likely tokens.
    fn new(id: u32, logits: &[f32], count: usize) -> Self {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
        let sum: f64 = logits.iter().map(|x| (*x as f64 - largest).exp()).sum();
        let log_probability = |id: u32| logits[id as usize] as f64 - largest - sum.ln();
        let mut best: Vec<u32> = Vec::new();
        for (other, x) in (0..).zip(logits) {
            // If logits are equal, the first one is kept.
            let place = best.partition_point(|kept| logits[*kept as usize] >= *x);
            if place < count {
                best.insert(place, other);
                best.truncate(count);
            }
        }
        if !best.contains(&id) {
            best.push(id);
        }
        Self {
            id,
            log_probability: Some(log_probability(id)),
            top: best
                .into_iter()
                .map(|id| (id, log_probability(id)))
                .collect(),
        }
    }

    fn unknown(id: u32) -> Self {
        Self {
            id,
            log_probability: None,
            top: Vec::new(),
        }
    }
}

/// A job that is being worked on.
struct Sequence {
    request: u64,
    /// The prompt and the drawn tokens. Once they exceed the context, only the newest tokens are kept, enough for half
    /// a context.
    tokens: Vec<u32>,
    scores_prompt: bool,
    sampling: Sampling,
    rng: StdRng,
    top: Option<usize>,
    writer: Writer,
}

impl Sequence {
    fn new(job: Job) -> Self {
        Self {
            request: job.request,
            tokens: job.prompt,
            scores_prompt: job.scores_prompt,
            rng: StdRng::seed_from_u64(job.sampling.seed),
            sampling: job.sampling,
            top: job.top,
            writer: job.writer,
        }
    }

    /// Whether no one is waiting for more tokens.
    fn is_over(&self) -> bool {
        self.writer.is_over()
    }

    /// Draws the next token and reports it. The sequence is over if the logits are not finite.
    fn draw(&mut self, logits: &[f32]) {
        if self.is_over() {
            return;
        }
        if !logits.iter().all(|x| x.is_finite()) {
            self.fail();
            return;
        }
        let id = self.sampling.draw(logits, &mut self.rng);
        let scored = match self.top {
            Some(count) => Scored::new(id, logits, count),
            None => Scored::unknown(id),
        };
        self.tokens.push(id);
        self.writer.token(scored);
    }

    /// If the sequence is longer than the context, keeps only its newest tokens, enough for half a context.
    fn shorten(&mut self, context: usize) {
        if self.tokens.len() > context {
            self.tokens.drain(..self.tokens.len() - context.div_ceil(2));
        }
    }

    /// Reports the scored tokens of the prompt. Draws the next token if its logits are known and more are wanted.
    fn scored(&mut self, found: Prompt) {
        self.scores_prompt = false;
        self.writer.prompt(found.scored);
        if let Some(logits) = found.next {
            self.draw(&logits);
        }
    }

    fn fail(&mut self) {
        let problem = "the model gives numbers that are not finite; it diverged in training";
        self.writer.fail(ApiError::new(500, "not_finite", problem));
    }
}

/// The sizes of the engine and the model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Maximum number of sequences that are continued at once, in all groups.
    pub rows: usize,
    /// Maximum number of tokens that the model reads.
    pub context: usize,
    /// Number of token ids.
    pub vocabulary: usize,
}

/// Maximum number of logits that are computed at once, unless a single sequence needs more.
const MOST_LOGITS: usize = 1 << 24;

/// Maximum number of prompt tokens that are read at once, unless a single prompt is longer.
const MOST_READ: usize = 1 << 13;

/// The engine: a model and the sequences that it continues.
pub struct Engine<'a, B: Backend, M: LanguageModel<B>> {
    model: &'a M,
    /// Whether the model revises earlier positions, so that a prompt is scored as a whole.
    revises: bool,
    sizes: Sizes,
    device: &'a B::Device,
    waiting: VecDeque<Sequence>,
    groups: Vec<Group<M::Cache>>,
}

/// Sequences that are continued in one step. The cache holds all tokens of each sequence except the last one.
struct Group<C> {
    sequences: Vec<Sequence>,
    cache: C,
}

impl<'a, B: Backend, M: LanguageModel<B>> Engine<'a, B, M> {
    /// Makes an engine without work.
    pub fn new(model: &'a M, revises: bool, sizes: Sizes, device: &'a B::Device) -> Self {
        Self {
            model,
            revises,
            sizes,
            device,
            waiting: VecDeque::new(),
            groups: Vec::new(),
        }
    }

    /// Works on `jobs` until all senders are dropped and all jobs have ended. Once `give_up` is set, all jobs are
    /// dropped.
    pub fn work(mut self, jobs: &Receiver<Job>, give_up: &AtomicBool) {
        loop {
            if give_up.load(Ordering::Relaxed) {
                self.waiting.clear();
                self.groups.clear();
            }
            if self.waiting.is_empty() && self.groups.is_empty() {
                match jobs.recv() {
                    Ok(job) => self.waiting.push_back(Sequence::new(job)),
                    Err(RecvError) => return,
                }
            }
            self.waiting.extend(jobs.try_iter().map(Sequence::new));
            self.waiting.retain(|sequence| !sequence.is_over());
            self.score_some();
            let new = self.next_ones();
            self.read(new);
            for group in std::mem::take(&mut self.groups) {
                if !group.sequences.is_empty() {
                    self.step(group);
                }
            }
        }
    }

    /// Returns the sequences that start now. Requests with the fewest running sequences come first; between equals, the
    /// order of the queue decides. If all rows are taken, the request with the most rows gives up one row for a request
    /// with at least two rows fewer, unless the model has a recurrence. The displaced sequence waits.
    fn next_ones(&mut self) -> Vec<Sequence> {
        let mut shares: BTreeMap<u64, usize> = BTreeMap::new();
        let mut running = 0;
        for sequence in self.groups.iter().flat_map(|group| &group.sequences) {
            *shares.entry(sequence.request).or_default() += 1;
            running += 1;
        }
        let mut new = Vec::new();
        loop {
            let share = |s: &Sequence| shares.get(&s.request).copied().unwrap_or(0);
            let waiting = self
                .waiting
                .iter()
                .enumerate()
                .filter(|(_, s)| !s.scores_prompt);
            let Some((at, next)) = waiting.min_by_key(|(_, s)| share(s)) else {
                break;
            };
            if running + new.len() >= self.sizes.rows {
                let most = shares.iter().max_by_key(|(_, share)| **share);
                let Some((&most, _)) = most.filter(|(_, most)| **most > share(next) + 1) else {
                    break;
                };
                let Some(sequence) = self.leave(most) else {
                    break;
                };
                *shares.entry(most).or_default() -= 1;
                running -= 1;
                self.waiting.push_back(sequence);
            }
            if let Some(sequence) = self.waiting.remove(at) {
                *shares.entry(sequence.request).or_default() += 1;
                new.push(sequence);
            }
        }
        new
    }

    /// Takes the newest running sequence of a request out of its group. Returns `None` for a model with a recurrence,
    /// because its rows stay together.
    fn leave(&mut self, request: u64) -> Option<Sequence> {
        let group = self.groups.iter_mut().find(|group| group.cache.joins())?;
        let at = group.sequences.iter().rposition(|s| s.request == request)?;
        let keep: Vec<bool> = (0..group.sequences.len()).map(|i| i != at).collect();
        group.cache.keep(&keep);
        Some(group.sequences.remove(at))
    }

    /// Reads the tokens of `sequences`, in batches whose sequences have equal length, and draws the next tokens.
    fn read(&mut self, sequences: Vec<Sequence>) {
        let mut equal: BTreeMap<usize, Vec<Sequence>> = BTreeMap::new();
        for mut sequence in sequences {
            sequence.shorten(self.sizes.context);
            equal
                .entry(sequence.tokens.len())
                .or_default()
                .push(sequence);
        }
        for (length, mut rest) in equal {
            while !rest.is_empty() {
                let count = (MOST_READ / length).clamp(1, rest.len());
                let mut group = Group {
                    sequences: rest.drain(..count).collect(),
                    cache: self.model.new_cache(),
                };
                self.draw(&mut group, length);
                self.add(group);
            }
        }
    }

    /// Adds a group to the running groups. If the cache of the first group can take more rows, the two become one
    /// group.
    fn add(&mut self, mut group: Group<M::Cache>) {
        match self.groups.first_mut() {
            Some(first) if first.cache.joins() => {
                first.sequences.append(&mut group.sequences);
                first.cache.join(group.cache);
            }
            _ => self.groups.push(group),
        }
    }

    /// Continues the sequences of a group by one token. Sequences that are over leave the group. Sequences whose
    /// context is full are read again from their newest half. With a recurrence, single rows cannot leave the batch, so
    /// all sequences that are not over are then read again.
    fn step(&mut self, mut group: Group<M::Cache>) {
        let stays = |s: &Sequence| !s.is_over() && s.tokens.len() <= self.sizes.context;
        let keep: Vec<bool> = group.sequences.iter().map(stays).collect();
        let mut again = Vec::new();
        if keep.contains(&false) {
            let joins = group.cache.joins();
            if joins {
                group.cache.keep(&keep);
            }
            let sequences = std::mem::take(&mut group.sequences).into_iter().zip(keep);
            let (stay, leave): (Vec<_>, Vec<_>) = sequences.partition(|(_, keep)| joins && *keep);
            group.sequences = stay.into_iter().map(|(sequence, _)| sequence).collect();
            let leave = leave.into_iter().map(|(sequence, _)| sequence);
            again = leave.filter(|sequence| !sequence.is_over()).collect();
        }
        if !group.sequences.is_empty() {
            self.draw(&mut group, 1);
            self.add(group);
        }
        self.read(again);
    }

    /// Reads the last `new` tokens of each sequence of a group, and draws the next tokens.
    fn draw(&self, group: &mut Group<M::Cache>, new: usize) {
        let tokens = group
            .sequences
            .iter()
            .map(|s| &s.tokens[s.tokens.len() - new..]);
        let logits = self
            .model
            .predict(self.ids(&tokens.collect::<Vec<_>>()), &mut group.cache);
        let [_, vocabulary] = logits.dims();
        let logits: Vec<f32> = logits.into_data().iter::<f32>().collect();
        for (sequence, logits) in group
            .sequences
            .iter_mut()
            .zip(logits.chunks_exact(vocabulary))
        {
            sequence.draw(logits);
        }
    }

    /// Scores the first prompt that waits for scores, and others of the same length with it. Sequences that need more
    /// tokens then wait for a row.
    fn score_some(&mut self) {
        let Sizes {
            rows,
            context,
            vocabulary,
        } = self.sizes;
        let lengths = self.waiting.iter().filter(|s| s.scores_prompt);
        let Some(length) = lengths.map(|s| s.tokens.len()).next() else {
            return;
        };
        let rows = (MOST_LOGITS / (length * vocabulary)).clamp(1, rows);
        let wanted = |s: &Sequence| s.scores_prompt && s.tokens.len() == length;
        let mut sequences = take(&mut self.waiting, rows, wanted);
        let mut found: Vec<Prompt> = sequences.iter().map(Prompt::new).collect();
        // The last token of a prompt that is one token longer than the context is scored but not read.
        let read = length.min(context);
        let ids = |from: usize, to: usize| {
            let parts: Vec<&[u32]> = sequences.iter().map(|s| &s.tokens[from..to]).collect();
            self.ids(&parts)
        };
        if self.revises {
            add_logits(&mut found, &sequences, 0, self.model.forward(ids(0, read)));
        } else {
            let piece = (MOST_LOGITS / (sequences.len() * vocabulary)).max(1);
            let mut cache = self.model.new_cache();
            for from in (0..read).step_by(piece) {
                let to = (from + piece).min(read);
                let logits = self.model.decode(ids(from, to), &mut cache);
                add_logits(&mut found, &sequences, from, logits);
            }
        }
        for (sequence, found) in sequences.iter_mut().zip(found) {
            match found.is_finite {
                true => sequence.scored(found),
                false => sequence.fail(),
            }
        }
        // Scored sequences go to the front of the queue.
        for sequence in sequences.into_iter().rev().filter(|s| !s.is_over()) {
            self.waiting.push_front(sequence);
        }
    }

    fn ids(&self, rows: &[&[u32]]) -> Tensor<B, 2, Int> {
        let flat = rows.iter().flat_map(|row| row.iter().map(|id| *id as i32));
        let ids = TensorData::new(flat.collect::<Vec<_>>(), [rows.len(), rows[0].len()]);
        Tensor::from_data(ids, self.device)
    }
}

/// The scores of a prompt.
struct Prompt {
    scored: Vec<Scored>,
    /// The logits after the last token, if the model read that token.
    next: Option<Vec<f32>>,
    is_finite: bool,
}

impl Prompt {
    fn new(sequence: &Sequence) -> Self {
        Self {
            scored: vec![Scored::unknown(sequence.tokens[0])],
            next: None,
            is_finite: true,
        }
    }
}

/// Adds the scores of the prompts' tokens after position `from`, computed from `logits` `[rows, time, vocab]`.
fn add_logits<B: Backend>(
    found: &mut [Prompt],
    sequences: &[Sequence],
    from: usize,
    logits: Tensor<B, 3>,
) {
    let [_, time, vocabulary] = logits.dims();
    let logits: Vec<f32> = logits.into_data().iter::<f32>().collect();
    let rows = logits.chunks_exact(time * vocabulary);
    for ((found, sequence), logits) in found.iter_mut().zip(sequences).zip(rows) {
        found.is_finite &= logits.iter().all(|x| x.is_finite());
        for (at, logits) in (from..).zip(logits.chunks_exact(vocabulary)) {
            match sequence.tokens.get(at + 1) {
                Some(id) => {
                    let scored = Scored::new(*id, logits, sequence.top.unwrap_or(0));
                    found.scored.push(scored);
                }
                None => found.next = Some(logits.to_vec()),
            }
        }
    }
}

/// Takes the first sequences that are `wanted`, at most `most` of them.
fn take(
    waiting: &mut VecDeque<Sequence>,
    most: usize,
    wanted: impl Fn(&Sequence) -> bool,
) -> Vec<Sequence> {
    let mut taken = Vec::new();
    let mut others = VecDeque::new();
    for sequence in waiting.drain(..) {
        match taken.len() < most && wanted(&sequence) {
            true => taken.push(sequence),
            false => others.push_back(sequence),
        }
    }
    *waiting = others;
    taken
}
