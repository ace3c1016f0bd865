//! Makes the model card of an exported model.

use std::fmt::{Display, Write as _};
use std::fs;
use std::path::Path;

use residual_zoo_core::ModelConfig as _;
use residual_zoo_data::{Source, one_line};
use residual_zoo_models::{Run, Zoo};
use residual_zoo_runs::run_dir::{METRICS, read_history};
use residual_zoo_runs::{SavedWeights, checkpoint};
use serde_json::json;

use crate::{Error, ExportOptions};

/// Makes the model card of `checkpoint`, a checkpoint of `run` that is exported as a model of `class`. `has_code` tells
/// whether the model comes with a Python module.
///
/// # Errors
///
/// Returns an error if the metrics of the run cannot be read.
pub fn card(
    run: &Run,
    checkpoint: &Path,
    options: &ExportOptions,
    (class, has_code): (&str, bool),
) -> Result<String, Error> {
    let model = &run.config.model;
    let mut card = String::from("---\nlibrary_name: transformers\npipeline_tag: text-generation\n");
    if let Some(license) = &options.license {
        writeln!(card, "license: {}", json!(one_line(license))).ok();
    }
    writeln!(card, "---\n\n# {}\n", model.name()).ok();
    let trust = match has_code {
        true => ", trust_remote_code=True",
        false => "",
    };
    // `AutoTokenizer` replaces the tokenizer of every `Qwen2ForCausalLM` with Qwen's.
    let tokenizer = match class == "Qwen2ForCausalLM" {
        true => "PreTrainedTokenizerFast",
        false => "AutoTokenizer",
    };
    writeln!(
        card,
        "```python\nfrom transformers import AutoModelForCausalLM, {tokenizer}\n\n\
         model = AutoModelForCausalLM.from_pretrained(\".\"{trust})\n\
         tokenizer = {tokenizer}.from_pretrained(\".\"{trust})\n```\n"
    )
    .ok();
    let row = |name: &str, value: &str| format!("| {name} | {value} |\n");
    card += "| | |\n|---|---|\n";
    let parameters = model.cost(run.vocabulary()).params.total();
    card += &row("parameters", &parameters.to_string());
    card += &row("context", &model.shape().context.to_string());
    card += &row("token ids", &run.tokenizer.vocab_size().to_string());
    card += &row("data", &inline(&run.config.data.source));
    let step = checkpoint::step_of(checkpoint).unwrap_or_default();
    card += &row("optimizer steps", &step.to_string());
    if run.weights() == SavedWeights::Ema {
        card += &row("weights", "exponential moving average over the steps");
    }
    if let Some((at, loss)) = last_loss(run, step)? {
        let name = format!("validation loss after {at} steps, nats per token");
        card += &row(&name, &format!("{loss:.4}"));
    }
    let license = options.license.as_deref().unwrap_or("none was given");
    card += &row("licence", &inline(license));
    let is_imported = run.config.data.source == Source::Imported;
    let first = read_history(run.directory())
        .ok()
        .and_then(|starts| starts.into_iter().next());
    let from = first
        .as_ref()
        .and_then(|start| start.init_from.as_ref()?.file_name());
    let from = from.map(|run| inline(run.display()));
    let from = from.map(|run| format!(", from the weights of another run, {run}"));
    let how = match (is_imported, from) {
        (true, _) => "Imported from another project and exported".to_owned(),
        (false, from) => format!("Trained{} and exported", from.unwrap_or_default()),
    };
    writeln!(
        card,
        "\n{how} by [residual-zoo]({}) {}, with these settings:\n\n```ron\n{}\n```",
        env!("CARGO_PKG_REPOSITORY"),
        env!("CARGO_PKG_VERSION"),
        run.config.to_ron()
    )
    .ok();
    if !is_imported {
        let command = "Save them as `config.ron` and run `residual-zoo train config.ron` to train such a model.";
        writeln!(card, "\n{command}").ok();
    }
    let begin = run.tokenizer.begin_of_text();
    if begin
        .and_then(|id| run.tokenizer.special_token(id))
        .is_none()
    {
        writeln!(
            card,
            "\nThe tokenizer has no token between documents; `lm_eval` needs `prefix_token_id={}` for it. Text that it does \
             not know is an error.",
            run.tokenizer.first_id()
        )
        .ok();
    }
    if matches!(model.plain(), Some(Zoo::Gpt2(_))) && !has_code {
        let note = "Pad on the left for `generate` and on the right for `forward`: `GPT2LMHeadModel` does not take positions \
                    from the mask.";
        writeln!(card, "\n{note}").ok();
    }
    if model.recurrence.is_some() {
        let note = "`lm_eval` pads without a mask, which changes what a recurrence reads, so it needs `batch_size=1`.";
        writeln!(card, "\n{note}").ok();
    }
    Ok(card)
}

/// Returns the last validation loss up to `step`, and its step. An imported run has no validation loss.
fn last_loss(run: &Run, step: usize) -> Result<Option<(usize, f64)>, Error> {
    if fs::symlink_metadata(run.directory().join(METRICS)).is_err() {
        return Ok(None);
    }
    let rows = run.rows()?;
    let validated = rows.iter().filter(|row| row.step <= step);
    Ok(validated
        .filter_map(|row| {
            let loss = match run.weights() {
                SavedWeights::Trained => row.valid_loss,
                SavedWeights::Ema => row.ema_valid_loss,
            };
            Some((row.step, loss?))
        })
        .next_back())
}

/// Writes untrusted text on one line of Markdown, as plain text. Markup, HTML, links and table separators are escaped.
fn inline(text: impl Display) -> String {
    let mut escaped = String::new();
    for c in one_line(text).chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            // GitHub turns text with these characters into links.
            ':' | '@' => write!(escaped, "&#{};", c as u32).unwrap_or_default(),
            '.' if escaped.to_ascii_lowercase().ends_with("www") => escaped.push_str("&#46;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '(' | ')' | '{' | '}' | '#' | '!' | '|' | '~'
            | '$' => {
                escaped.extend(['\\', c]);
            }
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_others_are_plain_text_on_one_line() {
        for (text, expected) in [
            ("runs/gpt2-smoke, α 1.5", "runs/gpt2-smoke, α 1.5"),
            ("a\r\n\n# b\u{2028}c", r"a \# b c"),
            ("a\u{202e}b", r"a\\u\{202e\}b"),
            ("<img src=x>&lt;", "&lt;img src=x&gt;&amp;lt;"),
            (
                "a|b `c` *d* _e_ ~f~ $g$",
                r"a\|b \`c\` \*d\* \_e\_ \~f\~ \$g\$",
            ),
            ("[a](b) ![c](d)", r"\[a\]\(b\) \!\[c\]\(d\)"),
            (
                "https://a.b www.c.d e@f.g",
                "https&#58;//a.b www&#46;c.d e&#64;f.g",
            ),
            ("\u{1b}]0;x\u{7}\\", r"\\u\{1b\}\]0;x\\u\{7\}\\"),
        ] {
            assert_eq!(inline(text), expected);
        }
    }
}
