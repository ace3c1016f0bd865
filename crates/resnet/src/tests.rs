use burn::backend::{Autodiff, Flex};
use burn::optim::GradientsParams;
use burn::tensor::{Distribution, Tensor, TensorData};
use residual_zoo_core::ops::loss::Loss;
use residual_zoo_core::params::Role;
use residual_zoo_core::{
    Architecture, ImageSize, LanguageModel, PlainModel, Recompute, Vocabulary, contract, params,
    recompute, statistics,
};

use crate::block::{images, stream};
use crate::{BatchNorm, BlockKind, ResNetConfig, Shortcut, ShortcutKind, Stem};

type B = Autodiff<Flex>;

const IMAGE: ImageSize = ImageSize {
    channels: 3,
    height: 10,
    width: 7,
};

fn small() -> ResNetConfig {
    ResNetConfig {
        block: BlockKind::Basic,
        widths: vec![4, 6],
        depths: vec![2, 2],
        stem: Stem::Cifar,
        shortcut: ShortcutKind::Pad,
        ..ResNetConfig::default()
    }
}

fn frozen() -> Vec<ResNetConfig> {
    let frozen = ResNetConfig {
        frozen_norm: true,
        ..small()
    };
    vec![
        frozen.clone(),
        ResNetConfig {
            shortcut: ShortcutKind::Projection,
            stem_width: Some(3),
            ..frozen.clone()
        },
        ResNetConfig {
            block: BlockKind::Bottleneck { expansion: 2 },
            stem: Stem::ImageNet,
            shortcut: ShortcutKind::Projection,
            ..frozen
        },
    ]
}

#[test]
fn keeps_the_contract_with_frozen_statistics() {
    for config in frozen() {
        println!("{config:?}");
        contract::check_images::<B, _>(&PlainModel(config), IMAGE, &Default::default());
    }
}

fn vocabulary(image: ImageSize, classes: usize) -> Vocabulary {
    Vocabulary::of_images(image, classes)
}

fn count(config: ResNetConfig, image: ImageSize, classes: usize) -> usize {
    let cost = config.cost(vocabulary(image, classes));
    cost.params.total()
}

/// Parameter counts of torchvision for ImageNet, and counts for CIFAR-10. `docs/papers/resnet.md` gives all of them.
#[test]
fn presets_have_the_published_numbers_of_parameters() {
    let imagenet = ImageSize::from([3, 224, 224]);
    assert_eq!(count(ResNetConfig::resnet_18(), imagenet, 1000), 11_689_512);
    assert_eq!(count(ResNetConfig::resnet_50(), imagenet, 1000), 25_557_032);
    let cifar = ImageSize::from([3, 32, 32]);
    assert_eq!(count(ResNetConfig::cifar(3), cifar, 10), 269_722);
    assert_eq!(count(ResNetConfig::cifar(5), cifar, 10), 464_154);
    assert_eq!(count(ResNetConfig::cifar(9), cifar, 10), 853_018);
}

/// The multiply-adds that torchvision reports: 1.81 billion for ResNet-18, and 4.09 billion for ResNet-50.
#[test]
fn presets_have_the_published_flops() {
    let imagenet = vocabulary(ImageSize::from([3, 224, 224]), 1000);
    let flops = |config: ResNetConfig| config.cost(imagenet).forward_flops / 2;
    assert_eq!(flops(ResNetConfig::resnet_18()), 1_814_073_344);
    assert_eq!(flops(ResNetConfig::resnet_50()), 4_089_184_256);
}

/// Counts each convolution by hand, for images of 10 × 7 with a second stage of 5 × 4.
#[test]
fn the_flops_are_those_of_an_image() {
    let macs = 70 * 27 * 4 // the stem
        + 70 * 36 * 4 * 4 // four convolutions of the first stage
        + 20 * 36 * 6 + 20 * 54 * 6 * 3 // the second stage
        + 6 * 5; // the head
    assert_eq!(small().cost(vocabulary(IMAGE, 5)).forward_flops, 2 * macs);
}

fn numbers<B: burn::tensor::backend::Backend, const D: usize>(x: Tensor<B, D>) -> Vec<f32> {
    x.into_data().to_vec().unwrap()
}

