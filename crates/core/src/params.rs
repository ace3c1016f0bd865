//! The parameters of a model by name: what they are for, writing them out, reading them back.
//!
//! A name is the path of fields that leads to the parameter, such as
//! `block.layers.0.attention.branch.qkv.weight`. Enum variants leave no trace in it, so a model
//! built through an enum of architectures has the names of the model inside.

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Tensor, TensorData, backend::Backend};

/// What a parameter is for. Weight decay applies to [`Role::Weight`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A matrix between features.
    Weight,
    /// A shift after a matrix product.
    Bias,
    /// Scale or shift of a norm.
    Norm,
    /// A table that ids or positions index, or a key they are stored under.
    Embedding,
    /// What maps the stream to logits.
    Unembedding,
    /// A number, or one number per feature, that weighs or scales.
    Mixing,
}

impl Role {
    /// The role by position in the model: the module that owns the parameter, then the end of
    /// the stream it belongs to, then its rank.
    fn of(path: &[Segment], rank: usize) -> Self {
        let (owner, field) = path
            .last()
            .map_or(("", ""), |s| (s.owner.as_str(), s.field.as_str()));
        let inside = |field: &str| path.iter().any(|s| s.field == field);
        if owner.ends_with("Norm") || field.starts_with("norm") {
            Self::Norm
        } else if inside("embeddings") {
            if inside("unembedding") {
                Self::Unembedding
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
    /// The path of fields that leads to it, joined by dots.
    pub name: String,
    /// Burn's key for its gradient.
    pub id: ParamId,
    /// Its shape.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: Role,
    /// Whether it gets a gradient.
    pub trainable: bool,
}

/// Why a set of tensors does not fit a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The model has a parameter that the tensors lack.
    #[error("`{0}` is missing; is this the config the tensors were written with?")]
    Missing(String),
    /// A tensor belongs to no parameter.
    #[error("`{0}` is no parameter of this model; is this the config it was written with?")]
    Unexpected(String),
    /// A tensor has another shape than its parameter.
    #[error("`{name}` has shape {found:?}, the model needs {expected:?}")]
    Shape {
        /// The parameter.
        name: String,
        /// The shape of the parameter.
        expected: Vec<usize>,
        /// The shape of the tensor.
        found: Vec<usize>,
    },
}

/// Every parameter of `model`, in the order of its fields.
pub fn list<B: Backend, M: Module<B>>(model: &M) -> Vec<ParamInfo> {
    let mut walk = List::default();
    model.visit(&mut walk);
    walk.found
}

/// Every parameter of `model` by name, copied to the host.
pub fn export<B: Backend, M: Module<B>>(model: &M) -> BTreeMap<String, TensorData> {
    export_some(model, |_| true)
}

/// The parameters of `model` of which `wanted` holds, by name, copied to the host.
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

/// `model` with its parameters replaced by `tensors`, which must be exactly those of
/// [`export`]. Parameter ids and gradient requirements stay; values are converted to the
/// device's float type.
///
/// # Errors
///
/// A missing or unexpected name, or a wrong shape. The model is then dropped, so pass a clone to
/// keep it.
pub fn import<B: Backend, M: Module<B>>(
    model: M,
    mut tensors: BTreeMap<String, TensorData>,
) -> Result<M, ImportError> {
    for ParamInfo { name, shape, .. } in list::<B, M>(&model) {
        let tensor = tensors
            .get(&name)
            .ok_or_else(|| ImportError::Missing(name.clone()))?;
        if *tensor.shape != *shape {
            let found = tensor.shape.to_vec();
            return Err(ImportError::Shape {
                name,
                expected: shape,
                found,
            });
        }
    }
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

/// Appends rows to `tensor` until it has `shape`: those of `rows`, which has that shape, or zeros.
/// A tensor that differs in more than the number of rows stays as it is.
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

/// Where a walk over a model stands.
#[derive(Default)]
struct Path(Vec<Segment>);

impl Path {
    /// `container` is what Burn's derive reports: `Struct:Name`, `Enum:Name`, `Vec`, ….
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
        self.found.push(ParamInfo {
            name: self.path.name(),
            id: param.id,
            shape: param.lazy_shape().to_vec(),
            role: Role::of(&self.path.0, D),
            trainable: param.is_require_grad(),
        });
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
