//! Texts and tokenizers on the Hugging Face hub. A server on loopback replaces the hub.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
#[cfg(unix)]
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use residual_zoo_testing::program::{SMOKE, Scratch, fails, ok, run, text, zoo};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const NEXT: &str = "89abcdef0123456789abcdef0123456789abcdef";

/// A hub with repositories, by paths such as `datasets/o/n`.
struct Hub {
    address: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// The commit of every branch and tag. Every commit has the same `files`.
    commit: Mutex<String>,
    files: Mutex<HashMap<String, Vec<u8>>>,
    /// Number of requests so far.
    requests: AtomicUsize,
    /// The number of bytes after which one download breaks off.
    breaks: Mutex<Option<usize>>,
    /// The `Authorization` of the last request.
    token: Mutex<String>,
    /// The address to which requests for files are redirected.
    elsewhere: Mutex<Option<String>>,
    /// The bytes that are sent for a file, if they differ from the announced bytes.
    sends: Mutex<Option<Vec<u8>>>,
}

impl Hub {
    fn start(files: &[(&str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State::default());
        *state.commit.lock().unwrap() = COMMIT.into();
        let owned = files
            .iter()
            .map(|(name, text)| ((*name).into(), text.to_vec()));
        *state.files.lock().unwrap() = owned.collect();
        let served = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let served = served.clone();
                // A client that closes the connection is not an error in the test.
                thread::spawn(move || served.answer(stream.unwrap()));
            }
        });
        Self { address, state }
    }

    fn requests(&self) -> usize {
        self.state.requests.load(Ordering::SeqCst)
    }

    fn put(&self, name: &str, content: &[u8]) {
        let mut files = self.state.files.lock().unwrap();
        files.insert(name.into(), content.into());
    }
}

impl State {
    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let request = lines.next().unwrap_or(Ok(String::new()))?;
        let path = request.split(' ').nth(1).unwrap_or("").to_owned();
        let mut from = 0;
        for line in lines {
            let line = line?;
            let header = line.to_ascii_lowercase();
            if let Some(range) = header.strip_prefix("range: bytes=") {
                from = range.split('-').next().unwrap().parse().unwrap();
            }
            if header.starts_with("authorization: ") {
                *self.token.lock().unwrap() = line[15..].into();
            }
            if line.is_empty() {
                break;
            }
        }
        self.requests.fetch_add(1, Ordering::SeqCst);
        let commit = self.commit.lock().unwrap().clone();
        let files = self.files.lock().unwrap();
        if let Some(repository) = path.strip_prefix("/api/") {
            let (repository, _) = repository.split_once("/revision/").unwrap();
            let repository = repository.trim_start_matches("models/");
            let inside = files
                .keys()
                .filter_map(|file| file.strip_prefix(repository)?.strip_prefix('/'));
            let siblings: Vec<String> = inside
                .map(|file| format!("{{\"rfilename\": {file:?}}}"))
                .collect();
            if siblings.is_empty() {
                return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
            }
            let body = format!(
                "{{\"sha\": {commit:?}, \"siblings\": [{}]}}",
                siblings.join(", ")
            );
            return write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
        }
        if let Some(elsewhere) = self.elsewhere.lock().unwrap().as_ref() {
            return write!(
                stream,
                "HTTP/1.1 302 Found\r\nLocation: {elsewhere}{path}\r\nContent-Length: 0\r\n\r\n"
            );
        }
        let (repository, file) = path[1..].split_once("/resolve/").unwrap();
        let file = file
            .split_once('/')
            .unwrap()
            .1
            .replace("%23", "#")
            .replace("%20", " ");
        let Some(content) = files.get(&format!("{repository}/{file}")) else {
            return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        };
        if let Some(sends) = self.sends.lock().unwrap().as_ref() {
            write!(
                stream,
                "HTTP/1.1 206 Partial Content\r\nConnection: close\r\n\
                 Content-Range: bytes {from}-{}/{}\r\nETag: \"../../../evil\"\r\n\r\n",
                content.len() - 1,
                content.len()
            )?;
            return stream.write_all(sends);
        }
        let to = content.len();
        write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nConnection: close\r\n\
             Content-Range: bytes {from}-{}/{}\r\n\r\n",
            to - from,
            to - 1,
            content.len()
        )?;
        let breaks = self.breaks.lock().unwrap().take();
        let to = breaks.map_or(to, |after| (from + after).min(to));
        stream.write_all(&content[from..to])
    }
}

