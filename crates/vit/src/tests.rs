use burn::backend::{Autodiff, Flex};
use burn::tensor::{Tensor, TensorData};
use residual_zoo_core::{
    Embeddings, ImageSize, NormDesign, RmsScale, TokenEmbeddingsOptions, Vocabulary, materialise,
    params,
};

use crate::{PatchEmbeddings, Patches, Pool};

type B = Autodiff<Flex>;

const IMAGE: ImageSize = ImageSize {
    channels: 3,
    height: 4,
    width: 6,
};

fn options() -> TokenEmbeddingsOptions {
    TokenEmbeddingsOptions::new(Vocabulary::of_images(IMAGE, 5), 0, 8)
}

fn forms() -> Vec<Patches> {
    let form = |class_token, pool| Patches {
        size: 2,
        class_token,
        pool,
    };
    vec![
        form(true, Pool::ClassToken),
        form(true, Pool::Mean),
        form(false, Pool::Mean),
    ]
}

fn built(patches: &Patches) -> PatchEmbeddings<B> {
    PatchEmbeddings::new(patches, IMAGE, &options(), &Default::default())
}

/// Returns images in which each value is its index, in the order (image, channel, row, column).
fn numbered() -> Tensor<B, 4> {
    let values = (0..2 * IMAGE.values())
        .map(|i| i as f32)
        .collect::<Vec<_>>();
    Tensor::from_data(TensorData::new(values, [2, 3, 4, 6]), &Default::default())
}

#[test]
fn a_patch_has_its_rows_channel_by_channel() {
    let patches = built(&forms()[2]).cut(numbered());
    assert_eq!(patches.dims(), [2, 6, 12]);
    // The patch in row 1 and column 2 of the second image begins at row 2, column 4.
    let patch = patches.narrow(0, 1, 1).narrow(1, 5, 1).into_data();
    let at =
        |channel: usize, row: usize, column: usize| (72 + channel * 24 + row * 6 + column) as f32;
    let expected: Vec<f32> = (0..12)
        .map(|i| at(i / 4, 2 + i % 4 / 2, 4 + i % 2))
        .collect();
    assert_eq!(patch.to_vec::<f32>().unwrap(), expected);
}

#[test]
fn the_shapes_are_those_of_the_positions_and_the_classes() {
    for patches in forms() {
        let embeddings = built(&patches);
        let positions = 6 + usize::from(patches.class_token);
        assert_eq!(patches.positions(IMAGE), positions);
        let x = embeddings.embed_images(numbered());
        assert_eq!(x.dims(), [2, positions, 8]);
        assert_eq!(embeddings.unembed(x).dims(), [2, 1, 5]);
        let counted: usize = params::list::<B, _>(&embeddings)
            .iter()
            .map(|p| p.shape.iter().product::<usize>())
            .sum();
        assert_eq!(counted, patches.cost(IMAGE, &options()).params.total());
    }
}

#[test]
fn a_norm_of_the_input_and_a_cap_on_the_logits_are_applied() {
    let mut options = options();
    options.input_norm = Some(NormDesign::Rms {
        scale: RmsScale::None,
        eps: 1e-12,
    });
    options.cap = Some(0.5);
    for patches in forms() {
        let new = |options: &TokenEmbeddingsOptions| {
            PatchEmbeddings::<B>::new(&patches, IMAGE, options, &Default::default())
        };
        let embeddings = new(&options);
        materialise(&embeddings);
        let x = embeddings.embed_images(numbered());
        let squares = x.clone().square().mean_dim(2).into_data();
        let is_one = |square: f32| (square - 1.0).abs() < 1e-4;
        assert!(squares.iter::<f32>().all(is_one));
        let logits = embeddings.unembed(x.clone() * 100.0).into_data();
        let plain = TokenEmbeddingsOptions {
            cap: None,
            ..options
        };
        let plain = params::import::<B, _>(new(&plain), params::export::<B, _>(&embeddings));
        let plain = plain.unwrap().unembed(x * 100.0).into_data();
        for (found, z) in logits.iter::<f32>().zip(plain.iter::<f32>()) {
            let expected = 0.5 * (z / 0.5).tanh();
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_named() {
    let wrong = Patches {
        size: 4,
        ..Patches::default()
    };
    let error = wrong.fit(IMAGE).unwrap_err().to_string();
    assert!(error.contains("width of the images, 6"), "{error}");
    let zero = Patches {
        size: 0,
        ..Patches::default()
    };
    assert_eq!(zero.validate().unwrap_err().field, "size");
    let no_token = Patches {
        class_token: false,
        ..Patches::default()
    };
    assert_eq!(no_token.validate().unwrap_err().field, "pool");
}
