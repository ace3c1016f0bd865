//! The likelihood of continuations.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor, TensorData, backend::Backend};
use residual_zoo_core::{LanguageModel, Precision};
use residual_zoo_data::{DataError, unless_stopped};

use crate::Error;
use crate::request::Request;

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// The logarithm of the probability of the continuation, in nats.
    pub log_likelihood: f64,
    /// Whether each token of the continuation is the most likely one.
    pub is_greedy: bool,
}

impl Score {
    /// The score of an empty continuation.
    pub const NONE: Self = Self {
        log_likelihood: 0.0,
        is_greedy: true,
    };
}

/// The indices of requests that are scored together, by row of the batch.
///
/// A batch has one of two forms. In the first, each row has one continuation; all contexts have the same length, and so
/// do all continuations. In the second, a single row has several continuations of the same context.
pub type Batch = Vec<Vec<usize>>;

/// Maximum number of logits that are computed at once. A batch exceeds this maximum if one token per row already needs
/// more logits. A model that revises earlier positions can exceed it too, because such a model reads each sequence as a
/// whole.
pub const MOST_LOGITS: usize = 1 << 24;

/// Maximum number of continuations of one context that are scored together. A text that repeats itself can have many
/// windows with the same context.
const MOST_SHARED: usize = 256;

/// Groups requests into batches. Requests of a document with the same context share a batch. Other batches have at most
/// `rows` requests. Nothing is padded, because an appended token can change earlier results, as in a recurrent
/// transformer.
pub fn batches(requests: &[Request], rows: usize) -> Vec<Batch> {
    let mut shared: BTreeMap<(usize, &[u32]), Vec<usize>> = BTreeMap::new();
    for (place, request) in requests.iter().enumerate() {
        let key = (request.document, request.context());
        shared.entry(key).or_default().push(place);
    }
    let (single, several): (Vec<_>, Vec<_>) =
        shared.into_values().partition(|group| group.len() == 1);
    let mut equal: BTreeMap<(usize, usize), Vec<Vec<usize>>> = BTreeMap::new();
    for group in single {
        let request = &requests[group[0]];
        let lengths = (request.context().len(), request.continuation().len());
        equal.entry(lengths).or_default().push(group);
    }
    let several = several.iter().flat_map(|group| group.chunks(MOST_SHARED));
    let mut batches: Vec<Batch> = several.map(|group| vec![group.to_vec()]).collect();
    for groups in equal.into_values() {
        batches.extend(groups.chunks(rows.max(1)).map(<[_]>::to_vec));
    }
    // The batches are in the order of their first requests.
    batches.sort_by_key(|batch| batch[0][0]);
    batches
}

/// Scores a batch like [`score`], but on Flex the user can stop the process within a forward pass. Passes of other
/// backends are short.
///
/// # Errors
///
/// Returns [`Error::Stopped`] if the user stops the process.
pub fn score_unless_stopped<B: Backend, M: LanguageModel<B>>(
    model: &M,
    revises: bool,
    requests: &Arc<Vec<Request>>,
    batch: &Batch,
    device: &B::Device,
) -> Result<Vec<(usize, Score)>, Error> {
    if !B::name(device).contains("flex") {
        return Ok(score::<B, _>(model, revises, requests, batch, device));
    }
    let (model, requests) = (model.clone(), requests.clone());
    let (batch, device, precision) = (batch.clone(), device.clone(), Precision::now());
    let scored = unless_stopped(move || {
        precision.during(|| score::<B, _>(&model, revises, &requests, &batch, &device))
    });
    scored.map_err(|error| match error {
        DataError::Stopped => Error::Stopped,
        error => error.into(),
    })
}

/// Scores a batch of `requests`. Returns the indices of the requests and their scores.
///
/// The context is read once, and only the logits after its last token are computed. Each continuation starts from a
/// copy of the cache. If the model `revises` earlier positions, each sequence is read as a whole, as in training.
fn score<B: Backend, M: LanguageModel<B>>(
    model: &M,
    revises: bool,
    requests: &[Request],
    batch: &Batch,
    device: &B::Device,
) -> Vec<(usize, Score)> {
    let contexts: Vec<&[u32]> = batch.iter().map(|row| requests[row[0]].context()).collect();
    let read = (!revises).then(|| {
        let mut cache = model.new_cache();
        let next = model.predict(ids::<B>(&contexts, device), &mut cache);
        (next, cache)
    });
    // The continuations by round: all first continuations, then all second ones.
    let count = batch.iter().map(Vec::len).max().unwrap_or(0);
    let mut scores = Vec::new();
    for turn in 0..count {
        let places: Vec<usize> = batch.iter().map(|row| row[turn]).collect();
        let continuations: Vec<&[u32]> = places
            .iter()
            .map(|place| requests[*place].continuation())
            .collect();
        let found = match &read {
            Some((next, cache)) => continue_with(
                model,
                next.clone(),
                &continuations,
                &mut cache.clone(),
                device,
            ),
            None => whole(model, &contexts, &continuations, device),
        };
        scores.extend(places.into_iter().zip(found));
    }
    scores
}