/// Returns a command that runs `residual-zoo tokenize` with its caches in `scratch`.
fn tokenize(hub: &Hub, scratch: &Scratch, data: &str) -> Command {
    let mut command = on_hub("tokenize", hub, scratch);
    command.args(["--data", data, "--tokenizer", "bytes"]);
    command
}

fn on_hub(name: &str, hub: &Hub, scratch: &Scratch) -> Command {
    let mut command = zoo(name);
    command
        .env("HF_HOME", scratch.path("hf"))
        .env("HF_ENDPOINT", &hub.address)
        .env("HF_TOKEN", "")
        .arg("--set")
        .arg(format!(
            "data.cache={:?}",
            scratch.path("cache").to_str().unwrap()
        ));
    command
}

/// Returns the directory of the last snapshot in the hub's cache.
fn snapshot(scratch: &Scratch, repository: &str) -> PathBuf {
    scratch
        .path("hf/hub")
        .join(repository)
        .join("snapshots")
        .join(COMMIT)
}

fn tokens(shown: &str) -> String {
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let at = words
        .find("training and")
        .unwrap_or_else(|| panic!("{shown}"));
    words[..at].split(' ').rev().nth(1).unwrap().to_owned()
}

#[test]
fn a_file_on_the_hub_is_downloaded_once() {
    let hub = Hub::start(&[("datasets/o/n/train/a.txt", &b"to be or not ".repeat(100))]);
    let scratch = Scratch::new();
    let address = "hf://datasets/o/n/train/a.txt";
    let first = ok(&mut tokenize(&hub, &scratch, address));
    assert_eq!(tokens(&first), "1.17k");
    assert!(
        snapshot(&scratch, "datasets--o--n")
            .join("train/a.txt")
            .is_file()
    );
    // The second time, the program asks only for the newest commit.
    let before = hub.requests();
    ok(&mut tokenize(&hub, &scratch, address));
    assert_eq!(hub.requests(), before + 1);
    // A commit never changes, so the program asks nothing.
    let of_commit = format!("hf://datasets/o/n@{COMMIT}/train/a.txt");
    ok(&mut tokenize(&hub, &scratch, &of_commit));
    assert_eq!(hub.requests(), before + 1);
}

#[test]
fn a_directory_on_the_hub_is_its_texts_in_order() {
    let long = b"x".repeat(1000);
    let hub = Hub::start(&[
        ("datasets/o/n/README.md", b"a description"),
        ("datasets/o/n/data/b.txt", &long),
        (
            "datasets/o/n/data/a/c.jsonl",
            b"{\"text\": \"yyyyyyyyy\"}\n",
        ),
        ("datasets/o/n/data/image.png", b"PNG"),
        ("datasets/o/n/database/z.txt", &long),
        ("datasets/o/n/../../evil.txt", &long),
    ]);
    let scratch = Scratch::new();
    // The directory has 9 bytes, a line break and 1000 bytes.
    let shown = ok(&mut tokenize(&hub, &scratch, "hf://datasets/o/n/data"));
    assert_eq!(tokens(&shown), "909");
    let whole = ok(&mut tokenize(&hub, &scratch, "hf://datasets/o/n"));
    assert_eq!(tokens(&whole), "1.81k");
    assert!(
        !snapshot(&scratch, "datasets--o--n")
            .join("README.md")
            .exists()
    );
    assert!(
        !snapshot(&scratch, "datasets--o--n")
            .join("data/image.png")
            .exists()
    );
    // Tokenizes the directory as a part of a mixture.
    let mut mixture = on_hub("tokenize", &hub, &scratch);
    mixture.args(["--set", "data.tokenizer=Bytes", "--set"]);
    mixture.arg("data.source=Mixture([(path: \"hf://datasets/o/n/data\", weight: 1), (path: \"hf://datasets/o/n/database\", weight: 2)])");
    ok(&mut mixture);
}

