//! The arguments of a program, and errors about them.

use std::io::{ErrorKind as IoErrorKind, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use residual_zoo_lab::Error;
use residual_zoo_runs::Error as RunError;
use residual_zoo_system::console::warn;

use crate::{TEXTS, arguments, quoted, report};

/// Parses the options of a program. An error quotes arguments, so it is printed without control characters.
///
/// # Errors
///
/// Returns an exit code if the options are wrong or only ask for help.
pub fn options<P: clap::Parser>() -> Result<P, ExitCode> {
    let command = with_negative_numbers(P::command());
    let parsed = command.try_get_matches();
    let format = |error: clap::Error| error.format(&mut P::command());
    let error = match parsed.and_then(|all| P::from_arg_matches(&all).map_err(format)) {
        Ok(options) => return Ok(options),
        Err(error) => error,
    };
    if error.use_stderr() {
        warn(error.render().to_string().trim_end());
        if let Some(tip) = tip(&error) {
            warn(&format!("\n  tip: {tip}"));
        }
        return Err(ExitCode::from(2));
    }
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    Err(match printed {
        Err(error) if error.kind() != IoErrorKind::BrokenPipe => {
            let failed = RunError::io("write", "standard output".as_ref());
            report(Err(Error::from(failed(error)).into()))
        }
        _ => ExitCode::SUCCESS,
    })
}

/// Returns the likely meaning of an argument that the command does not have.
fn tip(error: &clap::Error) -> Option<String> {
    let (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return None;
    };
    let given: Vec<String> = arguments().collect();
    let before = |count: usize| {
        let at = given.iter().position(|it| it == word)?.checked_sub(count)?;
        given.get(at).map(String::as_str)
    };
    let is_option = word.starts_with('-');
    let ending = Path::new(word).extension().unwrap_or_default();
    let is_text = TEXTS.contains(&&*ending.to_string_lossy());
    let word = quoted(word);
    if let (Some(option @ ("--set" | "--over")), Some(field)) = (before(2), before(1))
        && !field.contains('=')
    {
        return Some(format!(
            "write a field and its value as one word: {option} {field}={word}"
        ));
    }
    match given.first()?.as_str() {
        _ if is_option => None,
        "generate" => Some(format!(
            "the text to continue is an option: --prompt {word}"
        )),
        "evaluate" => Some(format!("the file of a task is an option: --task {word}")),
        "train" | "plan" | "sweep" | "compare" | "tokenize" if is_text => {
            Some(format!("the text to train on is an option: --data {word}"))
        }
        "train" | "merge" | "import" => Some(format!(
            "the directory of the run is an option: --run {word}"
        )),
        _ => None,
    }
}

/// Lets options take negative numbers, so that the options' own parsers can refuse them. Otherwise, clap would call -1
/// an unexpected argument.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command =
        command.mut_args(
            |arg| match arg.get_action().takes_values() && !arg.is_positional() {
                true => arg.allow_negative_numbers(true),
                false => arg,
            },
        );
    command.mut_subcommands(with_negative_numbers)
}
