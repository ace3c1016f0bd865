//! All changes that a run makes on disk, except to its lock. The changes are in one module, so that tests can make each
//! change fail.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use residual_zoo_system::files;

use crate::Error;

/// Creates a directory and its parents.
pub fn create_directories(path: &Path) -> Result<(), Error> {
    let made = fault("create", path).and_then(|()| fs::create_dir_all(path));
    made.map_err(Error::io("create", path))
}

/// Creates a directory, but not its parents. A run whose directory was deleted thus does not recreate that directory.
pub fn create_directory(path: &Path) -> Result<(), Error> {
    let made = fault("create", path).and_then(|()| fs::create_dir(path));
    made.map_err(Error::io("create", path))
}

/// Refuses a path that is not a regular file. Through a link, a run would read or write outside its directory. A
/// missing file is allowed.
pub fn refuse_link(path: &Path) -> Result<(), Error> {
    let problem = match fs::symlink_metadata(path) {
        Ok(there) if there.is_symlink() => {
            "is not a regular file but a link; a run keeps its files in its own directory: replace it with a copy"
        }
        Ok(there) if !there.is_file() => {
            "is not a regular file, and stands in the place of a file of the run; move it away"
        }
        _ => return Ok(()),
    };
    Err(Error::Checkpoint {
        path: path.into(),
        problem: problem.into(),
    })
}

/// Refuses a path that is not a regular file. Also refuses a file with a second name (a hard link), such as in a
/// backup, because writing would change the backup too.
pub(crate) fn refuse_to_write(path: &Path) -> Result<(), Error> {
    refuse_link(path)?;
    let has_others = fs::symlink_metadata(path).is_ok_and(|file| files::has_other_names(&file));
    match has_others {
        false => Ok(()),
        true => Err(Error::Checkpoint {
            path: path.into(),
            problem: "has another name (a hard link), under which it would change too; replace it with a copy".into(),
        }),
    }
}

/// Refuses a link or a file at `path`, which must be a directory of a run. The target of a link does not belong to the
/// run. A missing directory is allowed.
pub fn refuse_linked_directory(path: &Path) -> Result<(), Error> {
    let problem = match fs::symlink_metadata(path) {
        Ok(there) if there.is_symlink() => {
            "is a link; a run keeps everything in its own directory: replace it with the directory"
        }
        Ok(there) if !there.is_dir() => {
            "is not a directory, and stands in the place of a directory of the run; move it away"
        }
        _ => return Ok(()),
    };
    Err(Error::Checkpoint {
        path: path.into(),
        problem: problem.into(),
    })
}

/// Writes a file and waits until it is on disk.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    refuse_to_write(path)?;
    let written = File::create(path).and_then(|mut file| write_all(&mut file, path, bytes));
    written.map_err(Error::io("write", path))?;
    sync(path)
}

/// Writes a file with `write`, which creates it at `path`, and waits until it is on disk. With the feature `faults`,
/// `write` is called twice.
pub fn write_by(path: &Path, write: impl Fn() -> io::Result<()>) -> Result<(), Error> {
    refuse_to_write(path)?;
    let written = write_half(path, &write).and_then(|()| write());
    written.map_err(Error::io("write", path))?;
    sync(path)
}

/// Appends `bytes` to `file`, which is open at `path`.
pub fn append(file: &mut File, path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write_all(file, path, bytes).map_err(Error::io("write", path))
}

/// Opens a file for appending, after truncating it to its first `keep` bytes.
pub fn open_to_append(path: &Path, keep: u64) -> Result<File, Error> {
    refuse_to_write(path)?;
    let open = || {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        if file.metadata()?.len() > keep {
            fault("truncate", path)?;
            file.set_len(keep)?;
        }
        Ok(file)
    };
    open().map_err(Error::io("write", path))
}

/// Replaces a file atomically. The file has either the old or the new content, even if the process stops meanwhile.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    replace_by(path, &beside(path, ".partial"), |aside| write(aside, bytes))
}

