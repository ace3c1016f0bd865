//! Frac-connections (Zhu et al., "Frac-connections: fractional extension of hyper-connections", 2025,
//! <https://arxiv.org/abs/2503.14125>, eqs. 6-15 and Algorithms 1-3). H `[m, D/m]` is x, cut into m fractions of D/m
//! features. Nothing is copied:
//!
//! ```text
//! g = Yᵀ H    R = Aᵀ H    H' = R + B ⊙ split(f(join(g)))       [Y | A] [m, 2m],  B [m]
//! dynamic:  [Y | A] + s_α tanh(N(H) W_α),  B + s_β tanh(N(H) W_β)       row j from fraction j
//! ```
//!
//! Initially, Y = A = I, B = 1, W = 0 and s = 0.01, so a new model is exactly the plain model. Weight decay applies to
//! all W, but not to Y, A and B.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Tensor, TensorData, backend::Backend};
use residual_zoo_core::ops::mix::mix;
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Norm, NormParams, Plain, Sites,
    Stream, check,
};
use serde::{Deserialize, Serialize};

use crate::ends::streams;
use crate::hyper::{Dynamic, MOST, dynamic_cost};

/// H' = Aᵀ H + B ⊙ split(f(join(Yᵀ H))).
#[derive(Module, Debug)]
pub struct Frac<B: Backend> {
    /// [Y | A], `[m, 2m]`.
    mixing: Param<Tensor<B, 2>>,
    /// B, `[m]`.
    beta: Param<Tensor<B, 1>>,
    dynamic: Option<Dynamic<B>>,
}

impl<B: Backend> Connection<B> for Frac<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let [m, _] = self.mixing.dims();
        let shape = stream.x.dims();
        let h = streams(stream.x, m);
        let (y_and_a, b) = (self.mixing.val(), self.beta.val().reshape([m, 1]));
        let [y_and_a, b] = match &self.dynamic {
            Some(dynamic) => dynamic.add_to(y_and_a, b, h.clone()),
            None => [y_and_a, b].map(Tensor::unsqueeze),
        };
        let [y, a] = [0, m].map(|from| y_and_a.clone().narrow(3, from, m));
        let g = mix(y, h.clone()).reshape(shape);
        let h = mix(a, h) + streams(f.of(g), m) * b;
        Stream {
            x: h.reshape(shape),
            ..stream
        }
    }
}

/// The norm of a fraction, N.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FractionNorm {
    /// RMS norm with a scale, as in the parameter counts of the paper.
    #[default]
    Rms,
    /// Layer norm with scale and shift, as in the pseudo-code of the paper.
    Layer,
}

/// The config of [`Frac`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FracConfig {
    /// Number of fractions; must divide the width.
    pub m: usize,
    /// Whether Y, A and B depend on the fractions: dynamic, rather than static, frac-connections.
    pub dynamic: bool,
    /// The norm of a fraction, if `dynamic`.
    pub norm: FractionNorm,
    /// ε of the norm, added to the mean square or the variance, if `dynamic`.
    pub norm_eps: f64,
}

impl Default for FracConfig {
    fn default() -> Self {
        Self {
            m: 4,
            dynamic: true,
            norm: FractionNorm::Rms,
            norm_eps: 1e-6,
        }
    }
}

impl Design for FracConfig {
    type Connection<B: Backend> = Frac<B>;
    type Ends<B: Backend> = Plain;

    fn name(&self) -> &'static str {
        match self.dynamic {
            true => "frac-connections",
            false => "static frac-connections",
        }
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        check::at_most("m", self.m, MOST)?;
        check::divides(("m", self.m), ("width", on.width))?;
        check::positive("norm_eps", self.norm_eps)
    }

    fn connection<B: Backend>(&self, on: &Sites, _i: usize, device: &B::Device) -> Frac<B> {
        let (m, width) = (self.m, on.width / self.m);
        let mixing = (0..m * 2 * m).map(|at| f64::from(at / (2 * m) == at % m));
        let mixing = TensorData::new(mixing.collect::<Vec<_>>(), [m, 2 * m]);
        let norm = || match self.norm {
            FractionNorm::Rms => Norm::rms(width, self.norm_eps, device),
            FractionNorm::Layer => {
                Norm::layer(NormParams::ScaleAndShift, width, self.norm_eps, device)
            }
        };
        Frac {
            mixing: Param::from_data(mixing, device),
            beta: Initializer::Ones.init([m], device),
            dynamic: self
                .dynamic
                .then(|| Dynamic::new(norm(), width, 2 * m, device)),
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    fn cost(&self, on: &Sites) -> Cost {
        let (m, width) = (self.m, on.width / self.m);
        let mixing = Cost::vector(m * (2 * m + 1)) + Cost::flops(4 * m * on.width);
        let norm = match self.norm {
            FractionNorm::Rms => NormParams::Scale.cost(width),
            FractionNorm::Layer => NormParams::ScaleAndShift.cost(width),
        };
        let dynamic = match self.dynamic {
            true => dynamic_cost(norm, m, width, 2 * m),
            false => Cost::default(),
        };
        (mixing + dynamic) * on.count
    }
}
