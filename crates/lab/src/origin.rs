//! Where results come from: the command, the configuration, the machine and the commit.

use std::time::{SystemTime, UNIX_EPOCH};

use residual_zoo_backend::BackendKind;
use residual_zoo_core::ModelConfig;
use residual_zoo_data::hash_of_parts;
use serde::Serialize;

use crate::{Experiment, PlannedRun};

/// Where, when and by which command results came about.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Origin {
    /// The name of the experiment.
    pub name: String,
    /// Its scale; empty for a file of its own.
    pub scale: String,
    /// The command that repeats it; empty without one.
    pub command: String,
    /// A hash of the experiment and of all that was set on top of it.
    pub hash: String,
    /// The processor and its cores.
    pub machine: String,
    /// The backend.
    pub backend: String,
    /// The commit of the program, where it is known.
    pub commit: Option<String>,
}

/// A hash of an experiment with everything that was set on top of it. `text` is its file; where
/// tokens are kept does not count.
pub fn hash<C: ModelConfig>(
    text: &str,
    experiment: &Experiment<C>,
    planned: &[PlannedRun<C>],
    backend: BackendKind,
) -> String {
    let configs = planned.iter().filter_map(|run| run.config.as_ref());
    let configs = configs.map(|config| {
        let mut config = config.clone();
        config.data.cache = None;
        config.to_ron()
    });
    let mut parts = vec![
        text.to_owned(),
        format!("{:?}", experiment.seeds),
        format!("{:?}", experiment.data.source),
        backend.to_string(),
    ];
    parts.extend(configs);
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
    hash_of_parts("residual-zoo experiment v2", &parts).to_hex()[..12].to_owned()
}

/// The processor and its cores.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find(|line| line.starts_with("model name"));
    let name = name.and_then(|line| line.split_once(':'));
    let name = name.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{cores} cores of {name}")
}

/// The date and time now, such as `2026-11-22 11:40 UTC`.
pub fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    date(since.map_or(0, |since| since.as_secs()))
}

/// The date and time that is `seconds` after the start of 1970.
fn date(seconds: u64) -> String {
    // Days and years are counted from a 1 March, so that a leap day is the last day of its year. An
    // era is 400 years.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (next, month) = match month {
        0..10 => (0, month + 3),
        _ => (1, month - 9),
    };
    let year = 400 * era + year + next;
    let (hour, minute) = (seconds / 3_600 % 24, seconds / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // By GNU date.
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_078_099_200, "2004-03-01 00:00 UTC"),
            (1_798_761_599, "2026-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }
}
