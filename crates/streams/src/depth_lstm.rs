//! Depth-wise LSTMs (Xu et al., "Rewiring the transformer with depth-wise LSTMs", 2020,
//! <https://arxiv.org/abs/2007.06257>): layers are the steps of an LSTM, separately for each position.
//!
//! ```text
//! i, f, o = σ(LN([a; x] W + b))        m = act(LN([a; x] U + b')) V + b''
//! cell'   = f ⊙ cell + i ⊙ m           x' = o ⊙ cell'
//! ```
//!
//! a is the output of attention, with a norm and a residual in [`DepthLstmForm::Code`]. The cell replaces the other
//! residuals and norms, and the feed-forward network. [`DepthLstmCell`] surrounds each sublayer instead. Its a is the
//! output of the branch. Its m is the tanh of a fourth map, which shares the norm of the gates.
//!
//! Nothing is added to the stream, so GPT-2's factor 1/√(2L) on initial output projections is omitted.

use burn::module::Module;
use burn::tensor::activation::sigmoid;
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::{activation::tanh, norm::standardise};
use residual_zoo_core::{
    Activation, Branch, BranchFn, ConfigError, Connection, Cost, Design, Ends, Frame, Linear, Norm,
    Sites, Stream, check, linear, std_of_width,
};
use serde::{Deserialize, Serialize};

use crate::self_dependency::norm_params;

/// The features that the gates' norm covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GateNorm {
    /// The features of one gate, as in the paper.
    #[default]
    Each,
    /// The features of all gates of a position, as in the authors' code.
    Joint,
}

/// The cell before the first layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FirstCell {
    /// x_0, as in the authors' code.
    #[default]
    Embedding,
    /// Zero.
    Zero,
}

/// The stream carries the cell.
impl<B: Backend> Ends<B> for LstmEnds {
    fn open(&self, x: Tensor<B, 3>) -> Stream<B> {
        let cell = match self.first {
            FirstCell::Embedding => x.clone(),
            FirstCell::Zero => x.zeros_like(),
        };
        Stream {
            carried: vec![cell],
            ..Stream::new(x)
        }
    }
}

/// The ends of a stream that carries the cell.
#[derive(Module, Clone, Debug)]
pub struct LstmEnds {
    first: FirstCell,
}

/// n normalised maps of [a; x], `[batch, time, D]` each.
#[derive(Module, Debug)]
struct Gates<B: Backend> {
    /// `[2D, n · D]`; the rows for a come first.
    map: Linear<B>,
    /// The scale and, with biases, the shift, `[n · D]`.
    norm: Norm<B>,
    each: GateNorm,
    n: usize,
}

impl<B: Backend> Gates<B> {
    fn new(n: usize, width: usize, common: &Common, device: &B::Device) -> Self {
        let d_in = 2 * width;
        let params = norm_params(common.bias);
        Self {
            map: linear(d_in, n * width, common.bias, std_of_width(d_in), device),
            norm: Norm::layer(params, n * width, common.norm_eps, device),
            each: common.gate_norm,
            n,
        }
    }

    fn forward(&self, both: Tensor<B, 3>, eps: f64) -> Vec<Tensor<B, 3>> {
        let gates = self.map.forward(both);
        let [batch, time, all] = gates.dims();
        let width = all / self.n;
        let gates = match self.each {
            GateNorm::Joint => self.norm.forward(gates),
            GateNorm::Each => {
                let gates = standardise(gates.reshape([batch, time, self.n, width]), eps);
                let gates = gates.reshape([batch, time, all]);
                let [scale, shift] = [&self.norm.gamma, &self.norm.beta];
                let gates = match scale {
                    Some(scale) => gates * scale.val().unsqueeze(),
                    None => gates,
                };
                match shift {
                    Some(shift) => gates + shift.val().unsqueeze(),
                    None => gates,
                }
            }
        };
        let gate = |g| gates.clone().narrow(2, g * width, width);
        (0..self.n).map(gate).collect()
    }
}

/// The settings that both connections share.
struct Common {
    gate_norm: GateNorm,
    bias: bool,
    norm_eps: f64,
}

