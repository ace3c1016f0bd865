//! Reads files that `torch.save` wrote. Since PyTorch 1.6, a file is a zip archive with a pickle and an entry for each
//! storage. Older files have several pickles, followed by all storages.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use burn::tensor::{DType, TensorData};
use residual_zoo_data::{check_is_file, read_file};
use zip::ZipArchive;
use zip::result::ZipError;

use crate::Error;
use crate::pickle::{Id, MOST_BYTES, Pickle, PickleError, StridedTensor, Value};

/// The first bytes of a file from before PyTorch 1.6: a pickle of the magic number.
const OLD: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";

type Archive = ZipArchive<BufReader<File>>;

/// A file that `torch.save` wrote.
pub struct TorchFile {
    /// The saved object.
    pub pickle: Pickle,
    storages: Storages,
}

enum Storages {
    /// The archive, and the folder of its storages.
    Zip(Box<Archive>, String),
    /// The bytes of the file, and the byte offset of the first number of each storage.
    Old(Vec<u8>, BTreeMap<String, usize>),
}

impl TorchFile {
    /// Opens a file. Its tensors are read later.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, is damaged, or is of another kind.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |problem: String| Error::file(path, problem);
        check_is_file(path)?;
        let begun = || {
            let mut file = File::open(path)?;
            let mut begin = Vec::new();
            file.by_ref()
                .take(OLD.len() as u64)
                .read_to_end(&mut begin)?;
            file.rewind()?;
            Ok((file, begin))
        };
        let begun: std::io::Result<_> = begun();
        let (file, begin) = begun.map_err(|e| failed(format!("cannot be read: {e}")))?;
        let opened = match begin.starts_with(b"PK") {
            true => Self::open_zip(file),
            false if begin == OLD => Self::open_old(read_file(path)?),
            false => Err("is not a file that `torch.save` wrote; give one, or safetensors".into()),
        };
        opened.map_err(failed)
    }

    fn open_zip(file: File) -> Result<Self, String> {
        let damaged = |e: ZipError| format!("is damaged: {e}; download or save it again");
        let mut zip = ZipArchive::new(BufReader::new(file)).map_err(damaged)?;
        let name = zip.file_names().find(|name| is_pickle(name));
        let Some(name) = name.map(str::to_owned) else {
            return Err("is an archive without data.pkl, so `torch.save` did not write it".into());
        };
        let folder = name.trim_end_matches("data.pkl").to_owned();
        if let Ok(order) = read_entry(&mut zip, &format!("{folder}byteorder"), 16)
            && order != b"little"
        {
            return Err(
                "was written on a big-endian machine; save it again on another machine".into(),
            );
        }
        let bytes = read_entry(&mut zip, &name, MOST_BYTES as u64)?;
        let (pickle, _) = Pickle::read(&bytes).map_err(unreadable)?;
        Ok(Self {
            pickle,
            storages: Storages::Zip(Box::new(zip), folder),
        })
    }

    fn open_old(bytes: Vec<u8>) -> Result<Self, String> {
        let mut at = 0;
        let mut next = || {
            let rest = &bytes[at..];
            let (pickle, length) = Pickle::read(&rest[..rest.len().min(MOST_BYTES)])?;
            at += length;
            Ok(pickle)
        };
        // The magic number, the version and the machine come before the object. The storage keys come after the object.
        let pickles = [next(), next(), next(), next(), next()];
        let [_, _, machine, object, keys] = pickles.map(|pickle| pickle.map_err(unreadable));
        let (machine, object, keys) = (machine?, object?, keys?);
        let little = machine.field(machine.top, "little_endian");
        if little.is_some_and(|little| *machine.get(little) == Value::Bool(false)) {
            return Err(
                "was written on a big-endian machine; save it again on another machine".into(),
            );
        }
        let kinds = storages_of(&object);
        let truncated = || unreadable(PickleError::Truncated);
        let mut places = BTreeMap::new();
        let Value::List(keys_) = keys.get(keys.top) else {
            return Err("is damaged: it does not list its storages".into());
        };
        for key in keys_ {
            let key = keys.text(*key).unwrap_or_default().to_owned();
            let count = bytes
                .get(at..at + 8)
                .and_then(|bytes| bytes.try_into().ok());
            let count = u64::from_le_bytes(count.ok_or_else(truncated)?) as usize;
            let Some(size) = kinds.get(&key) else {
                return Err(format!("is damaged: its storage `{key}` has no type"));
            };
            places.insert(key, at + 8);
            let end = count
                .checked_mul(*size)
                .and_then(|bytes| bytes.checked_add(at + 8));
            at = end
                .filter(|end| *end <= bytes.len())
                .ok_or_else(truncated)?;
        }
        Ok(Self {
            pickle: object,
            storages: Storages::Old(bytes, places),
        })
    }

    /// Reads a tensor of floats.
    ///
    /// # Errors
    ///
    /// Returns the problem if the tensor does not consist of floats or does not fit into its storage, or if the storage
    /// is missing or damaged. A tensor with more numbers than its storage does not fit, even if the tensor repeats
    /// numbers.
    pub fn tensor(&mut self, tensor: &StridedTensor) -> Result<TensorData, String> {
        let storage = Storage::of(&self.pickle, tensor.storage);
        let Storage { kind, key, count } = storage.ok_or("has a storage of unknown form")?;
        let dtype = match kind.as_str() {
            "FloatStorage" => DType::F32,
            "DoubleStorage" => DType::F64,
            "HalfStorage" => DType::F16,
            "BFloat16Storage" => DType::BF16,
            _ => {
                return Err(format!(
                    "is of type {kind}, which does not consist of floats"
                ));
            }
        };
        let read;
        let bytes = match &mut self.storages {
            Storages::Zip(zip, folder) => {
                let most = (count as u64).saturating_mul(dtype.size() as u64);
                read = read_entry(zip, &format!("{folder}data/{key}"), most)?;
                read.as_slice()
            }
            Storages::Old(bytes, places) => {
                let place = *places.get(&key).ok_or(format!("has no storage `{key}`"))?;
                &bytes[place..]
            }
        };
        let StridedTensor {
            offset,
            shape,
            strides,
            ..
        } = tensor;
        let numbers = gather(bytes, dtype.size(), count, (*offset, shape, strides));
        let repeats = shape
            .iter()
            .zip(strides)
            .any(|(n, stride)| *n > 1 && *stride == 0);
        let numbers = numbers.ok_or(match repeats {
            true => REPEATS,
            false => "is larger than its storage",
        })?;
        Ok(TensorData::from_bytes_vec(numbers, shape.clone(), dtype))
    }
}

