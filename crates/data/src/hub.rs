//! Files on the Hugging Face hub, by their addresses:
//!
//! - `hf://datasets/OWNER/NAME/PATH`, a file or directory of a data set;
//! - `hf://OWNER/NAME/PATH`, a file or directory of a model.
//!
//! After NAME there can be `@` and a branch, tag or commit. [`fetch`] and [`fetch_model`] download missing files into
//! the cache, which is the cache of Python's `huggingface_hub`. All other functions only read the cache.

#[cfg(feature = "hub")]
mod client;

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

use crate::progress::OnProgress;
use crate::text::is_text_file;
use crate::{DataConfig, DataError, TokenizerConfig};

/// Prefix of addresses.
const SCHEME: &str = "hf://";

/// An address on the hub, split into its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Whether the repository is a data set, rather than a model.
    is_data_set: bool,
    /// `OWNER/NAME`.
    repository: String,
    /// A branch, tag or commit.
    revision: String,
    /// The file or directory in the repository; empty for the whole repository.
    path: String,
}

impl Address {
    /// Parses the address in `path`; `None` if `path` is an ordinary path.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::InvalidAddress`] for an address that is incomplete, has an invalid name or revision, or
    /// leads out of the repository.
    pub fn parse(path: &Path) -> Result<Option<Self>, DataError> {
        let Some(place) = path.to_str().and_then(|path| path.strip_prefix(SCHEME)) else {
            return Ok(None);
        };
        let (is_data_set, rest) = match place.strip_prefix("datasets/") {
            Some(rest) => (true, rest),
            None => (false, place),
        };
        let mut parts = rest.splitn(3, '/');
        let mut next = || parts.next().unwrap_or_default();
        let (owner, name, path) = (next(), next(), next().trim_end_matches('/'));
        let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
        let is_name = |name: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !name.is_empty() && !name.starts_with('.') && name.chars().all(known)
        };
        match is_name(owner) && is_name(name) && is_name(revision) && is_inside(path) {
            true => Ok(Some(Self {
                is_data_set,
                repository: format!("{owner}/{name}"),
                revision: revision.into(),
                path: path.into(),
            })),
            false => Err(DataError::InvalidAddress {
                address: format!("{SCHEME}{place}"),
            }),
        }
    }

    /// Whether the address names a file, rather than a directory.
    fn is_file(&self) -> bool {
        let path = Path::new(&self.path);
        is_text_file(path) || path.extension().is_some_and(|ending| ending == "json")
    }

    /// Whether a file of the repository is one of the texts at this address. `README.md` at the root describes the
    /// repository, so it is not a text.
    #[cfg_attr(not(feature = "hub"), expect(dead_code))]
    fn has_text(&self, file: &str) -> bool {
        let path = Path::new(file);
        is_inside(file) && path.starts_with(&self.path) && is_text_file(path) && file != "README.md"
    }
}

/// The names of a model's files that are downloaded. Shards of weights are downloaded too.
#[cfg(any(feature = "hub", test))]
const MODEL_FILES: [&str; 12] = [
    "config.json",
    "tokenizer.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
];

/// Selects, from the `files` of a repository, the files of the model in its folder `folder`. Pickled weights are left
/// out if there are safetensors, and shards are left out if one file has all weights.
#[cfg(any(feature = "hub", test))]
fn model_files(folder: &str, files: Vec<String>) -> Vec<String> {
    let folder = Path::new(folder);
    let name = |file: &str| {
        let name = Path::new(file).strip_prefix(folder).ok()?.to_str()?;
        is_inside(file).then_some(name.to_owned())
    };
    let is_pickle = |name: &str| name.starts_with("pytorch_model");
    let is_shard = |name: &str| {
        let safe = name.starts_with("model-") && name.ends_with(".safetensors");
        let pickle = name.starts_with("pytorch_model-") && name.ends_with(".bin");
        (safe || pickle) && !name.contains('/')
    };
    let mut found: Vec<(String, String)> = files
        .into_iter()
        .filter_map(|file| Some((name(&file)?, file)))
        .filter(|(name, _)| MODEL_FILES.contains(&name.as_str()) || is_shard(name))
        .collect();
    let is_safe = |name: &str| name.starts_with("model.safetensors");
    if found.iter().any(|(name, _)| is_safe(name)) {
        found.retain(|(name, _)| !is_pickle(name));
    }
    let whole = ["model.safetensors", "pytorch_model.bin"];
    if found.iter().any(|(name, _)| whole.contains(&name.as_str())) {
        found.retain(|(name, _)| !is_shard(name) && !name.ends_with(".index.json"));
    }
    found.into_iter().map(|(_, file)| file).collect()
}