#[test]
fn training_normalises_by_the_batch_and_notes_its_statistics() {
    let device = Default::default();
    let norm = BatchNorm::<B>::new(2, 1e-5, 0.1, false, &device);
    let x = Tensor::<B, 4>::from_data(
        TensorData::new(vec![1f32, 10., 3., 20., 5., 30., 7., 60.], [2, 1, 2, 2]),
        &device,
    );
    let (y, mut recording) =
        recompute::record(Default::default(), None, || norm.forward(x.clone()));
    let channel = |i| numbers::<B, 4>(y.clone().narrow(3, i, 1));
    for i in 0..2 {
        let values = channel(i);
        let mean: f32 = values.iter().sum::<f32>() / 4.0;
        let square: f32 = values.iter().map(|x| x * x).sum::<f32>() / 4.0;
        assert!(
            mean.abs() < 1e-6 && (square - 1.0).abs() < 1e-4,
            "{values:?}"
        );
    }
    let noted = recording.take_statistics();
    let ids = [norm.running_mean.id, norm.running_var.id];
    assert_eq!(noted.iter().map(|s| s.id).collect::<Vec<_>>(), ids);
    // (1, 3, 5, 7) and (10, 20, 30, 60) have the variances 20 / 3 and 1400 / 3.
    let moved = statistics::apply(norm, noted);
    assert_eq!(numbers(moved.running_mean.val()), [0.4, 3.0]);
    let expected = [0.9 + 0.1 * 20.0 / 3.0, 0.9 + 0.1 * 1400.0 / 3.0];
    for (found, expected) in numbers(moved.running_var.val()).iter().zip(expected) {
        assert!((found - expected as f32).abs() < 1e-5, "{found}");
    }
    assert!(!moved.running_mean.is_require_grad());
}

#[test]
fn outside_of_training_and_when_frozen_the_running_statistics_normalise() {
    fn by_running<B: burn::tensor::backend::Backend>(frozen: bool) -> Vec<f32> {
        let device = Default::default();
        let mut norm = BatchNorm::<B>::new(1, 0.0, 0.1, frozen, &device);
        norm.running_mean = norm.running_mean.map(|x| x + 3.0);
        norm.running_var = norm.running_var.map(|x| x * 4.0);
        let (y, _) = recompute::record::<B, _>(Default::default(), None, || {
            norm.forward(Tensor::from_floats([[[[1.0], [7.0]]]], &device))
        });
        numbers(y)
    }
    assert_eq!(by_running::<Flex>(false), [-1.0, 2.0]);
    assert_eq!(by_running::<B>(true), [-1.0, 2.0]);
    assert_eq!(by_running::<B>(false), [-1.0, 1.0]);
}

#[test]
fn a_pass_with_recomputed_activations_has_the_same_statistics_once() {
    let _alone = contract::alone();
    let device = Default::default();
    let model = small().build::<B>(vocabulary(IMAGE, 5), &device).unwrap();
    let x = Tensor::<B, 4>::random([3, 3, 10, 7], Distribution::Normal(0.0, 1.0), &device);
    let targets = Tensor::from_data([[1], [0], [4]], &device);
    let passes = [None, Some(Recompute::Layers), Some(Recompute::Every(2))].map(|cut| {
        let pass = || model.forward(x.clone());
        let (logits, mut recording) = recompute::record::<B, _>(Default::default(), cut, pass);
        let noted = recording.take_statistics();
        // The stem and eight other convolutions have a running mean and a running variance each.
        assert_eq!(noted.len(), 2 * 9, "{cut:?}");
        let loss = Loss::new(logits, targets.clone()).cross_entropy;
        let mut gradients = GradientsParams::new();
        recording.add_gradients(loss, &model, &mut gradients);
        let stem = gradients.remove::<Flex, 4>(
            params::list::<B, _>(&model)
                .iter()
                .find(|info| info.name == "embeddings.stem.weight")
                .unwrap()
                .id,
        );
        let moved = statistics::apply(model.clone(), noted);
        (numbers(stem.unwrap()), params::export::<B, _>(&moved))
    });
    for (gradient, moved) in &passes[1..] {
        for (a, b) in gradient.iter().zip(&passes[0].0) {
            assert!((a - b).abs() < 1e-6, "{a} {b}");
        }
        assert_eq!(*moved, passes[0].1);
    }
    let fresh = params::export::<B, _>(&model);
    let moved = &passes[0].1;
    let changed: Vec<_> = fresh
        .keys()
        .filter(|name| fresh[*name] != moved[*name])
        .collect();
    assert_eq!(changed.len(), 2 * 9, "{changed:?}");
    assert!(changed.iter().all(|name| name.contains("running_")));
}

