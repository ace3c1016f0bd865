//! `--jobs`: several processes that share the runs of an experiment.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use clap::Args;
use residual_zoo_core::{ConfigError, ModelConfig};
use residual_zoo_runs::{Error as RunError, RunConfig};
use residual_zoo_system::memory::own_memory;
use residual_zoo_train::Interrupter;
use residual_zoo_train::dashboard::Display;

use residual_zoo_drive::{Basis, Error as DriveError, Trial, available_memory, least_memory};
use residual_zoo_lab::{Error, Options, PlannedRun, open_data};

use crate::{print, wrapped};

/// Options of training in several processes.
#[derive(Args, Debug)]
pub struct JobsArgs {
    /// Train with up to N processes at a time, 1 to 256, each with its share of the cores. There are at most as many
    /// processes as cores, and no more than fit into memory
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = crate::number(1, 256))]
    jobs: u32,
    /// Train beside other processes until standard input ends, and write no report
    #[arg(long, hide = true)]
    pub(super) worker: bool,
}

impl JobsArgs {
    /// Refuses to watch several processes.
    ///
    /// # Errors
    ///
    /// Returns an error if the user asked for `--watch` and several jobs.
    pub(super) fn check_watch(&self, watch: bool) -> Result<(), ConfigError> {
        if !watch || self.jobs == 1 {
            return Ok(());
        }
        let problem =
            "is given with several `--jobs`, whose runs cannot be shown together; leave one out";
        Err(ConfigError::new("--watch", problem))
    }

    /// Returns the number of jobs, if there are several.
    pub(super) fn several(&self) -> Option<u32> {
        Some(self.jobs).filter(|jobs| *jobs > 1)
    }

    /// Returns the display of runs without `--watch`. The display is quiet for several processes, which would overwrite
    /// each other's lines.
    pub(super) fn display(&self) -> Display {
        match self.worker || self.jobs > 1 {
            true => Display::Quiet,
            false => Display::Status,
        }
    }

    /// Trains `runs` with several processes, if the user asked for several, until everything is trained or the user
    /// stops the command. The caller then only collects the results. With `--force`, `forget` deletes the earlier runs
    /// first. In a worker, only prepares `options`.
    ///
    /// # Errors
    ///
    /// Returns an error if the data cannot be opened, if the memory cannot be estimated, or if a process cannot be
    /// started. Also returns the errors of `forget`.
    pub(super) fn share<C: ModelConfig>(
        &self,
        runs: &[PlannedRun<C>],
        forget: impl FnOnce(&Options) -> Result<(), Error>,
        options: &mut Options,
    ) -> Result<(), Error> {
        if self.worker {
            (options.brief, options.shares_cores) = (true, true);
            // Only the process that started the worker deletes runs.
            options.force = false;
            stop_at_end_of_input(options.stop.clone());
            return Ok(());
        }
        if self.jobs == 1 {
            return Ok(());
        }
        let asked = self.jobs as usize;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let fitting = fitting(runs, options);
        if options.stop.should_stop() {
            // The runs that are already trained are still reported and published, and none is deleted.
            options.force = false;
            options.were_opened = options.directory.is_dir();
            return Ok(());
        }
        let jobs = asked.min(cores).min(fitting?);
        if jobs == 1 && cores == 1 {
            return print("this machine has one core, so it trains one run at a time");
        }
        if jobs == 1 {
            return print("only one run at a time fits into memory");
        }
        if jobs < asked && jobs == cores {
            print(&format!(
                "this machine has {cores} cores, so it trains {cores} runs at a time"
            ))?;
        }
        // Prepares the data here, so that progress and errors are shown once rather than in each process.
        open_data(runs, options)?;
        options.were_opened = true;
        if std::mem::take(&mut options.force) {
            forget(options)?;
        }
        print(&format!("training with {jobs} processes"))?;
        let mut workers = Vec::new();
        for _ in 0..jobs {
            workers.push(start(jobs)?);
        }
        options.brief = true;
        wait(workers, &options.stop)
    }
}

/// Returns the number of runs that fit into memory together, judged by the largest model.
fn fitting<C: ModelConfig>(runs: &[PlannedRun<C>], options: &Options) -> Result<usize, Error> {
    let size = |config: &&RunConfig<C>| least_memory(config, config.vocabulary(1)) as u64;
    let configs = runs.iter().filter_map(|run| run.config.as_ref());
    // The size of an invalid model is not known. Its run fails, unless a sweep makes it valid.
    let configs = configs.filter(|config| config.validate(1).is_ok());
    let (Some(largest), Some(available)) = (configs.max_by_key(size), available_memory()) else {
        return Ok(usize::MAX);
    };
    // Errors are ignored, because a sweep may turn an invalid run into a valid one.
    let basis = Basis::of_config(&largest.data, &options.stop).map_err(DriveError::from);
    let Ok(trial) = basis.and_then(|basis| Trial::new(largest, basis.vocabulary)) else {
        return Ok(usize::MAX);
    };
    let Some(peaks) = trial.peaks(options.backend, options.gpu)? else {
        return Ok(usize::MAX);
    };
    // Besides its model, each process takes at least as much memory as this process takes now.
    let each = trial
        .whole(&peaks)
        .saturating_add(own_memory().unwrap_or(0));
    let fitting = available.bytes / each.max(1);
    Ok(usize::try_from(fitting).unwrap_or(usize::MAX).max(1))
}

/// Starts this program again as one of `jobs` workers. A worker stops when its standard input is closed.
fn start(jobs: usize) -> Result<Child, Error> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = (cores / jobs).max(1).to_string();
    let program = std::env::current_exe().map_err(RunError::io("find", "this program".as_ref()))?;
    let mut command = Command::new(&program);
    command
        .args(std::env::args_os().skip(1))
        .arg("--worker")
        .stdin(Stdio::piped());
    command
        .env("RAYON_NUM_THREADS", &threads)
        .env("OMP_NUM_THREADS", &threads);
    // Ctrl-C reaches only the first process, which then stops the workers.
    residual_zoo_system::process::in_own_group(&mut command);
    Ok(command.spawn().map_err(RunError::io("start", &program))?)
}

/// Waits until all workers have ended, and reports killed workers. Closes the input of the workers when the user stops
/// the command.
fn wait(mut workers: Vec<Child>, stop: &Interrupter) -> Result<(), Error> {
    while !workers.is_empty() {
        if stop.should_stop() {
            for worker in &mut workers {
                drop(worker.stdin.take());
            }
        }
        let mut left = Vec::new();
        for mut worker in workers {
            match worker.try_wait() {
                Ok(None) => left.push(worker),
                Ok(Some(end)) if end.code().is_none() => print(&wrapped(
                    &format!("a process ended early ({end}); the others take over its runs"),
                    "  ",
                ))?,
                _ => {}
            }
        }
        workers = left;
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Sets `stop` at the end of standard input, so that a worker ends with the process that started it.
fn stop_at_end_of_input(stop: Interrupter) {
    thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        let mut buffer = [0; 64];
        while matches!(input.read(&mut buffer), Ok(1..)) {}
        residual_zoo_system::stop::ask();
        stop.stop(None);
    });
}
