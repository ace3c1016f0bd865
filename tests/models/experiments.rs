//! Every RON file under `experiments/` can be built.

use std::fs;
use std::path::{Path, PathBuf};

use residual_zoo::core::{Architecture as _, ModelConfig as _};
use residual_zoo::data::Source;
use residual_zoo::lab::ExperimentFile;
use residual_zoo::llama::{LlamaConfig, presets};
use residual_zoo::tokenformer::{Position, TokenFormerConfig};
use residual_zoo::{RunConfig, Zoo, builtin};

/// Returns the files of single runs. `tests/lab/suite_files.rs` tests the files of experiments.
fn ron_files(experiments: &Path) -> Vec<PathBuf> {
    let entries = |directory: &Path| {
        let entries = fs::read_dir(directory).unwrap();
        entries
            .map(|entry| entry.unwrap().path())
            .collect::<Vec<_>>()
    };
    let families = entries(experiments).into_iter();
    let files = families.flat_map(|family| entries(&family));
    let is_ron = |path: &PathBuf| path.extension().is_some_and(|e| e == "ron");
    let is_run =
        |path: &PathBuf| !ExperimentFile::is_experiment(&fs::read_to_string(path).unwrap());
    files.filter(is_ron).filter(is_run).collect()
}

#[test]
fn every_file_is_valid_and_survives_writing_out() {
    let files = ron_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments"));
    assert!(files.len() >= 20, "{files:?}");
    for path in files {
        let config = RunConfig::read(&path).unwrap();
        config
            .validate(50_257)
            .unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let again = RunConfig::parse(&config.to_ron(), &path).unwrap();
        assert_eq!(config, again, "{path:?}");
    }
}

#[test]
fn any_field_can_be_set() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/gpt2/smoke.ron");
    let config = RunConfig::read(&path).unwrap();
    let set = |assignment: &str| config.clone().set(&[assignment.to_string()]).unwrap();
    assert_eq!(set("train.steps=7").train.steps, 7);
    assert_eq!(set("train.learning_rate=2e-4").train.learning_rate, 2e-4);
    assert_eq!(set("train.grad_clip=None").train.grad_clip, None);
    assert_eq!(
        set("train.checkpoint_every=5").train.checkpoint_every,
        Some(5)
    );
    let gpt2 = |assignment: &str| match set(assignment).model.plain() {
        Some(Zoo::Gpt2(gpt2)) => gpt2.clone(),
        other => panic!("{other:?}"),
    };
    let activation = gpt2("model.activation=GeluErf").activation;
    assert_eq!(activation, residual_zoo::core::Activation::GeluErf);
    assert_eq!(gpt2("model.Gpt2.width=48").width, 48);
    assert_eq!(
        set("data.source=TinyShakespeare").data.source,
        Source::TinyShakespeare
    );
    let source = set(r#"data.source={"Path":"x.txt"}"#).data.source;
    assert_eq!(source, Source::Path("x.txt".into()));
}

#[test]
fn the_language_models_of_tokenformer_s_table_1_are_the_presets() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/tokenformer");
    let rotary = |preset: TokenFormerConfig| TokenFormerConfig {
        position: Position::Rotary { fraction: 0.25 },
        affine_final_norm: true,
        ..preset
    };
    for (name, preset) in [
        ("150m", TokenFormerConfig::m150()),
        ("450m", TokenFormerConfig::m450()),
        ("900m", TokenFormerConfig::m900()),
        ("1.5b", TokenFormerConfig::b1_5()),
    ] {
        let config = RunConfig::read(&directory.join(format!("{name}.ron"))).unwrap();
        let expected = rotary(preset).cost(50_304).params.total();
        assert_eq!(config.model.cost(50_304).params.total(), expected, "{name}");
        assert_eq!(config.train.z_loss, 0.0, "{name}");
    }
}

#[test]
fn the_run_files_of_published_llamas_are_the_presets() {
    let mut presets = 0;
    for preset in presets::all() {
        let name = format!("llama/{}", preset.name);
        let text = builtin::run_file(name.as_ref()).unwrap_or_else(|| panic!("{name}"));
        let config = RunConfig::parse(text, name.as_ref()).unwrap();
        assert_eq!(
            config.data.known_vocab_size().unwrap(),
            Some(preset.vocab),
            "{name}"
        );
        let Some(Zoo::Llama(found)) = config.model.plain() else {
            panic!("{name}");
        };
        // Sizes that follow from other sizes are left out of the files.
        let found = LlamaConfig {
            n_kv_head: Some(found.n_kv_head()),
            head_dim: Some(found.head_dim()),
            ..found.clone()
        };
        assert_eq!(found, preset.config, "{name}");
        presets += 1;
    }
    // nanochat of 2026 has its own test.
    let others = ["smoke", "bench", "-2026"];
    let named = |(name, _): &(String, &str)| {
        name.starts_with("llama/") && !others.iter().any(|other| name.contains(other))
    };
    assert_eq!(builtin::run_files().filter(named).count(), presets);
}

#[test]
fn nanochat_of_2026_has_as_many_parameters_as_published() {
    let path = Path::new("llama/nanochat-d12-2026");
    let d12 = RunConfig::parse(builtin::run_file(path).unwrap(), path).unwrap();
    for (n, expected) in [
        (12, 286_261_730),
        (20, 896_533_746),
        (24, 1_384_122_122),
        (26, 1_681_786_938),
    ] {
        // The width is 64 N, rounded up to whole heads of 128 features.
        let heads = (64 * n as usize).div_ceil(128);
        let sizes = [
            format!("model.layers.0.n_layer={n}"),
            format!("model.layers.0.n_head={heads}"),
            format!("model.layers.0.width={}", 128 * heads),
            format!("model.layers.0.d_ff={}", 512 * heads),
        ];
        let config = d12.clone().set(&sizes).unwrap();
        config.model.validate().unwrap();
        assert_eq!(config.model.cost(32_768).params.total(), expected, "d{n}");
    }
}

#[test]
fn a_grown_run_file_is_the_growth_of_the_other() {
    let read = |file: &str| {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/tokenformer");
        match RunConfig::read(&directory.join(file))
            .unwrap()
            .model
            .plain()
        {
            Some(Zoo::TokenFormer(config)) => config.clone(),
            other => panic!("{other:?}"),
        }
    };
    let small = read("shakespeare-cpu.ron");
    assert_eq!(
        small.grown(144, 576).unwrap(),
        read("shakespeare-cpu-grown.ron")
    );
}

#[test]
fn every_example_in_ron_of_the_documentation_parses() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let papers = fs::read_dir(root.join("docs/papers")).unwrap();
    let mut pages: Vec<PathBuf> = papers.map(|page| page.unwrap().path()).collect();
    pages.push(root.join("README.md"));
    let mut examples = 0;
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for block in text.split("```ron\n").skip(1) {
            let block = block.split("```").next().unwrap().trim();
            let whole = match block.starts_with('(') {
                true => block.to_string(),
                false => format!("({block})"),
            };
            let config = RunConfig::parse(&whole, &page).unwrap_or_else(|e| panic!("{e}"));
            config
                .validate(50_257)
                .unwrap_or_else(|e| panic!("{page:?}: {e}\n{block}"));
            examples += 1;
        }
    }
    assert!(examples >= 7, "{examples} examples");
}
