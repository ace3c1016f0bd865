//! Attention between tokens and parameters.

use burn::module::{Initializer, Module, Param};
use burn::tensor::activation::softmax;
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::forms::plain;
use residual_zoo_core::{Activation, matmul_f32, normal, project, widen};
use residual_zoo_kernels as kernels;

use crate::{Normalization, TokenFormerConfig};

/// Pattention(X, K_P, V_P) = Θ(X K_Pᵀ) V_P (eq. 4).
#[derive(Module, Debug)]
pub struct Pattention<B: Backend> {
    /// K_P, `[n, d_1]`.
    pub(crate) keys: Param<Tensor<B, 2>>,
    /// V_P, `[n, d_2]`.
    pub(crate) values: Param<Tensor<B, 2>>,
    /// τ, `[1]`. It is not trained, and does not change when n grows.
    pub(crate) tau: Param<Tensor<B, 1>>,
    /// Additional pairs for tuning; if present, only they are trained.
    pub(crate) added: Option<Pairs<B>>,
    /// LoRA corrections of the pairs for tuning; if present, only they are trained.
    pub(crate) lora: Option<Lora<B>>,
    normalization: Normalization,
    activation: Activation,
    eps: f64,
}

/// Pairs that are trained while all others are frozen.
#[derive(Module, Debug)]
pub struct Pairs<B: Backend> {
    /// K_P of these pairs, `[m, d_1]`.
    pub(crate) keys: Param<Tensor<B, 2>>,
    /// V_P of these pairs, `[m, d_2]`.
    pub(crate) values: Param<Tensor<B, 2>>,
}

/// LoRA: W + B A with initial B = 0 and normal A (Hu et al., 2021, section 4.1), for W = K_P and W = V_P.
#[derive(Module, Debug)]
pub struct Lora<B: Backend> {
    /// B of K_P, `[n, r]`.
    pub(crate) keys_b: Param<Tensor<B, 2>>,
    /// A of K_P, `[r, d_1]`.
    pub(crate) keys_a: Param<Tensor<B, 2>>,
    /// B of V_P, `[n, r]`.
    pub(crate) values_b: Param<Tensor<B, 2>>,
    /// A of V_P, `[r, d_2]`.
    pub(crate) values_a: Param<Tensor<B, 2>>,
}

impl<B: Backend> Lora<B> {
    fn new(n: usize, rank: usize, width: usize, device: &B::Device) -> Self {
        let b = || Initializer::Zeros.init([n, rank], device);
        // With this standard deviation, A x has the variance of x for keys. The A for values is drawn the same way.
        let a = || normal([rank, width], (width as f64).powf(-0.5), device);
        Self {
            keys_b: b(),
            keys_a: a(),
            values_b: b(),
            values_a: a(),
        }
    }
}

impl<B: Backend> Pattention<B> {
    /// Makes `n` pairs and `added` further pairs, with values drawn from N(0, `values_std`²).
    pub(crate) fn new(
        config: &TokenFormerConfig,
        (n, added): (usize, Option<usize>),
        tau: f64,
        values_std: f64,
        device: &B::Device,
    ) -> Self {
        let tau = Tensor::from_data([tau], device);
        let table = |rows, std| normal([rows, config.width], std, device);
        Self {
            keys: table(n, config.keys_std()).set_require_grad(!config.frozen()),
            values: table(n, values_std).set_require_grad(!config.frozen()),
            added: added.map(|m| Pairs {
                // Except with a softmax, zero keys keep the model's function, and the values get no gradient until the
                // keys change.
                keys: Initializer::Zeros.init([m, config.width], device),
                values: table(m, values_std),
            }),
            lora: config
                .lora
                .map(|rank| Lora::new(n, rank, config.width, device)),
            tau: Param::from_tensor(tau).set_require_grad(false),
            normalization: config.normalization,
            activation: config.activation,
            eps: config.pattention_eps,
        }
    }

    /// Maps `[batch, time, d_1]` to `[batch, time, d_2]`.
    pub fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let [keys, values] = self.pairs();
        let a = project(x, keys.transpose());
        project(self.theta(a), values)
    }

    /// Returns K_P and V_P of all pairs.
    fn pairs(&self) -> [Tensor<B, 2>; 2] {
        let mut own = [self.keys.val(), self.values.val()];
        if let Some(lora) = &self.lora {
            let [keys, values] = own;
            own = [
                keys + matmul_f32(lora.keys_b.val(), lora.keys_a.val()),
                values + matmul_f32(lora.values_b.val(), lora.values_a.val()),
            ];
        }
        match &self.added {
            Some(Pairs { keys, values }) => {
                let [k, v] = own;
                [(k, keys), (v, values)].map(|(own, added)| Tensor::cat(vec![own, added.val()], 0))
            }
            None => own,
        }
    }

    /// Applies Θ over the last axis (eq. 5 and the other rows of Table 4).
    pub(crate) fn theta(&self, a: Tensor<B, 3>) -> Tensor<B, 3> {
        let theta = kernels::Theta {
            form: match self.normalization {
                Normalization::L2NormGelu => kernels::Form::NormThenActivation,
                Normalization::GeluL2Norm => kernels::Form::ActivationThenL2,
                Normalization::GeluL1Norm => kernels::Form::ActivationThenL1,
                Normalization::Softmax => kernels::Form::Softmax,
            },
            activation: self.activation.into(),
            eps: self.eps,
        };
        kernels::theta(theta, a, self.tau.val())
            .unwrap_or_else(|a| self.theta_plain(widen(plain("Θ", a))))
    }

    /// Computes [`theta`](Self::theta) term by term, where there is no kernel.
    pub(crate) fn theta_plain(&self, a: Tensor<B, 3>) -> Tensor<B, 3> {
        let tau = self.tau.val().unsqueeze();
        match self.normalization {
            Normalization::L2NormGelu => {
                let factor = tau * self.inverse(l2_norm(&a));
                self.activation.apply(a * factor)
            }
            Normalization::GeluL2Norm => {
                let g = self.activation.apply(a);
                let factor = tau * self.inverse(l2_norm(&g));
                g * factor
            }
            Normalization::GeluL1Norm => {
                let g = self.activation.apply(a);
                let factor = tau * self.inverse(g.clone().abs().sum_dim(2));
                g * factor
            }
            Normalization::Softmax => softmax(a, 2) * tau,
        }
    }

    /// Returns 1 / (norm + ε), or 0 if the norm is zero, so that 0/0 becomes 0, in the gradient too.
    fn inverse(&self, norm: Tensor<B, 3>) -> Tensor<B, 3> {
        let zero = norm.clone().equal_elem(0.0);
        let norm = norm.mask_fill(zero.clone(), 1.0) + self.eps;
        norm.recip().mask_fill(zero, 0.0)
    }
}

/// Returns ‖a‖₂ of each row. A row of zeros has norm 0 and gradient 0.
fn l2_norm<B: Backend>(a: &Tensor<B, 3>) -> Tensor<B, 3> {
    let squares = (a.clone() * a.clone()).sum_dim(2);
    let zero = squares.clone().equal_elem(0.0);
    // The 1 keeps the root differentiable where its result is discarded.
    squares
        .mask_fill(zero.clone(), 1.0)
        .sqrt()
        .mask_fill(zero, 0.0)
}
