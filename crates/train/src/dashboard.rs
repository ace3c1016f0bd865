//! The display of a run during training: a dashboard in the terminal, lines of text, or a status line. All displays
//! receive the same metrics, through burn-train's `MetricsRenderer`.

mod axis;
mod log;
mod pace;
mod rows;
mod status;
mod terminal;
mod view;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use burn::data::dataloader::Progress;
use burn_train::Interrupter;
use burn_train::metric::{
    MetricDefinition, MetricEntry, MetricId, NumericAttributes, NumericEntry, SerializedEntry,
};
use burn_train::renderer::{
    MetricState, MetricsRenderer, MetricsRendererTraining, ProgressType, TrainingProgress,
};
use residual_zoo_data::{Corpus, Examples};
use residual_zoo_report::{flops_per_second, si};
use residual_zoo_runs::Row;

use self::log::Log;
use self::pace::Pace;
use self::rows::Rows;
use self::status::RunStatus;
use self::terminal::Terminal;

pub use self::terminal::{Screen, is_open, restore_terminal, suspend_screen};

/// The display of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Display {
    /// A dashboard that fills the terminal.
    Terminal,
    /// Lines of text.
    Log,
    /// A status line with the progress.
    Status,
    /// Nothing.
    Quiet,
}

impl Display {
    /// Whether the display shows the name of a run on a terminal while the run trains.
    pub fn is_live(self) -> bool {
        use std::io::IsTerminal;
        match self {
            Self::Terminal => true,
            Self::Status => std::io::stderr().is_terminal(),
            Self::Log | Self::Quiet => false,
        }
    }

    /// Chooses the dashboard if `plain` is false and standard input and output are terminals that can show it;
    /// otherwise the log.
    pub fn detect(plain: bool) -> Self {
        use std::io::IsTerminal;
        let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        match is_terminal && !plain && !residual_zoo_system::terminal::is_dumb() {
            true => Self::Terminal,
            false => Self::Log,
        }
    }
}

/// The unit of a model's input, in which losses and speeds are given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// Tokens, with the number of bytes of text per token if it is known. Losses can then be shown in bits per byte.
    Tokens(Option<f64>),
    /// Images.
    Images,
}

impl Unit {
    /// Returns the unit of models that are trained on `corpus`.
    pub fn of(corpus: &Corpus) -> Self {
        match corpus.train {
            Examples::Images(_) => Self::Images,
            _ => Self::Tokens(corpus.bytes_per_token),
        }
    }

    /// Returns the name, such as `tokens`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens(_) => "tokens",
            Self::Images => "images",
        }
    }

    /// Returns the name of the speed metric.
    fn speed(self) -> &'static str {
        match self {
            Self::Tokens(_) => "Tokens/s",
            Self::Images => "Images/s",
        }
    }
}

/// The names of a run in the dashboard, and the work that follows the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Title {
    /// The experiment or comparison that the run belongs to.
    pub whole: Option<String>,
    /// The name of the run; `None` for the name of its model.
    pub run: Option<String>,
    /// The number of the run, counted from 1, and the total number of runs.
    pub number: Option<(usize, usize)>,
    /// Training FLOPs of the later runs, as a multiple of the FLOPs of this run.
    pub to_come: f64,
}

/// Facts about a run that a dashboard shows besides the rows.
pub(crate) struct About<'a> {
    /// The title.
    pub title: &'a Title,
    /// The name of the model.
    pub model: &'a str,
    /// Number of parameters of the model.
    pub parameters: usize,
    /// The seed.
    pub seed: u64,
    /// The run directory.
    pub directory: &'a Path,
    /// The step at which the run starts or continues, and its last step.
    pub steps: (usize, usize),
    /// The unit of the model's input.
    pub unit: Unit,
}

impl About<'_> {
    /// Returns the number and the name of the run: `[2/6] wide, seed 1`.
    fn short(&self) -> String {
        let number = self.title.number.map(|(n, of)| format!("[{n}/{of}] "));
        let name = self.title.run.as_deref().unwrap_or(self.model);
        format!("{}{name}, seed {}", number.unwrap_or_default(), self.seed)
    }

    /// Returns the parts of the heading.
    fn heading(&self) -> Vec<String> {
        let number = self.title.number.map(|(n, of)| format!("{n} of {of}"));
        let seed = format!("seed {}", self.seed);
        let model = match &self.title.run {
            Some(run) if run == self.model => None,
            _ => Some(self.model.to_owned()),
        };
        let names = [self.title.whole.clone(), self.title.run.clone(), model];
        let names = names.into_iter().flatten();
        let parameters = format!("{} parameters", si(self.parameters as f64));
        names
            .chain([parameters])
            .chain(number)
            .chain([seed])
            .collect()
    }
}

