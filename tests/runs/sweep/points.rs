//! Points of a sweep that are given up early, diverge or cannot be trained.

use super::*;

#[test]
fn halving_gives_up_the_worse_points_and_ends_where_the_whole_sweep_does() {
    let scratch = Scratch::new();
    let file = small(&scratch);
    let directory = scratch
        .path("out")
        .join(format!("{}-sweep", name(&scratch)));
    ok(&mut sweep(&scratch, &file, &["--over", RATES, "--halving"]));
    let halved = tried(&results(&directory), 0);
    let mut shares: Vec<f64> = halved.values().map(|point| point.1).collect();
    shares.sort_by(f64::total_cmp);
    assert_eq!(shares, [0.25, 0.25, 0.5, 1.0]);
    ok(&mut sweep(&scratch, &file, &["--over", RATES]));
    let whole = tried(&results(&directory), 0);
    for (point, (loss, share)) in &halved {
        match *share == 1.0 {
            true => assert_eq!(whole[point].0, *loss),
            // Diverged points have no loss in either sweep.
            false => assert!(loss.is_infinite() || whole[point].0 != *loss),
        }
    }
    // Runs that have trained further give the same rungs.
    ok(&mut sweep(&scratch, &file, &["--over", RATES, "--halving"]));
    assert_eq!(tried(&results(&directory), 0), halved);
}

#[test]
fn a_range_is_widened_until_its_best_value_is_inside() {
    let scratch = Scratch::new();
    let file = small(&scratch);
    let directory = scratch
        .path("out")
        .join(format!("{}-sweep", name(&scratch)));
    // The loss falls with the learning rate up to about 0.5.
    let options = ["--over", "train.learning_rate=1e-3..2e-3:log:2", "--widen"];
    let with = |widen: &'static str| [&options[..], &[widen]].concat();
    let edge = "is at the upper end of its range";
    let once = ok(&mut sweep(&scratch, &file, &with("1")));
    let points = tried(&results(&directory), 0);
    assert!(once.contains(edge) && points.len() == 3, "{once}");
    let fully = ok(&mut sweep(&scratch, &file, &with("16")));
    let points = tried(&results(&directory), 0);
    let rates: Vec<f64> = points
        .keys()
        .map(|set| {
            set.trim_matches(|c: char| !c.is_ascii_digit())
                .parse()
                .unwrap()
        })
        .collect();
    let loss = |rate: f64| {
        let at = rates.iter().position(|it| *it == rate).unwrap();
        points.values().nth(at).unwrap().0
    };
    let highest = rates.iter().copied().fold(0.0, f64::max);
    let best = rates
        .iter()
        .copied()
        .min_by(|a, b| loss(*a).total_cmp(&loss(*b)))
        .unwrap();
    // Exactly one value beyond the best one was tried.
    assert!((highest / best - 2.0).abs() < 0.01, "{rates:?}");
    assert!(best > 4e-3 && !fully.contains(edge), "{fully}");
    let page = fs::read_to_string(directory.join("report.html")).unwrap();
    let note = "up to 16 more values beyond this end are tried";
    assert!(page.contains(note), "{page}");
    // Every line of a seed has a learning rate, so no line of an earlier round is left.
    let csv = fs::read_to_string(directory.join("results.csv")).unwrap();
    assert!(csv.contains(",0.004,1,") && !csv.contains(",,1,"), "{csv}");
    // A grid of all these values has the same losses.
    let mut all = rates.clone();
    all.sort_by(f64::total_cmp);
    let all: Vec<String> = all.iter().map(f64::to_string).collect();
    let over = format!("train.learning_rate={}", all.join(","));
    ok(&mut sweep(&scratch, &file, &["--over", &over, "--force"]));
    assert_eq!(tried(&results(&directory), 0), points);
    // `--force` trains the points beyond the range again, too.
    let shown = ok(&mut sweep(
        &scratch,
        &file,
        &[&with("16")[..], &["--force"]].concat(),
    ));
    assert_eq!(shown.matches("trained in").count(), points.len(), "{shown}");
    assert_eq!(tried(&results(&directory), 0), points);
}

/// Two runs whose ranges are widened, and then trained at their best points.
const WIDENED: &str = r#"(
  title: "Widened",
  data: (source: Synthetic(tokens: 3000)),
  train: (steps: 8, batch: 2, warmup: 2, log_every: 2, validate_every: 8, validate_batches: 2),
  seeds: [1, 2],
  sweep: (over: [(field: "train.learning_rate", values: Log(from: 1e-3, to: 2e-3, count: 2))], widen: 16, tuned: true, seeds: [11]),
  runs: [
    (name: "narrow", model: Gpt2(n_layer: 1, n_head: 1, width: 8, context: 8)),
    (name: "wide", model: Gpt2(n_layer: 1, n_head: 1, width: 16, context: 8)),
  ],
  columns: ["valid_loss"],
)"#;

