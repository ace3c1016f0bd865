//! Reads tensors of other projects, and converts their names and layouts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::backend::Flex;
use burn::module::Module;
use burn::tensor::{DType, TensorData};
use residual_zoo_core::{ModelConfig as _, Tensors, Vocabulary, params};
use residual_zoo_models::ModelConfig;
use residual_zoo_runs::Error as RunError;
use residual_zoo_runs::checkpoint::TensorFile;

use crate::Error;
use crate::pickle::{Id, Value};
use crate::torch::TorchFile;

/// The names of a tensor in the zoo and in another project.
pub struct Name {
    /// The name in the zoo. `{}` stands for the layer's number.
    ours: &'static str,
    /// The name in the other project. `{}` stands for the layer's number in that project, and `{end}` for the number of
    /// the final norm.
    theirs: &'static str,
    /// Whether the tensor is the weight of a linear layer, `[in, out]` in the zoo.
    linear: bool,
}

/// Names a tensor with the same layout in both projects.
pub const fn same(ours: &'static str, theirs: &'static str) -> Name {
    Name {
        ours,
        theirs,
        linear: false,
    }
}

/// Names the weight of a linear layer.
pub const fn linear(ours: &'static str, theirs: &'static str) -> Name {
    Name {
        ours,
        theirs,
        linear: true,
    }
}

/// The names and the layout of a model's tensors in another project.
pub struct Format {
    /// The names of the tensors, in lists that several formats can share.
    pub names: &'static [&'static [Name]],
    /// The number of the first layer in the other project.
    pub first_layer: usize,
    /// Whether the other project stores weights of linear layers as `[out, in]`.
    pub transposed: bool,
}

impl Format {
    /// Returns the name of each tensor of a model with `n_layer` layers, in the zoo and in the other project. Also
    /// returns whether the tensor is transposed.
    fn pairs(&self, n_layer: usize) -> impl Iterator<Item = (String, String, bool)> {
        let names = self.names.iter().copied().flatten();
        names.flat_map(move |name| {
            let layers = match name.ours.contains("{}") {
                true => n_layer,
                false => 1,
            };
            (0..layers).map(move |layer| {
                let ours = name.ours.replace("{}", &layer.to_string());
                let there = (layer + self.first_layer).to_string();
                let theirs = name.theirs.replace("{}", &there);
                // In a numbered list of modules, the final norm follows the layers and a module without tensors.
                let end = (n_layer + self.first_layer + 1).to_string();
                (
                    ours,
                    theirs.replace("{end}", &end),
                    name.linear && self.transposed,
                )
            })
        })
    }

    /// Returns the tensors of `model`, from the tensors of the file `path`. Tensors that only the zoo has keep their
    /// initial values.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Tensors`] with all tensors that are missing, unexpected or of another shape.
    pub fn read(
        &self,
        path: &Path,
        mut theirs: Tensors,
        model: &ModelConfig,
        vocabulary: Vocabulary,
    ) -> Result<Tensors, Error> {
        let assembled = model.assemble::<Flex>(vocabulary, &Default::default());
        let mut shapes = shapes(&assembled);
        let (mut found, mut missing, mut odd) = (Tensors::new(), Vec::new(), Vec::new());
        for (ours, name, transposed) in self.pairs(model.shape().n_layer) {
            let Some(expected) = shapes.remove(&ours) else {
                continue;
            };
            let Some(tensor) = theirs.remove(&name) else {
                missing.push(name);
                continue;
            };
            let mut needed = expected;
            if transposed {
                needed.reverse();
            }
            if *tensor.shape != *needed {
                let found = tensor.shape.to_vec();
                odd.push(format!("{name} has {found:?} instead of {needed:?}"));
                continue;
            }
            let tensor = in_f32(tensor);
            let tensor = match transposed {
                true => transpose(tensor),
                false => Some(tensor),
            };
            found.extend(tensor.map(|tensor| (ours, tensor)));
        }
        if !(missing.is_empty() && theirs.is_empty() && odd.is_empty()) {
            return Err(Error::Tensors {
                path: path.into(),
                missing,
                unexpected: theirs.into_keys().collect(),
                shapes: odd,
            });
        }
        if !shapes.is_empty() {
            let is_own = |info: &params::ParamInfo| shapes.contains_key(&info.name);
            found.extend(params::export_some::<Flex, _>(&assembled, is_own));
        }
        Ok(found)
    }

