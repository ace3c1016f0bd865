//! The training objective.

use burn::tensor::{Int, Tensor, backend::Backend};
use residual_zoo_kernels as kernels;

use super::forms::plain;
use super::precision::widen;

/// Cross-entropy of a batch and the size of its normaliser.
#[derive(Clone, Debug)]
pub struct Loss<B: Backend> {
    /// Mean over all scored positions of −log p(target), in nats, `[1]`.
    pub cross_entropy: Tensor<B, 1>,
    /// Mean over all scored positions of (log Z)², where Z = Σ exp(logits), `[1]`.
    pub log_z_squared: Tensor<B, 1>,
    /// The label-smoothing term of the objective, `[1]`.
    smoothing: Option<Tensor<B, 1>>,
}

impl<B: Backend> Loss<B> {
    /// Computes the loss of `logits` `[batch, time, vocab]` for `targets` `[batch, scored]`, the targets of the last
    /// `scored` positions. A language model scores all positions.
    pub fn new(logits: Tensor<B, 3>, targets: Tensor<B, 2, Int>) -> Self {
        let (logits, targets) = last_positions(logits, targets);
        Self::classification(logits, targets)
    }

    /// Computes the loss of `logits` `[batch, classes]` for `targets` `[batch]`.
    pub fn classification(logits: Tensor<B, 2>, targets: Tensor<B, 1, Int>) -> Self {
        let of_rows = log_z_and_target(logits, targets);
        let [log_z, target] = [0, 1].map(|column| of_rows.clone().narrow(1, column, 1));
        Self {
            cross_entropy: (log_z.clone() - target).mean(),
            log_z_squared: (log_z.clone() * log_z).mean(),
            smoothing: None,
        }
    }

    /// Computes the loss with labels smoothed by ε: every class has the target probability ε / classes, and the true
    /// class has 1 − ε more (Szegedy et al., "Rethinking the inception architecture", 2016, section 7). The objective
    /// is the cross-entropy plus ε · (target's logit − mean logit), averaged over all scored positions. `cross_entropy`
    /// itself is not smoothed.
    pub fn smoothed(logits: Tensor<B, 3>, targets: Tensor<B, 2, Int>, epsilon: f64) -> Self {
        if epsilon == 0.0 {
            return Self::new(logits, targets);
        }
        let (logits, targets) = last_positions(logits, targets);
        let logits = widen(logits);
        let of_targets = logits.clone().gather(1, targets.clone().unsqueeze_dim(1));
        let smoothing = (of_targets.mean() - logits.clone().mean()) * epsilon;
        Self {
            smoothing: Some(smoothing),
            ..Self::classification(logits, targets)
        }
    }

    /// Averages two losses of the same logits: `self` has the weight `share`, and `other` the rest.
    pub fn mixed(self, other: Self, share: f64) -> Self {
        let mix = |own: Tensor<B, 1>, other: Tensor<B, 1>| own * share + other * (1.0 - share);
        Self {
            cross_entropy: mix(self.cross_entropy, other.cross_entropy),
            smoothing: self
                .smoothing
                .zip(other.smoothing)
                .map(|(own, other)| mix(own, other)),
            ..self
        }
    }

    /// Computes cross-entropy + `z_loss` · mean (log Z)² + the label-smoothing term. The z-loss keeps the normaliser
    /// near 1 (Chowdhery et al., "PaLM", 2022, section 5).
    pub fn objective(&self, z_loss: f64) -> Tensor<B, 1> {
        let mut objective = self.cross_entropy.clone();
        if z_loss != 0.0 {
            objective = objective + self.log_z_squared.clone() * z_loss;
        }
        match &self.smoothing {
            Some(smoothing) => objective + smoothing.clone(),
            None => objective,
        }
    }
}

/// Computes log Σ exp(logits), and the logit of the target: `[rows, vocab]` and `[rows]` to `[rows, 2]`.
pub fn log_z_and_target<B: Backend>(
    logits: Tensor<B, 2>,
    targets: Tensor<B, 1, Int>,
) -> Tensor<B, 2> {
    kernels::log_z_and_target(logits, targets.clone())
        .unwrap_or_else(|logits| log_z_and_target_plain(widen(plain("log Z", logits)), targets))
}

/// The plain form of [`log_z_and_target`].
pub fn log_z_and_target_plain<B: Backend>(
    logits: Tensor<B, 2>,
    targets: Tensor<B, 1, Int>,
) -> Tensor<B, 2> {
    let max = logits.clone().detach().max_dim(1);
    let log_z = (logits.clone() - max.clone()).exp().sum_dim(1).log() + max;
    Tensor::cat(vec![log_z, logits.gather(1, targets.unsqueeze_dim(1))], 1)
}

