//! Parameters of a model by name: their roles, export and import.
//!
//! A name is the path of fields that leads to the parameter, such as `block.layers.0.attention.branch.qkv.weight`.
//! Names omit enum variants, so the parameters of a model have the same names inside and outside an enum of
//! architectures.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Tensor, TensorData, backend::Backend};

use crate::{Matrices, materialise, unit};

/// The purpose of a parameter. Weight decay applies only to [`Role::Weight`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A matrix between features, or a depthwise filter.
    Weight,
    /// A matrix or table of [unit vectors](crate::unit).
    Unit,
    /// A shift after a matrix product.
    Bias,
    /// Scale or shift of a norm.
    Norm,
    /// A table indexed by ids, positions or loops; a class token; or a key under which tokens are stored.
    Embedding,
    /// The map from the stream to logits.
    Unembedding,
    /// A scalar or vector that weights or scales, or any parameter inside a field `mixing`.
    Mixing,
}

impl Role {
    /// Returns the role of the parameter at `path`. The role depends on the module that owns the parameter, on the
    /// fields of the path, and on the rank of the parameter. In the embeddings, the weights of the first convolution
    /// and of the map from image patches to the stream are matrices between features.
    fn of(path: &[Segment], rank: usize) -> Self {
        let (owner, field) = path
            .last()
            .map_or(("", ""), |s| (s.owner.as_str(), s.field.as_str()));
        let inside = |field: &str| path.iter().any(|s| s.field == field);
        if unit::axis_of(owner).is_some() {
            Self::Unit
        } else if owner.ends_with("Norm") || field.starts_with("norm") {
            Self::Norm
        } else if inside("embeddings") || ["timestep", "table"].contains(&field) {
            if inside("unembedding") {
                Self::Unembedding
            } else if inside("patch") || inside("stem") {
                match rank {
                    1 => Self::Bias,
                    _ => Self::Weight,
                }
            } else {
                Self::Embedding
            }
        } else if field == "bias" {
            Self::Bias
        } else if rank < 2 || inside("mixing") {
            Self::Mixing
        } else {
            Self::Weight
        }
    }
}

/// A parameter's name, identity, shape and role.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamInfo {
    /// The path of fields that leads to the parameter, joined by dots.
    pub name: String,
    /// Burn's key for the gradient of the parameter.
    pub id: ParamId,
    /// The shape of the parameter.
    pub shape: Vec<usize>,
    /// The purpose of the parameter.
    pub role: Role,
    /// The hidden matrices that the parameter consists of; `None` if it is not hidden.
    pub matrices: Option<Matrices>,
    /// Whether the parameter gets a gradient.
    pub trainable: bool,
}

/// A mismatch between tensors and the parameters of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The model has a parameter that the tensors lack.
    #[error("`{0}` is missing; were the tensors written with this config?")]
    Missing(String),
    /// The model has no parameter of this name.
    #[error("this model has no parameter `{0}`; was the tensor written with this config?")]
    Unexpected(String),
    /// A tensor and its parameter have different shapes.
    #[error("`{name}` has shape {found:?}, but the model needs {expected:?}")]
    Shape {
        /// The name of the parameter.
        name: String,
        /// The shape of the parameter.
        expected: Vec<usize>,
        /// The shape of the tensor.
        found: Vec<usize>,
    },
}

/// Lists every parameter of `model`, in the order of its fields. Draws the parameters that have no values yet, because
/// Burn knows only then whether a parameter gets a gradient.
pub fn list<B: Backend, M: Module<B>>(model: &M) -> Vec<ParamInfo> {
    let mut walk = List::default();
    model.visit(&mut walk);
    walk.found
}

/// Returns the name and the shape of every parameter of `model`, in the order of its fields. Draws no parameter.
pub fn shapes<B: Backend, M: Module<B>>(model: &M) -> Vec<(String, Vec<usize>)> {
    let mut walk = Shapes::default();
    model.visit(&mut walk);
    walk.found
}

/// Copies every parameter of `model` to the host, by name.
pub fn export<B: Backend, M: Module<B>>(model: &M) -> BTreeMap<String, TensorData> {
    export_some(model, |_| true)
}

/// Copies the parameters for which `wanted` is true from `model` to the host, by name.
pub fn export_some<B: Backend, M: Module<B>>(
    model: &M,
    wanted: impl Fn(&ParamInfo) -> bool,
) -> BTreeMap<String, TensorData> {
    let list = list::<B, M>(model).into_iter();
    let names = list.filter(|info| wanted(info)).map(|info| info.name);
    let mut walk = Export {
        names: names.collect(),
        ..Export::default()
    };
    model.visit(&mut walk);
    walk.found
}

/// Replaces the parameters of `model` with `tensors`, which must have the names and shapes of [`export`]. Parameter ids
/// and gradient requirements stay. Values are converted to the device's float type. Draws no parameter.
///
/// # Errors
///
/// Returns an error if a name is missing or unexpected, or if a shape is wrong. The model is then dropped; pass a clone
/// to keep it.
pub fn import<B: Backend, M: Module<B>>(
    model: M,
    tensors: BTreeMap<String, TensorData>,
) -> Result<M, ImportError> {
    check(&model, &tensors)?;
    replace(model, tensors)
}

/// Checks that `tensors` have the names and shapes of the parameters of `model`, as [`import`] does. Draws no
/// parameter.
///
/// # Errors
///
/// Returns an error if a name is missing or unexpected, or if a shape is wrong.
pub fn check<B: Backend, M: Module<B>>(
    model: &M,
    tensors: &BTreeMap<String, TensorData>,
) -> Result<(), ImportError> {
    let all = shapes::<B, M>(model);
    if let Some((name, _)) = all.iter().find(|(name, _)| !tensors.contains_key(name)) {
        return Err(ImportError::Missing(name.clone()));
    }
    check_shapes(&all, tensors)?;
    let names: BTreeSet<&String> = all.iter().map(|(name, _)| name).collect();
    match tensors.keys().find(|name| !names.contains(name)) {
        Some(name) => Err(ImportError::Unexpected(name.clone())),
        None => Ok(()),
    }
}

