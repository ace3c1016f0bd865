//! The tricks of the speedruns modded-nanogpt (<https://github.com/KellerJordan/modded-nanogpt>) and nanochat
//! (<https://github.com/karpathy/nanochat>) in one stream. Each trick can be omitted:
//!
//! ```text
//! smear:    x_0[t] + s σ(x_0[t, ..c] w) x_0[t − 1]    in place of  x_0[t], at position t
//! layer l:  x ← x + w_k x_{n-k}                       U-net skip
//!           x ← r x + m x_0                           mixture with x_0
//!           x ← x + attention(x)                      with value embeddings in some layers
//!           x ← x + mlp(x)
//! backout:  x_L − λ x_{b+1}                           at the end
//! ```
//!
//! The gate of the smear reads the first c features; w and s are parameters. [`Skips`], [`InitialMix`] and
//! [`ValueEmbedding`] define the other symbols. nanochat has all of these tricks but the U-net skips.

use burn::module::{Initializer, Module, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Ends, Past, Plain, Sites, Stream,
    check, project,
};
use serde::{Deserialize, Serialize};

use crate::{
    Backout, BackoutEnd, InitialMix, InitialMixConfig, InitialMixStart, KeepFirst, SkipWeight,
    Skips, SkipsConfig, ValueEmbedding, ValueEmbeddingConfig,
};

/// x + f(x) with the tricks of this sublayer. The stream carries x_0, then the rows of tables that several layers read,
/// then the outputs that skips read.
#[derive(Module, Debug)]
pub struct Speedrun<B: Backend> {
    /// The smear, in the first sublayer of the stream.
    smear: Option<Smear<B>>,
    /// The mixture with x_0, in the first sublayer of a layer.
    mix: Option<InitialMix<B>>,
    /// The skips: w_k in the first sublayer of a layer, and the kept outputs in the last.
    skips: Option<Skips<B>>,
    values: Option<ValueEmbedding<B>>,
    /// Number of carried tensors before the outputs that skips read.
    before_kept: usize,
    is_first: bool,
    is_last: bool,
}

impl<B: Backend> Connection<B> for Speedrun<B> {
    fn update<M: Branch<B>>(&self, mut stream: Stream<B>, mut f: BranchFn<'_, B, M>) -> Stream<B> {
        let mut kept = stream.carried.split_off(self.before_kept);
        let rows = stream.carried.split_off(1);
        let (mut x, mut x_0) = (stream.x, stream.carried);
        if let Some(smear) = &self.smear {
            x = smear.forward(x, f.earlier().past());
            x_0 = vec![x.clone()];
        }
        if let Some(skips) = self.skips.as_ref().filter(|_| self.is_first) {
            x = skips.before(x, &mut kept);
        }
        if let Some(mix) = &self.mix {
            x = mix.mix(x, x_0[0].clone());
        }
        let inner = Stream {
            x,
            carried: rows,
            ids: stream.ids,
        };
        let updated = match &self.values {
            Some(values) => values.update(inner, f),
            None => Plain.update(inner, f),
        };
        if let Some(skips) = self.skips.as_ref().filter(|_| self.is_last) {
            skips.after(&updated.x, &mut kept);
        }
        let carried = [x_0, updated.carried, kept].concat();
        Stream { carried, ..updated }
    }
}

/// z_t + s σ(z_t\[..c\] w) z_{t−1}, and z_0 at the first position.
#[derive(Module, Debug)]
pub struct Smear<B: Backend> {
    /// w, `[c]`.
    w: Param<Tensor<B, 1>>,
    /// s, `[1]`.
    s: Param<Tensor<B, 1>>,
}

impl<B: Backend> Smear<B> {
    /// Maps z `[batch, time, width]`. With a `past`, z holds the positions that follow it.
    fn forward(&self, z: Tensor<B, 3>, past: Option<&mut Past<B>>) -> Tensor<B, 3> {
        let (time, [c]) = (z.dims()[1], self.w.dims());
        let before = Past::before(past, z.clone(), 1).narrow(1, 0, time);
        let gate = sigmoid(project(
            z.clone().narrow(2, 0, c),
            self.w.val().unsqueeze_dim(1),
        ));
        z + before * gate * self.s.val().unsqueeze()
    }
}

