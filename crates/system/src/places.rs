//! Errors of files and directories.

use std::io::{Error, ErrorKind};

use crate::os::files::is_link_loop;

/// Whether another path would avoid the error: the path does not exist, has the wrong kind, is not text, or may not be
/// read or written. Other errors, such as a full disk, belong to the machine.
pub fn is_wrong_place(error: &Error) -> bool {
    is_link_loop(error)
        || matches!(
            error.kind(),
            ErrorKind::NotFound
                | ErrorKind::NotADirectory
                | ErrorKind::IsADirectory
                | ErrorKind::AlreadyExists
                | ErrorKind::PermissionDenied
                | ErrorKind::ReadOnlyFilesystem
                | ErrorKind::InvalidFilename
                | ErrorKind::InvalidInput
                | ErrorKind::InvalidData
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_no_wrong_place() {
        let is_wrong = |kind: ErrorKind| is_wrong_place(&Error::from(kind));
        assert!(is_wrong(ErrorKind::NotFound) && is_wrong(ErrorKind::PermissionDenied));
        assert!(!is_wrong(ErrorKind::StorageFull) && !is_wrong(ErrorKind::FileTooLarge));
        assert!(!is_wrong(ErrorKind::Other));
    }
}
