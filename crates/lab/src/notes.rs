//! Notes on settings that may not be intended: warm-ups that take all steps of a run, and successive halving (see
//! [`Halving`](crate::sweep::Halving)) with fewer rungs than the sweep asks for.

use residual_zoo_core::ModelConfig;
use residual_zoo_runs::TrainConfig;
use residual_zoo_system::counted;

use crate::{Error, Experiment, PlannedRun};

/// Maximum number of runs that a note names.
const MOST_NAMES: usize = 4;

/// Returns a sentence for each warm-up length that takes all steps of a run. `runs` holds the name and the training
/// settings of each run. A sentence names its runs, unless it is about all runs.
pub fn long_warm_ups<'a>(
    runs: impl IntoIterator<Item = (&'a str, &'a TrainConfig)>,
) -> Vec<String> {
    let (mut count, mut long) = (0, Vec::<(usize, Vec<&str>)>::new());
    for (name, train) in runs {
        count += 1;
        if train.warmup < train.steps {
            continue;
        }
        match long.iter_mut().find(|(steps, _)| *steps == train.warmup) {
            Some((_, names)) => names.push(name),
            None => long.push((train.warmup, vec![name])),
        }
    }
    let sentence = |(steps, names): (usize, Vec<&str>)| {
        let left = names.len().saturating_sub(MOST_NAMES);
        let shown: Vec<String> = names[..names.len() - left]
            .iter()
            .map(|name| format!("`{name}`"))
            .collect();
        let shown = shown.join(", ");
        let of = match left {
            _ if names.len() == count => String::new(),
            0 => format!(" of {shown}"),
            left => format!(" of {shown} and {left} more"),
        };
        let steps = counted(steps, "step");
        format!(
            "the warm-up{of} takes {steps}, so the learning rate stays below its peak; set train.warmup"
        )
    };
    long.into_iter().map(sentence).collect()
}

impl<C: ModelConfig> Experiment<C> {
    /// Returns sentences on settings that may not be intended: [`long_warm_ups`] for all runs at every point of the
    /// sweep, and halving with fewer rungs than the sweep asks for.
    ///
    /// # Errors
    ///
    /// Returns an error if a point cannot be set.
    pub fn notes(&self, planned: &[PlannedRun<C>]) -> Result<Vec<String>, Error> {
        if self.count.is_some() {
            return Ok(Vec::new());
        }
        let points = match &self.sweep {
            Some(sweep) if sweep.rule.is_some() => {
                [sweep.runs(planned)?, planned.to_vec()].concat()
            }
            Some(sweep) => sweep.runs(planned)?,
            None => planned.to_vec(),
        };
        let named = points.iter();
        let named = named.filter_map(|run| Some((&*run.name, &run.config.as_ref()?.train)));
        let mut notes = long_warm_ups(named);
        let fewer = self.sweep.as_ref();
        let fewer = fewer.and_then(|sweep| sweep.fewer_rungs(&points));
        notes.extend(fewer.map(|[rungs, asked]| match rungs {
            1 => "halving has no effect, because a rung ends at a validation, and the first one is at the end of the \
                  run; lower train.validate_every"
                .to_owned(),
            _ => format!(
                "halving has {rungs} rungs instead of {asked}, because a rung ends at a validation, and two rungs would \
                 end at the same one; lower train.validate_every"
            ),
        }));
        Ok(notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_as_long_as_the_run_is_noted_once_and_names_its_runs_where_they_differ() {
        let of = |warmup, steps| TrainConfig {
            warmup,
            steps,
            ..TrainConfig::default()
        };
        let (short, long, longer) = (of(9, 10), of(10, 10), of(20, 10));
        let one = "the warm-up takes 10 steps, so the learning rate stays below its peak; set train.warmup";
        assert!(long_warm_ups([("a", &short)]).is_empty());
        assert_eq!(long_warm_ups([("a", &long), ("b", &long)]), [one]);
        assert_eq!(
            long_warm_ups([("a", &long), ("b", &short), ("c", &longer), ("d", &long)]),
            [
                one.replace("warm-up", "warm-up of `a`, `d`"),
                one.replace("warm-up", "warm-up of `c`").replace("10", "20"),
            ]
        );
        let names = ["a", "b", "c", "d", "e", "f"].map(|name| (name, &long));
        let some = long_warm_ups(names.into_iter().chain([("g", &short)]));
        assert_eq!(
            some,
            [one.replace("warm-up", "warm-up of `a`, `b`, `c`, `d` and 2 more")]
        );
        let single = long_warm_ups([("a", &of(1, 1))]);
        assert_eq!(single, [one.replace("10 steps", "1 step")]);
    }
}