#[test]
fn widened_runs_are_tuned_the_same_way_by_any_number_of_processes() {
    let scratch = Scratch::new();
    scratch.file("widened.ron", WIDENED);
    let experiment = |options: &[&str]| {
        let mut command = zoo("experiment");
        command.current_dir(scratch.path(""));
        command.args(["widened.ron", "--runs", "out"]).args(options);
        ok(&mut command)
    };
    let found = || results(&scratch.path("out/widened"));
    let trained = |shown: &str| shown.matches("trained in").count();
    let listed = experiment(&["--check"]);
    assert!(listed.contains("at least 4 more runs"), "{listed}");
    let shown = experiment(&[]);
    let first = found();
    let counts = [0, 1].map(|run| tried(&first, run).len());
    assert!(counts.iter().all(|count| *count > 3), "{counts:?}");
    // Each point has one seed, and each run then has two.
    let all = counts.iter().sum::<usize>() + 2 * 2;
    assert_eq!(trained(&shown), all, "{shown}");
    let csv = fs::read_to_string(scratch.path("out/widened/sweep.csv")).unwrap();
    assert_eq!(
        csv.lines().count(),
        1 + counts.iter().sum::<usize>(),
        "{csv}"
    );
    let of_seeds = first["observations"].as_array().unwrap();
    assert_eq!(of_seeds.len(), 2 * 2);
    assert_eq!(trained(&experiment(&[])), 0);
    for jobs in ["1", "2"] {
        let shown = experiment(&["--force", "--jobs", jobs]);
        let again = found();
        assert_eq!(again["tuning"], first["tuning"], "{shown}");
        assert_eq!(trained(&shown), all, "{shown}");
    }
    // The options of a sweep replace the ranges of the file, and so its widening.
    let file = scratch.path("widened.ron");
    for options in [&["--over", "train.batch=2,4"][..], &["--halving"]] {
        ok(&mut sweep(&scratch, &file, options));
    }
    let options = ["--over", "train.batch=2,4", "--widen", "1"];
    let says = ["--widen", "no field has a logarithmic range"];
    fails(&mut sweep(&scratch, &file, &options), 2, &says);
}

#[test]
fn a_value_that_a_run_does_not_accept_ends_its_range() {
    let scratch = Scratch::new();
    let file = small(&scratch);
    let directory = scratch
        .path("out")
        .join(format!("{}-sweep", name(&scratch)));
    // Longer sequences train more positions, and a sequence has at most the 4 tokens of the context.
    let range = ["--over", "train.time=1..2:log:2", "--widen", "16"];
    let set = [
        "model.context=4",
        "train.steps=40",
        "train.learning_rate=1e-2",
    ];
    let set = set.iter().flat_map(|set| ["--set", set]);
    let options: Vec<&str> = range.into_iter().chain(set).collect();
    let shown = ok(&mut sweep(&scratch, &file, &options));
    let points = tried(&results(&directory), 0);
    let times: Vec<&str> = points.keys().map(String::as_str).collect();
    let expected = [1, 2, 4].map(|time| format!("[\"train.time={time}\"]"));
    assert_eq!(times, expected);
    assert!(
        shown.contains("is at the upper end of its range"),
        "{shown}"
    );
}

#[test]
fn halving_with_fewer_rungs_is_noted() {
    let scratch = Scratch::new();
    let file = small(&scratch);
    let none = "note: halving has no effect, because a rung ends at a validation";
    let fewer = "note: halving has 2 rungs instead of 3, because a rung ends at a validation";
    for (every, note) in [("8", Some(none)), ("4", Some(fewer)), ("2", None)] {
        let every = format!("train.validate_every={every}");
        let options = ["--over", RATES, "--halving", "--set", &every];
        let shown = ok(&mut sweep(&scratch, &file, &options));
        assert_eq!(
            shown.matches("note: halving").count(),
            usize::from(note.is_some()),
            "{shown}"
        );
        // The note may be wrapped into lines.
        let line = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(line.contains(note.unwrap_or_default()), "{shown}");
    }
    let help = ok(zoo("sweep").arg("--help"));
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("without a number, N is 3"), "{help}");
}