    /// Converts `ours`, the tensors of a model with `n_layer` layers, to the names and layout of the other project.
    pub fn write(&self, mut ours: Tensors, n_layer: usize) -> Tensors {
        let pairs = self
            .pairs(n_layer)
            .filter_map(|(name, theirs, transposed)| {
                let tensor = ours.remove(&name)?;
                let tensor = match transposed {
                    true => transpose(tensor)?,
                    false => tensor,
                };
                Some((theirs, tensor))
            });
        pairs.collect()
    }
}

/// Returns the tensors of `model`, from the tensors of the file `path`, which have the names of the zoo.
///
/// # Errors
///
/// Returns [`Error::Tensors`] with all tensors that are missing, unexpected or of another shape.
pub fn read_own(
    path: &Path,
    tensors: Tensors,
    model: &ModelConfig,
    vocabulary: Vocabulary,
) -> Result<Tensors, Error> {
    let shapes = shapes(&model.assemble::<Flex>(vocabulary, &Default::default()));
    let names = shapes.keys().filter(|name| !tensors.contains_key(*name));
    let missing: Vec<String> = names.cloned().collect();
    let names = tensors.keys().filter(|name| !shapes.contains_key(*name));
    let unexpected: Vec<String> = names.cloned().collect();
    let odd = tensors.iter().filter_map(|(name, tensor)| {
        let (found, expected) = (tensor.shape.to_vec(), shapes.get(name)?);
        (found != *expected).then(|| format!("{name} has {found:?} instead of {expected:?}"))
    });
    let odd: Vec<String> = odd.collect();
    if !(missing.is_empty() && unexpected.is_empty() && odd.is_empty()) {
        return Err(Error::Tensors {
            path: path.into(),
            missing,
            unexpected,
            shapes: odd,
        });
    }
    let tensors = tensors.into_iter();
    Ok(tensors
        .map(|(name, tensor)| (name, in_f32(tensor)))
        .collect())
}

/// Returns the shapes of a model's parameters, by name.
fn shapes(model: &impl Module<Flex>) -> BTreeMap<String, Vec<usize>> {
    params::shapes::<Flex, _>(model).into_iter().collect()
}

/// Leaves out the unembedding `head` of a model that ties it to the table `tokens`. A file may have the shared tensor
/// under either name.
///
/// # Errors
///
/// Returns an error if the unembedding differs from the table.
pub fn drop_tied(
    path: &Path,
    mut tensors: Tensors,
    head: &str,
    tokens: &str,
) -> Result<Tensors, Error> {
    let Some(found) = tensors.remove(head) else {
        return Ok(tensors);
    };
    match tensors.get(tokens) {
        None => drop(tensors.insert(tokens.into(), found)),
        Some(table) if table.shape == found.shape && table.as_bytes() == found.as_bytes() => {}
        Some(_) => {
            let problem = format!(
                "has {head}, which differs from {tokens} although the config ties them; set \
                 `tie_word_embeddings` to false in config.json"
            );
            return Err(Error::file(path, problem));
        }
    }
    Ok(tensors)
}

/// Converts a tensor to f32. Unlike `convert_dtype`, this allocates exactly the memory of the result.
fn in_f32(tensor: TensorData) -> TensorData {
    if tensor.dtype == DType::F32 {
        return tensor;
    }
    let mut floats = Vec::with_capacity(tensor.num_elements());
    floats.extend(tensor.iter::<f32>());
    TensorData::new(floats, tensor.shape.clone())
}

/// Transposes a matrix; `None` if `tensor` is not a matrix.
pub fn transpose(tensor: TensorData) -> Option<TensorData> {
    let &[rows, columns] = tensor.shape.as_slice() else {
        return None;
    };
    let (dtype, bytes) = (tensor.dtype, tensor.as_bytes());
    let size = dtype.size();
    let mut transposed = Vec::with_capacity(bytes.len());
    for column in 0..columns {
        for row in 0..rows {
            let place = (row * columns + column) * size;
            transposed.extend_from_slice(&bytes[place..place + size]);
        }
    }
    Some(TensorData::from_bytes_vec(
        transposed,
        vec![columns, rows],
        dtype,
    ))
}

