//! Compares the fast and the plain form of every operation, on shapes that no block size divides.

use burn::backend::Flex;
use burn::module::{Param, ParamId};
use burn::tensor::activation::softmax;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Int, Tensor, TensorData};
use residual_zoo_kernels::{self as kernels, Form};
use residual_zoo_models::core::ops::attention::{DotAttention, mask_future};
use residual_zoo_models::core::ops::batch_norm::{self, Normed};
use residual_zoo_models::core::ops::muon::{Hidden, muon};
use residual_zoo_models::core::ops::optimizer::{AdamW, adamw, adamw_plain, sum_of_squares};
use residual_zoo_models::core::ops::rotary::{self, Pairs};
use residual_zoo_models::core::ops::{
    activation, causal, convolution, embedding, loss, mix, sinkhorn,
};
use residual_zoo_models::core::{Linear, Norm, NormParams, matmul, matmul_f32, product};
use residual_zoo_models::core::{Muon, MuonForm};

use crate::pass::Values;

/// Returns more rows than a GPU can have thread groups along an axis. Emulated threads have no such limit, and they are
/// slow.
fn many_rows() -> usize {
    match std::env::var("RESIDUAL_ZOO_OPS").as_deref() {
        Ok("cuda") => 1_027,
        _ => 65_537,
    }
}

