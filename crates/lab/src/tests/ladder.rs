use std::fs;

use super::*;
use crate::ladder::Effects;

const LADDER: &str = r#"(
  title: "Gains over sizes",
  train: (steps: 10, batch: 2, warmup: 4, validate_batches: 1, validate_every: 5),
  seeds: [1, 2],
  ladder: (
    baseline: "plain",
    sizes: [
      (name: "small", set: ["model.width=8"], own: {"deep": ["model.n_layer=3"]}),
      (name: "middle", set: ["model.width=16", "train.steps=20"]),
      (name: "large", set: ["model.width=32", "train.steps=40"]),
    ],
    more_tokens: [1.5, 2],
  ),
  sweep: (
    over: [(field: "train.learning_rate", values: Log(from: 1e-3, to: 1e-1, count: 3))],
    seeds: [11],
    tuned: true,
    rule: (fitted: ["small", "middle"], checked: "large"),
  ),
  runs: [
    (name: "plain", model: (n_layer: 1, n_head: 1, context: 8)),
    (name: "deep", model: (n_layer: 2, n_head: 1, context: 8)),
  ],
  columns: ["size", "valid_loss", "gain"],
  charts: [(title: "Gain", x: "size", y: "gain", log_x: true)],
  claims: [
    (says: "The gain does not shrink", source: "none", test: Keeps(quantity: "gain", along: "size", line: "deep", within: 0.1)),
    (says: "It gains", source: "none", test: Lower(quantity: "valid_loss", run: "deep, large", than: "plain, large")),
  ],
)"#;

/// Returns the ladder with data that need no file.
fn on_synthetic_data() -> String {
    let data = "  data: (source: Synthetic(tokens: 1000, seed: 2)),\n  seeds: [1, 2],";
    LADDER.replacen("  seeds: [1, 2],", data, 1)
}

fn refused(from: &str, to: &str) -> String {
    let text = LADDER.replacen(from, to, 1);
    assert_ne!(text, LADDER, "{from}");
    parse(&text).check().unwrap_err().to_string()
}

#[test]
fn every_run_is_planned_at_every_size_and_the_baseline_on_more_tokens() {
    let experiment = parse(LADDER);
    experiment.check().unwrap();
    let planned = experiment.plan(&["train.batch=3".into()]).unwrap();
    let names: Vec<&str> = planned.iter().map(|run| &*run.name).collect();
    assert_eq!(
        names,
        [
            "plain, small",
            "plain, small, 1.5 × the tokens",
            "plain, small, 2 × the tokens",
            "plain, middle",
            "plain, middle, 1.5 × the tokens",
            "plain, middle, 2 × the tokens",
            "plain, large",
            "plain, large, 1.5 × the tokens",
            "plain, large, 2 × the tokens",
            "deep, small",
            "deep, middle",
            "deep, large",
        ]
    );
    let run = |name: &str| planned.iter().find(|run| run.name == name).unwrap();
    let of = |name: &str| {
        let config = run(name).config.as_ref().unwrap();
        let (model, train) = (&config.model.0, &config.train);
        (
            model.n_layer,
            model.width,
            train.steps,
            train.warmup,
            train.batch,
        )
    };
    assert_eq!(of("plain, small"), (1, 8, 10, 4, 3));
    assert_eq!(of("plain, small, 1.5 × the tokens"), (1, 8, 15, 6, 3));
    assert_eq!(of("plain, large, 2 × the tokens"), (1, 32, 80, 8, 3));
    assert_eq!(of("deep, small"), (3, 8, 10, 4, 3));
    assert_eq!(of("deep, middle"), (2, 16, 20, 4, 3));
    assert_eq!(run("deep, middle").line, "deep");
    assert_eq!(
        run("plain, small, 2 × the tokens").line,
        "plain, 2 × the tokens"
    );
    // 12 d² weights and 13 d biases and norms of a layer, and 2 d of the last norm. The size is the baseline's.
    let size = |width: f64| 12.0 * width * width + 13.0 * width + 2.0 * width;
    for (name, width) in [
        ("plain, middle", 16.0),
        ("deep, middle", 16.0),
        ("deep, large", 32.0),
    ] {
        assert_eq!(run(name).values["size"], size(width), "{name}");
    }
}