const REPEATS: &str = "repeats the numbers of its storage, as `expand` does, so a small file could make a tensor of any \
                       size; save it with `.contiguous()`";

/// The name of a storage: `('storage', torch.FloatStorage, '0', 'cpu', 1024)`.
struct Storage {
    /// The type of the numbers.
    kind: String,
    key: String,
    /// Number of values in the storage.
    count: usize,
}

impl Storage {
    fn of(pickle: &Pickle, id: Id) -> Option<Self> {
        let Value::Tuple(parts) = pickle.get(id) else {
            return None;
        };
        let &[_, kind, key, _, count, ..] = parts.as_slice() else {
            return None;
        };
        let Value::Global(kind) = pickle.get(kind) else {
            return None;
        };
        Some(Self {
            kind: kind.strip_prefix("torch.")?.into(),
            key: pickle.text(key)?.into(),
            count: pickle.size(count)?,
        })
    }
}

/// Returns the bytes per number of each storage that a pickle names.
fn storages_of(pickle: &Pickle) -> BTreeMap<String, usize> {
    let tensors = pickle.values().filter_map(|value| match value {
        Value::Persistent(name) => Storage::of(pickle, *name),
        _ => None,
    });
    let size = |storage: Storage| {
        let size = match storage.kind.as_str() {
            "DoubleStorage" | "LongStorage" => 8,
            "FloatStorage" | "IntStorage" => 4,
            "HalfStorage" | "BFloat16Storage" | "ShortStorage" => 2,
            "ByteStorage" | "CharStorage" | "BoolStorage" => 1,
            _ => return None,
        };
        Some((storage.key, size))
    };
    tensors.filter_map(size).collect()
}

