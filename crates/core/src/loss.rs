//! The training objective.

use burn::tensor::{Int, Tensor, backend::Backend};

/// Cross-entropy of a batch and the size of its normaliser.
#[derive(Clone, Debug)]
pub struct Loss<B: Backend> {
    /// Mean over all positions of −log p(target), in nats, `[1]`.
    pub cross_entropy: Tensor<B, 1>,
    /// Mean over all positions of (log Z)², Z = Σ exp(logits), `[1]`.
    pub log_z_squared: Tensor<B, 1>,
}

impl<B: Backend> Loss<B> {
    /// The loss of `logits` `[batch, time, vocab]` against `targets` `[batch, time]`.
    pub fn new(logits: Tensor<B, 3>, targets: Tensor<B, 2, Int>) -> Self {
        let [batch, time, vocab] = logits.dims();
        Self::classification(
            logits.reshape([batch * time, vocab]),
            targets.reshape([batch * time]),
        )
    }

    /// The loss of `logits` `[batch, classes]` against `targets` `[batch]`.
    pub fn classification(logits: Tensor<B, 2>, targets: Tensor<B, 1, Int>) -> Self {
        let targets = targets.unsqueeze_dim(1);
        let max = logits.clone().detach().max_dim(1);
        let log_z = (logits.clone() - max.clone()).exp().sum_dim(1).log() + max;
        Self {
            cross_entropy: (log_z.clone() - logits.gather(1, targets)).mean(),
            log_z_squared: (log_z.clone() * log_z).mean(),
        }
    }

    /// cross-entropy + `coefficient` · (log Z)², the z-loss of Chowdhery et al., "PaLM" (2022),
    /// section 5, which keeps the normaliser near 1.
    pub fn with_z_loss(&self, coefficient: f64) -> Tensor<B, 1> {
        if coefficient == 0.0 {
            return self.cross_entropy.clone();
        }
        self.cross_entropy.clone() + self.log_z_squared.clone() * coefficient
    }
}
