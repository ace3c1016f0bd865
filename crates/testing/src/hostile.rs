//! Damaged and malicious files for tests of hostile input.

use std::fs;
use std::path::PathBuf;

use residual_zoo_fuzz::{TARGETS, Target};

use crate::root;

/// Returns the number of corrupted inputs per kind of file: 2,000, or the number in `HOSTILE_INPUTS`, but at least 2,
/// because half of the inputs are corrupted in one way, and half in another.
pub fn inputs() -> usize {
    let asked = std::env::var("HOSTILE_INPUTS");
    asked.map_or(2_000, |asked| asked.parse().unwrap()).max(2)
}

/// SplitMix64: draws the same numbers in every run of a test.
pub struct Numbers(pub u64);

impl Numbers {
    /// Draws a number below `end`, or returns 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end.max(1) as u64) as usize
    }

    /// Draws one of `all`.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Numbers and words that break readers.
pub const EXTREMES: [&str; 16] = [
    "0",
    "-1",
    "1",
    "18446744073709551615",
    "9223372036854775807",
    "4294967296",
    "1e308",
    "-1e308",
    "1e-320",
    "1000000000",
    "200000",
    "null",
    "None",
    "NaN",
    "inf",
    "\"\"",
];

/// Returns the fuzz target called `name`, and valid files for it, by file name.
pub fn target(name: &str) -> (Target, Vec<(String, Vec<u8>)>) {
    let target = TARGETS.iter().find(|(known, _)| *known == name).unwrap().1;
    let folder = root().join("fuzz/corpus");
    let entries = fs::read_dir(folder.join(name)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: &PathBuf| {
        let file = path.file_name().unwrap().to_str().unwrap();
        let content = match name {
            // Weights differ between processors in their last bits, so their hashes differ too. The manifest
            // therefore comes from a checkpoint that this machine writes.
            "manifest" => residual_zoo_fuzz::good_checkpoint()[file].clone(),
            _ => fs::read(path).unwrap(),
        };
        (file.to_owned(), content)
    };
    (target, paths.iter().map(read).collect())
}

/// Cuts `good` to every length, or to at most 200 evenly spaced lengths.
pub fn cuts(good: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let step = good.len().div_ceil(200).max(1);
    (0..good.len()).step_by(step).map(|end| good[..end].into())
}

/// Flips one bit of `good`: every bit in turn, or about 2,000 evenly spaced bits.
pub fn flips(good: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> {
    let bits = good.len() * 8;
    // An odd step visits all eight bit positions of a byte.
    let step = (bits / 2000) | 1;
    (0..bits).step_by(step).map(|bit| {
        let mut bad = good.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        (bit / 8, bad)
    })
}

/// Changes a piece of `good`: removes it, repeats it, sets it to 0x00 or 0xff, or adds a huge number or control
/// characters after it.
pub fn splices(good: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let step = good.len().div_ceil(40).max(1);
    (0..good.len()).step_by(step).flat_map(move |at| {
        let end = good.len().min(at + 1 + at % 11);
        let (before, piece, after) = (&good[..at], &good[at..end], &good[end..]);
        let with = |middle: &[u8]| [before, middle, after].concat();
        [
            with(&[]),
            with(&[piece, piece].concat()),
            with(&vec![0; piece.len()]),
            with(&vec![0xff; piece.len()]),
            with(&[piece, b"99999999999999999999"].concat()),
            with(&[piece, "\u{202e}\u{1b}[2J".as_bytes()].concat()),
        ]
    })
}

/// Returns all cuts, flips and splices of `good` that change it.
pub fn corrupted(good: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let flips = flips(good).map(|(_, bad)| bad);
    let all = cuts(good).chain(flips).chain(splices(good));
    all.filter(move |bad| bad != good)
}

/// Makes one to four random changes to one of the inputs `good`. A change flips a bit, removes a piece, copies a piece
/// to another place, replaces a piece with a piece of any input, inserts one of the [`EXTREMES`], or replaces a number
/// with one of them.
pub fn mutant(good: &[&[u8]], numbers: &mut Numbers) -> Vec<u8> {
    let mut bad = numbers.of(good).to_vec();
    for _ in 0..=numbers.below(4) {
        let at = numbers.below(bad.len());
        let end = (at + 1 + numbers.below(24)).min(bad.len());
        match numbers.below(6) {
            0 if at < bad.len() => bad[at] ^= 1 << numbers.below(8),
            1 => drop(bad.drain(at..end)),
            2 => {
                let piece = bad[at..end].to_vec();
                let to = numbers.below(bad.len());
                bad.splice(to..to, piece);
            }
            3 => {
                let other = numbers.of(good);
                let from = numbers.below(other.len());
                let piece = &other[from..other.len().min(from + 1 + numbers.below(64))];
                bad.splice(at..end, piece.iter().copied());
            }
            4 => drop(bad.splice(at..at, numbers.of(&EXTREMES).bytes())),
            _ => {
                // Replaces the whole next number.
                let is_part = |byte: &u8| byte.is_ascii_digit() || b".-e".contains(byte);
                let Some(start) = bad[at..].iter().position(u8::is_ascii_digit) else {
                    continue;
                };
                let start = at + start;
                let length = bad[start..].iter().take_while(|byte| is_part(byte)).count();
                let extreme = numbers.of(&EXTREMES).bytes();
                drop(bad.splice(start..start + length, extreme));
            }
        }
    }
    bad
}

/// Returns `before`, `count` copies of `unit`, and `after`.
pub fn nested(before: &str, unit: &str, count: usize, after: &str) -> Vec<u8> {
    [before, &unit.repeat(count), after].concat().into_bytes()
}

/// Makes a safetensors file with `count` tensors of `bytes` bytes each, like a very deep model.
pub fn many_tensors(count: usize, bytes: usize) -> Vec<u8> {
    let entry = |i: usize| {
        let (start, end, length) = (i * bytes, (i + 1) * bytes, bytes / 4);
        format!(
            "\"layers.{i}.weight\":{{\"dtype\":\"F32\",\"shape\":[{length}],\
             \"data_offsets\":[{start},{end}]}}"
        )
    };
    let entries: Vec<String> = (0..count).map(entry).collect();
    safetensors(&format!("{{{}}}", entries.join(",")), count * bytes)
}

/// Makes a safetensors file with this header and `data` zero bytes.
pub fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [&length, header.as_bytes(), &vec![0; data]].concat()
}

/// Returns malicious files for the target called `name`. The target must refuse all of them.
pub fn made_to_harm(name: &str) -> Vec<Vec<u8>> {
    const DEEP: usize = 100_000;
    let deep_json = || {
        [
            nested("", "[", DEEP, ""),
            nested("", "{\"a\":", DEEP, ""),
            nested("{\"text\": ", "[", DEEP, ""),
            nested("", "[", DEEP, &"]".repeat(DEEP)),
        ]
    };
    let text = |texts: &[&str]| texts.iter().map(|t| t.as_bytes().to_vec()).collect();
    match name {
        "shard" => shards(),
        "cifar" => vec![
            Vec::new(),
            vec![0; 3072],
            vec![0; 3074],
            vec![10; 3073],
            vec![255; 2 * 3073],
        ],
        "documents" => {
            let mut bad: Vec<Vec<u8>> = deep_json().into();
            let texts = [
                "null",
                "[\"text\"]",
                "{\"text\": null}",
                "{\"text\": \"\\ud800\"}",
                "{\"text\": \"a\"} {\"text\": \"b\"}",
                "{\"text\": \"a\", \"text\": 1}",
                "{\"text\": \"\0\"}",
                "{\"text\": 1e999}",
                "{\"TEXT\": \"a\"}",
            ];
            bad.extend::<Vec<_>>(text(&texts));
            bad.push(b"{\"text\": \"\xff\xfe\"}".into());
            bad.push(b"\xff\xfe{\0\"\0".into());
            bad.push(b"{\"text\": \"\xed\xa0\x80\"}".into());
            bad
        }
        "metrics" => {
            let end = "\n{\"step\": 1, \"tokens\": 1, \"flops\": 1, \"seconds\": 1}\n";
            let rows = [
                "{\"step\": -1, \"tokens\": 0, \"flops\": 0, \"seconds\": 0}",
                "{\"step\": 18446744073709551616, \"tokens\": 0, \"flops\": 0, \"seconds\": 0}",
                "{\"step\": 0, \"tokens\": 0, \"flops\": 1e999, \"seconds\": 0}",
                "{\"step\": 0, \"step\": 0, \"tokens\": 0, \"flops\": 0, \"seconds\": 0}",
                "{\"step\": 0}",
                "{\"\\u001b[2J\\n\": 0}",
                "\0",
            ];
            let rows = rows.map(|row| (row.to_owned() + end).into_bytes());
            let deep = deep_json().map(|bad| [&bad, end.as_bytes()].concat());
            let latin = [b"\xe9", end.as_bytes()].concat();
            rows.into_iter().chain(deep).chain([latin]).collect()
        }
        "config" => configs(),
        "set" => vec![
            b"train.steps".into(),
            b"=".into(),
            b"train.steps=\0".into(),
            b"train.steps=99999999999999999999".into(),
            b"train.steps=-1".into(),
            b"model.layers.18446744073709551616.n_layer=1".into(),
            nested("model", ".of", DEEP, "=1"),
            nested("model=", "{\"Laurel\":", DEEP, ""),
            nested("model=", "{\"Laurel\":{\"of\":", 100, &"}}".repeat(100)),
            b"model=\"Gpt3\"".into(),
            b"train.seed=\xff".into(),
        ],
        "tokenizer" => tokenizers().into_iter().chain(deep_json()).collect(),
        "checkpoint" => tensors(),
        "manifest" => {
            let good = &residual_zoo_fuzz::good_checkpoint()["manifest.json"];
            let good = std::str::from_utf8(good).unwrap();
            let bad = [
                good.replace("state.json", "../state.json"),
                good.replace("state.json", "/etc/passwd"),
                good.replace("state.json", "state.json\\u0000"),
                good.replace("\"bytes\": ", "\"bytes\": -"),
                good.replace("\"bytes\": ", "\"bytes\": 99999999999999999999"),
                good.replace("\"blake3\": \"", "\"blake3\": \"0"),
                good.replace("\"files\"", "\"\\u001b[2J\\n\""),
                good.to_owned() + &" ".repeat(1 << 20),
            ];
            let bad = bad.map(String::into_bytes);
            bad.into_iter().chain(deep_json()).collect()
        }
        "weights" => weights(),
        other => unreachable!("{other}"),
    }
}

/// Returns files in the format of PyTorch before 1.6, which consists of pickles. Each file has one harmful pickle.
fn weights() -> Vec<Vec<u8>> {
    let file = |object: &[u8]| {
        let number = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.".as_slice();
        [
            number,
            b"\x80\x02M\xe9\x03.",
            b"\x80\x02}.",
            object,
            b"\x80\x02]q\x00.",
        ]
        .concat()
    };
    let tensor = |shape: &str| {
        let storage = "(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ";
        let call =
            format!("ctorch._utils\n_rebuild_tensor_v2\n({storage}K\x00{shape}{shape}\u{89}NtR");
        let key = "X\x17\x00\x00\x002.mlp.key_param_tokens__";
        // U+0089 becomes byte 0x89, the pickle opcode for False.
        let text = format!("}}{key}{call}s.");
        file(&text.chars().map(|c| c as u8).collect::<Vec<_>>())
    };
    let objects: [&[u8]; 12] = [
        b"",
        b".",
        b"cos\nsystem\nX\x02\x00\x00\x00ls\x85R.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"(ios\nsystem\n.",
        b"cos\nsystem\n)\x81.",
        b"ccollections\nOrderedDict\n)R}b(",
        b"X\xff\xff\xff\xff.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff.",
        b"h\x00.",
        b"}(K\x01u.",
        b"]q\x00h\x00ah\x00a.",
    ];
    let deep = [vec![b')'], vec![0x85; 100_000], vec![b'.']].concat();
    let objects = objects.into_iter().map(file).chain([file(&deep)]);
    let shapes = [
        "(J\u{ff}\u{ff}\u{ff}\u{7f}J\u{ff}\u{ff}\u{ff}\u{7f}t",
        "(J\u{ff}\u{ff}\u{ff}\u{ff}t",
        "(Nt",
    ];
    let zips = [
        b"PK".to_vec(),
        b"PK\x05\x06".to_vec(),
        [b"PK\x05\x06".to_vec(), vec![0xff; 18]].concat(),
    ];
    objects
        .chain(shapes.map(tensor))
        .chain(zips)
        .chain([b"GGUF".repeat(50)])
        .collect()
}

fn shards() -> Vec<Vec<u8>> {
    let good = |vocab_size: u64, width: u32, count: u64| {
        let mut shard = b"RZTOKENS".to_vec();
        shard.extend(2u32.to_le_bytes());
        shard.extend(width.to_le_bytes());
        shard.extend(vocab_size.to_le_bytes());
        shard.extend(count.to_le_bytes());
        shard.extend([0; 64]);
        shard.extend([0; 64]);
        shard
    };
    vec![
        Vec::new(),
        b"RZTOKENS".into(),
        b"GGUF".repeat(50),
        vec![0; 4096],
        good(10, 2, u64::MAX),
        good(10, 2, (u64::MAX / 2) + 33),
        good(10, 2, i64::MAX as u64),
        good(u64::MAX, 4, 16),
        good((1 << 32) + 1, 4, 16),
        good(1 << 20, 2, 32),
        good(10, 0, 32),
        good(10, 8, 8),
        good(0, 2, 32),
    ]
}

fn configs() -> Vec<Vec<u8>> {
    const DEEP: usize = 100_000;
    let mut bad: Vec<Vec<u8>> = [
        "",
        "\0",
        "(model: Gpt2(), model: Gpt2())",
        "(model: Gpt2(width: -1))",
        "(model: Gpt2(width: 18446744073709551616))",
        "(model: Gpt2(width: 1e3))",
        "(model: Gpt2(dropout: NaN))",
        "(model: Gpt2(), train: (learning_rate: inf))",
        "(model: Gpt2(), train: (learning_rate: NaN))",
        "(model: Gpt2(), data: (valid_fraction: NaN))",
        "(model: Gpt2(), data: (tokenizer: Bpe(vocab_size: 18446744073709551615)))",
        "(model: Gpt2(), data: (source: Synthetic((tokens: 18446744073709551615, seed: 0))))",
        "(model: Composed(layers: []))",
        "(model: Gpt2(n_layer: 18446744073709551615, n_head: 1, width: 1))",
        "(model: r#\"Gpt2\"#)",
        "(model: Gpt2() /* ",
        "(model: \"\\u{110000}\")",
        "#![enable(no_such_thing)] (model: Gpt2())",
        "(model: Gpt2(\u{1b}[2J\n: 1))",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into();
    bad.extend([
        nested("", "(", DEEP, ""),
        nested("", "[", DEEP, ""),
        nested("(model: ", "Composed(layers: [", DEEP, &"])".repeat(DEEP)),
        nested("(model: ", "PerLayer(", DEEP, ""),
        nested("(model: ", "Composed(layers: [", DEEP, ""),
        nested("(train: ", "Some(", DEEP, ""),
        nested("", "/*", DEEP, ""),
        nested("(model: ", "x", 1 << 20, "())"),
        b"(model: Gpt2(n_layer: \xff))".into(),
    ]);
    bad
}

fn tokenizers() -> Vec<Vec<u8>> {
    let file = |normalizer: &str, pre_tokenizer: &str, decoder: &str, model: &str| {
        format!(
            r#"{{"version": "1.0", "added_tokens": [], "normalizer": {normalizer},
            "pre_tokenizer": {pre_tokenizer}, "decoder": {decoder}, "model": {model}}}"#
        )
        .into_bytes()
    };
    let words = r#"{"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}"#;
    let of_words = |vocab: &str| {
        let model = words.replace("\"a\": 0", vocab);
        file("null", "null", "null", &model)
    };
    // This declares a table of 1 GiB that the file does not have.
    let precompiled = r#"{"type": "Precompiled", "precompiled_charsmap": "////fwAA"}"#;
    let sequence = |name: &str, parts: &str, inner: &str| {
        let open = format!("{{\"type\": \"{name}\", \"{parts}\": [").repeat(40);
        format!("{open}{inner}{}", "]}".repeat(40))
    };
    let bpe = |prefix: &str, merge: &str| {
        let model = format!(
            r#"{{"type": "BPE", "continuing_subword_prefix": "{prefix}",
            "vocab": {{"a": 0, "é": 1}}, "merges": [{merge}]}}"#
        );
        file("null", "null", "null", &model)
    };
    let normalizers = sequence("Sequence", "normalizers", "{\"type\": \"NFC\"}");
    let pre_tokenizers = sequence("Sequence", "pretokenizers", "{\"type\": \"Whitespace\"}");
    let decoders = sequence("Sequence", "decoders", "{\"type\": \"Fuse\"}");
    let mut bad = vec![
        of_words("\"a\": 4294967295"),
        of_words("\"a\": 1048576"),
        of_words("\"a\": 4294967296"),
        of_words("\"a\": -1"),
        of_words("\"a\": 0.5"),
        of_words("\"a\": 1e99"),
        of_words("\"a\": \"0\""),
        of_words(""),
        file(precompiled, "null", "null", words),
        file("{\"type\": \"Precompiled\"}", "null", "null", words),
        file(&normalizers, "null", "null", words),
        file("null", &pre_tokenizers, "null", words),
        file("null", "null", &decoders, words),
        file(
            "null",
            "{\"type\": \"FixedLength\", \"length\": 0}",
            "null",
            words,
        ),
        file(
            "null",
            "null",
            "{\"type\": \"Strip\", \"content\": \" \", \"start\": 0, \"stop\": 1}",
            words,
        ),
        file("null", "null", "7", words),
        file("7", "null", "null", words),
        file("null", "null", "null", "null"),
        bpe("##", "[\"a\", \"a\"]"),
        bpe("x", "\"a é\""),
        bpe("", "[\"a\", \"b\"]"),
        bpe("", "[\"a\"]"),
    ];
    for text in [
        "",
        "null",
        "{}",
        "7",
        "\0",
        "{\"kind\": \"bytes\", \"kind\": \"bytes\"}",
        "{\"kind\": \"bytes\", \"more\": 1}",
        "{\"kind\": \"\\u001b[2J\\n\"}",
        "{\"kind\": \"chars\", \"chars\": \"\"}",
        "{\"kind\": \"chars\", \"chars\": \"ba\"}",
        "{\"kind\": \"chars\", \"chars\": \"aa\"}",
        "{\"kind\": \"chars\", \"chars\": \"\\ud800\"}",
        "{\"kind\": \"words\", \"words\": []}",
        "{\"kind\": \"words\", \"words\": [\"a\", \"a\"]}",
        "{\"kind\": \"words\", \"words\": [\"a b\"]}",
        "{\"kind\": \"hf\", \"json\": \"\"}",
        "{\"kind\": \"hf\", \"json\": \"{\\\"kind\\\": \\\"bytes\\\"}\"}",
    ] {
        bad.push(text.into());
    }
    bad.push(b"{\"kind\": \"chars\", \"chars\": \"\xff\"}".into());
    bad.push(nested("{\"kind\": \"", "x", 1 << 20, "\"}"));
    bad
}

