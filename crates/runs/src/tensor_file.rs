//! Reads and writes safetensors files, one tensor at a time, so that no file is in memory as a whole.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::{DType, TensorData};
use residual_zoo_data::{DataError, check_is_file, unless_stopped};
use safetensors::tensor::{Metadata, TensorView};
use safetensors::{Dtype, SafeTensorError};

use crate::{Error, disk};

/// Writes `tensors` as safetensors, with at most one entry of metadata.
///
/// # Errors
///
/// Returns an error if a tensor has a type that cannot be saved, and I/O errors.
pub fn write_tensors(
    path: &Path,
    tensors: &BTreeMap<String, TensorData>,
    metadata: Option<(&str, String)>,
) -> Result<(), Error> {
    let invalid = |problem: String| Error::Checkpoint {
        path: path.into(),
        problem,
    };
    let views: Result<Vec<_>, Error> = tensors
        .iter()
        .map(|(name, data)| {
            let dtype = match data.dtype {
                DType::F64 => Dtype::F64,
                DType::F32 => Dtype::F32,
                DType::F16 => Dtype::F16,
                DType::BF16 => Dtype::BF16,
                other => {
                    return Err(invalid(format!(
                        "`{name}` has type {other:?}, which cannot be saved"
                    )));
                }
            };
            let view = TensorView::new(dtype, data.shape.to_vec(), data.as_bytes());
            Ok((name, view.map_err(|e| invalid(e.to_string()))?))
        })
        .collect();
    let views = views?;
    let metadata = metadata.map(|(key, value)| [(key.to_string(), value)].into());
    disk::write_by(path, || {
        let views = views.iter().map(|(name, view)| (name, view));
        let written = safetensors::serialize_to_file(views, metadata.clone(), path);
        written.map_err(|error| match error {
            SafeTensorError::IoError(error) => error,
            other => io::Error::other(other),
        })
    })
}

/// Maximum number of bytes of a safetensors header. A longer header is accepted only if it is a small share of its
/// file. A header has about a hundred bytes per tensor, and takes many times its size in memory when parsed.
const MOST_HEADER: u64 = 1 << 21;
const HEADER_SHARE: u64 = 32;

/// The tensors and the metadata of a file.
type Content = (BTreeMap<String, TensorData>, BTreeMap<String, String>);

/// Reads a safetensors file.
///
/// # Errors
///
/// Returns an error if the file is missing or damaged, or a tensor does not consist of floats. Also returns I/O errors.
pub fn read_tensors(path: &Path) -> Result<Content, Error> {
    let file = TensorFile::open(path)?;
    let tensors = file.tensors(|_| true).collect::<Result<_, Error>>()?;
    let metadata = file.header.metadata().iter().flatten();
    let metadata = metadata.map(|(key, value)| (key.clone(), value.clone()));
    Ok((tensors, metadata.collect()))
}

/// Reads a safetensors file whose numbers must all be finite.
///
/// # Errors
///
/// Returns the errors of [`read_tensors`], and an error that names the first tensor with a number that is not finite.
pub fn read_finite_tensors(path: &Path) -> Result<Content, Error> {
    let content = read_tensors(path)?;
    let mut tensors = content.0.iter();
    let is_odd = |data: &TensorData| data.iter::<f64>().any(|x| !x.is_finite());
    match tensors.find(|(_, data)| is_odd(data)) {
        None => Ok(content),
        Some((name, _)) => Err(Error::Checkpoint {
            path: path.into(),
            problem: format!(
                "`{name}` has values that are not finite; continue from an earlier checkpoint: delete this one"
            ),
        }),
    }
}

/// An open safetensors file.
pub struct TensorFile {
    path: PathBuf,
    file: Arc<File>,
    header: Metadata,
    /// The offset of the first tensor, in bytes.
    begin: u64,
}

impl TensorFile {
    /// Opens a file, and reads its header.
    ///
    /// # Errors
    ///
    /// Returns an error if the file is missing or damaged. Also returns I/O errors.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let damaged = |problem: &str| Error::Checkpoint {
            path: path.into(),
            problem: problem.into(),
        };
        let place = path.to_owned();
        let opened = unless_stopped(move || {
            check_is_file(&place)?;
            let opened = File::open(&place);
            Ok::<_, DataError>(opened.and_then(|file| Ok((file.metadata()?.len(), file))))
        })??;
        let (bytes, file) = opened.map_err(Error::io("read", path))?;
        let file = Arc::new(file);
        let Some(after_length) = bytes.checked_sub(8) else {
            return Err(damaged("is damaged: it is too short"));
        };
        let length = read(path, &file, 0, 8)?;
        let length = length.first_chunk().copied().map_or(0, u64::from_le_bytes);
        let most = MOST_HEADER.max(bytes / HEADER_SHARE);
        if length > most {
            let problem = format!("is not a checkpoint: its header has more than {most} bytes");
            return Err(damaged(&problem));
        }
        if length > after_length {
            return Err(damaged("is damaged: its header is cut off"));
        }
        let header = read(path, &file, 8, length as usize)?;
        let header: Metadata = serde_json::from_slice(&header)
            .map_err(|e| damaged(&format!("is damaged: its header is invalid: {e}")))?;
        if length + header.data_len() as u64 != after_length {
            return Err(damaged(
                "is damaged: its header and its length do not agree",
            ));
        }
        Ok(Self {
            path: path.into(),
            file,
            header,
            begin: 8 + length,
        })
    }

    /// Reads the tensors whose names are `wanted`, one by one, in the order of the file.
    ///
    /// # Errors
    ///
    /// Each item is an error if its tensor does not consist of floats, or if reading fails.
    pub fn tensors(
        &self,
        wanted: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = Result<(String, TensorData), Error>> {
        let names = self.header.offset_keys().into_iter();
        let names = names.filter(move |name| wanted(name));
        names.map(|name| {
            let tensor = self.tensor(&name)?;
            Ok((name, tensor))
        })
    }

    fn tensor(&self, name: &str) -> Result<TensorData, Error> {
        let damaged = |problem: String| Error::Checkpoint {
            path: self.path.clone(),
            problem,
        };
        let info = self.header.info(name);
        let info = info.ok_or_else(|| damaged(format!("has no tensor `{name}`")))?;
        let dtype = match info.dtype {
            Dtype::F64 => DType::F64,
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            other => {
                let problem = format!("`{name}` has type {other:?}, which is not a float type");
                return Err(damaged(problem));
            }
        };
        let (begin, end) = info.data_offsets;
        let begin_in_file = self.begin + begin as u64;
        let bytes = read(&self.path, &self.file, begin_in_file, end - begin)?;
        Ok(TensorData::from_bytes_vec(bytes, info.shape.clone(), dtype))
    }
}

/// Reads `length` bytes from the offset `begin` of `file`, which is open at `path`.
fn read(path: &Path, file: &Arc<File>, begin: u64, length: usize) -> Result<Vec<u8>, Error> {
    let file = file.clone();
    let read = unless_stopped(move || {
        let mut file = &*file;
        let mut bytes = vec![0; length];
        file.seek(SeekFrom::Start(begin))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    })?;
    read.map_err(Error::io("read", path))
}