/// Asserts that the two forms of every operation agree on `device`, in values and in gradients.
/// `tolerance` is relative to the largest value of each result.
pub fn agree<B: AutodiffBackend>(device: &B::Device, tolerance: f64) {
    let both = Both { device, tolerance };
    let draw = |shape: [usize; 3]| random::<B, 3>(shape, device);
    let many = many_rows();
    for shape in [[3, 63, 60], [1, 1, 1], [1, many, 3]] {
        let x = || vec![draw(shape)];
        both.agree(
            &format!("GELU, tanh, {shape:?}"),
            x(),
            |x| activation::gelu_tanh(x[0].clone()),
            |x| activation::gelu_tanh_plain(x[0].clone()),
        );
        both.agree(
            &format!("GELU, erf, {shape:?}"),
            x(),
            |x| activation::gelu_erf(x[0].clone()),
            |x| activation::gelu_erf_plain(x[0].clone()),
        );
        both.agree(
            &format!("max(x, 0), {shape:?}"),
            x(),
            |x| activation::relu(x[0].clone()),
            |x| burn::tensor::activation::relu(x[0].clone()),
        );
        both.agree(
            &format!("tanh, {shape:?}"),
            x(),
            |x| activation::tanh(x[0].clone()),
            |x| burn::tensor::activation::tanh(x[0].clone()),
        );
        both.agree(
            &format!("SiLU, {shape:?}"),
            x(),
            |x| activation::silu(x[0].clone()),
            |x| activation::silu_plain(x[0].clone()),
        );
        both.agree(
            &format!("squared ReLU, {shape:?}"),
            x(),
            |x| activation::squared_relu(x[0].clone()),
            |x| activation::squared_relu_plain(x[0].clone()),
        );
    }

    // Three random numbers can be almost equal. Then x − mean is mostly rounding error, and no two forms agree. Eight
    // random numbers are not that close.
    for size in [[189, 60], [1, 60], [many, 8], [5, 700]] {
        for params in [
            NormParams::None,
            NormParams::Scale,
            NormParams::ScaleAndShift,
        ] {
            norm(&both, "layer norm", size, |width, device| {
                Norm::layer(params, width, 1e-5, device)
            });
        }
        norm(&both, "RMS norm", size, |width, device| {
            Norm::rms(width, 1e-6, device)
        });
    }

    for (rows, d_in, d_out) in [(189, 60, 7), (1, 60, 60), (many, 3, 5)] {
        both.agree(
            &format!("{rows} rows by a matrix of {d_in} × {d_out}, with a bias"),
            vec![
                random::<B, 2>([rows, d_in], device),
                random([d_in, d_out], device),
                random([1, d_out], device),
            ],
            |x| {
                let linear = Linear {
                    weight: Param::initialized(ParamId::new(), x[1].clone()),
                    bias: Some(Param::initialized(
                        ParamId::new(),
                        x[2].clone().reshape([d_out]),
                    )),
                };
                linear.forward(x[0].clone().unsqueeze())
            },
            |x| {
                let of = |rows: Tensor<B, 2>| matmul_f32(rows, x[1].clone()) + x[2].clone();
                in_halves(x[0].clone(), of).unsqueeze()
            },
        );
    }

    for (size, input, output, kernel, stride) in [
        ([3, 5, 7], 3, 5, 3, 1),
        ([2, 9, 6], 16, 18, 3, 2),
        ([5, 8, 11], 20, 33, 1, 1),
        ([2, 7, 8], 6, 16, 1, 2),
        ([2, 9, 10], 3, 4, 7, 2),
        ([9, 32, 32], 16, 16, 3, 1),
    ] {
        let [batch, height, width] = size;
        both.agree(
            &format!(
                "convolution of {size:?}, {input} to {output}, kernel {kernel}, stride {stride}"
            ),
            vec![
                random::<B, 4>([batch, height, width, input], device),
                random([output, input, kernel, kernel], device),
            ],
            |x| convolution::convolution(stride, x[0].clone(), x[1].clone()),
            |x| convolution::plain(stride, x[0].clone(), x[1].clone()),
        );
    }
    for (rows, channels) in [(7, 3), (5003, 16), (1000, 40)] {
        let inputs = || {
            vec![
                random::<B, 2>([rows, channels], device) * 2 + 1,
                random([1, channels], device),
                random([1, channels], device),
            ]
        };
        let [fast, plain] = [batch_norm::batch_norm, batch_norm::plain];
        let of = |form: fn(f64, _, _, _) -> Normed<B>, x: &[Tensor<B, 2>]| {
            form(1e-5, x[0].clone(), x[1].clone(), x[2].clone())
        };
        let name = format!("batch norm of {rows} rows of {channels}");
        both.agree(&name, inputs(), |x| of(fast, x).0, |x| of(plain, x).0);
        let x = inputs();
        let [fast, plain] = [fast, plain].map(|form| of(form, &x).1.map(Tensor::into_data));
        both.compare(&name, fast.into(), plain.into());
    }

    for (d_in, d_out, transposed) in [
        (16, 18, true),
        (6, 16, false),
        (60, 7, false),
        (1, 64, true),
    ] {
        let x = random::<B, 2>([5003, d_in], device);
        let sides = if transposed {
            [d_out, d_in]
        } else {
            [d_in, d_out]
        };
        let w_of = |x: &[Tensor<B, 2>]| match transposed {
            true => x[1].clone().transpose(),
            false => x[1].clone(),
        };
        both.agree(
            &format!("5003 rows by a matrix of {d_in} × {d_out}, transposed: {transposed}"),
            vec![x, random::<B, 2>(sides, device)],
            |x| product(x[0].clone(), w_of(x)),
            |x| matmul_f32(x[0].clone(), w_of(x)),
        );
    }

    for (leading, [n, k, m]) in [
        ([2, 3], [63, 61, 59]),
        ([1, 1], [1, 384, 1]),
        ([1, 1], [130, 140, 132]),
    ] {
        let [batch, heads] = leading;
        for transposed in [false, true] {
            // A transposed factor is not contiguous.
            let of = |x: &Tensor<B, 4>| match transposed {
                true => x.clone().swap_dims(2, 3),
                false => x.clone(),
            };
            let a = random::<B, 4>([batch, heads, n, k], device);
            let b = random::<B, 4>([batch, heads, k, m], device);
            both.agree(
                &format!(
                    "{leading:?} products of {n} × {k} by {k} × {m}, transposed: {transposed}"
                ),
                [a, b].iter().map(of).collect(),
                |x| matmul(of(&x[0]), of(&x[1])),
                |x| {
                    // On CUDA, Burn's own product would be computed in TF32.
                    let a: Tensor<B, 5> = of(&x[0]).unsqueeze_dim(4);
                    let b = of(&x[1]).unsqueeze_dim(2);
                    (a * b).sum_dim(3).squeeze_dim(3)
                },
            );
        }
    }

    // The longest sequences have more positions than a task.
    for (positions, time, n, m, d) in [
        ([3, 63], 63, 4, 5, 52),
        ([1, 1], 63, 3, 1, 52),
        ([1, 1], 63, 1, 4, 52),
        ([1, 1], 801, 24, 16, 1),
        ([3, 63], 63, 2, 5, 1),
    ] {
        let [rows, columns] = positions;
        both.agree(
            &format!("{n} streams of {d} mixed to {m}, weights of {rows} × {columns} positions"),
            vec![
                random::<B, 4>([rows, columns, n, m], device),
                random::<B, 4>([3, time, n, d], device),
            ],
            |x| mix::mix(x[0].clone(), x[1].clone()),
            |x| mix::plain(x[0].clone(), x[1].clone()),
        );
    }

    for (of_a, of_b, time, [n, k, m], d) in [
        ([3, 63], [3, 63], 63, [4, 1, 4], 52),
        ([1, 1], [1, 1], 63, [4, 1, 4], 52),
        ([3, 63], [1, 1], 63, [2, 3, 5], 7),
        ([1, 1], [3, 801], 801, [3, 2, 4], 1),
        ([1, 1], [1, 1], 1, [1, 1, 1], 1),
    ] {
        let batch = if time == 1 { 1 } else { 3 };
        both.agree(
            &format!("{n} and {k} streams of {d} mixed to {m}, {time} positions"),
            vec![
                random::<B, 4>([of_a[0], of_a[1], n, m], device),
                random::<B, 4>([batch, time, n, d], device),
                random::<B, 4>([of_b[0], of_b[1], k, m], device),
                random::<B, 4>([batch, time, k, d], device),
            ],
            |x| mix::mix_both(x[0].clone(), x[1].clone(), x[2].clone(), x[3].clone()),
            |x| mix::plain(x[0].clone(), x[1].clone()) + mix::plain(x[2].clone(), x[3].clone()),
        );
    }

    // The heads of x are side by side, or x is contiguous.
    for (pairs, n, rows, apart, shape) in [
        (Pairs::Halves, 52, 1, false, [3, 63, 5, 52]),
        (Pairs::Halves, 14, 3, true, [3, 63, 5, 52]),
        (Pairs::Neighbours, 52, 3, false, [3, 63, 5, 52]),
        (Pairs::Neighbours, 2, 1, true, [3, 63, 5, 52]),
        (Pairs::Halves, 4, 1, false, [1, 1, 1, 5]),
        (Pairs::Neighbours, 4, 2, false, [2, 7, 1, 5]),
        (Pairs::Halves, 8, 3, false, [3, 1, 5, 8]),
    ] {
        let angle = random::<B, 4>([rows, 1, shape[1], n / 2], device);
        let (cos, sin) = (angle.clone().cos(), angle.sin());
        let heads = |x: &[Tensor<B, 4>]| match apart {
            true => x[0].clone().swap_dims(1, 2) * 1,
            false => kernels::swap_heads(x[0].clone()).unwrap_or_else(|x| x.swap_dims(1, 2)),
        };
        let kernel = kernels::Rotary {
            neighbours: pairs == Pairs::Neighbours,
        };
        both.agree(
            &format!("rotary positions, {pairs:?}, {n} of {shape:?}, {rows} rows of angles"),
            vec![random::<B, 4>(shape, device)],
            |x| {
                let angles = (cos.clone(), sin.clone());
                let turned = kernels::rotary(kernel, heads(x), angles.0, angles.1);
                turned.unwrap_or_else(|[x, cos, sin]| rotary::plain(pairs, x, cos, sin))
            },
            |x| rotary::plain(pairs, heads(x), cos.clone(), sin.clone()),
        );
    }

    for (time, n, m, d) in [(63, 4, 1, 52), (63, 1, 4, 7), (801, 3, 5, 1)] {
        both.agree(
            &format!("dot products of {n} and {m} streams of {d}"),
            vec![
                random::<B, 4>([3, time, n, d], device),
                random::<B, 4>([3, time, m, d], device),
            ],
            |x| mix::dots(x[0].clone(), x[1].clone()),
            |x| mix::dots_plain(x[0].clone(), x[1].clone()),
        );
    }

    // J sources as the rows of one tensor, after the weights. The second mixture does not reach the loss, and the first
    // source has no gradient.
    for (count, sources, positions, x) in [
        (4, 5, [3, 63], [3, 63]),
        (1, 1, [3, 63], [3, 63]),
        (3, 2, [1, 1], [3, 63]),
        (4, 9, [1, 1], [3, 63]),
        (2, 3, [1, 1], [1, 1]),
    ] {
        let ([batch, time], [rows, columns]) = (positions, x);
        type Form<B> = fn(Tensor<B, 4>, &[Tensor<B, 3>]) -> Vec<Tensor<B, 3>>;
        let of = |form: Form<B>, x: &[Tensor<B, 4>]| {
            let source = |j| x[1].clone().narrow(0, j, 1).squeeze_dim::<3>(0);
            let mut all: Vec<_> = (0..sources).map(source).collect();
            if sources > 1 {
                all[0] = all[0].clone().detach();
            }
            let mut mixtures = form(x[0].clone(), &all);
            if count > 1 {
                mixtures[1] = mixtures[1].clone().detach();
            }
            Tensor::<B, 3>::cat(mixtures, 2)
        };
        both.agree(
            &format!("{count} mixtures of {sources}, weights of {batch} × {time} positions"),
            vec![
                random::<B, 4>([batch, time, count, sources], device),
                random::<B, 4>([sources, rows, columns, 52], device),
            ],
            |x| of(mix::mixtures, x),
            |x| of(mix::mixtures_plain, x),
        );
    }

    // J sources as the rows of one tensor, after q and γ. The first source has no gradient.
    for (sources, positions, d) in [
        (5, [3, 63], 52),
        (9, [1, 801], 7),
        (1, [2, 3], 5),
        (2, [1, 1], 1),
    ] {
        let [batch, time] = positions;
        let of = |x: &[Tensor<B, 4>]| {
            let source = |j| x[1].clone().narrow(0, j, 1).squeeze_dim::<3>(0);
            let mut all: Vec<_> = (0..sources).map(source).collect();
            if sources > 1 {
                all[0] = all[0].clone().detach();
            }
            let row = |i| x[0].clone().narrow(0, i, 1).reshape([d]);
            let mut norm = Norm::rms(d, 1e-6, device);
            norm.gamma = Some(Param::initialized(ParamId::new(), row(1)));
            (norm, row(0), all)
        };
        both.agree(
            &format!("attention to {sources} sources of {batch} × {time} × {d}"),
            vec![
                random::<B, 4>([2, 1, 1, d], device),
                random::<B, 4>([sources, batch, time, d], device),
            ],
            |x| {
                let (norm, q, all) = of(x);
                norm.depth_attention(q, all)
            },
            |x| {
                let (norm, q, all) = of(x);
                let all: Tensor<B, 4> = Tensor::stack(all, 2);
                let q = q.reshape([1, 1, 1, d]);
                let p = softmax((norm.plain(all.clone()) * q).sum_dim(3), 2);
                (p * all).sum_dim(2).squeeze_dim(2)
            },
        );
    }

    // With more taps than positions, and with more positions than a task has.
    for (shape, taps) in [
        ([3, 63, 60], 4),
        ([2, 3, 5], 4),
        ([1, 1, 1], 1),
        ([3, 401, 33], 3),
    ] {
        both.agree(
            &format!("causal sums of {shape:?}, {taps} taps"),
            vec![draw(shape), draw([1, shape[2], taps])],
            |x| causal::causal_sum(x[0].clone(), x[1].clone().squeeze_dim::<2>(0), None),
            |x| causal::plain(x[0].clone(), x[1].clone().squeeze_dim::<2>(0), None),
        );
    }
    // Of swapped axes.
    let swapped = |x: &[Tensor<B, 3>]| {
        let w = x[1].clone().squeeze_dim::<2>(0).transpose();
        (x[0].clone().swap_dims(1, 2), w)
    };
    both.agree(
        "causal sums of swapped axes",
        vec![draw([3, 60, 63]), draw([1, 4, 60])],
        |x| {
            let (z, w) = swapped(x);
            causal::causal_sum(z, w, None)
        },
        |x| {
            let (z, w) = swapped(x);
            causal::plain(z, w, None)
        },
    );

    for (steps, n, eps) in [(1, 3, 0.0), (7, 4, 1e-6), (40, 4, 0.0)] {
        both.agree(
            &format!("{steps} normalisations of matrices of {n} × {n}"),
            vec![random::<B, 4>([3, 301, n, n], device)],
            |x| sinkhorn::sinkhorn(x[0].clone().exp(), steps, eps),
            |x| sinkhorn::plain(x[0].clone().exp(), steps, eps),
        );
    }

    // Splits each normalised row into parts of `d_in` features, and multiplies each part by one matrix. The norm's
    // scale and the matrix are inputs, so that their gradients are compared too.
    for (d_in, d_out) in [(12, 7), (60, 3), (5, 18)] {
        let of = |x: &[Tensor<B, 3>]| {
            let mut norm = Norm::layer(NormParams::Scale, 60, 1e-5, device);
            norm.gamma = Some(Param::initialized(
                ParamId::new(),
                x[1].clone().reshape([60]),
            ));
            (norm, x[2].clone().reshape([d_out, d_in]).transpose())
        };
        both.agree(
            &format!("norm and product of {d_in} features each by {d_in} × {d_out}"),
            vec![draw([18, 63, 60]), draw([1, 1, 60]), draw([1, d_out, d_in])],
            |x| {
                let (norm, w) = of(x);
                norm.product(x[0].clone(), w)
            },
            |x| {
                let (norm, w) = of(x);
                let parts = norm
                    .plain(x[0].clone())
                    .reshape([18 * 63 * 60 / d_in, d_in]);
                matmul_f32(parts, w).reshape([18, 63, 60 / d_in * d_out])
            },
        );
    }

    for (rows, width) in [(189, 60), (1, 700), (many, 3)] {
        for form in [
            Form::NormThenActivation,
            Form::ActivationThenL2,
            Form::ActivationThenL1,
            Form::Softmax,
        ] {
            theta(&both, form, [rows, width]);
        }
    }

    for (batch, time, count) in [(3, 63, 60), (1, 1, 1), (2, 300, 5)] {
        // Some ids occur once, some often, and some never.
        let ids: Vec<i64> = (0..batch * time).map(|i| (i * i * 7) % count).collect();
        let ids = TensorData::new(ids, [batch as usize, time as usize]);
        let ids = || Tensor::<B, 2, Int>::from_data(ids.clone(), device);
        both.agree(
            &format!("rows of {count} ids for {batch} × {time} positions"),
            vec![random::<B, 2>([count as usize, 60], device)],
            |x| embedding::embedding(x[0].clone(), ids()),
            |x| burn::tensor::module::embedding(x[0].clone(), ids()),
        );
    }

    for (rows, vocabulary) in [(63, 60), (1, 1009), (many, 3)] {
        let targets: Vec<i64> = (0..rows as i64).map(|i| (i * 17) % vocabulary).collect();
        let targets = || Tensor::<B, 1, Int>::from_data(&targets[..], device);
        both.agree(
            &format!("log Z and target of {rows} rows of {vocabulary}"),
            vec![random::<B, 2>([rows, vocabulary as usize], device)],
            |x| loss::log_z_and_target(x[0].clone(), targets()),
            |x| loss::log_z_and_target_plain(x[0].clone(), targets()),
        );
    }

    for (causal, alibi, seen, all, d) in [
        (true, false, 0, 63, 20),
        (true, true, 0, 63, 20),
        (true, false, 7, 63, 20),
        (true, true, 62, 63, 20),
        (false, false, 0, 63, 20),
        (false, true, 0, 63, 20),
        (false, true, 7, 63, 20),
        (true, false, 0, 1, 20),
        (true, true, 0, 203, 64),
        (true, false, 130, 203, 64),
        (false, false, 70, 203, 64),
    ] {
        let heads = DotAttention {
            causal,
            alibi,
            ..DotAttention::new(1.0 / (d as f64).sqrt(), all)
        };
        let draw = |time| random::<B, 4>([3, 2, time, d], device);
        let part = |x: &[Tensor<B, 4>]| [x[0].clone(), x[1].clone(), x[2].clone()];
        both.agree(
            &format!("attention after {seen} of {all} positions, causal: {causal}, ALiBi: {alibi}"),
            vec![draw(all - seen), draw(all), draw(all)],
            |x| heads.forward(part(x), None),
            |x| heads.plain(part(x)),
        );
    }
    // Six query heads, a cap of the size of the scores, and windows within and across blocks of rows.
    for (kv_heads, cap, window, seen, all) in [
        (2, None, None, 0, 63),
        (3, None, None, 7, 63),
        (6, Some(0.5), None, 0, 63),
        (1, Some(0.5), Some(5), 3, 63),
        (6, None, Some(70), 0, 203),
        (2, None, Some(1), 0, 203),
        (2, None, Some(64), 202, 203),
        (1, None, None, 0, 63),
        (2, Some(0.5), None, 62, 63),
        (3, None, Some(63), 0, 63),
    ] {
        let heads = DotAttention {
            cap,
            window,
            alibi: window == Some(70),
            ..DotAttention::new(0.3, all)
        };
        let draw = |heads, time| random::<B, 4>([2, heads, time, 20], device);
        let repeated = |x: &Tensor<B, 4>| {
            let [batch, _, time, d] = x.dims();
            let group = 6 / kv_heads;
            let x: Tensor<B, 5> = x.clone().unsqueeze_dim(2);
            x.expand([batch, kv_heads, group, time, d])
                .reshape([batch, 6, time, d])
        };
        both.agree(
            &format!(
                "{kv_heads} heads of keys, cap {cap:?}, window {window:?}, after {seen} of {all}"
            ),
            vec![
                draw(6, all - seen),
                draw(kv_heads, all),
                draw(kv_heads, all),
            ],
            |x| heads.forward([x[0].clone(), x[1].clone(), x[2].clone()], None),
            |x| heads.plain([x[0].clone(), repeated(&x[1]), repeated(&x[2])]),
        );
    }
    // A window with room for all keys limits nothing, so it has a kernel if attention without a window has one.
    let has_kernel = |window| {
        let attention = kernels::Attention {
            scale: 0.3,
            causal: true,
            alibi: false,
            cap: None,
            window,
            dropout: None,
        };
        let qkv = [(); 3].map(|()| random::<B, 4>([2, 3, 63, 20], device));
        kernels::attention(attention, qkv).is_ok()
    };
    assert_eq!(has_kernel(Some(63)), has_kernel(None));
    for (causal, alibi) in [(true, false), (true, true), (false, false)] {
        let heads = DotAttention {
            causal,
            alibi,
            ..DotAttention::new(0.3, 63)
        };
        // In memory, the features of one head are adjacent, as in GPT-2, or the heads of one feature are, as in the
        // RMT.
        for (shape, axes) in [
            ([3, 63, 6, 20], [0, 2, 1, 3]),
            ([3, 63, 20, 6], [0, 3, 1, 2]),
        ] {
            both.agree(
                &format!("packed attention of {shape:?}, causal: {causal}, ALiBi: {alibi}"),
                vec![random::<B, 4>(shape, device)],
                |x| heads.packed(x[0].clone().permute(axes), None),
                |x| {
                    let x = x[0].clone().permute(axes);
                    heads.plain([0, 2, 4].map(|at| x.clone().narrow(1, at, 2)))
                },
            );
        }
    }
}

