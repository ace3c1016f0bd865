use super::*;
use crate::claims::*;

fn judge(test: Test, observations: &[Observation]) -> (Verdict, String) {
    judge_along(test, observations, &[])
}

/// Judges a claim about observations, given the planned runs and their lines.
fn judge_along(test: Test, observations: &[Observation], planned: &[Planned]) -> (Verdict, String) {
    let found = claim(test).judge(observations, planned);
    (found.verdict, found.because)
}

/// The threshold of a claim for the value of its run.
fn margin(test: Test, observations: &[Observation]) -> Option<String> {
    claim(test).judge(observations, &[]).margin
}

fn claim(test: Test) -> Claim {
    Claim {
        says: "so".into(),
        source: "Table 1".into(),
        published: String::new(),
        test,
    }
}

fn lower(run: &str, than: &str) -> Test {
    Test::Lower(Compared {
        quantity: "valid_loss".into(),
        run: run.into(),
        than: than.into(),
        beyond: None,
        within: 0.0,
    })
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
    let expected = "new: 2.0000; old: 2.1000 nats/token; difference -0.1000 ± 0.0248 over 3 seeds, \
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
    // Seconds of another machine do not compare.
    let seconds = Test::Lower(Compared {
        quantity: "seconds".into(),
        run: "new".into(),
        than: "old".into(),
        beyond: None,
        within: 0.0,
    });
    let (_, because) = judge(seconds, &reporting("seconds", 2.0, 3.0));
    assert!(!because.contains("reported"), "{because}");
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
        })
    };
    let (verdict, because) = judge(beyond("old, grown", "old"), &found);
    // -0.20, -0.19 and -0.21.
    let expected = "new, grown − new: -0.3000; old, grown − old: -0.1000; difference -0.2000 ± 0.0248 over \
                    3 seeds, detectable 0.0310";
    assert_eq!((verdict, because.as_str()), (Verdict::Holds, expected));
    let expected = "-0.2000 ± 0.0248 against that of old, grown and old";
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
    let expected = "new: 1.0000; old: 2.0000 nats/token; difference -1.0000; one seed cannot tell a \
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
        })
    };
    assert_eq!(judge(test("new", "old"), &found).0, Verdict::Holds);
    assert_eq!(judge(test("old", "new"), &found).0, Verdict::DoesNotHold);
}

/// Observations of a line: at each x, a run called `line, X`.
fn line(values: &[(f64, [f64; 3])]) -> Vec<Observation> {
    let run = |(x, losses): &(f64, [f64; 3])| {
        let mut found = seeds(&format!("line, {x}"), "valid_loss", losses);
        for observation in &mut found {
            observation.line = "line".into();
            observation.quantities.insert("size".into(), *x);
        }
        found
    };
    values.iter().flat_map(run).collect()
}

fn falls() -> Test {
    Test::Falls(Falls {
        quantity: "valid_loss".into(),
        along: "size".into(),
        line: "line".into(),
    })
}

#[test]
fn a_loss_falls_along_a_line_by_its_slope_for_each_doubling() {
    let found = line(&[
        (1.0, [3.0, 3.1, 3.2]),
        (2.0, [2.9, 3.0, 3.1]),
        (4.0, [2.8, 2.9, 3.01]),
    ]);
    let (verdict, because) = judge(falls(), &found);
    assert_eq!(verdict, Verdict::Holds, "{because}");
    let expected =
        "-0.0983 ± 0.0072 nats/token for each doubling over 3 seeds; 6 of 6 steps lower the value";
    assert_eq!(because, expected);
    // A fourth seed with only one size changes nothing.
    let mut going_on = found.clone();
    going_on.push(Observation {
        seed: Some(4),
        ..found[0].clone()
    });
    assert_eq!(judge(falls(), &going_on).1, expected);
    let rising: Vec<_> = found
        .into_iter()
        .map(|mut observation| {
            *observation.quantities.get_mut("valid_loss").unwrap() *= -1.0;
            observation
        })
        .collect();
    assert_eq!(judge(falls(), &rising).0, Verdict::DoesNotHold);
}

