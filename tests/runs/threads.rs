//! On Flex, a run has the same result with any number of threads, bit for bit.

use residual_zoo_testing::program::{Scratch, ok};
use residual_zoo_testing::runs::{STEPS, assert_same, outcome, train};

/// Models whose tensors are large enough for several threads.
const MODELS: [&str; 6] = [
    "Gpt2(n_layer: 1, n_head: 4, width: 128, context: 100, dropout: 0.1)",
    "Rmt(n_layer: 1, d_k: 8, d_v: 16, rank: 6, context: 100)",
    "TokenFormer(n_layer: 1, n_head: 4, width: 128, n_attn: 128, n_ffn: 300, context: 100)",
    "Composed(recurrence: (block: 25), connection: PerSublayer(Laurel( \
     weights: Softmax, augmentation: LowRankPerStream(k: 2, rank: 4))), \
     layers: [Gpt2(n_layer: 1, n_head: 4, width: 128, context: 100)])",
    "Llama(n_layer: 2, n_head: 4, n_kv_head: Some(2), width: 128, d_ff: Some(300), context: 100, \
     windows: [Some(9), None], attention_cap: Some(5.0))",
    "Composed(connection: PerSublayer(Mudd()), layers: [Gpt2(n_layer: 2, n_head: 4, width: 128, context: 100)])",
];

#[test]
fn the_result_does_not_depend_on_the_number_of_threads() {
    for model in MODELS {
        let scratch = Scratch::new();
        let text = format!(
            "(model: {model}, data: (source: Synthetic(tokens: 9000)), \
             train: (steps: {STEPS}, batch: 7, warmup: 4, learning_rate: 1e-3, \
             validate_every: {STEPS}, validate_batches: 2, checkpoint_every: {STEPS}))"
        );
        let file = scratch.file("run.ron", text);
        let with = |threads: usize| {
            let run = scratch.path(&format!("{threads}"));
            let mut train = train(&file, &run);
            train.args(["--backend", "flex"]);
            ok(train.env("RAYON_NUM_THREADS", threads.to_string()));
            run
        };
        let one = outcome(&with(1));
        for threads in [2, 3] {
            let what = format!("{model} on {threads} threads");
            assert_same(&with(threads), &one, &what);
        }
    }
}