/// Collects the numbers of a tensor in order, from a storage of `count` numbers of `size` bytes each. Returns `None` if
/// the tensor does not fit into the storage.
fn gather(
    bytes: &[u8],
    size: usize,
    count: usize,
    (offset, shape, strides): (usize, &[usize], &[usize]),
) -> Option<Vec<u8>> {
    let bytes = bytes.get(..count.checked_mul(size)?)?;
    let all = shape
        .iter()
        .try_fold(1_usize, |all, n| all.checked_mul(*n))?;
    if all == 0 {
        return Some(Vec::new());
    }
    // Expanded tensors repeat numbers. They are not weights and could be of any size.
    if all > count {
        return None;
    }
    let mut last = offset;
    for (n, stride) in shape.iter().zip(strides) {
        last = last.checked_add((n - 1).checked_mul(*stride)?)?;
    }
    if last >= count {
        return None;
    }
    let mut contiguous = 1;
    let is_contiguous = shape.iter().zip(strides).rev().all(|(n, stride)| {
        let fits = *n == 1 || *stride == contiguous;
        contiguous *= n;
        fits
    });
    if is_contiguous {
        return Some(bytes[offset * size..(offset + all) * size].to_vec());
    }
    let mut numbers = Vec::with_capacity(all * size);
    let mut index = vec![0; shape.len()];
    for _ in 0..all {
        let steps = index.iter().zip(strides).map(|(i, stride)| i * stride);
        let place = offset + steps.sum::<usize>();
        numbers.extend_from_slice(&bytes[place * size..(place + 1) * size]);
        // Advances the index, with the last axis running fastest.
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Some(numbers)
}

fn is_pickle(name: &str) -> bool {
    name == "data.pkl" || name.ends_with("/data.pkl")
}

/// Reads an entry of the archive. The entry must have at most `most` bytes, and its checksum is verified.
fn read_entry(zip: &mut Archive, name: &str, most: u64) -> Result<Vec<u8>, String> {
    let damaged = |problem: String| {
        format!("is damaged: {name} in the archive: {problem}; download or save it again")
    };
    let mut entry = zip.by_name(name).map_err(|e| damaged(e.to_string()))?;
    let length = entry.size();
    if length > most {
        return Err(damaged(format!("has {length} bytes, more than {most}")));
    }
    let mut bytes = Vec::new();
    // A compressed entry may be longer than it declares.
    let read = entry.by_ref().take(most + 1).read_to_end(&mut bytes);
    read.map_err(|e| damaged(e.to_string()))?;
    match bytes.len() as u64 == length {
        true => Ok(bytes),
        false => Err(damaged(format!("does not have its {length} bytes"))),
    }
}

fn unreadable(error: PickleError) -> String {
    format!("has a pickle that cannot be read: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers of a tensor in a storage of the bytes 0, 1, 2, …
    fn numbers(count: u8, offset: usize, shape: &[usize], strides: &[usize]) -> Option<Vec<u8>> {
        let bytes: Vec<u8> = (0..count).collect();
        gather(&bytes, 1, count.into(), (offset, shape, strides))
    }

    #[test]
    fn strides_are_followed() {
        assert_eq!(numbers(6, 0, &[2, 3], &[3, 1]).unwrap(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(numbers(6, 0, &[3, 2], &[1, 3]).unwrap(), [0, 3, 1, 4, 2, 5]);
        assert_eq!(numbers(6, 2, &[2], &[3]).unwrap(), [2, 5]);
        assert_eq!(numbers(6, 5, &[], &[]).unwrap(), [5]);
        assert!(numbers(6, 0, &[0, 4], &[4, 1]).unwrap().is_empty());
        let transposed = numbers(24, 0, &[2, 3, 4], &[1, 8, 2]).unwrap();
        assert_eq!(transposed[..5], [0, 2, 4, 6, 8]);
    }

    #[test]
    fn what_is_outside_of_the_storage_is_refused() {
        assert_eq!(numbers(6, 1, &[2, 3], &[3, 1]), None);
        assert_eq!(numbers(6, 0, &[7], &[0]), None);
        assert_eq!(numbers(6, usize::MAX, &[1], &[1]), None);
        assert_eq!(numbers(6, 0, &[usize::MAX, 2], &[1, 1]), None);
        assert_eq!(numbers(6, 0, &[2], &[usize::MAX]), None);
        assert_eq!(gather(&[0; 7], 4, 2, (0, &[2], &[1])), None);
    }
}
