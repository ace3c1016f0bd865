//! Checks token ids and turns them into a tensor. Models do not check them again.

use burn::tensor::{Int, Tensor, TensorData, backend::Backend};

/// An error in a batch of token ids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdsError {
    /// No sequence, or sequences without ids.
    #[error("there are no token ids; give at least one sequence with at least one id")]
    Empty,
    /// Sequences of different lengths.
    #[error(
        "sequence {sequence} has {found} token ids, but sequence 0 has {expected}; all sequences of \
         a batch must have the same length"
    )]
    Ragged {
        /// Index of the sequence, from 0.
        sequence: usize,
        /// Length of the sequence.
        found: usize,
        /// Length of the first sequence.
        expected: usize,
    },
    /// Sequences longer than the context of the model.
    #[error("sequences of {time} token ids are longer than the model's context of {context}")]
    TooLong {
        /// Number of ids in a sequence.
        time: usize,
        /// Number of positions of the model.
        context: usize,
    },
    /// A token id outside the vocabulary.
    #[error(
        "token id {id} (sequence {sequence}, position {position}) is outside the vocabulary; ids \
         must be below {vocab_size}"
    )]
    Unknown {
        /// The id that is outside the vocabulary.
        id: u32,
        /// Index of the sequence, from 0.
        sequence: usize,
        /// Position in the sequence, from 0.
        position: usize,
        /// Number of token ids of the model.
        vocab_size: usize,
    },
}

/// Turns token ids into the tensor `[batch, time]` that a [`LanguageModel`](crate::LanguageModel) reads. The model has
/// `vocab_size` token ids and `context` positions. All sequences must have the same length.
///
/// # Errors
///
/// Returns an error if the batch is empty, if the lengths differ or exceed the context, or if an id is outside the
/// vocabulary.
pub fn token_ids<B: Backend>(
    sequences: &[impl AsRef<[u32]>],
    (vocab_size, context): (usize, usize),
    device: &B::Device,
) -> Result<Tensor<B, 2, Int>, IdsError> {
    let time = sequences.first().map_or(0, |ids| ids.as_ref().len());
    if time == 0 {
        return Err(IdsError::Empty);
    }
    if time > context {
        return Err(IdsError::TooLong { time, context });
    }
    let mut flat = Vec::with_capacity(sequences.len() * time);
    for (sequence, ids) in sequences.iter().map(AsRef::as_ref).enumerate() {
        if ids.len() != time {
            return Err(IdsError::Ragged {
                sequence,
                found: ids.len(),
                expected: time,
            });
        }
        for (position, &id) in ids.iter().enumerate() {
            if id as usize >= vocab_size || i32::try_from(id).is_err() {
                return Err(IdsError::Unknown {
                    id,
                    sequence,
                    position,
                    vocab_size,
                });
            }
            flat.push(id as i32);
        }
    }
    let data = TensorData::new(flat, [sequences.len(), time]);
    Ok(Tensor::from_data(data, device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::Flex;

    fn ids(sequences: &[Vec<u32>]) -> Result<Vec<i64>, IdsError> {
        let tensor = token_ids::<Flex>(sequences, (10, 3), &Default::default())?;
        assert_eq!(tensor.dims(), [sequences.len(), sequences[0].len()]);
        Ok(tensor.into_data().iter::<i64>().collect())
    }

    #[test]
    fn sequences_are_the_rows_of_the_tensor() {
        assert_eq!(
            ids(&[vec![1, 2, 3], vec![9, 0, 4]]),
            Ok(vec![1, 2, 3, 9, 0, 4])
        );
    }

    #[test]
    fn what_no_model_can_take_is_an_error() {
        assert_eq!(ids(&[]), Err(IdsError::Empty));
        assert_eq!(ids(&[vec![]]), Err(IdsError::Empty));
        let (time, context) = (4, 3);
        assert_eq!(ids(&[vec![1; 4]]), Err(IdsError::TooLong { time, context }));
        let (sequence, found, expected) = (1, 1, 2);
        let ragged = IdsError::Ragged {
            sequence,
            found,
            expected,
        };
        assert_eq!(ids(&[vec![1, 2], vec![1]]), Err(ragged));
        for id in [10, u32::MAX] {
            let (sequence, position, vocab_size) = (1, 0, 10);
            let unknown = IdsError::Unknown {
                id,
                sequence,
                position,
                vocab_size,
            };
            assert_eq!(ids(&[vec![1, 2], vec![id, 1]]), Err(unknown));
        }
    }
}
