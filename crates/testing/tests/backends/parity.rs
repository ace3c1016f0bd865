//! Every backend that is compiled in gives the same results as Flex: logits, loss and gradients of the
//! same weights on the same batch.

use std::collections::{BTreeMap, BTreeSet};

use burn::backend::Flex;
use burn::tensor::{Distribution, Tensor, TensorData, backend::AutodiffBackend};
use residual_zoo_backend::{BackendKind, OnBackend};
use residual_zoo_models::ModelConfig as Zoo;
use residual_zoo_models::core::{Activation, ModelConfig, contract, params};
use residual_zoo_models::gpt2::Gpt2Config;
use residual_zoo_testing::my_turn;
use residual_zoo_testing::pass::{Outcome, run};
use residual_zoo_testing::zoo::{architectures, connections};

use crate::{in_f32, tested};

pub const VOCAB: usize = 101;

#[derive(Clone)]
struct Task {
    config: Zoo,
    weights: BTreeMap<String, TensorData>,
    inputs: TensorData,
    targets: TensorData,
}

impl OnBackend for Task {
    type Output = Outcome;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Outcome {
        let Self {
            config,
            weights,
            inputs,
            targets,
        } = self;
        run::<B, Zoo>(&config, VOCAB, weights, inputs, targets, &device)
    }
}

#[test]
fn every_backend_equals_flex() {
    let _turn = my_turn();
    let others = in_f32();
    let others: Vec<_> = others
        .into_iter()
        .filter(|k| *k != BackendKind::Flex)
        .collect();
    if others.is_empty() {
        println!("no other backend has products in f32: there is nothing to compare");
    }
    let erf = Zoo::of(Gpt2Config {
        n_layer: 2,
        n_head: 4,
        width: 60,
        context: 64,
        activation: Activation::GeluErf,
        ..Default::default()
    });
    let models = architectures().into_iter().chain([("GPT-2, erf", erf)]);
    for (name, config) in models {
        let task = Task {
            weights: weights(&config),
            config,
            inputs: ids(0),
            targets: ids(1),
        };
        let expected = BackendKind::Flex.run(None, task.clone()).unwrap();
        for kind in &others {
            let found = kind
                .run(kind.default_gpu(), task.clone())
                .unwrap_or_else(|e| panic!("{e}"));
            let logits = found
                .logits
                .error(&expected.logits, 3e-5, |b| 1e-5 * b.abs());
            let loss = (found.loss - expected.loss).abs() / 1e-5;
            let gradients = expected
                .gradients
                .iter()
                .map(|(name, b)| found.gradients[name].error(b, 1e-5, |_| 3e-5 * b.largest()));
            let gradients = gradients.fold(0.0, f64::max);
            println!(
                "{name} on {kind}: of the tolerance, logits use {logits:.2}, loss {loss:.2}, \
                 gradients {gradients:.2}"
            );
            assert!(logits <= 1.0 && loss <= 1.0 && gradients <= 1.0, "{kind}");
        }
    }
}

#[test]
fn the_contract_holds_on_every_backend() {
    let _turn = my_turn();
    struct Contract(Zoo);
    impl OnBackend for Contract {
        type Output = ();
        fn run<B: AutodiffBackend>(self, device: B::Device) {
            contract::check::<B, _>(&self.0, &device);
        }
    }
    // Tests one form of each connection. `tests/models` checks all forms on Flex.
    let mut seen = BTreeSet::new();
    let forms = connections().into_iter();
    let forms = forms.filter(|(_, config)| seen.insert(config.name()));
    let connections = forms.map(|(name, config)| {
        // Vulkan and WGPU would take minutes on a CPU. The fixtures compare these backends with the references.
        let is_slow = |kind: &BackendKind| matches!(kind, BackendKind::Vulkan | BackendKind::Wgpu);
        let kinds = tested().into_iter().filter(|kind| !is_slow(kind));
        (name, config, kinds.collect::<Vec<_>>())
    });
    let all = architectures()
        .into_iter()
        .map(|(name, config)| (name, config, tested()));
    for (name, config, kinds) in all.chain(connections) {
        for kind in kinds {
            println!("{name} on {kind}");
            kind.run(kind.default_gpu(), Contract(config.clone()))
                .unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

/// Returns weights, including biases, that are so large that every term affects the results.
pub fn weights(config: &Zoo) -> BTreeMap<String, TensorData> {
    use burn::tensor::backend::Backend;
    let device = Default::default();
    Flex::seed(&device, 11);
    let model = config.build::<Flex>(VOCAB, &device).unwrap();
    let mut weights = params::export::<Flex, _>(&model);
    for (name, data) in &mut weights {
        // α and τ have their own ranges, so they keep their values.
        if *data.shape != [1] {
            let mean = if name.ends_with("gamma") { 1.0 } else { 0.0 };
            let noise = Distribution::Normal(mean, 0.1);
            let shape = data.shape.clone();
            let count: usize = shape.iter().product();
            *data = Tensor::<Flex, 1>::random([count], noise, &device).into_data();
            data.shape = shape;
        }
    }
    weights
}

/// A backend without a driver reports the missing driver. The test below runs this test in a process without a driver.
#[cfg(feature = "wgpu")]
#[test]
#[ignore = "needs an environment without a driver"]
fn without_a_driver() {
    let _turn = my_turn();
    struct Nothing;
    impl OnBackend for Nothing {
        type Output = ();
        fn run<B: AutodiffBackend>(self, _: B::Device) {}
    }
    println!(
        "said: {}",
        BackendKind::Wgpu.run(None, Nothing).unwrap_err()
    );
}

#[cfg(all(feature = "wgpu", target_os = "linux"))]
#[test]
fn a_backend_without_a_driver_says_so() {
    let _turn = my_turn();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "parity::without_a_driver",
        "--ignored",
        "--nocapture",
    ]);
    let output = command.env("VK_DRIVER_FILES", "/none").output().unwrap();
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.contains("said: backend `wgpu` did not start"),
        "{output}"
    );
    assert!(output.contains("docs/backends.md"), "{output}");
}

fn ids(shift: usize) -> TensorData {
    let (batch, time) = (3, 63);
    let id = |i: usize| (((i + shift) * (i + shift) * 7 + i / time) % VOCAB) as i64;
    TensorData::new((0..batch * time).map(id).collect::<Vec<_>>(), [batch, time])
}
