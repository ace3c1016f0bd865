//! RON text as a tree. Only the parts that change are opened, that is, parsed.

use std::collections::BTreeMap;
use std::fmt;

use ron::value::RawValue;
use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::Wrong;

/// The name of a composition, and the fields of the composition itself.
pub(super) const COMPOSITION: (&str, [&str; 5]) = (
    "Composed",
    ["layers", "connection", "recurrence", "loops", "patches"],
);

/// A value. All text is a slice of the file, without surrounding space and comments.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    /// `[…]`.
    List(Vec<Value<'a>>),
    /// `Name(field: …)` or `(field: …)`.
    Fields(Fields<'a>),
    /// Any value as text, before it is opened.
    Text(&'a str),
    /// The new name of a run, and the text that the file has in its place.
    Renamed(&'a str, &'a str),
}

/// Named fields in parentheses.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields<'a> {
    /// The name before the parentheses; may be empty.
    pub(super) name: &'a str,
    pub(super) entries: Vec<(&'a str, Value<'a>)>,
    /// The closing parenthesis in the file, where the parser reports a missing field.
    pub(super) end: &'a str,
}

/// Parses fields; `None` if the text is anything else.
pub(super) fn parse(text: &str) -> Option<Fields<'_>> {
    let mut ron = ron::Deserializer::from_str(text).ok()?;
    let whole = <&RawValue>::deserialize(&mut ron).ok()?;
    ron.end().ok()?;
    Fields::parse(whole.trim().get_ron())
}

impl<'a> Value<'a> {
    /// Opens the value if it is a list or has named fields.
    pub(super) fn open(&mut self) -> &mut Self {
        if let Self::Text(text) = self {
            if let Some(fields) = Fields::parse(text) {
                *self = Self::Fields(fields);
            } else if let Ok(values) = ron::from_str::<Vec<&RawValue>>(text) {
                let values = values.into_iter();
                *self = Self::List(
                    values
                        .map(|value| Self::Text(value.trim().get_ron()))
                        .collect(),
                );
            }
        }
        self
    }

    /// Returns the fields.
    ///
    /// # Errors
    ///
    /// Returns an error if the value has no fields.
    pub(super) fn fields(mut self) -> Result<Fields<'a>, Wrong<'a>> {
        self.open();
        match self {
            Self::Fields(fields) => Ok(fields),
            Self::Text(text) | Self::Renamed(_, text) => Err((
                text,
                "has no fields with names, as in `(seeds: [1, 2])`".into(),
            )),
            Self::List(values) => match values.into_iter().next() {
                Some(value) => Err((
                    value.start(),
                    "is in a list, but fields with names belong here".into(),
                )),
                None => Err((
                    "",
                    "is an empty list, but fields with names belong here".into(),
                )),
            },
        }
    }

    /// Returns a slice of the file inside the value.
    fn start(&self) -> &'a str {
        match self {
            Self::Text(text) | Self::Renamed(_, text) => text,
            Self::List(values) => values.first().map_or("", Self::start),
            Self::Fields(fields) => fields.entries.first().map_or(fields.name, |(name, _)| name),
        }
    }

    /// Merges the fields of `other` into the value if both have fields, and if their names are equal or one of them has
    /// no name. Otherwise returns `other`.
    fn with(mut self, mut other: Self) -> Self {
        match (self.open(), other.open()) {
            (Self::Fields(own), Self::Fields(other))
                if [own.name, other.name].contains(&"") || own.name == other.name =>
            {
                Self::Fields(std::mem::take(own).with(std::mem::take(other)))
            }
            _ => other,
        }
    }

    /// Replaces old names of runs inside the value with new names.
    pub(super) fn replace(&mut self, new: &BTreeMap<&'a str, &'a str>) {
        match self.open() {
            Self::Text(text) => {
                if let Some(name) = new.get(text) {
                    *self = Self::Renamed(name, text);
                }
            }
            Self::Renamed(..) => {}
            Self::List(values) => values.iter_mut().for_each(|value| value.replace(new)),
            Self::Fields(fields) => fields
                .entries
                .iter_mut()
                .for_each(|(_, value)| value.replace(new)),
        }
    }

    /// Writes the value as RON. `parts` receives the parts of the file and their offsets in the text.
    pub(super) fn write(&self, text: &mut String, parts: &mut Vec<(usize, &'a str)>) {
        let add = |text: &mut String, parts: &mut Vec<_>, written: &str, part: &'a str| {
            parts.push((text.len(), part));
            text.push_str(written);
        };
        match self {
            Self::Text(part) => add(text, parts, part, part),
            Self::Renamed(name, part) => add(text, parts, name, part),
            Self::List(values) => {
                text.push('[');
                for value in values {
                    value.write(text, parts);
                    text.push_str(", ");
                }
                text.push(']');
            }
            Self::Fields(fields) => {
                add(text, parts, fields.name, fields.name);
                text.push('(');
                for (name, value) in &fields.entries {
                    add(text, parts, name, name);
                    text.push_str(": ");
                    value.write(text, parts);
                    text.push_str(",\n");
                }
                add(text, parts, ")", fields.end);
            }
        }
    }
}

