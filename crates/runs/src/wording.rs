//! Wording of errors.

/// Returns ` (did you mean X?)` with the most similar name in `known`, if one is similar to `name`.
pub fn did_you_mean(name: &str, known: impl Iterator<Item = impl AsRef<str>>) -> String {
    const ALIKE: f64 = 0.8;
    let lower = name.to_lowercase();
    let score = |known: &str| match initials(known) == lower {
        true => 1.0,
        false => strsim::jaro_winkler(&lower, &known.to_lowercase()),
    };
    let scored = known.map(|known| (score(known.as_ref()), known));
    let best = scored.max_by(|(a, _), (b, _)| a.total_cmp(b));
    match best.filter(|(score, _)| *score > ALIKE) {
        Some((_, known)) => format!(" (did you mean `{}`?)", known.as_ref()),
        None => String::new(),
    }
}

/// Returns the initials of a name that has several words, such as `lr` for `learning_rate`; empty for one word.
fn initials(name: &str) -> String {
    match name.contains('_') {
        true => name
            .split('_')
            .filter_map(|word| word.chars().next())
            .collect(),
        false => String::new(),
    }
}

/// Says that nothing of this `kind`, such as a field, is called `name`, and lists the `known` names.
pub(crate) fn unknown(kind: &str, name: &str, known: &[impl AsRef<str>]) -> String {
    let known: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
    format!(
        "unknown {kind} `{name}`{}; the {kind}s are {}",
        did_you_mean(name, known.iter()),
        known.join(", ")
    )
}

/// Rewrites a `serde` message about an unknown variant. The message may begin with a path. Returns `None` for other
/// messages.
pub(crate) fn of_unknown_name(message: &str) -> Option<String> {
    let (path, rest) = message.split_once("unknown variant `")?;
    let (name, known) = rest.split_once('`')?;
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    Some(format!(
        "{path}{}",
        name_is_missing(&format!("\"{name}\""), &known)
    ))
}

/// Says that the text `found` stands where one of the names `known` belongs.
pub(crate) fn name_is_missing(found: &str, known: &[&str]) -> String {
    let text = found.strip_prefix('"').and_then(|it| it.split_once('"'));
    let Some((text, _)) = text else {
        return format!("expected one of the names {}", known.join(", "));
    };
    let fix = match (known.contains(&text), known.contains(&"Path")) {
        (true, _) => format!("write `{text}` without quotes"),
        (_, true) => format!("write `Path(\"{text}\")` for a file or directory"),
        _ => "names have no quotes".into(),
    };
    format!("{}; {fix}", unknown("name", text, known))
}

/// A hint about the syntax of fields.
pub(crate) const NAMES: &str = "fields have names, as in `Name(field: 1)`";

/// Returns a hint for a field that only compositions have.
pub(crate) fn of_composition(field: &str) -> &'static str {
    match field {
        "connection" => {
            "; a composition has it: `model: Composed(layers: [ARCHITECTURE(…)], connection: …)`"
        }
        "recurrence" | "loops" | "patches" => {
            "; a composition has it, beside its `layers: [ARCHITECTURE(…)]`: `model: Composed(…)`"
        }
        _ => "",
    }
}

/// Returns a hint for `found`, the name of a connection, if the known names are the places of connections in a model.
pub(crate) fn of_connection(found: &str, known: &[&str]) -> String {
    let is_name = !found.is_empty() && found != "Some";
    let name = if is_name { found } else { "Highway" };
    match known.contains(&"PerSublayer") {
        true => format!(
            "; write `PerSublayer({name}(…))` for a connection around each sublayer, or `PerLayer({name}(…))`"
        ),
        false => String::new(),
    }
}

/// Rewrites a message of `serde` or `ron` without the names of Rust's types.
pub(crate) fn in_plain_words(message: &str) -> String {
    const WORDS: [(&str, &str); 22] = [
        ("expected path string", "expected text"),
        ("expected string or map", "expected a name, or `Name(…)`"),
        (
            "invalid type: sequence, expected usize",
            "expected one whole number from 0, without brackets",
        ),
        (
            "invalid type: sequence, expected f64",
            "expected one number, without brackets",
        ),
        ("expected usize", "expected a whole number from 0"),
        ("expected u64", "expected a whole number from 0"),
        ("expected u8", "expected a whole number from 0 to 255"),
        (
            "Integer is out of bounds",
            "this whole number is too large, or below 0",
        ),
        (
            "expected either `PerSublayer` or `PerLayer`",
            "expected `PerSublayer(…)` or `PerLayer(…)` around the connection",
        ),
        ("expected f64", "expected a number"),
        ("Expected float", "expected a number"),
        ("Expected boolean", "expected true or false"),
        (
            "Expected string",
            "expected text in quotes, as in `\"text\"`",
        ),
        (
            "Expected an `#![enable(...)]` attribute",
            "comments begin with `//`, not with `#`",
        ),
        ("expected a boolean", "expected true or false"),
        ("expected struct variant", "expected `Name(field: value)`"),
        (
            "expected newtype variant",
            "expected `Name(…)`, with parentheses",
        ),
        ("expected unit variant", "expected a name alone"),
        ("unit variant", "a name alone"),
        ("newtype variant", "`Name(value)`"),
        ("struct variant", "`Name(field: value)`"),
        (
            "Expected opening `(`",
            "Expected `(`; a name is followed by parentheses, as in `Name()`",
        ),
    ];
    let mut message = message.to_owned();
    // Structs appear with their Rust type name.
    if let Some(at) = message
        .find("expected struct ")
        .filter(|at| !message[*at..].starts_with("expected struct variant"))
    {
        let end = message[at..]
            .find([',', ';'])
            .map_or(message.len(), |end| at + end);
        message.replace_range(at..end, "expected fields with names, as in `(field: 1)`");
    }
    WORDS.into_iter().fold(message, |message, (rust, plain)| {
        message.replace(rust, plain)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_name_is_suggested() {
        let known = ["steps", "batch", "warmup", "learning_rate"];
        let suggested = |name| did_you_mean(name, known.into_iter());
        assert_eq!(suggested("step"), " (did you mean `steps`?)");
        assert_eq!(
            suggested("learnig_rate"),
            " (did you mean `learning_rate`?)"
        );
        assert_eq!(suggested("Warmup"), " (did you mean `warmup`?)");
        assert_eq!(suggested("lr"), " (did you mean `learning_rate`?)");
        assert_eq!(suggested("dropout"), "");
    }
}
