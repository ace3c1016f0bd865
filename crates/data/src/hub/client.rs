//! Downloads files from the hub. The crate `hf-hub` lists repositories and gives the paths of files in the cache.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use hf_hub::api::RepoInfo;
use hf_hub::api::sync::{ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};
use residual_zoo_system::counted;
use ureq::config::RedirectAuthHeaders;

use super::{Address, model_files};
use crate::progress::{OnProgress, Stage, report};
use crate::{DataError, files, one_line};

/// The longest wait for a server that sends nothing.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of times that a failed download is retried.
const RETRIES: usize = 3;
/// The time between two tries.
const PAUSE: Duration = Duration::from_secs(1);
/// The time between two reports of progress.
const REPORT: Duration = Duration::from_millis(100);

/// Downloads the file or the texts at `address` that are not in the cache. If the revision is a commit, a cached file
/// is used without asking the hub. A cached file is also used if the hub cannot be reached.
///
/// # Errors
///
/// Returns an error for a failed download, and [`DataError::Stopped`] if `progress` stops the work.
pub fn download(address: &Address, progress: OnProgress) -> Result<(), DataError> {
    let has_file = || address.is_file() && cached(address).is_ok();
    if is_commit(&address.revision) && has_file() {
        return Ok(());
    }
    let info = match info(address, progress)? {
        Err(error) if is_unreachable(&error) && has_file() => return Ok(()),
        info => checked(address, info)?,
    };
    let files = match address.is_file() {
        true => vec![address.path.clone()],
        false => {
            let files = info.siblings.iter().map(|file| file.rfilename.clone());
            files.filter(|file| address.has_text(file)).collect()
        }
    };
    download_files(address, &info.sha, files, progress)
}

/// Downloads the files of the model at `address` that are not in the cache, and returns their directory. If
/// the hub cannot be reached, the cached files are used.
///
/// # Errors
///
/// Returns an error for a failed download, and [`DataError::Stopped`] if `progress` stops the work.
pub fn download_model(address: &Address, progress: OnProgress) -> Result<PathBuf, DataError> {
    let (commit, files) = match info(address, progress)? {
        Err(error) if is_unreachable(&error) => {
            let commit = cached_commit(address);
            (commit.map_err(|_| failed(address, &error))?, None)
        }
        info => {
            let info = checked(address, info)?;
            let files = info.siblings.into_iter().map(|file| file.rfilename);
            let files = model_files(&address.path, files.collect());
            if files.is_empty() {
                return Err(DataError::Hub {
                    address: address.to_string(),
                    message: "there is neither a config.json nor weights of a known name".into(),
                });
            }
            (info.sha, Some(files))
        }
    };
    if let Some(files) = files {
        download_files(address, &commit, files, progress)?;
    }
    let cache = Cache::from_env().repo(repo(address, &commit));
    Ok(cache.pointer_path(&commit).join(&address.path))
}

/// Asks the hub for its description of the repository at `address`.
fn info(address: &Address, progress: OnProgress) -> Result<Result<RepoInfo, ApiError>, DataError> {
    let asked = repo(address, &address.revision);
    in_background(progress, move |_| builder().build()?.repo(asked).info())
}

fn checked(address: &Address, info: Result<RepoInfo, ApiError>) -> Result<RepoInfo, DataError> {
    let info = info.map_err(|e| failed(address, &e))?;
    match is_commit(&info.sha) {
        true => Ok(info),
        false => {
            let error = io::Error::other("the server's commit is not a hash");
            Err(failed(address, &error.into()))
        }
    }
}

/// Downloads the `files` that are not in the cache, and records the commit there.
fn download_files(
    address: &Address,
    commit: &str,
    mut files: Vec<String>,
    progress: OnProgress,
) -> Result<(), DataError> {
    files.sort();
    if files.is_empty() {
        return Err(DataError::Empty {
            path: address.to_string().into(),
        });
    }
    // All files come from one commit, even if the branch moves on meanwhile.
    for file in files {
        let repo = repo(address, commit);
        let place = Cache::from_env().repo(repo.clone());
        let place = place.pointer_path(commit).join(&file);
        if place.exists() {
            continue;
        }
        let got = in_background(progress, move |meter| {
            let url = builder().build()?.repo(repo).url(&encoded(&file));
            let mut tried = 0;
            loop {
                match download_file(&url, &place, &meter) {
                    Err(error) if tried < RETRIES && is_unreachable(&error) => tried += 1,
                    done => return done,
                }
                thread::sleep(PAUSE);
            }
        });
        got?.map_err(|e| failed(address, &e))?;
    }
    let cache = Cache::from_env().repo(repo(address, &address.revision));
    let noted = cache.create_ref(commit);
    noted.map_err(|e| DataError::io(Cache::from_env().path(), "write", e))
}

