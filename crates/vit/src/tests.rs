use burn::backend::{Autodiff, Flex};
use burn::tensor::{Tensor, TensorData};
use residual_zoo_core::{Embeddings, ImageSize, TokenEmbeddingsOptions, Vocabulary, params};

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

/// Images in which the value at (image, channel, row, column) is its index.
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
