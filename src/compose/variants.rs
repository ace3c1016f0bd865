//! How compositions stand beside architectures in RON and JSON: serde's derive has no way to put the
//! variants of one enum beside those of another.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::EnumAccessDeserializer;
use serde::de::{self, DeserializeOwned, EnumAccess, IntoDeserializer, VariantAccess};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Composed;

const NAME: &str = "ModelConfig";
pub(super) const COMPOSITIONS: [&str; 3] = ["Alternate", "Laurel", "Recurrent"];

impl<A: Serialize + DeserializeOwned> Serialize for Composed<A> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [alternate, laurel, recurrent] = COMPOSITIONS;
        match self {
            Self::Plain(architecture) => architecture.serialize(serializer),
            Self::Alternate(models) => {
                serializer.serialize_newtype_variant(NAME, 0, alternate, models)
            }
            Self::Laurel(of) => serializer.serialize_newtype_variant(NAME, 1, laurel, of),
            Self::Recurrent(of) => serializer.serialize_newtype_variant(NAME, 2, recurrent, of),
        }
    }
}

impl<'de, A: Serialize + DeserializeOwned> Deserialize<'de> for Composed<A> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_enum(NAME, &COMPOSITIONS, Variants(PhantomData))
    }
}

struct Variants<A>(PhantomData<A>);

impl<'de, A: Serialize + DeserializeOwned> de::Visitor<'de> for Variants<A> {
    type Value = Composed<A>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an architecture, or one of {}", COMPOSITIONS.join(", "))
    }

    fn visit_enum<E: EnumAccess<'de>>(self, access: E) -> Result<Composed<A>, E::Error> {
        let (Identifier(name), content) = access.variant()?;
        let [alternate, laurel, recurrent] = COMPOSITIONS;
        if name == alternate {
            content.newtype_variant().map(Composed::Alternate)
        } else if name == laurel {
            content.newtype_variant().map(Composed::Laurel)
        } else if name == recurrent {
            content.newtype_variant().map(Composed::Recurrent)
        } else {
            let variant = EnumAccessDeserializer::new(Named { name, content });
            A::deserialize(variant).map(Composed::Plain)
        }
    }
}

/// The name of a variant.
struct Identifier(String);

impl<'de> Deserialize<'de> for Identifier {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Identifier;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a model")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Identifier, E> {
                Ok(Identifier(name.into()))
            }
        }
        deserializer.deserialize_identifier(Text)
    }
}

/// A variant whose name has been read, as if it had not.
struct Named<V> {
    name: String,
    content: V,
}

impl<'de, V: VariantAccess<'de>> EnumAccess<'de> for Named<V> {
    type Error = V::Error;
    type Variant = V;

    fn variant_seed<S: de::DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, V), V::Error> {
        let name: de::value::StringDeserializer<V::Error> = self.name.into_deserializer();
        let unknown = |error| {
            let compositions = COMPOSITIONS.join("`, `");
            de::Error::custom(format!("{error}; compositions are `{compositions}`"))
        };
        let name = seed.deserialize(name).map_err(unknown)?;
        Ok((name, self.content))
    }
}
