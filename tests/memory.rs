//! What training takes in memory is what a config's cost says, and it is given back.
//!
//! One test in a program of its own, as all memory of the process is counted. On Flex every tensor
//! is counted.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use burn::backend::{Autodiff, Flex};
use peak_alloc::PeakAlloc;
use residual_zoo::core::ModelConfig as _;
use residual_zoo::data::{Corpus, Source, SyntheticConfig};
use residual_zoo::train::Trainer;
use residual_zoo::{ModelConfig, RunConfig, experiment};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

type B = Autodiff<Flex>;

/// Bytes, estimated and found.
struct Bytes {
    estimated: usize,
    found: usize,
}

fn open(model: &str, train: &str) -> (RunConfig, Corpus) {
    let text = format!("(model: {model}, train: (steps: 9, {train}))");
    let mut config: RunConfig = RunConfig::parse(&text, Path::new("test.ron")).unwrap();
    config.data.source = Source::Synthetic(SyntheticConfig {
        tokens: 20_000,
        seed: 4,
    });
    let corpus = Corpus::open(&config.data).unwrap();
    (config, corpus)
}

fn trainer(config: RunConfig, corpus: &Corpus) -> Trainer<B, ModelConfig> {
    Trainer::new(config, corpus, Default::default()).unwrap()
}

/// Trains for three steps; what is kept from the forward to the backward pass, and the peak.
fn train(model: &str, train: &str) -> [Bytes; 2] {
    let (config, corpus) = open(model, train);
    let vocab_size = corpus.tokenizer.vocab_size();
    let batch = config.train.batch;
    let tokens = batch * config.time();
    let kept = 4 * config.model.cost(vocab_size).memory.kept * tokens;
    let estimate = experiment::training_memory(&config, vocab_size, batch);
    let estimate = (estimate - experiment::BESIDES_TENSORS) as usize;

    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let mut trainer = trainer(config, &corpus);
    for _ in 0..3 {
        assert!(trainer.step().skipped.is_none());
    }
    let peak = MEMORY.peak_usage() - before;
    let batch = trainer.upload(&trainer.batch(0));
    let before = MEMORY.current_usage();
    let loss = trainer.forward(batch, 0);
    let held = MEMORY.current_usage() - before;
    // Autodiff lets go of a graph when it is differentiated.
    drop(trainer.backward(&loss));
    let kept = Bytes {
        estimated: kept,
        found: held,
    };
    let peak = Bytes {
        estimated: estimate,
        found: peak,
    };
    [kept, peak]
}

/// Graphs of autodiff, pools of threads.
const NO_TENSORS: usize = 512 << 10;

