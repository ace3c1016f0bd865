//! General matrix products on Flex, with the crate `gemm`, which Burn uses too.
//!
//! Burn 0.21 zeroes and copies the memory of a result before it computes the result: `FlexTensor::empty` makes a
//! `Vec<u8>`, which `Bytes::from_bytes_vec` treats as unaligned. This module writes the result once.

#![allow(unsafe_code)]

use burn::tensor::{TensorData, TensorMetadata as _};
use burn_flex::FlexTensor;
use gemm::Parallelism;

/// Minimum number of multiplications for which threads share a product, as in Burn. Each thread computes its own
/// elements, so results do not depend on the number of threads.
const PARALLEL: usize = 192 * 192 * 192;

/// Computes a · b for a `[m, k]` and b `[k, n]`, both f32.
///
/// # Panics
///
/// Panics if the shapes do not match, or if a or b is not f32.
pub(crate) fn product(a: &FlexTensor, b: &FlexTensor) -> FlexTensor {
    let ([m, k], [rows, n]): ([usize; 2], [usize; 2]) = (a.shape().dims(), b.shape().dims());
    assert_eq!(k, rows, "the product of [{m}, {k}] and [{rows}, {n}]");
    let len = m.checked_mul(n).expect("a result fits into memory");
    let (a, b) = (in_bounds(a), in_bounds(b));
    let (a_data, [a_down, a_right]) = (from_first(&a), strides(&a));
    let (b_data, [b_down, b_right]) = (from_first(&b), strides(&b));
    let parallelism = match len.saturating_mul(k) < PARALLEL {
        true => Parallelism::None,
        false => Parallelism::Rayon(0),
    };
    let mut out = Vec::<f32>::with_capacity(len);
    match k {
        0 => out.resize(len, 0.0),
        // SAFETY: all elements of a and b are in their data, by `in_bounds`. `out` has room for m rows of n elements.
        // The product writes each element of `out` without reading it.
        _ => unsafe {
            let out_data = out.as_mut_ptr();
            let (down, right) = (n as isize, 1);
            gemm::gemm(
                m,
                n,
                k,
                out_data,
                right,
                down,
                false,
                a_data,
                a_right,
                a_down,
                b_data,
                b_right,
                b_down,
                0.0,
                1.0,
                false,
                false,
                false,
                parallelism,
            );
            out.set_len(len);
        },
    }
    FlexTensor::from_data(TensorData::new(out, [m, n]))
}

/// Returns a pointer to the first element of `x`.
fn from_first(x: &FlexTensor) -> *const f32 {
    x.storage::<f32>()[x.layout().start_offset()..].as_ptr()
}

/// Returns the distances between neighbouring elements of a column and of a row.
fn strides(x: &FlexTensor) -> [isize; 2] {
    [0, 1].map(|axis| x.layout().strides()[axis])
}

/// Returns `x` if all its elements are in its data, at or after the first element; otherwise a copy.
fn in_bounds(x: &FlexTensor) -> FlexTensor {
    let sides: [usize; 2] = x.shape().dims();
    let data = x.storage::<f32>().len();
    let reach = |axis: usize| {
        let stride = usize::try_from(strides(x)[axis]).ok()?;
        sides[axis].checked_sub(1)?.checked_mul(stride)
    };
    let last = reach(0).zip(reach(1));
    let last = last.and_then(|(down, right)| {
        down.checked_add(right)?
            .checked_add(x.layout().start_offset())
    });
    match last {
        Some(last) if last < data => x.clone(),
        _ => x.to_contiguous(),
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::{Tensor, s};

    use super::product;

    type Matrix = Tensor<Flex, 2>;

    /// Integers below 7, whose products are exact.
    fn matrix(rows: usize, columns: usize) -> Matrix {
        let elements = Tensor::<Flex, 1, burn::tensor::Int>::arange(
            0..(rows * columns) as i64,
            &Default::default(),
        );
        let elements = (elements.clone() * elements) % 7;
        elements.float().reshape([rows, columns])
    }

    fn assert_product(a: Matrix, b: Matrix) {
        let [found_a, found_b] = [&a, &b].map(|x| x.clone().into_primitive().tensor());
        let found = product(&found_a, &found_b);
        let found = Matrix::from_primitive(burn::tensor::TensorPrimitive::Float(found));
        let ([m, k], [_, n]) = (a.dims(), b.dims());
        let (a, b) = (a.reshape([m, k, 1]), b.reshape([1, k, n]));
        let expected = (a * b).sum_dim(1).reshape([m, n]);
        found.into_data().assert_eq(&expected.into_data(), true);
    }

    #[test]
    fn matrices_may_be_transposed_cut_repeated_and_empty() {
        for [m, k, n] in [[3, 4, 5], [1, 1, 1], [17, 33, 9], [200, 190, 210]] {
            assert_product(matrix(m, k), matrix(k, n));
            assert_product(matrix(k, m).transpose(), matrix(n, k).transpose());
            let part = |rows, columns| {
                matrix(rows + 3, columns + 2).slice(s![2..rows + 2, 1..columns + 1])
            };
            assert_product(part(m, k), part(n, k).transpose());
            assert_product(matrix(1, k).expand([m, k]), matrix(k, 1).expand([k, n]));
            assert_product(matrix(m, k).flip([0]), matrix(k, n).flip([0, 1]));
        }
        for [m, k, n] in [[0, 3, 2], [3, 0, 2], [3, 2, 0]] {
            assert_eq!(
                product(
                    &Matrix::zeros([m, k], &Default::default())
                        .into_primitive()
                        .tensor(),
                    &Matrix::zeros([k, n], &Default::default())
                        .into_primitive()
                        .tensor(),
                )
                .storage::<f32>(),
                vec![0.0; m * n]
            );
        }
    }
}
