//! On every backend that is compiled in, a run gives the same results when it is repeated, and when it is stopped and
//! resumed.
//!
//! On Flex and LibTorch, the results are equal bit for bit. On GPUs, a repeated uninterrupted run can differ in its
//! last bits. There, this test prints the difference, and checks that a stop does not visibly increase it.
//!
//! `tests/runs/resume.rs` has more such tests with real processes, on one backend.

use std::path::Path;
use std::time::Duration;

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_backend::{BackendKind, OnBackend};
use residual_zoo_models::RunConfig;
use residual_zoo_models::data::Corpus;
use residual_zoo_models::runs::run_dir;
use residual_zoo_testing::runs::{self, MODELS, assert_same, differences, outcome};
use residual_zoo_testing::{my_turn, program::Scratch};
use residual_zoo_train::{Interrupter, RunOptions, Summary, run};

use crate::{roundoff, tested};

/// A run that is stopped after it has logged the step `stop_after`.
struct Task<'a> {
    config: RunConfig,
    directory: &'a Path,
    stop_after: Option<usize>,
}

impl OnBackend for Task<'_> {
    type Output = Summary;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Summary {
        let corpus = Corpus::open(&self.config.data).unwrap();
        let stop = Interrupter::new();
        let options = RunOptions {
            stop: stop.clone(),
            ..RunOptions::new(self.directory)
        };
        let directory = self.directory.to_path_buf();
        if let Some(step) = self.stop_after {
            std::thread::spawn(move || {
                let logged = || run_dir::read_metrics(&directory).unwrap_or_default();
                while logged().last().is_none_or(|row| row.step < step) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                stop.stop(None);
            });
        }
        let _turn = my_turn();
        run::<B, _>(self.config, &corpus, &options, device).unwrap()
    }
}

#[test]
fn a_stopped_run_ends_as_another_on_every_backend() {
    for kind in tested() {
        for (name, model) in MODELS {
            let scratch = Scratch::new();
            let file = runs::config(&scratch, model);
            let config: RunConfig = RunConfig::read(&file).unwrap();
            let train = |name: &str, stop_after| {
                let task = Task {
                    config: config.clone(),
                    directory: &scratch.path(name),
                    stop_after,
                };
                kind.run(kind.default_gpu(), task).unwrap()
            };
            let what = format!("{name} on {kind}");
            train("straight", None);
            let expected = outcome(&scratch.path("straight"));
            let exact = matches!(kind, BackendKind::Flex | BackendKind::LibTorch);
            let compare = |run: &str| {
                if exact {
                    return assert_same(&scratch.path(run), &expected, &what);
                }
                let (metrics, weights) = differences(&scratch.path(run), &expected);
                println!("{what}, {run}: metrics {metrics:.1e}, weights {weights:.1e}");
                // With fusion, a sum in another order can round a factor of the next product the other way.
                let limit = match cfg!(feature = "fusion") {
                    true => (4.0 * roundoff(kind)).max(1e-4),
                    false => 1e-4,
                };
                assert!(metrics < limit && weights < 5e-4, "{what}, {run}");
            };
            train("again", None);
            compare("again");
            // On a busy machine, the stop may come after the last step.
            let stopped = (0..20).any(|_| {
                std::fs::remove_dir_all(scratch.path("stopped")).ok();
                train("stopped", Some(4)).stopped
            });
            assert!(stopped, "{what}");
            train("stopped", Some(13));
            assert!(!train("stopped", None).stopped, "{what}");
            compare("stopped");
            println!("{what}: compared");
        }
    }
}