/// Whether a path stays within its repository.
fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    !path.contains('\\') && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Whether `path` is an address on the Hugging Face hub.
pub fn is_on_hub(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.starts_with(SCHEME))
}

/// Checks the addresses of `config` without using the network.
///
/// # Errors
///
/// Returns [`DataError::InvalidAddress`] for the first invalid address.
pub fn check(config: &DataConfig) -> Result<(), DataError> {
    addresses(config).map(drop)
}

/// Downloads the texts and the tokenizer of `config` that are on the hub and not yet in the cache.
///
/// # Errors
///
/// Returns an error for an invalid address or a failed download, and [`DataError::Stopped`] if `progress` stops the
/// work. If there is an address, returns [`DataError::MissingFeature`] without the cargo feature `hub`.
pub fn fetch(config: &DataConfig, progress: OnProgress) -> Result<(), DataError> {
    let addresses = addresses(config)?;
    addresses
        .iter()
        .try_for_each(|address| download(address, progress))
}

/// Returns the directory of a model. If `path` is an address, files that are not in the cache are downloaded.
///
/// # Errors
///
/// Returns an error for an invalid address or a failed download, and [`DataError::Stopped`] if `progress` stops the
/// work. For an address, returns [`DataError::MissingFeature`] without the cargo feature `hub`.
pub fn fetch_model(path: &Path, progress: OnProgress) -> Result<PathBuf, DataError> {
    match Address::parse(path)? {
        Some(address) => download_model(&address, progress),
        None => Ok(path.into()),
    }
}

/// Returns the addresses of the texts and the tokenizer.
fn addresses(config: &DataConfig) -> Result<Vec<Address>, DataError> {
    let texts = config.source.paths().into_iter().map(Address::parse);
    let tokenizer = match &config.tokenizer {
        TokenizerConfig::File(path) => tokenizer(path),
        _ => Ok(None),
    };
    let all = texts.chain([tokenizer]);
    all.filter_map(Result::transpose).collect()
}

/// Returns the cached file or files at the address `path`; `None` if `path` is an ordinary path.
///
/// # Errors
///
/// Returns an error for an invalid address, and for files that are not in the cache. For an address, returns
/// [`DataError::MissingFeature`] without the cargo feature `hub`.
pub fn local_texts(path: &Path) -> Result<Option<Vec<PathBuf>>, DataError> {
    let address = Address::parse(path)?;
    address.map(|address| cached(&address)).transpose()
}

/// Returns the path of a tokenizer's file. If `path` is an address, the file is in the cache. For the address of a
/// directory or of a whole repository, the file is its `tokenizer.json`.
///
/// # Errors
///
/// Returns the errors of [`local_texts`].
pub fn local_tokenizer(path: &Path) -> Result<Cow<'_, Path>, DataError> {
    Ok(match tokenizer(path)? {
        Some(address) => Cow::Owned(cached(&address)?.swap_remove(0)),
        None => Cow::Borrowed(path),
    })
}

fn tokenizer(path: &Path) -> Result<Option<Address>, DataError> {
    let mut address = Address::parse(path)?;
    if let Some(address) = address.as_mut().filter(|address| !address.is_file()) {
        let directory = std::mem::take(&mut address.path);
        address.path = match directory.as_str() {
            "" => "tokenizer.json".into(),
            directory => format!("{directory}/tokenizer.json"),
        };
    }
    Ok(address)
}

#[cfg(feature = "hub")]
use client::{cached, download, download_model};

#[cfg(not(feature = "hub"))]
fn download(address: &Address, _: OnProgress) -> Result<(), DataError> {
    cached(address).map(drop)
}

