//! The hidden matrices of all models, which Muon trains.

use std::collections::BTreeMap;

use burn::backend::Flex;
use residual_zoo::ModelConfig as Zoo;
use residual_zoo::core::ModelConfig as _;
use residual_zoo::core::params::{self, Role};
use residual_zoo::core::{ImageSize, Matrices, Vocabulary};
use residual_zoo::resnet::BlockKind;
use residual_zoo_testing::zoo;

/// Returns `[count, d_in, d_out]` of the hidden matrices in the first layer of `model`, by parameter name. The tables
/// of patches and of ids, and the unembedding, have none.
fn matrices(model: &Zoo, vocabulary: Vocabulary) -> BTreeMap<String, [usize; 3]> {
    let model = model
        .build::<Flex>(vocabulary, &Default::default())
        .unwrap();
    let all = params::list::<Flex, _>(&model).into_iter();
    let hidden = all.filter_map(|p| Some((p.matrices?, p)));
    let of_first = hidden.filter_map(|(matrices, p)| {
        assert!(matches!(p.role, Role::Weight | Role::Unit), "{}", p.name);
        let count: usize = p.shape.iter().product();
        let dims = matrices.dims();
        assert_eq!(dims.iter().product::<usize>(), count, "{}", p.name);
        let first = ["block.layers.0.", "block.0.layers.0."];
        let name = first.iter().find_map(|first| p.name.strip_prefix(first))?;
        Some((name.replace(".branch", ""), dims))
    });
    of_first.collect()
}

fn expect(model: &Zoo, expected: &[(&str, [usize; 3])]) {
    let expected = expected
        .iter()
        .map(|(name, dims)| (name.to_string(), *dims));
    assert_eq!(matrices(model, 20.into()), expected.collect());
}

const GPT2: [(&str, [usize; 3]); 4] = [
    // Queries, keys and values are three matrices, although one parameter holds them.
    ("attention.qkv.weight", [3, 48, 48]),
    ("attention.proj.weight", [1, 48, 48]),
    ("feed_forward.fc.weight", [1, 48, 192]),
    ("feed_forward.proj.weight", [1, 192, 48]),
];

#[test]
fn the_maps_of_every_architecture_are_hidden_matrices() {
    expect(&zoo::gpt2(), &GPT2);
    expect(
        &zoo::llama(),
        &[
            ("attention.q.weight", [1, 48, 48]),
            ("attention.k.weight", [1, 48, 16]),
            ("attention.v.weight", [1, 48, 16]),
            ("attention.proj.weight", [1, 48, 48]),
            ("feed_forward.gate.weight", [1, 48, 52]),
            ("feed_forward.fc.weight", [1, 48, 52]),
            ("feed_forward.proj.weight", [1, 52, 48]),
        ],
    );
    expect(
        &zoo::ngpt(),
        &[
            ("attention.q.weight", [1, 48, 48]),
            ("attention.k.weight", [1, 48, 48]),
            ("attention.v.weight", [1, 48, 48]),
            ("attention.proj.weight", [1, 48, 48]),
            ("feed_forward.fc.weight", [1, 48, 52]),
            ("feed_forward.gate.weight", [1, 48, 52]),
            ("feed_forward.proj.weight", [1, 52, 48]),
        ],
    );
    // r reads rows of the stream matrix with D_k keys, and w writes them.
    expect(
        &zoo::rmt(),
        &[
            ("attention.r_q", [1, 8, 5]),
            ("attention.r_k", [1, 8, 5]),
            ("attention.r_v", [1, 8, 5]),
            ("attention.w_o", [1, 5, 8]),
            ("feed_forward.r_ff", [1, 8, 5]),
            ("feed_forward.w_1", [1, 30, 44]),
            ("feed_forward.w_2", [1, 44, 30]),
            ("feed_forward.w_ff", [1, 5, 8]),
        ],
    );
    let pairs = |name: &'static str, n| {
        let keys = format!("{name}.keys").leak() as &str;
        let values = format!("{name}.values").leak() as &str;
        [(keys, [1, 48, n]), (values, [1, n, 48])]
    };
    let attention = ["q", "k", "v", "o"].map(|name| format!("attention.{name}").leak() as &str);
    let mut expected: Vec<_> = attention
        .into_iter()
        .flat_map(|name| pairs(name, 29))
        .collect();
    expected.extend(pairs("feed_forward.ffn", 51));
    expect(&zoo::tokenformer(), &expected);
    // The corrections B · A of keys `[n, width]` have the layout of the keys. The corrections of values have the layout
    // of the values.
    let mut low_rank = zoo::tokenformer();
    for layer in &mut low_rank.layers {
        if let residual_zoo::Zoo::TokenFormer(config) = layer {
            config.lora = Some(4);
        }
    }
    let found = matrices(&low_rank, 20.into());
    let of = |name: &str| found[&format!("feed_forward.ffn.lora.{name}")];
    assert_eq!(of("keys_a"), [1, 48, 4]);
    assert_eq!(of("keys_b"), [1, 4, 51]);
    assert_eq!(of("values_b"), [1, 51, 4]);
    assert_eq!(of("values_a"), [1, 4, 48]);
}

