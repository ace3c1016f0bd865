//! Responses that clients have not read yet, and the memory that all of them take together.

use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::Scored;
use crate::request::ApiError;
use crate::room::{Part, Room};
use crate::writer::Piece;

/// Bytes of a response for which there is always memory.
const FREE: usize = 64 << 10;

/// Maximum number of bytes of all responses together, beyond the first [`FREE`] bytes of each.
const MOST_OF_ALL: usize = 128 << 20;

/// The bytes that a piece or a token takes in addition to its text, and the bytes of each of the most likely tokens.
const BYTES: usize = 128;
const BYTES_OF_TOP: usize = 64;

/// Returns the memory that all responses share.
pub fn room() -> Room {
    Room::new(FREE, MOST_OF_ALL)
}

/// The memory of the part of a response that its client has not read. The choices of the response share this memory.
#[derive(Clone)]
pub struct Unread(Arc<Mutex<Part>>);

impl Unread {
    /// Makes the memory of an empty response.
    pub fn new(room: &Room) -> Self {
        Self(Arc::new(room.part().into()))
    }

    fn part<T>(&self, work: impl FnOnce(&mut Part) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes memory for more of the response.
    ///
    /// # Errors
    ///
    /// Returns status 503 if there is not enough memory.
    pub fn add(&self, bytes: usize) -> Result<(), ApiError> {
        let has_room = self.part(|part| part.resize(part.bytes() + bytes));
        if has_room { Ok(()) } else { Err(full()) }
    }

    /// Gives back the memory of bytes that go to the client.
    pub fn remove(&self, bytes: usize) {
        self.part(|part| _ = part.resize(part.bytes().saturating_sub(bytes)));
    }

    /// Sets the memory of a whole response.
    ///
    /// # Errors
    ///
    /// Returns status 503 if there is not enough memory.
    pub fn set(&self, bytes: usize) -> Result<(), ApiError> {
        let has_room = self.part(|part| part.resize(bytes));
        if has_room { Ok(()) } else { Err(full()) }
    }

    /// Returns the bytes that the response takes from the shared memory.
    pub fn shared(&self) -> usize {
        self.part(|part| part.shared())
    }
}

/// Returns the number of bytes of a piece, without its tokens.
pub fn of_text(text: &str) -> usize {
    BYTES + text.len()
}

/// Returns the bytes that a token with its log-probabilities takes in a response.
pub fn of_token(scored: &Scored) -> usize {
    BYTES + BYTES_OF_TOP * scored.top.len()
}

/// Returns the number of bytes of a piece.
pub fn of_piece(piece: &Piece) -> usize {
    let tokens = piece.tokens.iter().map(|token| of_token(&token.scored));
    of_text(&piece.text) + tokens.sum::<usize>()
}

fn full() -> ApiError {
    let problem = "unread responses take all the memory that the server has for them; ask for less at \
                   once, or try again in a moment";
    ApiError::new(503, "no_room", problem)
}
