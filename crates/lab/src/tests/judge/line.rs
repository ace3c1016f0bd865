//! Tests of claims about lines and curves.

use super::*;

/// Makes observations of a line: at each x, a run called `line, X`.
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
        "-0.0983 ± 0.0072 nats for each doubling over 3 seeds; 6 of 6 steps lower the value";
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
fn a_gain_is_kept_if_it_shrinks_by_less_than_the_tolerance_for_each_doubling() {
    let found = line(&[
        (1.0, [0.10, 0.11, 0.12]),
        (2.0, [0.09, 0.10, 0.11]),
        (4.0, [0.08, 0.09, 0.103]),
    ]);
    let keeps = |within: f64| {
        Test::Keeps(Keeps {
            quantity: "valid_loss".into(),
            along: "size".into(),
            line: "line".into(),
            within,
        })
    };
    // The slopes are -0.01, -0.01 and -0.0085: the mean is -0.0095, and the half-width 4.303 · 0.0005.
    let (verdict, because) = judge(keeps(0.02), &found);
    assert_eq!(verdict, Verdict::Holds, "{because}");
    assert_eq!(
        because,
        "-0.0095 ± 0.0022 nats for each doubling over 3 seeds, detectable 0.0027; +0.1100 ± 0.0248 at 1, \
         +0.1000 ± 0.0248 at 2, +0.0910 ± 0.0286 at 4; tolerance 0.0200"
    );
    let (verdict, because) = judge(keeps(0.01), &found);
    assert_eq!(verdict, Verdict::Undecided);
    assert!(
        because.ends_with("tolerance 0.0100; the interval of the slope includes -0.0100"),
        "{because}"
    );
    let (verdict, because) = judge(keeps(0.002), &found);
    assert_eq!(verdict, Verdict::DoesNotHold);
    assert!(
        because.ends_with("tolerance 0.0020; the interval of the slope is below -0.0020"),
        "{because}"
    );
    // A gain that is not there is not kept, even if it grows.
    let below = line(&[
        (1.0, [-0.12, -0.11, -0.10]),
        (2.0, [-0.10, -0.09, -0.08]),
        (4.0, [-0.08, -0.07, -0.06]),
    ]);
    let found_below = claim(keeps(0.02)).judge(&below, &[]);
    assert_eq!(found_below.verdict, Verdict::DoesNotHold);
    let because = &found_below.because;
    assert!(
        because.ends_with("; the interval at the largest size is below 0"),
        "{because}"
    );
    // Twice the p-value of a mean of -0.07 with a standard error of 0.01/√3.
    let p = found_below.p.unwrap();
    assert!((p - 2.0 * 0.006_732).abs() < 1e-4, "{p}");
    // At the largest size the gain is clear, but at the smallest it is a loss.
    let crosses = line(&[
        (1.0, [-0.02, -0.01, 0.01]),
        (2.0, [0.04, 0.05, 0.06]),
        (4.0, [0.10, 0.11, 0.12]),
    ]);
    let (verdict, because) = judge(keeps(0.02), &crosses);
    assert_eq!(verdict, Verdict::Undecided);
    assert!(
        because.ends_with("tolerance 0.0200; the mean is not above 0 at 1"),
        "{because}"
    );
    let crosses_twice = line(&[
        (1.0, [-0.02, -0.01, 0.01]),
        (2.0, [-0.02, -0.01, 0.01]),
        (4.0, [0.10, 0.11, 0.12]),
    ]);
    let because = judge(keeps(0.02), &crosses_twice).1;
    assert!(
        because.ends_with("tolerance 0.0200; the mean is not above 0 at 1 and 2"),
        "{because}"
    );
    let one = claim(keeps(0.02)).judge(&line(&[(1.0, [0.1; 3])]), &[]);
    assert_eq!(one.verdict, Verdict::NotTested);
}

