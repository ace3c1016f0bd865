//! Serves a run on any backend.

use std::net::SocketAddr;
use std::path::Path;

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_backend::OnBackend;
use residual_zoo_core::ModelConfig;
use residual_zoo_runs::Run;
use residual_zoo_serve::{Bound, Error as ServeError, Options};
use residual_zoo_system::console::warn;
use residual_zoo_train::Interrupter;

use crate::{Error, Place};

/// Serves the chosen checkpoint of `run` as [`residual_zoo_serve::serve`] does, until `stop` is set. Calls `ready` with
/// the address and the checkpoint once the model is loaded.
///
/// # Errors
///
/// Returns the errors of [`residual_zoo_serve::serve`], and an error if the run is not on text or if the backend cannot
/// be used.
pub fn serve<C: ModelConfig>(
    run: &Run<C>,
    options: &Options,
    place: impl Into<Place>,
    stop: &Interrupter,
    ready: impl FnOnce(SocketAddr, &Path),
) -> Result<(), Error> {
    run.must_be_text()?;
    let bound = Bound::new(options)?;
    for note in run.checkpoint()?.notes() {
        warn(&note);
    }
    let task = Serve {
        run,
        bound,
        stop,
        ready,
    };
    Ok(place.into().run(task)??)
}

struct Serve<'a, C, R> {
    run: &'a Run<C>,
    bound: Bound,
    stop: &'a Interrupter,
    ready: R,
}

impl<C: ModelConfig, R: FnOnce(SocketAddr, &Path)> OnBackend for Serve<'_, C, R> {
    type Output = Result<(), ServeError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let (model, checkpoint) = self.run.load::<B::InnerBackend>(&device)?;
        (self.ready)(self.bound.address()?, &checkpoint);
        let stop = self.stop.clone();
        residual_zoo_serve::serve::<B::InnerBackend, C>(
            self.run,
            &model,
            self.bound,
            &device,
            move || stop.should_stop(),
        )
    }
}
