//! Answers that clients have not read yet, and the memory that all of them take together.

use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::Scored;
use crate::request::ApiError;
use crate::room::{Part, Room};
use crate::writer::Piece;

/// The bytes of an answer for which there is always room.
const FREE: usize = 64 << 10;

/// Most bytes of all answers together, other than those that are free.
const MOST_OF_ALL: usize = 128 << 20;

/// The bytes that a piece or a token takes besides its text, and those of one of the most likely tokens.
const BYTES: usize = 128;
const BYTES_OF_TOP: usize = 64;

/// The room that all answers share.
pub fn room() -> Room {
    Room::new(FREE, MOST_OF_ALL)
}

/// The part of an answer that its client has not read. The choices of the answer share it.
#[derive(Clone)]
pub struct Unread(Arc<Mutex<Part>>);

impl Unread {
    /// An empty answer.
    pub fn new(room: &Room) -> Self {
        Self(Arc::new(room.part().into()))
    }

    fn part<T>(&self, work: impl FnOnce(&mut Part) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes room for more of the answer.
    ///
    /// # Errors
    ///
    /// Status 503 when there is none.
    pub fn add(&self, bytes: usize) -> Result<(), ApiError> {
        let has_room = self.part(|part| part.resize(part.bytes() + bytes));
        if has_room { Ok(()) } else { Err(full()) }
    }

    /// Gives the room of a part back that goes to the client.
    pub fn remove(&self, bytes: usize) {
        self.part(|part| _ = part.resize(part.bytes().saturating_sub(bytes)));
    }

    /// Sets the room of a whole answer.
    ///
    /// # Errors
    ///
    /// Status 503 when there is none.
    pub fn set(&self, bytes: usize) -> Result<(), ApiError> {
        let has_room = self.part(|part| part.resize(bytes));
        if has_room { Ok(()) } else { Err(full()) }
    }

    /// The bytes that the answer takes from the room of all.
    pub fn shared(&self) -> usize {
        self.part(|part| part.shared())
    }
}

/// The memory of a piece, without its tokens.
pub fn of_text(text: &str) -> usize {
    BYTES + text.len()
}

/// The memory of a token with its log-probabilities, as a part of an answer.
pub fn of_token(scored: &Scored) -> usize {
    BYTES + BYTES_OF_TOP * scored.top.len()
}

/// The memory of a piece.
pub fn of_piece(piece: &Piece) -> usize {
    let tokens = piece.tokens.iter().map(|token| of_token(&token.scored));
    of_text(&piece.text) + tokens.sum::<usize>()
}

fn full() -> ApiError {
    let problem = "answers that clients have not read take as much memory as the server has for them; ask for less at \
                   once, or try again in a moment";
    ApiError::new(503, "no_room", problem)
}
