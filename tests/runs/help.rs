//! Names, help and completions.

use std::path::Path;
use std::process::Command;

use residual_zoo::{RunConfig, builtin};
use residual_zoo_testing::program::{Scratch, fails, ok, run, text, zoo};

/// Counts the lines in `shown` that begin with a name.
fn lines_of(shown: &str, name: &str) -> usize {
    let named = |line: &&str| line.split_whitespace().next() == Some(name);
    shown.lines().filter(named).count()
}

#[test]
fn list_shows_names_on_one_screen() {
    let shown = ok(&mut zoo("list"));
    let longest = shown.lines().map(|line| line.chars().count()).max();
    assert!(longest <= Some(80) && shown.lines().count() < 24, "{shown}");
    let words: Vec<&str> = shown.split([' ', ',', ';', '\n']).collect();
    for name in ["Gpt2", "Composed", "Laurel", "ValueResidual"] {
        assert!(words.contains(&name), "{name} in {shown}");
    }
    for source in builtin::experiments() {
        assert!(words.contains(&source.name.as_str()), "{shown}");
    }
    for (name, _) in builtin::run_files() {
        let (folder, _) = name.split_once('/').unwrap();
        assert!(words.contains(&format!("{folder}/").as_str()), "{shown}");
    }
    assert!(shown.contains("`residual-zoo list runs`"), "{shown}");
}

#[test]
fn list_describes_kinds_and_searches() {
    let list = |words: &[&str]| ok(zoo("list").args(words));
    for (kind, names) in [
        ("architectures", ["Gpt2", "Composed"]),
        ("connection", ["Laurel", "Hyper"]),
        ("runs", ["gpt2/smoke", "compositions/alternate"]),
        ("experiments", ["rmt_vs_transformer", "recurrent_copy"]),
    ] {
        let shown = list(&[kind]);
        for name in names {
            assert_eq!(lines_of(&shown, name), 1, "{name} in {shown}");
        }
        let longest = shown.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(80), "{longest:?}");
    }
    let found = list(&["Shakespeare", "runs"]);
    assert_eq!(lines_of(&found, "gpt2/shakespeare-cpu"), 1, "{found}");
    assert_eq!(lines_of(&found, "gpt2/smoke"), 0, "{found}");
    assert!(!found.contains("Experiments"), "{found}");
    let all = list(&["shakespeare"]);
    assert_eq!(lines_of(&all, "recurrent_shakespeare"), 1, "{all}");
    fails(
        zoo("list").arg("shakespere"),
        2,
        &[
            "shakespere",
            "does not occur in any name",
            "residual-zoo list",
        ],
    );
    let run_files = builtin::run_files().collect::<Vec<_>>();
    assert!(run_files.len() > 20);
    let runs = list(&["runs"]);
    for (name, text) in run_files {
        assert_eq!(lines_of(&runs, &name), 1, "{name}");
        RunConfig::parse(text, name.as_ref()).unwrap();
        assert_eq!(builtin::run_file(name.as_ref()), Some(text));
    }
}

/// Returns the names of all commands.
fn commands() -> Vec<String> {
    let help = ok(&mut zoo("--help"));
    let (_, rest) = help.split_once("Commands:\n").unwrap();
    let rows = rest.lines().take_while(|line| !line.is_empty());
    let rows = rows.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = rows.filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| *name != "help").map(str::to_owned);
    names.collect()
}

#[test]
fn help_fills_the_width_of_the_terminal() {
    let commands = commands();
    assert!(commands.len() >= 16, "{commands:?}");
    for columns in [60, 80, 100, 140] {
        // Clap wraps at this width.
        let width = columns.min(100);
        for command in &commands {
            let mut help = zoo(command);
            let help = ok(help.arg("--help").env("COLUMNS", columns.to_string()));
            let (prose, examples) = help.split_once("\nExample").unwrap_or((&help, ""));
            // A wrapped command could not be copied, so examples have short lines.
            let longest = examples.lines().map(|line| line.chars().count()).max();
            assert!(longest <= Some(60), "{command}: {examples}");
            let lines: Vec<&str> = prose.lines().collect();
            for pair in lines.windows(2) {
                let [line, next] = pair else { unreachable!() };
                let indent = |line: &str| line.len() - line.trim_start().len();
                let length = line.chars().count();
                assert!(
                    length <= width || !line.trim().contains(' ') || line.contains("residual-zoo "),
                    "{command}: {line}"
                );
                let word = next.split_whitespace().next().unwrap_or_default();
                // A list, an option and a paragraph each begin on a new line.
                let begins = line.trim().is_empty() || word.is_empty() || word.starts_with('-');
                if !begins && indent(line) == indent(next) && !line.starts_with("Usage") {
                    let both = length + 1 + word.chars().count();
                    assert!(
                        both > width,
                        "{command} at {columns} columns:\n{line}\n{next}"
                    );
                }
            }
        }
    }
}

/// Whether `shell` is installed. If not, prints that its completions are not tested.
fn has(shell: &str) -> bool {
    let found = Command::new(shell).arg("--version").output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("{shell} is not installed, so its completions were not tested");
    }
    found
}

/// Returns the output of `shell` for a script in which `$SCRIPT` is the completions file.
fn in_shell(shell: &str, completions: &Path, script: &str) -> String {
    let mut command = Command::new(shell);
    command.args(["-c", script]).env("SCRIPT", completions);
    let output = run(command.current_dir(completions.parent().unwrap()));
    text(&output.stdout)
}

