//! Implements burn-train's renderer interface for all displays: collects metrics until a row is complete.

use std::collections::HashMap;

use burn_train::metric::{MetricDefinition, MetricId};
use burn_train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};

use super::Activity;

/// A metric of a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Metric {
    /// The name.
    pub(super) name: String,
    /// Whether a validation measured the metric.
    pub(super) valid: bool,
    /// The value.
    pub(super) value: f64,
    /// The value as text.
    pub(super) shown: String,
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    /// Steps so far.
    pub(super) step: usize,
    /// Number of all steps.
    pub(super) total: usize,
    /// Tokens or images so far.
    pub(super) tokens: u64,
}

/// A display of rows, with the events between rows that burn-train's interface lacks.
pub(super) trait Sink: Send + Sync {
    /// Shows a row.
    fn row(&mut self, reached: Reached, metrics: Vec<Metric>);
    /// Sets the activity that is shown from now on.
    fn activity(&mut self, activity: Activity);
    /// Shows the end of a step: the steps and tokens so far.
    fn step(&mut self, step: usize, tokens: u64);
    /// Shows a note to the user.
    fn note(&mut self, text: &str);
    /// Shows text sampled after `step` steps.
    fn sample(&mut self, step: usize, text: &str);
}

/// A burn-train renderer that passes on complete rows.
pub(super) struct Rows {
    pub(super) sink: Box<dyn Sink>,
    names: HashMap<MetricId, String>,
    metrics: Vec<Metric>,
}

impl Rows {
    pub(super) fn new(sink: impl Sink + 'static) -> Self {
        Self {
            sink: Box::new(sink),
            names: HashMap::new(),
            metrics: Vec::new(),
        }
    }

    fn push(&mut self, state: MetricState, valid: bool) {
        let (entry, value) = match state {
            MetricState::Numeric(entry, value) => (entry, value.current()),
            MetricState::Generic(entry) => (entry, f64::NAN),
        };
        if let Some(name) = self.names.get(&entry.metric_id) {
            self.metrics.push(Metric {
                name: name.clone(),
                valid,
                value,
                shown: entry.serialized_entry.formatted,
            });
        }
    }
}

impl MetricsRendererTraining for Rows {
    fn update_train(&mut self, state: MetricState) {
        self.push(state, false);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.push(state, true);
    }

    fn render_train(&mut self, item: TrainingProgress, indicators: Vec<ProgressType>) {
        // The only value is the number of tokens, or of images.
        let tokens = indicators.iter().find_map(|indicator| match indicator {
            ProgressType::Value { value, .. } => Some(*value as u64),
            ProgressType::Detailed { .. } => None,
        });
        let progress = item.progress.unwrap_or(item.global_progress);
        let reached = Reached {
            step: progress.items_processed,
            total: progress.items_total,
            tokens: tokens.unwrap_or(0),
        };
        self.sink.row(reached, std::mem::take(&mut self.metrics));
    }

    fn render_valid(&mut self, item: TrainingProgress, indicators: Vec<ProgressType>) {
        self.render_train(item, indicators);
    }
}

impl MetricsRendererEvaluation for Rows {
    fn update_test(&mut self, _: EvaluationName, state: MetricState) {
        self.push(state, true);
    }

    fn render_test(&mut self, item: EvaluationProgress, indicators: Vec<ProgressType>) {
        self.render_train(TrainingProgress::from(&item), indicators);
    }
}

impl MetricsRenderer for Rows {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, metric: MetricDefinition) {
        self.names.insert(metric.metric_id, metric.name);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use residual_zoo_runs::Row;

    use super::super::{Dashboard, Display, Unit};
    use super::*;

    /// A sink that keeps all rows.
    struct Seen(Arc<Mutex<Vec<Reached>>>);

    impl Sink for Seen {
        fn row(&mut self, reached: Reached, _: Vec<Metric>) {
            self.0.lock().unwrap().push(reached);
        }
        fn activity(&mut self, _: Activity) {}
        fn step(&mut self, _: usize, _: u64) {}
        fn note(&mut self, _: &str) {}
        fn sample(&mut self, _: usize, _: &str) {}
    }

    #[test]
    fn a_row_has_the_tokens_or_images_so_far() {
        for unit in [Unit::Tokens(None), Unit::Images] {
            let seen = Arc::default();
            let mut dashboard = Dashboard {
                renderer: Some(Rows::new(Seen(Arc::clone(&seen)))),
                display: Display::Log,
                total_steps: 40,
                unit,
            };
            let row = Row {
                step: 10,
                tokens: 640,
                ..Row::default()
            };
            dashboard.show(&row, 1.0);
            let expected = Reached {
                step: 10,
                total: 40,
                tokens: 640,
            };
            assert_eq!(*seen.lock().unwrap(), [expected]);
        }
    }
}
