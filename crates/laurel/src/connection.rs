//! The connection.

use burn::module::{Initializer, Module, Param};
use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{Tensor, TensorData, backend::Backend};
use residual_zoo_core::{Branch, BranchFn, Connection, Norm, Stream, matmul_f32};

use crate::{Augmentation, LaurelConfig, LowRankInit, Weights};

/// ε of the correction's norm, added to the mean square, as in Gemma 3n.
const NORM_EPS: f64 = 1e-6;

/// The LAuReL connection, x_{i+1} = α f(x_i) + g(x_i, …, x_0) (eq. 2).
///
/// f includes its pre-norm. g is β (x_i + correction). [`Weights`] chooses the parametrisation of α and β, and
/// [`Augmentation`] the correction. The variants of the paper:
///
/// | variant | source | x_{i+1} | constructor |
/// |---|---|---|---|
/// | RW | section 2.1 | α f(x_i) + β x_i | [`LaurelConfig::rw`] |
/// | LR | eq. 3 | f(x_i) + x_i + x_i A B | [`LaurelConfig::lr`] |
/// | PA | eq. 4 | f(x_i) + x_i + Σ_j γ_j h(x_{i-j}) | [`LaurelConfig::pa`] |
/// | RW+LR | eq. 5 | α f(x_i) + β (x_i + x_i A B) | [`LaurelConfig::rw_lr`] |
/// | RW+PA | section 2.4 | α f(x_i) + β (x_i + Σ_j γ_j h(x_{i-j})) | [`LaurelConfig::rw_pa`] |
/// | RW+LR+PA | eq. 6 | α f(x_i) + β (x_i + Σ_j γ_j x_{i-j} A_j B_j) | [`LaurelConfig::rw_lr_pa`] |
///
/// The sums run over j from 0 to k − 1. h is the identity or a low-rank product. [`LaurelConfig::pa`] and
/// [`LaurelConfig::rw_pa`] use the identity; [`Augmentation::PreviousLowRank`] uses the product.
#[derive(Module, Debug)]
pub struct Laurel<B: Backend> {
    /// The parameters of α and β, `[1, 1 or D]` or `[2, 1 or D]`; `None` if both are fixed at 1.
    pub(crate) mixing: Option<Param<Tensor<B, 2>>>,
    /// A, `[products, D, r]`.
    pub(crate) a: Option<Param<Tensor<B, 3>>>,
    /// B, `[products, r, D]`.
    pub(crate) b: Option<Param<Tensor<B, 3>>>,
    /// γ, `[k]`.
    pub(crate) gamma: Option<Param<Tensor<B, 1>>>,
    /// The norm of the correction.
    pub(crate) norm: Option<Norm<B>>,
    weights: Weights,
    augmentation: Augmentation,
}

impl<B: Backend> Laurel<B> {
    pub(crate) fn new(config: &LaurelConfig, width: usize, device: &B::Device) -> Self {
        let &LaurelConfig {
            weights,
            augmentation,
            ..
        } = config;
        let each = if config.per_dimension { width } else { 1 };
        let [alpha, beta] = weights.start(config.alpha);
        let logit = |x: f64| (x / (1.0 - x)).ln();
        let mixing = match weights {
            Weights::One => vec![],
            Weights::Raw => vec![alpha, beta],
            Weights::Softmax | Weights::DoubleSoftmax => vec![alpha.ln(), beta.ln()],
            Weights::Sigmoid => vec![logit(alpha)],
            Weights::TwoSigmoids => vec![logit(alpha), logit(beta)],
        };
        let mixing = (!mixing.is_empty()).then(|| {
            let rows: Vec<f64> = mixing.iter().flat_map(|row| vec![*row; each]).collect();
            Param::from_data(TensorData::new(rows, [mixing.len(), each]), device)
        });
        let a = augmentation
            .low_rank()
            .map(|(products, r)| match config.init {
                LowRankInit::Columns => columns(products, width, r, device),
                LowRankInit::Xavier => {
                    let xavier = Initializer::XavierNormal { gain: 1.0 };
                    xavier.init_with([products, width, r], Some(width), Some(r), device)
                }
            });
        // The correction is initially zero, because exactly one of its factors is zero. This factor is the scale of the
        // norm, if there is a norm. Otherwise, it is B if there is a low-rank product, and γ if there is none. If two
        // factors were zero, neither would get a gradient.
        let b = augmentation.low_rank().map(|(products, r)| {
            let start = match config.norm {
                true => Initializer::XavierNormal { gain: 1.0 },
                false => Initializer::Zeros,
            };
            start.init_with([products, r, width], Some(r), Some(width), device)
        });
        let identity = matches!(augmentation, Augmentation::PreviousActivations { .. });
        let gamma = if identity && !config.norm { 0.0 } else { 1.0 };
        let gamma = Initializer::Constant { value: gamma }.init([augmentation.k()], device);
        let norm = config.norm.then(|| {
            let mut norm = Norm::rms(width, NORM_EPS, device);
            norm.gamma = Some(Initializer::Zeros.init([width], device));
            norm
        });
        Self {
            mixing,
            a,
            b,
            gamma: augmentation.has_gamma().then_some(gamma),
            norm,
            weights,
            augmentation,
        }
    }

