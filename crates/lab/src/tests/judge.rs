use super::*;
use crate::claims::*;

mod family;
mod line;

fn judge(test: Test, observations: &[Observation]) -> (Verdict, String) {
    judge_along(test, observations, &[])
}

/// Judges a claim about observations, given the planned runs and their lines.
fn judge_along(test: Test, observations: &[Observation], planned: &[Planned]) -> (Verdict, String) {
    let found = claim(test).judge(observations, planned);
    (found.verdict, found.because)
}

/// Returns the margin of a claim for the value of its run.
fn margin(test: Test, observations: &[Observation]) -> Option<String> {
    claim(test).judge(observations, &[]).margin
}

pub(super) fn claim(test: Test) -> Claim {
    Claim {
        says: "so".into(),
        source: "Table 1".into(),
        published: String::new(),
        test,
        primary: false,
    }
}

pub(super) fn lower(run: &str, than: &str) -> Test {
    Test::Lower(Compared {
        quantity: "valid_loss".into(),
        run: run.into(),
        than: than.into(),
        beyond: None,
        within: 0.0,
        by: By::Mean,
    })
}

/// Makes a run whose validation loss starts at 4 and falls by `step` every 100 tokens.
fn curve(run: &str, seed: u64, step: f64) -> Observation {
    let row = |i: u64| Row {
        step: i as usize,
        tokens: 100 * i,
        valid_loss: Some(4.0 - step * i as f64),
        ..Row::default()
    };
    Observation {
        run: run.into(),
        line: run.into(),
        seed: Some(seed),
        quantities: [("valid_loss".to_owned(), 4.0 - step * 10.0)].into(),
        rows: (0..=10).map(row).collect(),
        ..Observation::default()
    }
}

#[test]
fn runs_are_compared_seed_by_seed() {
    // The seeds differ much more than the runs, whose difference is always about 0.1.
    let mut found = seeds("new", "valid_loss", &[1.0, 2.0, 3.0]);
    found.extend(seeds("old", "valid_loss", &[1.11, 2.1, 3.09]));
    let (verdict, because) = judge(lower("new", "old"), &found);
    assert_eq!(verdict, Verdict::Holds, "{because}");
    assert_eq!(judge(lower("old", "new"), &found).0, Verdict::DoesNotHold);
    // Mean -0.1, s = 0.01: 4.303 · 0.01 / √3 = 0.0248.
    let expected = "new: 2.0000; old: 2.1000 nats; difference -0.1000 ± 0.0248 over 3 seeds, \
                    detectable 0.0310";
    assert_eq!(because, expected);
    let expected = "-0.1000 ± 0.0248 against old";
    assert_eq!(margin(lower("new", "old"), &found).unwrap(), expected);
}

#[test]
fn an_interval_excludes_or_includes_the_difference_that_the_paper_reports() {
    let mut found = seeds("new", "valid_loss", &[1.0, 2.0, 3.0]);
    found.extend(seeds("old", "valid_loss", &[1.11, 2.1, 3.09]));
    let reporting = |quantity: &str, new: f64, old: f64| {
        let mut found = found.clone();
        for observed in &mut found {
            let loss = observed.quantities["valid_loss"];
            observed.quantities.insert("seconds".into(), loss);
            let value = if observed.run == "new" { new } else { old };
            observed.published.insert(quantity.into(), value);
        }
        found
    };
    // The interval is -0.1 ± 0.0248.
    for (new, ends) in [
        (2.91, "includes the reported -0.0900"),
        (2.95, "excludes the reported -0.0500"),
    ] {
        let (_, because) = judge(lower("new", "old"), &reporting("valid_loss", new, 3.0));
        assert!(because.ends_with(&format!("; {ends}")), "{because}");
    }
    // Seconds on different machines are not comparable.
    let seconds = Test::Lower(Compared {
        quantity: "seconds".into(),
        run: "new".into(),
        than: "old".into(),
        beyond: None,
        within: 0.0,
        by: By::Mean,
    });
    let (_, because) = judge(seconds, &reporting("seconds", 2.0, 3.0));
    assert!(!because.contains("reported"), "{because}");
}

