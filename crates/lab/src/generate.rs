//! Text from a trained model.

use std::io::{ErrorKind, Write as _};
use std::path::Path;

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_backend::{BackendKind, OnBackend};
use residual_zoo_core::ModelConfig;
use residual_zoo_runs::generate::Sampling;
use residual_zoo_runs::{Error as RunError, Run};

use crate::Error;

/// Writes the prompt and `tokens` more tokens, as they are generated, from the newest checkpoint of the
/// run in `directory`. Without a prompt, the first token id of the vocabulary begins the text.
///
/// # Errors
///
/// A directory that is no run, a checkpoint that cannot be used, a prompt that the model cannot
/// take, a backend that cannot be used.
pub fn generate<C: ModelConfig>(
    directory: &Path,
    prompt: Option<&str>,
    tokens: usize,
    sampling: Sampling,
    kind: BackendKind,
    gpu: Option<usize>,
) -> Result<(), Error> {
    let run = Run::<C>::open(directory)?;
    for (_, error) in run.checkpoint()?.passed_over {
        eprintln!("passed over: {error}");
    }
    let task = Generate {
        run,
        prompt,
        tokens,
        sampling,
    };
    Ok(kind.run(gpu, task)??)
}

struct Generate<'a, C> {
    run: Run<C>,
    prompt: Option<&'a str>,
    tokens: usize,
    sampling: Sampling,
}

impl<C: ModelConfig> OnBackend for Generate<'_, C> {
    type Output = Result<(), RunError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let model = self.run.model::<B::InnerBackend>(&device)?;
        let pieces =
            self.run
                .stream::<B::InnerBackend>(&model, self.prompt, self.tokens, self.sampling)?;
        let mut out = std::io::stdout().lock();
        for piece in pieces.chain([Ok("\n".to_owned())]) {
            match write!(out, "{}", piece?).and_then(|()| out.flush()) {
                // A reader that stops reading ends the text; that is no failure.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                written => written.map_err(RunError::io("write", "standard output".as_ref()))?,
            }
        }
        Ok(())
    }
}