    /// Returns α and β, `[1, 1, 1 or D]` each; `None` if both are fixed at 1.
    fn alpha_beta(&self) -> Option<[Tensor<B, 3>; 2]> {
        let logits = self.mixing.as_ref()?.val();
        let row = |x: &Tensor<B, 2>, i: usize| x.clone().narrow(0, i, 1).unsqueeze();
        let both = match self.weights {
            Weights::Sigmoid => {
                let alpha = sigmoid(row(&logits, 0));
                return Some([alpha.clone(), -alpha + 1.0]);
            }
            Weights::Softmax => softmax(logits, 0),
            Weights::DoubleSoftmax => softmax(logits, 0) * 2.0,
            Weights::TwoSigmoids => sigmoid(logits),
            Weights::One | Weights::Raw => logits,
        };
        Some([row(&both, 0), row(&both, 1)])
    }

    /// Returns x A_j B_j, or x if the correction has no A and B.
    pub(crate) fn low_rank(&self, x: Tensor<B, 3>, j: usize) -> Tensor<B, 3> {
        match (&self.a, &self.b) {
            (Some(a), Some(b)) => {
                let [batch, time, width] = x.dims();
                let at = |w: &Param<Tensor<B, 3>>| w.val().narrow(0, j, 1).squeeze_dim::<2>(0);
                let rows = x.reshape([batch * time, width]);
                let y = matmul_f32(matmul_f32(rows, at(a)), at(b));
                y.reshape([batch, time, width])
            }
            _ => x,
        }
    }

    /// Returns γ_j x_{i-j} for each j whose stream exists.
    fn weighted(&self, stream: &Stream<B>) -> impl Iterator<Item = Tensor<B, 3>> {
        let streams = std::iter::once(&stream.x).chain(&stream.carried);
        let gamma = self.gamma.as_ref().map(Param::val);
        gamma.into_iter().flat_map(move |gamma| {
            let streams = streams.clone().enumerate();
            streams.map(move |(j, x)| x.clone() * gamma.clone().narrow(0, j, 1).unsqueeze())
        })
    }

    /// Returns the correction, which is added to x_i before the multiplication by β.
    fn correction(&self, stream: &Stream<B>) -> Option<Tensor<B, 3>> {
        let sum = |a, b| a + b;
        match self.augmentation {
            Augmentation::Identity => None,
            Augmentation::LowRank { .. } => Some(self.low_rank(stream.x.clone(), 0)),
            Augmentation::PreviousActivations { .. } => self.weighted(stream).reduce(sum),
            // A and B are the same for all j, and h is linear, so h acts once, on the sum.
            Augmentation::PreviousLowRank { .. } => {
                Some(self.low_rank(self.weighted(stream).reduce(sum)?, 0))
            }
            Augmentation::LowRankPerStream { .. } => {
                let terms = self.weighted(stream).enumerate();
                terms.map(|(j, x)| self.low_rank(x, j)).reduce(sum)
            }
        }
    }
}

/// The stream carries x_{i-1}, …, x_{i-k+1}, newest first. Near the input, it carries fewer streams.
impl<B: Backend> Connection<B> for Laurel<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let fx = f.of(stream.x.clone());
        let g = match (self.correction(&stream), &self.norm) {
            (Some(correction), Some(norm)) => stream.x.clone() + norm.forward(correction),
            (Some(correction), None) => stream.x.clone() + correction,
            (None, _) => stream.x.clone(),
        };
        let next = match self.alpha_beta() {
            Some([alpha, beta]) => fx * alpha + g * beta,
            None => fx + g,
        };
        let mut earlier = stream.carried;
        earlier.insert(0, stream.x);
        earlier.truncate(self.augmentation.k() - 1);
        Stream {
            x: next,
            carried: earlier,
            ..stream
        }
    }
}

/// Returns the initial A of footnote 2, `[products, D, r]`.
fn columns<B: Backend>(
    products: usize,
    width: usize,
    r: usize,
    device: &B::Device,
) -> Param<Tensor<B, 3>> {
    let entry = 1.0 / ((r * width) as f64).sqrt();
    let entries = (0..products * width * r).map(|at| {
        let (i, j) = (at / r % width, at % r);
        if i % r == j { entry } else { 0.0 }
    });
    let a = TensorData::new(entries.collect::<Vec<f64>>(), [products, width, r]);
    Param::from_data(a, device)
}