#[test]
fn by_seeds_one_failed_seed_does_not_outweigh_the_others() {
    let judge_by = |by, found: &[Observation]| {
        let test = Compared {
            quantity: "valid_loss".into(),
            run: "new".into(),
            than: "old".into(),
            beyond: None,
            within: 0.0,
            by,
        };
        let (lower, because) = judge(Test::Lower(test.clone()), found);
        (lower, judge(Test::Higher(test), found).0, because)
    };
    let mut found = seeds("old", "valid_loss", &[2.0; 8]);
    let one_failed = [1.9, 1.9, 1.9, 1.9, 1.9, 1.9, 1.9, 3.3];
    found.extend(seeds("new", "valid_loss", &one_failed));
    let (lower, higher, because) = judge_by(By::Mean, &found);
    assert_eq!((lower, higher), (Verdict::Undecided, Verdict::Undecided));
    assert!(!because.contains("sign test"), "{because}");
    // 2 (1 + 8) / 2⁸ = 0.0703.
    let (lower, _, because) = judge_by(By::Seeds, &found);
    assert_eq!(lower, Verdict::Undecided);
    assert!(
        because.ends_with("; lower in 7 of 8 seeds; sign test"),
        "{because}"
    );
    // In nine seeds, 2 (1 + 9) / 2⁹ = 0.0391.
    let mut found = seeds("old", "valid_loss", &[2.0; 9]);
    let nine = [1.9, 1.9, 1.9, 1.9, 1.9, 1.9, 1.9, 1.9, 3.3];
    found.extend(seeds("new", "valid_loss", &nine));
    let (lower, higher, _) = judge_by(By::Seeds, &found);
    assert_eq!((lower, higher), (Verdict::Holds, Verdict::DoesNotHold));
    let (lower, ..) = judge_by(By::Mean, &found);
    assert_eq!(lower, Verdict::Undecided);
}

#[test]
fn names_that_end_in_digits_are_set_apart_from_values_and_times_are_milliseconds() {
    let mut found = seeds("1 layer, rank 4", "step_time", &[0.0612, 0.0614]);
    found.extend(seeds("Table 4", "step_time", &[0.0508, 0.0512]));
    let test = Test::Higher(Compared {
        quantity: "step_time".into(),
        run: "1 layer, rank 4".into(),
        than: "Table 4".into(),
        beyond: None,
        within: 0.0,
        by: By::Mean,
    });
    let (verdict, because) = judge(test, &found);
    let expected = "1 layer, rank 4: 61.3; Table 4: 51.0 ms; difference +10 ± 1.3 over 2 seeds, detectable \
                    1.4";
    assert_eq!((verdict, because.as_str()), (Verdict::Holds, expected));
}

#[test]
fn memory_is_in_mib_or_where_it_is_large_in_gib() {
    let because = |unit: f64| {
        let mut found = seeds("RW", "peak_memory", &[1.5 * unit]);
        found.extend(seeds("LR", "peak_memory", &[0.5 * unit]));
        let (quantity, run, than) = ("peak_memory".into(), "RW".into(), "LR".into());
        judge(
            Test::Lower(Compared {
                quantity,
                run,
                than,
                beyond: None,
                within: 0.0,
                by: By::Mean,
            }),
            &found,
        )
        .1
    };
    let mebibytes = because(1_048_576.0);
    assert!(
        mebibytes.starts_with("RW: 1.5; LR: 0.5 MiB; "),
        "{mebibytes}"
    );
    let gibibytes = because(1_073_741_824.0);
    assert!(
        gibibytes.starts_with("RW: 1.50; LR: 0.50 GiB; "),
        "{gibibytes}"
    );
}

#[test]
fn a_difference_in_differences_is_judged_seed_by_seed() {
    // Growth lowers the loss by about 0.3 for one model and by about 0.1 for the other.
    let mut found = seeds("new, grown", "valid_loss", &[1.70, 1.81, 1.89]);
    found.extend(seeds("new", "valid_loss", &[2.0, 2.1, 2.2]));
    found.extend(seeds("old, grown", "valid_loss", &[2.0, 2.0, 2.0]));
    found.extend(seeds("old", "valid_loss", &[2.1, 2.1, 2.1]));
    let beyond = |run: &str, than: &str| {
        Test::Lower(Compared {
            quantity: "valid_loss".into(),
            run: "new, grown".into(),
            than: "new".into(),
            beyond: Some(Beyond {
                run: run.into(),
                than: than.into(),
            }),
            within: 0.0,
            by: By::Mean,
        })
    };
    let (verdict, because) = judge(beyond("old, grown", "old"), &found);
    // -0.20, -0.19 and -0.21.
    let expected = "new, grown − new: -0.3000; old, grown − old: -0.1000; difference -0.2000 ± 0.0248 over \
                    3 seeds, detectable 0.0310";
    assert_eq!((verdict, because.as_str()), (Verdict::Holds, expected));
    let expected = "-0.2000 ± 0.0248 against the difference of \"old, grown\" and \"old\"";
    assert_eq!(
        margin(beyond("old, grown", "old"), &found).unwrap(),
        expected
    );
    let (verdict, because) = judge(beyond("old, grown", "older"), &found);
    assert_eq!(
        (verdict, because.as_str()),
        (Verdict::NotTested, "older is missing")
    );
}