#[test]
fn a_new_commit_replaces_all_files_at_once() {
    let hub = Hub::start(&[
        ("datasets/o/n/a.txt", &b"a".repeat(100)),
        ("datasets/o/n/b.txt", &b"b".repeat(99)),
    ]);
    let scratch = Scratch::new();
    let shown = ok(&mut tokenize(&hub, &scratch, "hf://datasets/o/n"));
    assert_eq!(tokens(&shown), "180");
    hub.put("datasets/o/n/a.txt", &b"a".repeat(300));
    *hub.state.commit.lock().unwrap() = NEXT.into();
    let shown = ok(&mut tokenize(&hub, &scratch, "hf://datasets/o/n"));
    assert_eq!(tokens(&shown), "360");
}

#[test]
fn a_download_that_breaks_off_goes_on() {
    let content: Vec<u8> = (0..200_000).map(|i| b"abcdefghij\n"[i * i % 11]).collect();
    let hub = Hub::start(&[("datasets/o/n/a.txt", &content)]);
    *hub.state.breaks.lock().unwrap() = Some(100_001);
    let scratch = Scratch::new();
    ok(&mut tokenize(&hub, &scratch, "hf://datasets/o/n/a.txt"));
    let file = snapshot(&scratch, "datasets--o--n").join("a.txt");
    assert!(fs::read(file).unwrap() == content);
}

#[test]
fn a_run_on_the_hub_trains_and_resumes_without_network() {
    let hub = Hub::start(&[
        ("datasets/o/n/a.txt", &b"to be or not to be ".repeat(200)),
        ("o/m/tokenizer.json", &word_tokenizer()),
    ]);
    let scratch = Scratch::new();
    let directory = scratch.path("run");
    let mut train = on_hub("train", &hub, &scratch);
    train.args(["--data", "hf://datasets/o/n/a.txt"]);
    train
        .arg(SMOKE)
        .args(["--tokenizer", "hf://o/m", "--set", "train.steps=2"]);
    ok(train.arg("--run").arg(&directory));
    let resume = |home: &str| {
        let mut command = zoo("train");
        command.arg("--resume").arg(&directory).arg("--allow-paths");
        command.env("HF_HOME", scratch.path(home));
        command.env("HF_ENDPOINT", "http://127.0.0.1:1");
        command.args(["--set", "train.steps=4", "--allow-config-change"]);
        command
    };
    ok(&mut resume("hf"));
    let says = [
        "could not download hf://datasets/o/n/a.txt",
        "give its path",
    ];
    fails(&mut resume("empty"), 1, &says);
}

#[test]
fn a_received_run_downloads_nothing() {
    let hub = Hub::start(&[("datasets/o/n/a.txt", &b"to be or not to be ".repeat(200))]);
    let scratch = Scratch::new();
    let directory = scratch.path("run");
    let mut command = zoo("train");
    command
        .env("XDG_CACHE_HOME", scratch.path("user"))
        .env("HF_HOME", scratch.path("hf"));
    command.env("HF_ENDPOINT", &hub.address);
    command.args(["--data", "hf://datasets/o/n/a.txt", "--tokenizer", "bytes"]);
    command.arg(SMOKE).args(["--set", "train.steps=2"]);
    ok(command.arg("--run").arg(&directory));
    let before = hub.requests();
    let describe = |home: &str| {
        let mut command = zoo("describe");
        command
            .env("XDG_CACHE_HOME", scratch.path("user"))
            .env("HF_HOME", scratch.path(home));
        command.env("HF_ENDPOINT", &hub.address).arg(&directory);
        command
    };
    // Without the text, the run still has its tokenizer. A preset has an assumed vocabulary, as in `plan`.
    let shown = ok(&mut describe("other"));
    let unknown = "not known, because hf://datasets/o/n/a.txt is not downloaded yet";
    assert!(
        shown.contains("256 token ids") && shown.contains(unknown),
        "{shown}"
    );
    let preset = |command: &str| {
        let mut command = zoo(command);
        command
            .env("XDG_CACHE_HOME", scratch.path("user"))
            .env("HF_HOME", scratch.path("other"))
            .env("HF_ENDPOINT", &hub.address);
        command.args([SMOKE, "--data", "hf://datasets/o/n/a.txt"]);
        ok(command.args(["--tokenizer", "hf://o/m"]))
    };
    for shown in [preset("describe"), preset("plan")] {
        assert!(shown.contains("~50304"), "{shown}");
        let why = "note: ~ marks an assumed vocabulary: GPT-NeoX's, because `hf://o/m` is not downloaded yet";
        assert!(shown.contains(why), "{shown}");
    }
    assert_eq!(hub.requests(), before);
    ok(&mut describe("hf"));
}

