//! The differences between two configs, field by field, in the syntax of a config file.

use std::collections::BTreeSet;

use residual_zoo_core::ModelConfig;
use residual_zoo_data::Source;
use residual_zoo_runs::{RunConfig, TrainConfig, composition};
use serde::Serialize;
use serde_json::Value;

/// Returns the differences between two models, by path.
pub(crate) fn other_model<C: ModelConfig>(before: &C, now: &C) -> Vec<String> {
    let (mut before, mut now) = (tree(before), tree(now));
    compose(&mut before, &now);
    compose(&mut now, &before);
    let mut found = Vec::new();
    compare("model", &before, &now, &mut found);
    found
}

/// Writes a model of one architecture as a composition if `other` is a composition, so that their common fields can be
/// compared.
fn compose(model: &mut Value, other: &Value) {
    if other.get("Composed").is_some()
        && let Some(whole) = composition(model)
    {
        *model = whole;
    }
}

/// Returns the differences in model and training between two configs, by path. Omits an increase in the number of
/// steps, and settings that do not change results, such as recomputation. Data are omitted too, because
/// [`data_difference`](crate::data_difference) compares their content. Only the settings of images, such as
/// augmentation, are compared here.
pub fn differences<C: ModelConfig>(before: &RunConfig<C>, now: &RunConfig<C>) -> Vec<String> {
    // These settings do not change results.
    let mut train = TrainConfig {
        recompute: now.train.recompute,
        shard_optimizer: now.train.shard_optimizer,
        tensorboard: now.train.tensorboard,
        // A token budget only sets the number of steps, which is compared.
        tokens: now.train.tokens,
        ..before.train.clone()
    };
    train.steps = match longer(before, now) {
        Some(_) => now.train.steps,
        None => before.train.steps,
    };
    let mut found = other_model(&before.model, &now.model);
    compare("train", &tree(&train), &tree(&now.train), &mut found);
    // The identity of images does not include their augmentation.
    let [views_before, views_now] = [before, now].map(|config| match &config.data.source {
        Source::Images(images) => {
            let mut views = tree(images);
            views.as_object_mut().map(|fields| fields.remove("set"));
            views
        }
        _ => Value::Null,
    });
    compare("data.source", &views_before, &views_now, &mut found);
    found
}

/// Describes an increase in the number of steps, which needs no permission; `None` if there is no increase.
pub(crate) fn longer<C: ModelConfig>(before: &RunConfig<C>, now: &RunConfig<C>) -> Option<String> {
    let (from, to) = (before.train.steps, now.train.steps);
    let by = match now.train.tokens {
        Some(tokens) => format!(" by train.tokens = {tokens}"),
        None => String::new(),
    };
    (to > from).then(|| {
        format!(
            "train.steps raised{by} from {from} to {to}; the learning rate now follows the longer \
             schedule"
        )
    })
}

fn tree<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_else(|e| unreachable!("a config is plain data: {e}"))
}

/// Adds the differences between two values at `path` to `found`. The path omits variant names, as `--set` paths may.
fn compare(path: &str, before: &Value, now: &Value, found: &mut Vec<String>) {
    match (before, now) {
        _ if before == now => (),
        (Value::Object(a), Value::Object(b)) => match (variant(a), variant(b)) {
            (Some((name, a)), Some((other, b)))
                if name == other && a.is_object() && b.is_object() =>
            {
                compare(path, a, b, found);
            }
            (None, None) => {
                for name in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                    // An omitted field is `None`.
                    let [a, b] = [a, b].map(|fields| fields.get(name).unwrap_or(&Value::Null));
                    compare(&format!("{path}.{name}"), a, b, found);
                }
            }
            _ => found.push(difference(path, &shown(before), &shown(now))),
        },
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (before, now)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}.{i}"), before, now, found);
            }
        }
        _ => found.push(difference(path, &shown(before), &shown(now))),
    }
}

type Fields = serde_json::Map<String, Value>;