#[test]
fn a_difference_that_the_seeds_do_not_agree_on_is_undecided() {
    let mut found = seeds("new", "valid_loss", &[1.0, 1.0, 1.0]);
    found.extend(seeds("old", "valid_loss", &[1.3, 1.1, 0.95]));
    assert_eq!(judge(lower("new", "old"), &found).0, Verdict::Undecided);
}

#[test]
fn one_seed_and_missing_runs_test_nothing() {
    let mut found = seeds("new", "valid_loss", &[1.0]);
    let (verdict, because) = judge(lower("new", "old"), &found);
    assert_eq!(
        (verdict, because.as_str()),
        (Verdict::NotTested, "old is missing")
    );
    found.extend(seeds("old", "valid_loss", &[2.0]));
    let (verdict, because) = judge(lower("new", "old"), &found);
    assert_eq!(verdict, Verdict::NotTested);
    let expected = "new: 1.0000; old: 2.0000 nats; difference -1.0000; one seed cannot tell a \
                    difference from chance";
    assert_eq!(because, expected);
    let (_, because) = judge(lower("old", "new"), &found);
    assert!(because.contains("; difference +1.0000; "), "{because}");
}

#[test]
fn what_the_model_alone_decides_is_exact_with_any_seeds() {
    let mut found = seeds("new", "parameters", &[1e6]);
    found.extend(seeds("old", "parameters", &[2e6]));
    let test = Test::Lower(Compared {
        quantity: "parameters".into(),
        run: "new".into(),
        than: "old".into(),
        beyond: None,
        within: 0.0,
        by: By::Mean,
    });
    let expected = (Verdict::Holds, "new: 1M; old: 2M".into());
    assert_eq!(judge(test, &found), expected);
}

#[test]
fn tokens_are_exact_but_where_the_length_of_samples_is_learned() {
    let test = || {
        Test::Lower(Compared {
            quantity: "tokens".into(),
            run: "new".into(),
            than: "old".into(),
            beyond: None,
            within: 0.0,
            by: By::Mean,
        })
    };
    let mut found = seeds("new", "tokens", &[1e6]);
    found.extend(seeds("old", "tokens", &[2e6]));
    assert_eq!(judge(test(), &found).0, Verdict::Holds);
    found[0].quantities.insert("level".into(), 1.0);
    assert_eq!(judge(test(), &found).0, Verdict::NotTested);
}

#[test]
fn what_is_exact_needs_no_seeds() {
    let mut found = seeds("new", "parameters", &[1.0]);
    found.extend(seeds("old", "parameters", &[2.0]));
    for observation in &mut found {
        observation.seed = None;
    }
    let test = |run: &str, than: &str| {
        Test::Lower(Compared {
            quantity: "parameters".into(),
            run: run.into(),
            than: than.into(),
            beyond: None,
            within: 0.0,
            by: By::Mean,
        })
    };
    assert_eq!(judge(test("new", "old"), &found).0, Verdict::Holds);
    assert_eq!(judge(test("old", "new"), &found).0, Verdict::DoesNotHold);
}

#[test]
fn a_run_is_as_good_as_another_if_the_interval_ends_within_the_tolerance() {
    let mut found = seeds("new", "valid_loss", &[1.0, 2.0, 3.0]);
    found.extend(seeds("old", "valid_loss", &[1.01, 1.99, 3.0]));
    let test = |run: &str, than: &str, within: f64| {
        Test::Lower(Compared {
            quantity: "valid_loss".into(),
            run: run.into(),
            than: than.into(),
            beyond: None,
            within,
            by: By::Mean,
        })
    };
    // Mean 0, s = 0.01: the interval is ± 0.0248.
    assert_eq!(judge(test("new", "old", 0.0), &found).0, Verdict::Undecided);
    assert_eq!(
        judge(test("new", "old", 0.02), &found).0,
        Verdict::Undecided
    );
    let (verdict, because) = judge(test("new", "old", 0.03), &found);
    assert_eq!(verdict, Verdict::Holds, "{because}");
    assert!(because.ends_with("; tolerance 0.0300"), "{because}");
    let expected = "0.0000 ± 0.0248 against old, tolerance 0.0300";
    assert_eq!(margin(test("new", "old", 0.03), &found).unwrap(), expected);
    // A claim also holds for a run that is better by more than the tolerance, but not for one that is worse by more.
    found.extend(seeds("best", "valid_loss", &[0.5, 1.5, 2.51]));
    assert_eq!(judge(test("best", "old", 0.03), &found).0, Verdict::Holds);
    let (verdict, _) = judge(test("old", "best", 0.03), &found);
    assert_eq!(verdict, Verdict::DoesNotHold);
}

