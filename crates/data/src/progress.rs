//! Progress reports of data preparation.

use std::fmt;

use crate::DataError;

/// A stage of the preparation of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Downloads a file.
    Downloading,
    /// Waits for another process that tokenizes the same text.
    Waiting,
    /// Reads the text. The reported total is 0, because the length of the text is unknown.
    Reading,
    /// Reads the text that a tokenizer is trained on.
    Learning,
    /// Trains a tokenizer on the text. The progress is unknown.
    Training,
    /// Tokenizes text.
    Tokenizing,
    /// Reads the headers of images. Counts files instead of bytes.
    Checking,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Downloading => "downloading",
            Self::Waiting => "waiting for another process that tokenizes this text",
            Self::Reading => "reading the text",
            Self::Learning => "reading the text to train a tokenizer",
            Self::Training => "training the tokenizer",
            Self::Tokenizing => "tokenizing",
            Self::Checking => "reading the headers of the images",
        })
    }
}

/// Receives the stage, the number of bytes or files that are done, and their total number. Returns false to stop the
/// preparation.
pub type OnProgress<'a> = &'a mut (dyn FnMut(Stage, u64, u64) -> bool + Send);

/// Reports progress.
///
/// # Errors
///
/// Returns [`DataError::Stopped`] if the receiver stops the preparation.
pub(crate) fn report(
    progress: OnProgress,
    stage: Stage,
    done: usize,
    all: usize,
) -> Result<(), DataError> {
    match progress(stage, done as u64, all as u64) {
        true => Ok(()),
        false => Err(DataError::Stopped),
    }
}
