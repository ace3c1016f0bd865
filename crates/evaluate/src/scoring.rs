//! The scoring of a task, a few thousand requests at a time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::backend::Backend;
use residual_zoo_core::LanguageModel;

use crate::Error;
use crate::evaluation::OnProgress;
use crate::metric::{Found, Sample};
use crate::request::{Request, Requests};
use crate::samples::Samples;
use crate::score::{Score, batches, score_unless_stopped};
use crate::task::Task;

/// Limits on the waiting requests, and on their tokens. With more requests, more of them have equal length.
const MOST_REQUESTS: usize = 1 << 14;
const MOST_TOKENS: usize = 1 << 21;

/// Returns the maximum number of requests of `time` tokens that are scored at once if a user asks for `batch`.
pub fn most_rows(batch: usize, time: usize) -> usize {
    batch
        .min(MOST_REQUESTS)
        .min(MOST_TOKENS.div_ceil(time.max(1)))
}

/// A model that scores requests.
pub struct Scorer<B: Backend, M> {
    /// The model.
    pub model: M,
    /// Whether the model revises earlier positions.
    pub revises: bool,
    /// Maximum number of requests of equal length that are scored at once.
    pub batch: usize,
    /// The device of the model.
    pub device: B::Device,
}

/// The scoring of the documents of a task that have no scores yet.
pub struct Scoring<'a, 'p, B: Backend, M> {
    scorer: &'a Scorer<B, M>,
    task: &'a Task,
    /// The number of requests of each document.
    counts: &'a [u32],
    samples: &'a mut Samples,
    progress: &'a RefCell<OnProgress<'p>>,
    /// Requests that wait to be scored, and the number of their tokens.
    waiting: Vec<Request>,
    tokens: usize,
    /// Documents with requests that are not scored yet: the sample so far, and the number of missing scores.
    open: BTreeMap<usize, (Sample, u32)>,
    /// Number of scored requests, and of all requests.
    done: usize,
    all: usize,
}

impl<'a, 'p, B: Backend, M: LanguageModel<B>> Scoring<'a, 'p, B, M> {
    /// Prepares to score `task`, with `counts` requests for each document.
    pub fn new(
        scorer: &'a Scorer<B, M>,
        task: &'a Task,
        counts: &'a [u32],
        samples: &'a mut Samples,
        progress: &'a RefCell<OnProgress<'p>>,
    ) -> Self {
        let known = samples.found.iter().zip(counts);
        let known = known.filter_map(|(found, count)| found.map(|_| *count as usize));
        Self {
            scorer,
            task,
            counts,
            done: known.sum(),
            all: counts.iter().map(|count| *count as usize).sum(),
            samples,
            progress,
            waiting: Vec::new(),
            tokens: 0,
            open: BTreeMap::new(),
        }
    }

    /// Scores the requests of all documents that have no scores yet.
    ///
    /// # Errors
    ///
    /// Returns an error if a document cannot be scored or its sample cannot be written. Returns [`Error::Stopped`] if
    /// the evaluation was stopped.
    pub fn score_all(mut self, requests: &Requests) -> Result<(), Error> {
        let (task, progress) = (self.task, self.progress);
        let mut goes_on = || (*progress.borrow_mut())(&task.name, 0, 0);
        for number in 0..task.len() {
            if self.samples.found[number].is_some() {
                continue;
            }
            if !goes_on() {
                return Err(Error::Stopped);
            }
            let document = task.document(number)?;
            let sample = Sample::new(number, &document);
            self.open.insert(number, (sample, self.counts[number]));
            let mut take = |request| self.take(request);
            requests.of((&task.name, number), &document, &mut take, &mut goes_on)?;
            if self.counts[number] == 0 {
                self.finish(number)?;
            }
        }
        self.score_waiting()
    }

    fn take(&mut self, request: Request) -> Result<(), Error> {
        self.tokens += request.context().len() + request.continuation().len();
        self.waiting.push(request);
        match self.waiting.len() >= MOST_REQUESTS || self.tokens >= MOST_TOKENS {
            true => self.score_waiting(),
            false => Ok(()),
        }
    }

    /// Scores the waiting requests. The sample of a document is written as soon as it has all scores.
    fn score_waiting(&mut self) -> Result<(), Error> {
        let requests = Arc::new(std::mem::take(&mut self.waiting));
        self.tokens = 0;
        // The range of each document's requests, and how many of them have no score yet.
        let mut parts: BTreeMap<usize, (std::ops::Range<usize>, usize)> = BTreeMap::new();
        for (place, request) in requests.iter().enumerate() {
            let (range, left) = parts.entry(request.document).or_insert((place..place, 0));
            range.end += 1;
            *left += 1;
        }
        let mut scores = vec![Score::NONE; requests.len()];
        let Scorer {
            model,
            revises,
            batch,
            device,
        } = self.scorer;
        for batch in batches(&requests, *batch) {
            let goes_on = (*self.progress.borrow_mut())(&self.task.name, self.done, self.all);
            if !goes_on {
                return Err(Error::Stopped);
            }
            let found = score_unless_stopped::<B, _>(model, *revises, &requests, &batch, device)?;
            for (place, score) in found {
                scores[place] = score;
                self.done += 1;
                let number = requests[place].document;
                let Some((range, left)) = parts.get_mut(&number) else {
                    continue;
                };
                *left -= 1;
                if *left == 0 {
                    let range = range.clone();
                    self.add(number, &requests[range.clone()], &scores[range])?;
                }
            }
        }
        Ok(())
    }

    /// Adds the scores of some of a document's requests, in order.
    fn add(&mut self, number: usize, requests: &[Request], scores: &[Score]) -> Result<(), Error> {
        let Some((sample, left)) = self.open.get_mut(&number) else {
            return Ok(());
        };
        for (request, score) in requests.iter().zip(scores) {
            sample.add(score, request.continuation().len());
            *left -= 1;
        }
        match *left {
            0 => self.finish(number),
            _ => Ok(()),
        }
    }

    /// Writes the sample of a document with all of its scores.
    fn finish(&mut self, number: usize) -> Result<(), Error> {
        let Some((sample, _)) = self.open.remove(&number) else {
            return Ok(());
        };
        if !sample.is_finite() {
            return Err(Error::Document {
                task: self.task.name.clone(),
                document: number,
                problem: "the model gives numbers that are not finite".into(),
            });
        }
        let found = Found::of(&self.task.document(number)?, &sample);
        self.samples.add(&sample, found)
    }
}
