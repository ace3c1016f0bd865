//! The config of a recurrence.

use burn::tensor::backend::Backend;
use residual_zoo_core::{ConfigError, Cost, Ends, ResidualBlock, check};
use serde::{Deserialize, Serialize};

use crate::Recurrent;

/// α, the weight of the accumulated state, in [0, 1].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Alpha {
    /// Trained from this initial value and clamped, as in the authors' code. Outside [0, 1], α has no gradient, so an α
    /// that training makes negative stays 0.
    Trainable(f64),
    /// Trained from this initial value and clamped, with the gradient of the unclamped α (Bengio et al., "Estimating
    /// or propagating gradients through stochastic neurons", 2013).
    StraightThrough(f64),
    /// The sigmoid of a trained number, with this initial α.
    Sigmoid(f64),
    /// A constant, as in the authors' language model (0) and selective copy (0.5).
    Fixed(f64),
}

/// The state that is multiplied by α and carried from one step to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// h_{i-1}, as in eq. 9. The paper does not define h_0; this crate takes zero.
    #[default]
    Paper,
    /// y_{i-1}, the output instead of the hidden state, as in the authors' code. y_0 is x_1.
    Code,
}

/// The config of a [`Recurrent`] around the layers of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecurrentConfig {
    /// Number of tokens in a block, k.
    pub block: usize,
    /// The kind of α, trained or fixed, and its initial value.
    pub alpha: Alpha,
    /// The form of eq. 9: as printed, or as in the authors' code.
    pub form: Form,
}

impl Default for RecurrentConfig {
    fn default() -> Self {
        Self {
            block: 32,
            alpha: Alpha::Trainable(0.5),
            form: Form::Paper,
        }
    }
}

/// The recurrences of section 6, with the paper's τ:
///
/// | constructor | k | α | τ | parameters reported | counted |
/// |---|---|---|---|---|---|
/// | [`image`](Self::image) | 32 | trained from 0.5 | 1 layer, d 32, 4 heads, 1024 positions, 256 ids, 10 classes | 5.3E4 | 53,665 |
/// | [`copy`](Self::copy) | 32 | trained from 0.5 | 1 layer, d 96, 6 heads, 4128 positions, 16 ids | 0.5M | 508,705, of which 396,288 are positions |
/// | [`selective_copy`](Self::selective_copy) | 32 | fixed at 0.5 | as for copy | 0.5M | 508,704 |
/// | [`shakespeare`](Self::shakespeare) | 16 | trained from 0.5 | 1 layer, d 384, 6 heads, 256 positions, 65 ids | 1.9E6 | 1,893,889 |
///
/// The counts include norm scales; τ has no biases. They are the sum of 12d² + 2d per layer, d for the final norm, the
/// token and position tables, and 10d for the head of the image model. A trained α adds 1.
impl RecurrentConfig {
    /// Returns the recurrence for long-range image classification (section 6.1).
    pub fn image() -> Self {
        Self::default()
    }

    /// Returns the recurrence for the copy task (section 6.2).
    pub fn copy() -> Self {
        Self::default()
    }

    /// Returns the recurrence for selective copy (section 6.2). The authors' code fixes α.
    pub fn selective_copy() -> Self {
        Self {
            alpha: Alpha::Fixed(0.5),
            ..Self::default()
        }
    }

    /// Returns the recurrence for Shakespeare (section 6.3).
    pub fn shakespeare() -> Self {
        Self {
            block: 16,
            ..Self::default()
        }
    }
}

impl RecurrentConfig {
    /// Checks every field.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first invalid field.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check::at_least_one("block", self.block)?;
        let wrong = |problem| Err(ConfigError::new("alpha", problem));
        match self.alpha {
            Alpha::Sigmoid(alpha) if !(alpha > 0.0 && alpha < 1.0) => wrong(format!(
                "is {alpha}; with a sigmoid it must be above 0 and below 1"
            )),
            Alpha::Trainable(alpha) | Alpha::StraightThrough(alpha) | Alpha::Fixed(alpha)
                if !(0.0..=1.0).contains(&alpha) =>
            {
                wrong(format!("is {alpha}; it must be between 0 and 1"))
            }
            _ => Ok(()),
        }
    }

    /// Makes the recurrence around `layers`, each with the ends of its stream. Each layer is a separate τ and reads
    /// the output of the layer before. All layers share one α.
    ///
    /// # Panics
    ///
    /// The first forward pass panics if `block` is 0, which [`validate`](Self::validate) rejects.
    pub fn init<B: Backend, R: ResidualBlock<B>, E: Ends<B>>(
        &self,
        layers: Vec<(R, E)>,
        device: &B::Device,
    ) -> Recurrent<B, R, E> {
        Recurrent::new(self, layers, device)
    }

    /// Returns the cost of all windows of τ on a sequence of `context` tokens, per token of the sequence. `tau(time)`
    /// is the cost of the layers per token on a window of `time` tokens.
    pub fn cost(&self, tau: impl Fn(usize) -> Cost, context: usize) -> Cost {
        let k = self.block.min(context);
        let blocks = context.div_ceil(k);
        let last = context - k * (blocks - 1);
        let window = |time: usize| tau(time) * time;
        // Eq. 8, eq. 9 for whole blocks, eq. 9 for the last block, and eq. 10.
        let windows = match blocks {
            1 => window(last) * 2,
            _ => window(k) + window(2 * k) * (blocks - 2) + window(k + last) + window(last),
        };
        let alpha = match self.alpha {
            Alpha::Fixed(_) => Cost::default(),
            Alpha::Trainable(_) | Alpha::StraightThrough(_) | Alpha::Sigmoid(_) => Cost::vector(1),
        };
        let layers = Cost {
            forward_flops: windows.forward_flops / context,
            ..tau(k)
        };
        layers + alpha
    }
}