/// Asserts that the two forms of an AdamW step agree on `device`, and that the two forms of a sum of squares agree.
pub fn optimizer_agrees<B: AutodiffBackend>(device: &B::Device, tolerance: f64) {
    let both = Both::<B> { device, tolerance };
    let draw = || random::<B, 1>([20_011], device).inner();
    let (x, m, v, grad) = (draw(), draw(), draw().square(), draw());
    for (scale, weight_decay, time) in [(1.0, 0.0, 1), (0.3, 0.1, 2), (1.0, 0.1, 1000)] {
        let step = AdamW {
            lr: 0.01,
            beta_1: 0.9,
            beta_2: 0.95,
            eps: 1e-8,
            weight_decay,
            scale,
            time,
        };
        let before = || [&x, &m, &v, &grad].map(Tensor::clone);
        let of = |after: [Tensor<B::InnerBackend, 1>; 3]| after.map(|x| x.into_data()).to_vec();
        let fast = adamw(vec![(step, before())]).into_iter().flat_map(of);
        let plain = of(adamw_plain(step, before()));
        both.compare(&format!("{step:?}"), fast.collect(), plain);
    }
    let parts = vec![x.clone(), m.clone()];
    let sums = [
        sum_of_squares(parts, device),
        x.square().sum() + m.square().sum(),
    ];
    let [fast, plain] = sums.map(|sum| vec![sum.into_data()]);
    both.compare("a sum of squares", fast, plain);
}

