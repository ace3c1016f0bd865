//! PyTorch's attention: its flash attention on CPUs, and on CUDA the fastest kernel that PyTorch finds.

use burn::backend::LibTorch;
use burn_tch::TchTensor;
use tch::{Kind, Tensor};

use super::Attention;
use crate::graph::Graph;
use crate::libtorch::is_cuda;
use crate::op::Op;

/// The inputs of the backward pass.
#[derive(Clone, Debug)]
pub enum Kept {
    /// On a CPU.
    Flash(Flash),
    /// On CUDA.
    Graph(Graph<3>),
}

/// q, k, v, the result, log Σ exp of the scores of each row, and the mask.
#[derive(Clone, Debug)]
pub struct Flash {
    qkv: [TchTensor; 3],
    y: TchTensor,
    log_z: TchTensor,
    mask: Option<TchTensor>,
}

/// Makes the elements of each row of a head contiguous, as the kernels require.
fn in_sequence(x: TchTensor) -> TchTensor {
    match x.tensor.stride()[3] {
        1 => x,
        _ => TchTensor::new(x.tensor.contiguous()),
    }
}

impl Attention {
    /// Whether PyTorch's kernels can compute this attention: without dropout, and with the right causal mask. Their
    /// mask aligns the first query with the first key, so it is right only for whole sequences. A single query sees all
    /// keys.
    fn fits(&self, q: &Tensor, k: &Tensor) -> bool {
        let (new, all) = (q.size()[2], k.size()[2]);
        let whole = new == all || new == 1 || !self.causal;
        self.dropout.is_none() && whole && !self.is_limited(all as usize)
    }

    /// Whether the kernel itself masks later keys.
    fn is_causal(&self, q: &Tensor, mask: &Option<TchTensor>) -> bool {
        self.causal && mask.is_none() && q.size()[2] > 1
    }

    /// Returns the bias of ALiBi, `[1, heads, new, all]`, with −∞ for later keys if attention is causal; `None` without
    /// ALiBi.
    fn mask(&self, q: &Tensor, k: &Tensor) -> Option<TchTensor> {
        let (sizes, all) = (q.size(), k.size()[2]);
        let (heads, new) = (sizes[1], sizes[2]);
        self.alibi.then(|| {
            let options = (Kind::Double, q.device());
            let slopes = (Tensor::arange(heads, options) + 1.0) * (-8.0 / heads as f64);
            let slopes = slopes.exp2().reshape([1, heads, 1, 1]);
            let key = Tensor::arange(all, options).reshape([1, 1, 1, all]);
            let query = Tensor::arange_start(all - new, all, options).reshape([1, 1, new, 1]);
            let bias = (&key - &query) * slopes;
            let mask = match self.causal {
                true => bias.masked_fill(&key.gt_tensor(&query), f64::NEG_INFINITY),
                false => bias,
            };
            // The kernel adds an f32 mask to f32 scores, even for bf16 inputs.
            TchTensor::new(mask.to_kind(match q.kind() {
                Kind::BFloat16 => Kind::Float,
                kind => kind,
            }))
        })
    }

    fn forward_of(&self, qkv: [TchTensor; 3]) -> (TchTensor, Kept) {
        let qkv = qkv.map(in_sequence);
        match is_cuda(&qkv[0].tensor) {
            false => {
                let (y, kept) = self.flash(qkv);
                (y, Kept::Flash(kept))
            }
            true => {
                let (y, kept) = self.by_graph(qkv);
                let kept = kept.hold(&y);
                (y, Kept::Graph(kept))
            }
        }
    }

    fn backward_of(&self, kept: Kept, grad: TchTensor) -> [Tensor; 3] {
        match kept {
            Kept::Flash(kept) => self.flash_backward(kept, grad),
            Kept::Graph(kept) => kept.backward(&grad).map(|d| d.tensor),
        }
    }

