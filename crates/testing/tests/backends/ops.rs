//! The fast and the plain forms agree on every backend that is compiled in.

use burn::tensor::backend::AutodiffBackend;
use residual_zoo_backend::{BackendKind, OnBackend};
use residual_zoo_kernels as kernels;
use residual_zoo_models::core::ops::forms;
use residual_zoo_testing::{my_turn, ops};

use crate::in_f32;

struct Agree;

impl OnBackend for Agree {
    type Output = ();

    fn run<B: AutodiffBackend>(self, device: B::Device) {
        ops::agree::<B>(&device, 2e-5);
        ops::optimizer_agrees::<B>(&device, 2e-5);
        ops::muon_agrees::<B>(&device, 2e-5);
    }
}

#[test]
fn fast_and_plain_forms_agree() {
    let _turn = my_turn();
    for kind in in_f32() {
        println!("{kind}");
        let agree = || kind.run(kind.default_gpu(), Agree);
        let (agreed, plain) = forms::recorded(agree);
        agreed.unwrap_or_else(|e| panic!("{e}"));
        // Without a fast form, a comparison would compare the plain form with itself.
        if kind == BackendKind::Flex && !kernels::plain_only() {
            assert_eq!(plain, [""; 0]);
        }
    }
}