impl Common {
    fn gates_cost(&self, n: usize, width: usize) -> Cost {
        let all = n * width;
        Cost::linear(2 * width, all, self.bias) + norm_params(self.bias).cost(all)
    }
}

/// The cell that replaces the residuals, the norms and the feed-forward network of a layer.
#[derive(Module, Debug)]
pub struct DepthLstm<B: Backend> {
    /// The norm before attention in [`DepthLstmForm::Code`].
    norm: Norm<B>,
    gates: Gates<B>,
    /// U `[2D, F]` and b'.
    fc: Linear<B>,
    norm_hidden: Norm<B>,
    /// V `[F, D]` and b''.
    proj: Linear<B>,
    form: DepthLstmForm,
    activation: Activation,
    eps: f64,
}

/// The input of the cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DepthLstmForm {
    /// a = attention(x), as in the abstract of the paper.
    #[default]
    Paper,
    /// a = u + attention(u) with u = LN(x), as in the authors' code.
    Code,
}

impl<B: Backend> Connection<B> for DepthLstm<B> {
    fn update<M: Branch<B>>(&self, mut stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let (x, cell) = (stream.x, stream.carried.remove(0));
        let a = match self.form {
            DepthLstmForm::Paper => f.of(x.clone()),
            DepthLstmForm::Code => f.plus(self.norm.forward(x.clone())),
        };
        let both = Tensor::cat(vec![a, x], 2);
        let gates = self.gates.forward(both.clone(), self.eps).into_iter();
        let [i, f, o] = take(gates.map(sigmoid));
        let hidden = self.norm_hidden.forward(self.fc.forward(both));
        let m = self.proj.forward(self.activation.apply(hidden));
        let cell = f * cell + i * m;
        Stream {
            x: o * cell.clone(),
            carried: vec![cell],
            ..stream
        }
    }
}

/// Returns the first N items, which must exist.
fn take<B: Backend, const N: usize>(
    mut all: impl Iterator<Item = Tensor<B, 3>>,
) -> [Tensor<B, 3>; N] {
    std::array::from_fn(|_| match all.next() {
        Some(x) => x,
        None => unreachable!("there are {N} gates"),
    })
}

/// The config of [`DepthLstm`]. The architecture provides the attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DepthLstmConfig {
    /// The input of the cell.
    pub form: DepthLstmForm,
    /// The features that the gates' norm covers.
    pub gate_norm: GateNorm,
    /// The cell before the first layer.
    pub first_cell: FirstCell,
    /// F, the width of the hidden layer in m. `None` means 4 · width.
    pub d_ff: Option<usize>,
    /// Activation in m.
    pub activation: Activation,
    /// Whether the maps and norms have biases.
    pub bias: bool,
    /// ε of norms, added to the variance.
    pub norm_eps: f64,
}

impl Default for DepthLstmConfig {
    fn default() -> Self {
        Self {
            form: DepthLstmForm::Paper,
            gate_norm: GateNorm::Each,
            first_cell: FirstCell::Embedding,
            d_ff: None,
            activation: Activation::Relu,
            bias: true,
            norm_eps: 1e-5,
        }
    }
}

impl DepthLstmConfig {
    fn common(&self) -> Common {
        Common {
            gate_norm: self.gate_norm,
            bias: self.bias,
            norm_eps: self.norm_eps,
        }
    }

    fn d_ff(&self, width: usize) -> usize {
        self.d_ff.unwrap_or(4 * width)
    }
}

impl Design for DepthLstmConfig {
    type Connection<B: Backend> = DepthLstm<B>;
    type Ends<B: Backend> = LstmEnds;

