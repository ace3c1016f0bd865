//! A zoo of language-model architectures that change the residual stream, on [Burn](https://burn.dev).
//!
//! One line describes every model: **x_{i+1} = connect(x_i, x_{i-1}, …; f)**. x_i is the residual stream before
//! sublayer i. f is the sublayer. `connect` joins the result of f to the stream.
//!
//! # Architectures
//!
//! Each architecture is a crate of its own. All build on common traits, so one trainer trains them, one report compares
//! them, and they combine with each other.
//!
//! | crate | what it is | equation |
//! |---|---|---|
//! | [`gpt2`] | the baseline | x_{i+1} = x_i + f(norm(x_i)) |
//! | [`llama`] | a second, modern baseline: Llama, Qwen, OLMo, Gemma, nanochat | x_{i+1} = x_i + f(norm(x_i)) |
//! | [`ngpt`] | states and weight vectors of length 1 | x_{i+1} = N(x_i + \|α\| (N(f(x_i)) − x_i)), N(x) = x / \|x\| |
//! | [`rmt`] | the stream is a matrix X, written through key vectors w and read through key vectors r | X^(l+1) = X^(l) + Σ_h w^(h) ⊗ f(r ·₁ LN(X^(l)))_h |
//! | [`laurel`] | a learned connection around any sublayer | x_{i+1} = α f(x_i) + g(x_i, x_{i-1}, …) |
//! | [`streams`] | more connections | such as H' = A_rᵀ H + Bᵀ f(A_mᵀ H) |
//! | [`tokenformer`] | every projection attends to parameter tokens | Pattention(X, K_P, V_P) = Θ(X K_Pᵀ) V_P |
//! | [`vit`] | image patches in place of tokens, for the layers of [`gpt2`], [`llama`] or [`tokenformer`] | x_0 = \[x_class; patches · E\] + positions |
//! | [`resnet`] | convolutions on images, with most connections around a block | x_{i+1} = relu(s(x_i) + f(x_i)) |
//! | [`loops`] | the middle layers run several times | s_r = core(inject(s_{r-1}, e)) |
//! | [`recurrent`] | one transformer τ passes over the sequence, two blocks at a time | (y_i, h_{i+1}) = τ(α h_{i-1} + h_i, α h_{i-1} + x_{i+1}) |
//!
//! # The map
//!
//! | to | use |
//! |---|---|
//! | build a model from a config, or compose one | [`ModelConfig`], [`Zoo`], [`Composition`] |
//! | read the traits and operations that all architectures share | [`core`] |
//! | open a trained run and sample from it | [`Run`], [`runs`] |
//! | read texts and tokenizers | [`data`] |
//! | train | [`train`](mod@train), on a backend of [`backend`] |
//! | score, serve, import and export models | [`evaluate`](mod@evaluate), [`serve`](mod@serve), [`exchange`] |
//! | train, evaluate, serve or measure one run on a backend chosen at run time | [`drive`] |
//! | run experiments and judge claims | [`lab`], with the tables and charts of [`report`] |
//! | write a program with the zoo's options | [`cli`], [`experiment`](mod@experiment) |
//!
//! The documentation in `docs/` has guides, results, and a page for each paper with its equations beside the code.

#![forbid(unsafe_code)]

pub mod builtin;
pub mod experiment;

pub use residual_zoo_backend as backend;
pub use residual_zoo_cli as cli;
pub use residual_zoo_drive as drive;
pub use residual_zoo_evaluate as evaluate;
pub use residual_zoo_exchange as exchange;
pub use residual_zoo_lab as lab;
pub use residual_zoo_models::*;
pub use residual_zoo_report as report;
pub use residual_zoo_serve as serve;
pub use residual_zoo_train as train;