#[test]
fn a_rate_that_diverges_is_a_point_without_a_loss() {
    let scratch = Scratch::new();
    let file = small(&scratch);
    let options = [
        "--over",
        "train.learning_rate=1e-2,1e38",
        "--set",
        "train.max_skipped=1",
    ];
    let shown = ok(&mut sweep(&scratch, &file, &options));
    assert!(
        shown.contains("best of ") && shown.contains("learning_rate=0.01"),
        "{shown}"
    );
    let directory = scratch
        .path("out")
        .join(format!("{}-sweep", name(&scratch)));
    let failed = &results(&directory)["tuning"]["runs"][0]["tried"][1]["failed"];
    assert!(
        failed.as_str().unwrap().starts_with("diverged at step"),
        "{failed}"
    );
    // The sweep does not train the run further.
    ok(&mut sweep(&scratch, &file, &options));
    assert_eq!(
        &results(&directory)["tuning"]["runs"][0]["tried"][1]["failed"],
        failed
    );
    // A loss above the loss of the untrained model does not count either.
    let options = [
        "--over",
        "train.learning_rate=1e-2,30",
        "--set",
        "train.grad_clip=None",
    ];
    ok(&mut sweep(&scratch, &file, &options));
    let risen = &results(&directory)["tuning"]["runs"][0]["tried"][1]["failed"];
    assert!(risen.as_str().unwrap().starts_with("diverged"), "{risen}");
    let table = fs::read_to_string(directory.join("sweep.csv")).unwrap();
    let risen = table.lines().nth(2).unwrap();
    assert!(risen.contains(",,false,diverged"), "{table}");
    // A missing device is found before `--force` deletes trained runs.
    let kept = || {
        fs::read_dir(scratch.path("out").join("pool"))
            .unwrap()
            .count()
    };
    let before = kept();
    let mut other = sweep(&scratch, &file, &options);
    fails(other.args(["--force", "--gpu", "7"]), 2, &["`--gpu`"]);
    assert_eq!(kept(), before);
    // Without any loss, there is no best point.
    let options = [
        "--over",
        "train.learning_rate=1e37,1e38",
        "--set",
        "train.max_skipped=1",
    ];
    let output = run(&mut sweep(&scratch, &file, &options));
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(
        error.contains("runs are missing") && error.contains("every point of the sweep diverged"),
        "{error}"
    );
    // A path that cannot be written is found before training.
    scratch.file("file", "");
    let mut nowhere = zoo("sweep");
    nowhere.arg(&file).args(options);
    nowhere.arg("--runs").arg(scratch.path("file").join("runs"));
    fails(&mut nowhere, 2, &["could not create", "file/runs"]);
}

#[test]
fn a_point_that_cannot_be_trained_leaves_no_best() {
    let scratch = Scratch::new();
    let file = small(&scratch);
    let options = ["--over", RATES];
    ok(&mut sweep(&scratch, &file, &options));
    let directory = scratch
        .path("out")
        .join(format!("{}-sweep", name(&scratch)));
    let best = &results(&directory)["tuning"]["runs"][0]["best"];
    assert!(best.is_u64());
    // A foreign directory takes the place of a run.
    let pool = scratch.path("out").join("pool");
    let place = fs::read_dir(&pool).unwrap().next().unwrap().unwrap().path();
    fs::remove_dir_all(&place).unwrap();
    fs::create_dir(&place).unwrap();
    fs::write(place.join("foreign"), "").unwrap();
    let output = run(&mut sweep(&scratch, &file, &options));
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("has other content"), "{error}");
    let shown = text(&output.stdout);
    assert!(shown.contains("a point could not be trained"), "{shown}");
    assert!(results(&directory)["tuning"]["runs"][0]["best"].is_null());
    assert!(place.join("foreign").exists());
}

#[test]
fn the_sweep_of_a_ladder_trains_the_sizes_of_its_rule_only() {
    let scratch = Scratch::new();
    let ladder = r#"  ladder: (
    baseline: "narrow",
    sizes: [
      (name: "small", set: ["model.n_layer=1"]),
      (name: "middle", set: ["model.n_layer=2"]),
      (name: "large", set: ["model.n_layer=3"]),
      (name: "huge", set: ["model.n_layer=4"]),
    ],
    more_tokens: [2],
  ),
"#;
    let text = WIDENED
        .replace("  runs: [", &format!("{ladder}  runs: ["))
        .replace("to: 2e-3, count: 2", "to: 4e-3, count: 3")
        .replace(
            "widen: 16, tuned: true,",
            r#"tuned: true, rule: (fitted: ["small", "middle"], checked: "large"),"#,
        );
    let file = scratch.file("ladder.ron", text);
    ok(&mut sweep(&scratch, &file, &[]));
    let mut reports = fs::read_dir(scratch.path("out")).unwrap();
    let report = reports.find_map(|entry| {
        let path = entry.unwrap().path();
        path.join("results.json").exists().then_some(path)
    });
    let found = results(&report.unwrap());
    let runs = found["tuning"]["runs"].as_array().unwrap().iter();
    let names: Vec<&str> = runs.map(|run| run["run"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "narrow, small",
            "narrow, middle",
            "narrow, large",
            "wide, small",
            "wide, middle",
            "wide, large"
        ]
    );
}
