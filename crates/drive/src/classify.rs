//! Classifies a run's validation images: accuracies, the confusion matrix, and misclassified images.

use std::path::{Path, PathBuf};

use burn::tensor::TensorData;
use burn::tensor::activation::log_softmax;
use burn::tensor::backend::{AutodiffBackend, Backend};
use residual_zoo_backend::OnBackend;
use residual_zoo_core::{ConfigError, LanguageModel as _, ModelConfig};
use residual_zoo_data::{Corpus, Examples};
use residual_zoo_report::{Cell, Column, Picture, Report, Section, Table, Tone};
use residual_zoo_runs::{Error as RunError, Run, disk};
use residual_zoo_system::console::{Status, warn};
use residual_zoo_system::counted;
use residual_zoo_train::{DeviceBatch, Interrupter, upload};
use serde_json::json;

use crate::{Error, Place};

/// The file name of the report about classified images.
pub const IMAGES_REPORT: &str = "images.html";

/// The result of classifying images with a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Classified {
    /// The checkpoint of the model.
    pub checkpoint: PathBuf,
    /// The names of the classes.
    pub classes: Vec<String>,
    /// The result for each image, in the order of the data.
    pub found: Vec<Found>,
    /// Mean of −log p of the true class, in nats.
    pub loss: f64,
    /// The share of images for which the true class is the likeliest.
    pub top_1: f64,
    /// The share of images for which the true class is among the five likeliest.
    pub top_5: f64,
}

/// The result for one image.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The true class.
    pub class: usize,
    /// The likeliest class.
    pub likeliest: usize,
    /// The probability of that class.
    pub probability: f64,
    /// The number of classes that are likelier than the true class.
    pub rank: usize,
    /// −log p of the true class.
    pub loss: f64,
}

impl Found {
    /// Ranks the classes by their log-probabilities. Among classes with equal probabilities, the first class counts as
    /// likelier.
    fn of(class: usize, log_p: &[f32]) -> Self {
        let own = log_p[class];
        let likelier =
            |(other, log_p): &(usize, &f32)| **log_p > own || (**log_p == own && *other < class);
        let mut likeliest = 0;
        for (class, value) in log_p.iter().enumerate() {
            if *value > log_p[likeliest] {
                likeliest = class;
            }
        }
        Self {
            class,
            likeliest,
            probability: f64::from(log_p[likeliest]).exp(),
            rank: log_p.iter().enumerate().filter(likelier).count(),
            loss: -f64::from(own),
        }
    }

    /// Whether the likeliest class is the true class.
    pub fn is_right(&self) -> bool {
        self.rank == 0
    }
}

/// Classifies all validation images of `corpus` with the chosen checkpoint of `run`, and writes [`IMAGES_REPORT`] and
/// `images.json` into `directory`.
///
/// # Errors
///
/// Returns an error if the images have other classes or another size than the training images, if the run was not
/// trained on images, or if a probability is not finite. Also returns an error if the backend cannot be used, or if a
/// file cannot be read or written. Returns [`residual_zoo_evaluate::Error::Stopped`] if the user stops the evaluation.
pub fn classify<C: ModelConfig>(
    run: &Run<C>,
    corpus: &Corpus,
    directory: &Path,
    (batch, stop): (usize, &Interrupter),
    place: impl Into<Place>,
) -> Result<Classified, Error> {
    if run.tokenizer.fingerprint() != corpus.tokenizer.fingerprint() {
        let problem = "has other classes than the run's training images; give images of the same classes with `--data`";
        return Err(ConfigError::new("data.source", problem).into());
    }
    // The directory is created first, so that a failure comes before the work.
    disk::create_directories(directory)?;
    run.config.validate(residual_zoo_runs::vocabulary(corpus))?;
    let newest = run.checkpoint()?;
    for note in newest.notes() {
        warn(&note);
    }
    let checkpoint = newest.path;
    let task = Classify {
        run,
        corpus,
        batch,
        stop,
    };
    let found = place.into().run(task)??;
    if found.iter().any(|found| !found.loss.is_finite()) {
        return Err(RunError::NoRun {
            path: run.directory().into(),
            problem: "gives probabilities that are not finite, so its weights are ruined; delete its newest checkpoint to go \
                      back to the one before"
                .into(),
        }
        .into());
    }
    let classes = classes(corpus, run)?;
    let count = found.len() as f64;
    let share = |is_in: fn(&Found) -> bool| {
        found.iter().filter(|found| is_in(found)).count() as f64 / count
    };
    let classified = Classified {
        checkpoint: checkpoint.clone(),
        classes,
        loss: found.iter().map(|found| found.loss).sum::<f64>() / count,
        top_1: share(Found::is_right),
        top_5: share(|found| found.rank < 5),
        found,
    };
    let report = classified.report(&checkpoint.display().to_string(), &corpus.valid)?;
    disk::replace_shared(&directory.join(IMAGES_REPORT), report.to_html().as_bytes())?;
    let results = json!({
        "checkpoint": checkpoint,
        "data": corpus.identity,
        "images": classified.found.len(),
        "loss": classified.loss,
        "top_1": classified.top_1,
        "top_5": classified.top_5,
        "classes": classified.classes,
        "confusion": classified.confusion(),
    });
    disk::replace_shared(
        &directory.join("images.json"),
        format!("{results:#}\n").as_bytes(),
    )?;
    Ok(classified)
}

