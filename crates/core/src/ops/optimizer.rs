//! Steps of the optimizers.

use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_kernels as kernels;
pub use residual_zoo_kernels::{AdamW, Due, State};

use super::forms::plain;

/// Takes one AdamW step of each parameter. Returns each parameter x and its moments m and v after the step.
pub fn adamw<B: Backend>(steps: Vec<Due<B>>) -> Vec<[Tensor<B, 1>; 3]> {
    kernels::adamw(steps).unwrap_or_else(|steps| {
        let after = plain("AdamW", steps)
            .into_iter()
            .map(|(step, state)| adamw_plain(step, state));
        after.collect()
    })
}

/// The plain form of [`adamw`], for one parameter.
pub fn adamw_plain<B: Backend>(step: AdamW, [x, m, v, grad]: State<B>) -> [Tensor<B, 1>; 3] {
    let AdamW { beta_1, beta_2, .. } = step;
    let correction = |beta: f64| 1.0 - beta.powf(step.time as f64);
    let grad = grad * step.scale;
    let m = m * beta_1 + grad.clone() * (1.0 - beta_1);
    let v = v * beta_2 + grad.square() * (1.0 - beta_2);
    let m_hat = m.clone() / correction(beta_1);
    let v_hat = v.clone() / correction(beta_2);
    let update = m_hat / (v_hat.sqrt() + step.eps);
    let x = x * (1.0 - step.lr * step.weight_decay) - update * step.lr;
    [x, m, v]
}

/// Takes one step of SGD with momentum, on the parameter x, the momentum m and the gradient g, all `[count]`. As in
/// PyTorch, m ← momentum · m + g and x ← x − lr · m, where g includes the weight decay times x (Sutskever et al., "On
/// the importance of initialization and momentum in deep learning", 2013).
pub fn sgd<B: Backend>(lr: f64, momentum: f64, [x, m, g]: [Tensor<B, 1>; 3]) -> [Tensor<B, 1>; 2] {
    let m = m * momentum + g;
    [x - m.clone() * lr, m]
}

/// Computes Σ x_i² over all elements of all `parts` `[count]`, as `[1]`.
pub fn sum_of_squares<B: Backend>(parts: Vec<Tensor<B, 1>>, device: &B::Device) -> Tensor<B, 1> {
    kernels::sum_of_squares(parts).unwrap_or_else(|parts| {
        let squares = plain("norm of the gradients", parts)
            .into_iter()
            .map(|x| x.square().sum());
        squares.fold(Tensor::zeros([1], device), |sum, part| sum + part)
    })
}
