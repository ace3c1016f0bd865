//! Initial values of parameters.

use burn::module::{Initializer, Param};
use burn::tensor::{Tensor, backend::Backend};

use serde::{Deserialize, Serialize};

use crate::{ConfigError, Linear, check};

/// The standard deviation of initial weights and tables.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Init {
    /// √(2 / (5 D)) on a stream of width D (Nguyen and Salazar, "Transformers without tears", 2019, section 2.2). Layer
    /// outputs then have the same size at every width.
    Width,
    /// A given number.
    Fixed(f64),
}

impl Init {
    /// Returns `Width` below width 768. From width 768 on, returns `Fixed(0.02)`, the value of GPT-2, OLMo 2 and
    /// `transformers`.
    pub fn of_width(width: usize) -> Self {
        match width < 768 {
            true => Self::Width,
            false => Self::Fixed(0.02),
        }
    }

    /// Returns the standard deviation on a stream of `width` features.
    pub fn std(self, width: usize) -> f64 {
        match self {
            Self::Width => std_of_width(width),
            Self::Fixed(std) => std,
        }
    }

    /// Checks that a fixed standard deviation is above 0 and finite.
    ///
    /// # Errors
    ///
    /// Returns an error about the field `init`.
    pub fn validate(self) -> Result<(), ConfigError> {
        match self {
            Self::Width => Ok(()),
            Self::Fixed(std) => check::positive("init", std),
        }
    }
}

/// Draws a parameter from N(0, `std`²).
pub fn normal<B: Backend, const D: usize>(
    shape: [usize; D],
    std: f64,
    device: &B::Device,
) -> Param<Tensor<B, D>> {
    Initializer::Normal { mean: 0.0, std }.init(shape, device)
}

/// Returns √(2 / (5 D)), the standard deviation of initial weights on a stream of `width` features, D (Nguyen and
/// Salazar, "Transformers without tears", 2019, section 2.2).
pub fn std_of_width(width: usize) -> f64 {
    (2.0 / (5.0 * width as f64)).sqrt()
}

/// Builds the layer y = x · weight + bias, with `weight` `[d_in, d_out]` from N(0, `std`²) and a zero bias.
pub fn linear<B: Backend>(
    d_in: usize,
    d_out: usize,
    bias: bool,
    std: f64,
    device: &B::Device,
) -> Linear<B> {
    Linear {
        weight: normal([d_in, d_out], std, device),
        bias: bias.then(|| Initializer::Zeros.init([d_out], device)),
    }
}
