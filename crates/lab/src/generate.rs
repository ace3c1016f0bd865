//! Text from a trained model.

use std::io::{ErrorKind, Write as _};
use std::path::Path;

use burn::tensor::backend::{AutodiffBackend, Backend};
use residual_zoo_backend::{BackendKind, OnBackend};
use residual_zoo_core::ModelConfig;
use residual_zoo_data::{StreamDecoder, Tokenizer};
use residual_zoo_train::generate::{Generator, Sampling};
use residual_zoo_train::{Error as TrainError, RunConfig, checkpoint, run_dir};

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
    let config: RunConfig<C> = run_dir::read_config(directory)?;
    if config.data.time().is_some() {
        let problem = "was not trained on text, so it cannot generate any".to_owned();
        let path = directory.into();
        return Err(TrainError::NoRun { path, problem }.into());
    }
    let task = Generate {
        directory,
        tokenizer: run_dir::read_tokenizer(directory)?,
        config,
        prompt,
        tokens,
        sampling,
    };
    let generated: Result<(), TrainError> = kind.run(gpu, task)?;
    Ok(generated?)
}

struct Generate<'a, C> {
    directory: &'a Path,
    config: RunConfig<C>,
    tokenizer: Tokenizer,
    prompt: Option<&'a str>,
    tokens: usize,
    sampling: Sampling,
}

impl<C: ModelConfig> OnBackend for Generate<'_, C> {
    type Output = Result<(), TrainError>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        let checkpoint = checkpoint::newest(self.directory)?;
        for (_, error) in &checkpoint.passed_over {
            eprintln!("passed over: {error}");
        }
        let tokenizer = self.tokenizer;
        let vocab_size = tokenizer.vocab_size();
        B::InnerBackend::seed(&device, 0);
        let model = self.config.model;
        let context = model.shape().context;
        let model = model.build::<B::InnerBackend>(vocab_size, &device)?;
        let model = checkpoint::load_model::<B::InnerBackend, _>(model, &checkpoint.path)?;

        let prompt = match self.prompt {
            Some(text) => tokenizer.encode(text)?,
            None => vec![0],
        };
        let sizes = (vocab_size, context);
        let generator = Generator::new(&model, sizes, &prompt, self.sampling, &device)?;
        let mut decoder = StreamDecoder::new(tokenizer);
        let mut out = std::io::stdout().lock();
        let mut write = |text: &str| match write!(out, "{text}").and_then(|()| out.flush()) {
            // Whoever reads may stop reading, which ends the text and is no failure.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            written => written
                .map(|()| true)
                .map_err(TrainError::io("write", "standard output".as_ref())),
        };
        for id in prompt.iter().copied().chain(generator.take(self.tokens)) {
            if !write(&decoder.push(id)?)? {
                return Ok(());
            }
        }
        write(&(decoder.finish()? + "\n"))?;
        Ok(())
    }
}