/// Opens a stream that carries x_0. Closes the stream with the backout, if there is one.
#[derive(Module, Debug)]
pub struct SpeedrunEnds<B: Backend> {
    backout: Option<BackoutEnd<B>>,
    /// Number of carried tensors before x_{b+1}, which the end subtracts.
    before_kept: usize,
}

impl<B: Backend> Ends<B> for SpeedrunEnds<B> {
    fn open(&self, x: Tensor<B, 3>) -> Stream<B> {
        KeepFirst.open(x)
    }

    fn close(&self, mut stream: Stream<B>) -> Tensor<B, 3> {
        stream.carried.drain(..self.before_kept);
        match &self.backout {
            Some(backout) => backout.close(stream),
            None => stream.x,
        }
    }
}

/// The config of [`Smear`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SmearConfig {
    /// c, the number of channels of x_0 that the gate reads: 24 in nanochat.
    pub channels: usize,
    /// The initial s.
    pub start: f64,
}

impl Default for SmearConfig {
    fn default() -> Self {
        Self {
            channels: 24,
            start: 0.0,
        }
    }
}

/// The config of [`Speedrun`]. `None` omits a trick.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpeedrunConfig {
    /// The smear, which adds a gated share of the previous position's embedding to each embedding.
    pub smear: Option<SmearConfig>,
    /// The mixture with x_0 before each layer, with these initial r and m.
    pub mix: Option<InitialMixStart>,
    /// The value embeddings.
    pub values: Option<ValueEmbeddingConfig>,
    /// The parametrisation of the U-net skip weights. These skips need an even number of layers.
    pub unet: Option<SkipWeight>,
    /// The layer whose output is subtracted at the end.
    pub backout: Option<Backout>,
    /// The initial λ of the backout: 0.2 in nanochat, 0.5 in modded-nanogpt.
    pub backout_start: f64,
}

impl Default for SpeedrunConfig {
    /// Returns nanochat's form.
    fn default() -> Self {
        Self {
            smear: Some(SmearConfig::default()),
            mix: Some(InitialMixStart::Nanochat),
            values: Some(ValueEmbeddingConfig::default()),
            unet: None,
            backout: Some(Backout::Middle),
            backout_start: 0.2,
        }
    }
}

impl SpeedrunConfig {
    fn mix(&self) -> Option<InitialMixConfig> {
        self.mix.map(|start| InitialMixConfig { start })
    }

    fn skips(&self) -> Option<SkipsConfig> {
        let has_skips = self.unet.is_some() || self.backout.is_some();
        has_skips.then_some(SkipsConfig {
            unet: self.unet,
            unet_start: None,
            backout: self.backout,
            backout_start: self.backout_start,
        })
    }

    /// Returns the number of tables whose rows the stream carries before layer `layer`.
    fn rows(&self, on: &Sites, layer: usize) -> usize {
        let values = self.values.as_ref();
        values.map_or(0, |values| values.kept_rows(on, layer))
    }

    fn validate_smear(&self, on: &Sites) -> Result<(), ConfigError> {
        let Some(smear) = &self.smear else {
            return Ok(());
        };
        if on.ids.is_none() {
            let problem = "does not go with images, because their positions have no order; write `smear: None`";
            return Err(ConfigError::new("smear", problem));
        }
        check::at_least_one("smear.channels", smear.channels)?;
        if smear.channels > on.width {
            let problem = format!(
                "is {}, but the width is {}; write `smear: (channels: {})` or `smear: None`",
                smear.channels,
                on.width,
                (on.width / 2).max(1)
            );
            return Err(ConfigError::new("smear.channels", problem));
        }
        check::finite("smear.start", smear.start)
    }
}