#[test]
fn a_run_is_sooner_at_a_given_loss_by_the_mean_share_that_it_saves() {
    let test = |run: &str, than: &str, loss: f64| {
        Test::Sooner(Sooner {
            axis: Axis::Tokens,
            run: run.into(),
            than: than.into(),
            loss: Some(loss),
        })
    };
    let seeds = [1, 2, 3].into_iter();
    let found = seeds.flat_map(|seed| {
        let noise = 0.001 * seed as f64;
        [curve("fast", seed, 0.2 + noise), curve("slow", seed, 0.1)]
    });
    let found: Vec<_> = found.collect();
    // The slow run reaches 3.5 after 500 tokens, and the fast run after 0.5 / 0.202 of its rows on average.
    let (verdict, because) = judge(test("fast", "slow", 3.5), &found);
    assert_eq!(verdict, Verdict::Holds);
    assert!(
        because.starts_with("after 49.5 ± ")
            && because.contains("that slow needs for a loss of 3.5"),
        "{because}"
    );
    assert_eq!(
        judge(test("slow", "fast", 3.5), &found).0,
        Verdict::DoesNotHold
    );
    // The slow run ends at 3, so the seeds are counted in both directions.
    let alone = claim(test("fast", "slow", 2.5)).judge(&found, &[]);
    assert_eq!(alone.verdict, Verdict::Undecided);
    assert!(
        alone
            .because
            .starts_with("sooner in 3 of 3 seeds, never in 0"),
        "{}",
        alone.because
    );
    for (loss, problem) in [
        (1.0, "neither run reaches a loss of 1 with seed 1"),
        (4.5, "a loss of 4.5 is reached before training with seed 1"),
    ] {
        let none = claim(test("fast", "slow", loss)).judge(&found, &[]);
        assert_eq!(none.verdict, Verdict::NotTested);
        assert_eq!(none.because, problem);
    }
    // A run that starts from a run that had passed the loss.
    let mut started = found.clone();
    for found in started.iter_mut().filter(|found| found.run == "fast") {
        found.rows.remove(0);
    }
    let none = claim(test("fast", "slow", 3.9)).judge(&started, &[]);
    assert_eq!(none.verdict, Verdict::NotTested);
    let problem = "a loss of 3.9 is reached before training with seed 1";
    assert_eq!(none.because, problem);
    assert!(
        judge(test("slow", "fast", 2.5), &found)
            .1
            .contains("never in 3")
    );
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
fn a_line_is_below_another_where_both_have_points() {
    let of = |name: &str, values: &[(f64, [f64; 3])]| {
        let mut found = line(values);
        for observation in &mut found {
            observation.line = name.into();
            observation.run = observation.run.replace("line", name);
        }
        found
    };
    // Over the logarithm of the size, the old line is straight: 3.0, 2.5 and 2.0 at 1, 2 and 4.
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
        because.starts_with("-0.0967 ± 0.0143 nats over 3 seeds")
            && because.ends_with("; -0.0967 ± 0.0143 at 2"),
        "{because}"
    );
    // Both points of the old line are below the new line, which is high at its ends.
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
    // Makes a line with these losses at the rates 1, 2 and 4, for two seeds.
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
    // A cost of zero, against costs of 0.5 and 0.52; 12.706 · 0.01414 / √2 = 0.1271.
    let expected = "from narrow to wide with: best rate 2.00 and 2.00, cost 0.0000 nats; from narrow \
                    to wide: best rate 2.00 and 1.00 (an edge), cost 0.5100 nats; difference -0.5100 ± \
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
    // The line bends in the same way for all seeds, so more seeds do not determine its slope better.
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

#[test]
fn a_run_is_sooner_by_where_it_reaches_the_last_loss_of_the_other() {
    let test = |run: &str, than: &str| {
        Test::Sooner(Sooner {
            axis: Axis::Tokens,
            run: run.into(),
            than: than.into(),
            loss: None,
        })
    };
    let found: Vec<_> = [1, 2, 3]
        .into_iter()
        .flat_map(|seed| {
            let noise = 0.001 * seed as f64;
            [curve("fast", seed, 0.16 + noise), curve("slow", seed, 0.1)]
        })
        .collect();
    // The slow run ends at a loss of 3, which the fast run reaches after 1/0.16 = 6.2 of its ten rows.
    assert_eq!(found[0].reaches(Axis::Tokens, 3.0).unwrap().round(), 621.0);
    let (verdict, because) = judge(test("fast", "slow"), &found);
    assert_eq!(verdict, Verdict::Holds);
    assert!(because.starts_with("after 61.7 ± "), "{because}");
    // If a run never reaches the loss, the seeds are counted: p = 2 / 2³ is not small enough, but 2 / 2⁸ is.
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
        "sooner in 0 of 1 seed, never in 1; one seed cannot tell a difference from chance"
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