/// Asserts that a Muon step on `device` agrees with the step on Flex.
pub fn muon_agrees<B: AutodiffBackend>(device: &B::Device, tolerance: f64) {
    let both = Both::<B> { device, tolerance };
    for form in [
        MuonForm::Keller,
        MuonForm::Moonlight,
        MuonForm::Nanochat { beta_2: 0.9 },
    ] {
        for shape in [[3, 7, 12], [1, 20, 6], [2, 64, 64]] {
            let settings = Muon {
                form,
                ..Muon::default()
            };
            let drawn = [(); 3].map(|()| random::<B, 3>(shape, device).into_data());
            let here = muon_step::<B::InnerBackend>(&settings, &drawn, device);
            let on_flex = muon_step::<Flex>(&settings, &drawn, &Default::default());
            both.compare(&format!("{settings:?} {shape:?}"), here, on_flex);
        }
    }
}

/// Takes a Muon step from the given W, b and gradient. Returns the new W and b, and the new squares if the form has
/// them.
fn muon_step<B: Backend>(
    settings: &Muon,
    drawn: &[TensorData; 3],
    device: &B::Device,
) -> Vec<TensorData> {
    let [w, b, g] = drawn
        .each_ref()
        .map(|data| Tensor::<B, 3>::from_data(data.clone(), device));
    let squares = settings.squares(w.dims());
    let squares = squares.map(|shape| Tensor::ones(shape, device));
    let after = muon(settings, [0.02, 0.1], Hidden { w, b, squares }, g);
    let all = [Some(after.w), Some(after.b), after.squares];
    all.into_iter().flatten().map(Tensor::into_data).collect()
}