#[test]
fn a_run_that_lacks_a_seed_is_not_judged_by_the_others() {
    let mut found = seeds("new", "valid_loss", &[1.0, 2.0, 3.0]);
    found.extend(seeds("old", "valid_loss", &[1.11, 2.1, 3.09]));
    let planned = |seeds| {
        ["new", "old"].map(|name| Planned {
            name,
            line: name,
            seeds,
        })
    };
    assert_eq!(
        judge_along(lower("new", "old"), &found, &planned(3)).0,
        Verdict::Holds
    );
    let (verdict, because) = judge_along(lower("new", "old"), &found, &planned(4));
    assert_eq!(
        (verdict, &*because),
        (Verdict::NotTested, "new has only 3 of 4 seeds")
    );
    let bound = Test::AtMost(Bound {
        quantity: "valid_loss".into(),
        run: "old".into(),
        value: 9.0,
    });
    assert_eq!(
        judge_along(bound.clone(), &found, &planned(3)).0,
        Verdict::Holds
    );
    assert_eq!(
        judge_along(bound, &found, &planned(4)).0,
        Verdict::NotTested
    );
}

#[test]
fn seconds_that_were_not_kept_are_not_compared() {
    let found = [
        curve("a", 1, 1.0),
        curve("a", 2, 1.0),
        curve("b", 1, 0.5),
        curve("b", 2, 0.5),
    ];
    let test = Test::Sooner(Sooner {
        axis: Axis::Seconds,
        run: "a".into(),
        than: "b".into(),
        loss: None,
    });
    let (verdict, because) = judge(test, &found);
    assert_eq!(verdict, Verdict::NotTested);
    let remedy = "was not measured with seed 1; runs that are trained beside others (`--jobs`) have no times: repeat with \
                  `--force`, without `--jobs`";
    assert!(because.ends_with(remedy), "{because}");
    let mut found = seeds("a", "step_time", &[1.0, 2.0, 3.0]);
    found[1].quantities.clear();
    let below = Test::AtMost(Bound {
        quantity: "step_time".into(),
        run: "a".into(),
        value: 9.0,
    });
    let (_, because) = judge(below, &found);
    assert!(
        because.starts_with("step time of a was not measured in 1 of 3 seeds; runs"),
        "{because}"
    );
}

#[test]
fn bounds_ask_every_seed() {
    let found = seeds("copy", "valid_accuracy", &[0.995, 0.97]);
    let test = |value| {
        Test::AtLeast(Bound {
            quantity: "valid_accuracy".into(),
            run: "copy".into(),
            value,
        })
    };
    assert_eq!(judge(test(0.96), &found).0, Verdict::Holds);
    assert_eq!(judge(test(0.99), &found).0, Verdict::Undecided);
    let (verdict, because) = judge(test(0.999), &found);
    assert_eq!(verdict, Verdict::DoesNotHold);
    assert_eq!(because, "99.5, 97.0 %; expected at least 99.9");
    let between = |low, high| {
        Test::Between(Between {
            quantity: "valid_accuracy".into(),
            run: "copy".into(),
            low,
            high,
        })
    };
    assert_eq!(judge(between(0.9, 1.0), &found).0, Verdict::Holds);
    assert_eq!(judge(between(0.98, 1.0), &found).0, Verdict::Undecided);
    // One seed decides nothing about trained quantities.
    let (verdict, because) = judge(between(0.9, 1.0), &found[..1]);
    assert_eq!(verdict, Verdict::NotTested);
    assert!(
        because.ends_with("one seed cannot tell a difference from chance"),
        "{because}"
    );
}

#[test]
fn runs_are_close_when_the_interval_is_within() {
    let mut found = seeds("a", "valid_loss", &[1.0, 1.01, 0.99]);
    found.extend(seeds("b", "valid_loss", &[1.0, 1.005, 0.995]));
    let test = |within| {
        Test::Close(Close {
            quantity: "valid_loss".into(),
            run: "a".into(),
            than: "b".into(),
            than_quantity: None,
            within,
        })
    };
    let (verdict, because) = judge(test(0.05), &found);
    assert_eq!(verdict, Verdict::Holds);
    assert!(because.ends_with("; tolerance 0.0500"), "{because}");
    let beside = margin(test(0.05), &found).unwrap();
    assert!(beside.ends_with(" against b, tolerance 0.0500"), "{beside}");
    assert_eq!(judge(test(0.01), &found).0, Verdict::Undecided);
    found.extend(seeds("c", "valid_loss", &[2.0, 2.01, 1.99]));
    let far = Test::Close(Close {
        quantity: "valid_loss".into(),
        run: "a".into(),
        than: "c".into(),
        than_quantity: None,
        within: 0.05,
    });
    assert_eq!(judge(far, &found).0, Verdict::DoesNotHold);
}