    /// Computes attention whose gradient PyTorch's own graph computes, because the crate `tch` lacks the forward
    /// function of one CUDA kernel and the backward function of another.
    fn by_graph(&self, qkv: [TchTensor; 3]) -> (TchTensor, Graph<3>) {
        let [q, k, _] = qkv.each_ref().map(|x| &x.tensor);
        let mask = self.mask(q, k).map(|mask| mask.tensor);
        let causal = self.causal && mask.is_none() && q.size()[2] > 1;
        let kind = q.kind();
        Graph::of(qkv, |[q, k, v]| match mask {
            // Rounded to bf16, the bias of ALiBi would not distinguish distant positions, so the scores are f32.
            Some(mask) => {
                let [q, k, v] = [q, k, v].map(|x| x.to_kind(mask.kind()));
                let mask = Some(mask);
                let y = Tensor::scaled_dot_product_attention(
                    &q, &k, &v, mask, 0.0, false, self.scale, false,
                );
                y.to_kind(kind)
            }
            None => Tensor::scaled_dot_product_attention(
                q,
                k,
                v,
                None::<Tensor>,
                0.0,
                causal,
                self.scale,
                false,
            ),
        })
    }

    fn flash(&self, qkv: [TchTensor; 3]) -> (TchTensor, Flash) {
        let [q, k, v] = qkv.each_ref().map(|x| &x.tensor);
        let mask = self.mask(q, k);
        let (y, log_z) = Tensor::internal_scaled_dot_product_flash_attention_for_cpu(
            q,
            k,
            v,
            0.0,
            self.is_causal(q, &mask),
            mask.as_ref().map(|mask| &mask.tensor),
            self.scale,
        );
        let [y, log_z] = [y, log_z].map(TchTensor::new);
        let kept = Flash {
            qkv,
            y: y.clone(),
            log_z,
            mask,
        };
        (y, kept)
    }

    fn flash_backward(&self, kept: Flash, grad: TchTensor) -> [Tensor; 3] {
        let [q, k, v] = kept.qkv.each_ref().map(|x| &x.tensor);
        let grad = grad.tensor.to_kind(q.kind());
        let grad = match grad.stride()[3] {
            1 => grad,
            _ => grad.contiguous(),
        };
        let (dq, dk, dv) = Tensor::internal_scaled_dot_product_flash_attention_for_cpu_backward(
            &grad,
            q,
            k,
            v,
            &kept.y.tensor,
            &kept.log_z.tensor,
            0.0,
            self.is_causal(q, &kept.mask),
            kept.mask.as_ref().map(|mask| &mask.tensor),
            self.scale,
        );
        [dq, dk, dv]
    }
}

impl Op<LibTorch, 3> for Attention {
    type Kept = Kept;

    fn takes(&self, [q, k, _]: &[TchTensor; 3]) -> bool {
        q.tensor.size()[1] == k.tensor.size()[1] && self.fits(&q.tensor, &k.tensor)
    }

    fn forward(&self, qkv: [TchTensor; 3]) -> (TchTensor, Kept) {
        self.forward_of(qkv)
    }

    fn backward(&self, kept: Kept, grad: TchTensor) -> [TchTensor; 3] {
        self.backward_of(kept, grad).map(TchTensor::new)
    }
}

impl Op<LibTorch, 1> for Attention {
    type Kept = Kept;

    fn takes(&self, [qkv]: &[TchTensor; 1]) -> bool {
        self.fits(&qkv.tensor, &qkv.tensor)
    }

    fn forward(&self, [qkv]: [TchTensor; 1]) -> (TchTensor, Kept) {
        let qkv = in_sequence(qkv);
        let heads = qkv.tensor.size()[1] / 3;
        self.forward_of([0, 1, 2].map(|i| {
            let part = qkv.tensor.narrow(1, i * heads, heads);
            TchTensor::from_existing(part, qkv.storage.clone())
        }))
    }

    fn backward(&self, kept: Kept, grad: TchTensor) -> [TchTensor; 1] {
        // Joins the gradients in the memory order of `[batch, time, heads, d]`, which the preceding layer needs.
        let all = self.backward_of(kept, grad).map(|d| d.transpose(1, 2));
        [TchTensor::new(Tensor::cat(&all, 2).transpose(1, 2))]
    }
}
