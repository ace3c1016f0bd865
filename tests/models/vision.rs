//! Models of images.

use burn::backend::{Autodiff, Flex};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use residual_zoo::core::Activation;
use residual_zoo::core::{ImageSize, ModelConfig, Transfer as _, Vocabulary, contract, params};
use residual_zoo::data::Corpus;
use residual_zoo::gpt2::Gpt2Config;
use residual_zoo::laurel::LaurelConfig;
use residual_zoo::resnet::{BlockKind, ResNetConfig};
use residual_zoo::streams::{DeepNormConfig, ValueResidualConfig};
use residual_zoo::tokenformer::TokenFormerConfig;
use residual_zoo::train::Trainer;
use residual_zoo::vit::Patches;
use residual_zoo::{ModelConfig as Zoo, RunConfig};
use residual_zoo_testing::zoo::{IMAGE, WIDTH, gpt2, recurrence, resnet, rmt, vision};

#[test]
fn every_model_of_images_keeps_the_contract() {
    for (name, config) in vision() {
        println!("{name}");
        contract::check_images::<Autodiff<Flex>, _>(&config, IMAGE, &Default::default());
    }
}

/// `docs/papers/vit.md` has these figures.
#[test]
fn vision_transformers_have_the_parameters_of_their_papers() {
    let image = ImageSize {
        channels: 3,
        height: 224,
        width: 224,
    };
    let count = |layers: Zoo| {
        let vit = layers.on_patches(Patches::default());
        vit.cost(Vocabulary::of_images(image, 1000)).params.total()
    };
    let vit = |config: Gpt2Config| {
        count(Zoo::of(Gpt2Config {
            activation: Activation::GeluErf,
            norm_eps: 1e-6,
            ..config
        }))
    };
    let tokenformer = |config: TokenFormerConfig| count(Zoo::of(config));
    assert_eq!(vit(Gpt2Config::small()), 86_567_656);
    assert_eq!(vit(Gpt2Config::medium()), 304_326_632);
    assert_eq!(tokenformer(TokenFormerConfig::base_86m()), 86_446_312);
    assert_eq!(tokenformer(TokenFormerConfig::base_109m()), 114_757_864);
    assert_eq!(tokenformer(TokenFormerConfig::large_307m()), 304_005_096);
    assert_eq!(tokenformer(TokenFormerConfig::large_407m()), 404_668_392);
    let printed = TokenFormerConfig {
        n_ffn: Some(768),
        ..TokenFormerConfig::large_307m()
    };
    assert_eq!(tokenformer(printed), 190_758_888);
}

/// `docs/papers/resnet.md` has these figures.
#[test]
fn laurel_adds_the_counted_parameters_to_a_resnet() {
    let added = |config: ResNetConfig, image: [usize; 3], classes, laurel: LaurelConfig| {
        let images = Vocabulary::of_images(image.into(), classes);
        let count = |config: Zoo| config.cost(images).params.total();
        let plain = Zoo::of(config);
        count(plain.clone().per_sublayer(laurel)) - count(plain)
    };
    let imagenet = |laurel| added(ResNetConfig::resnet_50(), [3, 224, 224], 1000, laurel);
    assert_eq!(imagenet(LaurelConfig::rw()), 32);
    assert_eq!(
        imagenet(LaurelConfig {
            per_dimension: true,
            ..LaurelConfig::rw()
        }),
        30_208
    );
    assert_eq!(imagenet(LaurelConfig::lr(16)), 483_328);
    assert_eq!(imagenet(LaurelConfig::rw_lr_pa(3, 16)), 1_450_064);
    let imagenet = Vocabulary::of_images([3, 224, 224].into(), 1000);
    let count = |config: ResNetConfig| Zoo::of(config).cost(imagenet).params.total();
    let one_more = ResNetConfig {
        depths: vec![3, 4, 7, 3],
        ..ResNetConfig::resnet_50()
    };
    let plain = count(ResNetConfig::resnet_50());
    assert_eq!(count(one_more) - plain, 1_117_184);
    let cifar = |laurel| added(ResNetConfig::cifar(3), [3, 32, 32], 10, laurel);
    assert_eq!(cifar(LaurelConfig::rw_lr(4)), 2_688 + 18);
    assert_eq!(cifar(LaurelConfig::rw_lr_pa(3, 4)), 8_064 + 45);
    let small = ResNetConfig {
        widths: vec![8, 16, 32],
        ..ResNetConfig::cifar(3)
    };
    let small = |laurel| added(small.clone(), [3, 32, 32], 10, laurel);
    assert_eq!(small(LaurelConfig::rw()), 18);
    assert_eq!(small(LaurelConfig::pa(3)), 27);
    assert_eq!(small(LaurelConfig::rw_lr(2)), 690);
    assert_eq!(small(LaurelConfig::rw_lr_pa(3, 2)), 2_061);
}