/// Returns the names of the classes.
fn classes<C: ModelConfig>(corpus: &Corpus, run: &Run<C>) -> Result<Vec<String>, Error> {
    let count = run.vocabulary().outputs;
    let name = |class: usize| match &corpus.valid {
        Examples::Images(_) => corpus.tokenizer.decode(&[class as u32]),
        _ => Ok(class.to_string()),
    };
    Ok((0..count).map(name).collect::<Result<_, _>>()?)
}

struct Classify<'a, C> {
    run: &'a Run<C>,
    corpus: &'a Corpus,
    batch: usize,
    stop: &'a Interrupter,
}

impl<C: ModelConfig> OnBackend for Classify<'_, C> {
    type Output = Result<Vec<Found>, Error>;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Self::Output {
        self.found::<B::InnerBackend>(&device)
    }
}

impl<C: ModelConfig> Classify<'_, C> {
    fn found<B: Backend>(&self, device: &B::Device) -> Result<Vec<Found>, Error> {
        let batches = self.corpus.valid.images(self.batch);
        let batches = batches.ok_or_else(|| RunError::NoRun {
            path: self.run.directory().into(),
            problem: "was not trained on images".into(),
        })?;
        let model = self.run.model::<B>(device)?;
        let (mut all, mut status, count) = (Vec::new(), Status::default(), batches.len());
        for (done, batch) in batches.enumerate() {
            status.show(|| format!("{done} of {}", counted(count, "batch")));
            if self.stop.should_stop() {
                return Err(residual_zoo_evaluate::Error::Stopped.into());
            }
            let batch = batch?;
            let DeviceBatch { inputs, .. } = upload::<B>(&batch, device);
            let log_p: TensorData = log_softmax(model.classify(inputs), 1).into_data();
            let values: Vec<f32> = log_p.iter().collect();
            let rows = values.chunks_exact(log_p.shape[1]).zip(&batch.targets);
            all.extend(rows.map(|(row, class)| Found::of(*class as usize, row)));
        }
        Ok(all)
    }
}

/// Maximum number of classes of a confusion matrix. With more classes, the most frequent confusions are listed instead.
const MATRIX: usize = 20;
/// Maximum number of images, and of confusions, that are shown.
const SHOWN: usize = 24;

impl Classified {
    /// Returns the number of images of class i whose likeliest class is j, at `[i][j]`.
    pub fn confusion(&self) -> Vec<Vec<usize>> {
        let count = self.classes.len();
        let mut confusion = vec![vec![0; count]; count];
        for found in &self.found {
            confusion[found.class][found.likeliest] += 1;
        }
        confusion
    }

