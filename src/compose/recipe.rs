//! What each layer of a composition is made of, and which compositions there are.

use residual_zoo_core::{Architecture, ConfigError};
use residual_zoo_laurel::LaurelConfig;

use super::variants::COMPOSITIONS;
use super::{Composed, LaurelOf, Placement, RecurrentOf};

/// What layer i of a composition is made of.
pub(super) struct Recipe<'a, A> {
    pub(super) architecture: &'a A,
    /// Around its sublayers.
    pub(super) sublayer: Option<&'a LaurelConfig>,
    /// Around the layer.
    pub(super) layer: Option<&'a LaurelConfig>,
}

impl<A: Architecture> Recipe<'_, A> {
    /// Checks that no connection reads streams from before the layer. In a recurrence each layer
    /// starts a stream of its own, so it would never have them.
    fn check_within_one_layer(&self) -> Result<(), ConfigError> {
        let places = [
            (self.sublayer, self.architecture.n_sublayer(), "sublayers"),
            (self.layer, 1, "a layer"),
        ];
        for (laurel, streams, place) in places {
            let k = laurel.map_or(1, |laurel| laurel.g.k());
            if k > streams {
                let problem = format!(
                    "is {k}, but around {place} inside of a recurrence, where each layer starts \
                     a stream of its own, there are at most {streams}"
                );
                return Err(ConfigError::new("connection.g.k", problem));
            }
        }
        Ok(())
    }
}

impl<A: Architecture> Composed<A> {
    /// What this level is called in RON.
    fn kind(&self) -> &'static str {
        let [alternate, laurel, recurrent] = COMPOSITIONS;
        match self {
            Self::Plain(_) => "model",
            Self::Alternate(_) => alternate,
            Self::Laurel(_) => laurel,
            Self::Recurrent(_) => recurrent,
        }
    }

    /// What layer `layer` is made of.
    pub(super) fn recipe(&self, layer: usize) -> Result<Recipe<'_, A>, ConfigError> {
        let forbidden = |problem: &str| Err(ConfigError::new(self.kind(), problem));
        match self {
            Self::Plain(architecture) => Ok(Recipe {
                architecture,
                sublayer: None,
                layer: None,
            }),
            Self::Alternate(models) => {
                let entry = layer % models.len().max(1);
                match models.get(entry) {
                    Some(model) => {
                        let recipe = model.recipe(layer);
                        recipe.map_err(|error| error.within(&format!("[{entry}]")))
                    }
                    None => forbidden("is an alternation without an entry"),
                }
            }
            Self::Laurel(LaurelOf {
                connection,
                placement,
                of,
            }) => {
                let mut recipe = of.recipe(layer).map_err(|error| error.within("of"))?;
                let (place, inside) = match placement {
                    Placement::Sublayer => (&mut recipe.sublayer, recipe.layer),
                    Placement::Layer => (&mut recipe.layer, None),
                };
                if place.replace(connection).is_some() || inside.is_some() {
                    return forbidden(
                        "has LAuReL in the same place already; only one with placement Layer can \
                         go around one with placement Sublayer",
                    );
                }
                Ok(recipe)
            }
            Self::Recurrent(_) => forbidden(
                "is a recurrent model; a recurrence is about whole sequences, so it can only be \
                 outermost",
            ),
        }
    }

    /// After how many layers the recipes repeat.
    pub(super) fn period(&self) -> usize {
        match self {
            Self::Plain(_) => 1,
            Self::Alternate(models) => models.len(),
            Self::Laurel(LaurelOf { of, .. }) | Self::Recurrent(RecurrentOf { of, .. }) => {
                of.period()
            }
        }
    }

    /// Checks what stands at this level and below.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        match self {
            Self::Plain(architecture) => architecture.validate(),
            Self::Alternate(models) => {
                if models.iter().any(|model| model.period() > 1) {
                    let problem = "has an alternation among its entries; write one list";
                    return Err(ConfigError::new("Alternate", problem));
                }
                models.iter().enumerate().try_for_each(|(i, model)| {
                    let checked = model.check();
                    checked.map_err(|error| error.within(&format!("[{i}]")))
                })
            }
            Self::Laurel(LaurelOf { connection, of, .. }) => {
                let checked = connection.validate();
                checked.map_err(|error| error.within("connection"))?;
                of.check().map_err(|error| error.within("of"))
            }
            Self::Recurrent(RecurrentOf { recurrence, of }) => {
                let checked = recurrence.validate();
                checked.map_err(|error| error.within("recurrence"))?;
                of.check().map_err(|error| error.within("of"))
            }
        }
    }

    /// Checks that all architectures have the same width, depth and context.
    pub(super) fn check_equal_sizes(&self) -> Result<(), ConfigError> {
        let first = self.first()?;
        for other in self.architectures() {
            let equal = [
                ("width of the stream", first.width(), other.width()),
                ("n_layer", first.n_layer(), other.n_layer()),
                ("context", first.context(), other.context()),
            ];
            for (what, a, b) in equal {
                if a != b {
                    let problem = format!(
                        "has models of unequal {what}: {a} in the first ({}), {b} in another ({})",
                        first.name(),
                        other.name()
                    );
                    return Err(ConfigError::new("Alternate", problem));
                }
            }
        }
        Ok(())
    }

    /// Checks that every layer can be made.
    pub(super) fn check_recipes(&self) -> Result<(), ConfigError> {
        let (recurrence, layers) = self.recurrence();
        let (period, n_layer) = (layers.period(), self.first()?.n_layer());
        if period > n_layer {
            let problem = format!("has {period} entries for {n_layer} layers");
            return Err(ConfigError::new("Alternate", problem));
        }
        for layer in 0..period {
            let recipe = layers.recipe(layer);
            if recurrence.is_some() {
                let recipe = recipe.map_err(|error| error.within("of"))?;
                recipe.check_within_one_layer()?;
            } else {
                recipe?;
            }
        }
        Ok(())
    }
}