/// Models, and the estimate in parts of what is found: GELU with the error function is counted as
/// other backends keep it.
const MODELS: [(&str, f64); 26] = [
    ("Gpt2(n_layer: 3, n_head: 4, width: 64, context: 64)", 1.06),
    ("Gpt2(n_layer: 2, n_head: 4, width: 32, context: 256)", 1.06),
    (
        "Gpt2(n_layer: 3, n_head: 2, width: 64, context: 64, bias: false, tied: false, activation: Relu)",
        1.06,
    ),
    (
        "Gpt2(n_layer: 3, n_head: 2, width: 64, context: 64, activation: GeluErf)",
        1.45,
    ),
    (
        "Gpt2(n_layer: 3, n_head: 4, width: 64, context: 64, dropout: 0.2)",
        1.06,
    ),
    (
        "Rmt(n_layer: 3, d_k: 16, d_v: 16, rank: 4, context: 64)",
        1.06,
    ),
    (
        "Rmt(n_layer: 2, d_k: 8, d_v: 16, rank: 4, context: 256)",
        1.06,
    ),
    (
        "Rmt(n_layer: 3, d_k: 16, d_v: 16, rank: 4, context: 64, norm: RmsNorm, positions: Alibi)",
        1.06,
    ),
    (
        "TokenFormer(n_layer: 3, n_head: 4, width: 64, context: 64)",
        1.45,
    ),
    (
        "TokenFormer(n_layer: 3, n_head: 4, width: 64, context: 64, normalization: Softmax)",
        1.08,
    ),
    (
        "TokenFormer(n_layer: 3, n_head: 4, width: 64, context: 64, normalization: GeluL2Norm)",
        1.45,
    ),
    (
        "TokenFormer(n_layer: 3, n_head: 4, width: 64, context: 64, normalization: GeluL1Norm)",
        1.45,
    ),
    (
        "Laurel(connection: (rw: Softmax), of: Gpt2(n_layer: 3, n_head: 4, width: 64, context: 64))",
        1.06,
    ),
    (
        "Laurel(connection: (rw: Softmax, g: Lr(r: 4)), of: Gpt2(n_layer: 3, n_head: 4, width: 64, context: 64))",
        1.06,
    ),
    (
        "Laurel(connection: (g: Pa(k: 3)), of: Gpt2(n_layer: 3, n_head: 4, width: 64, context: 64))",
        1.06,
    ),
    (
        "Laurel(connection: (rw: Softmax, g: LrPa(k: 3, r: 4)), placement: Layer, of: Gpt2(n_layer: 6, n_head: 4, width: 64, context: 64))",
        1.06,
    ),
    (
        "Recurrent(recurrence: (block: 16), of: Gpt2(n_layer: 1, n_head: 4, width: 64, context: 128))",
        1.06,
    ),
    (
        "Recurrent(recurrence: (block: 16), of: Rmt(n_layer: 2, d_k: 16, d_v: 16, rank: 4, context: 128))",
        1.06,
    ),
    (
        "TokenFormer(n_layer: 2, n_head: 4, width: 64, context: 64, normalization: Softmax, position: Rotary(fraction: 0.5), affine_final_norm: true, norm_params: ScaleAndShift, dropout: 0.1)",
        1.08,
    ),
    (
        "Rmt(n_layer: 2, d_k: 16, d_v: 16, rank: 4, context: 64, dropout: 0.1)",
        1.06,
    ),
    (
        "Laurel(connection: (rw: Sigmoid, per_dimension: true, g: PaLr(k: 2, r: 4)), of: Gpt2(n_layer: 4, n_head: 4, width: 64, context: 64))",
        1.06,
    ),
    (
        "Laurel(connection: (rw: Raw), placement: Layer, of: Rmt(n_layer: 2, d_k: 16, d_v: 16, rank: 4, context: 64))",
        1.06,
    ),
    (
        "Alternate([Gpt2(n_layer: 4, n_head: 4, width: 64, context: 64), Rmt(n_layer: 4, d_k: 8, d_v: 8, rank: 4, context: 64)])",
        1.06,
    ),
    (
        "Recurrent(recurrence: (block: 16, alpha: Fixed(0.5)), of: Gpt2(n_layer: 2, n_head: 4, width: 64, context: 96))",
        1.06,
    ),
    (
        "Recurrent(recurrence: (block: 16, form: Code), of: Gpt2(n_layer: 3, n_head: 4, width: 64, context: 96))",
        1.06,
    ),
    (
        "Recurrent(recurrence: (block: 8), of: Gpt2(n_layer: 3, n_head: 2, width: 96, context: 32))",
        1.06,
    ),
];

#[test]
fn memory() {
    training_takes_what_its_cost_says();
    a_run_that_ended_in_a_forward_pass_leaves_no_memory_taken();
}

fn a_run_that_ended_in_a_forward_pass_leaves_no_memory_taken() {
    let (config, corpus) = open(MODELS[0].0, "batch: 16");
    let before = MEMORY.current_usage();
    let first = trainer(config.clone(), &corpus);
    let loss = first.forward(first.upload(&first.batch(0)), 0);
    let with_graph = MEMORY.current_usage() - before;
    drop((loss, first));
    let left = MEMORY.current_usage() - before;
    assert!(
        left > with_graph / 2,
        "autodiff clears graphs by itself: {left}"
    );
    let second = trainer(config, &corpus);
    let after = MEMORY.current_usage() - before;
    assert!(after < left / 4, "{after} of {left} bytes");
    drop(second);
}

fn training_takes_what_its_cost_says() {
    // The first one starts the threads.
    train(MODELS[0].0, "batch: 16");
    let mut wrong = Vec::new();
    for (model, most) in MODELS {
        for settings in [
            "batch: 16",
            "batch: 4, accumulate: 2",
            "batch: 1, time: 8",
            "batch: 16, time: 8",
        ] {
            let [kept, peak] = train(model, settings);
            let ratio = |bytes: &Bytes| bytes.estimated as f64 / bytes.found as f64;
            let found = format!(
                "{model}, {settings}: kept {:.3} of {} KiB, peak {:.3} of {} KiB",
                ratio(&kept),
                kept.found >> 10,
                ratio(&peak),
                peak.found >> 10
            );
            println!("{found}");
            let enough = |bytes: &Bytes| bytes.estimated + NO_TENSORS >= bytes.found;
            let exact = settings == "batch: 16";
            let kept_right = enough(&kept) && (!exact || (0.98..most).contains(&ratio(&kept)));
            // Costs are those of the whole context.
            let too_much = !settings.contains("time") && ratio(&peak) > 1.5;
            if !kept_right || !enough(&peak) || too_much {
                wrong.push(found);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