/// Asserts that attention drops the weights that [`kernels::Dropped`] names, and scales up the others.
pub fn dropout_is_a_function_of_its_seed<B: AutodiffBackend>(device: &B::Device, tolerance: f64) {
    if kernels::plain_only() {
        return;
    }
    let dropped = kernels::Dropped {
        probability: 0.3,
        seed: 7,
    };
    let (batch, heads, time) = (3, 2, 63);
    let op = kernels::Attention {
        cap: None,
        window: None,
        scale: 0.3,
        causal: true,
        alibi: false,
        dropout: Some(dropped),
    };
    let mut factors = vec![0.0; batch * heads * time * time];
    for (row, factors) in factors.chunks_mut(time).enumerate() {
        let seed = dropped.row(row / time, row % time);
        for (column, factor) in factors.iter_mut().enumerate() {
            let drops = kernels::hash(seed, column as u32) < dropped.threshold();
            *factor = if drops { 0.0 } else { 1.0 / 0.7 };
        }
    }
    let share = factors.iter().filter(|&&f| f == 0.0).count() as f64 / factors.len() as f64;
    assert!(
        (share - 0.3).abs() < 0.01,
        "{share} of the weights are dropped, not 0.3"
    );
    let factors = TensorData::new(factors, [batch, heads, time, time]);
    let factors = Tensor::<B, 4>::from_data(factors, device);
    let draw = || random::<B, 4>([batch, heads, time, 20], device);
    Both { device, tolerance }.agree(
        "attention with dropout",
        vec![draw(), draw(), draw()],
        |x| {
            let qkv = [x[0].clone(), x[1].clone(), x[2].clone()];
            kernels::attention(op, qkv).expect("a kernel with dropout")
        },
        |x| {
            let scores = x[0].clone().matmul(x[1].clone().swap_dims(2, 3)) * 0.3;
            let weights = softmax(mask_future(scores), 3) * factors.clone();
            weights.matmul(x[2].clone())
        },
    );
}

