//! Each bad input gives a one-line error with the cause and the remedy. The exit code is 2 if the user's input is at
//! fault, and 1 if the machine is. No data are lost.

use std::fs;
use std::path::Path;
use std::process::Command;

use residual_zoo_testing::program::{SMOKE, Scratch, fails, ok, run, smoke, text, zoo};

#[test]
fn compare_deletes_nothing_but_a_comparison() {
    let scratch = Scratch::new();
    // A directory of runs is not a comparison. One of its runs has the name of a model.
    ok(&mut smoke(&scratch.path("runs/gpt2")));
    let runs = scratch.path("runs");
    fails(
        zoo("compare").arg("--run").arg(&runs),
        2,
        &["already exists"],
    );
    assert!(runs.join("gpt2/config.ron").is_file());

    // The next run of this comparison cannot start.
    let directory = scratch.path("compare");
    let compare = |assignment: &str| {
        let mut command = zoo("compare");
        command.arg("--run").arg(&directory);
        for assignment in ["train.steps=2", "train.validate_batches=1", assignment] {
            command.args(["--set", assignment]);
        }
        command
    };
    ok(&mut compare("data.source.tokens=20000"));
    fails(&mut compare("model.n_head=7"), 2, &["model.n_head"]);
    assert!(directory.join("report.html").is_file());
}

#[test]
fn compare_reports_what_finished_when_a_model_fails() {
    let scratch = Scratch::new();
    let directory = scratch.path("compare");
    let compare = || {
        let mut command = zoo("compare");
        command.arg("--run").arg(&directory);
        let small = ["train.batch=1", "train.validate_batches=1"];
        let others = [
            "train.steps=2",
            "train.warmup=0",
            "data.source.tokens=20000",
        ];
        for assignment in small.into_iter().chain(others) {
            command.args(["--set", assignment]);
        }
        command
    };
    ok(&mut compare());
    let report = directory.join("report.html");
    fs::remove_file(&report).unwrap();
    fs::remove_dir_all(directory.join("laurel-rmt")).unwrap();
    fs::write(directory.join("rmt/history.jsonl"), "{}\n{damaged}\n").unwrap();
    let output = run(&mut compare());
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("rmt failed"), "{error}");
    assert!(error.contains("history.jsonl: line 2"), "{error}");
    let report = fs::read_to_string(report).unwrap();
    assert!(
        report.contains("laurel-rmt"),
        "the models after it were trained"
    );
}

#[test]
fn compare_without_any_result_keeps_the_report_of_before() {
    let scratch = Scratch::new();
    let directory = scratch.path("compare");
    let mut command = zoo("compare");
    command.arg("--run").arg(&directory);
    for assignment in [
        "train.steps=50",
        "train.batch=1",
        "train.validate_batches=1",
        "train.warmup=0",
        "train.learning_rate=1e30",
    ] {
        command.args(["--set", assignment]);
    }
    let output = run(&mut command);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("train.learning_rate"), "{error}");
    assert!(!directory.join("report.html").exists());
}

#[test]
fn sizes_beyond_any_machine_are_named_in_every_architecture() {
    let scratch = Scratch::new();
    let (huge, path) = ("5000000000000000000", scratch.path("huge.ron"));
    for model in [
        format!("TokenFormer(width: {huge}, n_head: 1)"),
        format!("TokenFormer(n_attn: {huge})"),
        format!("Rmt(d_k: {huge})"),
        format!("Rmt(rank: {huge}, d_v: {huge})"),
        format!(
            "Composed(layers: [Gpt2()], connection: PerSublayer(Laurel(augmentation: \
             LowRankPerStream(k: {huge}, rank: {huge}))))"
        ),
        format!("Composed(layers: [Gpt2(context: {huge})], recurrence: (block: {huge}))"),
        format!("Composed(layers: [Rmt(n_layer: {huge}), Rmt(n_layer: {huge})])"),
        "Rmt(rank: 0)".into(),
        "TokenFormer(n_ffn: 0)".into(),
        "TokenFormer(n_head: 0, position: Rotary(fraction: 0.5))".into(),
        "Composed(layers: [Gpt2()], connection: PerLayer(Laurel(augmentation: \
         PreviousActivations(k: 0))))"
            .into(),
        "Composed(layers: [Gpt2()], recurrence: (block: 0))".into(),
        "Composed(layers: [Gpt2()], recurrence: (alpha: Fixed(2)))".into(),
        "Composed(layers: [])".into(),
    ] {
        fs::write(&path, format!("(model: {model})")).unwrap();
        let mut command = zoo("train");
        command.arg(&path).arg("--run").arg(scratch.path("run"));
        fails(&mut command, 2, &["model"]);
        assert!(!scratch.path("run").exists(), "{model}");
    }
}

