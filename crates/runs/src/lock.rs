//! Locks a directory, so that only one process at a time writes there.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use residual_zoo_system::{files, process};

use crate::{Error, disk};

/// Name of the lock file in the run directory.
pub const LOCK: &str = "lock";

/// The lock of a directory, such as a run directory, held until it is dropped.
pub struct Lock {
    /// The lock file, which is unlocked when it is closed, even if the process is killed.
    file: File,
    keeps_out: bool,
}

impl Drop for Lock {
    /// Unlocks the file explicitly, because closing it may not be enough. Between fork and exec, a child process shares
    /// the open file and would keep the lock.
    fn drop(&mut self) {
        // The error is ignored, because file systems without locks have nothing to unlock.
        self.file.unlock().ok();
    }
}

impl Lock {
    /// Locks the directory `run` and writes the owner to the lock file.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Locked`] if another process holds the lock, [`Error::Checkpoint`] if the lock file is not a
    /// regular file or has a second name (a hard link), and I/O errors.
    pub fn take(run: &Path) -> Result<Self, Error> {
        let path = run.join(LOCK);
        disk::refuse_to_write(&path)?;
        let mut options = fs::OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(Error::io("write", &path))?;
        let keeps_out = match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                file.take(1000).read_to_string(&mut owner).ok();
                let owner = match owner.trim() {
                    "" => "another process".into(),
                    owner => owner.into(),
                };
                return Err(Error::Locked {
                    path: run.into(),
                    owner,
                });
            }
            // Without locks, the user must make sure that only one process trains a run.
            Err(TryLockError::Error(error)) if files::has_no_locks(&error) => false,
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
        };
        let written = file.set_len(0).and_then(|()| {
            file.seek(SeekFrom::Start(0))?;
            let host = process::host().map(|host| format!(" on {host}"));
            writeln!(
                file,
                "process {}{}",
                std::process::id(),
                host.unwrap_or_default()
            )
        });
        written.map_err(Error::io("write", &path))?;
        Ok(Self { file, keeps_out })
    }

    /// Whether another process has locked the run directory `run`.
    pub fn is_held(run: &Path) -> bool {
        let file = File::open(run.join(LOCK));
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Whether the lock excludes other processes. Some network file systems have no locks.
    pub fn keeps_out(&self) -> bool {
        self.keeps_out
    }

    /// Whether this is still the lock of the directory `run`, which may have been deleted or
    /// replaced.
    pub fn is_of(&self, run: &Path) -> bool {
        let there = fs::symlink_metadata(run.join(LOCK)).ok();
        let held = self.file.metadata().ok();
        let both = there.zip(held);
        both.is_some_and(|(there, held)| files::is_same(&there, &held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_lock_is_free_although_the_file_is_still_open() {
        let run = tempfile::tempdir().unwrap();
        let lock = Lock::take(run.path()).unwrap();
        let shared = lock.file.try_clone().unwrap();
        assert!(Lock::is_held(run.path()));
        drop(lock);
        assert!(!Lock::is_held(run.path()));
        Lock::take(run.path()).unwrap();
        drop(shared);
    }
}
