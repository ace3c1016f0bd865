//! What training takes in memory is what a config's cost says.
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

/// Trains for three steps; what is kept from the forward to the backward pass, and the peak.
fn train(model: &str, train: &str) -> [Bytes; 2] {
    let text = format!("(model: {model}, train: (steps: 9, {train}))");
    let mut config: RunConfig = RunConfig::parse(&text, Path::new("test.ron")).unwrap();
    config.data.source = Source::Synthetic(SyntheticConfig {
        tokens: 20_000,
        seed: 4,
    });
    let corpus = Corpus::open(&config.data).unwrap();
    let vocab_size = corpus.tokenizer.vocab_size();
    let batch = config.train.batch;
    let tokens = batch * config.time();
    let kept = 4 * config.model.cost(vocab_size).memory.kept * tokens;
    let estimate = experiment::training_memory(&config, vocab_size, batch);
    let estimate = (estimate - experiment::BESIDES_TENSORS) as usize;

    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let mut trainer: Trainer<B, ModelConfig> =
        Trainer::new(config, &corpus, Default::default()).unwrap();
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
const MODELS: [(&str, f64); 18] = [
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
];

#[test]
fn training_takes_what_its_cost_says() {
    // The first one starts the threads.
    train(MODELS[0].0, "batch: 16");
    let mut wrong = Vec::new();
    for (model, most) in MODELS {
        for settings in ["batch: 16", "batch: 4, accumulate: 2", "batch: 1, time: 8"] {
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
            if !kept_right || !enough(&peak) || ratio(&peak) > 1.45 {
                wrong.push(found);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
