//! Tests training by several processes of one machine. Needs `--features mpi`, and `mpirun` of Open MPI.
//!
//! ```sh
//! cargo test --release --features mpi --test team
//! TEAM_KILLS=20 cargo test --release --features mpi --test team killed
//! TEAM_ALL=1 cargo test --release --features mpi --test team trains    # also four processes
//! ```

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use residual_zoo::backend::BackendKind;
use residual_zoo::runs::{checkpoint, run_dir};
use residual_zoo_testing::hostile::Numbers;
use residual_zoo_testing::program::{SMOKE, Scratch, end, ends, run, text, zoo};
use residual_zoo_testing::runs::{MODELS, STEPS, assert_same, differences, outcome, train};

/// A team uses the whole machine, so only one team works at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Returns the command that runs `command` as `processes` processes.
fn team(processes: usize, command: &Command) -> Command {
    let mut team = Command::new("mpirun");
    team.args(["--oversubscribe", "--mca", "btl", "self,vader", "-n"]);
    team.arg(processes.to_string());
    // Containers often have no user except root.
    team.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
    team.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    team.arg(command.get_program()).args(command.get_args());
    team.current_dir(command.get_current_dir().unwrap());
    team
}

/// Changes the config so that the processes share the moments.
fn sharded(config: &Path) {
    let ron = fs::read_to_string(config).unwrap();
    fs::write(
        config,
        ron.replace("warmup: 4,", "warmup: 4, shard_optimizer: true,"),
    )
    .unwrap();
}

/// Writes the config of a run of `model`, with four micro-batches in each step.
fn config(scratch: &Scratch, model: &str, steps: usize) -> PathBuf {
    // Runs of `STEPS` steps are killed and stopped, so they validate and save more often.
    let (validate, save) = if steps == STEPS { (4, 3) } else { (100, 100) };
    let text = format!(
        "(model: {model}, data: (source: Synthetic(tokens: 3000)), \
         train: (steps: {steps}, batch: 2, accumulate: 4, warmup: 4, log_every: 1, validate_every: {validate}, \
         validate_batches: 2, checkpoint_every: {save}, keep_checkpoints: 2))"
    );
    scratch.file(&format!("run-{steps}.ron"), text)
}

fn trained(processes: usize, config: &Path, directory: &Path, backend: BackendKind) {
    let mut command = train(config, directory);
    command.args(["--backend", backend.feature()]);
    let output = run(&mut team(processes, &command));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn losses(run: &Path) -> Vec<f64> {
    let rows = run_dir::read_metrics(run).unwrap();
    rows.iter().filter_map(|row| row.train_loss).collect()
}

#[test]
fn any_number_of_processes_trains_the_same_run() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // More processes than cores are slow. So is LibTorch with small models.
    let is_all = std::env::var_os("TEAM_ALL").is_some();
    let sizes = if is_all { vec![2, 4] } else { vec![2] };
    let kinds = BackendKind::compiled().into_iter();
    for backend in kinds.filter(|kind| matches!(kind, BackendKind::Flex | BackendKind::LibTorch)) {
        for (i, (name, model)) in MODELS.into_iter().enumerate() {
            if backend == BackendKind::LibTorch && i % 5 > 0 && !is_all {
                continue;
            }
            let scratch = Scratch::new();
            let config = config(&scratch, model, 200);
            let directory = |processes| scratch.path(&format!("{processes}"));
            let (alone, again) = (directory(1), scratch.path("again"));
            trained(1, &config, &alone, backend);
            let expected = losses(&alone);
            assert_eq!(expected.len(), 200);
            for &processes in &sizes {
                let other = directory(processes);
                trained(processes, &config, &other, backend);
                let pairs = expected.iter().zip(losses(&other));
                let apart = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                println!(
                    "{name} on {backend}, {processes} processes: losses differ by up to {apart:.1e}"
                );
                assert!(
                    apart < 1e-5,
                    "{name} on {backend}, {processes} processes: {apart:.1e}"
                );
            }
            // The same number of processes gives the same results, bit for bit.
            let most = directory(sizes[sizes.len() - 1]);
            trained(sizes[sizes.len() - 1], &config, &again, backend);
            assert_eq!(losses(&most), losses(&again), "{name} on {backend}");
            let weights = |run: &Path| {
                let newest = checkpoint::newest(run).unwrap().path;
                let read = |file| fs::read(newest.join(file)).unwrap();
                [read("model.safetensors"), read("optimizer.safetensors")]
            };
            assert!(weights(&most) == weights(&again), "{name} on {backend}");
        }
    }
}

