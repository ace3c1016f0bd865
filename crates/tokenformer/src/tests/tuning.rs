//! Tests of tuning by added pairs and by LoRA.

use super::*;

/// Returns a trained model, and the same model at the start of its tuning with `config`.
fn to_tune(config: &TokenFormerConfig) -> (TokenFormer<B>, TokenFormer<B>) {
    let base = trained(&small());
    let fresh = config.build::<B>(11, &Default::default()).unwrap();
    let first = config.grow(&small(), weights(&base), &weights(&fresh));
    let model = loaded(config, first.unwrap());
    (base, model)
}

#[test]
fn tuning_trains_the_added_pairs_alone() {
    let config = TokenFormerConfig {
        added: Some(ADDED),
        ..small()
    };
    let (base, model) = to_tune(&config);
    // The additional zeros change the order of the sums, and so the rounding.
    let error = difference(&model, &base);
    assert!(error < 1e-5, "zero keys keep the function: {error}");
    let list = params::list::<B, _>(&model);
    let trainable = list.iter().filter(|info| info.trainable);
    assert!(trainable.clone().all(|info| info.name.contains(".added.")));
    // Each of 2 layers has 4 + 1 Pattentions, each with added keys and values.
    assert_eq!(trainable.count(), 2 * 5 * 2);
    let cost = config.cost(11);
    assert_eq!(cost.params.total(), 2 * 2 * 24 * (4 * 5 + 7));
    assert_eq!(
        cost.forward_flops - small().cost(11).forward_flops,
        2 * 4 * 24 * (4 * 5 + 7)
    );

    // A model with the pairs of both tasks beside the base model's pairs.
    let other = TokenFormerConfig {
        added: Some(Added { attn: 2, ffn: 3 }),
        ..small()
    };
    let first = other
        .grow(&small(), weights(&base), &weights(&trained(&other)))
        .unwrap();
    let task = retrained(model.clone(), 2);
    let (both, all) = merge((&config, &weights(&task)), (&other, &first), 1.0).unwrap();
    assert_eq!(both.added, Some(Added { attn: 7, ffn: 10 }));
    let keys = &all["block.layers.1.feed_forward.branch.ffn.added.keys"];
    assert_eq!(keys.shape.to_vec(), [10, 24]);
    // The keys of the other task are not zero, because `trained` drew them.
    assert!(difference(&loaded(&both, all.clone()), &task) > 1e-3);
    let mut unused = all;
    for (name, value) in &mut unused {
        if name.ends_with(".added.keys") {
            let own = [(".attention.", 5), (".feed_forward.", 7)];
            let rows = own.iter().find(|(part, _)| name.contains(part)).unwrap().1;
            let numbers: Vec<f32> = value.iter().collect();
            let numbers = numbers.iter().enumerate();
            let kept = numbers.map(|(i, x)| if i < rows * 24 { *x } else { 0.0 });
            *value = TensorData::new(kept.collect::<Vec<f32>>(), value.shape.to_vec());
        }
    }
    let error = difference(&loaded(&both, unused), &task);
    assert!(
        error < 1e-5,
        "with zero keys, the other pairs do nothing: {error}"
    );

    // Tasks with different bases cannot be merged.
    let (_, stranger) = to_tune(&config);
    let task_weights = weights(&task);
    let mut of_stranger = weights(&stranger);
    let name = "block.layers.0.feed_forward.branch.ffn.keys";
    let other_keys = weights(&trained(&config))[name].clone();
    of_stranger.insert(name.to_owned(), other_keys);
    let error = merge((&config, &task_weights), (&config, &of_stranger), 1.0).unwrap_err();
    assert!(matches!(error, MergeError::OtherBase(_)), "{error}");

    // Two tasks are tuned from one base model.
    let tasks = [2, 3].map(|seed| retrained(model.clone(), seed));
    let sets = tasks.each_ref().map(|task| added(&weights(task)));
    for (task, set) in tasks.iter().zip(sets) {
        assert_eq!(set.len(), 20);
        let switched = params::import_some(model.clone(), set).unwrap();
        assert_eq!(difference(&switched, task), 0.0);
        assert!(difference(task, &base) > 1e-3);
        let (absorbed, all) = config.absorb(weights(task));
        assert_eq!((absorbed.n_attn(), absorbed.added), (18, None));
        let error = difference(&loaded(&absorbed, all), task);
        assert!(error < 1e-5, "{error}");
    }
}

/// Tests LoRA (Hu et al., 2021).
#[test]
fn lora_trains_the_corrections_alone() {
    let config = TokenFormerConfig {
        lora: Some(3),
        ..small()
    };
    let (base, model) = to_tune(&config);
    assert_eq!(difference(&model, &base), 0.0, "B = 0 keeps the function");
    let list = params::list::<B, _>(&model);
    let trainable = list.iter().filter(|info| info.trainable);
    assert!(trainable.clone().all(|info| info.name.contains(".lora.")));
    assert_eq!(trainable.count(), 2 * 5 * 4);
    let cost = config.cost(11);
    let (attn, ffn) = (config.n_attn() + 24, config.n_ffn() + 24);
    assert_eq!(cost.params.total(), 2 * 2 * 3 * (4 * attn + ffn));

    let task = retrained(model, 2);
    assert!(difference(&task, &base) > 1e-3);
    let (absorbed, all) = config.absorb(weights(&task));
    assert_eq!(absorbed, small());
    let error = difference(&loaded(&absorbed, all), &task);
    assert!(error < 1e-5, "{error}");

    let other = |lora, added| TokenFormerConfig {
        lora,
        added,
        ..small()
    };
    assert!(other(Some(3), None).grows_from(&config).is_ok());
    for wrong in [other(Some(2), None), small()] {
        assert_eq!(wrong.grows_from(&config).unwrap_err().field, "model.lora");
    }
    assert_eq!(other(Some(0), None).validate().unwrap_err().field, "lora");
    assert_eq!(
        other(Some(1), Some(ADDED)).validate().unwrap_err().field,
        "lora"
    );
    let merged = merge((&config, &weights(&task)), (&config, &weights(&task)), 1.0);
    assert!(matches!(merged, Err(MergeError::Config(error)) if error.field == "lora"));
}

#[test]
fn the_number_of_added_pairs_stays() {
    let added = |attn| TokenFormerConfig {
        added: Some(Added { attn, ffn: 7 }),
        ..small()
    };
    assert!(added(5).grows_from(&small()).is_ok());
    assert!(added(5).grows_from(&added(5)).is_ok());
    for other in [added(6), small()] {
        assert_eq!(
            other.grows_from(&added(5)).unwrap_err().field,
            "model.added"
        );
    }
    assert_eq!(added(0).validate().unwrap_err().field, "added.attn");
}