#[test]
fn a_loss_that_rises_between_two_sizes_does_not_fall_along_the_line() {
    let found = line(&[
        (1.0, [3.0, 3.1, 3.2]),
        (2.0, [2.0, 2.1, 2.2]),
        (4.0, [2.1, 2.0, 2.3]),
        (8.0, [1.0, 1.1, 1.2]),
    ]);
    let (verdict, because) = judge(falls(), &found);
    assert_eq!(verdict, Verdict::Undecided, "{because}");
    assert!(because.ends_with("; it rises from 2 to 4"), "{because}");
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
    // Better by more than the tolerance holds too, and worse by more does not.
    found.extend(seeds("best", "valid_loss", &[0.5, 1.5, 2.51]));
    assert_eq!(judge(test("best", "old", 0.03), &found).0, Verdict::Holds);
    let (verdict, _) = judge(test("old", "best", 0.03), &found);
    assert_eq!(verdict, Verdict::DoesNotHold);
}

#[test]
fn a_line_is_below_another_where_both_have_points() {
    let of = |name: &str, values: &[(f64, [f64; 3])]| {
        let mut found = line(values);
        for observation in &mut found {
            observation.line = name.into();
            observation.run = observation.run.replace("line", name);
        }
        found
    };
    // Over the logarithm, the old line is straight: 3.0, 2.5 and 2.0 at 1, 2 and 4.
    let old = of("old", &[(1.0, [3.0, 3.1, 3.2]), (4.0, [2.0, 2.1, 2.2])]);
    let new = of(
        "new",
        &[(0.5, [9.0; 3]), (2.0, [2.4, 2.5, 2.61]), (8.0, [9.0; 3])],
    );
    let both = [old, new].concat();
    let test = |line: &str, than: &str| {
        Test::Below(Below {
            quantity: "valid_loss".into(),
            along: "size".into(),
            line: line.into(),
            than: than.into(),
        })
    };
    let (verdict, because) = judge(test("new", "old"), &both);
    assert_eq!(verdict, Verdict::Holds, "{because}");
    assert!(
        because.starts_with("-0.0967 ± 0.0143 nats/token over 3 seeds")
            && because.ends_with("; -0.0967 ± 0.0143 at 2"),
        "{because}"
    );
    // Both points of the old line are below the new one, which is high at its ends.
    assert_eq!(judge(test("old", "new"), &both).0, Verdict::Holds);
    // With points on both sides, the mean does not count.
    let mixed = of("mixed", &[(1.5, [2.9, 3.0, 3.1]), (3.0, [1.0, 1.1, 1.2])]);
    let (verdict, because) = judge(test("mixed", "old"), &[both.clone(), mixed].concat());
    assert_eq!(verdict, Verdict::Undecided, "{because}");
    assert!(because.ends_with("on both sides"), "{because}");
    let far = of("far", &[(16.0, [1.0; 3])]);
    let (verdict, because) = judge(test("far", "old"), &[both, far].concat());
    assert_eq!(verdict, Verdict::NotTested);
    assert!(because.contains("no run of far"), "{because}");
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
    });
    let (verdict, because) = judge(test, &found);
    assert_eq!(verdict, Verdict::NotTested);
    assert!(because.contains("was not measured"), "{because}");
}

#[test]
fn a_line_of_which_a_run_is_missing_is_not_tested() {
    let found = line(&[(1.0, [3.0, 3.1, 3.2]), (2.0, [2.9, 3.0, 3.1])]);
    let planned = [found[0].run.as_str(), found[3].run.as_str(), "largest"];
    let lines = planned.map(|name| Planned {
        name,
        line: "line",
        seeds: 3,
    });
    assert_eq!(judge_along(falls(), &found, &lines[..2]).0, Verdict::Holds);
    let (verdict, because) = judge_along(falls(), &found, &lines);
    assert_eq!(
        (verdict, because.as_str()),
        (Verdict::NotTested, "largest is missing")
    );
}

