//! Every model equals the reference: logits, loss and gradients of the cases in
//! `tests/fixtures`, or in the directory that `ZOO_FIXTURES` names, on every backend that is
//! compiled in.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::AutodiffModule;
use burn::tensor::{TensorData, backend::AutodiffBackend};
use common::{Values, run};
use residual_zoo::ModelConfig as Zoo;
use residual_zoo::backend::{BackendKind, OnBackend};
use residual_zoo::core::{Activation, ModelConfig};
use residual_zoo::gpt2::Gpt2Config;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};

/// Architectures of the reference that the zoo does not have.
const MISSING: [&str; 4] = ["laurel", "recurrent", "rmt", "tokenformer"];

#[test]
fn every_case_equals_the_reference() {
    let directory = std::env::var_os("ZOO_FIXTURES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"),
        PathBuf::from,
    );
    let cases = read_directory(&directory).unwrap_or_else(|e| panic!("{e}"));
    let mut missing: BTreeMap<&str, usize> = BTreeMap::new();
    let mut failures = Vec::new();
    for case in &cases {
        let Some(model) = &case.model else {
            *missing.entry(case.arch.as_str()).or_default() += 1;
            continue;
        };
        for kind in BackendKind::compiled() {
            let task = Compare {
                case,
                config: &model.0,
                rename: model.1,
            };
            let errors = kind.run(None, task).unwrap_or_else(|e| panic!("{e}"));
            say(format!("{:32} {kind:8} {errors}", case.name));
            if !errors.within_tolerance() {
                failures.push(format!("{} on {kind}: {errors}", case.name));
            }
        }
    }
    for (arch, cases) in missing {
        say(format!("not in the zoo yet: {arch} ({cases} cases)"));
    }
    assert!(
        cases.iter().any(|case| case.model.is_some()),
        "no case was run"
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn an_unknown_switch_fails() {
    for (key, value) in [("surprise", "true"), ("activation", "\"swish\"")] {
        let mut config: Map<String, Value> = serde_json::from_str(
            r#"{"arch": "gpt2", "case": "x", "activation": "tanh", "bias": true, "batch": 2,
                "seq": 9, "d_ff": 22, "d_model": 16, "ln_eps": 1e-5, "max_len": 15,
                "n_head": 2, "n_layer": 2, "vocab": 23}"#,
        )
        .unwrap();
        assert!(Case::model("gpt2", config.clone()).is_ok());
        config.insert(key.into(), serde_json::from_str(value).unwrap());
        let error = Case::model("gpt2", config).unwrap_err();
        assert!(error.contains(key), "{error}");
    }
    assert!(Case::model("surprise", Map::new()).is_err());
}

#[test]
fn an_unreadable_case_fails() {
    let directory = tempfile::tempdir().unwrap();
    assert!(read_directory(directory.path()).is_err(), "no case at all");
    let good = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gpt2_tanh.safetensors");
    let bytes = std::fs::read(good).unwrap();
    std::fs::write(
        directory.path().join("cut.safetensors"),
        &bytes[..bytes.len() / 2],
    )
    .unwrap();
    assert!(read_directory(directory.path()).is_err(), "half a file");
}

/// Prints a line that the test runner does not hold back, as it does with `println!`.
fn say(line: String) {
    use std::io::Write;
    let mut out = std::io::stdout();
    writeln!(out, "{line}").unwrap();
}

/// The tolerances of the fixtures' README, as fractions used up: at most 1 is within.
struct Errors {
    logits: f64,
    loss: f64,
    gradients: f64,
    largest: [f64; 3],
}

impl Errors {
    fn within_tolerance(&self) -> bool {
        [self.logits, self.loss, self.gradients]
            .iter()
            .all(|e| *e <= 1.0)
    }
}

impl std::fmt::Display for Errors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [logits, loss, gradients] = self.largest;
        write!(
            f,
            "largest error: logits {logits:.1e}, loss {loss:.1e}, gradients {gradients:.1e}"
        )?;
        if !self.within_tolerance() {
            write!(f, " OUT OF TOLERANCE")
        } else {
            Ok(())
        }
    }
}

