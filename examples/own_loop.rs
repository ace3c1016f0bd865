//! A training loop of your own: a model and data of the zoo, and Burn's optimizer.
//!
//! ```sh
//! cargo run --release --example own_loop
//! ```

use burn::backend::{Autodiff, Flex};
use burn::module::AutodiffModule;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};
use residual_zoo::core::{LanguageModel, ModelConfig as _};
use residual_zoo::data::{Batch, Corpus, DataConfig, Source, SyntheticConfig};
use residual_zoo::gpt2::Gpt2Config;
use residual_zoo::laurel::LaurelConfig;
use residual_zoo::{Composition, Zoo};

type B = Autodiff<Flex>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let steps = match std::env::args().nth(1) {
        Some(steps) => steps.parse()?,
        None => 200,
    };
    let device = Default::default();

    // A synthetic language whose lowest possible loss is known. `Source::Path` reads text.
    let corpus = Corpus::open(&DataConfig {
        source: Source::Synthetic(SyntheticConfig {
            tokens: 100_000,
            seed: 1,
            ..SyntheticConfig::default()
        }),
        ..DataConfig::default()
    })?;
    let time = 32;
    let training = corpus.train.sequences(time, "training text")?;
    let validation = corpus.valid.sequences(time, "validation text")?;

    // GPT-2 with LAuReL in place of its plain residual connections.
    let config = Composition::<Zoo>::of(Gpt2Config {
        n_layer: 2,
        n_head: 2,
        width: 48,
        context: time,
        ..Gpt2Config::default()
    })
    .per_sublayer(LaurelConfig::rw_lr(4));
    B::seed(&device, 1);
    let mut model = config.build::<B>(corpus.tokenizer.vocab_size(), &device)?;

    let mut optimizer = AdamWConfig::new().with_weight_decay(0.1).init();
    for step in 0..steps {
        let batch = training.random_batch(1, step, 0, 8)?;
        let loss = loss(&model, &batch, &device);
        if step % 20 == 0 {
            println!("step {step}: loss {:.4}", loss.clone().into_scalar());
        }
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(3e-3, model, gradients);
    }

    let model = model.valid(); // without autodiff
    let mut losses = Vec::new();
    for batch in validation.fixed_batches(8, 8) {
        losses.push(loss(&model, &batch?, &device).into_scalar());
    }
    let mean = losses.iter().sum::<f32>() / losses.len() as f32;
    print!("validation loss {mean:.4} nats per token");
    match corpus.entropy {
        Some(entropy) => println!("; the entropy rate is {:.4}", entropy.rate),
        None => println!(),
    }
    Ok(())
}

/// Returns the mean cross-entropy of a batch, in nats per token.
fn loss<B: Backend>(
    model: &impl LanguageModel<B>,
    batch: &Batch,
    device: &B::Device,
) -> Tensor<B, 1> {
    let ids = |ids: &[u32]| {
        let ids: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
        let data = TensorData::new(ids, [batch.batch, batch.time]);
        Tensor::<B, 2, Int>::from_data(data, device)
    };
    let logits = model.forward(ids(&batch.inputs)); // [batch, time, vocab]
    let targets = ids(&batch.targets); // [batch, time]
    let cross_entropy = CrossEntropyLossConfig::new().init(device);
    cross_entropy.forward(logits.flatten(0, 1), targets.flatten(0, 1))
}
