//! Merges two trained models, and extracts the added pairs of a tuned model (sections 4.4 and 5).
//!
//! The paper mentions merging as a reason for norms without weights, but gives neither an equation nor an experiment.

use burn::tensor::TensorData;
use residual_zoo_core::{ConfigError, Tensors};

use crate::{Added, Normalization, Tau, TokenFormerConfig};

/// An error in merging two models.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MergeError {
    /// The configs cannot be merged, or `value_scale` is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tensor that must be equal in both models differs.
    #[error(
        "`{0}` differs in the two models; only keys and values are merged, so all other weights must be equal, as in two \
         models that were tuned from one"
    )]
    Differs(String),
    /// The models were tuned from different pairs.
    #[error(
        "`{0}` differs in the two models, so they were not tuned from one model; tune both from the same one"
    )]
    OtherBase(String),
    /// One of the models lacks a tensor.
    #[error("`{0}` is missing in one of the models")]
    Missing(String),
}

/// The config of a model, and its weights by name.
pub type Weighted<'a> = (&'a TokenFormerConfig, &'a Tensors);

/// Appends the pairs of `b` to the pairs of `a`, in each Pattention: K = \[K_a; K_b\], V = s \[V_a; V_b\] with s =
/// `value_scale`. All other weights except τ, such as tables and norms, must be equal.
///
/// τ becomes √(τ_a² + τ_b²), or τ_a + τ_b for normalizations with the default τ = n. If τ_a and τ_b are the defaults,
/// this is the default τ of all `n_a + n_b` pairs. τ_a and τ_b come from the weights. With eq. 5 and ε = 0, if both
/// models' scores A and B have the same size relative to τ, `‖A‖ / τ_a = ‖B‖ / τ_b`, the output of each Pattention is
/// exactly s times the sum of both outputs. With every Θ, if ε = 0 and s = ½, a model merged with itself computes the
/// same function.
///
/// Two models that were tuned from one model share its pairs. In this case, only their added pairs are joined, and τ
/// stays the same.
///
/// # Errors
///
/// Returns an error if the configs differ in more than the numbers of pairs, τ, dropout and initialisation. Also
/// returns an error if a model uses μP or LoRA, if one of the models lacks a tensor, or if weights that must be equal
/// differ. If one model has added pairs, both must have them, and all other pairs and τ must be equal. `value_scale`
/// must be finite as f32, and not 0.
pub fn merge(
    (a, a_weights): Weighted,
    (b, b_weights): Weighted,
    value_scale: f64,
) -> Result<(TokenFormerConfig, Tensors), MergeError> {
    let scale = value_scale as f32;
    if !scale.is_finite() || scale == 0.0 {
        let problem = format!("is {value_scale}; it must be finite as f32, and not 0");
        return Err(ConfigError::new("value_scale", problem).into());
    }
    let mut config = merged_config(a, b)?;
    let tuned = config.added.is_some();
    let by_count = matches!(
        config.normalization,
        Normalization::GeluL1Norm | Normalization::Softmax
    );
    let sum = |a: f32, b: f32| match by_count {
        true => a + b,
        false => a.hypot(b),
    };
    let mut weights = Tensors::new();
    for (name, of_a) in a_weights {
        let of_b = b_weights
            .get(name)
            .ok_or_else(|| MergeError::Missing(name.clone()))?;
        let joins = !tuned || name.contains(".added.");
        let value = match name.rsplit('.').next() {
            Some("keys") if joins => rows(of_a, of_b, 1.0),
            Some("values") if joins => rows(of_a, of_b, scale),
            Some("tau") if !tuned => {
                let taus = of_a.iter::<f32>().zip(of_b.iter::<f32>());
                let taus: Vec<f32> = taus.map(|(a, b)| sum(a, b)).collect();
                TensorData::new(taus, [1])
            }
            _ if of_a.iter::<f32>().eq(of_b.iter::<f32>()) => of_a.clone(),
            Some("keys" | "values") => return Err(MergeError::OtherBase(name.clone())),
            _ => return Err(MergeError::Differs(name.clone())),
        };
        weights.insert(name.clone(), value);
    }
    match b_weights.keys().find(|name| !a_weights.contains_key(*name)) {
        Some(name) => Err(MergeError::Missing(name.clone())),
        None => {
            config.tau = tau_of(&config, &weights).or(config.tau);
            Ok((config, weights))
        }
    }
}

/// Returns the τ of the weights; `None` without weights, or if both values of τ are the defaults.
fn tau_of(config: &TokenFormerConfig, weights: &Tensors) -> Option<Tau> {
    let of = |part: &str| {
        let mut all = weights.iter();
        let (_, tau) = all.find(|(name, _)| name.ends_with(".tau") && name.contains(part))?;
        tau.iter::<f32>().next().map(f64::from)
    };
    let default = TokenFormerConfig {
        tau: None,
        ..config.clone()
    };
    let default = default.tau();
    let tau = Tau {
        attn: of(".attention.")?,
        ffn: of(".feed_forward.").unwrap_or(default.ffn),
    };
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
    (!near(tau.attn, default.attn) || !near(tau.ffn, default.ffn)).then_some(tau)
}

/// Concatenates the rows of `a` and of `b`, times `scale`.
fn rows(a: &TensorData, b: &TensorData, scale: f32) -> TensorData {
    let values = a.iter::<f32>().chain(b.iter::<f32>());
    let values: Vec<f32> = values.map(|x| x * scale).collect();
    TensorData::new(values, [a.shape[0] + b.shape[0], a.shape[1]])
}

