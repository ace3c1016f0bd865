//! Muon: momentum whose matrices are made orthogonal (Jordan et al., "Muon: an optimizer for hidden layers in neural
//! networks", 2024). A step on a matrix W has the gradient g, the momentum b, the learning rate η and the weight decay
//! λ. Each step keeps the share μ of the momentum, and the factor s depends on the [form](MuonForm):
//!
//! ```text
//! b ← μ b + (1 − μ) g
//! u = μ b + (1 − μ) g           with Nesterov's momentum, otherwise u = b
//! W ← (1 − η λ) W − η s NS(u)   NS(u): u with singular values between about 0.5 and 1.5
//! ```
//!
//! [`MuonForm::Nanochat`] replaces the last line.

use burn::tensor::{Tensor, backend::Backend};
use serde::{Deserialize, Serialize};

use crate::{ConfigError, check, matmul};

/// The settings of Muon. It trains the matrices between hidden features ([`Matrices`](crate::Matrices)); AdamW trains
/// all other parameters. A step is W ← (1 − η λ) W − η s NS(u), where u is the momentum and s depends on the form; the
/// step of the form `Nanochat` is different. NS brings the singular values of u into the interval from about 0.5 to
/// 1.5.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Muon {
    /// η, the peak learning rate of hidden matrices; the schedule scales it like `train.learning_rate`. `None` means
    /// `train.learning_rate` in the form `Moonlight`, and 0.02, the published value, in the other forms. If the
    /// schedule ends at `Rate(x)`, x is multiplied by η / `train.learning_rate`.
    pub learning_rate: Option<f64>,
    /// μ, the share of the momentum that each step keeps.
    pub momentum: f64,
    /// Whether the momentum is Nesterov's.
    pub nesterov: bool,
    /// λ, the weight decay of hidden matrices. `None` means `train.weight_decay`.
    pub weight_decay: Option<f64>,
    /// Number of Newton-Schulz iterations in NS.
    pub steps: usize,
    /// The published form of the step.
    pub form: MuonForm,
}

/// The published forms of Muon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum MuonForm {
    /// s = max(1, out / in)^½, with a learning rate near 0.02 (Jordan et al. 2024).
    Keller,
    /// s = 0.2 max(out, in)^½ (Liu et al., "Muon is scalable for LLM training", 2025). Steps are then as large as
    /// AdamW's, so both can use the same learning rate.
    #[default]
    Moonlight,
    /// The form of nanochat (2026). In u, the weight vectors of all outputs get equal length, and NS has the
    /// coefficients of Polar Express (Amsel et al. 2025). NS(u) is divided by the root of a running mean of its squares
    /// along the shorter side (Li et al., "NorMuon", 2025). The result, Y, has the norm of an orthogonal matrix.
    /// s = max(1, out / in)^½, and W ← W − η s (Y + λ W \[Y ⊙ W ≥ 0\]).
    Nanochat {
        /// The share of the running mean that each step keeps.
        beta_2: f64,
    },
}

impl Default for Muon {
    fn default() -> Self {
        Self {
            learning_rate: None,
            momentum: 0.95,
            nesterov: true,
            weight_decay: None,
            steps: POLAR.len(),
            form: MuonForm::Moonlight,
        }
    }
}

impl Muon {
    /// Returns η, given the learning rate of the other parameters, `others`.
    pub fn learning_rate(&self, others: f64) -> f64 {
        self.learning_rate.unwrap_or(match self.form {
            MuonForm::Moonlight => others,
            MuonForm::Keller | MuonForm::Nanochat { .. } => 0.02,
        })
    }

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check::positive("learning_rate", self.learning_rate.unwrap_or(1.0))?;
        check::fraction("momentum", self.momentum)?;
        check::not_negative("weight_decay", self.weight_decay.unwrap_or(0.0))?;
        match self.form {
            MuonForm::Nanochat { .. } if self.steps != POLAR.len() => {
                let problem = format!(
                    "is {}, but Nanochat has coefficients for {} iterations; leave it out",
                    self.steps,
                    POLAR.len()
                );
                Err(ConfigError::new("steps", problem))
            }
            MuonForm::Nanochat { beta_2 } => check::fraction("form.beta_2", beta_2),
            MuonForm::Keller | MuonForm::Moonlight => {
                check::at_least_one("steps", self.steps)?;
                check::at_most("steps", self.steps, MOST_STEPS)
            }
        }
    }

    /// Returns the shape of the running mean of squares for matrices `[count, in, out]`, if the form has one.
    pub fn squares(&self, [count, d_in, d_out]: [usize; 3]) -> Option<[usize; 3]> {
        match self.form {
            MuonForm::Nanochat { .. } if d_out >= d_in => Some([count, 1, d_out]),
            MuonForm::Nanochat { .. } => Some([count, d_in, 1]),
            MuonForm::Keller | MuonForm::Moonlight => None,
        }
    }

    /// Returns s for a matrix `[d_in, d_out]`.
    fn scale(&self, d_in: usize, d_out: usize) -> f64 {
        let (d_in, d_out) = (d_in as f64, d_out as f64);
        match self.form {
            MuonForm::Moonlight => 0.2 * d_in.max(d_out).sqrt(),
            MuonForm::Keller | MuonForm::Nanochat { .. } => (d_out / d_in).max(1.0).sqrt(),
        }
    }
}

