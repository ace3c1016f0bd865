//! Checks the parts of a composition, one by one and against each other.

use residual_zoo_core::{ConfigError, Design as _, Frame, ModelConfig as _};
use residual_zoo_loops::LoopsConfig;

use super::{Composition, List, PlacedConnection};

impl<A: List> Composition<A> {
    /// Refuses settings that do not apply to layers that read images themselves.
    pub(super) fn validate_of_images(&self) -> Result<(), ConfigError> {
        let name = self.entry(0).name();
        let wrong = |field, problem| Err(ConfigError::new(field, problem));
        if self.patches.is_some() {
            let problem = format!("is set, but a {name} reads whole images; leave it out");
            return wrong("patches", problem);
        }
        if self.recurrence.is_some() {
            let problem = "is set, but images have no order in time; leave it out".into();
            return wrong("recurrence", problem);
        }
        if self.loops.is_some() {
            let problem = format!(
                "is set, but a depth loop goes over layers of text, not of a {name}; leave it out"
            );
            return wrong("loops", problem);
        }
        let Some(placed) = &self.connection else {
            return Ok(());
        };
        if matches!(placed, PlacedConnection::PerLayer(_)) {
            let problem = format!(
                "is PerLayer, but a block of a {name} is one update, which can change the shape of the stream; use PerSublayer"
            );
            return wrong("connection", problem);
        }
        let Frame {
            pre_norm: true,
            final_norm: true,
            feed_forward: true,
            ..
        } = self.frame(1.into())
        else {
            let problem = format!(
                "is {}, which with these settings changes the norms or the feed-forward networks of transformer layers; a \
                 {name} has none, so it takes other connections, or `SelfDependency` with `norm: Pre`",
                placed.config().name()
            );
            return wrong("connection", problem);
        };
        Ok(())
    }

    /// Checks the depth loop, and that it fits the other parts.
    pub(super) fn validate_loops(&self, loops: &LoopsConfig) -> Result<(), ConfigError> {
        let wrong = |field: &str, problem: &str| Err(ConfigError::new(field, problem));
        let valid = loops.validate(self.shape().n_layer);
        valid.map_err(|error| error.within("loops"))?;
        if self.recurrence.is_some() {
            let problem =
                "is set, but `recurrence` is set too; a model has one of them, so leave one out";
            return wrong("loops", problem);
        }
        if self.patches.is_some() {
            let problem = "is set, but `patches` is set too, and depth loops are for text; leave one of them out";
            return wrong("loops", problem);
        }
        if loops.norm && !self.frame(1.into()).final_norm {
            let problem =
                "is true, but with this connection the model has no final norm; set it to false";
            return wrong("loops.norm", problem);
        }
        Ok(())
    }

    /// Checks each entry, and that the entries fit each other.
    pub(super) fn validate_layers(&self) -> Result<(), ConfigError> {
        let error = |problem: String| Err(ConfigError::new("layers", problem));
        let Some(first) = self.layers.first() else {
            return error("is empty; name at least one architecture".into());
        };
        for (i, entry) in self.layers.iter().enumerate() {
            let valid = entry.validate();
            valid.map_err(|error| match self.plain() {
                Some(_) => error,
                None => error.within(&format!("layers.{i}")),
            })?;
            if entry.reads_images() && self.layers.len() > 1 {
                return error(format!(
                    "has a {}, which reads images by itself; it cannot alternate with other architectures",
                    entry.name()
                ));
            }
            let (a, b) = (first.shape(), entry.shape());
            let equal = [
                ("width of the stream", a.width, b.width),
                ("n_layer", a.n_layer, b.n_layer),
                ("context", a.context, b.context),
            ];
            if let Some((what, a, b)) = equal.into_iter().find(|(_, a, b)| a != b) {
                return error(format!(
                    "must have the same {what} in all entries; it is {a} in entry 0 ({}) and {b} in entry \
                     {i} ({})",
                    first.name(),
                    entry.name()
                ));
            }
        }
        let tuned = self.layers.iter().find_map(A::tuned);
        if let (Some(field), None) = (tuned, self.plain()) {
            let problem = format!(
                "has an entry with `{field}`, which freezes the other weights of its layers; the rest of a composition would \
                 still be trained, so set it only in a model of one architecture with plain connections"
            );
            return error(problem);
        }
        let (entries, n_layer) = (self.layers.len(), first.shape().n_layer);
        if entries > n_layer {
            return error(format!(
                "has {entries} entries, but `n_layer` of each, which counts the layers of the whole model, is {n_layer}; layer i is \
                 made by entry i mod {entries}, so `n_layer` must be at least {entries}"
            ));
        }
        Ok(())
    }
}
