//! The contract test finds each fault that it promises to find.

use std::sync::{Mutex, PoisonError};

use burn::backend::{Autodiff, Flex};
use burn::module::{Module, Param};
use burn::tensor::{Distribution, Int, Tensor, backend::Backend};
use serde::{Deserialize, Serialize};

use crate::{
    ConfigError, Cost, Input, LanguageModel, ModelConfig, Reads, Shape, Transfer, Vocabulary,
    contract, normal, recompute,
};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Fault {
    None,
    SeesTheFuture,
    ForgetsTheInput,
    MixesRows,
    HasADeadParameter,
    DecodesDifferently,
    Miscounts,
    Overflows,
    HidesState,
    ClassifiesByTheFirst,
    PredictsByTheFirst,
    RecomputesDifferently,
    OverlooksAPixel,
    ConstrainsToAHalf,
}

/// A bigram model: the logits after a token are the token's row of a table. The logits of an image are the sum of the
/// rows of its values, each row times its value.
#[derive(Module, Debug)]
struct Bigram<B: Backend> {
    table: Param<Tensor<B, 2>>,
    dead: Param<Tensor<B, 1>>,
    /// The state of [`Fault::HidesState`]. It is not a parameter, so it is not exported.
    hidden: Tensor<B, 1>,
    fault: usize,
}

impl<B: Backend> LanguageModel<B> for Bigram<B> {
    type Cache = ();

    fn forward(&self, input: impl Into<Input<B>>) -> Tensor<B, 3> {
        let is = |fault: Fault| self.fault == fault as usize;
        let [values, outputs] = self.table.dims();
        let logits = match input.into() {
            Input::Ids(ids) => {
                let [batch, time] = ids.dims();
                let rows = self.table.val().select(0, ids.reshape([batch * time]));
                rows.reshape([batch, time, outputs])
            }
            Input::Images(images) => {
                let batch = images.dims()[0];
                let seen = values - usize::from(is(Fault::OverlooksAPixel));
                let images = images.reshape([batch, values]).narrow(1, 0, seen);
                let table = self.table.val().narrow(0, 0, seen);
                images.matmul(table).reshape([batch, 1, outputs])
            }
        };
        if is(Fault::SeesTheFuture) {
            logits.clone() + logits.mean_dim(1)
        } else if is(Fault::ForgetsTheInput) {
            logits.clone() * 1e-6 + self.table.val().mean_dim(0).unsqueeze()
        } else if is(Fault::MixesRows) {
            logits.clone() + logits.mean_dim(0)
        } else if is(Fault::HasADeadParameter) {
            logits + self.dead.val().sum().unsqueeze() * 0.0
        } else if is(Fault::Overflows) {
            (logits + self.dead.val().unsqueeze()) * f32::MAX * f32::MAX
        } else if is(Fault::HidesState) {
            logits + self.dead.val().unsqueeze() + self.hidden.clone().unsqueeze()
        } else if is(Fault::RecomputesDifferently) && recompute::is_cut::<B>() {
            logits.detach() + self.dead.val().unsqueeze()
        } else {
            logits + self.dead.val().unsqueeze()
        }
    }

    fn classify(&self, input: impl Into<Input<B>>) -> Tensor<B, 2> {
        let ids = input.into().into_ids();
        let last = ids.dims()[1] - 1;
        let first = self.fault == Fault::ClassifiesByTheFirst as usize;
        let at = if first { 0 } else { last };
        self.forward(ids).narrow(1, at, 1).squeeze_dim(1)
    }

    fn new_cache(&self) {}

    fn decode(&self, ids: Tensor<B, 2, Int>, _: &mut ()) -> Tensor<B, 3> {
        let logits = self.forward(ids);
        if self.fault == Fault::DecodesDifferently as usize {
            logits * 1.001
        } else {
            logits
        }
    }

    fn predict(&self, ids: Tensor<B, 2, Int>, cache: &mut ()) -> Tensor<B, 2> {
        let last = ids.dims()[1] - 1;
        let first = self.fault == Fault::PredictsByTheFirst as usize;
        let at = if first { 0 } else { last };
        self.decode(ids, cache).narrow(1, at, 1).squeeze_dim(1)
    }
}

/// Returns the number of rows of the table: token ids, or values of an image.
fn rows(vocabulary: Vocabulary) -> usize {
    match vocabulary.reads {
        Reads::Ids(ids) => ids,
        Reads::Images(size) => size.values(),
    }
}

impl ModelConfig for Fault {
    type Model<B: Backend> = Bigram<B>;

    fn name(&self) -> String {
        "faulty".into()
    }

    fn validate_fields(&self) -> Result<(), ConfigError> {
        Ok(())
    }

