//! Reads and writes safetensors files, one tensor at a time, so that no file is in memory as a whole.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{DType, Element, TensorData, bf16, f16};
use bytemuck::Pod;
use residual_zoo_data::{DataError, Patience, check_is_file, unless_stopped};
use safetensors::tensor::{Metadata, TensorInfo, TensorView};
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
/// Maximum number of bytes of a header, however large its file is. The library has the same limit.
const MOST_OF_ANY_HEADER: u64 = 100_000_000;

/// The tensors and the metadata of a file.
type Content = (BTreeMap<String, TensorData>, BTreeMap<String, String>);

/// Reads a safetensors file.
///
/// # Errors
///
/// Returns an error if the file is missing or damaged, or a tensor does not consist of floats. Also returns I/O errors.
pub fn read_tensors(path: &Path) -> Result<Content, Error> {
    let file = TensorFile::open(path)?;
    let tensors = file.tensors(|_, _| true).collect::<Result<_, Error>>()?;
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
    file: Arc<Mutex<File>>,
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
        let damaged = |problem: &str| damaged(path, problem.into());
        let place = path.to_owned();
        let opened = unless_stopped(move || {
            check_is_file(&place)?;
            let opened = File::open(&place);
            Ok::<_, DataError>(opened.and_then(|file| Ok((file.metadata()?.len(), file))))
        })??;
        let (bytes, file) = opened.map_err(Error::io("read", path))?;
        let file = Arc::new(Mutex::new(file));
        let Some(after_length) = bytes.checked_sub(8) else {
            return Err(damaged("is damaged: it is too short"));
        };
        let [length] = read::<u64>(path, &file, 0, 1)?[..] else {
            return Err(damaged("is damaged: it is too short"));
        };
        let length = u64::from_le(length);
        let most = MOST_HEADER.max(bytes / HEADER_SHARE);
        let most = most.min(MOST_OF_ANY_HEADER);
        if length > most {
            let problem = format!("is not a checkpoint: its header has more than {most} bytes");
            return Err(damaged(&problem));
        }
        let Some(of_tensors) = after_length.checked_sub(length) else {
            return Err(damaged("is damaged: its header is cut off"));
        };
        let header = read::<u8>(path, &file, 8, length as usize)?;
        let header: Metadata = serde_json::from_slice(&header)
            .map_err(|e| damaged(&format!("is damaged: its header is invalid: {e}")))?;
        if header.data_len() as u64 != of_tensors {
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

    /// Reads the tensors whose name and shape are `wanted`, one by one, in the order of the file.
    ///
    /// # Errors
    ///
    /// Each item is an error if its tensor does not consist of floats, if reading fails, or if the user stops the
    /// process.
    pub fn tensors(
        &self,
        wanted: impl Fn(&str, &[usize]) -> bool,
    ) -> impl Iterator<Item = Result<(String, TensorData), Error>> {
        let mut patience = Patience::default();
        let names = self.header.offset_keys().into_iter();
        let infos = names.filter_map(|name| Some((self.header.info(&name)?, name)));
        let infos = infos.filter(move |(info, name)| wanted(name, &info.shape));
        infos.map(move |(info, name)| {
            patience.check()?;
            let tensor = self.tensor(&name, info)?;
            Ok((name, tensor))
        })
    }

    fn tensor(&self, name: &str, info: &TensorInfo) -> Result<TensorData, Error> {
        match info.dtype {
            Dtype::F64 => self.numbers::<f64>(info),
            Dtype::F32 => self.numbers::<f32>(info),
            Dtype::F16 => self.numbers::<f16>(info),
            Dtype::BF16 => self.numbers::<bf16>(info),
            other => {
                let problem = format!("`{name}` has type {other:?}, which is not a float type");
                Err(damaged(&self.path, problem))
            }
        }
    }

    fn numbers<E: Element + Pod + Send>(&self, info: &TensorInfo) -> Result<TensorData, Error> {
        let (begin, end) = info.data_offsets;
        let count = (end - begin) / size_of::<E>();
        let numbers = read::<E>(&self.path, &self.file, self.begin + begin as u64, count)?;
        Ok(TensorData::new(numbers, info.shape.clone()))
    }
}

fn damaged(path: &Path, problem: String) -> Error {
    Error::Checkpoint {
        path: path.into(),
        problem,
    }
}

/// Reads `count` numbers from the offset `begin` of `file`, which is open at `path`.
fn read<E: Pod + Send>(
    path: &Path,
    file: &Arc<Mutex<File>>,
    begin: u64,
    count: usize,
) -> Result<Vec<E>, Error> {
    let file = file.clone();
    let read = unless_stopped(move || {
        let mut numbers = Vec::new();
        numbers.try_reserve_exact(count)?;
        numbers.resize(count, E::zeroed());
        // An abandoned read keeps the lock, so it cannot move the file under a later one.
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(begin))?;
        file.read_exact(bytemuck::cast_slice_mut(&mut numbers))?;
        Ok::<_, io::Error>(numbers)
    })?;
    read.map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => damaged(
            path,
            "is damaged: it became shorter while it was read".into(),
        ),
        _ => Error::io("read", path)(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let length = (header.len() as u64).to_le_bytes();
        [&length[..], header.as_bytes(), &vec![0; data]].concat()
    }

    #[test]
    fn every_type_is_written_as_by_the_library_and_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.safetensors");
        let numbers = TensorData::new(vec![0.5_f32, -2.0, 3.0, 1e-3, 0.0, 7.0], [2, 3]);
        let tensors: BTreeMap<String, TensorData> =
            [DType::F64, DType::F32, DType::F16, DType::BF16]
                .map(|dtype| (format!("{dtype:?}"), numbers.clone().convert_dtype(dtype)))
                .into();
        write_tensors(&path, &tensors, Some(("steps", "3".into()))).unwrap();
        let views = tensors.iter().map(|(name, data)| {
            let dtype = match data.dtype {
                DType::F64 => Dtype::F64,
                DType::F16 => Dtype::F16,
                DType::BF16 => Dtype::BF16,
                _ => Dtype::F32,
            };
            let view = TensorView::new(dtype, data.shape.to_vec(), data.as_bytes());
            (name, view.unwrap())
        });
        let metadata = Some([("steps".to_owned(), "3".to_owned())].into());
        let expected = safetensors::serialize(views, metadata).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), expected);

        let (read, metadata) = read_tensors(&path).unwrap();
        assert_eq!(read, tensors);
        assert_eq!(metadata["steps"], "3");
        let some = TensorFile::open(&path).unwrap();
        let some = some.tensors(|name, shape| name == "F32" && *shape == [2, 3]);
        let some: Vec<_> = some.map(|read| read.unwrap()).collect();
        assert_eq!(some, [("F32".to_owned(), tensors["F32"].clone())]);
    }

    #[test]
    fn a_file_whose_header_and_length_do_not_agree_is_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.safetensors");
        let one = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let most = u64::MAX / 8;
        // Eight tensors whose length overflows together with the length of the header.
        let tensor = |i: u64| {
            let (from, to) = (i * most, (i + 1) * most);
            format!(r#""{i}":{{"dtype":"U8","shape":[{most}],"data_offsets":[{from},{to}]}}"#)
        };
        let huge = format!("{{{}}}", (0..8).map(tensor).collect::<Vec<_>>().join(","));
        for (bytes, says) in [
            (vec![], "it is too short"),
            (vec![1; 7], "it is too short"),
            (vec![255; 8], "is not a checkpoint"),
            (file(one, 8)[..40].to_vec(), "its header is cut off"),
            (file("{", 0), "its header is invalid"),
            (file(one, 7), "its header and its length do not agree"),
            (file(one, 9), "its header and its length do not agree"),
            (file(&huge, 0), "its header and its length do not agree"),
        ] {
            std::fs::write(&path, &bytes).unwrap();
            let error = read_tensors(&path).unwrap_err().to_string();
            assert!(error.contains(says), "{error}, not {says}");
        }
        // Only a tensor that is read must consist of floats.
        let whole = r#"{"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}"#;
        std::fs::write(&path, file(whole, 8)).unwrap();
        let error = read_tensors(&path).unwrap_err().to_string();
        assert!(error.contains("`a` has type I32"), "{error}");
        let open = TensorFile::open(&path).unwrap();
        assert_eq!(open.tensors(|_, _| false).count(), 0);
        let empty = r#"{"a":{"dtype":"F32","shape":[0,1152921504606846976],"data_offsets":[0,0]}}"#;
        std::fs::write(&path, file(empty, 0)).unwrap();
        let (read, _) = read_tensors(&path).unwrap();
        assert_eq!(*read["a"].shape, [0, 1 << 60]);
    }
}
