//! Reads whole files strictly and writes them atomically.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::DataError;

/// The bytes of the regular file `path`.
///
/// # Errors
///
/// [`DataError::NotFound`]; [`DataError::NotAFile`] for a directory, and for a pipe or a device,
/// which might never end; I/O errors.
pub fn read_file(path: &Path) -> Result<Vec<u8>, DataError> {
    check_is_file(path)?;
    fs::read(path).map_err(|e| DataError::io(path, "read", e))
}

/// Refuses a path that does not exist or is not a regular file.
///
/// # Errors
///
/// [`DataError::NotFound`]; [`DataError::NotAFile`]; I/O errors.
pub fn check_is_file(path: &Path) -> Result<(), DataError> {
    let metadata = fs::metadata(path).map_err(|e| DataError::io(path, "read", e))?;
    match metadata.is_file() {
        true => Ok(()),
        false => Err(DataError::NotAFile {
            path: path.to_path_buf(),
        }),
    }
}

/// The text of the regular file `path`.
///
/// # Errors
///
/// Those of [`read_file`], and [`DataError::NotUtf8`].
pub fn read_utf8(path: &Path) -> Result<String, DataError> {
    String::from_utf8(read_file(path)?).map_err(|e| DataError::NotUtf8 {
        path: path.to_path_buf(),
        offset: e.utf8_error().valid_up_to(),
    })
}

/// Writes `path` atomically: it has either its old content or everything that `fill` writes.
pub(crate) fn write_atomically(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), DataError> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let write = || {
        let file = temporary().tempfile_in(folder)?;
        let mut writer = BufWriter::with_capacity(1 << 16, file.as_file());
        fill(&mut writer)?;
        writer.flush()?;
        drop(writer);
        file.as_file().sync_all()?;
        file.persist(path).map(drop).map_err(|e| e.error)
    };
    write().map_err(|e| DataError::io(path, "write", e))
}

/// The names of files that are being written begin with this.
pub(crate) const TEMPORARY: &str = ".tmp";

/// Makes temporary files with the permissions of an ordinary new file.
fn temporary() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(TEMPORARY);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_content_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        write_atomically(&path, |w| w.write_all(b"old")).unwrap();
        let failed = write_atomically(&path, |w| {
            w.write_all(b"new")?;
            Err(io::Error::other("stop"))
        });
        assert!(!failed.unwrap_err().is_bad_input());
        assert_eq!(read_file(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn text_that_is_not_utf8_is_refused_with_its_offset() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("latin1.txt");
        fs::write(&path, b"caf\xe9").unwrap();
        assert!(matches!(
            read_utf8(&path).unwrap_err(),
            DataError::NotUtf8 { offset: 3, path: p } if p == path
        ));
    }
}
