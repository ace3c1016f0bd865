//! Every part of the model, computed term by term as in its equation. This slow form is a reference for the values and
//! gradients of the fast form. It is always causal and omits dropout and μP's multipliers of X^(0) and of the logits.
//!
//! In this module, matrices are `[batch, time, D_k, D_v]` and data vectors `[batch, time, R, D_v]`.

use burn::tensor::{Bool, Int, Tensor, activation::softmax, backend::Backend};

use crate::{Attention, FeedForward, RmtEmbeddings};

/// Returns Σ_h w^(h) ⊗ x^(h) (eq. 12), `[batch, time, D_k, D_v]`, for keys w `[R, D_k]` and data vectors x
/// `[batch, time, R, D_v]`.
pub fn store<B: Backend>(w: Tensor<B, 2>, x: Tensor<B, 4>) -> Tensor<B, 4> {
    let [rank, d_k] = w.dims();
    let term = |h: usize| {
        let w_h = w.clone().narrow(0, h, 1).reshape([1, 1, d_k, 1]);
        w_h * x.clone().narrow(2, h, 1)
    };
    (1..rank).fold(term(0), |sum, h| sum + term(h))
}

/// Returns r^(h) ·₁ X (eq. 13) for every h, `[batch, time, R, D_v]`, for keys r `[R, D_k]` and matrices X
/// `[batch, time, D_k, D_v]`.
pub fn retrieve<B: Backend>(r: Tensor<B, 2>, x: Tensor<B, 4>) -> Tensor<B, 4> {
    let [rank, d_k] = r.dims();
    let vector = |h: usize| {
        let r_h = r.clone().narrow(0, h, 1).reshape([1, 1, d_k, 1]);
        (r_h * x.clone()).sum_dim(2)
    };
    Tensor::cat((0..rank).map(vector).collect(), 2)
}

/// Returns MHA(LN(X)) (eqs. 20-22), computed head by head.
pub fn attention<B: Backend>(module: &Attention<B>, x: Tensor<B, 3>) -> Tensor<B, 3> {
    let [rank, d_k] = module.r_q.dims();
    let x = to_matrix(module.norm.forward(x), d_k);
    let [batch, time, _, d_v] = x.dims();
    let [q, k, v] = [&module.r_q, &module.r_k, &module.r_v].map(|r| retrieve(r.val(), x.clone()));
    let future = Tensor::<B, 2, Bool>::tril_mask([time, time], 0, &x.device());
    let sha = |h: usize| {
        let [q, k, v] = [&q, &k, &v].map(|a| a.clone().narrow(2, h, 1).reshape([batch, time, d_v]));
        let mut scores = q.matmul(k.swap_dims(1, 2)) * module.heads.scale;
        if module.heads.alibi {
            let slope = 2f64.powf(-8.0 * (h + 1) as f64 / rank as f64);
            let position = Tensor::<B, 1, Int>::arange(0..time as i64, &x.device()).float();
            let (query, key) = (position.clone().reshape([1, time, 1]), position);
            scores = scores - (query - key.reshape([1, 1, time])) * slope;
        }
        let scores = scores.mask_fill(future.clone().unsqueeze(), f32::NEG_INFINITY);
        softmax(scores, 2).matmul(v).reshape([batch, time, 1, d_v])
    };
    let heads = Tensor::cat((0..rank).map(sha).collect(), 2);
    from_matrix(store(module.w_o.val(), heads))
}

/// Returns FF(LN(X)) (eqs. 23-25).
pub fn feed_forward<B: Backend>(module: &FeedForward<B>, x: Tensor<B, 3>) -> Tensor<B, 3> {
    let [rank, d_k] = module.r_ff.dims();
    let x = to_matrix(module.norm.forward(x), d_k);
    let [batch, time, _, d_v] = x.dims();
    let x_ff = retrieve(module.r_ff.val(), x).reshape([batch, time, rank * d_v]);
    let w_1 = by_vector(module.w_1.val(), d_v);
    let w_2 = by_vector(module.w_2.val().transpose(), d_v).transpose();
    let hidden = module.activation.apply(x_ff.matmul(w_1.unsqueeze()));
    let ff = hidden.matmul(w_2.unsqueeze());
    from_matrix(store(
        module.w_ff.val(),
        ff.reshape([batch, time, rank, d_v]),
    ))
}

/// Returns E(S) + P(N) (eqs. 14, 18, 19) for `ids` `[batch, time]` from position 0.
pub fn embed<B: Backend>(embeddings: &RmtEmbeddings<B>, ids: Tensor<B, 2, Int>) -> Tensor<B, 3> {
    let [batch, time] = ids.dims();
    let [rank, _] = embeddings.tokens.key.dims();
    let vectors = |rows: Tensor<B, 2>, batch: usize| {
        let d_v = rows.dims()[1] / rank;
        rows.reshape([batch, time, d_v, rank]).swap_dims(2, 3)
    };
    let tokens = embeddings
        .tokens
        .weight
        .val()
        .select(0, ids.reshape([batch * time]));
    let x = store(embeddings.tokens.key.val(), vectors(tokens, batch));
    from_matrix(match &embeddings.positions {
        Some(table) => {
            let rows = table.weight.val().narrow(0, 0, time);
            x + store(table.key.val(), vectors(rows, 1))
        }
        None => x,
    })
}

/// Returns U(LN(X)) (eqs. 17, 26, 27), computed with one W_U^(h) at a time.
pub fn unembed<B: Backend>(embeddings: &RmtEmbeddings<B>, x: Tensor<B, 3>) -> Tensor<B, 3> {
    let [rank, d_k] = embeddings.unembedding.key.dims();
    let x = to_matrix(embeddings.norm.forward(x), d_k);
    let [batch, time, _, d_v] = x.dims();
    let x_u = retrieve(embeddings.unembedding.key.val(), x);
    let w_u = by_vector(embeddings.unembedding.weight.val(), d_v);
    let logits = |h: usize| {
        let x_h = x_u.clone().narrow(2, h, 1).reshape([batch, time, d_v]);
        x_h.matmul(w_u.clone().narrow(0, h * d_v, d_v).unsqueeze())
    };
    (1..rank).fold(logits(0), |sum, h| sum + logits(h))
}

/// Converts the stream `[batch, time, D_v · D_k]` to matrices `[batch, time, D_k, D_v]`.
fn to_matrix<B: Backend>(x: Tensor<B, 3>, d_k: usize) -> Tensor<B, 4> {
    let [batch, time, width] = x.dims();
    x.reshape([batch, time, width / d_k, d_k]).swap_dims(2, 3)
}

/// Inverts [`to_matrix`].
fn from_matrix<B: Backend>(x: Tensor<B, 4>) -> Tensor<B, 3> {
    let [batch, time, d_k, d_v] = x.dims();
    x.swap_dims(2, 3).reshape([batch, time, d_v * d_k])
}

/// Reorders rows as in eq. 25, with coordinate v of vector h at `h · D_v + v`: from `[D_v · R, n]` to `[R · D_v, n]`.
fn by_vector<B: Backend>(weight: Tensor<B, 2>, d_v: usize) -> Tensor<B, 2> {
    let [rows, n] = weight.dims();
    let weight = weight.reshape([d_v, rows / d_v, n]).swap_dims(0, 1);
    weight.reshape([rows, n])
}