/// Scores continuations of equal length from the logits of the whole sequences.
fn whole<B: Backend, M: LanguageModel<B>>(
    model: &M,
    contexts: &[&[u32]],
    continuations: &[&[u32]],
    device: &B::Device,
) -> Vec<Score> {
    let (before, new) = (contexts[0].len(), continuations[0].len());
    let rows = contexts.iter().zip(continuations);
    let sequences: Vec<Vec<u32>> = rows
        .map(|(context, continuation)| [context, &continuation[..new - 1]].concat())
        .collect();
    let sequences: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
    let logits = model.forward(ids::<B>(&sequences, device));
    let mut scores = vec![Score::NONE; contexts.len()];
    add(
        &mut scores,
        logits.narrow(1, before - 1, new),
        ids(continuations, device),
    );
    scores
}

/// Scores continuations of equal length, one for each row. `next` holds the logits `[rows, vocab]` after the cached
/// tokens.
fn continue_with<B: Backend, M: LanguageModel<B>>(
    model: &M,
    next: Tensor<B, 2>,
    continuations: &[&[u32]],
    cache: &mut M::Cache,
    device: &B::Device,
) -> Vec<Score> {
    let (rows, length) = (continuations.len(), continuations[0].len());
    let vocabulary = next.dims()[1];
    let piece = (MOST_LOGITS / (rows * vocabulary)).max(1);
    let mut scores = vec![Score::NONE; rows];
    let part = |from: usize, to: usize| {
        let parts: Vec<&[u32]> = continuations.iter().map(|ids| &ids[from..to]).collect();
        ids::<B>(&parts, device)
    };
    add(&mut scores, next.unsqueeze_dim(1), part(0, 1));
    let mut done = 1;
    while done < length {
        let end = (done + piece).min(length);
        let logits = model.decode(part(done - 1, end - 1), cache);
        add(&mut scores, logits, part(done, end));
        done = end;
    }
    scores
}

/// Adds the likelihood of `targets` `[rows, time]`, given their logits `[rows, time, vocab]`.
fn add<B: Backend>(scores: &mut [Score], logits: Tensor<B, 3>, targets: Tensor<B, 2, Int>) {
    let time = targets.dims()[1];
    let best = logits
        .clone()
        .argmax(2)
        .squeeze_dim::<2>(2)
        .equal(targets.clone());
    let found = log_softmax(logits, 2).gather(2, targets.unsqueeze_dim(2));
    let found: Vec<f64> = found.into_data().iter::<f64>().collect();
    let best: Vec<bool> = best.into_data().iter::<bool>().collect();
    for (row, score) in scores.iter_mut().enumerate() {
        let range = row * time..(row + 1) * time;
        score.log_likelihood += found[range.clone()].iter().sum::<f64>();
        score.is_greedy &= best[range].iter().all(|best| *best);
    }
}

fn ids<B: Backend>(rows: &[&[u32]], device: &B::Device) -> Tensor<B, 2, Int> {
    let flat: Vec<i32> = rows
        .iter()
        .flat_map(|row| row.iter().map(|&id| id as i32))
        .collect();
    Tensor::from_data(TensorData::new(flat, [rows.len(), rows[0].len()]), device)
}

#[cfg(test)]
mod tests {
    use residual_zoo_data::{Tokenizer, TokenizerConfig};

    use super::*;
    use crate::request::Requests;

    #[test]
    fn windows_of_a_text_that_repeats_itself_are_not_all_one_batch() {
        let tokenizer = Tokenizer::train(&TokenizerConfig::Bytes, &[]).unwrap();
        let requests = Requests {
            tokenizer: &tokenizer,
            most: 8,
            stride: 1,
        };
        let document = crate::document::roll(Arc::new("x".repeat(2000)));
        let mut all = Vec::new();
        let mut take = |request| {
            all.push(request);
            Ok(())
        };
        requests
            .of(("task", 0), &document, &mut take, &mut || true)
            .unwrap();
        let batches = batches(&all, 4);
        let mut places: Vec<usize> = batches.iter().flatten().flatten().copied().collect();
        places.sort_unstable();
        assert_eq!(places, (0..all.len()).collect::<Vec<_>>());
        assert!(batches.iter().flatten().all(|row| row.len() <= MOST_SHARED));
    }
}