/// Reads the tensors of safetensors files as f32, except tensors for which `is_buffer` holds. Converts each tensor
/// before it reads the next one, so that the memory is hardly more than that of the result.
///
/// # Errors
///
/// Returns an error if a file is missing or damaged, or if a tensor does not consist of floats. Also returns the errors
/// of [`merged`].
pub fn read_safetensors(files: &[PathBuf], is_buffer: fn(&str) -> bool) -> Result<Tensors, Error> {
    merged(files.iter().map(|file| {
        let open = TensorFile::open(file)?;
        let tensors = open.tensors(|name, _| !is_buffer(name));
        let tensors = tensors.map(|read| read.map(|(name, tensor)| (name, in_f32(tensor))));
        Ok((file, tensors.collect::<Result<_, RunError>>()?))
    }))
}

/// Refuses tensors of the file `path` with numbers that are not finite as f32.
///
/// # Errors
///
/// Returns an error with the name of the tensor in the file.
pub fn check_finite(path: &Path, tensors: &Tensors) -> Result<(), Error> {
    let odd = tensors
        .iter()
        .find(|(_, tensor)| tensor.iter::<f32>().any(|x| !x.is_finite()));
    match odd {
        Some((name, _)) => {
            let problem = format!("has numbers in {name} that are not finite as f32");
            Err(Error::file(path, problem))
        }
        None => Ok(()),
    }
}

/// Joins the tensors of several files.
///
/// # Errors
///
/// Returns the errors of `files`, and an error if two tensors have the same name or a number is not finite.
pub fn merged<'a>(
    files: impl Iterator<Item = Result<(&'a PathBuf, Tensors), Error>>,
) -> Result<Tensors, Error> {
    let mut all = Tensors::new();
    for file in files {
        let (file, tensors) = file?;
        check_finite(file, &tensors)?;
        if let Some(name) = tensors.keys().find(|name| all.contains_key(*name)) {
            let problem = format!("has the tensor {name}, and so does another file");
            return Err(Error::file(file, problem));
        }
        all.extend(tensors);
    }
    Ok(all)
}

/// Reads the tensors of the dictionary `state`, except tensors for which `is_buffer` holds.
///
/// # Errors
///
/// Returns an error if `state` is not a dictionary, or if a value is not a tensor of floats. Also returns an error if
/// the tensors are damaged, or have more numbers than the file has bytes.
pub fn read_torch(
    path: &Path,
    file: &mut TorchFile,
    state: Id,
    is_buffer: fn(&str) -> bool,
) -> Result<Tensors, Error> {
    let Value::Dict(entries) = file.pickle.get(state) else {
        return Err(Error::file(path, "has no dictionary of tensors"));
    };
    let entries = entries.clone();
    // Several tensors may share a storage, as tied tables do, so a small file could name many large tensors. No model
    // has more numbers than its file has bytes.
    let numbers = entries
        .iter()
        .map(|(_, value)| match file.pickle.get(*value) {
            Value::Tensor(tensor) => tensor
                .shape
                .iter()
                .fold(1, |all: usize, n| all.saturating_mul(*n)),
            _ => 0,
        });
    let numbers = numbers.fold(0, usize::saturating_add);
    let bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    if numbers as u64 > bytes {
        let problem = format!("names tensors of {numbers} numbers, but has only {bytes} bytes");
        return Err(Error::file(path, problem));
    }
    let mut all = Tensors::new();
    for (key, value) in entries {
        let name = file
            .pickle
            .text(key)
            .unwrap_or("a key that is not a string")
            .to_owned();
        if is_buffer(&name) {
            continue;
        }
        let Value::Tensor(tensor) = file.pickle.get(value).clone() else {
            return Err(Error::file(
                path,
                format!("has {name}, which is not a tensor"),
            ));
        };
        let tensor = file.tensor(&tensor);
        let tensor =
            tensor.map_err(|e| Error::file(path, format!("cannot be read: {name} {e}")))?;
        insert(path, &mut all, name, tensor)?;
    }
    Ok(all)
}

/// Renames the tensors of the file `path` with `plain`.
///
/// # Errors
///
/// Returns an error if two tensors get the same name.
pub fn rename(
    path: &Path,
    tensors: Tensors,
    plain: impl Fn(&str) -> String,
) -> Result<Tensors, Error> {
    let mut renamed = Tensors::new();
    for (name, tensor) in tensors {
        insert(path, &mut renamed, plain(&name), tensor)?;
    }
    Ok(renamed)
}

fn insert(path: &Path, all: &mut Tensors, name: String, tensor: TensorData) -> Result<(), Error> {
    if all.contains_key(&name) {
        let problem = format!("has the tensor {name} twice");
        return Err(Error::file(path, problem));
    }
    all.insert(name, tensor);
    Ok(())
}
