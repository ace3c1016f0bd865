//! A run, read from its directory.

use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::backend::Backend;
use residual_zoo_core::{ModelConfig, Vocabulary};
use residual_zoo_data::{Corpus, StreamDecoder, Tokenizer, derive_seed};

use crate::checkpoint::{self, Needs, Newest};
use crate::generate::{Generator, Generators, Sampling};
use crate::{Choice, Error, Row, RunConfig, SavedWeights, run_dir};

/// A run, finished or in progress, read from its directory. Reading a run does not change its directory.
#[derive(Clone, Debug)]
pub struct Run<C> {
    directory: PathBuf,
    choice: Choice,
    weights: SavedWeights,
    /// The config, with every field.
    pub config: RunConfig<C>,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
}

impl<C: ModelConfig> Run<C> {
    /// Opens the run in `directory`. Its checkpoints are read later, by [`model`](Self::model).
    ///
    /// # Errors
    ///
    /// Returns an error if `directory` is not a run, or its config or tokenizer is damaged.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, Error> {
        let directory = directory.as_ref();
        let run = Self {
            directory: directory.into(),
            choice: Choice::default(),
            weights: SavedWeights::default(),
            config: run_dir::read_config(directory)?,
            tokenizer: run_dir::read_tokenizer(directory)?,
        };
        let valid = run.config.validate(run.vocabulary());
        valid.map_err(|error| error.in_file(&directory.join(run_dir::CONFIG)))?;
        Ok(run)
    }

    /// Chooses a checkpoint. Without this call, the run uses the newest.
    #[must_use]
    pub fn at(self, choice: Choice) -> Self {
        Self { choice, ..self }
    }

    /// Chooses the trained weights of the checkpoint, or their average.
    #[must_use]
    pub fn with(self, weights: SavedWeights) -> Self {
        Self { weights, ..self }
    }

    /// Returns the choice that [`with`](Self::with) made; by default, the trained weights.
    pub fn weights(&self) -> SavedWeights {
        self.weights
    }

    /// Returns the file of the chosen weights in `checkpoint`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`SavedWeights::file`].
    pub fn weights_in(&self, checkpoint: &Path) -> Result<PathBuf, Error> {
        self.weights.file(checkpoint)
    }

    /// Returns the directory of the run.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the input and output of the model: the numbers of token ids and outputs or, for a model that reads
    /// images, the size of the images and the number of classes.
    pub fn vocabulary(&self) -> Vocabulary {
        let ids = self.tokenizer.vocab_size();
        let text = Vocabulary::new(ids, self.config.data.outputs(ids));
        self.config.vocabulary(text)
    }

    /// Reads the metrics so far.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`run_dir::read_metrics`].
    pub fn rows(&self) -> Result<Vec<Row>, Error> {
        run_dir::read_metrics(&self.directory)
    }

    /// Names the run and one of its checkpoints for the user: `runs/gpt2, step 360`.
    pub fn describe(&self, checkpoint: &Path) -> String {
        let run = self.directory.display();
        let of = match self.weights {
            SavedWeights::Trained => "",
            SavedWeights::Ema => ", average of the weights",
        };
        match checkpoint::step_of(checkpoint) {
            Some(step) => format!("{run}, step {step}{of}"),
            None => format!("{run}{of}"),
        }
    }

    /// Finds the newest checkpoint whose chosen weights are undamaged, or the checkpoint that [`at`](Self::at) chose.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such checkpoint, and I/O errors.
    pub fn checkpoint(&self) -> Result<Newest, Error> {
        self.choice
            .of(&self.directory, Needs::Weights(self.weights))
    }

    /// Loads the model with the weights of [`checkpoint`](Self::checkpoint).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`checkpoint`](Self::checkpoint) and of [`model_at`](Self::model_at).
    pub fn model<B: Backend>(&self, device: &B::Device) -> Result<C::Model<B>, Error> {
        Ok(self.load(device)?.0)
    }

    /// Loads the model like [`model`](Self::model), and also returns the checkpoint of the weights.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`model`](Self::model).
    pub fn load<B: Backend>(&self, device: &B::Device) -> Result<(C::Model<B>, PathBuf), Error> {
        let mut path = self.checkpoint()?.path;
        loop {
            let error = match self.model_at(&path, device) {
                Ok(model) => return Ok((model, path)),
                Err(error) => error,
            };
            // If the run is in progress, this checkpoint may have been replaced by a newer one.
            let newest = self.checkpoint()?.path;
            if newest == path {
                return Err(error);
            }
            path = newest;
        }
    }

    /// Loads the model with the weights of `checkpoint`, such as
    /// [`checkpoint::directory(run.directory(), 1000)`](checkpoint::directory).
    ///
    /// # Errors
    ///
    /// Returns an error if the checkpoint is missing, is damaged, has a number that is not finite, or belongs to
    /// another model.
    pub fn model_at<B: Backend>(
        &self,
        checkpoint: &Path,
        device: &B::Device,
    ) -> Result<C::Model<B>, Error> {
        self.check_parameters(checkpoint)?;
        let model = self
            .config
            .model
            .build_without_weights::<B>(self.vocabulary(), device)
            .map_err(|error| error.within("model"))?;
        checkpoint::load_file(model, &self.weights_in(checkpoint)?)
    }

    /// Refuses a checkpoint that is too small for the model of the config, before the model is allocated.
    fn check_parameters(&self, checkpoint: &Path) -> Result<(), Error> {
        let path = self.weights_in(checkpoint)?;
        let bytes = std::fs::metadata(&path).map_err(Error::io("read", &path))?;
        let needed = self.config.model.cost(self.vocabulary()).params.total();
        // A parameter has at least two bytes.
        match needed as f64 <= bytes.len() as f64 / 2.0 {
            true => Ok(()),
            false => Err(Error::Checkpoint {
                path,
                problem: format!(
                    "is too small for the model of the run's config, which has {needed} parameters; restore the \
                     config of the run"
                ),
            }),
        }
    }

    /// Returns the text of `prompt`, continued by `tokens` tokens that `model` generates. Without a prompt, the text
    /// begins with the tokenizer's token for the beginning of a text or, if there is none, with the first token of the
    /// vocabulary.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`stream`](Self::stream) and of its items.
    pub fn generate<B: Backend>(
        &self,
        model: &C::Model<B>,
        prompt: Option<&str>,
        tokens: usize,
        sampling: Sampling,
    ) -> Result<String, Error> {
        self.stream(model, prompt, tokens, sampling)?.collect()
    }

    /// Like [`generate`](Self::generate), for several prompts at once. The draws for each prompt are independent.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`generate`](Self::generate).
    pub fn generate_all<B: Backend>(
        &self,
        model: &C::Model<B>,
        prompts: &[Option<&str>],
        tokens: usize,
        sampling: Sampling,
    ) -> Result<Vec<String>, Error> {
        let prompts = prompts.iter().map(|prompt| self.prompt(*prompt));
        let mut texts: Vec<_> = prompts.collect::<Result<_, _>>()?;
        let (sizes, device) = self.place(model);
        for (part, texts) in texts.chunks_mut(TOGETHER).enumerate() {
            let seed = match part {
                0 => sampling.seed,
                part => derive_seed(sampling.seed, &[TOGETHER as u64, part as u64]),
            };
            let sampling = Sampling {
                seed,
                ..sampling.clone()
            };
            let mut steps = Generators::new(model, sizes, &*texts, sampling, &device)?;
            let full: Vec<usize> = texts
                .iter()
                .map(|text| text.len().saturating_add(tokens))
                .collect();
            while texts
                .iter()
                .zip(&full)
                .any(|(text, full)| text.len() < *full)
            {
                let new = steps.next().ok_or(Error::Logits)?;
                for ((text, full), new) in texts.iter_mut().zip(&full).zip(new) {
                    text.extend(new.filter(|_| text.len() < *full));
                }
            }
        }
        let decode = |text: &Vec<u32>| Ok(self.tokenizer.decode(text)?);
        texts.iter().map(decode).collect()
    }

    /// Refuses a run that was not trained on text.
    ///
    /// # Errors
    ///
    /// Returns an error if the data are not text.
    pub fn must_be_text(&self) -> Result<(), Error> {
        match self.config.data.time() {
            None => Ok(()),
            Some(_) => Err(Error::NoRun {
                path: self.directory.clone(),
                problem: "was not trained on text, so it can neither write nor score any".into(),
            }),
        }
    }

    /// Tokenizes a prompt.
    fn prompt(&self, prompt: Option<&str>) -> Result<Vec<u32>, Error> {
        self.must_be_text()?;
        Ok(match prompt {
            Some(text) => self.tokenizer.encode(text)?,
            None => vec![self.tokenizer.first_id()],
        })
    }

    /// Returns the sizes of the vocabulary and the context, and the device of `model`.
    fn place<B: Backend>(&self, model: &C::Model<B>) -> ((usize, usize), B::Device) {
        let sizes = (self.vocabulary().ids(), self.config.model.shape().context);
        let device = model.devices().into_iter().next().unwrap_or_default();
        (sizes, device)
    }

    /// Like [`generate`](Self::generate), but returns the text in pieces, each as soon as it is generated.
    ///
    /// # Errors
    ///
    /// Returns an error if the data are not text, the model cannot take the prompt, or a field of `sampling` is
    /// invalid. An item can be an error: [`Error::Logits`] if the logits are not finite, or an error of the tokenizer.
    pub fn stream<'m, B: Backend>(
        &self,
        model: &'m C::Model<B>,
        prompt: Option<&str>,
        tokens: usize,
        sampling: Sampling,
    ) -> Result<impl Iterator<Item = Result<String, Error>> + use<'m, B, C>, Error> {
        let prompt = self.prompt(prompt)?;
        let (sizes, device) = self.place(model);
        let generator = Generator::new(model, sizes, &prompt, sampling, &device)?;
        let mut decoder = Some(StreamDecoder::new(self.tokenizer.clone()));
        let mut left = prompt.len().saturating_add(tokens);
        let mut ids = prompt.into_iter().chain(generator.take(tokens));
        Ok(std::iter::from_fn(move || {
            let piece = match (ids.next(), &mut decoder) {
                (Some(id), Some(decoder)) => {
                    left -= 1;
                    decoder.push(id)
                }
                (None, decoder) => {
                    let decoder = decoder.take()?;
                    if left > 0 {
                        return Some(Err(Error::Logits));
                    }
                    decoder.finish()
                }
                (Some(_), None) => return None,
            };
            Some(piece.map_err(Error::from))
        }))
    }
}

/// Maximum number of texts that are generated at once. Each text needs its own cache.
pub const TOGETHER: usize = 32;

/// Returns the vocabulary of a model that is trained on `corpus`.
pub fn vocabulary(corpus: &Corpus) -> Vocabulary {
    match corpus.image() {
        Some(size) => Vocabulary::of_images(size.into(), corpus.outputs),
        None => Vocabulary::new(corpus.tokenizer.vocab_size(), corpus.outputs),
    }
}