struct Compare<'a> {
    case: &'a Case,
    config: &'a Zoo,
    rename: Rename,
}

impl OnBackend for Compare<'_> {
    type Output = Errors;

    fn run<B: AutodiffBackend>(self, device: B::Device) -> Errors
    where
        <Zoo as ModelConfig>::Model<B>: AutodiffModule<B>,
    {
        let Self {
            case,
            config,
            rename,
        } = self;
        let weights = case
            .weights
            .iter()
            .map(|(name, data)| (rename(name), data.clone()));
        let (inputs, targets) = (case.inputs.clone(), case.targets.clone());
        let outcome = run::<B, Zoo>(
            config,
            case.vocab,
            weights.collect(),
            inputs,
            targets,
            &device,
        );

        let logits = Values::from(case.logits.clone());
        let mut errors = Errors {
            logits: outcome.logits.error(&logits, 3e-5, |b| 1e-5 * b.abs()),
            loss: (outcome.loss - case.loss).abs() / 1e-5,
            gradients: 0.0,
            largest: [
                outcome.logits.error(&logits, 1.0, |_| 0.0),
                (outcome.loss - case.loss).abs(),
                0.0,
            ],
        };
        for (name, expected) in &case.gradients {
            let expected = Values::from(expected.clone());
            let gradient = &outcome.gradients[&rename(name)];
            let relative = gradient.error(&expected, 1e-5, |_| 3e-5 * expected.largest());
            errors.gradients = errors.gradients.max(relative);
            errors.largest[2] = errors.largest[2].max(gradient.error(&expected, 1.0, |_| 0.0));
        }
        errors
    }
}

/// How the reference's names of parameters translate.
type Rename = fn(&str) -> String;

/// A file of the fixtures.
struct Case {
    name: String,
    arch: String,
    vocab: usize,
    /// The config and how the names of the reference translate; none when the zoo lacks it.
    model: Option<(Zoo, Rename)>,
    inputs: TensorData,
    targets: TensorData,
    logits: TensorData,
    loss: f64,
    weights: BTreeMap<String, TensorData>,
    gradients: BTreeMap<String, TensorData>,
}

fn read_directory(directory: &Path) -> Result<Vec<Case>, String> {
    let entries = std::fs::read_dir(directory).map_err(|e| format!("{directory:?}: {e}"))?;
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "safetensors"));
    paths.sort();
    if paths.is_empty() {
        return Err(format!("{directory:?} has no fixtures"));
    }
    paths
        .iter()
        .map(|path| Case::read(path).map_err(|e| format!("{path:?}: {e}")))
        .collect()
}

impl Case {
    fn read(path: &Path) -> Result<Self, String> {
        let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| e.to_string())?;
        let metadata = header.metadata().as_ref().ok_or("no metadata")?;
        let config = metadata.get("config").ok_or("no config")?;
        let config: Map<String, Value> = serde_json::from_str(config).map_err(|e| e.to_string())?;
        let text = |key: &str| -> Result<String, String> {
            Ok(config
                .get(key)
                .and_then(Value::as_str)
                .ok_or(format!("no {key}"))?
                .into())
        };
        let (arch, name) = (text("arch")?, text("case")?);
        let vocab = config
            .get("vocab")
            .and_then(Value::as_u64)
            .ok_or("no vocab")? as usize;

