//! Downloads from the hub, through the crate `hf-hub`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use hf_hub::api::sync::{ApiBuilder, ApiError};
use hf_hub::api::{Progress, RepoInfo};
use hf_hub::{Cache, Repo, RepoType};

use super::Address;
use crate::progress::{OnProgress, Stage, report};
use crate::{DataError, one_line};

/// A server that sends nothing for so long is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a download is tried again.
const RETRIES: usize = 3;
/// How often progress is reported.
const REPORT: Duration = Duration::from_millis(100);

/// Downloads the file or the texts at `address` that are not in the cache. A file that is in the cache is used
/// without network.
///
/// # Errors
///
/// A failed download; [`DataError::Stopped`].
pub fn download(address: &Address, progress: OnProgress) -> Result<(), DataError> {
    let has_file = || address.is_file() && cached(address).is_ok();
    if is_commit(&address.revision) && has_file() {
        return Ok(());
    }
    let asked = repo(address, &address.revision);
    let info = in_background(progress, move |_| builder().build()?.repo(asked).info())?;
    let info: RepoInfo = match info {
        Err(error) if is_unreachable(&error) && has_file() => return Ok(()),
        info => info.map_err(|e| failed(address, &e))?,
    };
    if !is_commit(&info.sha) {
        let error = io::Error::other("the server's commit is not a hash");
        return Err(failed(address, &error.into()));
    }
    let mut files: Vec<String> = match address.is_file() {
        true => vec![address.path.clone()],
        false => {
            let files = info.siblings.into_iter().map(|file| file.rfilename);
            files.filter(|file| address.has_text(file)).collect()
        }
    };
    files.sort();
    if files.is_empty() {
        return Err(DataError::Empty {
            path: address.to_string().into(),
        });
    }
    // All of one commit, even if the branch moves on.
    for file in files {
        let repo = repo(address, &info.sha);
        let got = in_background(progress, move |meter| {
            match Cache::from_env().repo(repo.clone()).get(&file) {
                Some(_) => Ok(()),
                None => {
                    let api = builder().with_retries(RETRIES).build()?;
                    api.repo(repo)
                        .download_with_progress(&file, meter)
                        .map(drop)
                }
            }
        });
        got?.map_err(|e| failed(address, &e))?;
    }
    let cache = Cache::from_env().repo(repo(address, &address.revision));
    let noted = cache.create_ref(&info.sha);
    noted.map_err(|e| DataError::io(Cache::from_env().path(), "write", e))
}

/// The file or the texts at `address`, from the cache.
///
/// # Errors
///
/// If there are none.
pub fn cached(address: &Address) -> Result<Vec<PathBuf>, DataError> {
    let missing = || DataError::NotInHubCache {
        address: address.to_string(),
    };
    let (cache, repo) = (Cache::from_env(), repo(address, &address.revision));
    if address.is_file() {
        let file = cache.repo(repo).get(&address.path);
        return Ok(vec![file.ok_or_else(missing)?]);
    }
    let reference = cache.path().join(repo.folder_name()).join("refs");
    let commit = fs::read_to_string(reference.join(repo.revision())).map_err(|_| missing())?;
    let snapshot = cache.repo(repo).pointer_path(commit.trim());
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from(&address.path)];
    while let Some(folder) = folders.pop() {
        let place = snapshot.join(&folder);
        let failed = |e| DataError::io(&place, "read", e);
        for entry in fs::read_dir(&place).map_err(|_| missing())? {
            let entry = entry.map_err(failed)?;
            let name = folder.join(entry.file_name());
            // A snapshot has directories and links to files.
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

/// The client that the environment asks for.
fn builder() -> ApiBuilder {
    let builder = ApiBuilder::from_env();
    match std::env::var("HF_TOKEN") {
        Ok(token) if !token.is_empty() => builder.with_token(Some(token)),
        _ => builder,
    }
}

/// Whether the network is at fault, and not the request.
fn is_unreachable(error: &ApiError) -> bool {
    match error {
        ApiError::RequestError(error) => !matches!(**error, ureq::Error::StatusCode(_)),
        ApiError::TooManyRetries(error) => is_unreachable(error),
        ApiError::IoError(error) => error.kind() == io::ErrorKind::TimedOut,
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

/// How far a download is, in bytes.
#[derive(Clone, Debug, Default)]
struct Meter(Arc<[AtomicU64; 2]>);

impl Meter {
    fn read(&self) -> [u64; 2] {
        self.0
            .each_ref()
            .map(|number| number.load(Ordering::Relaxed))
    }
}

impl Progress for Meter {
    fn init(&mut self, size: usize, _: &str) {
        self.0[0].store(0, Ordering::Relaxed);
        self.0[1].store(size as u64, Ordering::Relaxed);
    }

    fn update(&mut self, size: usize) {
        self.0[0].fetch_add(size as u64, Ordering::Relaxed);
    }

    fn finish(&mut self) {}
}

/// Does `work` in a thread of its own and reports how far it is, because `hf-hub` can neither be stopped nor
/// waits for a limited time. If this returns early, the thread is left to itself; what it has downloaded is
/// continued the next time.
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
            // It panicked.
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
