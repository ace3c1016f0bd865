//! Tests the memory of training: counts, estimates from smaller models, and release.
//!
//! This file is one test in a separate binary, because the test counts all memory of the process. On Flex, this memory
//! includes all tensors.

#![allow(clippy::unwrap_used)]

use burn::backend::{Autodiff, Flex};
use burn::tensor::{Int, Tensor};
use residual_zoo_backend::{BackendKind, PeakAlloc, PeakMemory, allocated};
use residual_zoo_core::{LanguageModel as _, ModelConfig as _, PlainModel, Vocabulary};
use residual_zoo_data::{Corpus, Source, SyntheticConfig, TokenizerConfig};
use residual_zoo_drive::{Reading, Sequences, Trial, check_memory, check_reading, time};
use residual_zoo_gpt2::Gpt2Config;
use residual_zoo_runs::RunConfig;
use residual_zoo_system::Blame as _;
use residual_zoo_system::memory::{Amount, Limit};
use residual_zoo_system::stop;
use residual_zoo_train::Trainer;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const MIB: u64 = 1 << 20;

fn config(n_layer: usize) -> RunConfig<PlainModel<Gpt2Config>> {
    let mut config = RunConfig::new(PlainModel(Gpt2Config {
        n_layer,
        n_head: 4,
        width: 64,
        context: 64,
        ..Gpt2Config::default()
    }));
    config.train.batch = 16;
    config.data.source = Source::Synthetic(SyntheticConfig {
        tokens: 20_000,
        seed: 4,
        ..SyntheticConfig::default()
    });
    config.data.tokenizer = TokenizerConfig::Chars;
    config
}

#[test]
fn memory() {
    // Each thread keeps a workspace for matrix products. With several threads, the load of the machine would decide
    // which threads have a workspace.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1);
    pool.build_global().unwrap();
    a_peak_is_the_most_since_the_start();
    small_allocations_are_not_counted_and_others_are_until_they_are_freed();
    a_deep_model_takes_what_one_and_two_layers_make_expect();
    a_run_that_ended_in_a_forward_pass_leaves_no_memory_taken();
    a_step_that_does_not_fit_is_refused_before_training();
    sequences_that_do_not_fit_are_refused_before_they_are_read();
    a_long_sequence_is_estimated_from_short_ones();
    a_cache_grows_with_its_positions();
    a_stop_ends_every_estimate();
}

/// Runs last, because a request to stop cannot be withdrawn.
fn a_stop_ends_every_estimate() {
    let (config, vocabulary, flex) = (config(12), Vocabulary::from(65), (BackendKind::Flex, None));
    let trial = Trial::new(&config, vocabulary).unwrap();
    let peaks = trial.peaks(BackendKind::Flex, None).unwrap().unwrap();
    let needed = trial.whole(&peaks);
    let corpus = Corpus::open(&config.data).unwrap();
    let check = |available| check_memory(&config, vocabulary, flex, Some(on_machine(available)));
    check(needed * 11 / 10).unwrap();
    stop::ask();
    let error = check(needed * 11 / 10).unwrap_err();
    assert!(error.is_stop(), "{error}");
    let error = error.to_string();
    assert!(
        error.contains("memory was still being estimated"),
        "{error}"
    );
    assert!(trial.peaks(flex.0, flex.1).unwrap_err().is_stop());
    assert!(trial.take(flex.0, flex.1).unwrap_err().is_stop());
    let steps = time(flex.0, flex.1, config.clone(), &corpus, (0, 1));
    assert!(steps.unwrap_err().is_stop());
    let rows = sequences(Reading::Evaluation, 512, 64);
    let read = check_reading(&config, vocabulary, flex, rows, Some(on_machine(MIB)));
    assert!(read.unwrap_err().is_stop());
    // Clear cases are decided at once, by sizes.
    check(1 << 40).unwrap();
    assert!(!check(1000).unwrap_err().is_stop());
}

fn a_peak_is_the_most_since_the_start() {
    drop(vec![1u8; 64 * MIB as usize]);
    let before = allocated().unwrap();
    let peak = PeakMemory::start(BackendKind::Flex, None);
    drop(std::hint::black_box(vec![1u8; 8 * MIB as usize]));
    let found = peak.bytes().unwrap() - before;
    assert!((8 * MIB..9 * MIB).contains(&found), "{found}");
}

