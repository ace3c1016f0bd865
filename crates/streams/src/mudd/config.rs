//! The config of MUDD.

use burn::module::{Initializer, Param};
use burn::tensor::{TensorData, backend::Backend};
use residual_zoo_core::{
    Activation, ConfigError, Cost, Design, Frame, Norm, NormDesign, RmsScale, Sites, check, normal,
};
use serde::{Deserialize, Serialize};

use super::{FirstSource, Generator, Mixtures, Mudd};
use crate::qkv_norms::QkvNorms;

/// The inputs of a layer that have a mixture. The end of the stream always has one mixture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MuddWays {
    /// One mixture, which q, k, v and r share. Without `own_norms`, this is the paper's DDFormer, whose static form is
    /// DenseFormer.
    One,
    /// A mixture for each letter of this string: q, k, v, or r (the residual). Inputs without a letter are X_{l+1}, the
    /// output of the layer before.
    Each(String),
}

impl Default for MuddWays {
    fn default() -> Self {
        Self::Each(INPUTS.into())
    }
}

/// PrePostDANorm (eq. 10): norms before and after the mixtures. The mixtures are added to X_{l+1}. The scale of a norm
/// after a mixture is initially 1e-3, and a is initially 0. The norm before W_1 also has a scale. The paper needs these
/// norms for deep, narrow models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PrePost {
    /// As in the paper: a norm after every mixture.
    Paper,
    /// As in the authors' JAX code: a norm only after the mixture that becomes r. With `ways: One`, this is the only
    /// mixture.
    Code,
}

/// The config of [`Mudd`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MuddConfig {
    /// The inputs of a layer that have a mixture.
    pub ways: MuddWays,
    /// Whether the weights w depend on X_{l+1}. Otherwise, w equals the parameter a, and there are no W_1 and W_2.
    pub dynamic: bool,
    /// Whether q, k and v have norms of their own, LN_q, LN_k and LN_v, as in the paper. The attention of layer 0 has
    /// one norm, because its inputs are equal. If false, the norm of the branch serves all three.
    pub own_norms: bool,
    /// The kind of the sublayers' norms. It has an effect only with `own_norms`. The default is GPT-2's norm; for an
    /// architecture with RMS norms, write `Rms(scale: Scale, eps: 1e-6)`.
    pub norm: NormDesign,
    /// Norms before and after the mixtures. `None` means none.
    pub pre_post: Option<PrePost>,
    /// The activation between W_1 and W_2: GELU with the error function, as in the authors' PyTorch code, or with tanh,
    /// as in their JAX code. The paper does not specify the form.
    pub activation: Activation,
    /// K is raised to the next larger multiple of this number (64 in the authors' code), even if K already is a
    /// multiple. `None` leaves K unchanged, as in the paper.
    pub hidden_multiple: Option<usize>,
    /// Whether K of the last layer is four times as large, before it is raised to a multiple.
    pub wide_last: bool,
    /// ε of the RMS norms before W_1 and around the mixtures, added to the mean square.
    pub norm_eps: f64,
}

impl Default for MuddConfig {
    fn default() -> Self {
        Self {
            ways: MuddWays::default(),
            dynamic: true,
            own_norms: true,
            norm: NormDesign::default(),
            pre_post: None,
            activation: Activation::GeluErf,
            hidden_multiple: None,
            wide_last: true,
            norm_eps: 1e-6,
        }
    }
}

/// All inputs of a layer.
const INPUTS: &str = "qkvr";

/// The initial scale of the norms after mixtures.
const BEHIND: f64 = 1e-3;

/// The largest `hidden_multiple`. The authors' code uses 64.
const MOST_MULTIPLE: usize = 1 << 16;

impl MuddConfig {
    /// Returns the inputs that have a mixture after layer `l`, as letters.
    fn ways(&self, on: &Sites, l: usize) -> impl Iterator<Item = char> {
        let is_last = l + 1 >= on.layers();
        INPUTS.chars().filter(move |input| match &self.ways {
            MuddWays::Each(letters) if !is_last => letters.contains(*input),
            _ => *input == 'r',
        })
    }

    /// Returns C (l + 2), the number of weights in the mixtures after layer `l`.
    fn weights(&self, on: &Sites, l: usize) -> usize {
        self.ways(on, l).count() * (l + 2)
    }

    /// Returns K of the mixtures after layer `l`.
    fn hidden(&self, on: &Sites, l: usize) -> usize {
        let widened = match self.wide_last && l + 1 == on.layers() {
            true => 4,
            false => 1,
        };
        let k = widened * self.weights(on, l);
        match self.hidden_multiple {
            Some(multiple) => (k / multiple + 1) * multiple,
            None => k,
        }
    }

    fn rms(&self, scale: RmsScale) -> NormDesign {
        let eps = self.norm_eps;
        NormDesign::Rms { scale, eps }
    }

    /// Returns the norm before W_1.
    fn norm_of_generator(&self) -> NormDesign {
        self.rms(match self.pre_post {
            Some(_) => RmsScale::Scale,
            None => RmsScale::None,
        })
    }

    /// Builds the norm of a source.
    fn norm_of_source<B: Backend>(&self, on: &Sites, device: &B::Device) -> Norm<B> {
        match self.pre_post {
            Some(_) => self.rms(RmsScale::Scale).build(on.width, device),
            None => Norm::identity(),
        }
    }

