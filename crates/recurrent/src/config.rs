//! Block size, α and form.

use burn::tensor::backend::Backend;
use residual_zoo_core::{ConfigError, Cost, ResidualBlock, check};
use serde::{Deserialize, Serialize};

use crate::Recurrent;

/// α, the weight of the accumulated state, kept in [0, 1].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Alpha {
    /// Trained, from this value.
    Trainable(f64),
    /// Fixed, as in the authors' language model (0) and selective copy (0.5).
    Fixed(f64),
}

/// What is carried from one step to the next, weighted by α.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// h_{i-1}, as eq. 9 says. h_0, which it leaves open, is zero.
    #[default]
    Paper,
    /// y_{i-1}, as the authors' code has it: the output in place of the hidden state. y_0 is x_1.
    Code,
}

/// The config of the recurrence around a model's layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecurrentConfig {
    /// Tokens in a block, k.
    pub block: usize,
    /// α.
    pub alpha: Alpha,
    /// Eq. 9 as printed or as the authors' code computes it.
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

impl RecurrentConfig {
    /// Section 6.1, long-range image classification: k = 32. τ is one layer of width 32 with 4
    /// heads.
    pub fn image() -> Self {
        Self::default()
    }

    /// Section 6.2, copy: k = 32. τ is one layer of width 96 with 6 heads.
    pub fn copy() -> Self {
        Self::default()
    }

    /// Section 6.2, selective copy, for which the authors' code fixes α: k = 32. τ as in copy.
    pub fn selective_copy() -> Self {
        Self {
            alpha: Alpha::Fixed(0.5),
            ..Self::default()
        }
    }

    /// Section 6.3, Shakespeare: k = 16. τ is one layer of width 384 with 6 heads.
    pub fn shakespeare() -> Self {
        Self {
            block: 16,
            ..Self::default()
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// The first field with an impossible value.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check::at_least_one("block", self.block)?;
        let (Alpha::Trainable(alpha) | Alpha::Fixed(alpha)) = self.alpha;
        if !(0.0..=1.0).contains(&alpha) {
            let problem = format!("is {alpha}; it must be between 0 and 1");
            return Err(ConfigError::new("alpha", problem));
        }
        Ok(())
    }

    /// The recurrence around `layers`. Each is a τ of its own and reads the output of the one before;
    /// all share one α.
    ///
    /// # Panics
    ///
    /// At the first pass, if [`validate`](Self::validate) refuses the config.
    pub fn init<B: Backend, R: ResidualBlock<B>>(
        &self,
        layers: Vec<R>,
        device: &B::Device,
    ) -> Recurrent<B, R> {
        Recurrent::new(self, layers, device)
    }

    /// The cost over `context` tokens around layers that cost `tau(time)` on sequences of `time`
    /// tokens. τ sees every token twice, in windows of at most 2k.
    pub fn cost(&self, tau: impl Fn(usize) -> Cost, context: usize) -> Cost {
        let k = self.block.min(context);
        let blocks = context.div_ceil(k.max(1));
        let last = context - k.saturating_mul(blocks.saturating_sub(1)).min(context);
        let flops = |time: usize| tau(time).forward_flops.saturating_mul(time);
        // Eq. 8; eq. 9 for whole blocks and for the last; eq. 10.
        let windows = match blocks {
            0 | 1 => flops(last).saturating_mul(2),
            _ => flops(k)
                .saturating_add(flops(k.saturating_mul(2)).saturating_mul(blocks - 2))
                .saturating_add(flops(k.saturating_add(last)))
                .saturating_add(flops(last)),
        };
        let alpha = match self.alpha {
            Alpha::Trainable(_) => Cost::vector(1),
            Alpha::Fixed(_) => Cost::default(),
        };
        let layers = Cost {
            forward_flops: windows / context.max(1),
            ..tau(k)
        };
        layers + alpha
    }
}
