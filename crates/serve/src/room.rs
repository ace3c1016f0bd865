//! Memory that all clients share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory for one purpose. Each client has some memory of its own, and takes more from the memory that all clients
/// share.
#[derive(Clone)]
pub struct Room {
    /// Bytes that each [`Part`] always has.
    own: usize,
    /// Bytes that all parts share.
    most: usize,
    free: Arc<AtomicUsize>,
}

impl Room {
    /// Makes a room with `most` shared bytes, and with `own` bytes for each part.
    pub fn new(own: usize, most: usize) -> Self {
        Self {
            own,
            most,
            free: Arc::new(most.into()),
        }
    }

    /// Makes an empty part of the room.
    pub fn part(&self) -> Part {
        Part {
            room: self.clone(),
            bytes: 0,
        }
    }

    /// Returns the number of bytes to give back so that a quarter of the shared memory is free.
    pub fn missing(&self) -> usize {
        let free = self.free.load(Ordering::Relaxed);
        (self.most / 4).saturating_sub(free)
    }
}

/// The memory of one client. It is free again when the part is dropped.
pub struct Part {
    room: Room,
    bytes: usize,
}

impl Part {
    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of bytes from the shared memory.
    pub fn shared(&self) -> usize {
        self.bytes.saturating_sub(self.room.own)
    }

    /// Changes the number of bytes. Returns false, and changes nothing, if the shared memory does not suffice.
    #[must_use]
    pub fn resize(&mut self, bytes: usize) -> bool {
        let (before, after) = (self.shared(), bytes.saturating_sub(self.room.own));
        let free = &self.room.free;
        if after > before {
            let take = |free: usize| free.checked_sub(after - before);
            if free
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .is_err()
            {
                return false;
            }
        } else {
            free.fetch_add(before - after, Ordering::Relaxed);
        }
        self.bytes = bytes;
        true
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_its_own_memory_and_all_share_the_rest() {
        let room = Room::new(10, 100);
        let mut all: Vec<Part> = (0..3).map(|_| room.part()).collect();
        assert!(all[0].resize(70) && all[1].resize(50));
        assert_eq!((all[0].shared(), all[1].shared()), (60, 40));
        assert_eq!(room.missing(), 25);
        assert!(all[2].resize(10) && !all[2].resize(11) && !all[1].resize(51));
        assert_eq!((all[1].bytes(), all[2].bytes()), (50, 10));
        assert!(all[0].resize(45) && room.missing() == 0);
        assert!(all[2].resize(35) && !all[2].resize(36));
        drop(all);
        assert!(room.part().resize(110) && !room.part().resize(111));
    }
}