#[test]
fn a_budget_in_tokens_grows_with_the_factor() {
    let text = LADDER.replace(
        r#""model.width=8""#,
        r#""model.width=8", "train.tokens=160""#,
    );
    let planned = parse(&text).plan(&[]).unwrap();
    let steps = |i: usize| planned[i].config.as_ref().unwrap().train.steps;
    // Sixteen tokens per step.
    assert_eq!([steps(0), steps(1), steps(2)], [10, 15, 20]);
}

#[test]
fn what_is_missing_is_named_and_doubted() {
    let (experiment, planned, mut observations) =
        observed(|rung, seed| baseline(rung, seed) - f64::from(u8::from(rung.run == "deep")));
    let ladder = experiment.ladder.as_ref().unwrap();
    let effects = Effects::of(ladder, &planned, &observations, None, (4, None));
    assert_eq!(
        effects.trends[0].doubts,
        ["only 3 of 4 seeds have all sizes"]
    );
    assert!(effects.missing.is_empty());
    observations.retain(|found| found.run != "deep, middle");
    let effects = Effects::of(ladder, &planned, &observations, None, (3, None));
    assert_eq!(effects.missing, ["deep, middle"]);
    assert!(effects.trends.is_empty());
    let tables = effects.tables();
    let text: Vec<String> = tables.iter().map(|table| table.to_markdown()).collect();
    let text = text.join("\n");
    assert!(text.contains("| deep, middle | – |"), "{text}");
    assert!(
        text.contains("No gain and so no trend: deep, middle."),
        "{text}"
    );
}

#[test]
fn a_rule_sweeps_its_sizes_only() {
    let experiment = parse(LADDER);
    let planned = experiment.plan(&[]).unwrap();
    let sweep = experiment.sweep.as_ref().unwrap();
    let swept = sweep.swept(&planned);
    let names: Vec<&str> = swept.iter().map(|run| &*run.name).collect();
    let expected = [
        "plain, small",
        "plain, middle",
        "plain, large",
        "deep, small",
        "deep, middle",
        "deep, large",
    ];
    assert_eq!(names, expected);
    assert_eq!(sweep.runs(&planned).unwrap().len(), 18);
}

