use super::*;

fn sweep(over: &[&str]) -> Sweep {
    Sweep {
        over: over.iter().map(|text| text.parse().unwrap()).collect(),
        seeds: vec![1],
        halving: None,
        widen: 0,
        tuned: false,
        rule: None,
    }
}

fn points(over: &[&str]) -> Vec<String> {
    let sweep = sweep(over);
    sweep.check().unwrap();
    let points = sweep.points();
    points
        .iter()
        .map(|point| sweep.set(point).join(" "))
        .collect()
}

#[test]
fn lists_and_ranges_have_the_values_that_they_say() {
    assert_eq!(
        points(&["train.batch=8,16"]),
        ["train.batch=8", "train.batch=16"]
    );
    assert_eq!(points(&["a=0..0.3:4"]), ["a=0", "a=0.1", "a=0.2", "a=0.3"]);
    assert_eq!(
        points(&["a=1e-4..1e-1:log:4"]),
        ["a=0.0001", "a=0.001", "a=0.01", "a=0.1"]
    );
    assert_eq!(points(&["a=1..10:log:3"]), ["a=1", "a=3.16", "a=10"]);
    assert_eq!(
        points(&["model.connection=None,PerLayer(Laurel(weights: Raw, per_dimension: true))"]),
        [
            "model.connection=None",
            "model.connection=PerLayer(Laurel(weights: Raw, per_dimension: true))"
        ]
    );
}

