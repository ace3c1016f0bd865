//! The files of a run that stay the same while it trains: config, tokenizer, data identity and history.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use residual_zoo_data::Tokenizer;

use super::TOKENIZER;
use crate::checkpoint::move_away;
use crate::{Error, disk};

/// A file that stays the same while the run trains.
pub struct Fixed {
    name: &'static str,
    content: Content,
    /// The BLAKE3 hash of the file.
    hash: blake3::Hash,
}

enum Content {
    Text(String),
    /// A tokenizer. Its text may be long, so the text is made only when it is needed.
    Tokenizer(Tokenizer),
}

impl Content {
    fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => text.into(),
            Self::Tokenizer(tokenizer) => tokenizer.to_json().into(),
        }
    }
}

impl Fixed {
    /// Makes the file `name` with the content `text`.
    pub fn new(name: &'static str, text: String) -> Self {
        let hash = blake3::hash(text.as_bytes());
        let content = Content::Text(text);
        Self {
            name,
            content,
            hash,
        }
    }

    /// Makes the file of the run's tokenizer.
    pub fn tokenizer(tokenizer: Tokenizer) -> Self {
        let content = Content::Tokenizer(tokenizer);
        Self {
            name: TOKENIZER,
            hash: blake3::hash(content.text().as_bytes()),
            content,
        }
    }

    /// Returns the file as it is in `run`, where another version of the program may have written the same content in a
    /// different form. Writes the file if it is missing.
    pub fn found_in(mut self, run: &Path) -> Result<Self, Error> {
        let path = run.join(self.name);
        match fs::symlink_metadata(&path) {
            Err(_) => self.write(run)?,
            Ok(_) => {
                disk::refuse_link(&path)?;
                let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
                self.hash = blake3::hash(&bytes);
            }
        }
        Ok(self)
    }

    /// Writes the file into `run`.
    pub fn write(&self, run: &Path) -> Result<(), Error> {
        disk::write(&run.join(self.name), self.content.text().as_bytes())
    }

    /// Writes the file into `run` again if another program has deleted or changed it, and returns a note about the
    /// change. First renames a changed file, because the change may be an edit that the user wants to use later.
    pub fn restore(&mut self, run: &Path) -> Result<Option<String>, Error> {
        let path = run.join(self.name);
        let shown = path.display();
        let note = match fs::symlink_metadata(&path) {
            Err(_) => format!("{shown} vanished while the run was training; it was written again"),
            Ok(there) if there.is_file() && self.is_content_of(&path) => return Ok(None),
            Ok(_) => {
                let moved = move_away(&path)?;
                format!(
                    "{shown} was changed by another program while the run was training; it was written again, and what \
                     stood there is now {}",
                    moved.display()
                )
            }
        };
        let text = self.content.text();
        disk::replace(&path, text.as_bytes())?;
        self.hash = blake3::hash(text.as_bytes());
        Ok(Some(note))
    }

    /// Whether this is the file `name`.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name
    }

    /// Whether the file in `run` is unchanged.
    pub fn is_unchanged_in(&self, run: &Path) -> bool {
        self.is_content_of(&run.join(self.name))
    }

    fn is_content_of(&self, path: &Path) -> bool {
        fs::read(path).is_ok_and(|bytes| blake3::hash(&bytes) == self.hash)
    }
}