#[test]
fn a_transfer_costs_what_the_other_lines_best_value_loses() {
    // Each line has its loss at the rates 1, 2 and 4, for two seeds.
    let line = |name: &str, losses: [[f64; 2]; 3]| {
        let rates = [1.0, 2.0, 4.0].into_iter().zip(losses);
        rates
            .flat_map(|(rate, losses)| {
                let mut found = seeds(&format!("{name}, {rate}"), "valid_loss", &losses);
                for observation in &mut found {
                    observation.line = name.into();
                    observation.quantities.insert("rate".into(), rate);
                }
                found
            })
            .collect::<Vec<_>>()
    };
    let mut found = line("narrow", [[3.0, 3.0], [2.0, 2.0], [2.5, 2.5]]);
    found.extend(line("wide", [[2.0, 2.0], [2.5, 2.52], [9.0, 9.0]]));
    found.extend(line("wide with", [[2.5, 2.5], [1.9, 1.92], [2.6, 2.6]]));
    let test = |to: &str, than: &str| {
        Test::Transfers(Transfers {
            quantity: "valid_loss".into(),
            along: "rate".into(),
            from: "narrow".into(),
            to: to.into(),
            than: Lines {
                from: "narrow".into(),
                to: than.into(),
            },
        })
    };
    let (verdict, because) = judge(test("wide with", "wide"), &found);
    // Nothing against 0.5 and 0.52; 12.706 · 0.01414 / √2 = 0.1271.
    let expected = "from narrow to wide with: best rate 2.00 and 2.00, cost 0.0000 nats/token; from narrow \
                    to wide: best rate 2.00 and 1.00 (an edge), cost 0.5100 nats/token; difference -0.5100 ± \
                    0.1271 over 2 seeds, detectable";
    assert!(because.starts_with(expected), "{because}");
    assert_eq!(verdict, Verdict::Holds);
    assert_eq!(
        judge(test("wide", "wide with"), &found).0,
        Verdict::DoesNotHold
    );
    let (verdict, because) = judge(test("wide", "wider"), &found);
    assert_eq!(
        (verdict, because.as_str()),
        (Verdict::NotTested, "wider is missing")
    );
    // Each seed of `wide` is lucky at another rate. The choice for a seed does not see that seed.
    let mut lucky = line("narrow", [[3.0, 3.0], [2.0, 2.0], [2.5, 2.5]]);
    lucky.extend(line("wide", [[2.0, 2.5], [9.0, 9.0], [2.5, 2.0]]));
    lucky.extend(line("wide with", [[2.5, 2.5], [2.0, 2.0], [2.5, 2.5]]));
    let (_, because) = judge(test("wide with", "wide"), &lucky);
    assert!(because.contains("cost 6.5000"), "{because}");
}

#[test]
fn an_exponent_is_that_of_the_power_law() {
    // The line bends in the same way for all seeds, so more seeds do not fix its slope better.
    let at = |x: f64, bend: f64| (x, [1.0, 1.01, 0.99].map(|noise| bend * noise * x.powf(0.5)));
    let found = line(&[at(1.0, 1.0), at(10.0, 1.05), at(100.0, 1.0)]);
    let test = |low, high| {
        Test::Exponent(Exponent {
            quantity: "valid_loss".into(),
            along: "size".into(),
            line: "line".into(),
            low,
            high,
        })
    };
    let again = found.iter().cloned().map(|found| Observation {
        seed: found.seed.map(|seed| seed + 10),
        ..found
    });
    let twice: Vec<_> = found.iter().cloned().chain(again).collect();
    let (verdict, because) = judge(test(0.3, 0.7), &twice);
    assert_eq!(verdict, Verdict::Holds);
    assert!(
        because.starts_with("exponent 0.500 ± 0.16 over 3 sizes, "),
        "{because}"
    );
    assert_eq!(judge(test(0.5, 0.55), &twice).0, Verdict::Undecided);
    assert_eq!(judge(test(0.7, 0.8), &twice).0, Verdict::DoesNotHold);
    let first = found[0].seed;
    let alone: Vec<_> = found
        .into_iter()
        .filter(|found| found.seed == first)
        .collect();
    assert_eq!(judge(test(0.3, 0.7), &alone).0, Verdict::NotTested);
}

