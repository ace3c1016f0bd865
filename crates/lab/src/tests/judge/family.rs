//! Corrections for the number of claims.

use super::*;

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
    // A claim with a missing run does, because the run may have diverged.
    let planned = |name| Planned {
        name,
        line: "",
        seeds: 3,
    };
    let planned = ["base", "far", "gone"].map(planned);
    let of = |run| claim(lower(run, "base")).judge(&found, &planned);
    let mut both = vec![of("far"), of("gone")];
    Judgement::correct(&mut both);
    assert_eq!(both[0].verdict, Verdict::Holds);
    assert!(both[0].because.ends_with("; p = 0.013, corrected 0.026"));
    assert_eq!(both[1].verdict, Verdict::NotTested);
    assert_eq!(both[1].because, "gone is missing");
}

#[test]
fn primary_claims_are_a_family_of_their_own() {
    let mut found = seeds("base", "valid_loss", &[2.0, 2.0, 2.0]);
    found.extend(seeds("far", "valid_loss", &[1.4, 1.5, 1.6]));
    let of = |primary| {
        let claim = Claim {
            primary,
            ..claim(lower("far", "base"))
        };
        claim.judge(&found, &[])
    };
    let mut claims = vec![of(false), of(true), of(false), of(false), of(false)];
    Judgement::correct(&mut claims);
    // The primary claim is alone in its family, so p stays 0.013. In one family with the other four, p would be 5 ·
    // 0.013.
    let ends = |claim: &Judgement, end: &str| {
        assert!(claim.because.ends_with(end), "{}", claim.because);
    };
    assert_eq!(claims[1].verdict, Verdict::Holds);
    ends(
        &claims[1],
        "; p = 0.013 (0.065 in one family of all claims)",
    );
    for at in [0, 2, 3, 4] {
        assert_eq!(claims[at].verdict, Verdict::Undecided);
        ends(
            &claims[at],
            "; p = 0.013, corrected 0.052 (0.065 in one family of all claims)",
        );
    }
}

#[test]
fn a_sign_test_states_a_p_value_of_one() {
    let mut found = seeds("old", "valid_loss", &[2.0; 4]);
    found.extend(seeds("new", "valid_loss", &[1.9, 1.9, 2.1, 2.1]));
    found.extend(seeds("same", "valid_loss", &[2.0; 4]));
    let by_seeds = Test::Lower(Compared {
        quantity: "valid_loss".into(),
        run: "new".into(),
        than: "old".into(),
        beyond: None,
        within: 0.0,
        by: By::Seeds,
    });
    let of = |test| claim(test).judge(&found, &[]);
    let mut claims = vec![of(by_seeds)];
    Judgement::correct(&mut claims);
    assert_eq!(claims[0].verdict, Verdict::Undecided);
    let because = &claims[0].because;
    assert!(
        because.ends_with("; lower in 2 of 4 seeds; sign test; p = 1.000"),
        "{because}"
    );
    let mut identical = vec![of(lower("same", "old"))];
    Judgement::correct(&mut identical);
    assert!(
        !identical[0].because.contains("; p "),
        "{}",
        identical[0].because
    );
}