/// Downloads a file to `place`, where it appears only when it is complete. Continues the download of an earlier
/// process.
///
/// This function is used instead of `hf-hub`'s own download, which takes file names from the server's headers, accepts
/// truncated files, and sends the token to other hosts.
fn download_file(url: &str, place: &Path, meter: &Meter) -> Result<(), ApiError> {
    let part = place.with_file_name(format!(
        "{}.incomplete",
        place.file_name().unwrap_or_default().display()
    ));
    fs::create_dir_all(place.parent().unwrap_or(place))?;
    let mut options = File::options();
    let mut file = options.create(true).append(true).open(&part)?;
    // Another process may be downloading the file.
    file.lock()?;
    if place.exists() {
        return Ok(());
    }
    let start = file.metadata()?.len();
    let agent = ureq::Agent::config_builder()
        .timeout_connect(Some(Duration::from_secs(15)))
        .redirect_auth_headers(RedirectAuthHeaders::SameHost)
        .build()
        .new_agent();
    let mut request = agent.get(url).header("Accept-Encoding", "identity");
    if let Some(token) = token() {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    if start > 0 {
        request = request.header("Range", format!("bytes={start}-"));
    }
    let mut response = match request.call() {
        Err(ureq::Error::StatusCode(416)) if start > 0 => {
            file.set_len(0)?;
            let problem = "the partial download is longer than the file";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, problem).into());
        }
        response => response.map_err(Box::new)?,
    };
    let invalid = |problem: &str| io::Error::other(format!("the server's answer {problem}"));
    let header = |name: &str| response.headers().get(name)?.to_str().ok();
    let (from, total) = match response.status().as_u16() {
        206 => {
            let range = header("Content-Range").and_then(range);
            range.ok_or_else(|| invalid("has no range"))?
        }
        _ => {
            let length = header("Content-Length").and_then(|length| length.parse().ok());
            (0, length.ok_or_else(|| invalid("has no length"))?)
        }
    };
    if from != start && from != 0 || start > total {
        file.set_len(0)?;
        return Err(invalid("is not the requested part of the file").into());
    }
    if from == 0 {
        file.set_len(0)?;
    }
    meter.begin(from, total);
    // Reads one byte more, to notice a longer file.
    let mut body = response.body_mut().as_reader().take(total - from + 1);
    let mut bytes = vec![0; 1 << 16];
    loop {
        let read = body.read(&mut bytes)?;
        if read == 0 {
            break;
        }
        file.write_all(&bytes[..read])?;
        meter.add(read as u64);
    }
    let length = file.metadata()?.len();
    if length > total {
        file.set_len(0)?;
        return Err(invalid("is longer than it says").into());
    }
    if length < total {
        // The partial file is kept, so that the next try can continue it.
        let problem = format!("the file ends after {length} of {}", counted(total, "byte"));
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, problem).into());
    }
    file.sync_all()?;
    Ok(fs::rename(&part, place)?)
}

/// Parses the first byte and the total length of a `Content-Range`, such as `bytes 5-9/10`.
fn range(header: &str) -> Option<(u64, u64)> {
    let (part, total) = header.strip_prefix("bytes ")?.split_once('/')?;
    Some((part.split_once('-')?.0.parse().ok()?, total.parse().ok()?))
}

/// Encodes a path for a URL.
fn encoded(path: &str) -> String {
    let mut url = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                url.push(byte.into());
            }
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

/// Returns the file or the texts at `address`, from the cache.
///
/// # Errors
///
/// Returns an error if there are none in the cache.
pub fn cached(address: &Address) -> Result<Vec<PathBuf>, DataError> {
    let missing = || DataError::NotInHubCache {
        address: address.to_string(),
    };
    let commit = cached_commit(address).map_err(|_| missing())?;
    let snapshot = Cache::from_env()
        .repo(repo(address, &commit))
        .pointer_path(&commit);
    if address.is_file() {
        let file = Some(snapshot.join(&address.path));
        let file = file.filter(|file| file.exists());
        return Ok(vec![file.ok_or_else(missing)?]);
    }
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from(&address.path)];
    while let Some(folder) = folders.pop() {
        let place = snapshot.join(&folder);
        let failed = |e| DataError::io(&place, "read", e);
        for entry in fs::read_dir(&place).map_err(|_| missing())? {
            let entry = entry.map_err(failed)?;
            let name = folder.join(entry.file_name());
            // If Python has downloaded the files, a snapshot has links to them.
            if entry.file_type().map_err(failed)?.is_dir() {
                folders.push(name);
            } else if name.to_str().is_some_and(|name| address.has_text(name)) {
                files.push(snapshot.join(name));
            }
        }
    }
    files.sort();
    match files.is_empty() {
        true => Err(missing()),
        false => Ok(files),
    }
}

