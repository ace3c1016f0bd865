//! `residual-zoo evaluate`

use std::path::{Path, PathBuf};

use clap::Args;
use residual_zoo::backend::BackendKind;
use residual_zoo::cli::{self, CheckpointArgs, DataArgs, PlaceArgs};
use residual_zoo::core::{ConfigError, ModelConfig as _};
use residual_zoo::data::Source;
use residual_zoo::drive::{
    Error as DriveError, IMAGES_REPORT, Reading, Sequences, Use, available_memory, check_reading,
    check_size, open_corpus,
};
use residual_zoo::evaluate::{
    Error as EvaluateError, Options as Evaluation, Task, longest, most_tokens,
};
use residual_zoo::lab::Error;
use residual_zoo::report::sig;
use residual_zoo::train::Interrupter;
use residual_zoo::{Run, experiment};
use residual_zoo_system::{Blame as _, counted};

use super::{LoopsArgs, name_of_run, note_edited, or_force};

/// Evaluate a run's model: perplexity of texts, last-word prediction, multiple choice; for a run on images, accuracies.
///
/// A task is a file: a text, or one JSON object per line with the fields of a public data set. Questions and metrics
/// follow EleutherAI's lm_eval. An evaluation that was stopped continues with the same command.
///
/// A run on images classifies all of its validation images. images.html then has the confusion matrix and misclassified
/// images.
#[derive(Args)]
#[command(after_long_help = "Examples:
  residual-zoo evaluate runs/gpt2 \\
    --task wikitext=wiki.valid.raw
  residual-zoo evaluate runs/gpt2 \\
    --task lambada=lambada_test.jsonl \\
    --task hellaswag_val.jsonl
  residual-zoo evaluate runs/vit-cifar-cpu \\
    --data cifar-10-batches-bin")]
pub struct EvaluateArgs {
    /// The run directory, such as runs/gpt2-shakespeare-cpu
    run: PathBuf,
    /// The file of a task; repeat it for several. KIND is lambada, hellaswag, piqa, arc, winogrande, wikitext or text.
    /// Without KIND, the kind follows from the fields of a .jsonl file, or is text. KIND is needed for lambada, which
    /// has the same fields as text, and for text files of WikiText. A run on text needs at least one task
    #[arg(long, value_name = "[KIND=]FILE")]
    task: Vec<String>,
    /// The directory of the images, for a run on images [default: as in the config of the run]
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// Take the first N documents of each task [default: all]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    limit: Option<usize>,
    /// Tokens of a long text that each window predicts; with a smaller number, each token has more context [default:
    /// the context of the model]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    stride: Option<usize>,
    /// Number of requests of equal length, or of images, that are scored at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = at_least_one)]
    batch: usize,
    /// The directory of results.json and of the samples [default: evaluations/ and the name of the run]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on even if this machine's memory cannot hold the model or a batch
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    loops: LoopsArgs,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    #[command(flatten)]
    place: PlaceArgs,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let number: usize = text
        .parse()
        .map_err(|_| "must be a whole number of at least 1".to_owned())?;
    match number {
        0 => Err("must be a whole number of at least 1".into()),
        number => Ok(number),
    }
}

pub fn evaluate(options: EvaluateArgs) -> anyhow::Result<()> {
    let place = options.place.place()?;
    let mut run = options.checkpoint.open(&options.run)?;
    note_edited(run.directory());
    options.loops.apply(&mut run)?;
    if matches!(
        run.config.data.source,
        Source::Images(_) | Source::Cifar10(_)
    ) {
        return images(&run, &options);
    }
    run.must_be_text()?;
    if let Some(data) = &options.data {
        let problem = "is given, but the run is on text; give the text with `--task`";
        return Err(ConfigError::new(format!("--data {data}"), problem).into());
    }
    if options.task.is_empty() {
        let problem = "is missing; give a file, such as `--task my.txt`";
        return Err(ConfigError::new("--task", problem).into());
    }
    let tasks = options
        .task
        .iter()
        .map(|task| Task::read(task, options.limit).map_err(Error::from));
    let tasks: Vec<Task> = tasks.collect::<Result<_, _>>()?;
    for (i, task) in tasks.iter().enumerate() {
        if tasks[..i].iter().any(|other| other.name == task.name) {
            let problem = format!("names two files {}; rename one", task.name);
            return Err(ConfigError::new("--task", problem).into());
        }
    }
    let context = run.config.model.shape().context;
    if let Some(stride) = options.stride.filter(|stride| *stride > context) {
        let problem = format!(
            "is {stride}, but the model reads {}; give at most {context}",
            counted(context, "token")
        );
        return Err(ConfigError::new("--stride", problem).into());
    }
    let stop = cli::stop_on_signal()?;
    options.check_texts(&run, &tasks, (place.kind, place.gpu), &stop)?;
    let directory = options.directory()?;
    let evaluation = Evaluation {
        directory: directory.clone(),
        batch: options.batch,
        stride: options.stride,
    };
    let all = experiment::evaluate(&run, &tasks, &evaluation, place, &stop)?;
    if let Some(task) = all.first() {
        cli::print(&format!("{}{place}", run.describe(&task.checkpoint)))?;
    }
    for task in all {
        for note in &task.notes {
            cli::print(&format!("note: {}: {note}", task.task))?;
        }
        let unit = if task.original == 1 {
            "document"
        } else {
            "documents"
        };
        let count = match task.documents == task.original {
            true => String::new(),
            false => format!("{} of ", task.documents),
        };
        let kind = task.kind.name();
        cli::print(&format!(
            "{} ({kind}, {count}{} {unit})",
            task.task, task.original
        ))?;
        for metric in task.metrics {
            let error = metric
                .error
                .map_or(String::new(), |error| format!(" ± {}", sig(error, 2)));
            let better = if metric.higher_is_better {
                "higher"
            } else {
                "lower"
            };
            cli::print(&format!(
                "  {:<18}{}{error}  ({better} is better)",
                metric.name,
                sig(metric.value, 5)
            ))?;
        }
    }
    cli::print(&format!(
        "results: {}",
        directory.join("results.json").display()
    ))?;
    Ok(())
}