#[test]
fn a_ladder_that_means_nothing_is_refused() {
    let cases = [
        (
            r#"baseline: "plain""#,
            r#"baseline: "plan""#,
            "`ladder.baseline` is `plan`, which is not a run (did you mean `plain`?)",
        ),
        (
            r#"name: "middle""#,
            r#"name: "small""#,
            "`ladder.sizes[1]` has the name \"small\"; each size needs its own name",
        ),
        (
            r#"{"deep": ["#,
            r#"{"dep": ["#,
            "has fields for `dep`, which is not a run (did you mean `deep`?)",
        ),
        (
            r#""model.width=16", "#,
            r#""model.width=4", "#,
            "before `middle`",
        ),
        (
            r#""model.width=16", "#,
            r#""model.width=16", "train.seed=3", "#,
            "sets `train.seed`",
        ),
        (
            r#""model.width=16", "#,
            r#""model.width=16", "train.learning_rate=1", "#,
            "`ladder.sizes[1]` sets `train.learning_rate=1`, which the sweep varies",
        ),
        (
            r#""model.width=16", "#,
            r#""model.with=16", "#,
            "run `plain`, ladder size `middle` model.with=16",
        ),
        (
            "[1.5, 2]",
            "[1.01, 2]",
            "`ladder.more_tokens` must give more steps with each factor, but does not at `small`",
        ),
        (
            r#"(name: "deep", "#,
            r#"(name: "deep", set: ["data.tokenizer=Bytes"], "#,
            "`deep` has other data than the baseline at `small`",
        ),
        (
            r#"own: {"deep": ["model.n_layer=3"]}"#,
            r#"own: {"deep": ["train.steps=30"]}"#,
            "`deep` has 480 training tokens instead of the 160 of the baseline at `small`",
        ),
        (
            r#"own: {"deep": ["model.n_layer=3"]}"#,
            r#"own: {"deep": ["train.validate_batches=3"]}"#,
            "`deep` has 6 sequences in a validation instead of the 2",
        ),
        (
            r#"own: {"deep": ["model.n_layer=3"]}"#,
            r#"own: {"deep": ["model=(n_layer: 3, context: 8)"]}"#,
            "`ladder.sizes[0]` sets `model.width=8`, which `model=(n_layer: 3, context: 8)` of `deep` replaces",
        ),
        (
            r#"(name: "deep", "#,
            r#"(name: "deep", set: ["model.width=64"], "#,
            "`ladder.sizes[0]` sets `model.width=8`, which replaces `model.width=64` of `deep`",
        ),
        (
            "  seeds: [1, 2],",
            "  data: (source: Copying(tokens: 1, noise: 2, most_noise: 4)),\n  seeds: [1, 2],",
            "`plain` has a curriculum",
        ),
        (
            r#"field: "train.learning_rate""#,
            r#"field: "train.warmup""#,
            "`sweep.over` varies `train.warmup`, which the sizes of a ladder set",
        ),
        (
            "count: 3)",
            "count: 2)",
            "`sweep.over` has two values, but a rule needs a best value between two others",
        ),
        (
            r#"line: "deep", within"#,
            r#"line: "plain", within"#,
            "is about the gain of the baseline, `plain`; it has none",
        ),
        ("[1.5, 2]", "[2, 1.5]", "`ladder.more_tokens` "),
        ("[1.5, 2]", "[1, 2]", "`ladder.more_tokens` "),
        (
            "more_tokens: [1.5, 2]",
            "extrapolate: 0.5",
            "`ladder.extrapolate` is 0.5",
        ),
        (
            r#"(name: "deep", "#,
            r#"(name: "deep", line: "plain", "#,
            "`deep` has `line`, which a ladder does not allow",
        ),
        (
            r#"(name: "deep", "#,
            r#"(name: "deep", values: {"gain": 1}, "#,
            "`deep` has a value `gain`",
        ),
        (
            r#"fitted: ["small", "middle"]"#,
            r#"fitted: ["middle"]"#,
            "needs two or more `fitted` sizes",
        ),
        (
            r#"checked: "large""#,
            r#"checked: "small""#,
            "needs two or more `fitted` sizes",
        ),
        (
            r#"checked: "large""#,
            r#"checked: "huge""#,
            "`sweep.rule` has `huge`, which is not a size of the ladder",
        ),
        ("tuned: true,", "", "needs `tuned: true`"),
        (
            "Log(from: 1e-3, to: 1e-1, count: 3)",
            "Grid([0.1, 0.2])",
            "a single field with `Log` values",
        ),
        (
            r#"test: Keeps(quantity: "gain", along: "size", line: "deep", within: 0.1)"#,
            r#"test: Keeps(quantity: "gain", along: "size", line: "deep", within: -1)"#,
            "a tolerance below 0",
        ),
    ];
    for (from, to, problem) in cases {
        let error = refused(from, to);
        assert!(error.contains(problem), "{error}\nis not: {problem}");
    }
    let start = LADDER.find("  ladder: (").unwrap();
    let end = LADDER.find("  sweep: (").unwrap();
    let without = LADDER[..start].to_owned() + &LADDER[end..];
    let error = parse(&without).check().unwrap_err().to_string();
    assert!(
        error.contains("`sweep.rule` is given without a `ladder`"),
        "{error}"
    );
}

/// Makes the observations of the ladder, with the loss of each run and seed.
fn observed(loss: impl Fn(&Rung, u64) -> f64) -> Found {
    observed_on(LADDER, loss)
}

/// An experiment with its runs and their observations.
type Found = (
    Gpt2Experiment,
    Vec<PlannedRun<PlainModel<Gpt2Config>>>,
    Vec<Observation>,
);

