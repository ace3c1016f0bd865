//! Evaluates a run on any backend.

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_backend::OnBackend;
use residual_zoo_core::ModelConfig;
use residual_zoo_evaluate::{Error as EvaluateError, Options, Results, Task};
use residual_zoo_runs::Run;
use residual_zoo_system::console::{Status, warn};
use residual_zoo_system::counted;
use residual_zoo_train::Interrupter;

use crate::{Error, Place};

/// Evaluates `run` on `tasks` as [`residual_zoo_evaluate::evaluate`] does, and shows the progress. `stop` ends the
/// evaluation.
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_evaluate::evaluate`], and an error if the backend cannot be used.
pub fn evaluate<C: ModelConfig>(
    run: &Run<C>,
    tasks: &[Task],
    options: &Options,
    place: impl Into<Place>,
    stop: &Interrupter,
) -> Result<Vec<Results>, Error> {
    for note in run.checkpoint()?.notes() {
        warn(&note);
    }
    let task = Evaluate {
        run,
        tasks,
        options,
        stop,
    };
    Ok(place.into().run(task)??)
}

struct Evaluate<'a, C> {
    run: &'a Run<C>,
    tasks: &'a [Task],
    options: &'a Options,
    stop: &'a Interrupter,
}

impl<C: ModelConfig> OnBackend for Evaluate<'_, C> {
    type Output = Result<Vec<Results>, EvaluateError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let mut status = Status::default();
        let mut progress = |task: &str, done, all| {
            if all > 0 {
                status.show(|| format!("{task}: {done} of {}", counted(all, "request")));
            }
            !self.stop.should_stop()
        };
        residual_zoo_evaluate::evaluate::<B::InnerBackend, C>(
            self.run,
            self.tasks,
            self.options,
            &device,
            &mut progress,
        )
    }
}