impl<'a> Fields<'a> {
    /// Parses fields from a text without surrounding space, such as `Name(field: 1)`.
    fn parse(text: &'a str) -> Option<Self> {
        let (name, _) = text.split_once('(').filter(|_| text.ends_with(')'))?;
        let Entries(entries) = ron::from_str(text).ok()?;
        let entries = entries.into_iter();
        let entries = entries.map(|(name, value)| (name, Value::Text(value.trim().get_ron())));
        Some(Self {
            name: name.trim_end(),
            entries: entries.collect(),
            end: &text[text.len() - 1..],
        })
    }

    /// Returns the layers of a composition.
    pub(super) fn layers(&mut self) -> &mut [Value<'a>] {
        match self.get_mut("layers").map(Value::open) {
            Some(Value::List(layers)) => layers,
            _ => &mut [],
        }
    }

    /// Returns the name of a field as the file has it.
    pub(super) fn name_of(&self, name: &str) -> Option<&'a str> {
        let found = self.entries.iter().find(|(known, _)| *known == name);
        found.map(|(known, _)| *known)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value<'a>> {
        let found = self.entries.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Value<'a>> {
        let found = self.entries.iter_mut().find(|(known, _)| *known == name);
        found.map(|(_, value)| value)
    }

    /// Returns the text of a field that was not opened.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        match self.get(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Value<'a>> {
        let at = self.entries.iter().position(|(known, _)| *known == name)?;
        Some(self.entries.remove(at).1)
    }

    /// Merges the fields of `other` into these fields. A value that has fields in both is merged field by field; any
    /// other value is replaced. If `self` is a composition and `other` has no name, the fields of `other` go into every
    /// layer, except for the composition's own fields.
    pub(super) fn with(mut self, mut other: Self) -> Self {
        if self.name == COMPOSITION.0 && other.name.is_empty() {
            let (own, inner) = std::mem::take(&mut other.entries)
                .into_iter()
                .partition(|(name, _)| COMPOSITION.1.contains(name));
            other.entries = own;
            let inner = Self {
                name: other.name,
                entries: inner,
                end: other.end,
            };
            for layer in self.layers() {
                let before = std::mem::replace(layer, Value::Text(""));
                *layer = before.with(Value::Fields(inner.clone()));
            }
        }
        if !other.name.is_empty() {
            self.name = other.name;
        }
        for (name, value) in other.entries {
            match self.entries.iter_mut().find(|(known, _)| *known == name) {
                Some(own) => {
                    let before = std::mem::replace(&mut own.1, Value::Text(""));
                    *own = (name, before.with(value));
                }
                None => self.entries.push((name, value)),
            }
        }
        self
    }
}

/// The names and values of fields.
struct Entries<'a>(Vec<(&'a str, &'a RawValue)>);

/// The name of a field.
struct Name<'a>(&'a str);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("fields with names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((Name(name), value)) = map.next_entry()? {
                    entries.push((name, value));
                }
                Ok(Entries(entries))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
                Ok(Entries(Vec::new()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Self::Value, A::Error> {
                match values.next_element::<&RawValue>()? {
                    None => Ok(Entries(Vec::new())),
                    Some(_) => Err(de::Error::custom("values without names")),
                }
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E: de::Error>(self, name: &'de str) -> Result<Self::Value, E> {
                Ok(Name(name))
            }
        }
        deserializer.deserialize_identifier(Visit)
    }
}
