//! The run files and experiments of the directory `experiments`, which are part of every program.

use std::path::{Path, PathBuf};

use include_dir::{Dir, include_dir};
use residual_zoo_cli::{Files, Source};

static EXPERIMENTS: Dir = include_dir!("$CARGO_MANIFEST_DIR/experiments");

/// The names and texts of all run files. A name is a path without its ending, such as `gpt2/smoke`.
pub fn run_files() -> impl Iterator<Item = (String, &'static str)> {
    let files = EXPERIMENTS.dirs().flat_map(Dir::files);
    files.filter_map(|file| {
        let name = file.path().with_extension("");
        Some((name.to_str()?.to_owned(), file.contents_utf8()?))
    })
}

/// A path without the ending `.ron`, which is all that is cut of a name such as `tokenformer/1.5b`.
pub fn without_ending(path: &Path) -> PathBuf {
    match path.extension().is_some_and(|ending| ending == "ron") {
        true => path.with_extension(""),
        false => path.into(),
    }
}

/// The text of the run file `name`, such as `gpt2/smoke` or `experiments/gpt2/smoke.ron`.
pub fn run_file(name: &Path) -> Option<&'static str> {
    let name = name.strip_prefix("experiments").unwrap_or(name);
    let mut file = without_ending(name).into_os_string();
    file.push(".ron");
    EXPERIMENTS.get_file(file)?.contents_utf8()
}

/// All experiments.
pub fn experiments() -> impl Iterator<Item = Source> {
    let directories = EXPERIMENTS.dirs().flat_map(Dir::dirs);
    directories.filter_map(|directory| {
        let text = |scale: &str| {
            let file = directory.get_file(directory.path().join(scale))?;
            file.contents_utf8()
        };
        Some(Source {
            name: directory.path().file_name()?.to_str()?.to_owned(),
            files: Files::Scales([text("smoke.ron")?, text("cpu.ron")?, text("paper.ron")?]),
        })
    })
}
