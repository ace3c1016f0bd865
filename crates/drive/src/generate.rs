//! Generates text with a trained model.

use std::io::{ErrorKind, IsTerminal as _, Write as _};

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_backend::OnBackend;
use residual_zoo_core::ModelConfig;
use residual_zoo_runs::generate::Sampling;
use residual_zoo_runs::{Error as RunError, Run};
use residual_zoo_system::console::warn;
use residual_zoo_system::harmless;

use crate::{Error, Place};

/// Writes each prompt, followed by `tokens` more tokens from the chosen checkpoint of `run`. With `None` as its prompt,
/// a text starts with the token between documents or, without one, with the first token of the vocabulary. A single
/// text is written while it is generated. Several texts are generated in one batch, and lines of hyphens separate them.
///
/// # Errors
///
/// Returns an error if the run is not on text, if the checkpoint, a prompt or the backend cannot be used, or if
/// standard output cannot be written.
pub fn generate<C: ModelConfig>(
    run: Run<C>,
    prompts: &[Option<&str>],
    tokens: usize,
    sampling: Sampling,
    place: impl Into<Place>,
) -> Result<(), Error> {
    for note in run.checkpoint()?.notes() {
        warn(&note);
    }
    let place = place.into();
    let task = Generate {
        run,
        place,
        prompts,
        tokens,
        sampling,
    };
    Ok(place.run(task)??)
}

struct Generate<'a, C> {
    run: Run<C>,
    place: Place,
    prompts: &'a [Option<&'a str>],
    tokens: usize,
    sampling: Sampling,
}

impl<C: ModelConfig> OnBackend for Generate<'_, C> {
    type Output = Result<(), RunError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let (model, checkpoint) = self.run.load::<B::InnerBackend>(&device)?;
        let Self {
            run,
            place,
            prompts,
            tokens,
            sampling,
        } = self;
        let context = run.config.model.shape().context;
        run.must_be_text()?;
        for prompt in prompts.iter().flatten() {
            let tokens = run.tokenizer.encode(prompt)?.len();
            if tokens > context {
                warn(&format!(
                    "a prompt has {tokens} tokens; the model reads the last {context}, its context"
                ));
            }
        }
        let pieces: Box<dyn Iterator<Item = _>> = match prompts {
            [prompt] => {
                let pieces = run.stream::<B::InnerBackend>(&model, *prompt, tokens, sampling)?;
                Box::new(pieces.chain([Ok("\n".to_owned())]))
            }
            _ => {
                let texts =
                    run.generate_all::<B::InnerBackend>(&model, prompts, tokens, sampling)?;
                let lines = texts.into_iter().enumerate().map(|(i, text)| match i {
                    0 => Ok(format!("{text}\n")),
                    _ => Ok(format!("---------------\n{text}\n")),
                });
                Box::new(lines)
            }
        };
        warn(&format!("{}{place}", run.describe(&checkpoint)));
        let mut out = std::io::stdout().lock();
        // A model may generate control characters. They are made harmless for a terminal, but a file gets them
        // unchanged.
        let is_shown = out.is_terminal();
        for piece in pieces {
            let piece = piece?;
            let shown = match is_shown {
                true => harmless(&piece),
                false => piece.as_str().into(),
            };
            match out.write_all(shown.as_bytes()).and_then(|()| out.flush()) {
                // A reader that closes the pipe ends the text; this is not a failure.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                written => written.map_err(RunError::io("write", "standard output".as_ref()))?,
            }
        }
        Ok(())
    }
}