/// The activity of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Nothing yet.
    Starting,
    /// A step.
    Training,
    /// A batch of the validation, counted from 1, and the number of its batches.
    Validating(usize, usize),
    /// A token of the sample, counted from 1, and the number of its tokens.
    Sampling(usize, usize),
    /// Writing a checkpoint.
    Saving,
}

impl Activity {
    fn describe(self) -> String {
        match self {
            Self::Starting => "starting".into(),
            Self::Training => "training".into(),
            Self::Validating(batch, of) => format!("validating, batch {batch} of {of}"),
            Self::Sampling(token, of) => format!("sampling, token {token} of {of}"),
            Self::Saving => "saving a checkpoint".into(),
        }
    }

    /// Whether both activities are of the same kind, whatever their progress.
    fn is_same(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

const LOSS: &str = "Loss";
const LEARNING_RATE: &str = "Learning rate";
const MUON_RATE: &str = "Learning rate, Muon";
const GRADIENT_NORM: &str = "Gradient norm";
const UTILISATION: &str = "MFU";
const MEMORY: &str = "Memory";

/// Shows the rows and the activity of a run.
pub struct Dashboard {
    /// `None` for a display without output.
    renderer: Option<Rows>,
    display: Display,
    total_steps: usize,
    unit: Unit,
}

impl Dashboard {
    /// Opens a dashboard. The dashboard sets `stop` when the user asks to stop.
    pub(crate) fn open(display: Display, about: &About, stop: &Interrupter) -> Self {
        let (start, total_steps) = about.steps;
        // A run with no steps left needs no dashboard.
        let display = match display {
            Display::Terminal if start >= total_steps => Display::Log,
            display => display,
        };
        let pace = Pace::new(Instant::now(), about.steps, about.title.to_come);
        let mut renderer = match display {
            Display::Terminal => Some(Rows::new(Terminal::open(about, pace, stop))),
            Display::Log => Some(Rows::new(Log::new(pace, about.unit))),
            Display::Status => Some(Rows::new(RunStatus::new(about.short(), pace))),
            Display::Quiet => None,
        };
        if let Some(renderer) = &mut renderer {
            let speed = about.unit.speed();
            for name in [
                LOSS,
                GRADIENT_NORM,
                LEARNING_RATE,
                MUON_RATE,
                speed,
                MEMORY,
                UTILISATION,
            ] {
                renderer.register_metric(MetricDefinition {
                    metric_id: id(name),
                    name: name.into(),
                    description: None,
                    attributes: NumericAttributes::default().into(),
                });
            }
        }
        Self {
            renderer,
            display,
            total_steps,
            unit: about.unit,
        }
    }

    /// Adds a row from an earlier start of the run to the curves. Only the terminal dashboard shows such rows.
    pub fn replay(&mut self, row: &Row, flops_per_token: f64) {
        if self.display == Display::Terminal {
            self.show(row, flops_per_token);
        }
    }

    /// Shows a row of a model with `flops_per_token` training FLOPs per token.
    pub fn show(&mut self, row: &Row, flops_per_token: f64) {
        let unit = self.unit;
        let total = self.total_steps;
        let Some(renderer) = &mut self.renderer else {
            return;
        };
        let mut train = |name, value: Option<f64>, shown: &dyn Fn(f64) -> String| {
            if let Some(value) = value {
                renderer.update_train(state(name, value, shown(value)));
            }
        };
        train(LOSS, row.train_loss, &|loss| format!("{loss:.4}"));
        train(GRADIENT_NORM, row.grad_norm, &|norm| format!("{norm:.3}"));
        train(LEARNING_RATE, row.lr, &|lr| format!("{lr:.2e}"));
        train(MUON_RATE, row.muon_lr, &|lr| format!("{lr:.2e}"));
        train(unit.speed(), row.tokens_per_second, &|rate| {
            format!("{}, {}", si(rate), flops_per_second(rate * flops_per_token))
        });
        train(UTILISATION, row.mfu, &|mfu| format!("{:.1} %", 100.0 * mfu));
        let mebibytes = row.memory.map(|bytes| bytes as f64 / (1 << 20) as f64);
        train(MEMORY, mebibytes, &|size| format!("{size:.0} MiB"));
        if let Some(loss) = row.valid_loss {
            let mut shown = describe_loss(loss, row.valid_accuracy, unit);
            if let Some(average) = row.ema_valid_loss {
                shown.push_str(&format!(", average of the weights {average:.4}"));
            }
            renderer.update_valid(state(LOSS, loss, shown));
        }

        // All steps form one epoch.
        let steps = || Progress::new(row.step, total);
        let progress = TrainingProgress {
            progress: Some(steps()),
            global_progress: Progress::new(1, 1),
            iteration: Some(row.step),
        };
        let step = ProgressType::Detailed {
            tag: "Step".into(),
            progress: steps(),
        };
        let tokens = ProgressType::Value {
            tag: unit.name().into(),
            value: row.tokens as usize,
        };
        renderer.render_train(progress, vec![step, tokens]);
    }

    /// Sets the activity that is shown from now on. The call is cheap enough for every step.
    pub fn activity(&mut self, activity: Activity) {
        if let Some(renderer) = &mut self.renderer {
            renderer.sink.activity(activity);
        }
    }

    /// Shows the end of a step: the steps and tokens so far. The call is cheap enough for every step.
    pub fn step(&mut self, step: usize, tokens: u64) {
        if let Some(renderer) = &mut self.renderer {
            renderer.sink.step(step, tokens);
        }
    }

    /// Shows a note to the user. The terminal dashboard also prints the note after the dashboard has closed.
    pub fn note(&mut self, text: &str) {
        if let Some(renderer) = &mut self.renderer {
            renderer.sink.note(text);
        }
    }

    /// Prints text sampled after `step` steps to the log. Other displays do not show the text.
    pub fn sample(&mut self, step: usize, text: &str) {
        if let Some(renderer) = &mut self.renderer {
            renderer.sink.sample(step, text);
        }
    }
}

/// Describes a loss in nats per token or image, with the perplexity for tokens and, if known, the accuracy and the bits
/// per byte.
pub fn describe_loss(loss: f64, accuracy: Option<f64>, unit: Unit) -> String {
    let perplexity = match loss.exp() {
        small if small < 1e5 => format!("perplexity {small:.2}"),
        large => format!("perplexity {}", si(large)),
    };
    let (perplexity, bytes) = match unit {
        Unit::Tokens(bytes) => (Some(perplexity), bytes),
        Unit::Images => (None, None),
    };
    let accuracy = accuracy.map(|share| format!("accuracy {:.1} %", 100.0 * share));
    let bits = bytes.map(|bytes| format!("{:.3} bits/byte", loss / std::f64::consts::LN_2 / bytes));
    let more: Vec<String> = [perplexity, accuracy, bits].into_iter().flatten().collect();
    match more.is_empty() {
        true => format!("{loss:.4}"),
        false => format!("{loss:.4} ({})", more.join(", ")),
    }
}

/// Inserts the step into the result of [`describe_loss`], before the parentheses, because a narrow terminal cuts off
/// the end.
pub fn at_step(loss: &str, step: usize) -> String {
    match loss.split_once(" (") {
        Some((loss, more)) => format!("{loss} at step {step} ({more}"),
        None => format!("{loss} at step {step}"),
    }
}

fn id(name: &str) -> MetricId {
    MetricId::new(Arc::new(name.to_string()))
}

fn state(name: &str, value: f64, shown: String) -> MetricState {
    let entry = SerializedEntry::new(shown, value.to_string());
    MetricState::Numeric(
        MetricEntry::new(id(name), entry),
        NumericEntry::Value(value),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heading_names_what_there_is() {
        let mut title = Title::default();
        let heading = |title: &Title| {
            let about = About {
                title,
                model: "GPT-2",
                parameters: 12_345,
                seed: 3,
                directory: Path::new("runs/a"),
                steps: (0, 10),
                unit: Unit::Tokens(None),
            };
            about.heading().join(" · ")
        };
        assert_eq!(heading(&title), "GPT-2 · 12.3k parameters · seed 3");
        title.run = Some("GPT-2".into());
        assert_eq!(heading(&title), "GPT-2 · 12.3k parameters · seed 3");
        title.run = Some("wide".into());
        title.whole = Some("sizes".into());
        title.number = Some((2, 6));
        assert_eq!(
            heading(&title),
            "sizes · wide · GPT-2 · 12.3k parameters · 2 of 6 · seed 3"
        );
    }

    #[test]
    fn a_loss_is_short_however_large_it_is() {
        assert_eq!(
            describe_loss(1.0, Some(0.5), Unit::Tokens(Some(2.0))),
            "1.0000 (perplexity 2.72, accuracy 50.0 %, 0.721 bits/byte)"
        );
        assert_eq!(
            describe_loss(1.0, Some(0.5), Unit::Images),
            "1.0000 (accuracy 50.0 %)"
        );
        assert_eq!(describe_loss(1.0, None, Unit::Images), "1.0000");
        assert_eq!(at_step("1.0000", 5), "1.0000 at step 5");
        assert_eq!(at_step("1.0000 (a, b)", 5), "1.0000 at step 5 (a, b)");
        for loss in [0.0, 11.0, 13.0, 300.0, 9999.0] {
            assert!(
                describe_loss(loss, Some(1.0), Unit::Tokens(Some(1.0)))
                    .chars()
                    .count()
                    < 70
            );
        }
    }
}
