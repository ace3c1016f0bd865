//! Embeddings that most models share: a token table, learned positions, a final norm.

use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Embedding};
use burn::tensor::{Int, Tensor, backend::Backend};

use crate::ops::attention::capped;
use crate::ops::embedding::embedding;
use crate::{
    Cost, Embeddings, Linear, Mup, Norm, NormDesign, NormParams, Params, Scaled, Seen, Vocabulary,
    init, project, widen,
};

/// x_0 = tokens\[ids\] + positions, logits = norm(x_L) · unembedding. x_0 and the logits can also have multipliers, x_0
/// can be normalised, and with a cap c, logits z become c tanh(z / c).
///
/// The unembedding is the transposed token table (Press and Wolf, "Using the output embedding
/// to improve language models", 2017) unless the model has a separate one.
#[derive(Module, Debug)]
pub struct TokenEmbeddings<B: Backend> {
    tokens: Embedding<B>,
    positions: Option<Embedding<B>>,
    dropout: Dropout,
    norm: Norm<B>,
    unembedding: Option<Linear<B>>,
    input_scale: f64,
    output_scale: f64,
    input_norm: Norm<B>,
    cap: Option<f64>,
}

/// The sizes and switches of [`TokenEmbeddings`].
#[derive(Clone, Debug)]
pub struct TokenEmbeddingsOptions {
    /// Token ids and outputs.
    pub vocabulary: Vocabulary,
    /// Number of learned positions. `None` if the model encodes positions elsewhere.
    pub positions: Option<usize>,
    /// Width of the stream.
    pub width: usize,
    /// Whether the unembedding is the token table. The unembedding is always separate if the number of outputs differs
    /// from the number of token ids.
    pub tied: bool,
    /// The final norm, if there is one.
    pub norm: Option<NormDesign>,
    /// Dropout probability on x_0.
    pub dropout: f64,
    /// Standard deviation of the initial tables.
    pub init_std: f64,
    /// Standard deviation of the initial separate unembedding.
    pub unembedding_std: f64,
    /// The multiplier of x_0.
    pub input_scale: f64,
    /// The multiplier of the logits.
    pub output_scale: f64,
    /// The norm of x_0, if there is one.
    pub input_norm: Option<NormDesign>,
    /// The cap c: logits z become c tanh(z / c) (Gemma 2).
    pub cap: Option<f64>,
}

impl TokenEmbeddingsOptions {
    /// Returns the options of GPT-2 (Radford et al. 2019): learned positions, a tied unembedding, a final norm with
    /// scale and shift, and an initial standard deviation of 0.02.
    pub fn new(vocabulary: Vocabulary, context: usize, width: usize) -> Self {
        Self {
            vocabulary,
            positions: Some(context),
            width,
            tied: true,
            norm: Some(NormDesign::Layer {
                params: NormParams::ScaleAndShift,
                eps: 1e-5,
            }),
            dropout: 0.0,
            init_std: 0.02,
            unembedding_std: 0.02,
            input_scale: 1.0,
            output_scale: 1.0,
            input_norm: None,
            cap: None,
        }
    }

    /// Sets the initialisation and the multipliers of μP. `base` is the width of the base model.
    pub fn mup<S>(self, mup: &Mup<S>, base: usize) -> Self {
        let now = self.width;
        Self {
            init_std: mup.init_std,
            unembedding_std: 0.0,
            input_scale: mup.input,
            output_scale: mup.output_scale(Scaled { now, base }),
            ..self
        }
    }

    fn tied(&self) -> bool {
        self.tied && self.vocabulary.outputs == self.vocabulary.ids()
    }