    fn reads(&self, _: Vocabulary) -> Result<(), ConfigError> {
        Ok(())
    }

    fn shape(&self) -> Shape {
        Shape {
            context: contract::TIME,
            width: contract::VOCAB,
            n_layer: 1,
            n_sublayer: 1,
            dropout: 0.0,
        }
    }

    fn constrain<B: Backend>(&self, model: Bigram<B>) -> Bigram<B> {
        let Bigram { table, .. } = model;
        let table = match self {
            Fault::ConstrainsToAHalf => {
                table.map(|x| (x.detach().set_require_grad(false) * 0.5).require_grad())
            }
            _ => table,
        };
        Bigram { table, ..model }
    }

    fn assemble<B: Backend>(&self, vocabulary: Vocabulary, d: &B::Device) -> Bigram<B> {
        let (rows, outputs) = (rows(vocabulary), vocabulary.outputs);
        let (table, dead) = (normal([rows, outputs], 1.0, d), normal([outputs], 1.0, d));
        let hidden = Tensor::random([outputs], Distribution::Normal(0.0, 1.0), d);
        let fault = *self as usize;
        Bigram {
            table,
            dead,
            hidden,
            fault,
        }
    }

    fn cost(&self, vocabulary: impl Into<Vocabulary>) -> Cost {
        let vocabulary = vocabulary.into();
        let extra = if *self == Fault::Miscounts { 1 } else { 0 };
        Cost::linear(rows(vocabulary), vocabulary.outputs, true) + Cost::vector(extra)
    }
}

impl Transfer for Fault {}

/// Lets one test at a time draw random numbers, because all threads share the backend's random generator.
static TURN: Mutex<()> = Mutex::new(());

fn check(fault: Fault) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    contract::check::<Autodiff<Flex>, _>(&fault, &Default::default());
}

#[test]
fn a_sound_model_passes() {
    check(Fault::None);
}

#[test]
#[should_panic(expected = "causal at 1")]
fn a_model_that_sees_the_future_fails() {
    check(Fault::SeesTheFuture);
}

#[test]
#[should_panic(expected = "has no effect")]
fn a_model_that_forgets_its_input_fails() {
    check(Fault::ForgetsTheInput);
}

#[test]
#[should_panic(expected = "batch rows independent")]
fn a_model_that_mixes_rows_fails() {
    check(Fault::MixesRows);
}

#[test]
#[should_panic(expected = "gradient of `dead`")]
fn a_model_with_a_dead_parameter_fails() {
    check(Fault::HasADeadParameter);
}

#[test]
#[should_panic(expected = "incremental pass")]
fn a_model_that_decodes_differently_fails() {
    check(Fault::DecodesDifferently);
}

#[test]
#[should_panic(expected = "finite logits")]
fn a_model_that_overflows_fails() {
    check(Fault::Overflows);
}

#[test]
#[should_panic(expected = "logits after export and import")]
fn a_model_with_state_outside_of_its_parameters_fails() {
    check(Fault::HidesState);
}

#[test]
#[should_panic(expected = "class logits")]
fn a_model_that_classifies_by_another_position_fails() {
    check(Fault::ClassifiesByTheFirst);
}

#[test]
#[should_panic(expected = "prediction after")]
fn a_model_that_predicts_by_another_position_fails() {
    check(Fault::PredictsByTheFirst);
}

#[test]
#[should_panic(expected = "parameter count")]
fn a_config_that_miscounts_fails() {
    check(Fault::Miscounts);
}

#[test]
#[should_panic(expected = "with recomputed activations")]
fn a_model_that_recomputes_something_else_fails() {
    check(Fault::RecomputesDifferently);
}

#[test]
#[should_panic(expected = "`table` of a new model changes")]
fn a_model_off_its_constraints_fails() {
    check(Fault::ConstrainsToAHalf);
}

fn check_images(fault: Fault) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    contract::check_images::<Autodiff<Flex>, _>(&fault, [3, 2, 5].into(), &Default::default());
}

#[test]
fn a_sound_model_of_images_passes() {
    check_images(Fault::None);
}

#[test]
#[should_panic(expected = "row 1, column 4 of channel 2 has no effect")]
fn a_model_that_overlooks_a_pixel_fails() {
    check_images(Fault::OverlooksAPixel);
}

#[test]
#[should_panic(expected = "batch rows independent")]
fn a_model_that_mixes_images_fails() {
    check_images(Fault::MixesRows);
}

#[test]
#[should_panic(expected = "logits after export and import")]
fn a_model_of_images_with_hidden_state_fails() {
    check_images(Fault::HidesState);
}
