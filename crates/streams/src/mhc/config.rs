//! The config of mHC and its variants.

use burn::module::{Initializer, Param};
use burn::tensor::{Tensor, TensorData, backend::Backend};
use residual_zoo_core::{ConfigError, Cost, Design, Norm, Sites, check};
use serde::{Deserialize, Serialize};

use super::{Head, Mhc, MhcEnds, MhcForm, MhcResidual, MhcStart, Read};
use crate::Copies;
use crate::hyper::streams_fit;

/// The config of [`Mhc`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, from = "Given")]
pub struct MhcConfig {
    /// The source of the equations: the paper, or the TileKernels code.
    pub form: MhcForm,
    /// Number of streams, at least 2.
    pub n: usize,
    /// Initial values that the paper does not give.
    pub start: MhcStart,
    /// Number of times that Sinkhorn normalises columns and rows, t.
    pub sinkhorn: usize,
    /// ε of norms, added to the mean square.
    pub norm_eps: f64,
    /// ε of `form: Code`, added to `pre`, to the softmax, to the divisors and to the weights at the end of the stream.
    pub eps: f64,
    /// The form of res, the matrix that mixes the streams: as in mHC, iHC, mHC-lite or KromHC.
    #[serde(skip_serializing_if = "is_default")]
    pub residual: MhcResidual,
    /// Whether resᵀ H replaces res H, as in the mHC-lite and KromHC code. Only a res of permutations can be transposed.
    /// With a `Kronecker` of factors of 2, resᵀ equals res.
    #[serde(skip_serializing_if = "is_default")]
    pub transposed: bool,
}

/// Whether a field has its default. Such a field is not written, so a config keeps the text and the hash that it has in
/// versions without the field.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for MhcConfig {
    fn default() -> Self {
        Self {
            form: MhcForm::Paper,
            n: 4,
            start: MhcStart::Uniform,
            sinkhorn: 20,
            norm_eps: 1e-6,
            eps: 1e-6,
            residual: MhcResidual::Sinkhorn,
            transposed: false,
        }
    }
}

/// The config as a file gives it. The fields that a written [`MhcConfig`] omits are optional here, so that `--set`
/// finds them.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Given {
    form: MhcForm,
    n: usize,
    start: MhcStart,
    /// The value of [`MhcStart::Identity`] in files of earlier versions.
    b_res: Option<f64>,
    sinkhorn: usize,
    norm_eps: f64,
    eps: f64,
    residual: Option<MhcResidual>,
    transposed: Option<bool>,
}

impl Default for Given {
    fn default() -> Self {
        let MhcConfig {
            form,
            n,
            start,
            sinkhorn,
            norm_eps,
            eps,
            ..
        } = MhcConfig::default();
        Self {
            form,
            n,
            start,
            b_res: None,
            sinkhorn,
            norm_eps,
            eps,
            residual: None,
            transposed: None,
        }
    }
}

impl From<Given> for MhcConfig {
    fn from(given: Given) -> Self {
        Self {
            form: given.form,
            n: given.n,
            start: given.b_res.map_or(given.start, MhcStart::Identity),
            sinkhorn: given.sinkhorn,
            norm_eps: given.norm_eps,
            eps: given.eps,
            residual: given.residual.unwrap_or_default(),
            transposed: given.transposed.unwrap_or_default(),
        }
    }
}

/// Maximum number of Sinkhorn rounds. The paper uses 20.
const MOST_ROUNDS: usize = 1000;

impl MhcConfig {
    fn read<B: Backend>(&self, on: &Sites, base: Vec<f64>, device: &B::Device) -> Read<B> {
        let (columns, width) = (base.len(), self.n * on.width);
        let mut norm = Norm::rms(width, self.norm_eps, device);
        if self.form == MhcForm::Code {
            norm.gamma = None;
        }
        let phi = match self.start {
            MhcStart::Uniform => Initializer::XavierUniform { gain: 1.0 },
            MhcStart::Identity(_) | MhcStart::OneStream => Initializer::Zeros,
        };
        Read {
            norm,
            phi: phi.init_with([width, columns], Some(width), Some(columns), device),
            base: Param::from_data(TensorData::new(base, [columns]), device),
        }
    }

    /// Returns b_pre, b_post and b_res of residual `i`.
    fn base(&self, i: usize) -> Vec<f64> {
        let n = self.n;
        let each = |one, others| (0..n).map(move |s| if s == i % n { one } else { others });
        let (b_pre, b_post, b_res) = match self.start {
            MhcStart::Uniform => return vec![0.0; 2 * n + self.residual.columns(n)],
            MhcStart::Identity(b_res) => {
                let others = -((4 * n - 5) as f64).ln();
                (each(3f64.ln(), others), each(0.0, 0.0), b_res)
            }
            MhcStart::OneStream => (each(1.0, -1.0), each(1.0, -1.0), -8.0),
        };
        let b_res = self.residual.near_identity(n, b_res);
        b_pre.chain(b_post).chain(b_res).collect()
    }