/// Describes the layers of the stream as sites of one connection each.
fn around_layers(on: &Sites) -> Sites {
    Sites {
        count: on.layers(),
        per_layer: 1,
        around_layers: true,
        ..*on
    }
}

impl Design for SpeedrunConfig {
    type Connection<B: Backend> = Speedrun<B>;
    type Ends<B: Backend> = SpeedrunEnds<B>;

    fn name(&self) -> &'static str {
        "speedrun"
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        on.need_sublayers("Speedrun", "it has tricks inside of layers")?;
        on.need_depth("Speedrun", "it connects several layers")?;
        if self.smear.is_none()
            && self.mix.is_none()
            && self.values.is_none()
            && self.skips().is_none()
        {
            let problem = "has no trick; set one of smear, mix, values, unet and backout, or leave the connection out";
            return Err(ConfigError::new("Speedrun", problem));
        }
        if let Some(values) = &self.values {
            let valid = values.validate(on);
            valid.map_err(|error| match error.field.starts_with(char::is_uppercase) {
                true => ConfigError::new("values", error.problem + "; or write `values: None`"),
                false => error.within("values"),
            })?;
        }
        if let Some(skips) = self.skips() {
            skips.validate(&around_layers(on))?;
        }
        check::finite("backout_start", self.backout_start)?;
        self.validate_smear(on)
    }

    fn continues(&self, before: &Self) -> bool {
        fn same<C>(this: &Option<C>, before: &Option<C>, fits: impl Fn(&C, &C) -> bool) -> bool {
            match (this, before) {
                (Some(this), Some(before)) => fits(this, before),
                (None, None) => true,
                _ => false,
            }
        }
        same(&self.smear, &before.smear, |a, b| a.channels == b.channels)
            && self.mix.is_some() == before.mix.is_some()
            && same(
                &self.values,
                &before.values,
                ValueEmbeddingConfig::continues,
            )
            && (self.unet, self.backout) == (before.unet, before.backout)
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> Speedrun<B> {
        let (layer, layers) = (on.layer(i), around_layers(on));
        let is_first = i.is_multiple_of(on.per_layer);
        let is_last = (i + 1).is_multiple_of(on.per_layer);
        let smear = self.smear.as_ref().filter(|_| i == 0);
        let smear = smear.map(|config| {
            let (min, max) = (0.0, 0.02);
            Smear {
                w: Initializer::Uniform { min, max }.init([config.channels], device),
                s: Initializer::Constant {
                    value: config.start,
                }
                .init([1], device),
            }
        });
        let mix = self.mix().filter(|_| is_first);
        let skips = self.skips().filter(|_| is_first || is_last);
        let values = self.values.as_ref();
        let rows = self.rows(on, if is_first { layer } else { layer + 1 });
        Speedrun {
            smear,
            mix: mix.map(|mix| mix.connection(&layers, layer, device)),
            skips: skips.map(|skips| {
                let skips = skips.connection(&layers, layer, device);
                if is_first { skips } else { skips.only_after() }
            }),
            values: values.map(|values| values.connection(on, i, device)),
            before_kept: 1 + rows,
            is_first,
            is_last,
        }
    }

    fn ends<B: Backend>(&self, on: &Sites, device: &B::Device) -> SpeedrunEnds<B> {
        let skips = self.skips();
        SpeedrunEnds {
            backout: skips.map(|skips| skips.ends(&around_layers(on), device)),
            before_kept: 1 + self.rows(on, on.layers()),
        }
    }

    fn cost(&self, on: &Sites) -> Cost {
        let layers = around_layers(on);
        let smear = self
            .smear
            .as_ref()
            .map(|smear| Cost::linear(smear.channels, 1, false) + Cost::vector(1));
        let parts = [
            smear,
            self.mix().map(|mix| mix.cost(&layers)),
            self.values.as_ref().map(|values| values.cost(on)),
            self.skips().map(|skips| skips.cost(&layers)),
        ];
        let parts = parts.into_iter().flatten();
        parts.fold(Cost::default(), |sum, cost| sum + cost)
    }
}
