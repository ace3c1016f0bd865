//! SiameseNorm (Li et al., "SiameseNorm: breaking the barrier to reconciling pre/post-norm", 2026,
//! <https://arxiv.org/abs/2602.08064>). Two streams share every branch F: x, whose sums are normalised, and y, with
//! norms before the branches. F has no norm of its own, and both streams are initially x_0:
//!
//! ```text
//! paper:  b = F(N(x + N_y(y)))    x' = N_x(x + b / c)    y' = y + b        end  x + N_y(y)
//! code:   z = N_x(x)    b = F(N(z + N_y(y)))    x' = z + b / c    y' = y + b    end  N(N_x(x) + N_y(y))
//! ```
//!
//! N, the norm of F's input, and the division by c are optional. Without them, N is the identity and c is 1. The last N
//! of the code is the final norm of the model; the paper has no final norm. In layer l, counted from 0, c is √(l + 1)
//! in the paper and √(2(l + 1)) in the code, at both residuals.

use burn::module::Module;
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Ends, Frame, Norm, NormDesign, Sites,
    Stream,
};
use serde::{Deserialize, Serialize};

/// The source of the equations: the paper, or the authors' code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SiameseForm {
    /// The paper: a norm of x follows each sum, and the model has no final norm.
    Paper,
    /// The authors' code: a norm of x precedes each branch, so x_0 is normalised too. This is the default, because the
    /// code settles every detail.
    #[default]
    Code,
}

/// The update of x and y. The stream holds x and carries y.
#[derive(Module, Debug)]
pub struct Siamese<B: Backend> {
    norm_x: Norm<B>,
    norm_y: Norm<B>,
    /// N, the norm of F's input.
    norm: Norm<B>,
    /// 1 / c.
    scale: f64,
    form: SiameseForm,
}

impl<B: Backend> Connection<B> for Siamese<B> {
    fn update<M: Branch<B>>(&self, mut stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        let (x, y) = (stream.x, stream.carried.remove(0));
        let x = match self.form {
            SiameseForm::Paper => x,
            SiameseForm::Code => self.norm_x.forward(x),
        };
        let u = x.clone() + self.norm_y.forward(y.clone());
        let b = f.of_normed(u, |u| self.norm.forward(u));
        let x = x + b.clone() * self.scale;
        Stream {
            x: match self.form {
                SiameseForm::Paper => self.norm_x.forward(x),
                SiameseForm::Code => x,
            },
            carried: vec![y + b],
            ..stream
        }
    }
}

/// The ends of the two streams. Both streams begin as x_0; at the end, the normalised streams are summed. In the
/// paper's form, x is not normalised at the end.
#[derive(Module, Debug)]
pub struct SiameseEnds<B: Backend> {
    norm_x: Norm<B>,
    norm_y: Norm<B>,
}

impl<B: Backend> Ends<B> for SiameseEnds<B> {
    fn open(&self, x: Tensor<B, 3>) -> Stream<B> {
        crate::KeepFirst.open(x)
    }

    fn close(&self, mut stream: Stream<B>) -> Tensor<B, 3> {
        let (x, y) = (stream.x, stream.carried.remove(0));
        self.norm_x.forward(x) + self.norm_y.forward(y)
    }
}

/// The config of [`Siamese`]. In a recurrence, each layer has its own stream, so l is 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SiameseConfig {
    /// The source of the equations: the paper, or the authors' code.
    pub form: SiameseForm,
    /// Whether F's input has a norm, N.
    pub input_norm: bool,
    /// Whether b is divided by c before it is added to x. Otherwise, c is 1.
    pub depth_scale: bool,
    /// The kind of all norms but the final one.
    pub norm: NormDesign,
}

impl Default for SiameseConfig {
    fn default() -> Self {
        Self {
            form: SiameseForm::Code,
            input_norm: true,
            depth_scale: true,
            norm: NormDesign::default(),
        }
    }
}

impl SiameseConfig {
    /// Returns c at residual `i`.
    fn divisor(&self, on: &Sites, i: usize) -> f64 {
        let layers = (on.layer(i) + 1) as f64;
        match (self.depth_scale, self.form) {
            (false, _) => 1.0,
            (true, SiameseForm::Paper) => layers.sqrt(),
            (true, SiameseForm::Code) => (2.0 * layers).sqrt(),
        }
    }

    fn build<B: Backend>(&self, here: bool, on: &Sites, device: &B::Device) -> Norm<B> {
        match here {
            true => self.norm.build(on.width, device),
            false => Norm::identity(),
        }
    }
}

impl Design for SiameseConfig {
    type Connection<B: Backend> = Siamese<B>;
    type Ends<B: Backend> = SiameseEnds<B>;

    fn name(&self) -> &'static str {
        "SiameseNorm"
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        on.need_sublayers("Siamese", "it takes the norms out of sublayers")?;
        self.norm.validate()
    }

    fn frame(&self, _: usize) -> Frame {
        Frame {
            pre_norm: false,
            final_norm: self.form == SiameseForm::Code,
            ..Frame::default()
        }
    }

    fn connection<B: Backend>(&self, on: &Sites, i: usize, device: &B::Device) -> Siamese<B> {
        Siamese {
            norm_x: self.build(true, on, device),
            norm_y: self.build(true, on, device),
            norm: self.build(self.input_norm, on, device),
            scale: self.divisor(on, i).recip(),
            form: self.form,
        }
    }

    fn ends<B: Backend>(&self, on: &Sites, device: &B::Device) -> SiameseEnds<B> {
        SiameseEnds {
            norm_x: self.build(self.form == SiameseForm::Code, on, device),
            norm_y: self.build(true, on, device),
        }
    }

    fn cost(&self, on: &Sites) -> Cost {
        let of_residual = 2 + usize::from(self.input_norm);
        let of_ends = 1 + usize::from(self.form == SiameseForm::Code);
        self.norm.cost(on.width) * (of_residual * on.count + of_ends)
    }
}