/// Like [`replace`], for a file that several processes may write at the same time.
pub fn replace_shared(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    replace_by(path, &own_beside(path), |aside| write(aside, bytes))
}

/// Writes an output file that the user names, such as a chart or a table. The content is first written to a temporary
/// file, so an earlier output file stays intact if the disk is full. If the path is a link, its target is replaced.
/// Pipes and devices are written directly.
pub fn write_output(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let target = fs::canonicalize(path).or_else(|_| std::path::absolute(path));
    let target = target.map_err(Error::io("write", path))?;
    if fs::metadata(&target).is_ok_and(|there| !there.is_file()) {
        let written = files::open_pipe(&target).and_then(|mut pipe| pipe.write_all(bytes));
        return written.map_err(Error::io("write", path));
    }
    let written = replace_by(&target, &own_beside(&target), |aside| {
        write(aside, bytes)?;
        match fs::metadata(&target) {
            Ok(there) => {
                fs::set_permissions(aside, there.permissions()).map_err(Error::io("write", path))
            }
            Err(_) => Ok(()),
        }
    });
    written.map_err(|error| match error {
        // The error names the output file, because the user does not know the temporary file.
        Error::Io { action, source, .. } => Error::io(action, path)(source),
        error => error,
    })
}

/// Calls `write` to write a file at `aside`, and renames the file to `path`. After a failure, nothing is left at
/// `aside`.
fn replace_by(
    path: &Path,
    aside: &Path,
    write: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<(), Error> {
    // An existing link, or a file with a second name, is left alone.
    refuse_to_write(aside)?;
    let written = write(aside).and_then(|()| rename(aside, path));
    if written.is_err() {
        fs::remove_file(aside).ok();
    }
    written
}

/// Maximum number of bytes to which [`beside`] may lengthen a file name.
const SHORT: usize = 64;

/// Returns `path` with another `ending`. The new name has at most as many bytes as the name of `path`, or at most
/// [`SHORT`] bytes if that is more.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let room = name.len().max(SHORT).saturating_sub(ending.len());
    path.with_file_name(format!(
        "{}{ending}",
        &stem[..stem.floor_char_boundary(room)]
    ))
}

/// Returns a path beside `path` to which only this process writes.
fn own_beside(path: &Path) -> PathBuf {
    beside(path, &format!(".{}.partial", std::process::id()))
}

/// Renames a file or directory and waits until the new name is on disk. Replaces a file at `to`.
pub fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    let renamed = fault("rename", to).and_then(|()| fs::rename(from, to));
    renamed.map_err(Error::io("write", to))?;
    to.parent().map_or(Ok(()), sync)
}

/// Puts the directory `new` in place of `old`, and waits until the change is on disk. The content of `old` may be at
/// `new` afterwards.
pub fn replace_directory(new: &Path, old: &Path) -> Result<(), Error> {
    let replaced = fault("rename", old).and_then(|()| files::replace_directory(new, old));
    replaced.map_err(Error::io("write", old))?;
    old.parent().map_or(Ok(()), sync)
}

/// Deletes a directory and its content, if it exists.
pub fn remove_directory(path: &Path) -> Result<(), Error> {
    let removed = fault("delete", path).and_then(|()| match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    });
    removed.map_err(Error::io("delete", path))
}

/// Deletes a file, if it exists.
pub fn remove_file(path: &Path) -> Result<(), Error> {
    let removed = fault("delete", path).and_then(|()| match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    });
    removed.map_err(Error::io("delete", path))
}

/// Waits until a file, or the entries of a directory, are on disk.
pub fn sync(path: &Path) -> Result<(), Error> {
    let synced = fault("sync", path).and_then(|()| File::open(path)?.sync_all());
    synced.map_err(Error::io("write", path))
}

#[cfg(not(feature = "faults"))]
fn write_all(file: &mut File, _: &Path, bytes: &[u8]) -> std::io::Result<()> {
    file.write_all(bytes)
}

/// Writes `bytes` in two halves, so that a fault can strike between them.
#[cfg(feature = "faults")]
fn write_all(file: &mut File, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    file.write_all(first)?;
    fault("write", path)?;
    file.write_all(second)
}