    /// Returns the 95 % confidence interval of a share of the images, by Wilson's formula. The interval stays between 0
    /// and 1, and does not shrink to a point if all images or none are right.
    pub fn interval(&self, share: f64) -> [f64; 2] {
        const Z: f64 = 1.96;
        let n = self.found.len() as f64;
        let middle = share + Z * Z / (2.0 * n);
        let half_width = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
        let ends = [middle - half_width, middle + half_width];
        ends.map(|end| (end / (1.0 + Z * Z / n)).clamp(0.0, 1.0))
    }

    /// Describes the accuracies, for example as `top-1 accuracy 85.00 % (81.87 to 87.67)`. Leaves out top-5 for five
    /// classes or fewer, where it is always 100 %.
    pub fn accuracies(&self) -> Vec<String> {
        let all = [("top-1", self.top_1), ("top-5", self.top_5)];
        let shown = if self.classes.len() > 5 { 2 } else { 1 };
        let text = |(name, share): (&str, f64)| {
            let [low, high] = self.interval(share).map(|end| 100.0 * end);
            let share = 100.0 * share;
            format!("{name} accuracy {share:.2} % ({low:.2} to {high:.2})")
        };
        all.into_iter().take(shown).map(text).collect()
    }

    fn report(&self, run: &str, images: &Examples) -> Result<Report, Error> {
        let mut sections = vec![match self.classes.len() <= MATRIX {
            true => Section::Table(self.matrix()),
            false => Section::Table(self.confusions()),
        }];
        sections.extend(self.mistakes(images)?);
        Ok(Report {
            title: format!("Images classified by {run}"),
            lead: format!(
                "{} validation images: {}, loss {:.4} nats. 95 % confidence intervals are in parentheses.",
                self.found.len(),
                self.accuracies().join(", "),
                self.loss
            ),
            sections,
        })
    }

    /// Returns the confusion matrix, with a row for each true class and a column for each likeliest class.
    fn matrix(&self) -> Table {
        let mut columns = vec![Column::text("class")];
        columns.extend(self.classes.iter().map(|name| Column::number(name, "")));
        columns.push(Column::number("right", "%"));
        let rows = self
            .confusion()
            .into_iter()
            .enumerate()
            .map(|(class, counts)| {
                let of_class: usize = counts.iter().sum();
                let right = 100.0 * counts[class] as f64 / of_class as f64;
                let mut row = vec![Cell::from(&*self.classes[class])];
                row.extend(counts.iter().enumerate().map(|(likeliest, count)| Cell {
                    tone: match (likeliest == class, count) {
                        (true, _) => Tone::Good,
                        (false, 0) => Tone::Muted,
                        (false, _) => Tone::Plain,
                    },
                    ..Cell::from(count.to_string())
                }));
                row.push(match of_class {
                    0 => "–".into(),
                    _ => format!("{right:.1}").into(),
                });
                row
            });
        Table {
            heading: "Confusion matrix".into(),
            note: "Rows are true classes, columns are predicted ones.".into(),
            rows: rows.collect(),
            columns,
            highlight: None,
        }
    }

    /// Returns the most frequent confusions.
    fn confusions(&self) -> Table {
        let confusion = self.confusion();
        let mut pairs: Vec<(usize, usize, usize)> = Vec::new();
        for (class, counts) in confusion.iter().enumerate() {
            let wrong = counts
                .iter()
                .enumerate()
                .filter(|(likeliest, count)| *likeliest != class && **count > 0);
            pairs.extend(wrong.map(|(likeliest, count)| (*count, class, likeliest)));
        }
        pairs.sort_by_key(|(count, class, likeliest)| {
            (std::cmp::Reverse(*count), *class, *likeliest)
        });
        let rows = pairs
            .into_iter()
            .take(SHOWN)
            .map(|(count, class, likeliest)| {
                let of_class: usize = confusion[class].iter().sum();
                vec![
                    Cell::from(&*self.classes[class]),
                    Cell::from(&*self.classes[likeliest]),
                    count.to_string().into(),
                    of_class.to_string().into(),
                ]
            });
        Table {
            heading: "The most frequent confusions".into(),
            note: "images.json has the whole matrix.".into(),
            columns: vec![
                Column::text("class"),
                Column::text("taken for"),
                Column::number("images", ""),
                Column::number("of", "all of the class"),
            ],
            rows: rows.collect(),
            highlight: None,
        }
    }