#[test]
fn shared_moments_change_no_bit() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for (i, (name, model)) in MODELS.into_iter().enumerate() {
        let scratch = Scratch::new();
        let config = config(&scratch, model, STEPS);
        // Some models use the other optimizers. All have an average, which only the leader keeps.
        let optimizer = match i {
            0 => "Muon(form: Nanochat(beta_2: 0.9))",
            1 => "Muon()",
            _ => "AdamW",
        };
        let with = format!("warmup: 4, optimizer: {optimizer}, ema: (decay: 0.9),");
        let ron = fs::read_to_string(&config).unwrap();
        fs::write(&config, ron.replace("warmup: 4,", &with)).unwrap();
        let [whole, shared] = ["whole", "shared"].map(|name| scratch.path(name));
        trained(2, &config, &whole, BackendKind::Flex);
        sharded(&config);
        trained(2, &config, &shared, BackendKind::Flex);
        assert_same(&shared, &outcome(&whole), name);
        let newest = checkpoint::newest(&shared).unwrap().path;
        assert_eq!(checkpoint::optimizer_files(&newest).unwrap().len(), 2);
        // A file that the manifest does not name is ignored.
        fs::write(newest.join(checkpoint::OPTIMIZER), "junk").unwrap();
        // The run continues with a different number of processes, which split the moments in another way.
        let mut command = zoo("train");
        command.arg("--resume").arg(&shared);
        command.args(["--set", &format!("train.steps={}", STEPS + 4)]);
        let output = run(&mut team(4, &command));
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(losses(&shared).len(), STEPS + 4);
        let newest = checkpoint::newest(&shared).unwrap().path;
        assert_eq!(checkpoint::optimizer_files(&newest).unwrap().len(), 4);
        // One process reads the four files of moments, and writes one.
        let mut alone = zoo("train");
        alone.arg("--resume").arg(&shared);
        alone.args(["--set", &format!("train.steps={}", STEPS + 8)]);
        assert!(run(&mut alone).status.success());
        let newest = checkpoint::newest(&shared).unwrap().path;
        assert_eq!(checkpoint::optimizer_files(&newest).unwrap().len(), 1);
    }
}

#[test]
fn a_full_disk_of_one_process_stops_all_and_loses_nothing() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new();
    let config = config(&scratch, MODELS[0].1, STEPS);
    sharded(&config);
    let [straight, struck] = ["straight", "struck"].map(|name| scratch.path(name));
    trained(2, &config, &straight, BackendKind::Flex);
    let command = train(&config, &struck);
    // Rank 1 writes only its moments, so its fifth change on disk is in a later checkpoint.
    for kind in ["fail", "kill"] {
        let mut both = team(1, &command);
        both.args([":", "-n", "1", "-x", &format!("ZOO_FAULT=5:{kind}")]);
        both.arg(command.get_program()).args(command.get_args());
        let output = run(&mut both);
        let error = text(&output.stderr);
        assert!(!output.status.success(), "{kind}: {error}");
        if kind == "fail" {
            assert_eq!(error.matches("error: ").count(), 1, "{error}");
            assert!(
                error.contains("the process of rank 1: could not"),
                "{error}"
            );
            assert!(error.contains("optimizer-00002-of-00002"), "{error}");
            assert!(error.contains("free some space"), "{error}");
        }
        let newest = checkpoint::newest(&struck).unwrap();
        assert!(newest.passed_over.is_empty());
    }
    trained(2, &config, &struck, BackendKind::Flex);
    assert_same(&struck, &outcome(&straight), "after a full disk");
}

/// Returns the id of the process of this rank, among the children of `mpirun`.
fn process(mpirun: &Child, rank: usize) -> Option<String> {
    let children = format!("/proc/{0}/task/{0}/children", mpirun.id());
    let children = fs::read_to_string(children).ok()?;
    let wanted = format!("OMPI_COMM_WORLD_RANK={rank}");
    let has_rank = |child: &&str| {
        let environment = fs::read(format!("/proc/{child}/environ")).unwrap_or_default();
        let mut variables = environment.split(|&byte| byte == 0);
        variables.any(|variable| variable == wanted.as_bytes())
    };
    children.split_whitespace().find(has_rank).map(Into::into)
}