fn observed_on(ladder: &str, loss: impl Fn(&Rung, u64) -> f64) -> Found {
    let experiment = parse(ladder);
    let planned = experiment.plan(&[]).unwrap();
    let mut observations = Vec::new();
    for run in &planned {
        for seed in [1, 2, 3] {
            let mut quantities = run.values.clone();
            quantities.insert("valid_loss".into(), loss(run.rung.as_ref().unwrap(), seed));
            let rung = run.rung.as_ref().unwrap();
            quantities.insert("tokens".into(), 1000.0 * rung.tokens);
            // The deep runs take √2 times the FLOPs.
            let each = if rung.run == "deep" { 2f64.sqrt() } else { 1.0 };
            quantities.insert("flops".into(), 1e6 * each * rung.tokens);
            observations.push(Observation {
                run: run.name.clone(),
                line: run.line.clone(),
                seed: Some(seed),
                quantities,
                ..Observation::default()
            });
        }
    }
    experiment
        .ladder
        .as_ref()
        .unwrap()
        .add_gains(&mut observations);
    (experiment, planned, observations)
}

/// The loss of a baseline that falls by 0.1 for each doubling of its tokens, with a loss that depends on the seed.
fn baseline(rung: &Rung, seed: u64) -> f64 {
    3.0 + 0.1 * seed as f64 - 0.1 * rung.tokens.log2()
}

#[test]
fn gains_are_paired_by_seed_and_size_and_worth_tokens() {
    let (experiment, planned, observations) = observed(|rung, seed| match &*rung.run {
        "plain" => baseline(rung, seed),
        // A gain of 0.05, half a doubling of the tokens, that differs by 0.001 from seed to seed.
        _ => baseline(rung, seed) - 0.049 - 0.001 * (seed - 1) as f64,
    });
    let gain = |run: &str, seed: u64| {
        let found = observations
            .iter()
            .find(|it| it.run == run && it.seed == Some(seed));
        found.unwrap().get("gain")
    };
    assert!((gain("deep, large", 3).unwrap() - 0.051).abs() < 1e-12);
    assert!((gain("plain, large, 2 × the tokens", 1).unwrap() - 0.1).abs() < 1e-12);
    assert_eq!(gain("plain, large", 1), None);
    let ladder = experiment.ladder.as_ref().unwrap();
    let effects = Effects::of(ladder, &planned, &observations, None, (3, Some(1.0)));
    assert_eq!(effects.gains.len(), 3);
    let large = &effects.gains[2];
    assert_eq!(
        (&*large.run, &*large.size, large.seeds),
        ("deep", "large", 3)
    );
    assert!((large.mean - 0.05).abs() < 1e-12);
    // 4.303 · 0.001 / √3.
    assert!(
        (large.half_width - 0.002_484).abs() < 1e-6,
        "{}",
        large.half_width
    );
    assert!((large.baseline_loss - 3.2).abs() < 1e-12);
    let worth = large.worth.unwrap();
    assert!((worth.factor - 2f64.sqrt()).abs() < 1e-3, "{worth:?}");
    assert!(worth.low < worth.factor && worth.factor < worth.high);
    // The baseline with as many FLOPs has read √2 times the tokens, and so has the same loss.
    let (equal, half_width) = large.at_equal_flops.unwrap();
    assert!(
        equal.abs() < 1e-12 && (half_width - large.half_width).abs() < 1e-12,
        "{equal} ± {half_width}"
    );
    // A seed is lacking on more tokens.
    let mut lacking = observations.clone();
    lacking.retain(|it| it.run != "plain, large, 2 × the tokens" || it.seed != Some(2));
    let lacking = Effects::of(ladder, &planned, &lacking, None, (3, Some(1.0)));
    let [whole, part] = [&lacking.gains[1], &lacking.gains[2]];
    assert!(whole.worth.is_some() && whole.at_equal_flops.is_some());
    assert_eq!(
        (part.seeds, part.worth, part.at_equal_flops),
        (3, None, None)
    );
    let text = effects.tables()[0].to_text();
    assert!(
        text.contains("+0.0500 ± 0.0025") && text.contains("1.41 (1.39 to 1.44)"),
        "{text}"
    );
}

