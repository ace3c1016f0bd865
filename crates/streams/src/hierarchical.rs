//! Hierarchical aggregation (Dou et al., "Exploiting deep representations for neural machine translation", 2018,
//! <https://arxiv.org/abs/1810.10181>). H^l is the output of layer l, and
//!
//! ```text
//! AGG(x, y, …) = LN(FF([x; y; …]) + x + y + …)      FF: two maps, σ between them
//!
//! iterative:  G^1 = H^1,            G^l = AGG(H^l, G^{l-1})
//! tree:       G^1 = AGG(H^1, H^2),  G^i = AGG(H^{2i-1}, H^{2i}, G^{i-1})
//! ```
//!
//! The last G is the output of the stream, and no norm follows. In the iterative form, each layer reads the H of the
//! layer before. In the tree, layer 2i + 1 reads G^i.

use burn::module::Module;
use burn::tensor::{Tensor, activation::sigmoid, backend::Backend};
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Ends, Frame, Linear, Norm, Plain,
    Sites, Stream, check, linear, std_of_width,
};
use serde::{Deserialize, Serialize};

use crate::self_dependency::norm_params;

/// A node, which computes AGG.
#[derive(Module, Debug)]
struct Node<B: Backend> {
    /// `[c · D, M]` for c inputs and M hidden features.
    fc: Linear<B>,
    /// `[M, D]`.
    proj: Linear<B>,
    norm: Norm<B>,
}

impl<B: Backend> Node<B> {
    fn aggregate(&self, inputs: Vec<Tensor<B, 3>>) -> Tensor<B, 3> {
        let hidden = sigmoid(self.fc.forward(Tensor::cat(inputs.clone(), 2)));
        let sum = inputs
            .into_iter()
            .fold(self.proj.forward(hidden), |sum, x| sum + x);
        self.norm.forward(sum)
    }
}

/// The settings that the nodes of both forms share.
struct Nodes {
    width: usize,
    d_ff: usize,
    bias: bool,
    norm_eps: f64,
}

impl Nodes {
    /// Makes a node with `c` inputs.
    fn node<B: Backend>(&self, c: usize, device: &B::Device) -> Node<B> {
        let &Self {
            width, d_ff, bias, ..
        } = self;
        let d_in = c * width;
        Node {
            fc: linear(d_in, d_ff, bias, std_of_width(d_in), device),
            proj: linear(d_ff, width, bias, std_of_width(d_ff), device),
            norm: Norm::layer(norm_params(bias), width, self.norm_eps, device),
        }
    }

    fn cost(&self, c: usize) -> Cost {
        let &Self {
            width, d_ff, bias, ..
        } = self;
        Cost::linear(c * width, d_ff, bias)
            + Cost::linear(d_ff, width, bias)
            + norm_params(bias).cost(width)
    }

    fn validate(&self) -> Result<(), ConfigError> {
        check::at_least_one("d_ff", self.d_ff)?;
        check::positive("norm_eps", self.norm_eps)
    }
}

const FRAME: Frame = Frame {
    image: None,
    pre_norm: true,
    final_norm: false,
    feed_forward: true,
    own_values: true,
    inner: 1.0,
    output: 1.0,
    by_depth: true,
};

/// The iterative form. The stream carries G.
#[derive(Module, Debug)]
pub struct Iterative<B: Backend> {
    /// The node; `None` in the first layer, where G^1 is H^1.
    node: Option<Node<B>>,
}

impl<B: Backend> Connection<B> for Iterative<B> {
    fn update<M: Branch<B>>(&self, mut stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let h = f.plus(stream.x);
        let g = match (&self.node, stream.carried.pop()) {
            (Some(node), Some(before)) => node.aggregate(vec![h.clone(), before]),
            _ => h.clone(),
        };
        Stream {
            x: h,
            carried: vec![g],
            ..stream
        }
    }
}

/// The end that returns the last G.
#[derive(Module, Clone, Debug)]
pub struct LastNode;

impl<B: Backend> Ends<B> for LastNode {
    fn close(&self, mut stream: Stream<B>) -> Tensor<B, 3> {
        stream.carried.pop().unwrap_or(stream.x)
    }
}

