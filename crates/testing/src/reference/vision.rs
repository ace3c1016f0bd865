//! Cases of image models.

use burn::tensor::TensorData;
use residual_zoo_models::ModelConfig as Zoo;
use residual_zoo_models::core::{Architecture, ImageSize, NormParams, Vocabulary};
use residual_zoo_models::gpt2::Gpt2Config;
use residual_zoo_models::laurel::LaurelConfig;
use residual_zoo_models::resnet::{BlockKind, ResNetConfig, ShortcutKind, Stem};
use residual_zoo_models::tokenformer::TokenFormerConfig;
use residual_zoo_models::vit::{Patches, Pool};

use super::{
    Keys, Translate, connection, gpt2_name, laurel_tensor, normalization, swap, tau,
    tokenformer_name,
};

/// Reads a case's image size and number of classes.
pub fn vocabulary(keys: &mut Keys) -> Result<Vocabulary, String> {
    let sides = keys.take("image")?;
    let side = |i: usize| sides[i].as_u64().map(|side| side as usize);
    let size = ImageSize {
        channels: keys.take_size("channels")?,
        height: side(0).ok_or("image is not a size")?,
        width: side(1).ok_or("image is not a size")?,
    };
    Ok(Vocabulary::of_images(size, keys.take_size("classes")?))
}

/// Translates the reference's config of a vision transformer to the zoo's.
pub fn model(keys: &mut Keys) -> Result<(Zoo, Translate), String> {
    let patches = Patches {
        size: keys.take_size("patch")?,
        class_token: keys.take_switch("class_token")?,
        pool: keys.choose("pool", &[("cls", Pool::ClassToken), ("mean", Pool::Mean)])?,
    };
    let norms = [
        ("none", NormParams::None),
        ("weight", NormParams::Scale),
        ("both", NormParams::ScaleAndShift),
    ];
    let norm_params = keys.choose("norm_affine", &norms)?;
    let pairs = keys.choose("projection", &[("pattention", true), ("linear", false)])?;
    let zoo = match pairs {
        true => Zoo::of(TokenFormerConfig {
            n_attn: Some(keys.take_size("n_attn")?),
            n_ffn: Some(keys.take_size("n_ffn")?),
            normalization: normalization(keys)?,
            tau: tau(keys)?,
            pattention_eps: keys.take_number("pattention_eps")?,
            norm_params,
            n_layer: keys.take_size("n_layer")?,
            n_head: keys.take_size("n_head")?,
            width: keys.take_size("d_model")?,
            activation: keys.activation()?,
            norm_eps: keys.take_number("ln_eps")?,
            ..TokenFormerConfig::default()
        }),
        false => Zoo::of(Gpt2Config {
            d_ff: Some(keys.take_size("d_ff")?),
            n_layer: keys.take_size("n_layer")?,
            n_head: keys.take_size("n_head")?,
            width: keys.take_size("d_model")?,
            activation: keys.activation()?,
            norm_eps: keys.take_number("ln_eps")?,
            ..Gpt2Config::default()
        }),
    };
    if !pairs && norm_params != NormParams::ScaleAndShift {
        return Err(format!("a ViT with norms of {norm_params:?}"));
    }
    Ok((zoo.on_patches(patches), Box::new(tensor)))
}

fn tensor(name: &str, mut data: TensorData) -> Vec<(String, TensorData)> {
    let shape = data.shape.to_vec();
    let name = match name {
        "patch.weight" => {
            // In the reference, the shape is `[width, channels, size, size]`.
            let values = shape[1..].iter().product();
            data = swap(data, [1, shape[0], values, 1], &[values, shape[0]]);
            "embeddings.patch.weight".into()
        }
        "patch.bias" => "embeddings.patch.bias".into(),
        "pos" => "embeddings.positions".into(),
        "cls" => {
            data.shape = vec![1, shape[0]].into();
            "embeddings.class_token".into()
        }
        "head.weight" => "embeddings.unembedding.weight".into(),
        "head.bias" => "embeddings.unembedding.bias".into(),
        other => gpt2_name(&tokenformer_name(other)),
    };
    vec![(name, data)]
}

/// Translates the reference's config of a ResNet to the zoo's.
pub fn resnet(keys: &mut Keys) -> Result<(Zoo, Translate), String> {
    let expansion = keys.take_size("expansion")?;
    let blocks = [
        ("basic", BlockKind::Basic),
        ("bottleneck", BlockKind::Bottleneck { expansion }),
    ];
    let stems = [("imagenet", Stem::ImageNet), ("cifar", Stem::Cifar)];
    let shortcuts = [
        ("projection", ShortcutKind::Projection),
        ("pad", ShortcutKind::Pad),
    ];
    let config = ResNetConfig {
        block: keys.choose("block", &blocks)?,
        widths: keys.take_sizes("widths")?,
        depths: keys.take_sizes("depths")?,
        stem: keys.choose("stem", &stems)?,
        stem_width: Some(keys.take_size("stem_width")?),
        shortcut: keys.choose("shortcut", &shortcuts)?,
        norm_eps: keys.take_number("bn_eps")?,
        norm_momentum: keys.take_number("bn_momentum")?,
        frozen_norm: keys.choose("batch_norm", &[("train", false), ("eval", true)])?,
    };
    let laurel = connection(keys)?;
    let streams = config.streams();
    // Returns the name of block i in the zoo, and whether the block has its own stream.
    let place = move |mut i: usize| {
        let mut streams = streams.iter().enumerate();
        let found = streams.find_map(|(stream, size)| {
            if i < size.n_layer {
                return Some((format!("block.{stream}.layers.{i}"), size.alone));
            }
            i -= size.n_layer;
            None
        });
        found.expect("a block of the config")
    };
    let zoo = Zoo::of(config);
    let zoo = match laurel == LaurelConfig::default() {
        true => zoo,
        false => zoo.per_sublayer(laurel),
    };
    let connections = laurel_tensor(|_, _| vec![], {
        let place = place.clone();
        move |i| match place(i) {
            (place, true) => format!("{place}.connection"),
            (place, false) => place,
        }
    });
    let tensor = move |name: &str, data: TensorData| {
        if name.starts_with("laurel.") {
            return connections(name, data);
        }
        let (module, parameter) = name.rsplit_once('.').expect("a module and a parameter");
        let parameter = match (module.ends_with(".bn"), parameter) {
            (true, "weight") => "gamma",
            (true, "bias") => "beta",
            _ => parameter,
        };
        let module = module.replace(".bn", ".norm");
        let module = match module.strip_prefix("blocks.") {
            None => format!("embeddings.{}", module.replace("head", "unembedding")),
            Some(rest) => {
                let (i, rest) = rest.split_once('.').expect("a number and a module");
                let rest = match rest.strip_prefix("conv") {
                    Some(rest) => {
                        let (number, rest) = rest.split_at(1);
                        let number: usize = number.parse().expect("a number");
                        format!("branch.convs.{}{rest}", number - 1)
                    }
                    None => rest.replace("shortcut", "shortcut.projection"),
                };
                format!("{}.{rest}", place(i.parse().expect("a number")).0)
            }
        };
        vec![(format!("{module}.{parameter}"), data)]
    };
    Ok((zoo, Box::new(tensor)))
}