/// Returns the share of the `targets` `[batch, scored]` that have the largest logit, `[1]`. The targets belong to the
/// last `scored` positions of `logits` `[batch, time, vocab]`.
pub fn accuracy<B: Backend>(logits: Tensor<B, 3>, targets: Tensor<B, 2, Int>) -> Tensor<B, 1> {
    let (logits, targets) = last_positions(logits, targets);
    let likeliest = logits.argmax(1).squeeze_dim(1);
    likeliest.equal(targets).float().mean()
}

/// Returns the logits `[batch · scored, vocab]` and the targets `[batch · scored]` of the scored positions.
fn last_positions<B: Backend>(
    logits: Tensor<B, 3>,
    targets: Tensor<B, 2, Int>,
) -> (Tensor<B, 2>, Tensor<B, 1, Int>) {
    let ([batch, time, vocab], [_, scored]) = (logits.dims(), targets.dims());
    let logits = match scored == time {
        true => logits,
        false => logits.narrow(1, time - scored, scored),
    };
    let logits = logits.reshape([batch * scored, vocab]);
    (logits, targets.reshape([batch * scored]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::Flex;

    /// The smoothed loss is −Σ q log p, where q is ε / 3 for each class, and 1 − ε more for the target.
    #[test]
    fn smoothed_labels_are_a_target_for_every_class() {
        let device = Default::default();
        let logits = [[2f64, 0., 1.], [0.5, -1., 3.]];
        let targets = [0, 1];
        let tensor = Tensor::<Flex, 3>::from_floats([logits], &device).reshape([2, 1, 3]);
        let epsilon = 0.1;
        let loss = Loss::smoothed(
            tensor.clone(),
            Tensor::from_ints([[0], [1]], &device),
            epsilon,
        );
        let expected: f64 = (logits.iter().zip(targets))
            .map(|(row, target)| {
                let log_z = row.iter().map(|x| x.exp()).sum::<f64>().ln();
                let q = |class| epsilon / 3.0 + if class == target { 1.0 - epsilon } else { 0.0 };
                (0..3)
                    .map(|class| q(class) * (log_z - row[class]))
                    .sum::<f64>()
                    / 2.0
            })
            .sum();
        let found: f32 = loss.objective(0.0).into_scalar();
        assert!(
            (f64::from(found) - expected).abs() < 1e-6,
            "{found} {expected}"
        );
        let plain = Loss::new(tensor, Tensor::from_ints([[0], [1]], &device));
        let [a, b] = [loss, plain].map(|loss| loss.cross_entropy.into_scalar());
        assert_eq!(a, b);
    }

    #[test]
    fn mixed_targets_have_their_shares_of_the_loss() {
        let device = Default::default();
        let logits = Tensor::<Flex, 3>::from_floats([[[2., 0., 1.]], [[0.5, -1., 3.]]], &device);
        let loss = |targets: [[i32; 1]; 2]| {
            Loss::smoothed(logits.clone(), Tensor::from_ints(targets, &device), 0.1)
        };
        let (a, b) = ([[0], [1]], [[2], [1]]);
        let of = |loss: &Loss<Flex>| -> f32 { loss.objective(0.0).into_scalar() };
        let expected = 0.3 * of(&loss(a)) + 0.7 * of(&loss(b));
        let found = of(&loss(a).mixed(loss(b), 0.3));
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }

    #[test]
    fn only_the_last_positions_are_scored() {
        let device = Default::default();
        // Two sequences of three positions; the first positions have no target.
        let logits = Tensor::<Flex, 3>::from_floats(
            [
                [[9., 0.], [1., 0.], [0., 2.]],
                [[0., 9.], [0., 3.], [0., 4.]],
            ],
            &device,
        );
        let targets = Tensor::<Flex, 2, Int>::from_ints([[0, 1], [0, 1]], &device);
        let loss = Loss::new(logits.clone(), targets.clone());
        // If the target's logit is x above the other, −log p is log(1 + exp(−x)).
        let expected = [1.0f32, 2., -3., 4.]
            .map(|x| (1. + (-x).exp()).ln())
            .iter()
            .sum::<f32>();
        let found: f32 = loss.cross_entropy.into_scalar();
        assert!((found - expected / 4.).abs() < 1e-6, "{found}");
        assert_eq!(accuracy(logits, targets).into_scalar(), 0.75);
    }
}