#[test]
fn sizes_beyond_any_machine_are_named_at_once() {
    let scratch = Scratch::new();
    let set = |assignment: &str| {
        let mut command = smoke(&scratch.path("run"));
        command.args(["--set", assignment]);
        command
    };
    for (field, size) in [
        ("model.n_head", "1000000000000"),
        ("model.n_layer", "1000000000000"),
        ("model.width", "100000000"),
        ("model.width", "18446744073709551614"),
        ("model.context", "100000000000000"),
        ("model.layers.0.context", "100000000000000"),
    ] {
        let says = format!(
            "`model.{}` is {size}; it must be at most 16777216",
            field.rsplit('.').next().unwrap()
        );
        fails(&mut set(&format!("{field}={size}")), 2, &[&says]);
    }
    // Each size alone is possible, but not both together.
    let mut all = set("model.n_layer=16777216");
    all.args(["--set", "model.width=16777216"]);
    fails(
        &mut all,
        2,
        &[
            "`model` has more than",
            "parameters, which fit on no machine",
        ],
    );
    fails(&mut set("train.batch=100000000000"), 2, &["train.batch"]);
    fails(
        &mut set("data.source.tokens=100000000000000"),
        2,
        &["data.source.tokens"],
    );
}

#[test]
fn what_is_no_config_is_named() {
    let scratch = Scratch::new();
    fails(
        zoo("train").arg("experiments"),
        2,
        &["experiments", "give a file"],
    );
    let binary = scratch.file("binary.ron", b"(\xff)");
    fails(zoo("train").arg(binary), 2, &["binary.ron", "UTF-8"]);
    let mut gpu = smoke(&scratch.path("run"));
    fails(
        gpu.args(["--backend", "flex", "--gpu", "3"]),
        2,
        &["flex", "--gpu"],
    );
    let mut both = smoke(&scratch.path("run"));
    let output = both.args(["--cpu", "--gpu", "3"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("'--cpu' cannot be used with '--gpu <INDEX>'"),
        "{text}"
    );
    let mut peak = smoke(&scratch.path("run"));
    let output = peak.args(["--peak-tflops", "0"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("must be a number above 0"), "{text}");
    // A line break in a path does not make a second line in the error.
    let mut broken = smoke(&scratch.path("run"));
    broken.args(["--set", "data.source=Path(\"a\\nb\")"]);
    fails(&mut broken, 2, &["a\\nb", "does not exist"]);
    let mut bench = zoo("bench");
    bench.args([
        SMOKE,
        "--warmup",
        "0",
        "--steps",
        "1",
        "--json",
        "/proc/none/x.json",
    ]);
    fails(&mut bench, 2, &["cannot write /proc/none/x.json"]);
    let mut bench = zoo("bench");
    bench.args([
        SMOKE,
        "--set",
        "model.n_head=0",
        "--warmup",
        "0",
        "--steps",
        "1",
    ]);
    fails(&mut bench, 2, &[&format!("`{SMOKE}: model.n_head`")]);
    let kept = scratch.file("kept.ron", b"(model: Gpt2())");
    let mut bench = zoo("bench");
    bench.args([SMOKE, "--steps", "1", "--json"]).arg(&kept);
    fails(&mut bench, 2, &["kept.ron` has no figures"]);
    assert_eq!(fs::read(kept).unwrap(), b"(model: Gpt2())");
}

#[test]
fn a_download_that_fails_says_what_to_do() {
    let scratch = Scratch::new();
    let mut command = smoke(&scratch.path("run"));
    command
        .args(["--data", "tinyshakespeare"])
        .env("XDG_CACHE_HOME", scratch.path("cache"));
    // No server listens on this port.
    command.env("ZOO_TINYSHAKESPEARE_URL", "http://127.0.0.1:9/input.txt");
    fails(
        &mut command,
        1,
        &["http://127.0.0.1:9/input.txt", "--data PATH"],
    );
}

#[test]
fn a_damaged_cache_is_made_anew_and_said() {
    let scratch = Scratch::new();
    let data = scratch.file(
        "my.txt",
        "to be or not to be, that is the question. ".repeat(50),
    );
    let cache = scratch.path("cache");
    let train = |name: &str| {
        let mut command = smoke(&scratch.path(name));
        let output = run(command
            .arg("--data")
            .arg(&data)
            .env("XDG_CACHE_HOME", &cache));
        assert!(output.status.success());
        text(&output.stderr)
    };
    assert_eq!(train("first"), "");
    assert_eq!(train("again"), "");
    let entry = fs::read_dir(cache.join("residual-zoo/tokens"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let shard = entry.path().join("train-00000.bin");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    assert!(train("mended").starts_with("note: tokenized the data again"));
}

#[test]
fn bad_data_is_named() {
    let scratch = Scratch::new();
    let run = scratch.path("run");
    let data = |path: &Path| {
        let mut command = smoke(&run);
        command
            .arg("--data")
            .arg(path)
            .env("XDG_CACHE_HOME", scratch.path("cache"));
        command
    };
    fails(&mut data(&scratch.path("none.txt")), 2, &["none.txt"]);
    fails(
        &mut data(&scratch.file("empty.txt", "")),
        2,
        &["empty.txt", "empty"],
    );
    fails(
        &mut data(&scratch.file("short.txt", "too short")),
        2,
        &["training text", "33"],
    );
    fails(
        &mut data(&scratch.file("binary.txt", b"abc\xff\xfe")),
        2,
        &["binary.txt", "3"],
    );
    fails(
        &mut data(&scratch.file("lines.jsonl", "{\"text\": \"a\"}\n{\n")),
        2,
        &["2"],
    );
    let mut bpe = data(&scratch.file("ok.txt", "some text"));
    fails(
        bpe.args(["--tokenizer", "bpe:many"]),
        2,
        &["many", "bpe:1024"],
    );
    let mut unknown = data(&scratch.file("ok.txt", "some text"));
    fails(
        unknown.args(["--tokenizer", "gpt2"]),
        2,
        &["`gpt2` does not exist; the tokenizers are bytes, chars, bpe:SIZE"],
    );
    assert!(!run.exists(), "nothing is written before the data are good");
}

#[test]
fn bad_configs_are_named_with_line_and_field() {
    let scratch = Scratch::new();
    let config = |text: &str| {
        let mut command = zoo("train");
        command
            .arg(scratch.file("c.ron", text))
            .arg("--run")
            .arg(scratch.path("run"));
        command
    };
    fails(
        &mut config("(\n  model: Gpt2(n_layers: 2),\n)"),
        2,
        &["c.ron:2:", "n_layers"],
    );
    fails(
        &mut config("(model: Gpt2(n_layer: \"two\"))"),
        2,
        &["c.ron:1:"],
    );
    fails(&mut config("(model: Gpt3())"), 2, &["c.ron:1:", "Gpt3"]);
    fails(
        &mut config("(model: Gpt2(width: 64, n_head: 7))"),
        2,
        &["model.n_head", "width", "4"],
    );
    fails(
        &mut config("(model: Gpt2(n_layer: 0))"),
        2,
        &["model.n_layer", "at least 1"],
    );
    fails(
        &mut config("(model: Gpt2(), train: (steps: 0))"),
        2,
        &["train.steps"],
    );
    fails(
        &mut config("(model: Gpt2(context: 8), train: (time: 9))"),
        2,
        &["train.time", "8"],
    );
    fails(zoo("train").arg(scratch.path("none.ron")), 2, &["none.ron"]);

    let set = |assignment: &str| {
        let mut command = smoke(&scratch.path("run"));
        command.args(["--set", assignment]);
        command
    };
    fails(
        &mut set("train.stepz=1"),
        2,
        &["train.stepz=1", "stepz", "steps"],
    );
    fails(&mut set("train.steps=many"), 2, &["train.steps=many"]);
    fails(&mut set("train.steps"), 2, &["PATH=VALUE"]);
    assert!(!scratch.path("run").exists());
}

#[test]
fn a_backend_that_is_not_there_is_named() {
    let scratch = Scratch::new();
    let kinds = residual_zoo::backend::BackendKind::ALL.map(|kind| kind.to_string());
    let compiled = residual_zoo::backend::BackendKind::compiled();
    let missing = kinds
        .iter()
        .find(|kind| compiled.iter().all(|c| c.to_string() != **kind));
    let missing = missing.expect("a backend that this test was built without");
    let mut command = smoke(&scratch.path("run"));
    fails(
        command.args(["--backend", missing]),
        2,
        &[missing, "--features"],
    );
    let output = run(smoke(&scratch.path("run")).args(["--backend", "abacus"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("flex"));
}

#[test]
fn a_prompt_the_model_cannot_take_is_named() {
    let scratch = Scratch::new();
    ok(&mut smoke(&scratch.path("run")));
    let generate = |options: &[&str]| {
        let mut command = zoo("generate");
        command.arg(scratch.path("run")).args(options);
        command
    };
    fails(&mut generate(&["--prompt", "the zebra"]), 2, &["zebra"]);
    fails(&mut generate(&["--prompt", ""]), 2, &["prompt"]);
    fails(
        &mut generate(&["--temperature", "nan"]),
        2,
        &["temperature"],
    );
    fails(
        &mut generate(&["--temperature", "-1"]),
        2,
        &["`--temperature` is -1; it must be at least 0"],
    );
    fails(&mut generate(&["--top-p", "0"]), 2, &["top-p"]);
    fails(
        zoo("generate").arg(scratch.path("none")),
        2,
        &["none", "does not exist"],
    );
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    // Not even root can write to this place.
    fails(
        &mut smoke("/proc/residual-zoo".as_ref()),
        2,
        &["/proc/residual-zoo", "with `--run DIR`\n"],
    );
    let scratch = Scratch::new();
    let file = scratch.file("file", "x");
    fails(&mut smoke(&file), 2, &["already exists"]);
}

/// Writes to a file system of 64 KiB in a separate mount namespace. If mounts are not allowed, a file-size limit makes
/// writes fail in the same way.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named() {
    let scratch = Scratch::new();
    let mount = scratch.path("mount");
    fs::create_dir(&mount).unwrap();
    let run = smoke(&mount.join("run"));
    let program = run.get_program().to_str().unwrap();
    let arguments: Vec<&str> = run.get_args().map(|a| a.to_str().unwrap()).collect();
    let quoted: Vec<String> = arguments.iter().map(|a| format!("'{a}'")).collect();
    let line = format!("'{program}' {}", quoted.join(" "));

    let own_disk = format!(
        "mount -t tmpfs -o size=64k tmpfs '{}' && exec {line}",
        mount.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", &own_disk]);
    let allowed = Command::new("unshare")
        .args(["--mount", "--map-root-user", "sh", "-c"])
        .arg(format!(
            "mount -t tmpfs -o size=64k tmpfs '{}'",
            mount.display()
        ))
        .output()
        .is_ok_and(|output| output.status.success());
    if !allowed {
        command = Command::new("sh");
        command.args(["-c", &format!("trap '' XFSZ; ulimit -f 16; exec {line}")]);
    }
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    fails(
        &mut command,
        1,
        &["could not write", "free some space", "--run"],
    );
}