#[test]
fn what_is_not_on_the_hub_is_one_clear_line() {
    let hub = Hub::start(&[("datasets/o/n/a.bin", b"x"), ("o/m/config.json", b"{}")]);
    let scratch = Scratch::new();
    for (data, code, says) in [
        ("hf://datasets/o/none/a.txt", 1, "no such data set"),
        (
            "hf://datasets/o/n/none.txt",
            1,
            "no such data set, revision or file",
        ),
        ("hf://datasets/o/n", 2, "contains no text"),
        ("hf://datasets/o", 2, "hf://datasets/OWNER/NAME/PATH"),
        (
            "hf://datasets/o/n/../a.txt",
            2,
            "hf://datasets/OWNER/NAME/PATH",
        ),
    ] {
        fails(&mut tokenize(&hub, &scratch, data), code, &[says]);
    }
    let mut command = on_hub("tokenize", &hub, &scratch);
    command.args(["--data", "hf://datasets/o/n/a.txt"]);
    fails(
        command.args(["--tokenizer", "hf://o"]),
        2,
        &["hf://OWNER/NAME"],
    );
    let mut command = tokenize(&hub, &scratch, "hf://datasets/o/n/a.txt");
    command
        .env("HF_TOKEN", "secret")
        .env("HF_ENDPOINT", format!("{}/", hub.address));
    let shown = text(&run(&mut command).stderr).to_owned();
    assert!(!shown.contains("secret"), "{shown}");
    assert!(shown.contains("no such data set"), "{shown}");
}

#[cfg(unix)]
#[test]
fn a_download_from_a_server_that_does_not_answer_can_be_stopped() {
    use residual_zoo_testing::program::{end, signal, stopped_by};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let scratch = Scratch::new();
    let mut command = zoo("tokenize");
    command.env("HF_HOME", scratch.path("hf"));
    command.env(
        "HF_ENDPOINT",
        format!("http://{}", listener.local_addr().unwrap()),
    );
    command.args(["--data", "hf://datasets/o/n/a.txt"]);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    let (connection, _) = listener.accept().unwrap();
    signal(&child, "-INT");
    let output = end(child);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), stopped_by("-INT"));
    assert!(
        error.contains("stopped while the data were prepared"),
        "{error}"
    );
    drop(connection);
}

#[test]
fn a_file_is_as_long_as_announced_and_stays_in_the_cache() {
    let hub = Hub::start(&[("datasets/o/n/a.txt", &b"text ".repeat(200))]);
    let scratch = Scratch::new();
    for (sends, says) in [
        (100, "the file ends after"),
        (5000, "is longer than it says"),
    ] {
        *hub.state.sends.lock().unwrap() = Some(vec![b'x'; sends]);
        // Parts of 100 bytes are appended to the partial file, until the attempts are used up.
        let output = run(&mut tokenize(&hub, &scratch, "hf://datasets/o/n/a.txt"));
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(says), "{error}");
        let files = snapshot(&scratch, "datasets--o--n");
        assert!(!files.join("a.txt").exists());
        fs::remove_dir_all(files).unwrap();
    }
    // The hub sends the ETag `../../../evil`, which creates no file.
    let names = fs::read_dir(scratch.path("hf")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["hub"]);
}

#[test]
fn names_of_files_may_have_any_characters() {
    let hub = Hub::start(&[
        ("datasets/o/n/a#1.txt", &b"a".repeat(100)),
        ("datasets/o/n/b c.txt", &b"b".repeat(99)),
    ]);
    let scratch = Scratch::new();
    assert_eq!(
        tokens(&ok(&mut tokenize(&hub, &scratch, "hf://datasets/o/n"))),
        "180"
    );
}

