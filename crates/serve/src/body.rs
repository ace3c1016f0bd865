//! Request bodies, with limits on size, time and memory.

use std::time::Duration;

use axum::body::{BodyDataStream, Bytes};
use futures_util::StreamExt as _;
use tokio::time::timeout;

use crate::request::ApiError;
use crate::room::{Part, Room};

/// Maximum number of bytes of a body.
const MOST: usize = 1 << 20;

/// Bytes of a body for which there is always memory.
const FREE: usize = 64 << 10;

/// Maximum number of bytes of all bodies together, beyond the first [`FREE`] bytes of each.
const MOST_OF_ALL: usize = 32 << 20;

/// The time that a client has to send a body.
const TO_SEND: Duration = Duration::from_secs(30);

/// Maximum number of bytes that are read from a refused body, and the longest pause between two reads. The server reads
/// on because a client that is still sending may miss the response.
const MOST_DISCARDED: usize = 16 << 20;
const PAUSE: Duration = Duration::from_secs(1);

/// Returns the memory that all bodies share.
pub fn room() -> Room {
    Room::new(FREE, MOST_OF_ALL)
}

/// A body that is being received. Its memory is free again when its last bytes are dropped.
struct Received {
    bytes: Vec<u8>,
    part: Part,
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Received {
    fn new(room: &Room) -> Self {
        Self {
            bytes: Vec::new(),
            part: room.part(),
        }
    }

    fn add(&mut self, more: &[u8]) -> Result<(), ApiError> {
        let length = self.bytes.len() + more.len();
        if length > MOST {
            return Err(too_large());
        }
        if length > self.bytes.capacity() {
            let most = if length <= FREE { FREE } else { MOST };
            let capacity = length.max(2 * self.bytes.capacity()).min(most);
            if !self.part.resize(capacity) {
                return Err(full());
            }
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(more);
        Ok(())
    }
}

/// Refuses a body whose declared length is too large.
///
/// # Errors
///
/// Returns status 413 if the length exceeds the limit.
pub fn check_length(length: Option<u64>) -> Result<(), ApiError> {
    match length {
        Some(length) if length > MOST as u64 => Err(too_large()),
        _ => Ok(()),
    }
}

fn too_large() -> ApiError {
    let problem = format!("the body is larger than {MOST} bytes; send less at once");
    ApiError::new(413, "too_large", problem)
}

fn full() -> ApiError {
    let problem = "other clients are sending as many bytes as the server accepts at once; try again in a moment";
    ApiError::new(503, "no_room", problem)
}

/// Receives the whole body.
///
/// # Errors
///
/// Returns an error if the body is too large, too slow or incomplete, or if there is no memory for it.
pub async fn received(mut body: BodyDataStream, room: &Room) -> Result<Bytes, ApiError> {
    let mut all = Received::new(room);
    let reading = async {
        while let Some(part) = body.next().await {
            let incomplete = |error| {
                ApiError::new(
                    400,
                    "incomplete",
                    format!("the body cannot be read: {error}"),
                )
            };
            all.add(&part.map_err(incomplete)?)?;
        }
        Ok(())
    };
    match timeout(TO_SEND, reading).await {
        Ok(Ok(())) => Ok(Bytes::from_owner(all)),
        Ok(Err(error)) => {
            drop(all);
            discard(body).await;
            Err(error)
        }
        Err(_) => {
            let problem = format!("the body did not arrive within {} s", TO_SEND.as_secs());
            Err(ApiError::new(408, "timeout", problem))
        }
    }
}

/// Reads and drops the rest of a body.
pub async fn discard(mut body: BodyDataStream) {
    let reading = async {
        let mut count = 0;
        while let Ok(Some(Ok(part))) = timeout(PAUSE, body.next()).await
            && count < MOST_DISCARDED
        {
            count += part.len();
        }
    };
    let _ = timeout(TO_SEND, reading).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(room: &Room, length: usize) -> Result<Received, ApiError> {
        let mut all = Received::new(room);
        for part in vec![b'x'; length].chunks(1000) {
            all.add(part)?;
        }
        assert!(all.bytes.capacity() <= MOST && all.bytes.len() == length);
        Ok(all)
    }

    #[test]
    fn all_bodies_together_have_a_bound() {
        let room = room();
        let mut all = Vec::new();
        while let Ok(body) = filled(&room, MOST) {
            all.push(body);
        }
        let count = all.len();
        assert_eq!(count, MOST_OF_ALL / (MOST - FREE));
        let held: usize = all.iter().map(|body| body.bytes.capacity()).sum();
        assert!(held <= MOST_OF_ALL + count * FREE);
        let error = filled(&room, MOST).err().unwrap();
        assert_eq!((error.status, error.retry_after()), (503, Some(1)));
        // Small bodies are always accepted.
        let small: Vec<_> = (0..500).map(|_| filled(&room, FREE).unwrap()).collect();
        assert_eq!(small.len(), 500);
        // When the last bytes of a body are dropped, there is memory for another.
        let bytes = Bytes::from_owner(all.pop().unwrap());
        let slice = bytes.slice(5..9);
        drop(bytes);
        assert!(filled(&room, MOST).is_err());
        drop(slice);
        assert!(filled(&room, MOST).is_ok());
        drop(all);
        assert!(room.part().resize(FREE + MOST_OF_ALL));
    }

    #[test]
    fn a_body_has_a_bound() {
        let room = room();
        assert_eq!(filled(&room, MOST + 1).err().unwrap().status, 413);
        assert!(room.part().resize(FREE + MOST_OF_ALL));
        assert_eq!(filled(&room, 0).unwrap().bytes.capacity(), 0);
    }
}