#[test]
fn a_trend_is_a_line_for_each_seed_and_says_when_not_to_trust_it() {
    let trend = |gain: &dyn Fn(f64, u64) -> f64, passes: f64| {
        let (experiment, planned, observations) = observed(|rung, seed| match &*rung.run {
            "plain" => baseline(rung, seed),
            _ => baseline(rung, seed) - gain(rung.parameters.log2(), seed),
        });
        let ladder = experiment.ladder.as_ref().unwrap();
        let effects = Effects::of(ladder, &planned, &observations, None, (3, Some(passes)));
        assert_eq!(effects.trends.len(), 1);
        (effects.trends[0].clone(), effects.tables()[1].to_text())
    };
    // The largest size has 12 · 32² + 15 · 32 = 12,768 parameters.
    let (found, text) = trend(&|x, seed| 0.3 - 0.01 * x - 0.001 * x * seed as f64, 1.0);
    assert_eq!(found.at, 4.0 * 12_768.0);
    assert!((found.slope + 0.012).abs() < 1e-9, "{found:?}");
    assert!(
        (found.slope_half_width - 0.002_484).abs() < 1e-6,
        "{found:?}"
    );
    assert!(
        (found.mean - (0.3 - 0.012 * found.at.log2())).abs() < 1e-9,
        "{found:?}"
    );
    assert!(found.doubts.is_empty(), "{found:?}");
    assert!(text.contains("no doubt found; a bend of"), "{text}");
    // The gain is a parabola of the logarithm of the size, and the text is read too often.
    let (found, text) = trend(
        &|x, seed| 0.01 * (x - 11.0).powi(2) + 1e-4 * x * seed as f64,
        5.0,
    );
    let doubts = found.doubts.join("; ");
    assert!(
        doubts.contains(
            "the line bends: its slope changes by 0.0200 ± 0.0000 nats with each doubling"
        ),
        "{doubts}"
    );
    assert!(
        doubts.contains("a run reads the text 5.0 times"),
        "{doubts}"
    );
    assert!(text.contains("not to be trusted"), "{text}");
}