fn small_allocations_are_not_counted_and_others_are_until_they_are_freed() {
    let before = allocated().unwrap();
    let mut list = Vec::with_capacity(1 << 16);
    let with_list = allocated().unwrap();
    assert_eq!(with_list - before, 8 << 16);
    list.extend((0..1 << 16).map(|i| Box::new([i as u8; 200])));
    assert_eq!(allocated().unwrap(), with_list);
    drop(list);
    // Memory that begins as zeros, and memory that grows.
    let mut zeros = vec![0u8; 1 << 20];
    assert_eq!(allocated().unwrap() - before, 1 << 20);
    zeros.reserve_exact(1 << 21);
    assert_eq!(allocated().unwrap() - before, 3 << 20);
    zeros.truncate(100);
    zeros.shrink_to_fit();
    assert_eq!(allocated().unwrap(), before);
}

fn a_deep_model_takes_what_one_and_two_layers_make_expect() {
    let trial = Trial::new(&config(8), 65.into()).unwrap();
    let peaks = trial.peaks(BackendKind::Flex, None).unwrap().unwrap();
    let estimate = trial.estimate(&peaks) as f64;
    let taken = trial.take(BackendKind::Flex, None).unwrap().unwrap() as f64;
    println!("{} of {} KiB", estimate / 1024.0, taken / 1024.0);
    assert!((estimate / taken - 1.0).abs() < 0.1, "{estimate} {taken}");
    let whole = trial.whole(&peaks) as f64;
    let taken = trial.take_whole(BackendKind::Flex, None).unwrap().unwrap() as f64;
    println!("{} of {} KiB", whole / 1024.0, taken / 1024.0);
    assert!((whole / taken - 1.0).abs() < 0.1, "{whole} {taken}");
    let mut accumulated = config(8);
    accumulated.train.accumulate = 4;
    let sums = Trial::new(&accumulated, 65.into()).unwrap().whole(&peaks) as f64 - whole;
    let params = 4.0 * (8.0 * 12.0 * 64.0 * 64.0);
    assert!((1.0..1.3).contains(&(sums / params)), "{sums} {params}");
}

fn a_run_that_ended_in_a_forward_pass_leaves_no_memory_taken() {
    let config = config(3);
    let corpus = Corpus::open(&config.data).unwrap();
    let trainer = |config| {
        Trainer::<Autodiff<Flex>, PlainModel<Gpt2Config>>::new(config, &corpus, Default::default())
            .unwrap()
    };
    let before = allocated().unwrap() as usize;
    let first = trainer(config.clone());
    let loss = first.forward(first.upload(&first.batch(0).unwrap()), 0);
    let with_graph = allocated().unwrap() as usize - before;
    drop((loss, first));
    let left = allocated().unwrap() as usize - before;
    assert!(
        left > with_graph / 2,
        "autodiff clears graphs by itself: {left}"
    );
    let second = trainer(config);
    let after = allocated().unwrap() as usize - before;
    assert!(after < left / 4, "{after} of {left} bytes");
    drop(second);
}

fn a_step_that_does_not_fit_is_refused_before_training() {
    let (config, vocabulary, flex) = (config(12), Vocabulary::from(65), (BackendKind::Flex, None));
    let trial = Trial::new(&config, vocabulary).unwrap();
    let peaks = trial.peaks(BackendKind::Flex, None).unwrap().unwrap();
    let needed = trial.whole(&peaks);
    let check =
        |available: Option<u64>| check_memory(&config, vocabulary, flex, available.map(on_machine));
    // A clear case, a case that the copies decide, and a system that does not report its memory.
    for available in [Some(1 << 40), Some(needed * 11 / 10), None] {
        check(available).unwrap();
    }
    for (available, about) in [(needed * 9 / 10, "about"), (1000, "at least")] {
        let error = check(Some(available)).unwrap_err().to_string();
        for part in [
            "`train.batch` is 16, with which a step takes",
            about,
            "but there are only",
            "on this machine, swap included",
            "train.accumulate",
            "train.recompute=Layers",
        ] {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }
    // LibTorch on a CPU is judged like Flex. A GPU has memory of its own.
    let libtorch = |gpu| {
        let device = (BackendKind::LibTorch, gpu);
        check_memory(&config, vocabulary, device, Some(on_machine(1000)))
    };
    libtorch(None).unwrap_err();
    libtorch(Some(0)).unwrap();
}

fn on_machine(bytes: u64) -> Amount {
    let limit = Limit::Machine;
    Amount { bytes, limit }
}

fn sequences(reading: Reading, rows: usize, time: usize) -> Sequences<'static> {
    Sequences {
        option: ("--batch", rows),
        remedy: "give a smaller number",
        rows,
        time,
        reading,
    }
}