/// Words before the cursor, and completions that must be offered for them.
const COMPLETED: [(&str, &[&str]); 12] = [
    (
        "plot --y ",
        &["train_loss", "valid_loss", "perplexity", "valid_accuracy"],
    ),
    ("train --init-by grow", &["grow", "grow-fresh"]),
    ("pl", &["plan", "plot"]),
    ("evaluate --ta", &["--task"]),
    ("export --to ", &["hf"]),
    (
        "train --backend ",
        &["flex", "tch", "cuda", "vulkan", "wgpu"],
    ),
    ("generate --checkpoint ", &["best", "newest"]),
    ("train --init-checkpoint ", &["best", "newest"]),
    ("experiment --scale ", &["smoke", "cpu", "paper"]),
    ("sweep --tokenizer ", &["bytes", "chars"]),
    ("plan --data s", &["synthetic"]),
    ("list arch", &["architectures"]),
];

/// Words before the cursor, and the name of the zoo or of a file that completes them.
const NAMED: [(&str, &str); 6] = [
    ("train gpt2/sm", "gpt2/smoke"),
    ("plan rmt_scal", "rmt_scaling"),
    ("experiment recurrent_co", "recurrent_copy"),
    ("train my", "my-file.ron"),
    ("train --data my", "my-file.ron"),
    ("train --tokenizer my", "my-file.ron"),
];

#[test]
fn bash_completes_commands_options_values_and_names() {
    if !has("bash") {
        return;
    }
    let scratch = Scratch::new();
    let script = scratch.file("completions", ok(zoo("completions").arg("bash")));
    let complete = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let quoted = words.iter().map(|word| format!("'{word}'"));
        let (last, before) = (words[words.len() - 1], words.iter().nth_back(1));
        let program = format!(
            "source \"$SCRIPT\"; complete -p residual-zoo >/dev/null || exit 1; \
             COMP_WORDS=(residual-zoo {}); COMP_CWORD={}; \
             _residual__zoo residual-zoo '{last}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            quoted.collect::<Vec<_>>().join(" "),
            words.len(),
            before.unwrap_or(&"residual-zoo"),
        );
        let shown = in_shell("bash", &script, &program);
        shown.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for (line, expected) in COMPLETED {
        let offered = complete(line);
        for word in expected {
            assert!(offered.iter().any(|it| it == word), "{line}: {offered:?}");
        }
    }
    // If the script offers nothing, Bash offers files.
    for (line, name) in NAMED {
        let offered = complete(line);
        let is_offered = offered.contains(&name.to_owned());
        let is_left = offered.iter().all(String::is_empty);
        assert!(
            is_offered || name == "my-file.ron" && is_left,
            "{line}: {offered:?}"
        );
    }
}

#[test]
fn fish_completes_commands_options_and_values() {
    if !has("fish") {
        return;
    }
    let scratch = Scratch::new();
    let script = scratch.file("completions.fish", ok(zoo("completions").arg("fish")));
    scratch.file("my-file.ron", "");
    let named = NAMED.map(|(line, name)| (line, vec![name]));
    let completed = COMPLETED.map(|(line, words)| (line, words.to_vec()));
    for (line, expected) in completed.into_iter().chain(named) {
        let program = format!("source $SCRIPT; complete -C 'residual-zoo {line}'");
        let shown = in_shell("fish", &script, &program);
        let offered: Vec<&str> = shown
            .lines()
            .filter_map(|line| line.split('\t').next())
            .collect();
        for word in expected {
            assert!(offered.contains(&word), "{line}: {shown}");
        }
    }
}

/// A script in which an interactive zsh, in its own terminal, completes `$LINE` within a minute.
const ZSH: &str = r#"
zmodload zsh/zpty
zpty zsh zsh -f -i
zpty -w zsh "PS1=; fpath=($PWD \$fpath); autoload -U compinit; compinit -u -d $PWD/dump; bindkey '^I' complete-word; print re''ady"
shown() { for i in {1..600}; do zpty -r -t zsh part && all+=$part || sleep 0.1; [[ $all == *$1* ]] && return; done }
all=; shown ready
all=; zpty -w -n zsh "$LINE"$'\t'
shown $LAST
print -r -- "$all"
zpty -d zsh
"#;

#[test]
fn zsh_completes_commands_options_and_values() {
    if !has("zsh") {
        return;
    }
    let scratch = Scratch::new();
    scratch.file("_residual-zoo", ok(zoo("completions").arg("zsh")));
    scratch.file("my-file.ron", "");
    let named = NAMED.map(|(line, name)| (line, vec![name]));
    let completed = COMPLETED.map(|(line, words)| (line, words.to_vec()));
    for (line, expected) in completed.into_iter().chain(named) {
        let mut zsh = Command::new("zsh");
        zsh.args(["-f", "-c", ZSH]).current_dir(scratch.path(""));
        zsh.env("LINE", format!("residual-zoo {line}"))
            .env("TERM", "xterm");
        // A list of completions ends with its last word. If there is only one completion, zsh writes it into the line.
        zsh.env("LAST", expected.iter().max().unwrap());
        let shown = text(&run(&mut zsh).stdout);
        for word in expected {
            assert!(shown.contains(word), "{line}: {shown}");
        }
    }
}