/// The config of [`Iterative`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IterativeConfig {
    /// Width of the hidden layer of FF, M. `None` means 4 · width.
    pub d_ff: Option<usize>,
    /// Whether the maps and norms have biases.
    pub bias: bool,
    /// ε of norms, added to the variance.
    pub norm_eps: f64,
}

impl Default for IterativeConfig {
    fn default() -> Self {
        Self {
            d_ff: None,
            bias: true,
            norm_eps: 1e-5,
        }
    }
}

impl IterativeConfig {
    fn nodes(&self, on: &Sites) -> Nodes {
        Nodes {
            width: on.width,
            d_ff: self.d_ff.unwrap_or(4 * on.width),
            bias: self.bias,
            norm_eps: self.norm_eps,
        }
    }
}

impl Design for IterativeConfig {
    type Connection<B: Backend> = Iterative<B>;
    type Ends<B: Backend> = LastNode;

    fn name(&self) -> &'static str {
        "iterative aggregation"
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        if on.count < 2 {
            let problem = "aggregates at least two layers or sublayers, but there is one; use PerSublayer, or more layers (in a recurrence, each \
                           layer has a stream of its own)";
            return Err(ConfigError::new("Iterative", problem));
        }
        self.nodes(on).validate()
    }

    fn frame(&self, _: usize) -> Frame {
        FRAME
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> Iterative<B> {
        Iterative {
            node: (i > 0).then(|| self.nodes(on).node(2, device)),
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> LastNode {
        LastNode
    }

    fn cost(&self, on: &Sites) -> Cost {
        self.nodes(on).cost(2) * (on.count - 1)
    }
}

/// The tree. Between the two layers of a pair, the stream carries the previous G.
#[derive(Module, Debug)]
pub struct Tree<B: Backend> {
    /// The node of every second layer.
    node: Option<Node<B>>,
    /// Whether this is the first layer, which no G precedes.
    first: bool,
}

impl<B: Backend> Connection<B> for Tree<B> {
    fn update<M: Branch<B>>(&self, stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let before = stream.x;
        let h = f.plus(before.clone());
        match &self.node {
            None => Stream {
                x: h,
                carried: if self.first { vec![] } else { vec![before] },
                ..stream
            },
            Some(node) => {
                let mut inputs = vec![before, h];
                inputs.extend(stream.carried);
                Stream {
                    x: node.aggregate(inputs),
                    carried: vec![],
                    ..stream
                }
            }
        }
    }
}

/// The config of [`Tree`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TreeConfig {
    /// Width of the hidden layer of FF, M. `None` means 4 · width.
    pub d_ff: Option<usize>,
    /// Whether the maps and norms have biases.
    pub bias: bool,
    /// ε of norms, added to the variance.
    pub norm_eps: f64,
}

impl Default for TreeConfig {
    fn default() -> Self {
        Self {
            d_ff: None,
            bias: true,
            norm_eps: 1e-5,
        }
    }
}

impl TreeConfig {
    fn nodes(&self, on: &Sites) -> Nodes {
        Nodes {
            width: on.width,
            d_ff: self.d_ff.unwrap_or(4 * on.width),
            bias: self.bias,
            norm_eps: self.norm_eps,
        }
    }
}

impl Design for TreeConfig {
    type Connection<B: Backend> = Tree<B>;
    type Ends<B: Backend> = Plain;

    fn name(&self) -> &'static str {
        "tree aggregation"
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        if !on.count.is_multiple_of(2) {
            let alone = match on.recurrent && on.around_layers {
                true => " in a recurrence, which passes each layer alone; use PerSublayer",
                false => "; the number must be even",
            };
            let problem = format!(
                "takes layers or sublayers in pairs, but there are {}{alone}",
                on.count
            );
            return Err(ConfigError::new("Tree", problem));
        }
        self.nodes(on).validate()
    }

    fn frame(&self, _: usize) -> Frame {
        FRAME
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> Tree<B> {
        let node = || self.nodes(on).node(if i == 1 { 2 } else { 3 }, device);
        Tree {
            node: (i % 2 == 1).then(node),
            first: i == 0,
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    fn cost(&self, on: &Sites) -> Cost {
        let nodes = self.nodes(on);
        nodes.cost(2) + nodes.cost(3) * (on.count / 2 - 1)
    }
}