        let mut weights = BTreeMap::new();
        for (name, view) in SafeTensors::deserialize(&bytes)
            .map_err(|e| e.to_string())?
            .iter()
        {
            let shape = view.shape().to_vec();
            let data = match view.dtype() {
                Dtype::F32 => TensorData::new(numbers(view.data(), f32::from_le_bytes), shape),
                Dtype::I64 => TensorData::new(numbers(view.data(), i64::from_le_bytes), shape),
                other => return Err(format!("{name} is {other:?}")),
            };
            weights.insert(name.to_string(), data);
        }
        let mut take = |name: &str| weights.remove(name).ok_or(format!("no {name}"));
        let (inputs, targets) = (take("input_ids")?, take("target_ids")?);
        let (logits, loss) = (take("logits")?, Values::from(take("loss")?).data[0]);
        take("base_logits").ok();
        let gradients: Vec<String> = weights
            .keys()
            .filter(|n| n.starts_with("grad."))
            .cloned()
            .collect();
        let gradients = gradients
            .into_iter()
            .filter_map(|n| Some((n.strip_prefix("grad.")?.to_string(), weights.remove(&n)?)))
            .collect();
        let model = Self::model(&arch, config)?;
        Ok(Self {
            name,
            arch,
            vocab,
            model,
            inputs,
            targets,
            logits,
            loss,
            weights,
            gradients,
        })
    }

    /// The zoo's config for the reference's, every key of which must be understood.
    fn model(arch: &str, config: Map<String, Value>) -> Result<Option<(Zoo, Rename)>, String> {
        if MISSING.contains(&arch) {
            return Ok(None);
        }
        let mut keys = Keys(config);
        for key in ["arch", "case", "batch", "seq", "vocab"] {
            keys.take(key)?;
        }
        let (zoo, rename): (Zoo, Rename) = match arch {
            "gpt2" => (Zoo::Gpt2(gpt2(&mut keys)?), gpt2_name),
            other => return Err(format!("unknown arch {other}")),
        };
        match keys.0.keys().next() {
            Some(key) => Err(format!("unknown switch {key}")),
            None => Ok(Some((zoo, rename))),
        }
    }
}

struct Keys(Map<String, Value>);

impl Keys {
    fn take(&mut self, key: &str) -> Result<Value, String> {
        self.0.remove(key).ok_or(format!("no {key}"))
    }

    fn size(&mut self, key: &str) -> Result<usize, String> {
        Ok(self
            .take(key)?
            .as_u64()
            .ok_or(format!("{key} is no size"))? as usize)
    }
}

fn gpt2(keys: &mut Keys) -> Result<Gpt2Config, String> {
    Ok(Gpt2Config {
        n_layer: keys.size("n_layer")?,
        n_head: keys.size("n_head")?,
        width: keys.size("d_model")?,
        d_ff: Some(keys.size("d_ff")?),
        context: keys.size("max_len")?,
        bias: keys.take("bias")?.as_bool().ok_or("bias is no switch")?,
        tied: true,
        activation: match keys.take("activation")?.as_str() {
            Some("tanh") => Activation::GeluTanh,
            Some("exact") => Activation::GeluErf,
            other => return Err(format!("unknown activation {other:?}")),
        },
        norm_eps: keys.take("ln_eps")?.as_f64().ok_or("ln_eps is no number")?,
        ..Gpt2Config::default()
    })
}

fn gpt2_name(name: &str) -> String {
    let name = match name {
        "wte" => "ends.tokens.weight",
        "wpe" => "ends.positions.weight",
        other => other,
    };
    let norm = |name: String| match name.contains("norm") {
        true => name.replace(".weight", ".gamma").replace(".bias", ".beta"),
        false => name,
    };
    let name = name
        .replace("ln_f.", "ends.norm.")
        .replace("ln1.", "attention.branch.norm.")
        .replace("ln2.", "feed_forward.branch.norm.")
        .replace(".attn.", ".attention.branch.")
        .replace(".mlp.", ".feed_forward.branch.");
    let name = if name.starts_with("layers.") {
        format!("block.{name}")
    } else {
        name
    };
    norm(name)
}

fn numbers<const N: usize, T>(bytes: &[u8], from: fn([u8; N]) -> T) -> Vec<T> {
    bytes
        .chunks_exact(N)
        .map(|chunk| from(chunk.try_into().unwrap()))
        .collect()
}
