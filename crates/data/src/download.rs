//! Downloads files and verifies them.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use residual_zoo_system::counted;

use crate::error::one_line;
use crate::progress::{OnProgress, Stage, report};
use crate::{DataError, files};

const URL: &str =
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt";
const URL_VARIABLE: &str = "ZOO_TINYSHAKESPEARE_URL";
/// Bytes read between two reports of progress.
const PART: u64 = 1 << 16;
const LENGTH: u64 = 1_115_394;
const HASH: &str = "5bd8f6749d3cda816828aabf1aebdc595f673de8102e521bbd8369ad4b7917e9";

/// Returns 1.1 MB of Shakespeare's plays, read from `residual-zoo/tinyshakespeare.txt` in the user's cache directory,
/// or downloaded if the file is missing or damaged. The environment variable `ZOO_TINYSHAKESPEARE_URL` overrides the
/// address.
///
/// # Errors
///
/// Returns the errors of [`fetch`].
pub fn tiny_shakespeare(progress: OnProgress) -> Result<String, DataError> {
    let url = std::env::var(URL_VARIABLE).unwrap_or_else(|_| URL.into());
    let bytes = match cache_file() {
        Some(path) => fetch_cached(&url, LENGTH, HASH, &path, progress)?,
        None => fetch(&url, LENGTH, HASH, progress)?,
    };
    String::from_utf8(bytes).map_err(|e| DataError::Checksum {
        url,
        problem: one_line(e.utf8_error()),
    })
}

/// Returns the path of the cached copy of tiny shakespeare.
fn cache_file() -> Option<PathBuf> {
    let cache = dirs::cache_dir()?;
    Some(cache.join("residual-zoo").join("tinyshakespeare.txt"))
}

/// Returns the number of bytes of tiny shakespeare, if it has been downloaded.
pub(crate) fn cached_shakespeare() -> Option<u64> {
    let length = cache_file()?.metadata().ok()?.len();
    (length == LENGTH).then_some(length)
}

/// Returns the file of `expected_len` bytes with the BLAKE3 hash `expected_hash` (hexadecimal). Reads the file from
/// `dest` if `dest` has this length and hash. Otherwise downloads the file from `url` and, if possible, saves it to
/// `dest`.
///
/// # Errors
///
/// Returns the errors of [`fetch`].
pub fn fetch_cached(
    url: &str,
    expected_len: u64,
    expected_hash: &str,
    dest: &Path,
    progress: OnProgress,
) -> Result<Vec<u8>, DataError> {
    if let Ok(bytes) = files::read_file(dest)
        && difference(&bytes, expected_len, expected_hash).is_none()
    {
        return Ok(bytes);
    }
    let bytes = fetch(url, expected_len, expected_hash, progress)?;
    let folder = dest.parent().unwrap_or(Path::new("."));
    // If the copy cannot be saved, the next call downloads the file again.
    if std::fs::create_dir_all(folder).is_ok() {
        let _ = files::write_atomically(dest, |file| file.write_all(&bytes));
    }
    Ok(bytes)
}

/// Downloads the file of `expected_len` bytes with the BLAKE3 hash `expected_hash` (hexadecimal) from `url`. Reads at
/// most one byte past that length.
///
/// # Errors
///
/// Returns [`DataError::Download`] if the download fails, [`DataError::Checksum`] if the file differs, and
/// [`DataError::Stopped`] if `progress` stops the work.
pub fn fetch(
    url: &str,
    expected_len: u64,
    expected_hash: &str,
    progress: OnProgress,
) -> Result<Vec<u8>, DataError> {
    report(progress, Stage::Downloading, 0, expected_len as usize)?;
    let failed = |message: String| DataError::Download {
        url: url.into(),
        message,
    };
    let agent = ureq::Agent::config_builder()
        .timeout_connect(Some(Duration::from_secs(15)))
        .timeout_global(Some(Duration::from_secs(300)))
        .build()
        .new_agent();
    let mut response = agent.get(url).call().map_err(|e| failed(one_line(e)))?;
    let mut bytes = Vec::new();
    let body = response.body_mut().as_reader();
    let mut body = body.take(expected_len.saturating_add(1));
    loop {
        let part = body.by_ref().take(PART).read_to_end(&mut bytes);
        if part.map_err(|e| failed(one_line(e)))? == 0 {
            break;
        }
        report(
            progress,
            Stage::Downloading,
            bytes.len(),
            expected_len as usize,
        )?;
    }
    match difference(&bytes, expected_len, expected_hash) {
        None => Ok(bytes),
        Some(problem) => Err(DataError::Checksum {
            url: url.into(),
            problem,
        }),
    }
}