#[test]
fn large_whole_numbers_stay_exact_or_are_refused() {
    let exact = ["a=9007199254740993", "a=18446744073709551615"];
    assert_eq!(points(&["a=9007199254740993,18446744073709551615"]), exact);
    let of_file = |text: &str| -> Sweep { ron::from_str(text).unwrap() };
    let inexact = of_file(r#"(over: [(field: "a", values: Grid([1, 9007199254740993]))])"#);
    let error = inexact.check().unwrap_err().to_string();
    assert!(
        error.contains("are not exact; write it in quotes"),
        "{error}"
    );
    let quoted = of_file(r#"(over: [(field: "a", values: Grid([1, "9007199254740993"]))])"#);
    quoted.check().unwrap();
}

/// The ends of a range are exactly as written, and all other values are between them.
#[test]
fn a_range_has_its_own_ends() {
    assert_eq!(
        points(&["a=0.9..0.9999:log:3"]),
        ["a=0.9", "a=0.949", "a=0.9999"]
    );
    assert_eq!(
        points(&["a=1.2345e-3..9.8765e-3:log:3"]),
        ["a=0.0012345", "a=0.00349", "a=0.0098765"]
    );
    // With three digits, the second value would equal the first or the last.
    assert_eq!(
        points(&["a=1..1.001:log:3"]),
        ["a=1", "a=1.0005", "a=1.001"]
    );
    assert_eq!(
        points(&["a=0.99951..0.99999:log:3"]),
        ["a=0.99951", "a=0.99975", "a=0.99999"]
    );
    let third = "0.3333333333333333";
    assert_eq!(
        points(&[&format!("a=0..{third}:3")])[2],
        format!("a={third}")
    );
    assert_eq!(points(&["a=-1e308..1e308:3"])[1], "a=0");
    let wide = points(&["a=1e-300..1e300:log:3"]);
    assert_eq!(wide[1], "a=1", "{wide:?}");
    let value = |point: &String| point.strip_prefix("a=").unwrap().parse::<f64>().unwrap();
    for (from, to) in [
        (0.99, 0.9999),
        (1.0, 1.0001),
        (0.00123456, 0.00123457),
        (1e-300, 1e300),
    ] {
        for kind in ["log", "log-uniform", "linear"] {
            let values = points(&[&format!("a={from}..{to}:{kind}:40")]);
            let mut values: Vec<f64> = values.iter().map(value).collect();
            if kind == "log-uniform" {
                values.sort_by(f64::total_cmp);
                assert!(values[0] >= from && values[39] <= to, "{values:?}");
            } else {
                assert_eq!((values[0], values[39]), (from, to));
            }
            assert!(values.is_sorted_by(|a, b| a < b), "{kind} {values:?}");
        }
    }
}

#[test]
fn a_comma_in_quotes_is_a_part_of_a_value() {
    let values = r#"a="b,c","d\",e",(f: "g)"),h"#;
    assert_eq!(
        points(&[values]),
        [r#"a="b,c""#, r#"a="d\",e""#, r#"a=(f: "g)")"#, "a=h"]
    );
}

#[test]
fn points_are_all_combinations_and_draws_are_drawn_together() {
    assert_eq!(
        points(&["a=1,2", "b=3,4"]),
        ["a=1 b=3", "a=1 b=4", "a=2 b=3", "a=2 b=4"]
    );
    let drawn = points(&["a=1..100:log-uniform:5", "c=0,1", "b=1..100:log-uniform:5"]);
    assert_eq!(drawn.len(), 10);
    let value = |point: &str, name: &str| -> f64 {
        let of = |part: &str| {
            Some(
                part.split_once('=')
                    .filter(|(n, _)| *n == name)?
                    .1
                    .to_owned(),
            )
        };
        point.split(' ').find_map(of).unwrap().parse().unwrap()
    };
    for point in &drawn {
        let (a, b) = (value(point, "a"), value(point, "b"));
        assert!(
            (1.0..=100.0).contains(&a) && (1.0..=100.0).contains(&b),
            "{point}"
        );
        assert_ne!(a, b);
    }
    // Every call draws the same values.
    assert_eq!(
        drawn,
        points(&["a=1..100:log-uniform:5", "c=0,1", "b=1..100:log-uniform:5"])
    );
}

#[test]
fn one_value_can_go_to_several_fields() {
    assert_eq!(points(&["a,b=1,2"]), ["a=1 b=1", "a=2 b=2"]);
}

#[test]
fn the_name_of_a_swept_field_is_its_path_within_train_or_model() {
    let names = [
        "train.learning_rate",
        "train.optimizer.learning_rate",
        "train.warmup,train.steps",
        "steps",
    ]
    .map(|field| sweep(&[&format!("{field}=1,2")]).over[0].name());
    let expected = [
        "learning rate",
        "optimizer learning rate",
        "warmup",
        "steps",
    ];
    assert_eq!(names, expected);
}

#[test]
fn what_cannot_be_swept_is_named() {
    for (text, says) in [
        ("train.batch", "has no `=`"),
        ("a=", "has no values"),
        ("a=1e-3,", "an empty value at position 2 of 2"),
        ("a=1,,2", "an empty value at position 2 of 3"),
        ("a=,1", "an empty value at position 1 of 2"),
        ("a=,", "an empty value at position 1 of 2"),
        ("a,,b=1", "an empty path"),
        ("a,=1", "an empty path"),
        ("a=1..1.0000000000000002:log:3", "for 3 different numbers"),
        ("a=1..1.0000000000000002:5", "for 5 different numbers"),
        ("a=1..2", "without the number of its values"),
        ("a=1..2:cubic:3", "`cubic`"),
        ("a=1..x:3", "`x`, which is not a number"),
        ("a=2..1:3", "must rise"),
        ("a=0..1:log:3", "start above 0"),
        ("a=1..2:1", "at least 2"),
        ("a=1..2:log:18446744073709551615", "at most 10000"),
        ("=1,2", "name a field"),
        ("train.seed=1,2", "--seeds"),
        ("data.tokenizer=Chars,Bytes", "different validation data"),
        ("train.validate_batches=1,2", "different validation data"),
    ] {
        let error = text.parse::<Swept>().unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
    let many = sweep(&["a=1..2:200", "b=1..2:200"]).check().unwrap_err();
    assert!(many.problem.contains("40000 points"), "{many}");
    let field = sweep(&["a=1,2", "a=3,4"]).check().unwrap_err();
    assert!(field.problem.contains("`a` twice"), "{field}");
    let twice = sweep(&["a=0.01,3,1e-2"]).check().unwrap_err();
    assert!(twice.problem.contains("a 0.01 twice"), "{twice}");
    let apart = sweep(&["a=1..2:log-uniform:3", "b=1..2:log-uniform:4"]);
    assert!(
        apart
            .check()
            .unwrap_err()
            .problem
            .contains("different counts")
    );
}

#[test]
fn a_best_value_at_an_end_of_its_range_is_an_edge() {
    let edge = |text: &str, value: f64| {
        let swept: Swept = text.parse().unwrap();
        let tried = swept.values.list(&mut StdRng::seed_from_u64(DRAWS));
        swept.edge(&tried, value)
    };
    assert_eq!(edge("a=1,2,4", 1.0), Some("lower"));
    assert_eq!(edge("a=1,2,4", 2.0), None);
    assert_eq!(edge("a=1..16:log:5", 16.0), Some("upper"));
    assert_eq!(edge("a=7", 7.0), None);
    // Random draws hardly ever reach the ends of their range, so its first and last tenths count as edges.
    assert_eq!(edge("a=1..1024:log-uniform:5", 1.9), Some("lower"));
    assert_eq!(edge("a=1..1024:log-uniform:5", 2.1), None);
    assert_eq!(edge("a=1..1024:log-uniform:5", 600.0), Some("upper"));
}

/// Returns the next points of a run that has tried `tried`, the best first.
fn wider(over: &[&str], widen: usize, tried: &[&[f64]]) -> Vec<Vec<f64>> {
    let sweep = Sweep {
        widen,
        ..sweep(over)
    };
    sweep.check().unwrap();
    let value = |point: &&[f64]| point.iter().copied().map(Value::Number).collect();
    let tried: Vec<Vec<Value>> = tried.iter().map(value).collect();
    let all: Vec<&[Value]> = tried.iter().map(|values| &**values).collect();
    let number = |value: &Value| value.to_string().parse::<f64>().unwrap();
    let points = sweep.wider(&all, &tried[0]).into_iter();
    points
        .map(|point| point.0.iter().map(number).collect())
        .collect()
}

#[test]
fn a_range_is_widened_at_the_end_with_the_best_value() {
    let over = ["a=6e-3..2.4e-2:log:3"];
    let none: [&[f64]; 0] = [];
    assert_eq!(wider(&over, 2, &[&[0.024], &[0.006], &[0.012]]), [[0.048]]);
    assert_eq!(wider(&over, 2, &[&[0.006], &[0.012], &[0.024]]), [[0.003]]);
    assert_eq!(wider(&over, 2, &[&[0.012], &[0.006], &[0.024]]), none);
    // The second step, and the end of the steps.
    let tried: [&[f64]; 4] = [&[0.048], &[0.006], &[0.012], &[0.024]];
    assert_eq!(wider(&over, 2, &tried), [[0.096]]);
    assert_eq!(wider(&over, 1, &tried), none);
    assert_eq!(wider(&over, 0, &[&[0.024], &[0.006], &[0.012]]), none);
    // A value between the ends is the best, although the range was widened.
    assert_eq!(
        wider(&over, 2, &[&[0.024], &[0.006], &[0.012], &[0.048]]),
        none
    );
}

#[test]
fn a_wider_range_keeps_all_combinations_with_other_fields() {
    let over = ["a=1..2:log:2", "b=8,16"];
    let tried: [&[f64]; 4] = [&[2.0, 16.0], &[1.0, 8.0], &[1.0, 16.0], &[2.0, 8.0]];
    assert_eq!(wider(&over, 1, &tried), [[4.0, 16.0], [4.0, 8.0]]);
    // Both ends move at a corner, and the new corner is tried too.
    let over = ["a=1..2:log:2", "b=8..16:log:2"];
    let mut found = wider(&over, 1, &tried);
    found.sort_by(|a, b| a.partial_cmp(b).unwrap());
    assert_eq!(
        found,
        [
            [1.0, 32.0],
            [2.0, 32.0],
            [4.0, 8.0],
            [4.0, 16.0],
            [4.0, 32.0]
        ]
    );
}

#[test]
fn values_beyond_a_narrow_range_stay_apart() {
    let swept: Swept = "a=1..1.0004:log:3".parse().unwrap();
    let mut values = swept.log_range().unwrap().beyond(2);
    values.sort_by(f64::total_cmp);
    assert!(values.is_sorted_by(|a, b| a < b), "{values:?}");
    assert!(values[1] < 1.0 && values[2] > 1.0004, "{values:?}");
    // A number that cannot be represented ends the range.
    let swept: Swept = "a=1e200..1e300:log:2".parse().unwrap();
    let values = swept.log_range().unwrap().beyond(2);
    assert_eq!(values, [1e100, 1.0]);
}

#[test]
fn the_points_beyond_a_grid_are_all_that_a_run_may_reach() {
    let sweep = Sweep {
        widen: 2,
        ..sweep(&["a=1..2:log:2", "b=8,16"])
    };
    let mut found: Vec<String> = sweep
        .possible()
        .iter()
        .map(|point| sweep.set(point).join(" "))
        .collect();
    found.sort();
    let expected: Vec<String> = ["0.25", "0.5", "4", "8"]
        .iter()
        .flat_map(|a| ["16", "8"].map(|b| format!("a={a} b={b}")))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn a_sweep_that_cannot_be_widened_is_refused() {
    let problem = |widen, over: &[&str], halving| {
        let sweep = Sweep {
            widen,
            halving,
            ..sweep(over)
        };
        let error = sweep.check().unwrap_err();
        assert_eq!(error.field, "sweep.widen");
        error.problem
    };
    let log = ["a=1..2:log:2"];
    assert!(problem(17, &log, None).contains("at most 16"));
    assert!(problem(1, &["a=1..2:2"], None).contains("no field has a logarithmic range"));
    assert!(problem(1, &log, Some(Halving::default())).contains("leave one out"));
}

#[test]
fn an_assignment_to_a_swept_field_is_found() {
    let sweep = sweep(&["train.learning_rate=1,2", "model.connection=None"]);
    assert!(sweep.varies("train.learning_rate=3"));
    assert!(sweep.varies("model.connection.PerLayer=3"));
    assert!(sweep.varies("model=Gpt2()"));
    assert!(!sweep.varies("train.learning_rates=3"));
    assert!(!sweep.varies("model.layers.0.dropout=0.1"));
    let sweep = super::tests::sweep(&["train.tokens=1000,2000"]);
    assert!(sweep.varies("train.steps=3") && sweep.varies("train.tokens = 3"));
}

#[test]
fn a_field_that_is_swept_in_every_layer_is_swept_in_each() {
    let sweep = sweep(&["model.dropout=0,0.1"]);
    assert!(sweep.varies("model.layers.0.dropout=0.2"));
    assert!(sweep.varies("model.layers.1=Gpt2()"));
    assert!(!sweep.varies("model.layers.0.width=8"));
    assert!(!sweep.varies("model.connection=None"));
}

#[test]
fn rungs_end_at_validations_and_are_merged_if_these_are_the_same() {
    let train = |validate_every| TrainConfig {
        steps: 60,
        validate_every,
        ..TrainConfig::default()
    };
    let steps = |validate_every| -> Vec<usize> {
        let train = train(validate_every);
        let shares = Halving::default().shares(&[&train]);
        shares.iter().map(|share| until(&train, *share)).collect()
    };
    assert_eq!(steps(5), [15, 30, 60]);
    assert_eq!(steps(20), [20, 40, 60]);
    assert_eq!(steps(30), [30, 60]);
    assert_eq!(steps(100), [60]);
}

#[test]
fn rungs_grow_to_the_whole() {
    let halving = Halving::default();
    let train = TrainConfig {
        validate_every: 1,
        ..TrainConfig::default()
    };
    assert_eq!(halving.shares(&[&train]), [0.25, 0.5, 1.0]);
    assert_eq!([8, 5, 1].map(|count| halving.survivors(count)), [4, 3, 1]);
}
