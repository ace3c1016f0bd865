//! A damaged file of a checkpoint matters only to the commands that need it.

use std::fs;
use std::path::Path;

use residual_zoo::runs::checkpoint;
use residual_zoo_testing::program::{self, Scratch, fails, run, smoke, text, zoo};

/// Generates greedily with additional arguments. Returns the text and the notes.
fn generated(run_directory: &Path, more: &[&str]) -> (String, String) {
    let mut command = zoo("generate");
    let greedy = ["--tokens", "20", "--temperature", "0"];
    let output = run(command.arg(run_directory).args(greedy).args(more));
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn each_set_of_weights_is_read_without_the_other_files() {
    let scratch = Scratch::new();
    let [run, hf, next] = ["run", "hf", "next"].map(|name| scratch.path(name));
    program::ok(smoke(&run).args(["--set", "train.ema=(decay: 0.5)"]));
    let newest = checkpoint::newest(&run).unwrap().path;
    for entry in fs::read_dir(run.join(checkpoint::CHECKPOINTS)).unwrap() {
        let path = entry.unwrap().path();
        if path != newest {
            fs::remove_dir_all(path).unwrap();
        }
    }
    let [trained, average] = [&[][..], &["--weights", "ema"]].map(|it| generated(&run, it).0);

    let path = newest.join(checkpoint::EMA);
    let good = fs::read(&path).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    for (damage, said) in [(None, "is missing"), (Some(&flipped), "checksum")] {
        match damage {
            None => fs::remove_file(&path).unwrap(),
            Some(damage) => fs::write(&path, damage).unwrap(),
        }
        let (found, notes) = generated(&run, &[]);
        assert_eq!(found, trained);
        let lines: Vec<&str> = notes.lines().filter(|line| line.contains(said)).collect();
        assert_eq!(lines.len(), 1, "{notes}");
        assert!(
            lines[0].contains("ema.safetensors")
                && lines[0].contains("average of the weights is lost"),
            "{notes}"
        );
        for choice in [&[][..], &["--checkpoint", "newest"]] {
            let mut command = zoo("generate");
            command.arg(&run).args(["--weights", "ema"]).args(choice);
            fails(
                &mut command,
                2,
                &["ema.safetensors", said, "leave out `--weights ema`"],
            );
        }
        // The run needs all its files to continue.
        let mut resume = zoo("train");
        resume.arg("--resume").arg(&run).arg("--no-tui");
        fails(&mut resume, 2, &["ema.safetensors", said, "--init-from"]);
    }
    program::ok(zoo("export").arg(&run).args(["--to", "hf"]).arg(&hf));
    program::ok(smoke(&next).arg("--init-from").arg(&run));

    // The average does not need the trained weights. Neither of the two needs the moments.
    fs::write(&path, &good).unwrap();
    fs::remove_file(newest.join(checkpoint::OPTIMIZER)).unwrap();
    let (found, notes) = generated(&run, &[]);
    assert_eq!(found, trained);
    assert!(
        notes.contains("optimizer.safetensors is missing; the file that is read is good"),
        "{notes}"
    );
    fs::remove_file(newest.join(checkpoint::MODEL)).unwrap();
    assert_eq!(generated(&run, &["--weights", "ema"]).0, average);
    fails(
        zoo("generate").arg(&run),
        2,
        &["model.safetensors", "is missing"],
    );
}
