//! Tests of merged models.

use super::*;

#[test]
fn a_model_merged_with_itself_with_half_the_values_is_the_same_function() {
    let rotary = Position::Rotary { fraction: 0.5 };
    for normalization in [
        Normalization::L2NormGelu,
        Normalization::GeluL2Norm,
        Normalization::GeluL1Norm,
        Normalization::Softmax,
    ] {
        for (tau, position) in [(None, Position::Learned), (Some(2.5), rotary)] {
            let config = TokenFormerConfig {
                normalization,
                tau: tau.map(|tau| crate::Tau {
                    attn: tau,
                    ffn: tau,
                }),
                position,
                n_head: 6,
                ..small()
            };
            let model = trained(&config);
            let own = weights(&model);
            let (merged, both) = merge((&config, &own), (&config, &own), 0.5).unwrap();
            assert_eq!((merged.n_attn(), merged.n_ffn()), (26, 42));
            let error = difference(&loaded(&merged, both), &model);
            assert!(error < 2e-5, "{normalization:?}, {tau:?}: {error}");
        }
    }
}

#[test]
fn a_model_merged_with_its_grown_self_is_the_same_function() {
    let model = trained(&small());
    let (grown, config) = grow(&model, &small(), 20, 30, &Default::default()).unwrap();
    // The config of a run can omit the τ that its weights have.
    let without = TokenFormerConfig {
        tau: None,
        ..config
    };
    let (own, larger) = (weights(&model), weights(&grown));
    let (merged, both) = merge((&small(), &own), (&without, &larger), 0.5).unwrap();
    let tau = merged.tau();
    assert!((tau.attn - 26f64.sqrt()).abs() < 1e-5 && (tau.ffn - 42f64.sqrt()).abs() < 1e-5);
    let error = difference(&loaded(&merged, both), &model);
    assert!(error < 2e-5, "{error}");
}

#[test]
fn models_that_do_not_belong_together_are_not_merged() {
    let config = small();
    let a = trained(&config);
    let b = weights(&retrained(a.clone(), 2));
    let a = weights(&a);
    let error = merge((&config, &a), (&config, &b), 1.0).unwrap_err();
    assert!(
        matches!(&error, MergeError::Differs(name) if name.contains("embeddings")),
        "{error}"
    );
    for scale in [0.0, f64::NAN, f64::INFINITY, 1e300, 1e-300] {
        let error = merge((&config, &a), (&config, &a), scale).unwrap_err();
        assert!(error.to_string().starts_with("`value_scale`"), "{error}");
    }
    let refused = |other: TokenFormerConfig, field: &str| {
        let of_other = weights(&trained(&other));
        let error = merge((&config, &a), (&other, &of_other), 1.0).unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("`{field}`")),
            "{error}"
        );
    };
    refused(
        TokenFormerConfig {
            n_layer: 1,
            ..small()
        },
        "n_layer",
    );
    refused(
        TokenFormerConfig {
            n_head: 2,
            ..small()
        },
        "n_head",
    );
    refused(
        TokenFormerConfig {
            normalization: Normalization::Softmax,
            ..small()
        },
        "normalization",
    );
    refused(
        TokenFormerConfig {
            added: Some(ADDED),
            ..small()
        },
        "added",
    );
}