/// A run whose validation loss starts at 4 and falls by `step` every 100 tokens.
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
fn a_run_is_sooner_by_where_it_reaches_the_last_loss_of_the_other() {
    let test = |run: &str, than: &str| {
        Test::Sooner(Sooner {
            axis: Axis::Tokens,
            run: run.into(),
            than: than.into(),
        })
    };
    let found: Vec<_> = [1, 2, 3]
        .into_iter()
        .flat_map(|seed| {
            let noise = 0.001 * seed as f64;
            [curve("fast", seed, 0.16 + noise), curve("slow", seed, 0.1)]
        })
        .collect();
    // The slow run ends at 3, which the fast run reaches after 1/0.16 = 6.2 of its ten rows.
    assert_eq!(found[0].reaches(Axis::Tokens, 3.0).unwrap().round(), 621.0);
    let (verdict, because) = judge(test("fast", "slow"), &found);
    assert_eq!(verdict, Verdict::Holds);
    assert!(because.starts_with("after 61.7 ± "), "{because}");
    // Where a run never reaches the loss, the seeds are counted: p = 2 / 2³ is not enough, 2 / 2⁸ is.
    let never = claim(test("slow", "fast")).judge(&found, &[]);
    assert_eq!(never.verdict, Verdict::Undecided);
    assert!((never.p.unwrap() - 0.25).abs() < 1e-12);
    assert_eq!(
        never.because,
        "sooner in 0 of 3 seeds, never in 3; sign test"
    );
    let one: Vec<_> = found
        .iter()
        .filter(|it| it.seed == Some(1))
        .cloned()
        .collect();
    let never = claim(test("slow", "fast")).judge(&one, &[]);
    assert_eq!(never.verdict, Verdict::NotTested);
    assert_eq!(
        never.because,
        "sooner in 0 of 1 seeds, never in 1; one seed cannot tell a difference from chance"
    );
    let more = |slow: f64| {
        let seeds = 1..=8;
        seeds
            .flat_map(|seed| [curve("fast", seed, 0.16), curve("slow", seed, slow)])
            .collect::<Vec<_>>()
    };
    let never = claim(test("slow", "fast")).judge(&more(0.1), &[]);
    assert_eq!(never.verdict, Verdict::DoesNotHold);
    assert!((never.p.unwrap() - 2.0 / 256.0).abs() < 1e-12);
    let mut mixed = found.clone();
    mixed[0] = curve("fast", 1, 0.05);
    let mixed = claim(test("fast", "slow")).judge(&mixed, &[]);
    assert_eq!((mixed.verdict, mixed.p), (Verdict::Undecided, Some(1.0)));
    let expected = "sooner in 2 of 3 seeds, never in 1; median after ";
    assert!(mixed.because.starts_with(expected), "{}", mixed.because);
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
    // Each run lacks another seed.
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

#[test]
fn verdicts_are_corrected_for_the_number_of_claims() {
    let mut found = seeds("base", "valid_loss", &[2.0, 2.0, 2.0]);
    // t = 8.66 with two degrees of freedom: p = 0.013.
    found.extend(seeds("far", "valid_loss", &[1.4, 1.5, 1.6]));
    let judged = |runs: &[&str]| {
        let claims = runs
            .iter()
            .map(|run| claim(lower(run, "base")).judge(&found, &[]));
        let mut claims: Vec<Judgement> = claims.collect();
        Judgement::correct(&mut claims);
        claims
    };
    let alone = judged(&["far"]);
    assert_eq!(alone[0].verdict, Verdict::Holds);
    assert!(
        alone[0].because.ends_with("; p = 0.013"),
        "{}",
        alone[0].because
    );
    // Four claims: 4 · 0.013 is above 0.05.
    for claim in judged(&["far", "far", "far", "far"]) {
        assert_eq!(claim.verdict, Verdict::Undecided);
        assert!(
            claim.because.ends_with("; p = 0.013, corrected 0.052"),
            "{}",
            claim.because
        );
    }
    // A claim without a test does not count.
    let mut untested = vec![
        claim(lower("far", "base")).judge(&found, &[]),
        claim(Test::NotTested("so".into())).judge(&found, &[]),
    ];
    Judgement::correct(&mut untested);
    assert_eq!(untested[0].because, alone[0].because);
    assert_eq!(untested[1].verdict, Verdict::NotTested);
}
