//! `residual-zoo completions`

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::Shell;
use residual_zoo::builtin;

use super::{Program, list};

/// Values that are offered in addition to file names.
const TOKENIZERS: [&str; 3] = ["bytes", "chars", "bpe:1024"];
const DATA: [&str; 2] = ["synthetic", "tinyshakespeare"];

/// The scales of the zoo's experiments.
const SCALES: [&str; 4] = ["smoke", "cpu", "gpu", "paper"];

/// Returns the script with which `shell` completes commands, options, option values and names.
pub fn completions(shell: Shell) -> String {
    let mut program = Program::command();
    let commands: Vec<String> = program
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect();
    for name in &commands {
        program = program.mut_subcommand(name, |command| {
            command.mut_args(|arg| with_values(name, arg))
        });
    }
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, "residual-zoo", &mut script);
    let script = String::from_utf8_lossy(&script);
    match shell {
        // For bash, clap_complete 4.6 writes the hyphen of the program's name in two ways, so no command is found.
        Shell::Bash => script.replace("residual__subcmd__zoo", "residual__zoo"),
        Shell::Zsh => zsh(&script, &program),
        Shell::Fish => fish(&script, &commands),
        _ => script.into_owned(),
    }
}

/// Adds the values of a command's option that are known without running the command.
fn with_values(command: &str, arg: Arg) -> Arg {
    let id = arg.get_id().as_str().to_owned();
    let names = values(command, &id);
    if !names.is_empty() {
        return arg.value_parser(PossibleValuesParser::new(names));
    }
    let value = arg.get_value_names().and_then(|names| names.first());
    let is_directory = value.is_some_and(|name| ["RUN", "DIR"].contains(&name.as_str()))
        || ["a", "b", "run", "directory"].contains(&id.as_str());
    match is_directory {
        true => arg.value_hint(ValueHint::DirPath),
        false => arg,
    }
}

/// Returns the values of an option if its type does not provide them.
fn values(command: &str, id: &str) -> Vec<String> {
    let experiments = || builtin::experiments().map(|source| source.name);
    let runs = || builtin::run_files().map(|(name, _)| name);
    let owned = |values: &[&str]| values.iter().copied().map(String::from).collect();
    match (command, id) {
        (_, "checkpoint" | "init_checkpoint") => owned(&["newest", "best"]),
        ("import", "tokenizer") => owned(&["bytes"]),
        (_, "scale") => owned(&SCALES),
        (_, "tokenizer") => owned(&TOKENIZERS),
        ("evaluate", "data") => Vec::new(),
        (_, "data") => owned(&DATA),
        ("train" | "tokenize", "config") | ("compare" | "bench", "configs") => runs().collect(),
        ("describe", "path") => runs().collect(),
        ("plan", "path") | ("sweep", "file") => runs().chain(experiments()).collect(),
        ("experiment", "experiment") => experiments().collect(),
        ("list", "words") => owned(&list::KINDS),
        _ => Vec::new(),
    }
}

/// Changes the generated script for zsh, so that zsh offers files in addition to names.
fn zsh(script: &str, program: &Command) -> String {
    let mut script = script.to_owned();
    for command in program.get_subcommands() {
        for arg in command.get_arguments() {
            let values = values(command.get_name(), arg.get_id().as_str());
            let values = values.join(" ").replace(':', "\\:");
            if takes_files(arg) && !values.is_empty() {
                let both = format!(":{{compadd -- {values}; _files}}'");
                script = script.replace(&format!(":({values})'"), &both);
            }
        }
    }
    script
}

/// Changes the generated script for fish, so that fish offers files in addition to names.
fn fish(script: &str, commands: &[String]) -> String {
    let is_of_file = |line: &str| {
        [" -l tokenizer ", " -l data "]
            .iter()
            .any(|it| line.contains(it))
    };
    let lines = script.lines().map(|line| match is_of_file(line) {
        true => line.replace(" -r -f -a ", " -r -F -a ") + "\n",
        false => format!("{line}\n"),
    });
    let mut script: String = lines.collect();
    // The generated script lacks the values of positional arguments.
    for command in commands {
        let names = ["config", "configs", "path", "file", "experiment", "words"];
        let names = names.map(|id| values(command, id)).concat().join(" ");
        if !names.is_empty() {
            script += &format!(
                "complete -c residual-zoo -n \"__fish_residual_zoo_using_subcommand {command}\" -a \"{names}\"\n"
            );
        }
    }
    script
}

/// Whether an argument with known values also takes files.
fn takes_files(arg: &Arg) -> bool {
    !["checkpoint", "init_checkpoint", "scale", "words"].contains(&arg.get_id().as_str())
}
