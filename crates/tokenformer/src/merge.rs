//! Two trained models as one, and sets of pairs beside one model (sections 4.4 and 5).
//!
//! The paper gives merging as a reason for norms without weights, and has neither an equation nor an experiment.

use burn::tensor::TensorData;
use residual_zoo_core::{ConfigError, Tensors};

use crate::{Added, Normalization, Tau, TokenFormerConfig};

/// Why two models cannot be merged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MergeError {
    /// The configs do not fit.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tensor that both must have alike differs.
    #[error(
        "`{0}` differs in the two models; only keys and values are merged, so all other weights must be equal, as in two \
         models that were tuned from one"
    )]
    Differs(String),
    /// One of the models lacks a tensor.
    #[error("`{0}` is missing in one of the models")]
    Missing(String),
}

/// A model and its weights, by name.
pub type Weighted<'a> = (&'a TokenFormerConfig, &'a Tensors);

/// Puts the pairs of `b` after those of `a`, in each Pattention: K = \[K_a; K_b\], V = s \[V_a; V_b\] with s =
/// `value_scale`. Tables and norms must be equal.
///
/// τ becomes that of n_a + n_b pairs: τ_a √((n_a + n_b) / n_a), or τ_a (n_a + n_b) / n_a for the normalizations whose default
/// is τ = n. Where the scores of both models have the same root mean square, each Pattention is then exactly s times the sum
/// of both. A model merged with itself with s = ½ is the same function.
///
/// Two models with added pairs, tuned from one, have this one in common: only their added pairs are put together, and τ
/// stays.
///
/// # Errors
///
/// Models that differ in more than their numbers of pairs; τ that do not belong together; tables that differ.
pub fn merge(
    (a, a_weights): Weighted,
    (b, b_weights): Weighted,
    value_scale: f64,
) -> Result<(TokenFormerConfig, Tensors), MergeError> {
    let config = merged_config(a, b)?;
    let tau = config.tau();
    let tuned = config.added.is_some();
    let mut weights = Tensors::new();
    for (name, of_a) in a_weights {
        let of_b = b_weights
            .get(name)
            .ok_or_else(|| MergeError::Missing(name.clone()))?;
        let joins = !tuned || name.contains(".added.");
        let value = match name.rsplit('.').next() {
            Some("keys") if joins => rows(of_a, of_b, 1.0),
            Some("values") if joins => rows(of_a, of_b, value_scale),
            Some("tau") => {
                let is_ffn = name.contains("feed_forward");
                let tau = if is_ffn { tau.ffn } else { tau.attn };
                TensorData::new(vec![tau as f32], [1])
            }
            _ if of_a.iter::<f32>().eq(of_b.iter::<f32>()) => of_a.clone(),
            _ => return Err(MergeError::Differs(name.clone())),
        };
        weights.insert(name.clone(), value);
    }
    match b_weights.keys().find(|name| !a_weights.contains_key(*name)) {
        Some(name) => Err(MergeError::Missing(name.clone())),
        None => Ok((config, weights)),
    }
}

/// The rows of `a`, then those of `b`, times `scale`.
fn rows(a: &TensorData, b: &TensorData, scale: f64) -> TensorData {
    let values = a.iter::<f32>().chain(b.iter::<f32>());
    let values: Vec<f32> = values.map(|x| x * scale as f32).collect();
    TensorData::new(values, [a.shape[0] + b.shape[0], a.shape[1]])
}

/// The config of the merged model.
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
    if a.added.is_some() != b.added.is_some() {
        let problem = "is set in one of the models only; tune both from one model, or neither";
        return error("added", problem.into());
    }
    // What neither changes the function nor has to be alike.
    let rest = |config: &TokenFormerConfig| TokenFormerConfig {
        n_attn: None,
        n_ffn: None,
        tau: None,
        dropout: 0.0,
        init: crate::Init::Width,
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
        if (a.n_attn(), a.n_ffn(), a.tau()) != (b.n_attn(), b.n_ffn(), b.tau()) {
            return error("n_attn, n_ffn or tau", "differs in the two models".into());
        }
        return Ok(TokenFormerConfig {
            added: Some(Added {
                attn: of_a.attn + of_b.attn,
                ffn: of_a.ffn + of_b.ffn,
            }),
            ..a.clone()
        });
    }
    let power = match a.normalization {
        Normalization::L2NormGelu | Normalization::GeluL2Norm => 0.5,
        Normalization::GeluL1Norm | Normalization::Softmax => 1.0,
    };
    let (tau_a, tau_b) = (a.tau(), b.tau());
    let together = |field: &str, (tau_a, n_a): (f64, usize), (tau_b, n_b): (f64, usize)| {
        let per_pair = |tau: f64, n: usize| tau / (n as f64).powf(power);
        let (of_a, of_b) = (per_pair(tau_a, n_a), per_pair(tau_b, n_b));
        if (of_a / of_b - 1.0).abs() > 1e-6 {
            let problem = format!(
                "is {tau_a} for {n_a} pairs in the first model and {tau_b} for {n_b} in the second, so no τ keeps the size \
                 of both; train them with the default τ, or with the same ratio"
            );
            return Err(ConfigError::new(field, problem));
        }
        Ok(of_a * ((n_a + n_b) as f64).powf(power))
    };
    let (attn, ffn) = ((a.n_attn(), b.n_attn()), (a.n_ffn(), b.n_ffn()));
    let tau = Tau {
        attn: together("tau.attn", (tau_a.attn, attn.0), (tau_b.attn, attn.1))?,
        ffn: together("tau.ffn", (tau_a.ffn, ffn.0), (tau_b.ffn, ffn.1))?,
    };
    let by_default = a.tau.is_none() && b.tau.is_none();
    Ok(TokenFormerConfig {
        n_attn: Some(attn.0 + attn.1),
        n_ffn: Some(ffn.0 + ffn.1),
        tau: (!by_default).then_some(tau),
        ..a.clone()
    })
}

impl TokenFormerConfig {
    /// Makes the added pairs of a tuned model ordinary ones, without a change of its function. τ stays.
    pub fn absorb(&self, mut weights: Tensors) -> (Self, Tensors) {
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
        let config = Self {
            n_attn: Some(self.n_attn() + added.attn),
            n_ffn: Some(self.n_ffn() + added.ffn),
            tau: Some(self.tau()),
            added: None,
            ..self.clone()
        };
        (config, weights)
    }
}

/// The added pairs among `weights`, such as those of one task. [`params::import_some`](residual_zoo_core::params::import_some)
/// puts them into another model of the same config, which then does that task; all other weights stay where they are.
pub fn added(weights: &Tensors) -> Tensors {
    let added = weights.iter().filter(|(name, _)| name.contains(".added."));
    added
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}
