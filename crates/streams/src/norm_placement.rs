//! Places of norms. N is a norm, F the branch without its norm, l the layer, counted from 0, and P a number of layers:
//!
//! ```text
//! Peri:        x_{i+1} = x_i + N(F(N(x_i)))
//! PostBranch:  x_{i+1} = x_i + N(F(x_i))
//! Lns:         x_{i+1} = x_i + F(N(x_i) / √(l + 1))
//! Mix:         x_{i+1} = N(x_i + F(x_i)) in the first P layers, then x_i + F(N(x_i))
//! ```
//!
//! Each N has its own parameters, and the final norm stays. Sources:
//!
//! - `Peri`: Kim et al., "Peri-LN", 2025, <https://arxiv.org/abs/2502.02732>. Gemma 2 has these norms too.
//! - `PostBranch`: OLMo 2 (Team OLMo, 2025, <https://arxiv.org/abs/2501.00656>).
//! - `Lns`: LayerNorm Scaling (Sun et al., "The curse of depth in large language models", 2025,
//!   <https://arxiv.org/abs/2502.05795>).
//! - `Mix`: Mix-LN (Li et al., 2024, <https://arxiv.org/abs/2412.13795>).

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Ends, Frame, Norm, NormDesign,
    NormPlaces, Norms, Sites, Stream,
};
use serde::{Deserialize, Serialize};

/// x_i + f(x_i) with the norms of [`NormPlaces`].
#[derive(Module, Debug)]
pub struct NormPlacement<B: Backend> {
    norms: Norms<B>,
    /// The multiplier of the normalised input of F.
    scale: f64,
}

impl<B: Backend> Connection<B> for NormPlacement<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let x = stream.x;
        let y = f.of_normed(x.clone(), |x| {
            let u = self.norms.before(x);
            match self.scale == 1.0 {
                true => u,
                false => u * self.scale,
            }
        });
        Stream {
            x: self.norms.sum(x, self.norms.behind(y)),
            ..stream
        }
    }
}

/// The ends of a stream that begins with N(x_0), or with x_0 without an embedding norm.
#[derive(Module, Debug)]
pub struct NormedStart<B: Backend> {
    norm: Norm<B>,
}

impl<B: Backend> Ends<B> for NormedStart<B> {
    fn open(&self, x: Tensor<B, 3>) -> Stream<B> {
        Stream::new(self.norm.forward(x))
    }
}

/// The places of the norms around all branches. Only with `Peri` are the initial projections to the stream scaled by
/// depth. The LayerNorm Scaling paper advises against it, the published code of Mix-LN has no such scaling, and OLMo 2
/// has one standard deviation for all weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Placement {
    /// Before and after each branch: x + N(F(N(x))).
    #[default]
    Peri,
    /// After each branch: x + N(F(x)).
    PostBranch,
    /// LayerNorm Scaling, before each branch: x + F(N(x) / √(l + 1)), with l = 0 in the first layer.
    Lns,
    /// Mix-LN: after the sum, N(x + F(x)), in the first layers, and before each branch in the others.
    Mix {
        /// P, the number of layers with a norm of the sum. `None` means a quarter of the layers, rounded down.
        #[serde(default)]
        post_layers: Option<usize>,
    },
}

/// The config of [`NormPlacement`]. In a recurrence, each layer has its own stream, so l is 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NormPlacementConfig {
    /// The places of the norms.
    pub placement: Placement,
    /// Whether the stream begins with N(x_0). The Peri-LN paper calls this norm optional; Gemma 2 does not have it.
    pub embedding_norm: bool,
    /// The kind of all norms but the final one.
    pub norm: NormDesign,
}

impl NormPlacementConfig {
    /// Returns the places of the norms around branch `i`.
    fn places(&self, on: &Sites, i: usize) -> NormPlaces {
        match self.placement {
            Placement::Peri => NormPlaces::Both,
            Placement::PostBranch => NormPlaces::Behind,
            Placement::Lns => NormPlaces::Before,
            Placement::Mix { post_layers } => {
                match on.layer(i) < post_layers.unwrap_or(on.layers() / 4) {
                    true => NormPlaces::Original,
                    false => NormPlaces::Before,
                }
            }
        }
    }
}

impl Design for NormPlacementConfig {
    type Connection<B: Backend> = NormPlacement<B>;
    type Ends<B: Backend> = NormedStart<B>;

    fn name(&self) -> &'static str {
        match self.placement {
            Placement::Peri => "Peri-LN",
            Placement::PostBranch => "norms behind branches",
            Placement::Lns => "LayerNorm Scaling",
            Placement::Mix { .. } => "Mix-LN",
        }
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        on.need_sublayers("NormPlacement", "it takes the norms out of sublayers")?;
        if let Placement::Mix {
            post_layers: Some(p),
        } = self.placement
            && p > on.layers()
        {
            let layers = on.layers();
            let problem = format!("is {p}, but the stream has {layers} layers");
            return Err(ConfigError::new("placement.post_layers", problem));
        }
        self.norm.validate()
    }

    fn frame(&self, _: usize) -> Frame {
        Frame {
            pre_norm: false,
            by_depth: self.placement == Placement::Peri,
            ..Frame::default()
        }
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> NormPlacement<B> {
        NormPlacement {
            norms: (self.places(on, i)).build(self.norm, on.width, true, device),
            scale: match self.placement {
                Placement::Lns => (on.layer(i) as f64 + 1.0).powf(-0.5),
                _ => 1.0,
            },
        }
    }

    fn ends<B: Backend>(&self, on: &Sites, device: &B::Device) -> NormedStart<B> {
        NormedStart {
            norm: match self.embedding_norm {
                true => self.norm.build(on.width, device),
                false => Norm::identity(),
            },
        }
    }

    fn cost(&self, on: &Sites) -> Cost {
        // In Mix-LN, every branch has one norm, so the cost of the first branch holds for all.
        let each = self.places(on, 0).cost(self.norm, on.width, true);
        let start = match self.embedding_norm {
            true => self.norm.cost(on.width),
            false => Cost::default(),
        };
        each * on.count + start
    }
}