/// The injection of a depth loop is a matrix, and the loop vectors are a table.
#[test]
fn the_injection_of_a_loop_is_a_hidden_matrix() {
    let (mut injections, mut tables) = (0, 0);
    for (name, model) in zoo::loops() {
        let model = model.build::<Flex>(20, &Default::default()).unwrap();
        for p in params::list::<Flex, _>(&model) {
            let dims = p.matrices.map(Matrices::dims);
            match p.name.as_str() {
                "block.adapter" => {
                    assert_eq!(dims, Some([1, 96, 48]), "{name}");
                    injections += 1;
                }
                "block.timestep" => {
                    assert_eq!((dims, p.role), (None, Role::Embedding), "{name}");
                    tables += 1;
                }
                _ => {}
            }
        }
    }
    assert!(injections > 0 && tables > 0, "{injections} {tables}");
}

/// Depthwise filters, and all parameters of connections, are left to AdamW.
#[test]
fn filters_and_connections_have_no_hidden_matrices() {
    for (name, model) in zoo::connections() {
        let found = matrices(&model, 20.into());
        assert!(
            found.keys().all(|name| !name.contains("connection")),
            "{name}: {found:?}"
        );
        assert!(!found.is_empty(), "{name}");
    }
    let hyper = zoo::connections()
        .into_iter()
        .find(|(name, _)| *name == "hyper");
    expect(&hyper.unwrap().1, &GPT2);
    let options = zoo::architectures().into_iter();
    let gated = options.map(|(_, model)| matrices(&model, 20.into()));
    let gated = gated.filter(|found| found.contains_key("attention.gate.weight"));
    let gated: Vec<_> = gated.collect();
    assert_eq!(gated.len(), 1);
    assert!(
        gated[0].keys().all(|name| !name.contains("canon")),
        "{gated:?}"
    );
}

/// A kernel is one matrix from the patches that the kernel reads to its channels. The first map of pixels is not a
/// hidden matrix.
#[test]
fn kernels_of_convolutions_are_matrices_and_maps_of_pixels_are_not() {
    let image = ImageSize {
        channels: 3,
        height: 8,
        width: 8,
    };
    let vocabulary = || Vocabulary::of_images(image, 10);
    let found = matrices(&zoo::resnet(BlockKind::Basic), vocabulary());
    assert!(
        found.values().any(|dims| *dims == [1, 9 * 6, 6]),
        "{found:?}"
    );
    for (name, model) in zoo::vision() {
        let model = model.build::<Flex>(vocabulary(), &Default::default());
        let Ok(model) = model else { continue };
        for p in params::list::<Flex, _>(&model) {
            let of_ends = p.name.starts_with("embeddings");
            assert!(!of_ends || p.matrices.is_none(), "{name}: {}", p.name);
        }
    }
}