/// Returns the commit that the cache has for `address`.
fn cached_commit(address: &Address) -> Result<String, DataError> {
    if is_commit(&address.revision) {
        return Ok(address.revision.clone());
    }
    let (cache, repo) = (Cache::from_env(), repo(address, &address.revision));
    let references = cache.path().join(repo.folder_name()).join("refs");
    let commit = files::read_utf8(&references.join(repo.revision()))?;
    Ok(commit.trim().to_owned())
}

fn repo(address: &Address, revision: &str) -> Repo {
    let kind = match address.is_data_set {
        true => RepoType::Dataset,
        false => RepoType::Model,
    };
    Repo::with_revision(address.repository.clone(), kind, revision.into())
}

fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns a builder of clients, with the user's token and the settings in environment variables.
fn builder() -> ApiBuilder {
    let builder = ApiBuilder::from_env().with_token(token());
    match std::env::var("HF_ENDPOINT") {
        Ok(endpoint) => builder.with_endpoint(endpoint.trim_end_matches('/').into()),
        Err(_) => builder,
    }
}

/// Returns the user's token, from the environment or from the file of Python's `huggingface_hub`.
fn token() -> Option<String> {
    let own = std::env::var("HF_TOKEN").ok();
    own.filter(|token| !token.is_empty())
        .or_else(|| Cache::from_env().token())
}

/// Whether the network is at fault, and not the request.
fn is_unreachable(error: &ApiError) -> bool {
    match error {
        ApiError::RequestError(error) => !matches!(**error, ureq::Error::StatusCode(_)),
        ApiError::TooManyRetries(error) => is_unreachable(error),
        ApiError::IoError(error) => matches!(
            error.kind(),
            io::ErrorKind::TimedOut
                | io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
        ),
        _ => false,
    }
}

fn failed(address: &Address, error: &ApiError) -> DataError {
    let status = match error {
        ApiError::RequestError(error) => match **error {
            ureq::Error::StatusCode(status) => Some(status),
            _ => None,
        },
        _ => None,
    };
    let message = match status {
        Some(401 | 403) => "the hub refuses access, or there is no such repository; for one that is private or has \
                            terms to accept, set HF_TOKEN"
            .into(),
        Some(404) if address.is_data_set => "there is no such data set, revision or file".into(),
        Some(404) => "there is no such model, revision or file; a data set is at hf://datasets/OWNER/NAME".into(),
        _ => one_line(error),
    };
    DataError::Hub {
        address: address.to_string(),
        message,
    }
}

/// The progress of a download, in bytes.
#[derive(Clone, Debug, Default)]
struct Meter(Arc<[AtomicU64; 2]>);

impl Meter {
    fn begin(&self, done: u64, all: u64) {
        self.0[0].store(done, Ordering::Relaxed);
        self.0[1].store(all, Ordering::Relaxed);
    }

    fn add(&self, bytes: u64) {
        self.0[0].fetch_add(bytes, Ordering::Relaxed);
    }

    fn read(&self) -> [u64; 2] {
        self.0
            .each_ref()
            .map(|number| number.load(Ordering::Relaxed))
    }
}

/// Runs `work` in a thread of its own and reports its progress, because a request can neither be stopped nor have a
/// time limit. If this function returns early, the thread goes on alone. The next call continues its download.
fn in_background<T: Send + 'static>(
    progress: OnProgress,
    work: impl FnOnce(Meter) -> Result<T, ApiError> + Send + 'static,
) -> Result<Result<T, ApiError>, DataError> {
    let (meter, (sender, receiver)) = (Meter::default(), mpsc::channel());
    let inner = meter.clone();
    thread::spawn(move || sender.send(work(inner)));
    let (mut seen, mut since) = (meter.read(), Instant::now());
    loop {
        match receiver.recv_timeout(REPORT) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => {}
            // The thread panicked.
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(Err(
                    io::Error::other("the server's answer is invalid").into()
                ));
            }
        }
        let now = meter.read();
        report(
            progress,
            Stage::Downloading,
            now[0] as usize,
            now[1] as usize,
        )?;
        if now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() > PATIENCE {
            let seconds = PATIENCE.as_secs();
            let problem = format!("the server sent nothing for {seconds} s");
            return Ok(Err(io::Error::new(io::ErrorKind::TimedOut, problem).into()));
        }
    }
}
