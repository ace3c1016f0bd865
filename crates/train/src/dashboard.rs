//! The display of a run during training: Burn's terminal dashboard, or lines of text if there is no
//! terminal. Both are `MetricsRenderer`s of burn-train and receive the same metrics.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::data::dataloader::Progress;
use burn_train::Interrupter;
use burn_train::metric::{
    MetricDefinition, MetricEntry, MetricId, NumericAttributes, NumericEntry, SerializedEntry,
};
use burn_train::renderer::tui::TuiMetricsRendererWrapper;
use burn_train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};

use residual_zoo_report::si;
use residual_zoo_runs::Row;

/// How a run is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Display {
    /// Burn's terminal dashboard.
    Terminal,
    /// A line of text for every row.
    Log,
    /// Nothing.
    Quiet,
}

impl Display {
    /// The dashboard if standard input and output are terminals and `plain` is false, else the log.
    pub fn detect(plain: bool) -> Self {
        use std::io::IsTerminal;
        match std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !plain {
            true => Self::Terminal,
            false => Self::Log,
        }
    }
}

const LOSS: &str = "Loss";
const LEARNING_RATE: &str = "Learning rate";
const GRADIENT_NORM: &str = "Gradient norm";
const SPEED: &str = "Tokens/s";
const MEMORY: &str = "Memory";

/// Shows the rows of a run.
pub struct Dashboard {
    renderer: Option<Box<dyn MetricsRenderer>>,
    display: Display,
    /// Notes that are printed after the terminal dashboard has closed.
    notes: Vec<String>,
    total_steps: usize,
    bytes_per_token: Option<f64>,
}

impl Dashboard {
    /// Opens a dashboard for a run of `total_steps` steps that starts at step `start`. The
    /// dashboard sets `stop` when the user asks to stop. With `bytes_per_token`, losses are also
    /// shown in bits per byte.
    pub fn open(
        display: Display,
        (start, total_steps): (usize, usize),
        bytes_per_token: Option<f64>,
        stop: &Interrupter,
    ) -> Self {
        let mut renderer: Option<Box<dyn MetricsRenderer>> = match display {
            Display::Terminal => Some(Box::new(open_terminal(stop.clone()))),
            Display::Log => Some(Box::new(Log::new(start))),
            Display::Quiet => None,
        };
        if let Some(renderer) = &mut renderer {
            // burn-train's renderer ends at an entry of an unregistered metric.
            for name in [LOSS, SPEED, GRADIENT_NORM, LEARNING_RATE, MEMORY] {
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
            notes: Vec::new(),
            total_steps,
            bytes_per_token,
        }
    }

    /// Shows a row from before this start. It becomes part of the curves; the log does not repeat
    /// it.
    pub fn replay(&mut self, row: &Row, flops_per_token: f64) {
        if self.display == Display::Terminal {
            self.show(row, flops_per_token);
        }
    }

    /// Shows a row of a model with `flops_per_token` training FLOPs per token.
    pub fn show(&mut self, row: &Row, flops_per_token: f64) {
        let bytes_per_token = self.bytes_per_token;
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
        train(SPEED, row.tokens_per_second, &|rate| {
            let flops = format!("{}, {}FLOP/s", si(rate), si(rate * flops_per_token));
            match row.mfu {
                Some(mfu) => format!("{flops}, MFU {:.1} %", 100.0 * mfu),
                None => flops,
            }
        });
        train(GRADIENT_NORM, row.grad_norm, &|norm| format!("{norm:.3}"));
        train(LEARNING_RATE, row.lr, &|lr| format!("{lr:.2e}"));
        let mebibytes = row.memory.map(|bytes| bytes as f64 / (1 << 20) as f64);
        train(MEMORY, mebibytes, &|size| format!("{size:.0} MiB"));
        if let Some(loss) = row.valid_loss {
            let shown = describe_loss(loss, row.valid_accuracy, bytes_per_token);
            renderer.update_valid(state(LOSS, loss, shown));
        }

        // All steps form one epoch. Without epochs, burn-train shows a wrong remaining time.
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
            tag: "Tokens".into(),
            value: row.tokens as usize,
        };
        renderer.render_train(progress, vec![step, tokens]);
    }

    /// Shows a note to the user: at once, or after the terminal dashboard has closed.
    pub fn note(&mut self, text: &str) {
        match self.display {
            Display::Log => print(text),
            Display::Terminal => self.notes.push(text.into()),
            Display::Quiet => {}
        }
    }

    /// Prints text sampled after `step` steps to the log. Other displays do not show it.
    pub fn sample(&self, step: usize, text: &str) {
        if self.display == Display::Log {
            print(&format!("--- sample at step {step}\n{text}\n---"));
        }
    }
}

/// Maximum number of notes printed after a dashboard. Earlier ones are left out.
const MOST_NOTES: usize = 20;

impl Drop for Dashboard {
    fn drop(&mut self) {
        drop(self.renderer.take());
        let left_out = self.notes.len().saturating_sub(MOST_NOTES);
        if left_out > 0 {
            eprintln!("({left_out} earlier notes)");
        }
        for note in self.notes.iter().skip(left_out) {
            eprintln!("{note}");
        }
    }
}