fn norm<B: AutodiffBackend>(
    both: &Both<'_, B>,
    name: &str,
    [rows, width]: [usize; 2],
    of_params: impl Fn(usize, &B::Device) -> Norm<B>,
) {
    let param = || random::<B, 1>([width], both.device);
    let x = random::<B, 2>([rows, width], both.device);
    let (gamma, beta) = (param(), param());
    // The parameters are inputs, so that their gradients are compared too.
    let norm = |x: &[Tensor<B, 2>]| {
        let of = |x: &Tensor<B, 2>| Param::initialized(ParamId::new(), x.clone().reshape([width]));
        let mut norm = of_params(width, both.device);
        norm.gamma = norm.gamma.is_some().then(|| of(&x[1]));
        norm.beta = norm.beta.is_some().then(|| of(&x[2]));
        norm
    };
    let parameters = norm(&[
        x.clone(),
        gamma.clone().unsqueeze(),
        beta.clone().unsqueeze(),
    ]);
    let has = [parameters.gamma.is_some(), parameters.beta.is_some()];
    both.agree(
        &format!("{name} of {rows} rows of {width}, scale and shift: {has:?}"),
        vec![x, gamma.unsqueeze(), beta.unsqueeze()],
        |x| norm(x).forward(x[0].clone()),
        |x| in_halves(x[0].clone(), |rows| norm(x).plain(rows)),
    );
}