impl EvaluateArgs {
    /// Returns the directory of the results.
    fn directory(&self) -> anyhow::Result<PathBuf> {
        match &self.out {
            Some(directory) => Ok(directory.clone()),
            None => Ok(Path::new("evaluations").join(name_of_run(&self.run)?)),
        }
    }

    /// Refuses a model that this machine cannot hold. Also refuses a batch of requests of `tasks` that does not fit.
    fn check_texts(
        &self,
        run: &Run,
        tasks: &[Task],
        device: (BackendKind, Option<usize>),
        stop: &Interrupter,
    ) -> Result<(), DriveError> {
        if self.force {
            return Ok(());
        }
        let context = run.config.model.shape().context;
        let bound = most_tokens(tasks, context)?;
        let checked = self.check_memory(run, (self.batch, bound), device);
        match checked {
            Err(error) if !error.is_stop() => {
                // `bound` counts bytes, and most tokens have several bytes, so the longest request may be shorter. Its
                // tokens are counted only here, because counting takes time.
                let sizes = (context, self.stride.unwrap_or(context));
                let goes_on = || !stop.should_stop();
                match longest(tasks, &run.tokenizer, sizes, goes_on)? {
                    found if found < bound => self.check_memory(run, (self.batch, found), device),
                    _ => Err(error),
                }
            }
            checked => checked,
        }
    }

    /// Refuses a model that this machine cannot hold. Also refuses a batch of `rows` sequences of `time` tokens, or of
    /// `rows` images, that does not fit.
    fn check_memory(
        &self,
        run: &Run,
        (rows, time): (usize, usize),
        device: (BackendKind, Option<usize>),
    ) -> Result<(), DriveError> {
        if self.force {
            return Ok(());
        }
        let (config, vocabulary) = (&run.config, run.vocabulary());
        check_size(config, vocabulary, device, Use::Load).map_err(or_force)?;
        let sequences = Sequences {
            option: ("--batch", rows),
            remedy: "give a smaller number",
            rows,
            time,
            reading: Reading::Evaluation,
        };
        check_reading(config, vocabulary, device, sequences, available_memory()).map_err(or_force)
    }
}

/// Classifies the validation images of a run.
fn images(run: &Run, options: &EvaluateArgs) -> anyhow::Result<()> {
    let wrong = |option: &str| {
        let problem =
            "is given, but a run on images classifies its validation images; leave it out";
        Err(ConfigError::new(option, problem).into())
    };
    if !options.task.is_empty() {
        return wrong("--task");
    }
    if options.limit.is_some() {
        return wrong("--limit");
    }
    if options.stride.is_some() {
        return wrong("--stride");
    }
    let place = options.place.place()?;
    let mut data = run.config.data.clone();
    let given = DataArgs {
        data: options.data.clone(),
        tokenizer: None,
    };
    given.apply(&mut data, &[])?;
    let stop = cli::stop_on_signal()?;
    let corpus = open_corpus(&data, &stop)?;
    let count = corpus.valid.images(1).map_or(0, |images| images.len());
    let rows = options.batch.min(count);
    options.check_memory(run, (rows, 1), (place.kind, place.gpu))?;
    let directory = options.directory()?;
    let how = (options.batch, &stop);
    let found = match experiment::classify(run, &corpus, &directory, how, place) {
        Err(DriveError::Evaluate(EvaluateError::Stopped)) => {
            return Err(DriveError::Stopped("nothing was written".into()).into());
        }
        found => found?,
    };
    cli::print(&format!(
        "{}{place}\n{} of {}\n  {}\n  loss {:.4} nats\nreport: {}",
        run.describe(&found.checkpoint),
        counted(found.found.len(), "image"),
        counted(found.classes.len(), "class"),
        found.accuracies().join("\n  "),
        found.loss,
        directory.join(IMAGES_REPORT).display()
    ))?;
    Ok(())
}
