//! A small sixth architecture: each token sees the mean of itself and all earlier tokens.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo::core::{
    Architecture, Branch, Connection, Cost, Plain, Shape, TokenEmbeddings, TokenEmbeddingsOptions,
    Update, Vocabulary, linear,
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToyConfig {
    pub n_layer: usize,
    pub width: usize,
    pub context: usize,
}

/// f(x)_t = W · mean(norm(x)_0, …, norm(x)_t).
#[derive(Module, Debug)]
pub struct Mean<B: Backend> {
    norm: LayerNorm<B>,
    mix: Linear<B>,
}

impl<B: Backend> Branch<B> for Mean<B> {
    /// Sum `[batch, 1, width]` and number of the positions seen.
    type Cache = (Option<Tensor<B, 3>>, usize);

    fn new_cache(&self) -> Self::Cache {
        (None, 0)
    }

    fn forward(&self, x: Tensor<B, 3>, cache: Option<&mut Self::Cache>) -> Tensor<B, 3> {
        let (time, mut fresh) = (x.dims()[1], self.new_cache());
        let (sum, seen) = cache.unwrap_or(&mut fresh);
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

impl Architecture for ToyConfig {
    type Block<B: Backend, C: Connection<B>> = Block<B, C>;
    type Embeddings<B: Backend> = TokenEmbeddings<B>;

    fn name(&self) -> &'static str {
        "Toy"
    }

    fn shape(&self) -> Shape {
        Shape {
            context: self.context,
            width: self.width,
            n_layer: self.n_layer,
            n_sublayer: 1,
            dropout: 0.0,
        }
    }

    fn embeddings<B: Backend>(&self, ids: Vocabulary, device: &B::Device) -> TokenEmbeddings<B> {
        let options = TokenEmbeddingsOptions::new(ids, self.context, self.width);
        TokenEmbeddings::new(&options, device)
    }

    fn block<B: Backend, C: Connection<B>>(
        &self,
        _layer: usize,
        mut connection: impl FnMut() -> C,
        device: &B::Device,
    ) -> Block<B, C> {
        let norm = LayerNormConfig::new(self.width).init(device);
        let mix = linear(self.width, self.width, false, 0.02, device);
        Update::new(Mean { norm, mix }, connection())
    }

    fn embeddings_cost(&self, ids: Vocabulary) -> Cost {
        TokenEmbeddingsOptions::new(ids, self.context, self.width).cost()
    }

    fn block_cost(&self, _time: usize) -> Cost {
        Cost::vector(2 * self.width) + Cost::linear(self.width, self.width, false)
    }
}
