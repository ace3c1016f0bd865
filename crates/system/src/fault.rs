//! The fault behind an error, which decides the exit code of a program.

use std::io::{Error, ErrorKind};

use crate::os::files::is_link_loop;

/// The fault behind an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The user asked for something impossible, and can ask for something else.
    Input,
    /// The machine failed to do something possible, such as to write to a full disk, or a run failed.
    Machine,
    /// The user stopped the work.
    Stop,
}

/// An error that knows the fault behind it.
pub trait Blame {
    /// The fault behind the error.
    fn fault(&self) -> Fault;

    /// Whether the user can fix the error by giving other input.
    fn is_bad_input(&self) -> bool {
        self.fault() == Fault::Input
    }

    /// Whether the user stopped the work.
    fn is_stop(&self) -> bool {
        self.fault() == Fault::Stop
    }
}

/// The input is at fault if another path would avoid the error. Examples are a path that does not exist, has the wrong
/// kind, is not text, or may not be read or written. For other errors, such as a full disk, the machine is at fault.
impl Blame for Error {
    fn fault(&self) -> Fault {
        match self.kind() {
            ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::AlreadyExists
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::InvalidFilename
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidData => Fault::Input,
            _ if is_link_loop(self) => Fault::Input,
            _ => Fault::Machine,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_no_wrong_place() {
        let is_wrong = |kind: ErrorKind| Error::from(kind).is_bad_input();
        assert!(is_wrong(ErrorKind::NotFound) && is_wrong(ErrorKind::PermissionDenied));
        assert!(!is_wrong(ErrorKind::StorageFull) && !is_wrong(ErrorKind::FileTooLarge));
        assert!(!is_wrong(ErrorKind::Other));
    }
}