/// Weight decay applies to the convolutions alone.
#[test]
fn convolutions_are_weights_and_the_rest_is_not() {
    let model = small()
        .build::<B>(vocabulary(IMAGE, 5), &Default::default())
        .unwrap();
    for info in params::list::<B, _>(&model) {
        let expected = match (info.shape.len(), info.name.contains(".norm.")) {
            (4, _) => Role::Weight,
            (_, true) => Role::Norm,
            _ => Role::Unembedding,
        };
        assert_eq!(info.role, expected, "{}", info.name);
        assert_eq!(info.trainable, !info.name.contains("running_"));
    }
}

#[test]
fn a_stream_and_images_are_the_same_numbers() {
    let x = Tensor::<Flex, 4>::random([2, 4, 5, 3], Distribution::Default, &Default::default());
    let there = stream(x.clone());
    assert_eq!(there.dims(), [2, 20, 3]);
    // Row 2, column 1.
    let pixel = there.clone().narrow(1, 11, 1).squeeze_dim::<2>(1);
    let expected = x.clone().narrow(1, 2, 1).narrow(2, 1, 1);
    assert_eq!(numbers(pixel), numbers(expected));
    assert_eq!(numbers(images(there, 4)), numbers(x));
}

#[test]
fn a_padded_shortcut_has_every_second_pixel_and_channels_of_zeros() {
    let x = Tensor::<Flex, 4>::random([1, 5, 4, 2], Distribution::Default, &Default::default());
    let y = images(Shortcut::padded(5, 2, 3).forward(stream(x.clone())), 3);
    assert_eq!(y.dims(), [1, 3, 2, 5]);
    let at = |t: &Tensor<Flex, 4>, c: usize, h: usize, w: usize| {
        numbers(t.clone().narrow(3, c, 1).narrow(1, h, 1).narrow(2, w, 1))[0]
    };
    for (h, w) in [(0, 0), (1, 1), (2, 0), (2, 1)] {
        for c in 0..2 {
            assert_eq!(at(&y, c, h, w), at(&x, c, 2 * h, 2 * w));
        }
        assert!((2..5).all(|c| at(&y, c, h, w) == 0.0));
    }
}

#[test]
fn wrong_sizes_are_named() {
    let error = |config: ResNetConfig| config.validate().unwrap_err().to_string();
    let wrong = [
        (
            ResNetConfig {
                depths: vec![1],
                ..small()
            },
            "`depths` has length 1, but `widths` has length 2",
        ),
        (
            ResNetConfig {
                widths: vec![4, 0],
                ..small()
            },
            "`widths.1` is 0",
        ),
        (
            ResNetConfig {
                depths: vec![0, 1],
                ..small()
            },
            "`depths.0` is 0",
        ),
        (
            ResNetConfig {
                widths: vec![],
                depths: vec![],
                ..small()
            },
            "`depths` has length 0",
        ),
        (
            ResNetConfig {
                block: BlockKind::Bottleneck { expansion: 0 },
                ..small()
            },
            "`block.expansion` is 0",
        ),
        (
            ResNetConfig {
                stem_width: Some(0),
                ..small()
            },
            "`stem_width` is 0",
        ),
        (
            ResNetConfig {
                widths: vec![6, 4],
                ..small()
            },
            "stage 1 goes from 6 channels to 4",
        ),
        (
            ResNetConfig {
                norm_momentum: 1.5,
                ..small()
            },
            "`norm_momentum` is 1.5",
        ),
        (
            ResNetConfig {
                norm_eps: 0.0,
                ..small()
            },
            "`norm_eps`",
        ),
    ];
    for (config, expected) in wrong {
        let error = error(config);
        assert!(error.contains(expected), "{error}");
    }
    assert!(small().build::<Flex>(37, &Default::default()).is_err());
}