#[cfg(not(feature = "faults"))]
fn write_half(_: &Path, _: impl Fn() -> io::Result<()>) -> io::Result<()> {
    Ok(())
}

/// Writes the first half of the file that `write` creates, so that a fault can strike after it.
#[cfg(feature = "faults")]
fn write_half(path: &Path, write: impl Fn() -> io::Result<()>) -> io::Result<()> {
    write()?;
    let file = OpenOptions::new().write(true).open(path)?;
    file.set_len(file.metadata()?.len() / 2)?;
    fault("write", path)
}

#[cfg(not(feature = "faults"))]
fn fault(_: &'static str, _: &Path) -> std::io::Result<()> {
    Ok(())
}

#[cfg(feature = "faults")]
use faults::fault;

/// Faults for tests, set by an environment variable. `ZOO_FAULT=12:fail` makes the 12th change on disk fail as if the
/// disk were full. `12:kill` ends the process at that change, as SIGKILL does. `12:sticky` makes that change and all
/// later changes fail. Faults are printed to standard error; `0:trace` only prints every change.
#[cfg(feature = "faults")]
mod faults {
    use std::io::{Error, ErrorKind};
    use std::path::Path;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Clone, Copy, PartialEq)]
    enum Kind {
        Fail,
        Sticky,
        Kill,
        Trace,
    }

    static PLAN: LazyLock<Option<(usize, Kind)>> = LazyLock::new(|| {
        let plan = std::env::var("ZOO_FAULT").ok()?;
        let (at, kind) = plan.split_once(':')?;
        let kind = match kind {
            "fail" => Kind::Fail,
            "sticky" => Kind::Sticky,
            "kill" => Kind::Kill,
            "trace" => Kind::Trace,
            _ => return None,
        };
        Some((at.parse().ok()?, kind))
    });
    static COUNT: AtomicUsize = AtomicUsize::new(0);

    /// Counts a change on disk and makes it fail if its turn has come.
    pub fn fault(action: &'static str, path: &Path) -> std::io::Result<()> {
        let Some((at, kind)) = *PLAN else {
            return Ok(());
        };
        let count = COUNT.fetch_add(1, Ordering::SeqCst) + 1;
        let strikes = count == at || (kind == Kind::Sticky && count > at);
        if strikes || kind == Kind::Trace {
            eprintln!("fault {count}: {action} {}", path.display());
        }
        if !strikes {
            return Ok(());
        }
        if kind == Kind::Kill {
            residual_zoo_system::process::kill_self();
        }
        Err(Error::from(ErrorKind::StorageFull))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_beside_a_file_that_cannot_be_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.html");
        // A file cannot replace a directory that is not empty.
        fs::create_dir_all(path.join("inside")).unwrap();
        for replace in [replace, replace_shared] {
            replace(&path, b"text").unwrap_err();
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        }
        // A file with a second name (a hard link) keeps its content.
        let aside = directory.path().join("report.partial");
        fs::write(&aside, "mine").unwrap();
        fs::hard_link(&aside, path.join("inside/backup")).unwrap();
        if cfg!(unix) {
            replace(&path, b"text").unwrap_err();
            assert_eq!(fs::read_to_string(&aside).unwrap(), "mine");
        }
    }

    #[test]
    fn a_name_beside_is_no_longer_than_the_name_itself() {
        for name in ["x".repeat(251) + ".svg", "é".repeat(127), "a.svg".into()] {
            for ending in [".partial", ".4194304.partial"] {
                let beside = beside(&Path::new("charts").join(&name), ending);
                let found = beside.file_name().unwrap().to_str().unwrap();
                assert!(found.len() <= name.len().max(SHORT), "{found}");
                assert!(found.ends_with(ending) && beside.starts_with("charts"));
            }
        }
        let run = |name: &str| beside(&Path::new("run").join(name), ".partial");
        assert_eq!(run("config.ron"), Path::new("run/config.partial"));
    }
}
