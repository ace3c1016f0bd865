//! A sixth architecture, as small as one can be: each token sees the mean of itself and all
//! earlier ones.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo::core::{
    Architecture, Branch, ConfigError, Connection, Cost, NormParams, Plain, TokenEnds,
    TokenEndsOptions, Update, check, linear,
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToyConfig {
    pub n_layer: usize,
    pub width: usize,
    pub context: usize,
}

impl Default for ToyConfig {
    fn default() -> Self {
        Self {
            n_layer: 2,
            width: 60,
            context: 64,
        }
    }
}

/// f(x)_t = W · mean(norm(x)_0, …, norm(x)_t).
#[derive(Module, Debug)]
pub struct Mean<B: Backend> {
    norm: LayerNorm<B>,
    mix: Linear<B>,
}

/// Sum `[batch, 1, width]` and number of the positions seen.
pub type MeanCache<B> = (Option<Tensor<B, 3>>, usize);

impl<B: Backend> Branch<B> for Mean<B> {
    type Cache = MeanCache<B>;

    fn new_cache(&self) -> MeanCache<B> {
        (None, 0)
    }

    fn decode(&self, x: Tensor<B, 3>, (sum, seen): &mut MeanCache<B>) -> Tensor<B, 3> {
        let time = x.dims()[1];
        let mut sums = self.norm.forward(x).cumsum(1);
        if let Some(sum) = sum {
            sums = sums + sum.clone();
        }
        *sum = Some(sums.clone().narrow(1, time - 1, 1));
        let first = *seen as i64 + 1;
        *seen += time;
        let counts = Tensor::arange(first..first + time as i64, &sums.device()).float();
        self.mix.forward(sums / counts.reshape([1, time, 1]))
    }
}

/// A layer with a connection of type `C`.
pub type Block<B, C = Plain> = Update<B, Mean<B>, C>;

impl ToyConfig {
    fn ends_options(&self, vocab_size: usize, n_output: usize) -> TokenEndsOptions {
        TokenEndsOptions {
            vocab_size,
            n_output,
            positions: Some(self.context),
            width: self.width,
            tied: true,
            norm: NormParams::ScaleAndShift,
            dropout: 0.0,
            norm_eps: 1e-5,
            init_std: 0.02,
        }
    }
}

impl Architecture for ToyConfig {
    type Block<B: Backend, C: Connection<B>> = Block<B, C>;
    type Ends<B: Backend> = TokenEnds<B>;

    fn name(&self) -> String {
        "Toy".into()
    }

    fn validate(&self) -> Result<(), ConfigError> {
        check::at_least_one("n_layer", self.n_layer)?;
        check::at_least_one("width", self.width)?;
        check::at_least_one("context", self.context)
    }

    fn context(&self) -> usize {
        self.context
    }

    fn width(&self) -> usize {
        self.width
    }

    fn n_layer(&self) -> usize {
        self.n_layer
    }

    fn n_sublayer(&self) -> usize {
        1
    }

    fn dropout(&self) -> f64 {
        0.0
    }

    fn ends<B: Backend>(
        &self,
        vocab_size: usize,
        n_output: usize,
        device: &B::Device,
    ) -> TokenEnds<B> {
        TokenEnds::new(&self.ends_options(vocab_size, n_output), device)
    }

    fn block<B: Backend, C: Connection<B>>(
        &self,
        _layer: usize,
        mut connection: impl FnMut() -> C,
        device: &B::Device,
    ) -> Self::Block<B, C> {
        let norm = LayerNormConfig::new(self.width).init(device);
        let mix = linear(self.width, self.width, false, 0.02, device);
        Update::new(Mean { norm, mix }, connection())
    }

    fn ends_cost(&self, vocab_size: usize, n_output: usize) -> Cost {
        self.ends_options(vocab_size, n_output).cost()
    }

    fn block_cost(&self, _time: usize) -> Cost {
        Cost::vector(2 * self.width) + Cost::linear(self.width, self.width, false)
    }
}