    /// Checks that res is valid and fits the other fields.
    fn validate_residual(&self) -> Result<(), ConfigError> {
        let wrong = |field: &str, problem: &str| Err(ConfigError::new(field, problem));
        self.residual.validate(self.n)?;
        let permutes = match self.residual {
            MhcResidual::Sinkhorn | MhcResidual::Identity => false,
            MhcResidual::Permutations | MhcResidual::Chosen(_) | MhcResidual::Kronecker(_) => true,
        };
        if self.residual != MhcResidual::Sinkhorn && self.form == MhcForm::Code {
            let problem = "is Code, the equations of TileKernels, whose res comes from Sinkhorn; with another `residual`, use \
                           Paper, and `transposed: true` for the code of mHC-lite and KromHC";
            return wrong("form", problem);
        }
        if self.transposed && !permutes {
            let problem = "is true, but only a res of permutations has this form; use false, or for Sinkhorn `form: Code`";
            return wrong("transposed", problem);
        }
        if self.start != MhcStart::Uniform && !self.residual.has_identity() {
            let problem = "begins near the identity, but it is not among the permutations of `residual`; add it, or use \
                           Uniform";
            return wrong("start", problem);
        }
        Ok(())
    }

    /// Returns the number of scales: s_0, s_1 and, with z_res, s_2.
    fn scales(&self) -> usize {
        match self.residual {
            MhcResidual::Identity => 2,
            _ => 3,
        }
    }

    /// Returns the head's b, with σ(b) = 1/n. If r P is 0, the weights of the n streams then sum to 1, up to ε.
    fn b_head(&self) -> Vec<f64> {
        vec![-((self.n - 1) as f64).ln(); self.n]
    }

    fn read_cost(&self, on: &Sites, columns: usize) -> Cost {
        let width = self.n * on.width;
        let norm = match self.form {
            MhcForm::Paper => Cost::vector(width),
            MhcForm::Code => Cost::default(),
        };
        Cost::linear(width, columns, true) + norm
    }

    fn scale<B: Backend>(count: usize, device: &B::Device) -> Param<Tensor<B, 1>> {
        Initializer::Constant { value: 0.01 }.init([count], device)
    }
}

impl Design for MhcConfig {
    type Connection<B: Backend> = Mhc<B>;
    type Ends<B: Backend> = MhcEnds<B>;

    fn name(&self) -> &'static str {
        match self.residual {
            MhcResidual::Sinkhorn => "mHC",
            MhcResidual::Identity => "iHC",
            MhcResidual::Permutations | MhcResidual::Chosen(_) => "mHC-lite",
            MhcResidual::Kronecker(_) => "KromHC",
        }
    }

    fn copies(&self) -> usize {
        self.n
    }

    fn validate(&self, _: &Sites) -> Result<(), ConfigError> {
        streams_fit(self.n, 2)?;
        if !(1..=MOST_ROUNDS).contains(&self.sinkhorn) {
            let problem = format!("is {}; it must be from 1 to {MOST_ROUNDS}", self.sinkhorn);
            return Err(ConfigError::new("sinkhorn", problem));
        }
        if let MhcStart::Identity(b_res) = self.start {
            check::finite("start.Identity", b_res)?;
        }
        check::positive("norm_eps", self.norm_eps)?;
        check::not_negative("eps", self.eps)?;
        self.validate_residual()
    }

    fn continues(&self, before: &Self) -> bool {
        let this = Self {
            start: before.start,
            ..self.clone()
        };
        this == *before
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> Mhc<B> {
        Mhc {
            read: self.read(on, self.base(i), device),
            scale: Self::scale(self.scales(), device),
            n: self.n,
            form: self.form,
            residual: self.residual.clone(),
            transposed: self.transposed,
            sinkhorn: self.sinkhorn,
            eps: self.eps,
        }
    }

    fn ends<B: Backend>(&self, on: &Sites, device: &B::Device) -> MhcEnds<B> {
        let head = || Head {
            read: self.read(on, self.b_head(), device),
            scale: Self::scale(1, device),
            eps: self.eps,
        };
        MhcEnds {
            copies: Copies::new(self.n, on),
            head: (self.form == MhcForm::Code).then(head),
        }
    }

    fn cost(&self, on: &Sites) -> Cost {
        let (n, d) = (self.n, on.width);
        // The products with pre, and with res unless res is I.
        let rows = match self.residual {
            MhcResidual::Identity => 1,
            _ => n + 1,
        };
        let mixing = Cost::vector(self.scales()) + Cost::flops(2 * n * rows * d);
        let head = match self.form {
            MhcForm::Paper => Cost::default(),
            MhcForm::Code => self.read_cost(on, n) + Cost::vector(1) + Cost::flops(2 * n * d),
        };
        let columns = self.residual.columns(n).saturating_add(2 * n);
        (self.read_cost(on, columns) + mixing) * on.count + head
    }
}