/// Compares the two forms of TokenFormer's Θ (Wang et al. 2024, Table 4), with GELU as φ.
fn theta<B: AutodiffBackend>(both: &Both<'_, B>, form: Form, size: [usize; 2]) {
    let eps = 1e-6;
    let op = kernels::Theta {
        form,
        activation: kernels::Activation::GeluTanh,
        eps,
    };
    let gelu = |x| activation::gelu_tanh_plain::<B, 2>(x);
    let plain = |a: Tensor<B, 2>, tau: Tensor<B, 2>| {
        let l2 = |x: Tensor<B, 2>| x.square().sum_dim(1).sqrt() + eps;
        match form {
            Form::NormThenActivation => gelu(a.clone() * tau / l2(a)),
            Form::ActivationThenL2 => gelu(a.clone()) * tau / l2(gelu(a)),
            Form::ActivationThenL1 => gelu(a.clone()) * tau / (gelu(a).abs().sum_dim(1) + eps),
            Form::Softmax => softmax(a, 1) * tau,
        }
    };
    // If the gradients of the results had both signs, the gradient of τ would be a sum that can be almost 0, and would
    // then be mostly rounding error.
    both.agree_with(
        Tensor::abs,
        &format!("Θ, {form:?}, of {size:?}"),
        vec![
            random::<B, 2>(size, both.device) * 0.5,
            random::<B, 2>([1, 1], both.device).abs(),
        ],
        |x| {
            let tau = x[1].clone().reshape([1]);
            let fast = kernels::theta(op, x[0].clone(), tau);
            fast.unwrap_or_else(|a| in_halves(a, |rows| plain(rows, x[1].clone())))
        },
        |x| in_halves(x[0].clone(), |rows| plain(rows, x[1].clone())),
    );
}

