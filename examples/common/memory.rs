//! The memory that training takes: its peak, and two steps of a model beside the estimate.

use std::io::Write as _;

use anyhow::bail;
use peak_alloc::PeakAlloc;
use residual_zoo::RunConfig;
use residual_zoo::backend::BackendKind;
use residual_zoo::data::{Corpus, Source, SyntheticConfig, TokenizerConfig};
use residual_zoo::experiment::{self, Planned};
use residual_zoo::train::suite::Meter;

use crate::common;

/// Counts what is in use, for the peak of every run.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The peak of what Rust allocates, which on Flex is every tensor; on a GPU what the backend's
/// memory pool has grown to. LibTorch does not say, and what the process has taken by then is for
/// the most part of the runs before.
pub struct Peak {
    pub kind: BackendKind,
    pub gpu: Option<usize>,
}

impl Meter for Peak {
    fn start(&self) {
        MEMORY.reset_peak_usage();
        // A backend that does not start says so when it is to train.
        let _ = self.kind.shrink_pool(self.gpu);
    }

    fn peak(&self) -> Option<u64> {
        match self.kind {
            BackendKind::Flex => Some(MEMORY.peak_usage() as u64),
            _ => self.kind.pool_size(self.gpu),
        }
    }
}

/// Token ids of the papers' models.
fn token_ids(config: &RunConfig) -> usize {
    match (&config.data.source, &config.data.tokenizer) {
        (Source::Copying(_), _) => 16,
        (Source::Cifar10(_), _) => 256,
        (_, TokenizerConfig::Chars) => 65,
        _ => 50_304,
    }
}

const MEBIBYTE: f64 = (1 << 20) as f64;

/// Makes two steps with every model, on one sequence of a synthetic language at a time, and sets
/// the peak of memory beside the estimate. A model that is estimated not to fit is left out.
///
/// # Errors
///
/// When a model takes more than was estimated, on Flex, where every byte is counted.
pub fn try_models(
    planned: &[Planned],
    kind: BackendKind,
    gpu: Option<usize>,
) -> anyhow::Result<()> {
    let mut tried: Vec<RunConfig> = Vec::new();
    let mut beyond = Vec::new();
    println!("memory in MiB: the whole at the batch and vocabulary of the papers; tried with less");
    println!(
        "{:<44} {:>10} {:>10} {:>10}",
        "model", "whole", "estimate", "tried"
    );
    for run in planned {
        let Some(config) = &run.config else { continue };
        if tried.iter().any(|other| other.model == config.model) {
            continue;
        }
        tried.push(config.clone());
        let (config, corpus) = cut(config)?;
        let vocab_size = corpus.tokenizer.vocab_size();
        let printed = &tried[tried.len() - 1];
        let whole = experiment::training_memory(printed, token_ids(printed), printed.train.batch);
        let estimate = experiment::training_memory(&config, vocab_size, 1);
        let show = |bytes: u64| format!("{:.0}", bytes as f64 / MEBIBYTE);
        // Before the steps, which can take minutes.
        print!(
            "{:<44} {:>10} {:>10} ",
            run.name,
            show(whole),
            show(estimate)
        );
        std::io::stdout().flush()?;
        let available = available_memory().filter(|_| kind == BackendKind::Flex);
        if available.is_some_and(|available| estimate > available) {
            beyond.push(run.name.clone());
            println!("{:>10}", "–");
            continue;
        }
        let peak = Peak { kind, gpu };
        peak.start();
        let steps = kind.time_steps(gpu, config, &corpus, (0, 2));
        if !matches!(steps, Ok(Ok(_))) {
            println!("{:>10}", "failed");
        }
        steps??;
        let took = peak.peak();
        println!("{:>10}", took.map_or("–".into(), show));
        if let Some(took) = took.filter(|took| kind == BackendKind::Flex && *took > estimate) {
            bail!(
                "{} took {} MiB, more than was estimated",
                run.name,
                show(took)
            );
        }
    }
    if !beyond.is_empty() {
        println!("not tried, for want of memory: {}", beyond.join(", "));
    }
    Ok(())
}

/// `config` for one sequence at a time, of a synthetic language or the copy task in full length.
fn cut(config: &RunConfig) -> anyhow::Result<(RunConfig, Corpus)> {
    let mut config = config.clone();
    let time = config.time();
    config.train.batch = 1;
    config.train.accumulate = 1;
    match &mut config.data.source {
        Source::Copying(copying) => {
            copying.noise = copying.most_noise.unwrap_or(copying.noise);
        }
        source => {
            *source = Source::Synthetic(SyntheticConfig {
                tokens: 40 * time,
                seed: 1,
            });
            config.train.time = Some(time);
        }
    }
    let corpus = common::open_corpus(&config.data)?;
    Ok((config, corpus))
}

/// Memory that this program can still get, where the system tells: what is free, swap included,
/// and what earlier models have left to the allocator.
fn available_memory() -> Option<u64> {
    let of = |file: &str, field: &str| {
        let text = std::fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(field))?;
        let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kibibytes * 1024)
    };
    let resident = of("/proc/self/status", "VmRSS:")?;
    let left = resident.saturating_sub(MEMORY.current_usage() as u64);
    let swap = of("/proc/meminfo", "SwapFree:").unwrap_or(0);
    Some(of("/proc/meminfo", "MemAvailable:")? + swap + left)
}
