//! Reading a file takes less memory than 4 times its size and 64 MiB, whatever is in it.
//!
//! One test in a program of its own, as all memory of the process is counted.

#![allow(clippy::unwrap_used)]

use std::fmt::Display;
use std::fs;
use std::path::Path;

use burn::backend::Flex;
use peak_alloc::PeakAlloc;
use residual_zoo::core::ModelConfig as _;
use residual_zoo::data::{
    Cifar10, Shard, Tokenizer, TokenizerConfig, read_documents, read_file, write_shard,
};
use residual_zoo::train::{checkpoint, run_dir};
use residual_zoo::{ModelConfig, RunConfig};
use residual_zoo_fuzz::TARGETS;
use residual_zoo_testing::hostile::{made_to_harm, many_tensors, nested, safetensors};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const MIB: usize = 1 << 20;

/// Reads `path` as a file of this kind, and drops what comes out.
type Read = fn(&Path) -> Result<(), String>;

fn done<T>(result: Result<T, impl Display>) -> Result<(), String> {
    result.map(drop).map_err(|error| error.to_string())
}

/// What reads each kind of file, and the name that the file must have.
fn reader(kind: &str) -> (&'static str, Read) {
    match kind {
        "shard" => ("a.bin", |path| done(Shard::open(path))),
        "cifar" => ("test_batch.bin", |path| {
            done(Cifar10::open(path.parent().unwrap()))
        }),
        "documents" => ("d.jsonl", |path| done(read_documents(path, "text"))),
        "tokenizer" => ("tokenizer.json", |path| {
            // That of a run, and one of Hugging Face.
            let run = done(run_dir::read_tokenizer(path.parent().unwrap()));
            let config = TokenizerConfig::File(path.into());
            run.or(done(Tokenizer::train(&config, &[])))
        }),
        "config" => ("c.ron", |path| done(RunConfig::read(path))),
        "metrics" => ("metrics.jsonl", |path| {
            done(run_dir::read_metrics(path.parent().unwrap()))
        }),
        "checkpoint" => ("model.safetensors", |path| {
            let text = "(model: Gpt2(n_layer: 1, n_head: 1, width: 4, context: 8))";
            let config: RunConfig = RunConfig::parse(text, Path::new("c.ron")).unwrap();
            let model = config.model.init::<Flex>(11, &Default::default()).unwrap();
            done(checkpoint::load_model::<
                Flex,
                <ModelConfig as residual_zoo::core::ModelConfig>::Model<Flex>,
            >(model, path.parent().unwrap()))
        }),
        "manifest" => ("checkpoints/step-00000003/manifest.json", |path| {
            done(checkpoint::newest(path.ancestors().nth(3).unwrap()))
        }),
        other => unreachable!("{other}"),
    }
}

/// The failure if reading `file` takes more memory, beyond what was in use, than it may.
fn check(kind: &str, what: &str, file: &[u8]) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let (name, read) = reader(kind);
    let path = dir.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, file).unwrap();
    if kind == "cifar" {
        fs::write(dir.path().join("data_batch_1.bin"), file).unwrap();
    }
    // As when it is read the first time in a process.
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let verdict = read(&path);
    let peak = MEMORY.peak_usage().saturating_sub(before);
    let size = match kind {
        "cifar" => 2 * file.len(),
        _ => file.len(),
    };
    let mib = |bytes: usize| bytes as f64 / MIB as f64;
    let line = format!(
        "{kind:10} {what:28} {:7.2} MiB, peak {:7.2} MiB, {}",
        mib(size),
        mib(peak),
        verdict.as_ref().map_or("refused", |()| "taken")
    );
    if size > MIB || peak > 8 * MIB {
        println!("{line}");
    }
    (peak >= 4 * size + 64 * MIB).then_some(line)
}