/// Checks the shapes of those `tensors` that have the name of one of `all` parameters.
fn check_shapes(
    all: &[(String, Vec<usize>)],
    tensors: &BTreeMap<String, TensorData>,
) -> Result<(), ImportError> {
    for (name, shape) in all {
        if let Some(tensor) = tensors.get(name)
            && *tensor.shape != **shape
        {
            return Err(ImportError::Shape {
                name: name.clone(),
                expected: shape.clone(),
                found: tensor.shape.to_vec(),
            });
        }
    }
    Ok(())
}

/// Like [`import`], but keeps the parameters whose names `tensors` lacks. Draws all parameters that have no values yet,
/// so that the kept ones do not depend on `tensors`.
///
/// # Errors
///
/// Returns an error if a name is unexpected, or if a shape is wrong.
pub fn import_some<B: Backend, M: Module<B>>(
    model: M,
    tensors: BTreeMap<String, TensorData>,
) -> Result<M, ImportError> {
    materialise(&model);
    check_shapes(&shapes::<B, M>(&model), &tensors)?;
    replace(model, tensors)
}

/// Replaces the parameters of `model` that `tensors` has.
fn replace<B: Backend, M: Module<B>>(
    model: M,
    mut tensors: BTreeMap<String, TensorData>,
) -> Result<M, ImportError> {
    let mut walk = Import {
        path: Path::default(),
        tensors: &mut tensors,
    };
    let model = model.map(&mut walk);
    match tensors.into_keys().next() {
        Some(name) => Err(ImportError::Unexpected(name)),
        None => Ok(model),
    }
}

/// Appends rows to `tensor` until it has `shape`. The new rows are the last rows of `rows`, which has this shape, or
/// zeros if `rows` is `None`. A tensor that has enough rows already, or differs in another axis, stays unchanged.
pub fn pad_rows(tensor: &mut TensorData, shape: &[usize], rows: Option<TensorData>) {
    let smaller = tensor.shape.len() == shape.len()
        && tensor.shape[1..] == shape[1..]
        && tensor.shape[0] < shape[0];
    if !smaller {
        return;
    }
    let dtype = tensor.dtype;
    let mut bytes = tensor.as_bytes().to_vec();
    let whole = shape.iter().product::<usize>() * dtype.size();
    match rows.map(|rows| rows.convert_dtype(dtype)) {
        Some(rows) => bytes.extend_from_slice(&rows.as_bytes()[bytes.len()..]),
        None => bytes.resize(whole, 0),
    }
    *tensor = TensorData::from_bytes_vec(bytes, shape.to_vec(), dtype);
}

struct Segment {
    field: String,
    owner: String,
}

/// The current position in a walk over a model.
#[derive(Default)]
struct Path(Vec<Segment>);

impl Path {
    /// Enters a field. `container` has the form that Burn's derive reports: `Struct:Name`, `Enum:Name`,
    /// `Vec`, ….
    fn enter(&mut self, field: &str, container: &str) {
        let owner = container.rsplit(':').next().unwrap_or(container);
        let field = if container.starts_with("Enum") {
            ""
        } else {
            field
        };
        self.0.push(Segment {
            field: field.into(),
            owner: owner.into(),
        });
    }

    fn exit(&mut self) {
        self.0.pop();
    }

    fn name(&self) -> String {
        let fields = self
            .0
            .iter()
            .map(|s| s.field.as_str())
            .filter(|f| !f.is_empty());
        fields.collect::<Vec<_>>().join(".")
    }

    /// Returns the hidden matrices of the parameter at this position.
    fn matrices(&self, shape: &[usize]) -> Option<Matrices> {
        let fields: Vec<&str> = self.0.iter().map(|s| s.field.as_str()).collect();
        Matrices::of(&fields, shape)
    }
}

#[derive(Default)]
struct List {
    path: Path,
    found: Vec<ParamInfo>,
}

impl<B: Backend> ModuleVisitor<B> for List {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let (shape, role) = (param.lazy_shape().to_vec(), Role::of(&self.path.0, D));
        self.found.push(ParamInfo {
            name: self.path.name(),
            id: param.id,
            matrices: self
                .path
                .matrices(&shape)
                .filter(|_| matches!(role, Role::Weight | Role::Unit)),
            shape,
            role,
            trainable: param.is_require_grad(),
        });
    }
}

#[derive(Default)]
struct Shapes {
    path: Path,
    found: Vec<(String, Vec<usize>)>,
}

impl<B: Backend> ModuleVisitor<B> for Shapes {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let shape = param.lazy_shape().to_vec();
        self.found.push((self.path.name(), shape));
    }
}

#[derive(Default)]
struct Export {
    path: Path,
    names: BTreeSet<String>,
    found: BTreeMap<String, TensorData>,
}

impl<B: Backend> ModuleVisitor<B> for Export {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let name = self.path.name();
        if self.names.contains(&name) {
            self.found.insert(name, param.val().into_data());
        }
    }
}

struct Import<'a> {
    path: Path,
    tensors: &'a mut BTreeMap<String, TensorData>,
}

impl<B: Backend> ModuleMapper<B> for Import<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        match self.tensors.remove(&self.path.name()) {
            Some(data) => {
                let tensor = Tensor::from_data(data, &param.lazy_device());
                let id = param.id;
                param.transform_for_load(tensor, id)
            }
            None => param,
        }
    }
}