#[test]
fn values_and_ratios_are_set_beside_what_was_printed() {
    let mut found = seeds("a", "parameters", &[300.0]);
    found.extend(seeds("b", "parameters", &[400.0]));
    let ratio = |value| {
        Test::Ratio(Ratio {
            quantity: "parameters".into(),
            run: "a".into(),
            than: "b".into(),
            value,
            within: 0.01,
        })
    };
    let expected = "a: 300; b: 400; 0.750 times, expected 0.750, tolerance 0.010";
    assert_eq!(
        judge(ratio(0.75), &found),
        (Verdict::Holds, expected.into())
    );
    assert_eq!(judge(ratio(0.5), &found).0, Verdict::DoesNotHold);
    // Over seeds that differ, the interval decides: the mean is 1.01, the half-width 0.0248.
    let mut uneven = seeds("slow", "x", &[1.0, 2.02, 3.06]);
    uneven.extend(seeds("fast", "x", &[1.0, 2.0, 3.0]));
    let times = |value, within| {
        Test::Ratio(Ratio {
            quantity: "x".into(),
            run: "slow".into(),
            than: "fast".into(),
            value,
            within,
        })
    };
    let (verdict, because) = judge(times(1.01, 0.03), &uneven);
    assert_eq!(verdict, Verdict::Holds, "{because}");
    assert!(because.contains("1.010 ± 0.025 times"), "{because}");
    assert_eq!(judge(times(1.01, 0.01), &uneven).0, Verdict::Undecided);
    assert_eq!(judge(times(1.1, 0.01), &uneven).0, Verdict::DoesNotHold);
    let is = |value| {
        Test::Is(Is {
            quantity: "parameters".into(),
            run: "a".into(),
            value,
            within: 1.0,
        })
    };
    let expected = "300, expected 300, tolerance 1";
    assert_eq!(judge(is(300.0), &found), (Verdict::Holds, expected.into()));
    assert_eq!(margin(is(300.0), &found).unwrap(), "tolerance 1");
    assert_eq!(judge(is(305.0), &found).0, Verdict::DoesNotHold);
    let (verdict, because) = judge(Test::NotTested("needs images".into()), &found);
    assert_eq!(
        (verdict, because.as_str()),
        (Verdict::NotTested, "needs images")
    );
}

/// Counts do not depend on seeds, so a seed that failed does not matter.
#[test]
fn a_missing_seed_does_not_matter_to_counts() {
    let of = |run: &str, seed: u64, parameters: f64| {
        let mut found = seeds(run, "parameters", &[parameters]);
        found[0].seed = Some(seed);
        found[0].quantities.insert("valid_loss".into(), 2.0);
        found
    };
    // Each run lacks a different seed.
    let found = [of("a", 1, 300.0), of("b", 2, 400.0)].concat();
    let planned = ["a", "b"].map(|name| Planned {
        name,
        line: name,
        seeds: 2,
    });
    let judged = |test: Test| {
        let found = claim(test).judge(&found, &planned);
        (found.verdict, found.because)
    };
    let lower = |quantity: &str| {
        Test::Lower(Compared {
            quantity: quantity.into(),
            run: "a".into(),
            than: "b".into(),
            beyond: None,
            within: 0.0,
            by: By::Mean,
        })
    };
    assert_eq!(judged(lower("parameters")).0, Verdict::Holds);
    let expected = (Verdict::NotTested, "a has only 1 of 2 seeds".to_owned());
    assert_eq!(judged(lower("valid_loss")), expected);
    let ratio = Test::Ratio(Ratio {
        quantity: "parameters".into(),
        run: "a".into(),
        than: "b".into(),
        value: 0.75,
        within: 0.01,
    });
    assert_eq!(judged(ratio).0, Verdict::Holds);
    let least = Test::AtLeast(Bound {
        quantity: "parameters".into(),
        run: "a".into(),
        value: 301.0,
    });
    assert_eq!(
        judged(least),
        (
            Verdict::DoesNotHold,
            "300; expected at least 301".to_owned()
        )
    );
}
