//! Lists the runs of an experiment without training them.

use residual_zoo_backend::BackendKind;
use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_drive::{Basis, Opened, Use, basis_notes, check_precision, check_size};
use residual_zoo_lab::{Error, Experiment, PlannedRun};
use residual_zoo_report::{Column, Table, si};
use residual_zoo_system::counted;
use residual_zoo_train::Interrupter;

use crate::{fitted, print, wrapped};

/// Checks everything in the configs that does not depend on the data.
pub(super) fn check_configs<C: ModelConfig>(planned: &[PlannedRun<C>]) -> Result<(), ConfigError> {
    for run in planned {
        if let Some(config) = &run.config {
            config
                .validate(1)
                .map_err(|error| error.within(&run.name))?;
        }
    }
    Ok(())
}

/// Returns the vocabulary and the opened data of each run; `None` for a run without a model. Checks that the config of
/// each run is valid with its vocabulary.
fn bases<C: ModelConfig>(
    experiment: &Experiment<C>,
    planned: &[PlannedRun<C>],
) -> Result<Vec<Option<Opened>>, Error> {
    let configs = || planned.iter().filter_map(|run| run.config.as_ref());
    let bases = match experiment.count {
        Some(count) => configs()
            .map(|config| (Basis::exact(config.vocabulary(count)), None))
            .collect(),
        None => {
            let data: Vec<_> = configs().map(|config| &config.data).collect();
            Basis::of_each(&data, &Interrupter::new())?
        }
    };
    let mut bases = bases.into_iter();
    let of_run = |run: &PlannedRun<C>| {
        let Some(config) = &run.config else {
            return Ok(None);
        };
        let basis = bases.next();
        let vocabulary = basis
            .as_ref()
            .map_or(config.vocabulary(1), |(basis, _)| basis.vocabulary);
        config
            .validate(vocabulary)
            .map_err(|error| error.within(&run.name))?;
        Ok(basis)
    };
    planned.iter().map(of_run).collect()
}

/// Checks that the runs of an experiment can be trained on this machine. Returns a note for each run that only a larger
/// machine could train.
fn check_machine<C: ModelConfig>(
    planned: &[PlannedRun<C>],
    bases: &[Option<Opened>],
    (kind, gpu): (BackendKind, Option<usize>),
) -> Result<Vec<String>, Error> {
    kind.check_device(gpu)?;
    let mut notes = Vec::new();
    for (run, basis) in planned.iter().zip(bases) {
        if let (Some(config), Some((basis, _))) = (&run.config, basis) {
            check_precision(kind, gpu, config.train.precision)
                .map_err(|error| error.within(&run.name))?;
            if let Err(error) = check_size(config, basis.vocabulary, (kind, gpu), Use::Train) {
                notes.push(format!(
                    "note: `{}` cannot be trained here: {error}",
                    run.name
                ));
            }
        }
    }
    Ok(notes)
}

/// Checks and prints the runs of an experiment at this scale; the scale is empty if the experiment has none.
pub(super) fn list_runs<C: ModelConfig>(
    experiment: &Experiment<C>,
    scale: &str,
    planned: &[PlannedRun<C>],
    device: (BackendKind, Option<usize>),
) -> Result<(), Error> {
    let bases = bases(experiment, planned)?;
    let mut notes = Vec::new();
    if experiment.count.is_none() {
        notes = check_machine(planned, &bases, device)?;
        let data = planned.iter().zip(&bases).filter_map(|(run, opened)| {
            let (_, corpus) = opened.as_ref()?;
            Some((&run.config.as_ref()?.data, corpus.as_deref()?))
        });
        let data: Vec<_> = data.collect();
        experiment.check_start(planned, |config| {
            let known = data.iter().find(|(known, _)| *known == config);
            known.map(|(_, corpus)| *corpus)
        })?;
    }
    let none = || "–".to_owned();
    let row = |(run, basis): (&PlannedRun<C>, &Option<Opened>)| {
        let mut cells = [
            run.name.clone(),
            none(),
            none(),
            none(),
            none(),
            none(),
            none(),
        ];
        if let (Some(config), Some((basis, _))) = (&run.config, basis) {
            cells[1] = basis.shown();
            cells[2] = si(config.model.cost(basis.vocabulary).params.total() as f64);
            if experiment.count.is_none() {
                let tokens = config.train.steps as f64 * config.tokens_per_step() as f64;
                // A run that starts from another run has already seen some of the data.
                let passes = basis.passes(tokens).filter(|_| run.after.is_none());
                cells[3] = config.train.steps.to_string();
                cells[4] = si(tokens);
                cells[5] = passes.map_or_else(none, si);
                cells[6] = run
                    .seeds
                    .as_ref()
                    .unwrap_or(&experiment.seeds)
                    .len()
                    .to_string();
            }
        }
        cells.map(Into::into).into()
    };
    let numbers = [
        "vocabulary",
        "parameters",
        "steps",
        "tokens",
        "passes",
        "seeds",
    ];
    let numbers = numbers.map(|title| Column::number(title, ""));
    let table = Table {
        columns: [Column::text("run")].into_iter().chain(numbers).collect(),
        rows: planned.iter().zip(&bases).map(row).collect(),
        ..Table::default()
    };
    print(&experiment.title)?;
    if !scale.is_empty() {
        print(&format!("scale {scale}"))?;
    }
    print(&format!("\n{}", fitted(&table)))?;
    let named = planned.iter().zip(&bases);
    let named = named.filter_map(|(run, basis)| Some((run.name.as_str(), &basis.as_ref()?.0)));
    for note in basis_notes(named).into_iter().chain(notes) {
        print(&wrapped(&note, ""))?;
    }
    if let Some(sweep) = &experiment.sweep {
        let runs = sweep.check_points(planned)?;
        let points = runs.first().map_or(0, |run| run.points.len());
        let count = points * sweep.seeds.len() * runs.len();
        let least = if sweep.widen > 0 { "at least " } else { "" };
        print(&format!(
            "\nsweep: {least}{}, {least}{} for each run and seed\n{}",
            counted(count, "more run"),
            counted(points, "point"),
            sweep.summary()
        ))?;
    }
    let checked = format!(
        "\nclaims: {}; all runs and quantities that they and the charts name exist; large data, and data that are not on \
         this machine, were not opened",
        experiment.claims.len()
    );
    print(&wrapped(&checked, ""))?;
    Ok(())
}