#[test]
fn a_trend_that_hangs_on_one_size_is_doubted() {
    let fourth = r#""train.steps=40"]),
      (name: "huge", set: ["model.width=64", "train.steps=80"]),"#;
    let four = LADDER.replacen(r#""train.steps=40"]),"#, fourth, 1);
    let doubts = |gain: &dyn Fn(&str, f64, u64) -> f64| {
        let loss = |rung: &Rung, seed: u64| match &*rung.run {
            "plain" => baseline(rung, seed),
            _ => {
                baseline(rung, seed)
                    - gain(&rung.size, rung.parameters.log2(), seed)
                    - 1e-4 * seed as f64
            }
        };
        // The deviations of the seeds differ from size to size.
        let noisy = |rung: &Rung, seed: u64| {
            let wave = (seed as f64 * rung.parameters).sin();
            loss(rung, seed) + if rung.run == "deep" { 1e-3 * wave } else { 0.0 }
        };
        let (experiment, planned, observations) = observed_on(&four, noisy);
        let ladder = experiment.ladder.as_ref().unwrap();
        let effects = Effects::of(ladder, &planned, &observations, None, (3, Some(1.0)));
        effects.trends[0].doubts.join("; ")
    };
    // Only the smallest size gains less.
    let step = doubts(&|size, _, _| if size == "small" { 0.0 } else { 0.05 });
    assert!(
        step.contains("the slope hangs on small: without that size, it is "),
        "{step}"
    );
    // The largest size carries the slope. The seeds differ at the second size, so without the smallest size, the slope
    // is larger, but its interval includes 0.
    let carried = doubts(&|size, _, seed| match size {
        "middle" => 0.03 * (seed as f64 - 2.0),
        "huge" => 0.05,
        _ => 0.0,
    });
    for what in ["slope", "extrapolated gain"] {
        let says = format!("the {what} hangs on huge: ");
        assert!(carried.contains(&says), "{carried}");
    }
    // Without the smallest size, the gain falls.
    let turned = doubts(&|size, x, _| {
        if size == "small" {
            -0.3
        } else {
            0.2 - 0.01 * x
        }
    });
    assert!(
        turned.contains("the slope hangs on small: without that size, it is -0.0"),
        "{turned}"
    );
    let straight = doubts(&|_, x, _| 0.01 * x);
    assert!(!straight.contains("hangs"), "{straight}");
}

#[test]
fn a_ladder_trains_each_size_with_the_value_of_its_rule() {
    let directory = tempfile::tempdir().unwrap();
    let text = on_synthetic_data();
    let options = Options::new(&directory.path().join("pool"), BackendKind::Flex);
    let run =
        || run_experiment::<PlainModel<Gpt2Config>>(&text, Path::new("ladder.ron"), None, &options);
    let results = run().unwrap();
    assert!(results.missing().is_empty(), "{:?}", results.missing());
    let fits = &results.tuning().unwrap().rule;
    assert_eq!(fits.len(), 2);
    let of = |run: &str| {
        let found = results.observations().iter().find(|found| found.run == run);
        found.unwrap().get("learning rate").unwrap()
    };
    for fit in fits {
        let near = |rate: f64, best: f64| {
            assert!((rate / best - 1.0).abs() < 0.01, "{rate} is not {best}")
        };
        // The power through two sizes, at the third.
        let (small, middle) = (&fit.fitted[0], &fit.fitted[1]);
        let power = |from: f64, to: f64| (to / from).ln();
        let exponent =
            power(small.value, middle.value) / power(small.parameters, middle.parameters);
        let ratio = fit.checked.parameters / small.parameters;
        near(fit.at_checked, small.value * ratio.powf(exponent));
        // The power through all three has their mean, and its own exponent.
        let rates = ["small", "middle", "large"].map(|size| of(&format!("{}, {size}", fit.run)));
        let bests = [small.value, middle.value, fit.checked.value];
        let mean = |values: [f64; 3]| (values.map(f64::ln).iter().sum::<f64>() / 3.0).exp();
        near(mean(rates), mean(bests));
        near(rates[2], rates[0] * ratio.powf(fit.exponent));
    }
    let of_longer = of("plain, large, 2 × the tokens");
    assert_eq!(of_longer, of("plain, large"));
    // The tables of gains, of trends and of the rule.
    assert_eq!(results.ladder().len(), 3);
    results.write(directory.path()).unwrap();
    let page = fs::read_to_string(directory.path().join("results.md")).unwrap();
    for heading in [
        "## Gains at each size",
        "## Gains beyond the largest size",
        "## Rule of the learning rate",
    ] {
        assert!(page.contains(heading), "{heading}");
    }
    let json = fs::read_to_string(directory.path().join("results.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["effects"]["gains"].as_array().unwrap().len(), 3);
    // A repetition trains nothing and has the same numbers.
    let again = run().unwrap();
    assert_eq!(again.observations(), results.observations());
}

#[test]
fn a_claim_about_a_run_whose_rule_has_failed_is_undecided() {
    let (experiment, planned, _) = observed(baseline);
    let [gain, lower] = &experiment.claims[..] else {
        panic!("{:?}", experiment.claims);
    };
    let depends_on = |claim, run| experiment.depends_on(claim, run, &planned);
    // A gain is also about the baseline.
    assert!(depends_on(gain, "deep") && depends_on(gain, "plain"));
    assert!(depends_on(lower, "deep") && depends_on(lower, "plain"));
    let other = Claim {
        test: claims::Test::NotTested("why".into()),
        ..gain.clone()
    };
    assert!(!depends_on(&other, "plain"));
    let mut found = Judgement {
        claim: lower.clone(),
        verdict: Verdict::Holds,
        because: "so".into(),
        margin: None,
        p: Some(0.01),
    };
    found.doubt(&["deep", "plain"]);
    assert_eq!(found.verdict, Verdict::Undecided);
    assert_eq!(
        found.because,
        "so; undecided, because the rule of the sweep failed for deep and plain"
    );
}

#[test]
fn a_gain_needs_every_seed_of_the_baseline() {
    let (experiment, planned, mut observations) =
        observed(|rung, seed| baseline(rung, seed) - f64::from(u8::from(rung.run == "deep")));
    let judge = |observations: &[Observation]| {
        let found = experiment.verdicts(&planned, observations);
        (found[0].verdict, found[0].because.clone())
    };
    assert_eq!(judge(&observations).0, Verdict::Holds);
    let lost = observations
        .iter_mut()
        .find(|found| found.run == "deep, middle" && found.seed == Some(2));
    lost.unwrap().quantities.remove("gain");
    let (verdict, because) = judge(&observations);
    assert_eq!(verdict, Verdict::NotTested);
    assert_eq!(
        because,
        "gain of deep, middle was not measured with seed 2, because the baseline of this size and seed is missing"
    );
}

#[test]
fn a_part_of_a_ladder_takes_the_sizes_of_its_rule_along() {
    // The rule does not sweep this size.
    let text = LADDER.replacen(
        r#"      (name: "large""#,
        r#"      (name: "middling", set: ["model.width=24"]),
      (name: "large""#,
        1,
    );
    let experiment = parse(&text);
    let all = experiment.plan(&[]).unwrap();
    let names = |asked: &str| -> Vec<String> {
        let kept = experiment.only(&[asked.to_owned()], &all).unwrap();
        kept.into_iter().map(|run| run.name).collect()
    };
    assert_eq!(
        names("deep, middling"),
        [
            "deep, small",
            "deep, middle",
            "deep, middling",
            "deep, large"
        ]
    );
    assert_eq!(
        names("deep, small"),
        ["deep, small", "deep, middle", "deep, large"]
    );
    // The name of a line selects this line, and no other that contains its name.
    let of_line = names("plain");
    assert!(of_line.contains(&"plain, large".to_owned()));
    assert!(
        of_line.iter().all(|name| !name.contains("× the tokens")),
        "{of_line:?}"
    );
}

#[test]
fn a_run_that_refuses_the_value_of_a_rule_is_missing_and_the_others_are_trained() {
    let directory = tempfile::tempdir().unwrap();
    let text = on_synthetic_data().replacen(
        r#"field: "train.learning_rate", values: Log(from: 1e-3, to: 1e-1, count: 3)"#,
        r#"field: "train.batch", values: Log(from: 1, to: 4, count: 3)"#,
        1,
    );
    let options = Options::new(&directory.path().join("pool"), BackendKind::Flex);
    let results =
        run_experiment::<PlainModel<Gpt2Config>>(&text, Path::new("ladder.ron"), None, &options);
    let results = results.unwrap();
    // A batch is a whole number, and a power of the size rarely is.
    let missing = results.missing();
    assert!(!missing.is_empty());
    assert!(
        missing
            .iter()
            .all(|run| run.contains("the rule of the sweep gives batch ")),
        "{missing:?}"
    );
}

#[test]
fn a_rule_without_its_sizes_gives_no_values() {
    let directory = tempfile::tempdir().unwrap();
    let text = on_synthetic_data();
    let options = Options::new(&directory.path().join("pool"), BackendKind::Flex);
    let experiment = parse(&text);
    let all = experiment.plan(&[]).unwrap();
    let planned = only(&["deep, large".into()], &all).unwrap();
    let outcome = experiment.run(&planned, &options).unwrap();
    assert!(outcome.observations.is_empty());
    assert_eq!(
        outcome.missing[0].to_string(),
        "deep, large: the rule of the sweep has no value: the sweep at small was left out"
    );
    // What the rule gives is not known before the sweep, so its runs cannot be deleted before.
    let error = experiment
        .forget(&all, true, &options)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("cannot be given with `--jobs` here"),
        "{error}"
    );
}

#[test]
fn a_sweep_leaves_sizes_tokens_and_sequences_as_they_are() {
    let swept = |field: &str| {
        let text = LADDER
            .replace("train.learning_rate", field)
            .replace("from: 1e-3, to: 1e-1", "from: 2, to: 8");
        let experiment = parse(&text);
        let planned = experiment.plan(&[]).unwrap();
        let found = experiment.sweep.as_ref().unwrap().check_points(&planned);
        found.map(|_| ()).unwrap_err().to_string()
    };
    for (field, problem) in [
        ("model.n_layer", "another number of parameters"),
        ("train.accumulate", "training tokens instead of the"),
        ("train.time", "training tokens instead of the"),
    ] {
        let found = swept(field);
        assert!(found.contains(problem), "{found}");
    }
    // A power of the size is no whole number.
    let text = LADDER
        .replace("train.learning_rate", "train.log_every")
        .replace("from: 1e-3, to: 1e-1", "from: 2, to: 8");
    let experiment = parse(&text);
    let planned = experiment.plan(&[]).unwrap();
    let found = experiment.sweep.unwrap().check_points(&planned);
    let found = found.map(|_| ()).unwrap_err().to_string();
    assert!(
        found.contains("values between those of the range"),
        "{found}"
    );
}