fn tensors() -> Vec<Vec<u8>> {
    let one = |entry: &str| safetensors(&format!("{{\"a\": {entry}}}"), 8);
    let mut bad = vec![
        Vec::new(),
        vec![0; 7],
        vec![0; 8],
        vec![0xff; 8],
        vec![0xff; 4096],
        // The declared header is longer than the file. The second length also overflows.
        [&(1u64 << 40).to_le_bytes()[..], b"{}"].concat(),
        [&(u64::MAX - 7).to_le_bytes()[..], b"{}"].concat(),
        safetensors("{}", 0),
        safetensors("{}", 100),
        safetensors("[]", 0),
        safetensors("{\"__metadata__\": {\"steps\": \"{}\"}}", 0)[..20].to_vec(),
        safetensors(&"{\"a\":".repeat(100_000), 0),
        safetensors(&"[".repeat(100_000), 0),
        safetensors("{\"\\u001b[2J\\n\": {}}", 0),
    ];
    let (whole, huge) = ("18446744073709551615", "9223372036854775808");
    for entry in [
        "null".into(),
        "{\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}".into(),
        "{\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [8, 0]}".into(),
        "{\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [-8, 0]}".into(),
        "{\"dtype\": \"F32\", \"shape\": [-2], \"data_offsets\": [0, 8]}".into(),
        "{\"dtype\": \"F32\", \"shape\": [3], \"data_offsets\": [0, 12]}".into(),
        "{\"dtype\": \"I64\", \"shape\": [1], \"data_offsets\": [0, 8]}".into(),
        "{\"dtype\": \"F99\", \"shape\": [1], \"data_offsets\": [0, 8]}".into(),
        "{\"dtype\": \"F32\", \"shape\": [0], \"data_offsets\": [0, 0]}".into(),
        format!("{{\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, {whole}]}}"),
        format!("{{\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [{whole}, 8]}}"),
        format!("{{\"dtype\": \"F32\", \"shape\": [{whole}], \"data_offsets\": [0, 8]}}"),
        format!("{{\"dtype\": \"F32\", \"shape\": [{huge}, 2], \"data_offsets\": [0, 0]}}"),
        format!("{{\"dtype\": \"F32\", \"shape\": [{huge}, 2, 0], \"data_offsets\": [0, 0]}}"),
    ] {
        bad.push(one(&entry));
    }
    let same = "{\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}";
    bad.push(one(&format!("{same}, \"a\": {same}")));
    bad.push(one(&format!("{same}, \"b\": {same}")));
    bad
}
