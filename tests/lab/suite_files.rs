//! Checks that the experiment files are complete.

use std::fs;
use std::path::Path;

use residual_zoo::experiment::Experiment;
use residual_zoo::lab::{ExperimentFile, Measure};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the paper and name of every experiment.
pub fn experiments() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for paper in fs::read_dir(root().join("experiments")).unwrap() {
        let paper = paper.unwrap();
        for entry in fs::read_dir(paper.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "ron")
                && ExperimentFile::is_experiment(&fs::read_to_string(&path).unwrap())
            {
                let name = path.file_stem().unwrap().to_str().unwrap();
                let paper = paper.file_name().into_string().unwrap();
                found.push((paper, name.to_owned()));
            }
        }
    }
    found.sort();
    found
}

/// Models that were tuned from different runs have different token tables, which no training makes equal.
#[test]
fn only_runs_that_started_from_one_are_merged() {
    let path = root().join("experiments/tokenformer/tokenformer_merge.ron");
    let text = fs::read_to_string(&path).unwrap();
    let base = text
        .lines()
        .find(|line| line.contains("name: \"base\""))
        .unwrap();
    let other = format!("{base}\n{}", base.replace("\"base\"", "\"other\""));
    let second = "on_new_data: true, after: (run: \"base\"";
    assert!(text.contains(second));
    let text = text
        .replace(base, &other)
        .replace(second, "on_new_data: true, after: (run: \"other\"");
    let problem = Experiment::parse(&text, &path)
        .unwrap()
        .check()
        .unwrap_err();
    let expected =
        "`tuned on the first text` and `tuned on the second text` did not start from the same run";
    assert!(problem.to_string().contains(expected), "{problem}");
}

/// Returns the result of `read` for an experiment's file.
fn read<T>(paper: &str, name: &str, read: impl Fn(&ExperimentFile) -> T) -> T {
    let path = root().join(format!("experiments/{paper}/{name}.ron"));
    let text = fs::read_to_string(&path).unwrap();
    read(&ExperimentFile::new(&text, &path).unwrap())
}

/// Returns the scales of an experiment.
pub fn scales(paper: &str, name: &str) -> Vec<String> {
    let names = |file: &ExperimentFile| file.scales().iter().map(|s| (*s).to_owned()).collect();
    read(paper, name, names)
}

pub fn experiment(paper: &str, name: &str, scale: &str) -> Experiment {
    read(paper, name, |file| {
        file.at(Some(scale)).unwrap().parse().unwrap()
    })
}

#[test]
fn every_experiment_has_an_example_and_three_scales_whose_models_can_be_built() {
    let experiments = experiments();
    let count = experiments.len();
    for (page, says) in [
        ("README.md", format!("in {count} [experiments]")),
        ("CHANGELOG.md", format!("{count} experiments of the papers")),
    ] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        assert!(text.contains(&says), "{page}: {says}");
    }
    for (paper, name) in &experiments {
        let example = root().join(format!("examples/{name}.rs"));
        let text = fs::read_to_string(&example).unwrap();
        assert!(text.contains(&format!("experiment!(\"{name}\")")), "{name}");
        let scales = scales(paper, name);
        for needed in ["smoke", "cpu", "paper"] {
            assert!(
                scales.iter().any(|scale| scale == needed),
                "{name} {needed}"
            );
        }
        for scale in &scales {
            let experiment = experiment(paper, name, scale);
            experiment
                .check()
                .unwrap_or_else(|e| panic!("{name} {scale}: {e}"));
            let configs = experiment.plan(&[]).unwrap();
            for run in configs.iter() {
                if let Some(config) = &run.config {
                    let valid = config.validate(50_304);
                    valid.unwrap_or_else(|e| panic!("{name} {scale} {}: {e}", run.name));
                }
            }
            assert!(!experiment.claims.is_empty(), "{name} {scale}");
        }
    }
}

#[test]
fn the_experiments_on_the_page_are_valid_at_every_scale() {
    let page = Path::new("docs/experiments.md");
    let text = fs::read_to_string(root().join(page)).unwrap();
    let blocks = text.split("```ron\n").skip(1);
    let blocks = blocks.map(|block| block.split_once("```").unwrap().0);
    let blocks: Vec<&str> = blocks
        .filter(|block| ExperimentFile::is_experiment(block))
        .collect();
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        let file = ExperimentFile::new(block, page).unwrap();
        let scales = file.scales().iter().map(|scale| Some(*scale));
        for scale in scales.chain([None]) {
            let experiment: Experiment = file.at(scale).unwrap().parse().unwrap();
            experiment
                .check()
                .unwrap_or_else(|e| panic!("{scale:?}: {e}"));
        }
    }
}

#[test]
fn claims_are_tested_with_enough_seeds_and_tuned_rates_at_cpu_scale() {
    for (paper, name) in experiments() {
        let experiment = experiment(&paper, &name, "cpu");
        if experiment.count.is_some() {
            continue;
        }
        let seeds = &experiment.seeds;
        // A ladder repeats its comparison at several sizes.
        let least = if experiment.ladder.is_some() { 5 } else { 8 };
        assert!(seeds.len() >= least, "{name}: {seeds:?}");
        let untuned = [
            // Losses at different sequence lengths are not comparable.
            "recurrent_copy",
            "recurrent_selective_copy",
            "recurrent_curriculum",
            // Their models have a learning rate that other experiments have tuned.
            "streams_tokens",
            "rmt_tokens",
            // The learning rate is an axis of the charts.
            "mup_transfer",
        ];
        let tuned = experiment.sweep.as_ref().is_some_and(|sweep| sweep.tuned);
        assert_eq!(tuned, !untuned.contains(&&*name), "{name}");
    }
}

#[test]
fn short_runs_judge_nothing_and_no_text_names_the_data() {
    for (paper, name) in experiments() {
        for scale in ["smoke", "cpu", "paper"] {
            let experiment = experiment(&paper, &name, scale);
            let is_exact =
                experiment.count.is_some() && experiment.measure != Some(Measure::Latency);
            assert_eq!(
                experiment.judge,
                scale != "smoke" || is_exact,
                "{name} {scale}"
            );
            // `--data` may replace the data of the experiment file. The report states the data of the run.
            let text = experiment.about.to_lowercase();
            assert!(!text.contains("tiny shakespeare"), "{name} {scale}");
        }
    }
}

#[test]
fn the_documentation_lists_every_experiment() {
    let text = fs::read_to_string(root().join("docs/results/README.md")).unwrap();
    for (_, name) in experiments() {
        let results = root().join(format!("docs/results/{name}.md"));
        let row = match results.exists() {
            true => format!("[`{name}`]({name}.md)"),
            false => format!("| `{name}` | "),
        };
        assert!(text.contains(&row), "{name}");
    }
}