/// Returns w + b a.
fn plus_product(w: &TensorData, b: &TensorData, a: &TensorData) -> TensorData {
    let [rank, width] = [a.shape[0], a.shape[1]];
    let [a, b]: [Vec<f32>; 2] = [a, b].map(|factor| factor.iter().collect());
    let corrected = w.iter::<f32>().enumerate().map(|(at, w)| {
        let (row, column) = (at / width, at % width);
        let product = (0..rank).map(|r| b[row * rank + r] * a[r * width + column]);
        w + product.sum::<f32>()
    });
    TensorData::new(corrected.collect::<Vec<_>>(), w.shape.clone())
}

/// Returns the config of the merged model.
fn merged_config(
    a: &TokenFormerConfig,
    b: &TokenFormerConfig,
) -> Result<TokenFormerConfig, ConfigError> {
    let error = |field: &str, problem: String| Err(ConfigError::new(field, problem));
    for (config, model) in [(a, "first"), (b, "second")] {
        if config.mup.is_some() {
            let problem = format!(
                "is set in the {model} model, whose multipliers belong to its number of pairs"
            );
            return error("mup", problem);
        }
    }
    if a.lora.or(b.lora).is_some() {
        let problem = "is set, and corrections of the same pairs cannot be put side by side; merge models with pairs of their own";
        return error("lora", problem.into());
    }
    if a.added.is_some() != b.added.is_some() {
        let problem = "is set in one of the models only; tune both from one model, or neither";
        return error("added", problem.into());
    }
    // The config without the fields that may differ.
    let rest = |config: &TokenFormerConfig| TokenFormerConfig {
        n_attn: None,
        n_ffn: None,
        tau: None,
        dropout: 0.0,
        init: crate::PairInit::Width,
        added: None,
        ..config.clone()
    };
    let (rest_a, rest_b) = (rest(a), rest(b));
    for (field, equal) in [
        ("n_layer", rest_a.n_layer == rest_b.n_layer),
        ("n_head", rest_a.n_head == rest_b.n_head),
        ("width", rest_a.width == rest_b.width),
        (
            "normalization",
            rest_a.normalization == rest_b.normalization,
        ),
        ("activation", rest_a.activation == rest_b.activation),
        ("position", rest_a.position == rest_b.position),
        ("context", rest_a.context == rest_b.context),
        (
            "pattention_eps, norm_params, affine_final_norm or norm_eps",
            rest_a == rest_b,
        ),
    ] {
        if !equal {
            return error(field, "differs in the two models".into());
        }
    }
    if let (Some(of_a), Some(of_b)) = (a.added, b.added) {
        if (a.n_attn(), a.n_ffn()) != (b.n_attn(), b.n_ffn()) {
            return error("n_attn or n_ffn", "differs in the two models".into());
        }
        return Ok(TokenFormerConfig {
            added: Some(Added {
                attn: of_a.attn + of_b.attn,
                ffn: of_a.ffn + of_b.ffn,
            }),
            ..a.clone()
        });
    }
    Ok(TokenFormerConfig {
        n_attn: Some(a.n_attn() + b.n_attn()),
        n_ffn: Some(a.n_ffn() + b.n_ffn()),
        tau: None,
        ..a.clone()
    })
}

impl TokenFormerConfig {
    /// Turns the added pairs of a tuned model into ordinary pairs, or adds the LoRA corrections to its pairs. τ and the
    /// function of the model stay the same.
    pub fn absorb(&self, mut weights: Tensors) -> (Self, Tensors) {
        if self.lora.is_some() {
            let own: Vec<String> = weights
                .keys()
                .filter(|name| !name.contains(".lora."))
                .cloned()
                .collect();
            for name in own {
                let (path, last) = name.rsplit_once('.').unwrap_or(("", &name));
                let factor = |which| format!("{path}.lora.{last}_{which}");
                if let (Some(b), Some(a)) =
                    (weights.remove(&factor("b")), weights.remove(&factor("a")))
                {
                    let corrected = plus_product(&weights[&name], &b, &a);
                    weights.insert(name, corrected);
                }
            }
            let config = Self {
                lora: None,
                ..self.clone()
            };
            return (config, weights);
        }
        let Some(added) = self.added else {
            return (self.clone(), weights);
        };
        let names: Vec<String> = weights
            .keys()
            .filter(|name| name.contains(".added."))
            .cloned()
            .collect();
        for name in names {
            let own = name.replace(".added.", ".");
            if let (Some(new), Some(before)) = (weights.remove(&name), weights.get(&own)) {
                let all = rows(before, &new, 1.0);
                weights.insert(own, all);
            }
        }
        let mut config = Self {
            n_attn: Some(self.n_attn() + added.attn),
            n_ffn: Some(self.n_ffn() + added.ffn),
            tau: Some(self.tau()),
            added: None,
            ..self.clone()
        };
        config.tau = tau_of(&config, &weights).or(config.tau);
        (config, weights)
    }
}

/// Returns the added pairs among `weights`, such as the pairs for one task.
/// [`params::import_some`](residual_zoo_core::params::import_some) puts them into another model that was tuned from the
/// same model with the same config. The other model then performs that task; its other weights stay the same.
pub fn added(weights: &Tensors) -> Tensors {
    let added = weights.iter().filter(|(name, _)| name.contains(".added."));
    added
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}