/// Returns the name and the content of a variant, if the fields are the JSON form of a variant.
fn variant(fields: &Fields) -> Option<(&String, &Value)> {
    let only = fields.iter().next().filter(|_| fields.len() == 1);
    only.filter(|(name, _)| name.starts_with(char::is_uppercase))
}

pub(crate) fn difference(
    what: &str,
    before: &impl std::fmt::Display,
    now: &impl std::fmt::Display,
) -> String {
    format!("{what} was {before}, now {now}")
}

/// Shows a value in the syntax of a config file.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(shown).collect();
            format!("[{}]", values.join(", "))
        }
        Value::Object(fields) => match variant(fields) {
            Some((name, content)) => {
                let content = shown(content);
                let inside = content
                    .strip_prefix('(')
                    .and_then(|it| it.strip_suffix(')'));
                format!("{name}({})", inside.unwrap_or(&content))
            }
            None => {
                let field = |(name, value)| format!("{name}: {}", shown(value));
                let fields: Vec<String> = fields.iter().map(field).collect();
                format!("({})", fields.join(", "))
            }
        },
        Value::String(name) if name.starts_with(char::is_uppercase) => name.clone(),
        // Small numbers are written in the form `1e-5`.
        Value::Number(number) if number.is_f64() => {
            format!("{:?}", number.as_f64().unwrap_or(f64::NAN))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn changes(before: &Value, now: &Value) -> Vec<String> {
        let mut found = Vec::new();
        compare("model", before, now, &mut found);
        found
    }

    #[test]
    fn fields_of_the_same_variant_are_named_without_it() {
        let gpt2 = |layers, init: Value| json!({"Gpt2": {"n_layer": layers, "init": init}});
        let fixed = |std: f64| json!({"Fixed": std});
        assert_eq!(
            changes(&gpt2(2, fixed(0.5)), &gpt2(4, fixed(0.25))),
            [
                "model.init was Fixed(0.5), now Fixed(0.25)",
                "model.n_layer was 2, now 4"
            ]
        );
        assert_eq!(
            changes(&gpt2(2, fixed(0.5)), &gpt2(2, json!("Width"))),
            ["model.init was Fixed(0.5), now Width"]
        );
        assert!(changes(&gpt2(2, fixed(0.5)), &gpt2(2, fixed(0.5))).is_empty());
    }

    #[test]
    fn other_variants_are_written_out() {
        let gpt2 = json!({"Gpt2": {"n_head": 2, "eps": 1e-5}});
        assert_eq!(
            changes(&gpt2, &json!({"TokenFormer": {"n_head": 4, "n_attn": 3}})),
            ["model was Gpt2(eps: 1e-5, n_head: 2), now TokenFormer(n_attn: 3, n_head: 4)"]
        );
        let around = |connection: Value| json!({"connection": {"PerLayer": connection}});
        let hyper = around(json!({"Hyper": {"n": 2, "dynamic": false}}));
        let dense = around(json!({"Dense": {"every": [1, 2], "text": "a b"}}));
        assert_eq!(
            changes(&hyper, &dense),
            [
                "model.connection was Hyper(dynamic: false, n: 2), now Dense(every: [1, 2], text: \"a b\")"
            ]
        );
        assert_eq!(
            changes(&json!({"connection": null}), &hyper),
            ["model.connection was None, now PerLayer(Hyper(dynamic: false, n: 2))"]
        );
    }

    #[test]
    fn a_field_that_is_left_out_is_none() {
        assert_eq!(
            changes(&json!({"a": 1}), &json!({"a": 1, "patches": {"size": 4}})),
            ["model.patches was None, now (size: 4)"]
        );
    }

    #[test]
    fn a_model_and_a_composition_of_it_differ_in_what_was_composed() {
        let mut plain = json!({"Gpt2": {"n_layer": 2}});
        let now = json!({"Composed": {
            "layers": [{"Gpt2": {"n_layer": 2}}], "connection": null, "recurrence": {"block": 4},
        }});
        compose(&mut plain, &now);
        let expected = ["model.recurrence was None, now (block: 4)"];
        assert_eq!(changes(&plain, &now), expected);
    }
}