#[test]
fn killed_teams_lose_nothing_and_go_on_in_any_number() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let kills = std::env::var("TEAM_KILLS").map_or(4, |kills| kills.parse().unwrap());
    let scratch = Scratch::new();
    let (_, model) = MODELS[0];
    let config = config(&scratch, model, STEPS);
    // With shared moments, each process writes a part of a checkpoint.
    sharded(&config);
    let straight = scratch.path("straight");
    let clock = Instant::now();
    trained(2, &config, &straight, BackendKind::Flex);
    let duration = clock.elapsed();
    let expected = outcome(&straight);
    let mut numbers = Numbers(7);
    for i in 0..kills {
        let directory = scratch.path(&format!("killed-{i}"));
        let mut command = team(2, &train(&config, &directory));
        let mut mpirun = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        sleep(duration.mul_f64(numbers.below(1000) as f64 / 1000.0));
        let rank = numbers.below(2);
        let victim = process(&mpirun, rank);
        if let Some(victim) = &victim {
            Command::new("kill").args(["-9", victim]).status().unwrap();
        }
        let clock = Instant::now();
        while mpirun.try_wait().unwrap().is_none() {
            assert!(
                clock.elapsed() < Duration::from_secs(60),
                "the team of a dead process goes on"
            );
            sleep(Duration::from_millis(10));
        }
        let output = end(mpirun);
        let error = text(&output.stderr);
        if victim.is_some() && !output.status.success() {
            assert!(error.contains(&format!("rank {rank}")), "{error}");
        }
        // With as many processes as before, the results are the same, bit for bit. With a different number, they are
        // the same up to rounding.
        let processes = [2, 4, 1][i % 3];
        trained(processes, &config, &directory, BackendKind::Flex);
        match processes {
            2 => assert_same(&directory, &expected, &format!("kill {i}")),
            _ => {
                let (metrics, weights) = differences(&directory, &expected);
                println!("kill {i}, then {processes} processes: {metrics:.1e} {weights:.1e}");
                assert!(
                    metrics < 1e-5 && weights < 1e-4,
                    "kill {i}: {metrics} {weights}"
                );
            }
        }
    }
}

#[test]
fn a_team_that_is_asked_to_stop_saves_and_goes_on() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new();
    let directory = scratch.path("run");
    let config = config(&scratch, MODELS[0].1, 1_000_000);
    let mut command = team(2, &train(&config, &directory));
    let mut mpirun = command.stdout(Stdio::null()).spawn().unwrap();
    let clock = Instant::now();
    while run_dir::read_metrics(&directory).map_or(0, |rows| rows.len()) < 10 {
        assert!(clock.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_millis(10));
    }
    Command::new("kill")
        .arg(mpirun.id().to_string())
        .status()
        .unwrap();
    ends(&mut mpirun);
    let rows = run_dir::read_metrics(&directory).unwrap();
    let newest = checkpoint::newest(&directory).unwrap().path;
    let step = checkpoint::step_of(&newest).unwrap();
    assert!(step >= rows.last().unwrap().step);
}

#[test]
fn what_a_team_cannot_do_is_said_once() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new();
    let says = |command: &Command, problem: &str| {
        let output = run(&mut team(2, command));
        let error = text(&output.stderr);
        assert!(!output.status.success());
        assert_eq!(error.matches("error: ").count(), 1, "{error}");
        assert!(error.contains(problem), "{error}");
    };
    let mut alone = zoo("train");
    alone.arg(SMOKE).arg("--run").arg(scratch.path("run"));
    says(&alone, "`train.accumulate` is 1, but 2 processes share");
    let mut norms = zoo("train");
    norms.args(["resnet/smoke", "--set", "train.accumulate=2", "--run"]);
    norms.arg(scratch.path("norms"));
    says(&norms, "`model` has batch norms");
    let mut missing = zoo("train");
    missing.arg("nowhere.ron");
    says(&missing, "nowhere.ron");
    // The leader notices the error while the other processes wait for its weights.
    let run_of_team = scratch.path("of-team");
    trained(
        2,
        &config(&scratch, MODELS[0].1, STEPS),
        &run_of_team,
        BackendKind::Flex,
    );
    let mut changed = zoo("train");
    changed
        .arg("--resume")
        .arg(&run_of_team)
        .args(["--set", "train.batch=3"]);
    says(&changed, "train.batch was 2, now 3");
    // The path of the run is sent to all processes.
    let odd = scratch.path("odd");
    let odd = odd.with_file_name(std::ffi::OsStr::from_bytes(b"odd\xff"));
    let mut odd = train(&config(&scratch, MODELS[0].1, STEPS), &odd);
    odd.args(["--set", "train.shard_optimizer=true"]);
    let output = run(&mut team(2, &odd));
    let error = text(&output.stderr);
    assert!(error.contains("is not UTF-8"), "{error}");
    assert!(!error.contains("panicked"), "{error}");
    // Settings that determine how activations and moments are stored may change.
    let mut kept = zoo("train");
    kept.arg("--resume")
        .arg(&run_of_team)
        .args(["--set", "train.recompute=Layers"]);
    kept.args(["--set", "train.shard_optimizer=true", "--set"]);
    kept.arg(format!("train.steps={}", STEPS + 2));
    let output = run(&mut team(2, &kept));
    assert!(output.status.success(), "{}", text(&output.stderr));
    // Each process may print the error before `mpirun` ends the others.
    let output = run(&mut team(2, &zoo("list")));
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("only `train` can work with several"));
}