/// Large files of each kind: good ones, and such as take the most memory for their size.
fn large() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    const LARGE: usize = 20 * MIB;
    let fill =
        |before: &str, unit: &str, after: &str| nested(before, unit, LARGE / unit.len(), after);
    let numbered = |before: &str, unit: &dyn Fn(usize) -> String, count: usize, after: &str| {
        let units: String = (0..count).map(unit).collect();
        format!("{before}{}{after}", units.trim_end_matches(',')).into_bytes()
    };
    let tensors =
        |i: usize| format!("\"t{i}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}},");
    let shard = |vocab_size: usize| {
        let dir = tempfile::tempdir().unwrap();
        let tokens: Vec<u32> = (0..4_000_000).map(|i| i % 1000).collect();
        write_shard(&dir.path().join("a"), &tokens, vocab_size, "").unwrap();
        fs::read(dir.path().join("a")).unwrap()
    };
    let zeros = fill("[", "0,", "0]");
    let zeros = std::str::from_utf8(&zeros).unwrap();
    let model = |model: &str| {
        let begin = "{\"version\":\"1.0\",\"added_tokens\":[],\"model\":{\"type\":\"";
        format!("{begin}{model}")
    };
    let merge = |i: usize| format!("[\"t{i}\",\"u\"],");
    let added = |i: usize| {
        format!(
            "{{\"id\":{i},\"content\":\"added {i}\",\"single_word\":false,\"lstrip\":false,\
             \"rstrip\":false,\"normalized\":false,\"special\":false}},"
        )
    };
    let bytes: String = (' '..='~').filter(|c| !"\"\\".contains(*c)).collect();
    let long = bytes.repeat(10);
    let words = "],\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"a\",\"vocab\":{\"a\":0}}}";
    vec![
        ("shard", "two bytes", shard(1000)),
        ("shard", "four bytes", shard(70_000)),
        ("shard", "zeros", vec![0; LARGE]),
        ("cifar", "black aeroplanes", vec![0; 7000 * 3073]),
        ("cifar", "no class", vec![255; 7000 * 3073]),
        (
            "documents",
            "one long text",
            fill("{\"text\":\"", "word ", "\"}"),
        ),
        (
            "documents",
            "empty texts",
            fill("{\"text\":\"a\"}\n", "{\"text\":\"\"}\n", ""),
        ),
        (
            "documents",
            "short texts",
            fill("", "{\"text\":\"ab\"}\n", ""),
        ),
        ("documents", "short lines", fill("", "{}\n", "")),
        ("documents", "line breaks", fill("", "\n", "")),
        (
            "documents",
            "zeros in another field",
            format!("{{\"x\":{zeros},\"text\":\"a\"}}").into(),
        ),
        (
            "documents",
            "zeros for a text",
            format!("{{\"text\":{zeros}}}").into(),
        ),
        ("documents", "deep", fill("{\"text\":", "[", "")),
        ("documents", "a long name", fill("{\"", "x", "\":1}")),
        (
            "documents",
            "escapes",
            fill("{\"text\":\"", "\\u0000", "\"}"),
        ),
        (
            "metrics",
            "short rows",
            numbered(
                "",
                &|i| format!("{{\"step\":{i},\"tokens\":0,\"flops\":0,\"seconds\":0}}\n"),
                LARGE / 49,
                "",
            ),
        ),
        ("metrics", "short lines", fill("", "{}\n", "")),
        ("metrics", "line breaks", fill("", "\n", "")),
        ("metrics", "one line", fill("{\"step\":", "0", "")),
        ("metrics", "a long name", fill("{\"", "x", "\":1}\n\n")),
        (
            "config",
            "models",
            fill("(model: Alternate([", "Rmt(),", "]))"),
        ),
        ("config", "zeros", fill("(model: Alternate([", "0,", "]))")),
        ("config", "a long name", fill("(model: ", "x", "())")),
        ("config", "white space", fill("(model: Rmt()", " ", ")")),
        (
            "tokenizer",
            "characters",
            fill("{\"kind\":\"chars\",\"chars\":\"", "a", "\"}"),
        ),
        (
            "tokenizer",
            "words",
            numbered(
                "{\"kind\":\"words\",\"words\":[",
                &|i| format!("\"{i:x}\","),
                1 << 18,
                "]}",
            ),
        ),
        (
            "tokenizer",
            "too many words",
            numbered(
                "{\"kind\":\"words\",\"words\":[",
                &|i| format!("\"{i:x}\","),
                3_000_000,
                "]}",
            ),
        ),
        (
            "tokenizer",
            "empty words",
            fill("{\"kind\":\"words\",\"words\":[", "\"\",", "\"\"]}"),
        ),
        (
            "tokenizer",
            "zeros in another field",
            format!("{{\"x\":{zeros}}}").into(),
        ),
        (
            "tokenizer",
            "zeros before the kind",
            format!("{{\"x\":{zeros},\"kind\":\"bytes\"}}").into(),
        ),
        (
            "tokenizer",
            "zeros as normalizer",
            format!("{{\"normalizer\":{zeros},\"model\":{{}}}}").into(),
        ),
        (
            "tokenizer",
            "zeros as model",
            format!("{{\"model\":{zeros}}}").into(),
        ),
        (
            "tokenizer",
            "zeros as vocabulary",
            model(&format!("BPE\",\"vocab\":{zeros},\"merges\":[]}}}}")).into(),
        ),
        (
            "tokenizer",
            "zeros as merges",
            model(&format!(
                "BPE\",\"vocab\":{{\"a\":0}},\"merges\":{zeros}}}}}"
            ))
            .into(),
        ),
        (
            "tokenizer",
            "zeros as an added token",
            format!("{{\"added_tokens\":{zeros},\"model\":{{}}}}").into(),
        ),
        (
            "tokenizer",
            "a long added token",
            format!(
                "{{\"added_tokens\":[{{\"id\":1,\"content\":\"{}\",\"single_word\":false,\
             \"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":false}}{words}",
                "x".repeat(LARGE)
            )
            .into(),
        ),
        (
            "tokenizer",
            "added tokens",
            numbered("{\"added_tokens\":[", &added, 4_000, words),
        ),
        (
            "tokenizer",
            "long added tokens",
            numbered(
                "{\"added_tokens\":[",
                &|i| added(i).replace("added", &long),
                100,
                words,
            ),
        ),
        (
            "tokenizer",
            "a long token",
            fill(
                &model("WordLevel\",\"unk_token\":\"a\",\"vocab\":{\"a\":0,\""),
                "x",
                "\":1}}}",
            ),
        ),
        (
            "tokenizer",
            "many words",
            numbered(
                &model("WordLevel\",\"unk_token\":\"0\",\"vocab\":{"),
                &|i| format!("\"{i:x}\":{i},"),
                1_000_000,
                "}}}",
            ),
        ),
        (
            "tokenizer",
            "many pieces",
            numbered(
                &model("Unigram\",\"unk_id\":0,\"vocab\":["),
                &|i| format!("[\"{i:x}\",0],"),
                1_000_000,
                "]}}",
            ),
        ),
        (
            "tokenizer",
            "as many words as allowed",
            numbered(
                &model("WordLevel\",\"unk_token\":\"0\",\"vocab\":{"),
                &|i| format!("\"{i:x}\":{i},"),
                440_000,
                "}}}",
            ),
        ),
        (
            "tokenizer",
            "as many pieces as allowed",
            numbered(
                &model("Unigram\",\"unk_id\":0,\"vocab\":["),
                &|i| format!("[\"{i:x}\",0],"),
                200_000,
                "]}}",
            ),
        ),
        // The size of Llama 3's: 128,000 tokens, 280,000 merges, 17 MB with its white space.
        ("tokenizer", "tokens and merges", {
            let vocab: String = (0..64_000)
                .map(|i| format!("      \"t{i:08x}\": {i},\n"))
                .collect();
            let pairs = |i: usize| {
                format!(
                    "      [\n        \"t{:08x}\",\n        \"u\"\n      ],",
                    i % 64_000
                )
            };
            let grown: String = (0..64_000)
                .map(|i| format!("      \"t{i:08x}u\": {},\n", 64_000 + i))
                .collect();
            numbered(
                &model(&format!(
                    "BPE\",\"vocab\":{{{vocab}{grown}\"u\": 128000}},\"merges\":["
                )),
                &pairs,
                280_000,
                "]}}",
            )
        }),
        (
            "tokenizer",
            "merges of what is not there",
            numbered(
                &model("BPE\",\"vocab\":{\"a\":0},\"merges\":["),
                &merge,
                200_000,
                "]}}",
            ),
        ),
        ("checkpoint", "zeros", vec![0; LARGE]),
        (
            "checkpoint",
            "one tensor",
            safetensors(
                &format!(
                    "{{\"a\":{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[0,{LARGE}]}}}}",
                    LARGE / 4
                ),
                LARGE,
            ),
        ),
        (
            "checkpoint",
            "many tensors",
            safetensors(
                std::str::from_utf8(&numbered("{", &tensors, LARGE / 60, "}")).unwrap(),
                0,
            ),
        ),
        (
            "checkpoint",
            "a very deep model",
            many_tensors(40_000, 3_000),
        ),
        (
            "checkpoint",
            "a long shape",
            safetensors(
                &format!(
                    "{{\"a\":{{\"dtype\":\"F32\",\"data_offsets\":[0,0],\"shape\":{zeros}}}}}"
                ),
                0,
            ),
        ),
        (
            "checkpoint",
            "metadata",
            safetensors(
                std::str::from_utf8(&numbered(
                    "{\"__metadata__\":{",
                    &|i| format!("\"{i:x}\":\"\","),
                    LARGE / 10,
                    "}}",
                ))
                .unwrap(),
                0,
            ),
        ),
        (
            "checkpoint",
            "a long name",
            safetensors(&format!("{{\"{}\":1}}", "x".repeat(LARGE)), 0),
        ),
        ("manifest", "zeros", zeros.into()),
        ("manifest", "white space", fill("", " ", "{}")),
    ]
}

#[test]
fn memory_stays_within_four_times_the_file() {
    let mut failures = Vec::new();
    for (kind, _) in TARGETS {
        // Assignments are no file.
        if kind == "set" {
            continue;
        }
        for (i, file) in made_to_harm(kind).iter().enumerate() {
            failures.extend(check(kind, &format!("made to harm {i}"), file));
        }
    }
    for (kind, what, file) in large() {
        failures.extend(check(kind, what, &file));
    }
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    let real = real.join("gpt-neox-20b-tokenizer.json");
    match read_file(&real) {
        Ok(file) => failures.extend(check("tokenizer", "GPT-NeoX", &file)),
        Err(error) => println!("not checked: {error}"),
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