    /// Builds the norms after the mixtures of these `ways`; `None` without `pre_post`.
    fn norms_behind<B: Backend>(
        &self,
        on: &Sites,
        ways: &str,
        device: &B::Device,
    ) -> Option<Vec<Norm<B>>> {
        let form = self.pre_post?;
        let norm = |way: char| match form == PrePost::Paper || way == 'r' {
            true => {
                let mut norm = self.rms(RmsScale::Scale).build(on.width, device);
                let start = Initializer::Constant { value: BEHIND };
                norm.gamma = Some(start.init([on.width], device));
                norm
            }
            false => Norm::identity(),
        };
        Some(ways.chars().map(norm).collect())
    }

    fn mixtures<B: Backend>(&self, on: &Sites, l: usize, device: &B::Device) -> Mixtures<B> {
        let ways: String = self.ways(on, l).collect();
        let (hidden, weights) = (self.hidden(on, l), self.weights(on, l));
        let generator = || Generator {
            norm: self.norm_of_generator().build(on.width, device),
            w1: normal([on.width, hidden], (on.width as f64).powf(-0.5), device),
            w2: Initializer::Zeros.init([hidden, weights], device),
            activation: self.activation,
        };
        // Without `pre_post`, each mixture has the row 0, …, 0, 1. With `pre_post`, a is 0.
        let is_own = |at: usize| (at + 1).is_multiple_of(l + 2) && self.pre_post.is_none();
        let a: Vec<f64> = (0..weights).map(|at| f64::from(is_own(at))).collect();
        Mixtures {
            generator: self.dynamic.then(generator),
            mixing: Param::from_data(TensorData::new(a, [ways.len(), l + 2]), device),
            norm_source: self.norm_of_source(on, device),
            norms_behind: self.norms_behind(on, &ways, device),
            apart: self.ways != MuddWays::One && l + 1 < on.layers(),
            ways,
        }
    }

    /// Returns the cost of the mixtures after layer `l`.
    fn mixtures_cost(&self, on: &Sites, l: usize) -> Cost {
        let width = on.width;
        let (hidden, weights) = (self.hidden(on, l), self.weights(on, l));
        let generator = match self.dynamic {
            true => {
                self.norm_of_generator().cost(width)
                    + Cost::linear(width, hidden, false)
                    + Cost::linear(hidden, weights, false)
            }
            false => Cost::default(),
        };
        let norms = match self.pre_post {
            Some(PrePost::Paper) => 1 + self.ways(on, l).count(),
            Some(PrePost::Code) => 1 + usize::from(self.ways(on, l).any(|way| way == 'r')),
            None => 0,
        };
        let mixing = Cost::vector(weights) + Cost::flops(2 * weights * width);
        generator + mixing + Cost::vector(width) * norms
    }
}

impl Design for MuddConfig {
    type Connection<B: Backend> = Mudd<B>;
    type Ends<B: Backend> = FirstSource<B>;

    fn name(&self) -> &'static str {
        match self.dynamic {
            true => "MUDD",
            false => "static MUDD",
        }
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        let reason = "the inputs of its queries, keys and values differ";
        on.need_sublayers("Mudd", reason)?;
        match self.ways == MuddWays::One && !self.own_norms {
            true => on.need_attention("Mudd", "its mixtures follow layers with attention")?,
            false => {
                let reason = format!("{reason}; use `ways: One, own_norms: false`");
                on.need_inputs("Mudd", &reason)?;
            }
        }
        on.need_depth("Mudd", "its mixtures read the outputs of earlier layers")?;
        if let MuddWays::Each(letters) = &self.ways {
            let invalid = |c: char| !INPUTS.contains(c) || letters.matches(c).count() > 1;
            if letters.is_empty() || letters.contains(invalid) {
                let problem = format!(
                    "is {letters:?}; it must consist of the letters q, k, v and r, each at most once"
                );
                return Err(ConfigError::new("ways", problem));
            }
        }
        if let Some(multiple) = self.hidden_multiple {
            check::at_least_one("hidden_multiple", multiple)?;
            check::at_most("hidden_multiple", multiple, MOST_MULTIPLE)?;
        }
        self.norm.validate()?;
        check::positive("norm_eps", self.norm_eps)
    }

    fn frame(&self, _: usize) -> Frame {
        Frame {
            pre_norm: !self.own_norms,
            ..Frame::default()
        }
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> Mudd<B> {
        let l = on.layer(i);
        let is_three = on.is_attention(i) && l > 0;
        let is_last = (i + 1).is_multiple_of(on.per_layer);
        Mudd {
            norm: match self.own_norms && !is_three {
                true => self.norm.build(on.width, device),
                false => Norm::identity(),
            },
            norms: (self.own_norms && is_three).then(|| QkvNorms::new(self.norm, on.width, device)),
            mixtures: is_last.then(|| self.mixtures(on, l, device)),
            layer: l,
        }
    }

    fn ends<B: Backend>(&self, on: &Sites, device: &B::Device) -> FirstSource<B> {
        FirstSource {
            norm: self.norm_of_source(on, device),
        }
    }

    fn cost(&self, on: &Sites) -> Cost {
        let layers = on.layers();
        let mixtures = (0..layers).map(|l| self.mixtures_cost(on, l));
        let mixtures = mixtures.fold(Cost::default(), |sum, cost| sum + cost);
        let norms = match self.own_norms {
            // Attention has three norms in all layers but the first.
            true => self.norm.cost(on.width) * (on.count + 2 * layers.saturating_sub(1)),
            false => Cost::default(),
        };
        let first = match self.pre_post {
            Some(_) => Cost::vector(on.width),
            None => Cost::default(),
        };
        mixtures + norms + first
    }
}