/// A skipped step does not move the running statistics. Several micro-batches move them one after the other.
#[test]
fn running_statistics_move_with_good_steps() {
    const MEAN: &str = "embeddings.stem.norm.running_mean";
    let _alone = contract::alone();
    let text = "(model: ResNet(block: Basic, widths: [4], depths: [1], stem: Cifar), \
                data: (source: Images(set: Shapes(images: 40, size: 8))), \
                train: (steps: 9, batch: 3, accumulate: 2, learning_rate: 1e-2))";
    let config = RunConfig::parse(text, "test.ron".as_ref()).unwrap();
    let corpus = Corpus::open(&config.data).unwrap();
    let mut trainer =
        Trainer::<Autodiff<Flex>, Zoo>::new(config, &corpus, Default::default()).unwrap();
    let mean = |trainer: &Trainer<_, _>| -> Vec<f32> {
        let mut all = params::export::<Autodiff<Flex>, _>(trainer.model());
        all.remove(MEAN).unwrap().iter().collect()
    };
    let noted = |trainer: &Trainer<Autodiff<Flex>, Zoo>, micro| {
        let batch = trainer.upload(&trainer.batch(micro).unwrap());
        trainer.forward(batch, micro).1.take_statistics()
    };
    let both = [noted(&trainer, 0), noted(&trainer, 1)].concat();
    let skipped = Tensor::from_floats([f32::NAN], &Default::default());
    trainer.update(skipped, GradientsParams::new(), both);
    assert_eq!(mean(&trainer), [0.0; 4]);
    // The stem is the first module with statistics, and its mean is the first of its two statistics.
    let [first, second] = [0, 1].map(|micro| -> Vec<f32> {
        let statistics = noted(&trainer, micro);
        statistics[0].value.to_data().iter().collect()
    });
    assert!(trainer.step().unwrap().skipped.is_none());
    for ((found, a), b) in mean(&trainer).iter().zip(first).zip(second) {
        let expected = 0.9 * 0.1 * a + 0.1 * b;
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
}

/// The images are small, so that each product can be counted by hand.
#[test]
fn the_flops_are_those_of_an_image() {
    let layers = Gpt2Config {
        n_layer: 1,
        n_head: 2,
        width: 8,
        ..Gpt2Config::default()
    };
    let patches = Patches {
        size: 2,
        ..Patches::default()
    };
    let (patch_count, positions) = (15, 16);
    let embed = patch_count * 2 * 12 * 8;
    let layer = positions * (2 * 8 * 24 + 4 * positions * 8 + 2 * 8 * 8 + 2 * 2 * 8 * 32);
    let head = 2 * 8 * 5;
    let cost = Zoo::of(layers)
        .on_patches(patches)
        .cost(Vocabulary::of_images(IMAGE, 5));
    assert_eq!(cost.forward_flops, embed + layer + head);
}

#[test]
fn what_does_not_go_with_patches_is_refused_in_one_line() {
    let patches = Patches {
        size: 2,
        ..Patches::default()
    };
    let images = Vocabulary::of_images(IMAGE, 5);
    let built = |config: Zoo, vocabulary: Vocabulary| {
        let built = config.build::<Flex>(vocabulary, &Default::default());
        built.expect_err("an error").to_string()
    };
    let others = Patches {
        size: 3,
        ..Patches::default()
    };
    let error = gpt2()
        .on_patches(patches)
        .grows_from(&gpt2().on_patches(others))
        .unwrap_err();
    assert_eq!(error.field, "model.patches");
    let tuned = Zoo::of(TokenFormerConfig {
        added: Some(residual_zoo::tokenformer::Added { attn: 2, ffn: 3 }),
        ..TokenFormerConfig::m150()
    });
    let recurrent = gpt2().recurrent(recurrence(8, Default::default()));
    for (config, vocabulary, expected) in [
        (
            rmt().on_patches(patches),
            images,
            "RMT, which reads only text",
        ),
        (recurrent.on_patches(patches), images, "no order in time"),
        (gpt2(), images, "the data are images"),
        (
            resnet(BlockKind::Basic),
            37.into(),
            "the data are token ids",
        ),
        (
            resnet(BlockKind::Basic).on_patches(patches),
            images,
            "reads whole images",
        ),
        (
            resnet(BlockKind::Basic).recurrent(recurrence(8, Default::default())),
            images,
            "no order in time",
        ),
        (
            resnet(BlockKind::Basic).per_layer(LaurelConfig::rw()),
            images,
            "use PerSublayer",
        ),
        (
            resnet(BlockKind::Basic).per_sublayer(DeepNormConfig::default()),
            images,
            "a ResNet has none",
        ),
        (
            resnet(BlockKind::Basic).per_sublayer(ValueResidualConfig::default()),
            images,
            "without attention",
        ),
        (
            Zoo::in_turn([
                resnet(BlockKind::Basic).layers.remove(0),
                gpt2().layers.remove(0),
            ]),
            images,
            "cannot alternate with other architectures",
        ),
        (tuned.on_patches(patches), images, "would still be trained"),
        (
            gpt2().on_patches(patches),
            37.into(),
            "the data are token ids",
        ),
        (
            gpt2().on_patches(Patches { size: 4, ..patches }),
            images,
            "`model.patches.size`",
        ),
    ] {
        let error = built(config, vocabulary);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_model_on_patches_is_read_as_it_is_written() {
    for (name, config) in vision() {
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(
            serde_json::from_str::<Zoo>(&text).unwrap(),
            config,
            "{name}"
        );
        let is_patched = config.patches.is_some();
        assert_eq!(text.contains("patches"), is_patched, "{text}");
    }
    assert!(
        !serde_json::to_string(&gpt2().per_sublayer(residual_zoo::laurel::LaurelConfig::rw()))
            .unwrap()
            .contains("patches")
    );
}

/// Without a causal mask, the order of the patches matters only through their positions.
#[test]
fn without_positions_the_class_does_not_depend_on_the_order_of_the_patches() {
    use residual_zoo::core::LanguageModel;
    let device = Default::default();
    let config = gpt2().on_patches(Patches {
        size: 2,
        ..Patches::default()
    });
    let model = config
        .build::<Flex>(Vocabulary::of_images(IMAGE, 5), &device)
        .unwrap();
    let mut weights = params::export::<Flex, _>(&model);
    let positions = weights.get_mut("embeddings.positions").unwrap();
    *positions = Tensor::<Flex, 2>::zeros([16, WIDTH], &device).into_data();
    let model = params::import::<Flex, _>(model, weights).unwrap();
    let shape = [2, IMAGE.channels, IMAGE.height, IMAGE.width];
    let images =
        Tensor::<Flex, 4>::random(shape, burn::tensor::Distribution::Normal(0.0, 1.0), &device);
    // The upper row of patches goes below the others.
    let [upper, lower] = [(0, 2), (2, 4)].map(|(from, rows)| images.clone().narrow(2, from, rows));
    let other = Tensor::cat(vec![lower, upper], 2);
    let difference = (model.classify(images.clone()) - model.classify(other))
        .abs()
        .max();
    assert!(difference.into_scalar() < 1e-5);
    let flipped = images.clone().flip([3]);
    let difference = (model.classify(images) - model.classify(flipped))
        .abs()
        .max();
    assert!(difference.into_scalar() > 1e-3);
}
