//! The connections in PyTorch, for export to Hugging Face.

/// Returns the Python files of the connection that run files call `name`; `None` if there is no Python code for it.
pub fn modeling(name: &str) -> Option<&'static [&'static str]> {
    let found = FILES.iter().find(|(connection, _)| *connection == name);
    found.map(|(_, files)| *files)
}

/// The Python files of each connection.
const FILES: &[(&str, &[&str])] = &[
    ("SkipInit", &[SCALED]),
    ("ReZero", &[SCALED]),
    ("LayerScale", &[SCALED]),
    ("DeepNorm", &[include_str!("../modeling/deepnorm.py")]),
    ("InitialMix", &[ENDS, INITIAL_MIX]),
    ("Highway", &[include_str!("../modeling/highway.py")]),
    (
        "SelfDependency",
        &[include_str!("../modeling/self_dependency.py")],
    ),
    ("DepthLstm", &[DEPTH_LSTM]),
    ("DepthLstmCell", &[DEPTH_LSTM]),
    ("Tree", &[HIERARCHICAL]),
    ("Iterative", &[HIERARCHICAL]),
    ("Dense", &[ENDS, include_str!("../modeling/dense.py")]),
    (
        "Hyper",
        &[ENDS, DYNAMIC, include_str!("../modeling/hyper.py")],
    ),
    ("Mhc", &[ENDS, include_str!("../modeling/mhc.py")]),
    (
        "AttentionResidual",
        &[ENDS, include_str!("../modeling/attention_residual.py")],
    ),
    (
        "ValueResidual",
        &[VALUES, include_str!("../modeling/value_residual.py")],
    ),
    (
        "Frac",
        &[ENDS, DYNAMIC, include_str!("../modeling/frac.py")],
    ),
    ("Skips", &[SKIPS]),
    (
        "Speedrun",
        &[
            VALUES,
            ENDS,
            INITIAL_MIX,
            VALUE_EMBEDDING,
            SKIPS,
            include_str!("../modeling/speedrun.py"),
        ],
    ),
    (
        "Delta",
        &[ENDS, NORMS, include_str!("../modeling/delta.py")],
    ),
    (
        "NormPlacement",
        &[NORMS, include_str!("../modeling/norm_placement.py")],
    ),
    (
        "Siamese",
        &[ENDS, NORMS, include_str!("../modeling/siamese.py")],
    ),
    ("Mudd", &[NORMS, include_str!("../modeling/mudd.py")]),
    (
        "HybridNorm",
        &[NORMS, include_str!("../modeling/hybrid_norm.py")],
    ),
    (
        "ValueGated",
        &[VALUES, include_str!("../modeling/value_gated.py")],
    ),
    ("ValueEmbedding", &[VALUES, VALUE_EMBEDDING]),
    (
        "ValueShared",
        &[VALUES, include_str!("../modeling/value_shared.py")],
    ),
    ("Lime", &[include_str!("../modeling/lime.py")]),
];

const ENDS: &str = include_str!("../modeling/ends.py");
const DYNAMIC: &str = include_str!("../modeling/dynamic.py");
const NORMS: &str = include_str!("../modeling/norms.py");
const INITIAL_MIX: &str = include_str!("../modeling/initial_mix.py");
const SKIPS: &str = include_str!("../modeling/skips.py");
const VALUE_EMBEDDING: &str = include_str!("../modeling/value_embedding.py");
const VALUES: &str = include_str!("../modeling/values.py");
const SCALED: &str = include_str!("../modeling/scaled.py");
const DEPTH_LSTM: &str = include_str!("../modeling/depth_lstm.py");
const HIERARCHICAL: &str = include_str!("../modeling/hierarchical.py");
