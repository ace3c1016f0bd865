use std::collections::BTreeMap;

use burn::backend::Flex;
use burn::module::Param;
use burn::tensor::Tensor;
use residual_zoo_core::{Linear, params};
use residual_zoo_runs::{Ema, EmaStart};

use super::averaged;
use crate::checkpoint::Journal;
use crate::optimizer::tests::{assert_close, trace};
use crate::tests::{B, Config, config, my_turn, trainer, weights};
use crate::{Trainer, checkpoint};

#[test]
fn averages_of_weights_follow_their_traces() {
    let (trace, settings) = trace("ema");
    let decay = settings["decay"].as_f64().unwrap();
    let starts = [
        ("copy", EmaStart::Initial),
        ("debias", EmaStart::Debiased),
        ("warm", EmaStart::Warm),
    ];
    for (name, start) in starts {
        let ema = Ema { decay, start };
        let at = |what: &str, t: usize| {
            Tensor::<Flex, 2>::from_data(trace[&format!("{what}.{t}")].clone(), &Default::default())
        };
        let average = |t: usize| Linear::<Flex> {
            weight: Param::from_tensor(at("w", t)),
            bias: None,
        };
        let mut e = average(0);
        for t in 1..=6 {
            let w = Linear::<B> {
                weight: Param::from_data(trace[&format!("w.{t}")].clone(), &Default::default()),
                bias: None,
            };
            e = averaged::<B, _, _>(e, &w, ema.share(t));
            assert_close(e.weight.val(), at(name, t), &format!("{name}, step {t}"));
        }
    }
}

#[test]
fn an_average_starts_from_the_weights_that_a_run_starts_from() {
    let _turn = my_turn();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("step-00000001");
    let mut trained = trainer(&config());
    trained.step().unwrap();
    checkpoint::save(&trained, &Journal::default(), &path).unwrap();
    assert!(!path.join("ema.safetensors").exists());
    let mut with_average = config();
    with_average.train.ema = Some(Ema::default());
    let mut next = trainer(&with_average);
    checkpoint::load_parameters(&mut next, &config().model, &path).unwrap();
    assert_eq!(of_average(&next), weights(trained.model()));
    let before = of_average(&next);
    next.step().unwrap();
    let after = weights(next.model());
    let share = Ema::default().share(1);
    for (name, average) in of_average(&next) {
        for (i, e) in average.into_iter().enumerate() {
            let expected = share * before[&name][i] + (1.0 - share) * after[&name][i];
            assert!((e - expected).abs() < 1e-6, "{name}: {e} is not {expected}");
        }
    }
}

#[test]
fn an_average_that_is_added_later_counts_from_its_own_start() {
    let _turn = my_turn();
    let directory = tempfile::tempdir().unwrap();
    let path = |step| directory.path().join(format!("step-{step:08}"));
    let mut first = trainer(&config());
    first.step().unwrap();
    first.step().unwrap();
    checkpoint::save(&first, &Journal::default(), &path(2)).unwrap();
    let (decay, start) = (0.5, EmaStart::Debiased);
    let mut with_average = config();
    with_average.train.ema = Some(Ema { decay, start });
    let mut next = trainer(&with_average);
    checkpoint::load(&mut next, &path(2)).unwrap();
    next.step().unwrap();
    // The weights before the first step of the average have no share.
    let one = weights(next.model());
    assert_eq!(of_average(&next), one);
    // A resumed run continues to count the steps of its average.
    checkpoint::save(&next, &Journal::default(), &path(3)).unwrap();
    let mut again = trainer(&with_average);
    checkpoint::load(&mut again, &path(3)).unwrap();
    for trainer in [&mut next, &mut again] {
        trainer.step().unwrap();
    }
    let (two, average) = (weights(next.model()), of_average(&next));
    assert_eq!(of_average(&again), average);
    for (name, average) in average {
        for (i, e) in average.into_iter().enumerate() {
            // c = d (1 − d) / (1 − d²) = 1/3.
            let expected = one[&name][i] / 3.0 + two[&name][i] * 2.0 / 3.0;
            assert!((e - expected).abs() < 1e-6, "{name}: {e} is not {expected}");
        }
    }
}

/// Returns the average of the weights, by parameter name.
pub(crate) fn of_average(trainer: &Trainer<B, Config>) -> BTreeMap<String, Vec<f64>> {
    let average = params::export::<Flex, _>(trainer.average().unwrap()).into_iter();
    average
        .map(|(name, data)| (name, data.iter::<f64>().collect()))
        .collect()
}