    /// Returns the cost of the embeddings.
    pub fn cost(&self) -> Cost {
        let (ids, outputs) = (self.vocabulary.ids(), self.vocabulary.outputs);
        let rows = ids + self.positions.unwrap_or(0);
        let unembedding = outputs * self.width;
        let params = Params {
            embedding: rows * self.width,
            unembedding: if self.tied() { 0 } else { unembedding },
            other: 0,
        };
        let tables = Cost {
            params,
            ..Cost::flops(2 * unembedding)
        };
        let norms = [self.norm, self.input_norm];
        let norms = norms
            .into_iter()
            .flatten()
            .map(|norm| norm.cost(self.width));
        norms.fold(tables, |sum, norm| sum + norm)
    }
}

impl<B: Backend> TokenEmbeddings<B> {
    /// Draws the tables from N(0, `init_std`²), and a separate unembedding from N(0, `unembedding_std`²).
    pub fn new(options: &TokenEmbeddingsOptions, device: &B::Device) -> Self {
        let &TokenEmbeddingsOptions {
            vocabulary,
            width,
            init_std,
            unembedding_std,
            ..
        } = options;
        let table = |rows| Embedding {
            weight: init::normal([rows, width], init_std, device),
        };
        let norm = |design: Option<NormDesign>| {
            design.map_or_else(Norm::identity, |design| design.build(width, device))
        };
        Self {
            tokens: table(vocabulary.ids()),
            positions: options.positions.map(table),
            dropout: DropoutConfig::new(options.dropout).init(),
            norm: norm(options.norm),
            unembedding: (!options.tied())
                .then(|| init::linear(width, vocabulary.outputs, false, unembedding_std, device)),
            input_scale: options.input_scale,
            output_scale: options.output_scale,
            input_norm: norm(options.input_norm),
            cap: options.cap,
        }
    }
}

impl<B: Backend> Embeddings<B> for TokenEmbeddings<B> {
    fn embed(&self, ids: Tensor<B, 2, Int>, seen: &Seen) -> Tensor<B, 3> {
        let time = ids.dims()[1];
        let tokens = embedding(self.tokens.weight.val(), ids);
        let x = match &self.positions {
            Some(table) => add_positions(tokens, positions(table.weight.val(), seen, time)),
            None => tokens,
        };
        let x = self.input_norm.forward(scaled(x, self.input_scale));
        self.dropout.forward(x)
    }

    fn unembed(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let x = scaled(self.norm.forward(x), self.output_scale);
        let logits = match &self.unembedding {
            Some(unembedding) => unembedding.forward(x),
            None => project(x, self.tokens.weight.val().transpose()),
        };
        match self.cap {
            Some(cap) => capped(widen(logits), cap),
            None => logits,
        }
    }

    fn final_norm(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        self.norm.forward(x)
    }
}

/// Multiplies x by `factor`; returns x itself if the factor is 1.
pub fn scaled<B: Backend>(x: Tensor<B, 3>, factor: f64) -> Tensor<B, 3> {
    match factor == 1.0 {
        true => x,
        false => x * factor,
    }
}

/// Returns the rows of `table` `[context, width]` for `time` positions after `seen`: `[batch, time, width]`, or
/// `[1, time, width]` if all sequences of the batch share the positions.
pub fn positions<B: Backend>(table: Tensor<B, 2>, seen: &Seen, time: usize) -> Tensor<B, 3> {
    match seen.same() {
        Some(start) => table.narrow(0, start, time).unsqueeze(),
        None => {
            let positions = seen.next(time, &table.device());
            embedding(table, positions)
        }
    }
}

/// Adds positions, `[batch, time, width]` or `[1, time, width]`, to x `[batch, time, width]`.
pub fn add_positions<B: Backend>(x: Tensor<B, 3>, positions: Tensor<B, 3>) -> Tensor<B, 3> {
    let [batch, time, width] = x.dims();
    if positions.dims()[0] > 1 {
        return x + positions;
    }
    // On Flex, adding one row to all rows of a matrix is ten times faster than adding one matrix to several matrices.
    let x = x.reshape([batch, time * width]) + positions.reshape([1, time * width]);
    x.reshape([batch, time, width])
}