    fn name(&self) -> &'static str {
        "depth-wise LSTM"
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        on.need_sublayers(
            "DepthLstm",
            "it takes the place of the feed-forward network",
        )?;
        check::at_least_one("d_ff", self.d_ff(on.width))?;
        check::positive("norm_eps", self.norm_eps)
    }

    fn frame(&self, _: usize) -> Frame {
        Frame {
            pre_norm: false,
            feed_forward: false,
            by_depth: false,
            ..Frame::default()
        }
    }

    fn connection<B: Backend>(&self, on: &Sites, _: usize, device: &B::Device) -> DepthLstm<B> {
        let (width, d_ff, params) = (on.width, self.d_ff(on.width), norm_params(self.bias));
        let (d_in, norm) = (2 * width, |width| {
            Norm::layer(params, width, self.norm_eps, device)
        });
        DepthLstm {
            norm: match self.form {
                DepthLstmForm::Paper => Norm::identity(),
                DepthLstmForm::Code => norm(width),
            },
            gates: Gates::new(3, width, &self.common(), device),
            fc: linear(d_in, d_ff, self.bias, std_of_width(d_in), device),
            norm_hidden: norm(d_ff),
            proj: linear(d_ff, width, self.bias, std_of_width(d_ff), device),
            form: self.form,
            activation: self.activation,
            eps: self.norm_eps,
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> LstmEnds {
        LstmEnds {
            first: self.first_cell,
        }
    }

    fn cost(&self, on: &Sites) -> Cost {
        let (width, d_ff, params) = (on.width, self.d_ff(on.width), norm_params(self.bias));
        let norm = match self.form {
            DepthLstmForm::Paper => Cost::default(),
            DepthLstmForm::Code => params.cost(width),
        };
        let hidden = Cost::linear(2 * width, d_ff, self.bias) + params.cost(d_ff);
        let cell = self.common().gates_cost(3, width)
            + hidden
            + Cost::linear(d_ff, width, self.bias)
            + norm;
        cell * on.count
    }
}

/// An LSTM around each sublayer, without its own feed-forward network.
#[derive(Module, Debug)]
pub struct DepthLstmCell<B: Backend> {
    gates: Gates<B>,
    eps: f64,
}

impl<B: Backend> Connection<B> for DepthLstmCell<B> {
    fn update<M: Branch<B>>(&self, mut stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let (x, cell) = (stream.x, stream.carried.remove(0));
        let both = Tensor::cat(vec![f.of(x.clone()), x], 2);
        let [i, f, o, m] = take(self.gates.forward(both, self.eps).into_iter());
        let cell = sigmoid(f) * cell + sigmoid(i) * tanh(m);
        Stream {
            x: sigmoid(o) * cell.clone(),
            carried: vec![cell],
            ..stream
        }
    }
}

/// The config of [`DepthLstmCell`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DepthLstmCellConfig {
    /// The features that the gates' norm covers.
    pub gate_norm: GateNorm,
    /// The cell before the first layer.
    pub first_cell: FirstCell,
    /// Whether the map and the norm have biases.
    pub bias: bool,
    /// ε of norms, added to the variance.
    pub norm_eps: f64,
}

impl Default for DepthLstmCellConfig {
    fn default() -> Self {
        Self {
            gate_norm: GateNorm::Joint,
            first_cell: FirstCell::Embedding,
            bias: true,
            norm_eps: 1e-5,
        }
    }
}

impl DepthLstmCellConfig {
    fn common(&self) -> Common {
        Common {
            gate_norm: self.gate_norm,
            bias: self.bias,
            norm_eps: self.norm_eps,
        }
    }
}

impl Design for DepthLstmCellConfig {
    type Connection<B: Backend> = DepthLstmCell<B>;
    type Ends<B: Backend> = LstmEnds;

    fn name(&self) -> &'static str {
        "depth-wise LSTM cell"
    }

    fn validate(&self, _: &Sites) -> Result<(), ConfigError> {
        check::positive("norm_eps", self.norm_eps)
    }

    fn frame(&self, _: usize) -> Frame {
        Frame {
            by_depth: false,
            ..Frame::default()
        }
    }

    fn connection<B: Backend>(&self, on: &Sites, _: usize, device: &B::Device) -> DepthLstmCell<B> {
        DepthLstmCell {
            gates: Gates::new(4, on.width, &self.common(), device),
            eps: self.norm_eps,
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> LstmEnds {
        LstmEnds {
            first: self.first_cell,
        }
    }

    fn cost(&self, on: &Sites) -> Cost {
        self.common().gates_cost(4, on.width) * on.count
    }
}
