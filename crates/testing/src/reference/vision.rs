//! The cases of vision transformers.

use burn::tensor::TensorData;
use residual_zoo::ModelConfig as Zoo;
use residual_zoo::core::{ImageSize, NormParams, Vocabulary};
use residual_zoo::gpt2::Gpt2Config;
use residual_zoo::tokenformer::TokenFormerConfig;
use residual_zoo::vit::{Patches, Pool};

use super::{Keys, Translate, gpt2_name, normalization, swap, tau, tokenformer_name};

/// The images of a case in classes.
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
            // `[width, channels, size, size]` there.
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
