//! The origin of results: the command, the configuration, the machine and the commit.

use std::path::Path;

use residual_zoo_backend::BackendKind;
use residual_zoo_core::ModelConfig;
use residual_zoo_data::hash_of_parts;
use residual_zoo_system::counted;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::{Experiment, PlannedRun};

/// The origin of results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    /// The name of the experiment.
    pub name: String,
    /// The scale; empty if there is none.
    pub scale: String,
    /// A hash of the experiment file's path; empty without a file.
    pub file: String,
    /// The command that repeats the experiment; empty without one.
    pub command: String,
    /// A hash of the experiment and of all fields that were set on top of it.
    pub hash: String,
    /// The processor and its cores.
    pub machine: String,
    /// The backend.
    pub backend: String,
    /// The commit of the program, if it is known.
    pub commit: Option<String>,
}

/// Hashes the path of an experiment file. Results contain this hash instead of the path.
pub fn hash_of_file(path: &Path) -> String {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let path = path.as_os_str().as_encoded_bytes();
    hash_of_parts("residual-zoo experiment file v1", &[path]).to_hex()[..12].to_owned()
}

/// Hashes an experiment, the fields that were set on top of it, and the backend. `text` is the text of the experiment
/// at its scale. The token-cache directory does not count.
pub fn hash<C: ModelConfig>(
    text: &str,
    experiment: &Experiment<C>,
    planned: &[PlannedRun<C>],
    backend: BackendKind,
) -> String {
    let configs = planned.iter().filter_map(|run| run.config.as_ref());
    let configs = configs.map(|config| {
        let mut config = config.clone();
        config.model = config.model.hashed();
        config.data.cache = None;
        config.to_hashed_text()
    });
    let mut parts = vec![
        text.to_owned(),
        format!("{:?}", experiment.seeds),
        format!("{:?}", experiment.data.source),
        backend.to_string(),
    ];
    parts.extend(experiment.tasks.iter().map(|task| format!("{task:?}")));
    parts.extend(configs);
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
    hash_of_parts("residual-zoo experiment v2", &parts).to_hex()[..12].to_owned()
}

/// Describes the processor and its cores.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find(|line| line.starts_with("model name"));
    let name = name.and_then(|line| line.split_once(':'));
    let name = name.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{} of {name}", counted(cores, "core"))
}

/// Returns the current date and time, such as `2026-11-22 11:40 UTC`.
pub fn now() -> String {
    let now = OffsetDateTime::now_utc();
    let (date, hour, minute) = (now.date(), now.hour(), now.minute());
    format!("{date} {hour:02}:{minute:02} UTC")
}