/// Matrices `[count, in, out]` and their state.
#[derive(Clone, Debug)]
pub struct Hidden<B: Backend> {
    /// W, `[count, in, out]`.
    pub w: Tensor<B, 3>,
    /// b, `[count, in, out]`.
    pub b: Tensor<B, 3>,
    /// The running mean of squares, in the shape that [`Muon::squares`] returns.
    pub squares: Option<Tensor<B, 3>>,
}

/// Takes a step of Muon with gradient g `[count, in, out]`, learning rate `lr` (η) and weight decay `decay` (λ).
/// Computes products at the current [`Precision`](crate::Precision).
pub fn muon<B: Backend>(
    muon: &Muon,
    [lr, decay]: [f64; 2],
    Hidden { w, b, squares }: Hidden<B>,
    g: Tensor<B, 3>,
) -> Hidden<B> {
    let (mu, [_, d_in, d_out]) = (muon.momentum, w.dims());
    let g = g * (1.0 - mu);
    let b = b * mu + g.clone();
    let u = match muon.nesterov {
        true => b.clone() * mu + g,
        false => b.clone(),
    };
    let lr_s = lr * muon.scale(d_in, d_out);
    match (muon.form, squares) {
        (MuonForm::Nanochat { beta_2 }, Some(squares)) => {
            let x = polar_express(u);
            let (y, squares) = normalised(x, squares, beta_2);
            let agrees = (y.clone() * w.clone()).greater_equal_elem(0.0).float();
            let w = w.clone() - y * lr_s - w * agrees * (lr_s * decay);
            let squares = Some(squares);
            Hidden { w, b, squares }
        }
        (_, squares) => {
            let w = w * (1.0 - lr * decay) - newton_schulz(u, muon.steps) * lr_s;
            Hidden { w, b, squares }
        }
    }
}

/// Maximum number of iterations. Five are enough. A request to stop waits for the end of the step, which many
/// iterations would delay.
const MOST_STEPS: usize = 100;
/// The coefficients of Jordan et al., with which singular values approach an interval around 1 in few iterations.
const JORDAN: [f64; 3] = [3.4445, -4.7750, 2.0315];
/// The coefficients of Polar Express, one row per iteration.
const POLAR: [[f64; 3]; 5] = [
    [8.156554524902461, -22.48329292557795, 15.878769915207462],
    [4.042929935166739, -2.808917465908714, 0.5000178451051316],
    [3.8916678022926607, -2.772484153217685, 0.5060648178503393],
    [3.285753657755655, -2.3681294933425376, 0.46449024233003106],
    [2.3465413258596377, -1.7097828382687081, 0.42323551169305323],
];

/// Computes NS(u), which approximates the orthogonal factor of each matrix of u `[count, in, out]`.
fn newton_schulz<B: Backend>(u: Tensor<B, 3>, steps: usize) -> Tensor<B, 3> {
    let size = norm(u.clone()) + 1e-7;
    quintic(u / size, &vec![JORDAN; steps])
}

/// Computes X ← a X + (b A + c A²) X with A = X Xᵀ, for each (a, b, c) in turn. For a matrix with more rows than
/// columns, computes the transposed form, which has smaller products.
fn quintic<B: Backend>(x: Tensor<B, 3>, coefficients: &[[f64; 3]]) -> Tensor<B, 3> {
    let [_, rows, columns] = x.dims();
    coefficients.iter().fold(x, |x, &[a, b, c]| {
        let t = x.clone().swap_dims(1, 2);
        let gram = match rows <= columns {
            true => matmul(x.clone(), t),
            false => matmul(t, x.clone()),
        };
        let p = gram.clone() * b + matmul(gram.clone(), gram) * c;
        let px = match rows <= columns {
            true => matmul(p, x.clone()),
            false => matmul(x.clone(), p),
        };
        x * a + px
    })
}

/// Computes nanochat's orthogonal factor of u `[count, in, out]`, with the Frobenius norm of an orthogonal matrix.
fn polar_express<B: Backend>(u: Tensor<B, 3>) -> Tensor<B, 3> {
    let [_, d_in, d_out] = u.dims();
    // Gives the weight vectors of all outputs the same length.
    let of_output = u.clone().square().sum_dim(1).sqrt().clamp_min(1e-6);
    let u = u.clone() / of_output * (norm(u) / (d_out as f64).sqrt());
    let x = quintic(u.clone() / (norm(u) * 1.01 + 1e-6), &POLAR);
    let size = (d_in.min(d_out) as f64).sqrt();
    x.clone() * (norm(x).clamp_min(1e-6).recip() * size)
}

/// Divides x `[count, in, out]` by the root of the running mean of its squares along the shorter side, and keeps the
/// norm of x. Returns the result and the new running mean.
fn normalised<B: Backend>(
    x: Tensor<B, 3>,
    squares: Tensor<B, 3>,
    beta_2: f64,
) -> (Tensor<B, 3>, Tensor<B, 3>) {
    let along = match squares.dims()[1] {
        1 => 1,
        _ => 2,
    };
    let squares = squares * beta_2 + x.clone().square().mean_dim(along) * (1.0 - beta_2);
    let y = x.clone() / squares.clone().clamp_min(1e-10).sqrt();
    let y = y.clone() * (norm(x) / norm(y).clamp_min(1e-10));
    (y, squares)
}

/// Returns the Frobenius norm of each matrix, `[count, 1, 1]`.
fn norm<B: Backend>(x: Tensor<B, 3>) -> Tensor<B, 3> {
    x.square().sum_dim(1).sum_dim(2).sqrt()
}