#[cfg(not(feature = "hub"))]
fn download_model(address: &Address, _: OnProgress) -> Result<PathBuf, DataError> {
    cached(address).map(|_| PathBuf::new())
}

#[cfg(not(feature = "hub"))]
fn cached(address: &Address) -> Result<Vec<PathBuf>, DataError> {
    Err(DataError::MissingFeature {
        what: format!("`{address}`"),
        feature: "hub",
    })
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            repository,
            revision,
            path,
            ..
        } = self;
        let kind = if self.is_data_set { "datasets/" } else { "" };
        write!(f, "{SCHEME}{kind}{repository}")?;
        if revision != "main" {
            write!(f, "@{revision}")?;
        }
        match path.as_str() {
            "" => Ok(()),
            path => write!(f, "/{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use residual_zoo_system::Blame as _;

    use super::*;

    fn parsed(text: &str) -> Address {
        Address::parse(Path::new(text)).unwrap().unwrap()
    }

    #[test]
    fn an_address_names_a_data_set_or_a_model() {
        let address = parsed("hf://datasets/a/b@v1.0/c/d.jsonl.zst");
        assert_eq!(address.repository, "a/b");
        assert_eq!(address.revision, "v1.0");
        assert_eq!(address.path, "c/d.jsonl.zst");
        assert!(address.is_data_set && address.is_file());
        let address = parsed("hf://a/b/");
        assert_eq!(
            (address.revision.as_str(), address.path.as_str()),
            ("main", "")
        );
        assert!(!address.is_data_set && !address.is_file());
    }

    #[test]
    fn an_address_is_written_as_it_is_read() {
        for address in ["hf://datasets/a/b@v1/c/d.txt", "hf://a/b", "hf://a/b/c"] {
            assert_eq!(parsed(address).to_string(), address);
        }
    }

    #[test]
    fn other_paths_are_not_addresses() {
        for path in ["a.txt", "/hf://a/b", "hf:/a/b", "HF://a/b", ""] {
            assert_eq!(Address::parse(Path::new(path)).unwrap(), None, "{path}");
        }
    }

    #[test]
    fn incomplete_addresses_and_those_that_lead_elsewhere_are_refused() {
        for address in [
            "hf://",
            "hf://a",
            "hf://datasets/a",
            "hf://a/b@",
            "hf://a/b@x y",
            "hf://../b/c.txt",
            "hf://a/../c.txt",
            "hf://a/b/../c.txt",
            "hf://a/b//c.txt",
            "hf://a/b/c\\d.txt",
            "hf://a/b@../c.txt",
            "hf://a?/b/c.txt",
        ] {
            let error = Address::parse(Path::new(address)).unwrap_err();
            assert!(
                error.to_string().contains("hf://datasets/OWNER/NAME"),
                "{error}"
            );
            assert!(error.is_bad_input());
        }
    }

    #[test]
    fn the_files_of_a_model_are_those_that_are_read() {
        let files = |folder: &str, all: &[&str]| {
            model_files(folder, all.iter().map(|file| (*file).to_owned()).collect())
        };
        let all = [
            "README.md",
            "config.json",
            "tokenizer.json",
            "model.safetensors",
            "pytorch_model.bin",
            "onnx/config.json",
            "tf_model.h5",
            "../config.json",
        ];
        assert_eq!(
            files("", &all),
            ["config.json", "tokenizer.json", "model.safetensors"]
        );
        assert_eq!(files("onnx", &all), ["onnx/config.json"]);
        assert_eq!(
            files("", &["pytorch_model.bin", "a.bin"]),
            ["pytorch_model.bin"]
        );
        let shards = [
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json",
            "pytorch_model.bin",
        ];
        assert_eq!(files("", &shards), shards[..2]);
    }

    #[test]
    fn the_tokenizer_of_a_model_is_its_tokenizer_json() {
        let file = |text: &str| tokenizer(Path::new(text)).unwrap().unwrap().path;
        assert_eq!(file("hf://a/b"), "tokenizer.json");
        assert_eq!(file("hf://a/b/c"), "c/tokenizer.json");
        assert_eq!(file("hf://a/b/c/my.json"), "c/my.json");
    }
}