/// Applies f to the first and to the second half of x's rows. In Mesa's software driver for Vulkan, the loops of a
/// thread end after 65,535 iterations, so Burn's sums over more rows are wrong there.
fn in_halves<B: AutodiffBackend>(
    x: Tensor<B, 2>,
    f: impl Fn(Tensor<B, 2>) -> Tensor<B, 2>,
) -> Tensor<B, 2> {
    let rows = x.dims()[0];
    let half = rows / 2;
    if half == 0 {
        return f(x);
    }
    let halves = [0..half, half..rows].map(|part| f(x.clone().slice_dim(0, part)));
    Tensor::cat(halves.into(), 0)
}

fn random<B: AutodiffBackend, const D: usize>(
    shape: [usize; D],
    device: &B::Device,
) -> Tensor<B, D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.5), device)
}

struct Both<'a, B: AutodiffBackend> {
    device: &'a B::Device,
    tolerance: f64,
}

impl<B: AutodiffBackend> Both<'_, B> {
    /// Compares `fast` and `plain`: their results, and the gradients of the inputs.
    fn agree<const D: usize, const R: usize>(
        &self,
        name: &str,
        inputs: Vec<Tensor<B, D>>,
        fast: impl Fn(&[Tensor<B, D>]) -> Tensor<B, R>,
        plain: impl Fn(&[Tensor<B, D>]) -> Tensor<B, R>,
    ) {
        self.agree_with(|weights| weights, name, inputs, fast, plain);
    }

    /// Like [`agree`](Self::agree), but `gradient` computes the gradient of the results from random numbers.
    fn agree_with<const D: usize, const R: usize>(
        &self,
        gradient: impl Fn(Tensor<B, R>) -> Tensor<B, R>,
        name: &str,
        inputs: Vec<Tensor<B, D>>,
        fast: impl Fn(&[Tensor<B, D>]) -> Tensor<B, R>,
        plain: impl Fn(&[Tensor<B, D>]) -> Tensor<B, R>,
    ) {
        let inputs: Vec<_> = inputs.into_iter().map(Tensor::require_grad).collect();
        let shape = plain(&inputs).shape().dims::<R>();
        let weights = gradient(random::<B, R>(shape, self.device));
        let of = |y: Tensor<B, R>| {
            let grads = (y.clone() * weights.clone()).sum().backward();
            let grads = inputs.iter().filter_map(|x| x.grad(&grads));
            let mut all = vec![y.into_data()];
            all.extend(grads.map(|grad| grad.into_data()));
            all
        };
        self.compare(name, of(fast(&inputs)), of(plain(&inputs)));
    }

    /// Compares results one by one.
    fn compare(&self, name: &str, fast: Vec<TensorData>, plain: Vec<TensorData>) {
        assert_eq!(fast.len(), plain.len(), "{name}");
        let results = fast.into_iter().zip(plain);
        let results = results.map(|(fast, plain)| (Values::from(fast), Values::from(plain)));
        for (i, (fast, plain)) in results.enumerate() {
            let largest = plain.largest().max(1.0);
            let error = fast.error(&plain, self.tolerance * largest, |_| 0.0);
            assert!(
                error <= 1.0,
                "{name}: result {i} is off by {error} tolerances"
            );
        }
    }
}