    /// Returns the misclassified images with the highest predicted probabilities; `None` if there are none.
    fn mistakes(&self, images: &Examples) -> Result<Option<Section>, Error> {
        let mut wrong: Vec<(usize, &Found)> = self.found.iter().enumerate().collect();
        wrong.retain(|(_, found)| !found.is_right());
        wrong.sort_by(|(_, a), (_, b)| b.probability.total_cmp(&a.probability));
        let count = wrong.len();
        let mut pictures = Vec::new();
        for (i, found) in wrong.into_iter().take(SHOWN) {
            let Some(png) = images.png(i)? else { continue };
            let [class, likeliest] =
                [found.class, found.likeliest].map(|class| &self.classes[class]);
            pictures.push(Picture {
                png,
                caption: format!(
                    "{class}, taken for {likeliest} ({:.0} %)",
                    100.0 * found.probability
                ),
            });
        }
        let section = Section::Pictures {
            heading: "Misclassified images".into(),
            note: match pictures.len() < count {
                true => format!(
                    "The {} of {count} with the highest predicted probabilities.",
                    pictures.len()
                ),
                false => "In order of the predicted probability.".into(),
            },
            pictures,
        };
        Ok((count > 0).then_some(section))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(found: Vec<Found>) -> Classified {
        Classified {
            checkpoint: PathBuf::new(),
            classes: vec!["cat".into(), "dog".into(), "ship".into()],
            found,
            loss: 0.0,
            top_1: 0.5,
            top_5: 1.0,
        }
    }

    #[test]
    fn a_class_has_the_rank_of_its_probability_and_equal_ones_are_in_order() {
        let log_p = [0.2f32, 0.5, 0.3].map(f32::ln);
        let found = Found::of(2, &log_p);
        assert_eq!(
            (found.rank, found.likeliest, found.is_right()),
            (1, 1, false)
        );
        assert!((found.probability - 0.5).abs() < 1e-6 && (found.loss + 0.3f64.ln()).abs() < 1e-6);
        assert!(Found::of(1, &log_p).is_right());
        // If several classes have the same highest probability, the first of them is the predicted class.
        let same = [-1.0f32; 3];
        assert_eq!(
            [0, 1, 2].map(|class| Found::of(class, &same).rank),
            [0, 1, 2]
        );
        assert_eq!(
            [0, 1, 2].map(|class| Found::of(class, &same).likeliest),
            [0, 0, 0]
        );
    }

    #[test]
    fn the_matrix_counts_what_classes_are_taken_for() {
        let log_p = [0.2f32, 0.5, 0.3].map(f32::ln);
        let found = [0, 1, 1, 2].map(|class| Found::of(class, &log_p));
        let classified = classified(found.to_vec());
        assert_eq!(classified.confusion(), [[0, 1, 0], [0, 2, 0], [0, 1, 0]]);
        let text = classified.matrix().to_text();
        assert!(text.contains("cat") && text.contains("100.0"), "{text}");
        let text = classified.confusions().to_text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(
            lines[2].starts_with("cat") && lines[3].starts_with("ship"),
            "{text}"
        );
    }

    #[test]
    fn the_interval_of_a_share_is_wilsons() {
        let log_p = [0.2f32, 0.5, 0.3].map(f32::ln);
        let classified = classified(vec![Found::of(1, &log_p); 10]);
        // SciPy's binomtest(k, 10).proportion_ci(method="wilson").
        for (share, expected) in [
            (1.0, [0.722467, 1.0]),
            (0.0, [0.0, 0.277533]),
            (0.5, [0.236593, 0.763407]),
        ] {
            let found = classified.interval(share);
            for (found, expected) in found.into_iter().zip(expected) {
                assert!((found - expected).abs() < 1e-4, "{share}: {found}");
            }
        }
    }
}