/// The estimate for a long sequence comes from short sequences. The length that is read counts, not the context.
fn a_long_sequence_is_estimated_from_short_ones() {
    const CONTEXT: usize = 1 << 20;
    let (vocabulary, flex) = (Vocabulary::from(65), (BackendKind::Flex, None));
    let mut config = config(3);
    config.model.0.context = 4096;
    let model = config
        .model
        .build::<Flex>(vocabulary, &Default::default())
        .unwrap();
    let before = allocated().unwrap();
    let peak = PeakMemory::start(BackendKind::Flex, None);
    let mut cache = model.new_cache();
    let ids = Tensor::<Flex, 2, Int>::zeros([1, 4096], &Default::default());
    model.predict(ids, &mut cache).into_data();
    let taken =
        peak.bytes().unwrap() - before + 4 * config.model.cost(vocabulary).params.total() as u64;
    let reading = Reading::Generation { read: 4096 };
    let check = |config: &RunConfig<_>, time, available| {
        let of = sequences(reading, 1, time);
        check_reading(config, vocabulary, flex, of, Some(on_machine(available)))
    };
    check(&config, 4096, taken * 14 / 10).unwrap();
    check(&config, 4096, taken * 7 / 10).unwrap_err();
    // A context that no pass could read in the time of a test.
    config.model.0.context = CONTEXT;
    let tables = (4 * 64 * CONTEXT) as u64;
    check(&config, 4096, tables + taken * 14 / 10).unwrap();
    let error = check(&config, CONTEXT, tables + taken * 14 / 10).unwrap_err();
    assert!(
        error.to_string().contains("give a smaller number"),
        "{error}"
    );
}

/// A cache takes memory for the positions that it has seen, not for the whole context.
fn a_cache_grows_with_its_positions() {
    let mut config = config(1);
    config.model.0.context = 1 << 16;
    let model = config
        .model
        .build::<Flex>(Vocabulary::from(65), &Default::default())
        .unwrap();
    let mut cache = model.new_cache();
    let before = allocated().unwrap();
    for new in [100, 1] {
        let ids = Tensor::<Flex, 2, Int>::zeros([1, new], &Default::default());
        model.predict(ids, &mut cache).into_data();
    }
    let of_position = 2 * 4 * 64;
    let kept = allocated().unwrap() - before;
    // Threads may keep workspaces.
    assert!(
        kept >= 101 * of_position && kept < 150 * of_position + 4 * MIB,
        "{kept}"
    );
}

fn sequences_that_do_not_fit_are_refused_before_they_are_read() {
    const ROWS: usize = 512;
    let (config, vocabulary, flex) = (config(3), Vocabulary::from(65), (BackendKind::Flex, None));
    let check = |reading, rows, available| {
        let rows = sequences(reading, rows, 64);
        check_reading(&config, vocabulary, flex, rows, available)
    };
    let model = config
        .model
        .build::<Flex>(vocabulary, &Default::default())
        .unwrap();
    let before = allocated().unwrap();
    let peak = PeakMemory::start(BackendKind::Flex, None);
    let mut cache = model.new_cache();
    let ids = Tensor::<Flex, 2, Int>::zeros([ROWS, 64], &Default::default());
    model.predict(ids, &mut cache).into_data();
    let kept = allocated().unwrap() - before;
    let taken = peak.bytes().unwrap();
    // An evaluation also computes logits; here at most the logits of all tokens.
    let logits = (16 * ROWS * 64 * 65) as u64;
    for (reading, least, most) in [
        (Reading::Evaluation, taken, taken + kept + logits),
        (Reading::Serving, kept, kept + 64 * MIB),
        (Reading::Generation { read: 64 }, taken, taken + kept),
    ] {
        check(reading, ROWS, Some(on_machine(most * 13 / 10))).unwrap();
        check(reading, ROWS, None).unwrap();
        check(reading, 1, Some(on_machine(least * 7 / 10))).unwrap();
        let error = check(reading, ROWS, Some(on_machine(least * 7 / 10)));
        let error = error.unwrap_err().to_string();
        for part in [
            "`--batch` is 512",
            "about",
            "but there are only",
            "give a smaller number",
        ] {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }
}
