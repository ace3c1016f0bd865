use burn::backend::Flex;
use residual_zoo_core::{Design, Sites};

use super::*;

#[test]
fn a_column_far_below_the_others_is_not_divided_by_zero() {
    let (device, config) = (Default::default(), MhcConfig::default());
    let config = MhcConfig { n: 2, ..config };
    let mhc = config.connection::<Flex>(&Sites::sublayers(8, 3, 2), 0, &device);
    for z in [[0.0, -200.0, 0.0, -200.0], [0.0, 0.0, -200.0, -200.0]] {
        let z = Tensor::<Flex, 1>::from_floats(z, &device).reshape([1, 1, 2, 2]);
        let found: Vec<f32> = mhc.doubly_stochastic(z).into_data().iter().collect();
        assert!(found.iter().all(|m| (m - 0.5).abs() < 1e-3), "{found:?}");
    }
}

#[test]
fn a_new_model_mixes_all_streams_alike() {
    let (device, config) = (Default::default(), MhcConfig::default());
    let mhc = config.connection::<Flex>(&Sites::sublayers(8, 3, 2), 1, &device);
    let base: Vec<f32> = mhc.read.base.val().into_data().iter().collect();
    assert_eq!(base, [0.0; 24]);
    // Without r P, pre is σ(0) = ½ and post 2 σ(0) = 1.
    let z = Tensor::<Flex, 4>::zeros([1, 1, 4, 4], &device);
    let res: Vec<f32> = mhc.doubly_stochastic(z).into_data().iter().collect();
    assert!(res.iter().all(|m| (m - 0.25).abs() < 1e-6), "{res:?}");
    // Xavier's uniform rule for 4 · 8 features and 24 columns.
    let bound = (6.0f32 / (32.0 + 24.0)).sqrt();
    let phi: Vec<f32> = mhc.read.phi.val().into_data().iter().collect();
    let largest = phi.iter().fold(0.0f32, |most, p| most.max(p.abs()));
    assert!(largest <= bound && largest > 0.95 * bound, "{largest}");
    let square = phi.iter().map(|p| p * p).sum::<f32>() / phi.len() as f32;
    assert!(
        (3.0 * square / (bound * bound) - 1.0).abs() < 0.1,
        "{square}"
    );
}

#[test]
fn the_identity_reads_mostly_one_stream_and_mixes_none() {
    let (device, start) = (Default::default(), MhcStart::Identity(-8.0));
    let config = MhcConfig {
        start,
        ..MhcConfig::default()
    };
    let mhc = config.connection::<Flex>(&Sites::sublayers(8, 3, 2), 1, &device);
    let base = mhc.read.base.val();
    let pre: Vec<f32> = sigmoid(base.clone().narrow(0, 0, 4))
        .into_data()
        .iter()
        .collect();
    let twelfth = 1.0 / 12.0;
    let expected = [twelfth, 0.75, twelfth, twelfth];
    let near = pre.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(near, "{pre:?}");
    let z = base.narrow(0, 8, 16).reshape([1, 1, 4, 4]);
    let res: Vec<f32> = mhc.doubly_stochastic(z).into_data().iter().collect();
    assert!(res.iter().step_by(5).all(|m| *m > 0.998), "{res:?}");
}

/// Returns the values of the matrix that mixes the streams, row by row, if z_res is `base`.
fn res(config: MhcConfig, base: &[f32]) -> Vec<f32> {
    let (device, n) = (Default::default(), config.n);
    let mhc = config.connection::<Flex>(&Sites::sublayers(8, 3, 2), 0, &device);
    let z = Tensor::<Flex, 1>::from_floats(base, &device).reshape([1, 1, base.len()]);
    let weights = mhc.weights(|from, count| {
        assert_eq!([from, count], [2 * n, base.len()]);
        z.clone()
    });
    // weights[s, t] is the weight of stream s in stream t, so row t of the matrix is column t of `weights`.
    let res = weights.unwrap().swap_dims(2, 3);
    res.into_data().iter().collect()
}

fn assert_near(found: &[f32], expected: &[f32]) {
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().zip(expected).all(near), "{found:?}");
}

#[test]
fn res_is_a_convex_combination_of_permutations() {
    let of = |n, residual, transposed| MhcConfig {
        n,
        residual,
        transposed,
        ..MhcConfig::default()
    };
    // Softmax of ln 1, ln 2 and ln 5.
    let z = [1.0f32, 2.0, 5.0].map(f32::ln);
    let orders = vec![vec![0, 1, 2], vec![1, 2, 0], vec![0, 2, 1]];
    let expected = [6.0, 2.0, 0.0, 0.0, 1.0, 7.0, 2.0, 5.0, 1.0].map(|x| x / 8.0);
    let chosen = MhcResidual::Chosen(orders);
    assert_near(&res(of(3, chosen.clone(), false), &z), &expected);
    let transposed = [0, 3, 6, 1, 4, 7, 2, 5, 8].map(|at: usize| expected[at]);
    assert_near(&res(of(3, chosen, true), &z), &transposed);
    // Lexicographic: 012, 021, 102, 120, 201, 210.
    let z = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].map(f32::ln);
    let expected = [3.0, 7.0, 11.0, 8.0, 7.0, 6.0, 10.0, 7.0, 4.0].map(|x| x / 21.0);
    assert_near(&res(of(3, MhcResidual::Permutations, false), &z), &expected);
    // The weights of the permutations are ¼ and ¾ in the first factor, ½ and ½ in the second.
    let z = [1.0f32, 3.0, 1.0, 1.0].map(f32::ln);
    let expected = [[1.0, 1.0, 3.0, 3.0], [3.0, 3.0, 1.0, 1.0]].map(|row| [row, row]);
    let expected = expected.as_flattened().as_flattened();
    let expected: Vec<f32> = expected.iter().map(|x| x / 8.0).collect();
    let krom = MhcResidual::Kronecker(vec![2, 2]);
    assert_near(&res(of(4, krom, false), &z), &expected);
}

#[test]
fn a_start_in_one_stream_is_the_start_of_mhc_lite() {
    let base = |residual| -> Vec<f32> {
        let config = MhcConfig {
            n: 3,
            start: MhcStart::OneStream,
            residual,
            ..MhcConfig::default()
        };
        let mhc = config.connection::<Flex>(&Sites::sublayers(8, 3, 2), 4, &Default::default());
        mhc.read.base.val().into_data().iter().collect()
    };
    let pre_and_post = [-1.0, 1.0, -1.0, -1.0, 1.0, -1.0];
    let with = |b_res: &[f32]| [&pre_and_post, b_res].concat();
    assert_eq!(base(MhcResidual::Identity), pre_and_post);
    let lite = [0.0, -8.0, -8.0, -8.0, -8.0, -8.0];
    assert_eq!(base(MhcResidual::Permutations), with(&lite));
    let mhc = [0.0, -8.0, -8.0, -8.0, 0.0, -8.0, -8.0, -8.0, 0.0];
    assert_eq!(base(MhcResidual::Sinkhorn), with(&mhc));
}
