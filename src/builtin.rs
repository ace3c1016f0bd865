//! The run files and experiments in the directory `experiments`. Every program contains them.

use std::path::{Path, PathBuf};

use include_dir::{Dir, include_dir};
use residual_zoo_cli::Source;
use residual_zoo_lab::ExperimentFile;

static EXPERIMENTS: Dir = include_dir!("$CARGO_MANIFEST_DIR/experiments");

/// Returns the RON files in `experiments`, with their paths and texts. Each paper has a directory of run files and
/// experiments.
fn files() -> impl Iterator<Item = (&'static Path, &'static str)> {
    let files = EXPERIMENTS.dirs().flat_map(Dir::files);
    let is_ron = |path: &Path| path.extension().is_some_and(|ending| ending == "ron");
    files.filter_map(move |file| {
        Some((
            file.path(),
            file.contents_utf8().filter(|_| is_ron(file.path()))?,
        ))
    })
}

/// Returns the names and texts of all run files. A name is a path without its ending, such as `gpt2/smoke`.
pub fn run_files() -> impl Iterator<Item = (String, &'static str)> {
    let runs = files().filter(|(_, text)| !ExperimentFile::is_experiment(text));
    runs.filter_map(|(path, text)| Some((path.with_extension("").to_str()?.to_owned(), text)))
}

/// Removes the ending `.ron` of a path. Other endings stay, because a name such as `tokenformer/1.5b` has a dot.
pub fn without_ending(path: &Path) -> PathBuf {
    match path.extension().is_some_and(|ending| ending == "ron") {
        true => path.with_extension(""),
        false => path.into(),
    }
}

/// Returns the text of the run file `name`, such as `gpt2/smoke` or `experiments/gpt2/smoke.ron`.
pub fn run_file(name: &Path) -> Option<&'static str> {
    let name = name.strip_prefix("experiments").unwrap_or(name);
    let mut file = without_ending(name).into_os_string();
    file.push(".ron");
    let text = EXPERIMENTS.get_file(file)?.contents_utf8()?;
    (!ExperimentFile::is_experiment(text)).then_some(text)
}

/// Returns all experiments, with their names, paths and texts.
pub fn experiments() -> impl Iterator<Item = Source> {
    let experiments = files().filter(|(_, text)| ExperimentFile::is_experiment(text));
    experiments.filter_map(|(path, text)| {
        Some(Source {
            name: path.file_stem()?.to_str()?.to_owned(),
            text: text.into(),
            path: Path::new("experiments").join(path),
            is_own: false,
        })
    })
}