/// Describes the difference between `bytes` and the expected file, if there is one.
fn difference(bytes: &[u8], expected_len: u64, expected_hash: &str) -> Option<String> {
    let len = bytes.len() as u64;
    if len > expected_len {
        return Some(format!(
            "it has more than {}",
            counted(expected_len, "byte")
        ));
    }
    if len < expected_len {
        return Some(format!(
            "it has {} instead of {expected_len}",
            counted(len, "byte")
        ));
    }
    let hash = blake3::hash(bytes).to_string();
    (hash != expected_hash).then(|| format!("its BLAKE3 is {hash} instead of {expected_hash}"))
}

#[cfg(test)]
mod tests {
    use residual_zoo_system::Blame as _;

    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    const BODY: &[u8] = b"To be, or not to be";

    /// Starts a server that answers one request with `status` and `body`. Returns its address.
    fn serve(status: &'static str, body: &'static [u8]) -> (String, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/input.txt", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = BufReader::new(stream.try_clone().unwrap()).lines();
            while request.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            // The client may close the connection before the end of a wrong body.
            let _ = stream.write_all(&[head.as_bytes(), body].concat());
        });
        (url, server)
    }

    fn hash() -> String {
        blake3::hash(BODY).to_string()
    }

    #[test]
    fn a_download_is_saved_and_not_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let dest = dir.path().join("new/file.txt");
        let (url, server) = serve("200 OK", BODY);
        let len = BODY.len() as u64;
        assert_eq!(
            fetch_cached(&url, len, &hash(), &dest, &mut |_, _, _| true).unwrap(),
            BODY
        );
        server.join().unwrap();
        assert_eq!(std::fs::read(&dest).unwrap(), BODY);
        assert_eq!(
            fetch_cached(&url, len, &hash(), &dest, &mut |_, _, _| true).unwrap(),
            BODY
        );
    }

    #[test]
    fn a_damaged_copy_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let dest = dir.path().join("file.txt");
        std::fs::write(&dest, b"To be, or not to bee").unwrap();
        let (url, server) = serve("200 OK", BODY);
        fetch_cached(&url, BODY.len() as u64, &hash(), &dest, &mut |_, _, _| true).unwrap();
        server.join().unwrap();
        assert_eq!(std::fs::read(&dest).unwrap(), BODY);
    }

    #[test]
    fn a_copy_that_cannot_be_saved_is_not_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), b"").unwrap();
        let (url, server) = serve("200 OK", BODY);
        let dest = dir.path().join("file/below.txt");
        assert_eq!(
            fetch_cached(&url, BODY.len() as u64, &hash(), &dest, &mut |_, _, _| true).unwrap(),
            BODY
        );
        server.join().unwrap();
    }

    #[test]
    fn another_file_is_refused_and_not_saved() {
        let dir = tempfile::tempdir().unwrap();
        let dest = dir.path().join("file.txt");
        for (body, problem) in [
            (&b"To be, or not to bX"[..], "its BLAKE3 is"),
            (&b"To be"[..], "it has 5 bytes instead of 19"),
            (&[b'x'; 100_000][..], "it has more than 19 bytes"),
        ] {
            let (url, server) = serve("200 OK", body);
            let error = fetch_cached(&url, 19, &hash(), &dest, &mut |_, _, _| true).unwrap_err();
            server.join().unwrap();
            assert!(matches!(error, DataError::Checksum { .. }), "{error}");
            assert!(error.to_string().contains(problem), "{error}");
            assert!(!dest.exists());
        }
    }

    #[test]
    fn a_failed_download_names_the_remedy() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let refused = format!("http://{}/input.txt", listener.local_addr().unwrap());
        drop(listener);
        let (missing, server) = serve("404 Not Found", b"");
        for url in [refused, missing, "no address".into()] {
            let error = fetch(&url, 19, &hash(), &mut |_, _, _| true).unwrap_err();
            assert!(matches!(error, DataError::Download { .. }), "{error}");
            assert!(!error.is_bad_input());
            let message = error.to_string();
            assert!(
                message.contains(&url) && message.contains("pass it with `--data PATH`"),
                "{message}"
            );
            assert_eq!(message.lines().count(), 1);
        }
        server.join().unwrap();
    }
}