/// Prints a line to standard output. Training continues even if the reader has closed the pipe.
pub fn print(text: &str) {
    writeln!(std::io::stdout(), "{text}").ok();
}

/// Describes a loss in nats per token, with its perplexity and, if known, the accuracy and the bits
/// per byte.
pub fn describe_loss(loss: f64, accuracy: Option<f64>, bytes_per_token: Option<f64>) -> String {
    let accuracy = accuracy.map(|share| format!(", accuracy {:.1} %", 100.0 * share));
    let bits = bytes_per_token
        .map(|bytes| format!(", {:.3} bits/byte", loss / std::f64::consts::LN_2 / bytes));
    format!(
        "{loss:.4} (perplexity {:.2}{}{})",
        loss.exp(),
        accuracy.unwrap_or_default(),
        bits.unwrap_or_default()
    )
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

/// Opens burn-train's dashboard and works around two problems of version 0.21.
///
/// Its thread polls without sleeping and so occupies a core. It inherits the priority of the thread
/// that opens it. It is therefore opened from a thread of the lowest priority and takes only what
/// training leaves (docs/performance.md has the figures).
///
/// Its raw mode turns Ctrl-C into a key that it ignores. Turning signals back on makes Ctrl-C stop
/// a run here as it does elsewhere.
fn open_terminal(stop: Interrupter) -> TuiMetricsRendererWrapper {
    let open = move || {
        #[cfg(target_os = "linux")] // Elsewhere `nice` acts on the whole process.
        rustix::process::nice(19).ok();
        TuiMetricsRendererWrapper::new(stop, None)
    };
    let opener = std::thread::spawn(open);
    let terminal = opener
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let deadline = Instant::now() + Duration::from_secs(2);
    while Instant::now() < deadline {
        if crossterm::terminal::is_raw_mode_enabled().unwrap_or(false) {
            enable_signals();
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    terminal
}

/// Restores the terminal, for a program that ends without dropping the dashboard.
pub fn restore_terminal() {
    if crossterm::terminal::is_raw_mode_enabled().unwrap_or(false) {
        crossterm::terminal::disable_raw_mode().ok();
        let leave = crossterm::terminal::LeaveAlternateScreen;
        crossterm::execute!(std::io::stdout(), leave, crossterm::cursor::Show).ok();
    }
}

#[cfg(unix)]
fn enable_signals() {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let stdin = std::io::stdin();
    if let Ok(mut mode) = tcgetattr(&stdin) {
        mode.local_modes |= LocalModes::ISIG;
        tcsetattr(&stdin, OptionalActions::Now, &mode).ok();
    }
}

#[cfg(not(unix))]
fn enable_signals() {}

/// Prints one line for each row.
struct Log {
    names: HashMap<MetricId, String>,
    parts: Vec<String>,
    start: usize,
    started: Instant,
}

impl Log {
    fn new(start: usize) -> Self {
        Self {
            names: HashMap::new(),
            parts: Vec::new(),
            start,
            started: Instant::now(),
        }
    }

    fn push(&mut self, prefix: &str, state: MetricState) {
        let (MetricState::Numeric(entry, _) | MetricState::Generic(entry)) = state;
        let name = self.names.get(&entry.metric_id).map_or("", String::as_str);
        self.parts.push(format!(
            "{prefix}{name} {}",
            entry.serialized_entry.formatted
        ));
    }

    fn print(&mut self, step: usize, total: usize) {
        let done = step.saturating_sub(self.start);
        let left = (done > 0 && step < total).then(|| {
            self.started
                .elapsed()
                .mul_f64((total - step) as f64 / done as f64)
        });
        self.parts
            .extend(left.map(|left| format!("left {}", duration(left))));
        let width = total.to_string().len();
        let line = format!("step {step:>width$}/{total}  {}", self.parts.join("  "));
        self.parts.clear();
        print(&line);
    }
}

/// A duration in at most two units, such as `3m 20s`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m {s:02}s"),
        (h, m, _) => format!("{h}h {m:02}m"),
    }
}

impl MetricsRendererTraining for Log {
    fn update_train(&mut self, state: MetricState) {
        self.push("", state);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.push("valid ", state);
    }

    fn render_train(&mut self, item: TrainingProgress, _: Vec<ProgressType>) {
        let progress = item.progress.unwrap_or(item.global_progress);
        self.print(progress.items_processed, progress.items_total);
    }

    fn render_valid(&mut self, item: TrainingProgress, indicators: Vec<ProgressType>) {
        self.render_train(item, indicators);
    }
}

impl MetricsRendererEvaluation for Log {
    fn update_test(&mut self, _: EvaluationName, state: MetricState) {
        self.push("test ", state);
    }

    fn render_test(&mut self, item: EvaluationProgress, _: Vec<ProgressType>) {
        self.print(item.progress.items_processed, item.progress.items_total);
    }
}

impl MetricsRenderer for Log {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, metric: MetricDefinition) {
        self.names
            .insert(metric.metric_id, metric.name.to_lowercase());
    }
}
