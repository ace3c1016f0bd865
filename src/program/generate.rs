//! `residual-zoo generate`

use std::path::PathBuf;

use clap::Args;
use residual_zoo::ModelConfig;
use residual_zoo::backend::BackendKind;
use residual_zoo::cli::{self, CheckpointArgs, PlaceArgs};
use residual_zoo::core::{ConfigError, ModelConfig as _};
use residual_zoo::drive::{Reading, Sequences, Use, available_memory, check_reading, check_size};
use residual_zoo::runs::generate::Sampling;
use residual_zoo::runs::{Run, TOGETHER};

use super::{LoopsArgs, note_edited, or_force};

/// Maximum number of texts that one command generates.
const MOST_TEXTS: usize = 10_000;

/// Print text from a run's model, as it is generated
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// The run directory, such as runs/gpt2-shakespeare-cpu
    run: PathBuf,
    /// Text to continue; repeat it for several. The model reads only the last tokens of a text that is longer than the
    /// context; when the context is full, generation continues from the newest half [default: the token between
    /// documents, or the first one of the vocabulary]
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,
    /// Texts for each prompt, 1 to 10000. Several texts are generated together and printed at the end, with a
    /// line of hyphens between them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = cli::number(1, MOST_TEXTS as u32))]
    samples: u32,
    /// Tokens to generate for each text
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = cli::parsed::<usize>("a whole number of at least 0"))]
    tokens: usize,
    /// Divides the logits: lower values draw likely tokens more often; 0 always takes the most likely one
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.8,
        value_parser = cli::parsed::<f64>("a number")
    )]
    temperature: f64,
    /// Draw only from the K most likely tokens [default: from all]
    #[arg(long, value_name = "K", value_parser = cli::parsed::<usize>("a whole number of at least 0"))]
    top_k: Option<usize>,
    /// Draw only from the smallest set of most likely tokens whose probabilities add up to P, above 0 and at most 1
    /// [default: from all]
    #[arg(long, value_name = "P", value_parser = cli::parsed::<f64>("a number"))]
    top_p: Option<f64>,
    /// Go on even if this machine's memory cannot hold the model or the texts
    #[arg(long)]
    force: bool,
    /// Seed of the draws; the same seed gives the same texts
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = cli::parsed::<u64>("a whole number of at least 0"))]
    seed: u64,
    #[command(flatten)]
    loops: LoopsArgs,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    #[command(flatten)]
    place: PlaceArgs,
}

pub fn generate(options: GenerateArgs) -> anyhow::Result<()> {
    let sampling = Sampling {
        temperature: options.temperature,
        top_k: options.top_k,
        top_p: options.top_p,
        seed: options.seed,
    };
    let as_option =
        |error: ConfigError| ConfigError::new(format!("--{}", error.field), error.problem);
    sampling.validate().map_err(as_option)?;
    for (option, is_given) in [
        ("--top-k", sampling.top_k.is_some()),
        ("--top-p", sampling.top_p.is_some()),
    ] {
        if is_given && sampling.temperature == 0.0 {
            let problem = "has no effect with `--temperature 0`, which always takes the most likely token; leave one of \
                           them out";
            return Err(ConfigError::new(option, problem).into());
        }
    }
    let mut prompts: Vec<_> = options
        .prompt
        .iter()
        .map(|text| Some(text.as_str()))
        .collect();
    if prompts.is_empty() {
        prompts.push(None);
    }
    let samples = options.samples as usize;
    let texts = prompts.len().saturating_mul(samples);
    if texts > MOST_TEXTS {
        let problem = format!("{texts} texts are too many; ask for at most {MOST_TEXTS} at once");
        return Err(ConfigError::new("--samples", problem).into());
    }
    let prompts = prompts.into_iter().flat_map(|prompt| vec![prompt; samples]);
    let place = options.place.place()?;
    let mut run = options.checkpoint.open::<ModelConfig>(&options.run)?;
    note_edited(run.directory());
    options.loops.apply(&mut run)?;
    run.must_be_text()?;
    if !options.force {
        options.check_memory(&run, texts, (place.kind, place.gpu))?;
    }
    residual_zoo::experiment::generate(
        run,
        &prompts.collect::<Vec<_>>(),
        options.tokens,
        sampling,
        place,
    )?;
    Ok(())
}

impl GenerateArgs {
    /// Refuses a model that this machine cannot hold. Also refuses texts of the wanted length that do not fit.
    fn check_memory(
        &self,
        run: &Run<ModelConfig>,
        texts: usize,
        device: (BackendKind, Option<usize>),
    ) -> anyhow::Result<()> {
        let (config, vocabulary) = (&run.config, run.vocabulary());
        check_size(config, vocabulary, device, Use::Load).map_err(or_force)?;
        let context = config.model.shape().context;
        let mut prompt = 1;
        for text in &self.prompt {
            prompt = prompt.max(run.tokenizer.encode(text)?.len());
        }
        let prompt = prompt.min(context);
        let time = prompt.saturating_add(self.tokens);
        let sequences = Sequences {
            option: ("--tokens", self.tokens),
            remedy: "generate fewer tokens, or fewer texts at once",
            rows: texts.min(TOGETHER),
            time,
            reading: Reading::Generation {
                // A text that fills the context is read again from its newest half.
                read: match time > context {
                    true => prompt.max(context.div_ceil(2)),
                    false => prompt,
                },
            },
        };
        let checked = check_reading(config, vocabulary, device, sequences, available_memory());
        Ok(checked.map_err(or_force)?)
    }
}
