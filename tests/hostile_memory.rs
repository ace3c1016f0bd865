//! Reading any file takes less memory than 4 times its size plus 64 MiB, and a text of any size can be tokenized. Models
//! are imported and loaded in hardly more memory than their weights take.
//!
//! The tests are in a separate binary and run one at a time, because they count all memory of the process.

#![allow(clippy::unwrap_used)]

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{BufWriter, Seek as _, Write as _};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use burn::backend::Flex;
use peak_alloc::PeakAlloc;
use residual_zoo::core::ModelConfig as _;
use residual_zoo::data::{
    Cifar, Corpus, DataConfig, Shard, Source, Tokenizer, TokenizerConfig, read_documents,
    read_file, write_shard,
};
use residual_zoo::evaluate::{Task, check as check_tasks};
use residual_zoo::exchange::{ImportOptions, import};
use residual_zoo::runs::{Run, checkpoint, run_dir};
use residual_zoo::{ModelConfig, RunConfig};
use residual_zoo_fuzz::TARGETS;
use residual_zoo_testing::hostile::{made_to_harm, many_tensors, safetensors};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const MIB: usize = 1 << 20;

/// A function that reads `path` as a file of one kind, and drops the result.
type Read = fn(&Path) -> Result<(), String>;

fn done<T>(result: Result<T, impl Display>) -> Result<(), String> {
    result.map(drop).map_err(|error| error.to_string())
}

/// Returns the name that a file of this kind must have, and the reader of this kind.
fn reader(kind: &str) -> (&'static str, Read) {
    match kind {
        "shard" => ("a.bin", |path| done(Shard::open(path))),
        "cifar" => ("test_batch.bin", |path| {
            done(Cifar::open(path.parent().unwrap()))
        }),
        "documents" => ("d.jsonl", |path| done(read_documents(path, "text"))),
        "tokenizer" => ("tokenizer.json", |path| {
            // Reads the file as the tokenizer of a run, and as a tokenizer of Hugging Face.
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
            let model = config.model.build::<Flex>(11, &Default::default()).unwrap();
            done(checkpoint::load_model::<
                Flex,
                <ModelConfig as residual_zoo::core::ModelConfig>::Model<Flex>,
            >(model, path.parent().unwrap()))
        }),
        "manifest" => ("checkpoints/step-00000003/manifest.json", |path| {
            done(checkpoint::newest(path.ancestors().nth(3).unwrap()))
        }),
        "evaluation" => ("e.jsonl", |path| {
            // Also makes all requests for a model, with bytes as tokens.
            let task = Task::read(&path.display().to_string(), None);
            let task = task.map_err(|error| error.to_string())?;
            let bytes = Tokenizer::train(&TokenizerConfig::Bytes, &[]).unwrap();
            done(check_tasks(&[task], &bytes, 64, || true))
        }),
        "weights" => ("weights.pt", |path| {
            let options = ImportOptions {
                tokenizer: Some("bytes".into()),
                n_head: Some(1),
                ..ImportOptions::default()
            };
            done(import(path, &options))
        }),
        other => unreachable!("{other}"),
    }
}

/// Reads `file`. Returns a failure if this takes more additional memory than allowed.
fn check(kind: &str, what: &str, file: &[u8]) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let (name, read) = reader(kind);
    let path = dir.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, file).unwrap();
    if kind == "cifar" {
        fs::write(dir.path().join("data_batch_1.bin"), file).unwrap();
    }
    // Resets the peak, so that it does not include files that were read earlier.
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

/// The size of the repeated part of a large file.
const LARGE: usize = 20 * MIB;

