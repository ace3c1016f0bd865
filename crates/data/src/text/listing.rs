//! Lists the texts in a directory.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{ENDINGS, is_text_file};
use crate::{DataError, one_line};

/// The texts in a directory, and the files and directories that are left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// The texts, sorted by path.
    pub texts: Vec<PathBuf>,
    /// Files without the extension of a text.
    pub others: Left,
    /// Directories that the zoo wrote.
    pub of_zoo: Left,
}

/// Files or directories that are left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Left {
    count: usize,
    /// The first such file or directory, in path order.
    first: Option<PathBuf>,
}

impl Left {
    fn add(&mut self, path: PathBuf) {
        self.count += 1;
        if self.first.as_ref().is_none_or(|first| path < *first) {
            self.first = Some(path);
        }
    }
}

impl Listing {
    /// Lists the directory `root` and its subdirectories. Names that begin with a dot are ignored: copies that Jupyter
    /// and other programs make, and directories such as `.git`.
    ///
    /// # Errors
    ///
    /// Returns an error if `root` was written by the zoo, for a directory that cannot be read, for a symbolic link that
    /// has the extension of a text or leads to a directory, and for a dangling link.
    pub fn of(root: &Path) -> Result<Self, DataError> {
        if is_of_zoo(root) {
            return Err(DataError::OfZoo { path: root.into() });
        }
        let mut found = Self::default();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            let failed = |e| DataError::io(&folder, "read", e);
            for entry in fs::read_dir(&folder).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                if entry.file_name().as_encoded_bytes().starts_with(b".") {
                    continue;
                }
                let kind = entry.file_type().map_err(failed)?;
                let path = entry.path();
                let is_text = is_text_file(&path);
                if kind.is_dir() && is_of_zoo(&path) {
                    found.of_zoo.add(path);
                } else if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_symlink() {
                    let target =
                        fs::metadata(&path).map_err(|e| DataError::io(&path, "read", e))?;
                    if is_text || target.is_dir() {
                        return Err(DataError::Linked { path });
                    }
                    found.others.add(path);
                } else if is_text {
                    // Special files are refused when they are read.
                    found.texts.push(path);
                } else {
                    found.others.add(path);
                }
            }
        }
        found.texts.sort();
        Ok(found)
    }

    /// Returns one line for the user about files and directories that were left out, if there are any.
    pub fn note(&self) -> Option<String> {
        let [others, of_zoo] = [&self.others, &self.of_zoo].map(|left| {
            let first = one_line(left.first.as_ref()?.display());
            Some((left.count, first))
        });
        let endings = ENDINGS.map(|ending| format!(".{ending}")).join(", ");
        let others = others.map(|(count, first)| match count {
            1 => format!("`{first}` was skipped, because it is none of {endings}"),
            _ => {
                format!("{count} files were skipped that are none of {endings}, such as `{first}`")
            }
        });
        let of_zoo = of_zoo.map(|(count, first)| match count {
            1 => format!("`{first}` was skipped, because it is a run or another output of the zoo"),
            _ => {
                format!("{count} runs and other outputs of the zoo were skipped, such as `{first}`")
            }
        });
        let notes: Vec<String> = others.into_iter().chain(of_zoo).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

/// Pairs of files that mark a directory as written by the zoo. Such a directory is a run (even before it has a config),
/// a report, a checkpoint, an exported model, or an entry of the token cache.
const OF_ZOO: [[&str; 2]; 6] = [
    ["history.jsonl", "config.ron"],
    ["history.jsonl", "lock"],
    ["report.html", "results.json"],
    ["manifest.json", "model.safetensors"],
    ["config.json", "model.safetensors"],
    ["manifest.json", "tokenizer.json"],
];

/// Whether the zoo wrote the directory `folder`. The zoo's own output is not data, because it changes during training.
fn is_of_zoo(folder: &Path) -> bool {
    let has = |name: &str| folder.join(name).is_file();
    OF_ZOO
        .iter()
        .any(|names| names.iter().all(|name| has(name)))
        || has("comparison.txt") && is_comparison(&folder.join("comparison.txt"))
        || has("results.json") && has_scores(folder)
}

/// Whether a file called `comparison.txt` marks a comparison of models.
fn is_comparison(path: &Path) -> bool {
    let mut start = Vec::new();
    File::open(path)
        .and_then(|file| file.take(32).read_to_end(&mut start))
        .is_ok_and(|_| start.starts_with(b"A comparison; `--force`"))
}

/// Whether the directory has the scores of an evaluation, in a file called `samples_TASK.jsonl`.
fn has_scores(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(Result::ok).any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("samples_") && name.ends_with(".jsonl")
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::folder;
    use super::*;

    #[test]
    fn hidden_files_and_outputs_of_the_zoo_are_no_texts() {
        let dir = folder(&[
            ("a.txt", b"text"),
            ("._a.txt", b"copy"),
            (".git/x.md", b"hidden"),
            ("d/.ipynb_checkpoints/b-checkpoint.md", b"copy"),
            ("runs/x/history.jsonl", b"{}"),
            ("runs/x/config.ron", b"()"),
            ("runs/x/samples.txt", b"sample"),
            ("runs/new/history.jsonl", b""),
            ("runs/new/lock", b""),
            ("report/report.html", b""),
            ("report/results.json", b""),
            ("report/results.md", b""),
            ("evaluation/results.json", b""),
            ("evaluation/samples_arc.jsonl", b""),
            (
                "comparison/comparison.txt",
                b"A comparison; `--force` replaces it.",
            ),
            ("compared/comparison.txt", b"A comparison of texts."),
        ]);
        let found = Listing::of(dir.path()).unwrap();
        let at = |name: &str| dir.path().join(name);
        assert_eq!(found.texts, [at("a.txt"), at("compared/comparison.txt")]);
        let note = found.note().unwrap();
        assert!(note.starts_with("5 runs and other outputs"), "{note}");
        assert!(note.contains("comparison`"), "{note}");
    }

    #[test]
    fn skipped_files_are_counted_and_the_first_is_named() {
        let dir = folder(&[
            ("a.txt", b"text"),
            ("b.txt.xz", b"x"),
            ("c.ndjson", b"x"),
            ("d.json", b"x"),
            ("e.csv", b"x"),
            ("f.jsonl.bz2", b"x"),
        ]);
        let note = Listing::of(dir.path()).unwrap().note().unwrap();
        assert!(note.starts_with("5 files were skipped"), "{note}");
        assert!(note.contains("b.txt.xz`"), "{note}");
        let plain = folder(&[("a.txt", b"text"), (".hidden", b"x")]);
        assert_eq!(Listing::of(plain.path()).unwrap().note(), None);
    }
}
