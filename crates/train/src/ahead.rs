//! Reads each batch ahead, while the previous one is in use.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use residual_zoo_data::{Batch, DataError, Sequences};

/// The place of a batch in training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place {
    pub seed: u64,
    pub step: u64,
    pub micro: u64,
    /// Number of sequences.
    pub batch: usize,
}

/// Training sequences. If they are slow to read, other threads read each batch while the previous one is in use. The
/// batches are the same either way.
pub(crate) struct Ahead {
    pub sequences: Sequences,
    next: Mutex<Option<Reading>>,
}

/// A batch that is being read.
type Reading = (Place, JoinHandle<Result<Batch, DataError>>);

impl Ahead {
    pub fn new(sequences: Sequences) -> Self {
        Self {
            sequences,
            next: Mutex::new(None),
        }
    }

    /// Returns the batch at `here`, with the curriculum at `level`. `next` is the place of the batch that probably
    /// follows.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Sequences::random_batch`].
    pub fn batch(&self, level: usize, here: Place, next: Place) -> Result<Batch, DataError> {
        if !self.sequences.are_read_ahead() {
            return read(&self.sequences.at_level(level), here);
        }
        // A panic under the lock leaves no batch behind, so poisoning can be ignored.
        let mut waiting = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = match waiting.take() {
            Some((place, reading)) if place == here => reading
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            _ => read(&self.sequences, here),
        }?;
        let sequences = self.sequences.clone();
        *waiting = Some((next, thread::spawn(move || read(&sequences, next))));
        Ok(batch)
    }
}

fn read(sequences: &Sequences, place: Place) -> Result<Batch, DataError> {
    let Place {
        seed,
        step,
        micro,
        batch,
    } = place;
    sequences.random_batch(seed, step, micro, batch)
}