/// Texts for each kind of file: good texts, and texts that need the most memory for their size. [`expand`] repeats the
/// part between « and ».
#[rustfmt::skip]
const TEXTS: [(&str, &[(&str, &str)]); 6] = [
    ("documents", &[
        ("one long text", r#"{"text":"«word »"}"#),
        ("empty texts", "{\"text\":\"a\"}\n«{\"text\":\"\"}\n»"),
        ("short texts", "«{\"text\":\"ab\"}\n»"),
        ("short lines", "«{}\n»"),
        ("line breaks", "«\n»"),
        ("zeros in another field", r#"{"x":[«0,»0],"text":"a"}"#),
        ("zeros for a text", r#"{"text":[«0,»0]}"#),
        ("deep", r#"{"text":«[»"#),
        ("a long name", r#"{"«x»":1}"#),
        ("escapes", r#"{"text":"«\u0000»"}"#),
    ]),
    ("evaluation", &[
        ("one long text", r#"{"text":"«word »"}"#),
        ("empty texts", "{\"text\":\"a\"}\n«{\"text\":\"\"}\n»"),
        ("short texts", "«{\"text\":\"ab\"}\n»"),
        ("line breaks", "{\"text\":\"ab\"}«\n»"),
        ("escapes", r#"{"text":"«\u0000»"}"#),
        ("zeros in another field", r#"{"x":[«0,»0],"text":"a"}"#),
        ("many fields", r#"{"text":"a",«1000000×"%x":0,»}"#),
        ("a long name", r#"{"«x»":1}"#),
        ("deep", r#"{"text":«[»"#),
        ("a long article", r#"{"page":"«( a ) @-@ 's »"}"#),
        ("quotes", r#"{"page":"«' »"}"#),
        ("short articles", "«{\"page\":\"a\"}\n»"),
        ("short questions", "«{\"goal\":\"\",\"sol1\":\"\",\"sol2\":\"\",\"label\":0}\n»"),
        ("a long question", r#"{"goal":"«word »","sol1":"a","sol2":"b","label":0}"#),
        ("a long label", r#"{"goal":"a","sol1":"a","sol2":"b","label":"«0»"}"#),
        ("a long choice", r#"{"goal":"a","sol1":"«word »","sol2":"b","label":0}"#),
        ("endings", "«{\"activity_label\":\"\",\"ctx_a\":\"\",\"ctx_b\":\"\",\"endings\":[\"\",\"\",\"\",\"\"],\"label\":0}\n»"),
        ("a long context", r#"{"activity_label":"a","ctx_a":"«word »","ctx_b":"b","endings":["a","b"],"label":0}"#),
        ("a long beginning", r#"{"activity_label":"a","ctx_a":"a","ctx_b":"«WORD »","endings":["a","b"],"label":0}"#),
        ("too many endings", r#"{"activity_label":"","ctx_a":"","ctx_b":"","endings":[«"",»""],"label":0}"#),
        ("zeros as endings", r#"{"activity_label":"","ctx_a":"","ctx_b":"","endings":[«0,»0],"label":0}"#),
        ("too many pairs", r#"{"question":"","choices":[«{"text":"","label":""},»],"answerKey":""}"#),
        ("a long sentence", r#"{"sentence":"«word »_","option1":"a","option2":"b","answer":"1"}"#),
        ("a long end", r#"{"sentence":"_«word »","option1":"a","option2":"b","answer":"1"}"#),
    ]),
    ("metrics", &[
        ("short rows", "«427990×{\"step\":%d,\"tokens\":0,\"flops\":0,\"seconds\":0}\n»"),
        ("short lines", "«{}\n»"),
        ("line breaks", "«\n»"),
        ("one line", r#"{"step":«0»"#),
        ("a long name", "{\"«x»\":1}\n\n"),
    ]),
    ("config", &[
        ("models", "(model: Composed(layers: [«Rmt(),»]))"),
        ("zeros", "(model: Composed(layers: [«0,»]))"),
        ("a long name", "(model: «x»())"),
        ("white space", "(model: Rmt()« »)"),
    ]),
    ("tokenizer", &[
        ("characters", r#"{"kind":"chars","chars":"«a»"}"#),
        ("words", r#"{"kind":"words","words":[«262144×"%x",»]}"#),
        ("too many words", r#"{"kind":"words","words":[«3000000×"%x",»]}"#),
        ("empty words", r#"{"kind":"words","words":[«"",»""]}"#),
        ("zeros in another field", r#"{"x":[«0,»0]}"#),
        ("zeros before the kind", r#"{"x":[«0,»0],"kind":"bytes"}"#),
        ("zeros as normalizer", r#"{"normalizer":[«0,»0],"model":{}}"#),
        ("zeros as model", r#"{"model":[«0,»0]}"#),
        ("zeros as an added token", r#"{"added_tokens":[«0,»0],"model":{}}"#),
    ]),
    ("manifest", &[
        ("zeros", "[«0,»0]"),
        ("white space", "« »{}"),
    ]),
];

/// Like [`TEXTS`], for `"model":{"type":"…}` in a tokenizer of Hugging Face.
#[rustfmt::skip]
const MODELS: [(&str, &str); 8] = [
    ("zeros as vocabulary", r#"BPE","vocab":[«0,»0],"merges":[]"#),
    ("zeros as merges", r#"BPE","vocab":{"a":0},"merges":[«0,»0]"#),
    ("merges of what is not there", r#"BPE","vocab":{"a":0},"merges":[«200000×["t%d","u"],»]"#),
    ("a long token", r#"WordLevel","unk_token":"a","vocab":{"a":0,"«x»":1}"#),
    ("many words", r#"WordLevel","unk_token":"0","vocab":{«1000000×"%x":%d,»}"#),
    ("as many words as allowed", r#"WordLevel","unk_token":"0","vocab":{«440000×"%x":%d,»}"#),
    ("many pieces", r#"Unigram","unk_id":0,"vocab":[«1000000×["%x",0],»]"#),
    ("as many pieces as allowed", r#"Unigram","unk_id":0,"vocab":[«200000×["%x",0],»]"#),
];

/// Like [`TEXTS`], for the headers of safetensors files.
#[rustfmt::skip]
const HEADERS: [(&str, &str); 4] = [
    ("many tensors", r#"{«349525×"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},»}"#),
    ("a long shape", r#"{"a":{"dtype":"F32","data_offsets":[0,0],"shape":[«0,»0]}}"#),
    ("metadata", r#"{"__metadata__":{«2097152×"%x":"",»}}"#),
    ("a long name", r#"{"«x»":1}"#),
];

/// Repeats the part of `text` between « and » until the result is as long as [`LARGE`]. If the part begins with a
/// number and ×, repeats it that many times. Then `%d` becomes the index, counted from 0, and `%x` the index in
/// hexadecimal. Removes a comma before a closing bracket.
fn expand(text: &str) -> String {
    let (before, rest) = text.split_once('«').unwrap();
    let (unit, after) = rest.split_once('»').unwrap();
    let units = match unit.split_once('×') {
        None => unit.repeat(LARGE / unit.len()),
        Some((count, unit)) => {
            let indexed = |i: usize| {
                let unit = unit.replace("%d", &i.to_string());
                unit.replace("%x", &format!("{i:x}"))
            };
            (0..count.parse().unwrap()).map(indexed).collect()
        }
    };
    let units = match after.starts_with([']', '}']) {
        true => units.trim_end_matches(','),
        false => &units,
    };
    [before, units, after].concat()
}

/// Makes a tokenizer of Hugging Face with this text as its model.
fn of_model(model: &str) -> String {
    format!(r#"{{"version":"1.0","added_tokens":[],"model":{{"type":"{model}}}}}"#)
}

/// Makes a tokenizer of Hugging Face with added tokens of these ids.
fn of_added(ids: Range<usize>, content: impl Fn(usize) -> String) -> String {
    let token = |id: usize| {
        let flags = r#""single_word":false,"lstrip":false,"rstrip":false,"normalized":false"#;
        let content = content(id);
        format!(r#"{{"id":{id},"content":"{content}",{flags},"special":false}}"#)
    };
    let tokens: Vec<String> = ids.map(token).collect();
    let model = r#"{"type":"WordLevel","unk_token":"a","vocab":{"a":0}}"#;
    format!(
        r#"{{"added_tokens":[{}],"model":{model}}}"#,
        tokens.join(",")
    )
}

/// Makes a tokenizer as large as Llama 3's: 128,000 tokens, 280,000 merges, and 17 MB with its white space.
fn like_llama() -> String {
    const HALF: usize = 64_000;
    let token = |i: usize| format!("      \"t{i:08x}\": {i},\n");
    let grown = |i: usize| format!("      \"t{i:08x}u\": {},\n", HALF + i);
    let merge = |i: usize| {
        let first = i % HALF;
        format!("      [\n        \"t{first:08x}\",\n        \"u\"\n      ],")
    };
    let tokens: String = (0..HALF).map(token).chain((0..HALF).map(grown)).collect();
    let merges: String = (0..280_000).map(merge).collect();
    let merges = merges.trim_end_matches(',');
    of_model(&format!(
        r#"BPE","vocab":{{{tokens}"u": 128000}},"merges":[{merges}]"#
    ))
}

/// Makes large files that [`expand`] cannot make.
fn large() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let shard = |vocab_size: usize| {
        let dir = tempfile::tempdir().unwrap();
        let tokens: Vec<u32> = (0..4_000_000).map(|i| i % 1000).collect();
        write_shard(&dir.path().join("a"), &tokens, vocab_size, "").unwrap();
        fs::read(dir.path().join("a")).unwrap()
    };
    let one_tensor = format!(
        r#"{{"a":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{LARGE}]}}}}"#,
        LARGE / 4
    );
    let characters: String = (' '..='~').filter(|c| !"\"\\".contains(*c)).collect();
    let long = characters.repeat(10);
    let long_token = of_added(1..2, |_| "x".repeat(LARGE));
    let tokens = of_added(0..4_000, |id| format!("added {id}"));
    let long_tokens = of_added(0..100, |id| format!("{long} {id}"));
    let repeated = |text: &str| vec![text; 256].join(",");
    let question = format!(
        r#"{{"question":"{}","choices":{{"text":[{}],"label":[{}]}},"answerKey":"A"}}"#,
        "the king and queen ".repeat(420_000),
        repeated(r#""the""#),
        repeated(r#""A""#),
    );
    let choices = format!(
        r#"{{"activity_label":"","ctx_a":"","ctx_b":"","endings":[{}],"label":0}}"#,
        repeated(r#""""#)
    );
    let choices = (choices + "\n").repeat(LARGE / 800);
    vec![
        (
            "evaluation",
            "a long question of many choices",
            question.into(),
        ),
        ("evaluation", "many short choices", choices.into()),
        ("shard", "two bytes", shard(1000)),
        ("shard", "four bytes", shard(70_000)),
        ("shard", "zeros", vec![0; LARGE]),
        ("cifar", "black aeroplanes", vec![0; 7000 * 3073]),
        ("cifar", "no class", vec![255; 7000 * 3073]),
        ("tokenizer", "a long added token", long_token.into()),
        ("tokenizer", "added tokens", tokens.into()),
        ("tokenizer", "long added tokens", long_tokens.into()),
        ("tokenizer", "tokens and merges", like_llama().into()),
        ("checkpoint", "zeros", vec![0; LARGE]),
        ("checkpoint", "one tensor", safetensors(&one_tensor, LARGE)),
        (
            "checkpoint",
            "a very deep model",
            many_tensors(40_000, 3_000),
        ),
    ]
}

/// A test that counts memory holds this lock.
static COUNTED: Mutex<()> = Mutex::new(());

#[test]
fn tokenizing_a_text_takes_no_more_memory_than_a_few_segments() {
    let _counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.txt");
    let mut file = BufWriter::new(File::create(&path).unwrap());
    let part: String = (0..30_000).map(|i| format!("{i} words, é. \n")).collect();
    while file.stream_position().unwrap() < 400 << 20 {
        file.write_all(part.as_bytes()).unwrap();
    }
    drop(file);
    let config = DataConfig {
        source: Source::Path(path),
        tokenizer: TokenizerConfig::Bytes,
        cache: Some(dir.path().join("cache")),
        ..DataConfig::default()
    };
    for what in ["made", "opened again"] {
        let before = MEMORY.current_usage();
        MEMORY.reset_peak_usage();
        let corpus = Corpus::open(&config).unwrap();
        let peak = MEMORY.peak_usage().saturating_sub(before);
        println!("400 MiB of text {what}: {} MiB", peak / MIB);
        assert!(peak < 300 * MIB, "{what}: {} MiB", peak / MIB);
        assert!(corpus.train.tokens().unwrap() > 350 << 20);
    }
}

#[test]
fn memory_stays_within_four_times_the_file() {
    let _counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut failures = Vec::new();
    for (kind, _) in TARGETS {
        // No file contains assignments.
        if kind == "set" {
            continue;
        }
        for (i, file) in made_to_harm(kind).iter().enumerate() {
            failures.extend(check(kind, &format!("made to harm {i}"), file));
        }
    }
    for (kind, texts) in TEXTS {
        for (what, text) in texts {
            failures.extend(check(kind, what, expand(text).as_bytes()));
        }
    }
    for (what, model) in MODELS {
        let file = expand(&of_model(model));
        failures.extend(check("tokenizer", what, file.as_bytes()));
    }
    for (what, header) in HEADERS {
        let file = safetensors(&expand(header), 0);
        failures.extend(check("checkpoint", what, &file));
    }
    for (what, part) in [
        ("tuples", b")".as_slice()),
        ("references", b"h\x00"),
        ("lists", b"]a"),
    ] {
        let number = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.".as_slice();
        let object = [b"]q\x00".as_slice(), &part.repeat(LARGE)].concat();
        let file = [number, b"M\xe9\x03.", b"}.", &object].concat();
        failures.extend(check("weights", what, &file));
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

/// Writes a Llama of Hugging Face with 17M parameters in bf16, in five files.
fn write_llama(directory: &Path) {
    let (width, d_ff, n_layer) = (512, 2048, 4);
    let config = format!(
        r#"{{"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":{width},"intermediate_size":{d_ff},
        "num_hidden_layers":{n_layer},"num_attention_heads":8,"num_key_value_heads":8,"vocab_size":256,
        "max_position_embeddings":64,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":true}}"#
    );
    fs::write(directory.join("config.json"), config).unwrap();
    let mut files = vec![vec![
        ("model.embed_tokens.weight".to_owned(), vec![256, width]),
        ("model.norm.weight".into(), vec![width]),
    ]];
    for layer in 0..n_layer {
        let square =
            ["q", "k", "v", "o"].map(|of| (format!("self_attn.{of}_proj"), vec![width; 2]));
        let wide = ["gate", "up"].map(|of| (format!("mlp.{of}_proj"), vec![d_ff, width]));
        let norms = ["input_layernorm", "post_attention_layernorm"];
        let norms = norms.map(|norm| (norm.to_owned(), vec![width]));
        let down = [("mlp.down_proj".to_owned(), vec![width, d_ff])];
        let all = square.into_iter().chain(wide).chain(down).chain(norms);
        let name = |(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape);
        files.push(all.map(name).collect());
    }
    let mut index = Vec::new();
    for (i, file) in files.iter().enumerate() {
        let name = format!("model-{i}.safetensors");
        let bytes = |shape: &[usize]| vec![0; 2 * shape.iter().product::<usize>()];
        let data: Vec<Vec<u8>> = file.iter().map(|(_, shape)| bytes(shape)).collect();
        let views = file.iter().zip(&data).map(|((tensor, shape), data)| {
            index.push(format!("{tensor:?}:{name:?}"));
            let view = TensorView::new(Dtype::BF16, shape.clone(), data).unwrap();
            (tensor.clone(), view)
        });
        let views: Vec<_> = views.collect();
        serialize_to_file(views, None, &directory.join(&name)).unwrap();
    }
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, index.join(","));
    fs::write(directory.join("model.safetensors.index.json"), index).unwrap();
}

#[test]
fn importing_and_loading_a_model_takes_hardly_more_memory_than_its_weights() {
    let _counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    write_llama(dir.path());
    let options = ImportOptions {
        tokenizer: Some("bytes".into()),
        ..ImportOptions::default()
    };
    let run = dir.path().join("run");
    let before = MEMORY.current_usage();
    let within = |what: &str, parameters: usize| {
        let peak = MEMORY.peak_usage().saturating_sub(before);
        let ratio = peak as f64 / (4 * parameters) as f64;
        println!("{what}: {ratio:.2} × the weights in f32");
        assert!((1.0..1.2).contains(&ratio), "{what}: {ratio}");
    };
    MEMORY.reset_peak_usage();
    let imported = import(dir.path(), &options).unwrap();
    imported.write(&run).unwrap();
    let parameters = imported.parameters();
    within("import", parameters);
    drop(imported);
    MEMORY.reset_peak_usage();
    let open = Run::<ModelConfig>::open(&run).unwrap();
    let model = open.model::<Flex>(&Default::default()).unwrap();
    within("load", parameters);
    drop(model);
}
