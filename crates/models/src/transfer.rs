//! Growth, merging and learning-rate multipliers of compositions.

use residual_zoo_core::{ConfigError, Tensors, Transfer, no_merge};

use crate::Composition;
use crate::compose::List;

impl<A: List> Transfer for Composition<A> {
    fn tuned(&self) -> Option<&'static str> {
        self.plain().and_then(A::tuned)
    }

    fn has_rates(&self) -> bool {
        self.layers.iter().any(A::has_rates)
    }

    /// Returns the learning-rate multiplier from the architecture that owns the parameter, or 1 for connections,
    /// recurrences and depth loops.
    fn rate(&self, name: &str) -> f64 {
        let layer = name.split('.').find_map(|part| part.parse().ok());
        let is_connection = [".connection.", ".ends."]
            .iter()
            .any(|part| name.contains(part));
        match (self.layers.is_empty(), is_connection) {
            (false, false) => self.entry(layer.unwrap_or(0)).rate(name),
            _ => 1.0,
        }
    }

    /// Requires equal patches, a recurrence in both models or in neither, depth loops with the same parameters, and
    /// connections that differ only in initial values. Also requires equal numbers of entries, and that each entry can
    /// grow from its counterpart. Unless the weights are converted to another architecture, the numbers of layers must
    /// be equal too. Only a plain model can take weights of another architecture, or have a wider stream than the
    /// smaller model, because parameters of connections and recurrences can be neither converted nor widened.
    fn grows_from(&self, smaller: &Self) -> Result<(), ConfigError> {
        let connection = match (&self.connection, &smaller.connection) {
            (Some(this), Some(smaller)) => this.continues(smaller),
            (this, smaller) => this == smaller,
        };
        let loops = match (&self.loops, &smaller.loops) {
            (Some(this), Some(smaller)) => this.continues(smaller),
            (this, smaller) => this == smaller,
        };
        let differs = [
            ("connection", !connection),
            ("loops", !loops),
            (
                "recurrence",
                self.recurrence.is_some() != smaller.recurrence.is_some(),
            ),
            ("patches", self.patches != smaller.patches),
        ];
        if let Some((field, _)) = differs.iter().find(|(_, differs)| *differs) {
            let problem = "differs from the model of the first weights; set it to the same";
            return Err(ConfigError::new(format!("model.{field}"), problem));
        }
        let (count, of_smaller) = (self.layers.len(), smaller.layers.len());
        if count != of_smaller {
            let problem = format!(
                "is a list of {count}, but of {of_smaller} in the first weights; give it the same length"
            );
            return Err(ConfigError::new("model.layers", problem));
        }
        for (i, (entry, smaller)) in self.layers.iter().zip(&smaller.layers).enumerate() {
            let is_converted = entry.name() != smaller.name();
            if is_converted && self.plain().is_none() {
                let (from, to) = (smaller.name(), entry.name());
                let problem = format!(
                    "is composed, so weights of {from} cannot become weights of {to}; this needs models of one architecture \
                     with plain connections and no recurrence"
                );
                return Err(ConfigError::new("model", problem));
            }
            if entry.shape().width != smaller.shape().width && self.plain().is_none() {
                let problem = "is composed, so its stream cannot be widened; this needs a model of one architecture with plain \
                               connections";
                return Err(ConfigError::new("model", problem));
            }
            entry
                .grows_from(smaller)
                .map_err(|error| match self.plain() {
                    Some(_) => error,
                    None => {
                        let field = error.field.strip_prefix("model.").map(str::to_owned);
                        let field = field.map(|field| format!("model.layers.{i}.{field}"));
                        ConfigError::new(field.unwrap_or(error.field), error.problem)
                    }
                })?;
            let (n_layer, of_smaller) = (entry.shape().n_layer, smaller.shape().n_layer);
            if !is_converted && n_layer != of_smaller {
                let problem =
                    format!("cannot change from {of_smaller} to {n_layer}; set it to the same");
                let field = match self.plain() {
                    Some(_) => "model.n_layer".into(),
                    None => format!("model.layers.{i}.n_layer"),
                };
                return Err(ConfigError::new(field, problem));
            }
        }
        Ok(())
    }

    /// Grows entry i from entry i of the smaller model. With several entries, each entry grows its own layers, and
    /// other weights stay the same.
    fn grow(
        &self,
        smaller: &Self,
        mut weights: Tensors,
        fresh: &Tensors,
    ) -> Result<Tensors, ConfigError> {
        if let ([entry], [smaller]) = (self.layers.as_slice(), smaller.layers.as_slice()) {
            return entry.grow(smaller, weights, fresh);
        }
        let count = self.layers.len();
        let pairs = self.layers.iter().zip(&smaller.layers);
        for (i, (entry, smaller)) in pairs.enumerate() {
            let is_of = |name: &String| layer_of(name).is_some_and(|layer| layer % count == i);
            let (own, others) = weights.into_iter().partition(|(name, _)| is_of(name));
            let fresh = fresh.iter().filter(|(name, _)| is_of(name));
            let fresh = fresh.map(|(name, tensor)| (name.clone(), tensor.clone()));
            weights = others;
            weights.extend(entry.grow(smaller, own, &fresh.collect())?);
        }
        Ok(weights)
    }

    /// Merges plain models only.
    fn merge(
        &self,
        weights: &Tensors,
        (other, of_other): (&Self, &Tensors),
        value_scale: f64,
    ) -> Result<(Self, Tensors), ConfigError> {
        let plain = |model: &Self| model.plain().cloned().ok_or_else(no_merge);
        let (this, other) = (plain(self)?, plain(other)?);
        let (merged, weights) = this.merge(weights, (&other, of_other), value_scale)?;
        Ok((Self::of(merged), weights))
    }
}

/// Returns the index of the layer that owns a parameter; `None` for a parameter outside the layers.
fn layer_of(name: &str) -> Option<usize> {
    let (_, rest) = name.split_once("layers.")?;
    rest.split('.').next()?.parse().ok()
}