#[test]
fn a_token_is_not_sent_to_another_server() {
    let files = [("datasets/o/n/a.txt", &b"text ".repeat(20)[..])];
    let (hub, other) = (Hub::start(&files), Hub::start(&files));
    *hub.state.elsewhere.lock().unwrap() = Some(other.address.replace("127.0.0.1", "localhost"));
    let scratch = Scratch::new();
    let mut command = tokenize(&hub, &scratch, "hf://datasets/o/n/a.txt");
    ok(command.env("HF_TOKEN", "secret"));
    assert_eq!(*hub.state.token.lock().unwrap(), "Bearer secret");
    assert!(other.requests() > 0);
    assert_eq!(*other.state.token.lock().unwrap(), "");
}

#[test]
fn a_token_is_sent() {
    let hub = Hub::start(&[("datasets/o/n/a.txt", &b"text ".repeat(20))]);
    let scratch = Scratch::new();
    let mut command = tokenize(&hub, &scratch, "hf://datasets/o/n/a.txt");
    ok(command.env("HF_TOKEN", "secret"));
    assert_eq!(*hub.state.token.lock().unwrap(), "Bearer secret");
}

/// Makes a tokenizer of words.
fn word_tokenizer() -> Vec<u8> {
    let vocabulary = r#"{"to": 0, "be": 1, "or": 2, "not": 3, "?": 4}"#;
    format!(
        r#"{{"version": "1.0", "pre_tokenizer": {{"type": "WhitespaceSplit"}},
            "model": {{"type": "WordLevel", "vocab": {vocabulary}, "unk_token": "?"}}}}"#
    )
    .into_bytes()
}

#[test]
fn a_model_on_the_hub_is_imported_and_then_needs_no_network() {
    let exported = Scratch::new();
    let (run, out) = (exported.path("run"), exported.path("out"));
    let mut train = zoo("train");
    ok(train
        .arg(SMOKE)
        .args(["--set", "train.steps=2", "--run"])
        .arg(&run));
    ok(zoo("export").arg(&run).args(["--to", "hf"]).arg(&out));
    let names = [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
        "README.md",
    ];
    let files: Vec<(String, Vec<u8>)> = names
        .iter()
        .map(|name| (format!("o/m/{name}"), fs::read(out.join(name)).unwrap()))
        .collect();
    let files: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, content)| (name.as_str(), content.as_slice()))
        .collect();
    let hub = Hub::start(&files);
    let scratch = Scratch::new();
    let import = |address: &str, home: &str, run: &str| {
        let mut command = zoo("import");
        command
            .env("HF_HOME", scratch.path(home))
            .env("HF_ENDPOINT", address)
            .env("HF_TOKEN", "");
        command.arg("hf://o/m").arg("--run").arg(scratch.path(run));
        command
    };
    let shown = ok(&mut import(&hub.address, "hf", "first"));
    assert!(shown.contains("GPT-2 of Hugging Face"), "{shown}");
    // The model card is not downloaded.
    assert!(
        !snapshot(&scratch, "models--o--m")
            .join("README.md")
            .exists()
    );
    ok(&mut import("http://127.0.0.1:1", "hf", "second"));
    let weights = |run: &str| {
        let file = "checkpoints/step-00000000/model.safetensors";
        fs::read(scratch.path(run).join(file)).unwrap()
    };
    assert_eq!(weights("first"), weights("second"));
    let says = ["could not download hf://o/m"];
    fails(
        &mut import("http://127.0.0.1:1", "other", "third"),
        1,
        &says,
    );
    // A directory that is already taken is noticed before any download.
    let before = hub.requests();
    fails(&mut import(&hub.address, "other", "first"), 2, &["already"]);
    assert_eq!(hub.requests(), before);
    hub.state
        .files
        .lock()
        .unwrap()
        .retain(|name, _| name.ends_with("README.md"));
    fails(
        &mut import(&hub.address, "empty", "fourth"),
        1,
        &["neither a config.json"],
    );
}
