//! Generates `docs/config.md` from the doc comments of the configs. To write the page again:
//!
//! ```sh
//! WRITE_DOCS=1 cargo test --release --workspace --test models config_page
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use residual_zoo::compose::List;
use residual_zoo::core::{Muon, Mup, Rotary};
use residual_zoo::data::{
    CopyConfig, DataConfig, FolderConfig, ImagesConfig, RandAugment, ShapesConfig, SyntheticConfig,
};
use residual_zoo::experiment::Experiment;
use residual_zoo::gpt2::Gpt2Base;
use residual_zoo::lab::claims::Sooner;
use residual_zoo::lab::claims::{Close, Compared};
use residual_zoo::lab::ladder::Size;
use residual_zoo::lab::sweep::Halving;
use residual_zoo::lab::{After, ChartSpec, Claim, Ladder, RunSpec, Sweep, Vary};
use residual_zoo::llama::CanonConfig;
use residual_zoo::loops::LoopsConfig;
use residual_zoo::recurrent::RecurrentConfig;
use residual_zoo::report::wrap;
use residual_zoo::rmt::RmtBase;
use residual_zoo::runs::{Ema, TrainConfig, parse_ron};
use residual_zoo::streams::SmearConfig;
use residual_zoo::vit::Patches;
use residual_zoo::{Composition, ConnectionConfig, Zoo};
use residual_zoo_testing::root;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use syn::{Attribute, Fields, GenericArgument, Item, PathArguments, Type, Variant, Visibility};

use crate::documentation::files;

const PAGE: &str = "docs/config.md";

const HEAD: &str = "# The fields of RON files

A run file has the fields of [RunConfig](#runconfig); `residual-zoo describe FILE` prints a file with all of them. An
experiment file has the fields of [Experiment](#experiment). Omitted fields have their default. A config
with all defaults still needs its parentheses: `ReZero()`. [Streams](papers/streams.md) has the equations and symbols of
the connections. This page is generated from the documentation of the source.

";

/// The first sections of the page, in order. The architectures follow the second section. Other types follow in the
/// order in which fields refer to them.
const FIRST: &[&str] = &[
    "RunConfig",
    "Written",
    "PlacedConnection",
    "ConnectionConfig",
    "LaurelConfig",
    "RecurrentConfig",
    "LoopsConfig",
    "Patches",
    "TrainConfig",
    "Experiment",
];

fn defaults() -> BTreeMap<String, Value> {
    fn value(of: impl Serialize) -> Value {
        serde_json::to_value(of).unwrap()
    }
    let listed = |name: &str, all: Value| (format!("{name}Config"), all[name].clone());
    let architectures = <Zoo as List>::NAMES.iter();
    let architectures =
        architectures.map(|(name, _)| listed(name, parsed::<Zoo>(&format!("{name}()"))));
    let connections = ConnectionConfig::NAMES.iter();
    let connections =
        connections.map(|(name, _)| listed(name, parsed::<ConnectionConfig>(&format!("{name}()"))));
    let others = [
        ("TrainConfig", value(TrainConfig::default())),
        ("DataConfig", value(DataConfig::default())),
        ("SyntheticConfig", value(SyntheticConfig::default())),
        ("CopyConfig", value(CopyConfig::default())),
        ("ShapesConfig", value(ShapesConfig::default())),
        ("FolderConfig", value(FolderConfig::default())),
        ("RandAugment", value(RandAugment::default())),
        (
            "ImagesConfig",
            parsed::<ImagesConfig>("(set: Cifar10(\"\"))"),
        ),
        ("Patches", value(Patches::default())),
        ("RecurrentConfig", value(RecurrentConfig::default())),
        ("LoopsConfig", value(LoopsConfig::default())),
        ("CanonConfig", value(CanonConfig::default())),
        ("SmearConfig", value(SmearConfig::default())),
        ("Rotary", value(Rotary::default())),
        ("Muon", value(Muon::default())),
        ("Ema", value(Ema::default())),
        ("Halving", value(Halving::default())),
        (
            "Experiment",
            parsed::<Experiment>("(title: \"\", about: \"\", runs: [], columns: [])"),
        ),
        (
            "RunSpec",
            parsed::<RunSpec<residual_zoo::ModelConfig>>("(name: \"\")"),
        ),
        ("After", parsed::<After>("(run: \"\")")),
        ("Vary", parsed::<Vary>("(name: \"\", over: [])")),
        ("Sweep", parsed::<Sweep>("(over: [])")),
        ("Ladder", parsed::<Ladder>("(baseline: \"\", sizes: [])")),
        ("Size", parsed::<Size>("(name: \"\", set: [])")),
        (
            "Sooner",
            parsed::<Sooner>("(axis: Tokens, run: \"\", than: \"\")"),
        ),
        (
            "ChartSpec",
            parsed::<ChartSpec>("(title: \"\", x: \"\", y: \"\")"),
        ),
        (
            "Claim",
            parsed::<Claim>("(says: \"\", source: \"\", test: NotTested(\"\"))"),
        ),
        (
            "Compared",
            parsed::<Compared>("(quantity: \"\", run: \"\", than: \"\")"),
        ),
        (
            "Mup",
            parsed::<Mup<Gpt2Base>>("(base: (width: 1, n_head: 1), init_std: 1)"),
        ),
        ("Gpt2Base", parsed::<Gpt2Base>("(width: 1, n_head: 1)")),
        ("RmtBase", parsed::<RmtBase>("(d_k: 1, d_v: 1, rank: 1)")),
        (
            "Close",
            parsed::<Close>("(quantity: \"\", run: \"\", than: \"\", within: 0)"),
        ),
    ];
    let others = others.map(|(name, value)| (name.to_owned(), value));
    architectures.chain(connections).chain(others).collect()
}

/// Parses a text with only the required fields. Returns the value with all defaults.
fn parsed<T: Serialize + DeserializeOwned>(text: &str) -> Value {
    serde_json::to_value(parse_ron::<T>(text, "required.ron".as_ref()).unwrap()).unwrap()
}

/// Returns the public types of the source by name, with all types of each name.
fn types() -> BTreeMap<String, Vec<Item>> {
    let mut sources = files(&root().join("src"), "rs");
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        sources.extend(files(&entry.unwrap().path().join("src"), "rs"));
    }
    let mut types: BTreeMap<String, Vec<Item>> = BTreeMap::new();
    for source in sources {
        let code = syn::parse_file(&fs::read_to_string(source).unwrap()).unwrap();
        for item in code.items {
            let (name, attributes) = match &item {
                Item::Struct(item) => (&item.ident, &item.attrs),
                Item::Enum(item) => (&item.ident, &item.attrs),
                _ => continue,
            };
            let name = name.to_string();
            if derives(attributes) && is_public(&item) {
                types.entry(name).or_default().push(item);
            }
        }
    }
    types
}

fn is_public(item: &Item) -> bool {
    let visibility = match item {
        Item::Struct(item) => &item.vis,
        Item::Enum(item) => &item.vis,
        _ => return false,
    };
    matches!(visibility, Visibility::Public(_))
}

/// Whether a type derives `Deserialize`.
fn derives(attributes: &[Attribute]) -> bool {
    let mut derives = attributes.iter().filter(|a| a.path().is_ident("derive"));
    derives.any(|derive| match &derive.meta {
        syn::Meta::List(list) => list.tokens.to_string().contains("Deserialize"),
        _ => false,
    })
}

/// Returns the doc comment as one line, without links.
fn doc(attributes: &[Attribute]) -> String {
    let lines = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            syn::Meta::NameValue(pair) if attribute.path().is_ident("doc") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit {
                    lit: syn::Lit::Str(text),
                    ..
                }) => Some(text.value()),
                _ => None,
            },
            _ => None,
        });
    let lines: Vec<String> = lines.map(|line| line.trim().to_owned()).collect();
    let text = lines.join(" ").replace("[`", "`").replace("`]", "`");
    let text = without_targets(&text);
    let text = text
        .split(" (see `")
        .next()
        .unwrap()
        .trim()
        .replace('|', "\\|");
    match text.ends_with('.') || text.is_empty() {
        true => text,
        false => text + ".",
    }
}

/// Removes the targets of links to Rust items: "`Axis`" for "`Axis`(crate::Axis)".
fn without_targets(text: &str) -> String {
    let mut parts = text
        .split("`(crate::")
        .flat_map(|part| part.split("`(Self::"));
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (_, rest) = part.split_once(')').expect("a target ends");
        text + "`" + rest
    })
}

struct Page {
    types: BTreeMap<String, Vec<Item>>,
    defaults: BTreeMap<String, Value>,
    /// The sections that are not written yet.
    due: Vec<String>,
    written: Vec<String>,
    text: String,
}

impl Page {
    /// Returns the type called `name`, if the source has one.
    fn named(&self, name: &str) -> Option<&Item> {
        let all = self.types.get(name)?;
        assert!(
            all.len() == 1,
            "two types are called {name}; the page needs one name for each"
        );
        all.first()
    }

    fn write() -> String {
        let architectures = <Zoo as List>::NAMES.iter();
        let mut due: Vec<String> = FIRST.iter().copied().map(str::to_owned).collect();
        due.splice(2..2, architectures.map(|(name, _)| format!("{name}Config")));
        let mut page = Self {
            types: types(),
            defaults: defaults(),
            due,
            written: Vec::new(),
            text: HEAD.into(),
        };
        while !page.due.is_empty() {
            let name = page.due.remove(0);
            if !page.written.contains(&name) {
                page.written.push(name.clone());
                page.section(&name);
            }
        }
        page.text.trim_end().to_owned() + "\n"
    }

    fn section(&mut self, name: &str) {
        if name == "Written" {
            return self.models();
        }
        if name == "ConnectionConfig" {
            return self.connections();
        }
        match self.named(name).cloned() {
            Some(Item::Struct(item)) => {
                let about = wrap(&doc(&item.attrs), 120).join("\n");
                write!(self.text, "## {name}\n\n{about}\n\n").unwrap();
                let all = has_serde(&item.attrs, "default");
                self.fields(name, &item.fields, all);
            }
            Some(Item::Enum(item)) => {
                let about = wrap(&doc(&item.attrs), 120).join("\n");
                write!(self.text, "## {name}\n\n{about}\n\n").unwrap();
                self.text += "| value | meaning |\n|---|---|\n";
                for variant in &item.variants {
                    let (name, about) = (variant.ident.to_string(), doc(&variant.attrs));
                    let content = self.content(&variant.fields);
                    if has_serde(&item.attrs, "untagged") {
                        let content = content.trim_matches(['(', ')']);
                        writeln!(self.text, "| {content} | {about} |").unwrap();
                        continue;
                    }
                    let initial = is_default(variant);
                    let initial = if initial { " (default)" } else { "" };
                    writeln!(self.text, "| `{name}`{content}{initial} | {about} |").unwrap();
                }
                self.text += "\n";
            }
            _ => panic!("{name} is no type that a file can hold"),
        }
    }

    /// Writes the list of models. A macro writes their type, so the source has none to read.
    fn models(&mut self) {
        self.text += "## Models\n\nOne of these. A model of one architecture has the name of the architecture.\n\n| value | meaning |\n|---|---|\n";
        for (name, about) in <Zoo as List>::NAMES {
            let config = self.link(&format!("{name}Config"));
            writeln!(self.text, "| `{name}`({config}) | {} |", about.trim()).unwrap();
        }
        let composed = serde_json::to_value(Composition::<Zoo>::in_turn([])).unwrap();
        assert!(composed["Composed"].is_object());
        let [connection, recurrence, loops, patches] = [
            "PlacedConnection",
            "RecurrentConfig",
            "LoopsConfig",
            "Patches",
        ]
        .map(|name| self.link(name));
        writeln!(
            self.text,
            "| `Composed`(`layers`: a list of architectures, `connection`: {connection} or `None`, \
             `recurrence`: {recurrence} or `None`, `loops`: {loops} or `None`, `patches`: {patches} or `None`) | Layers \
             of one or several architectures in turn, with a connection, inside a recurrence or a depth loop, on the \
             patches of images. |\n"
        )
        .unwrap();
    }

    /// Writes the list of connections. A macro writes their type, so the source has none to read.
    fn connections(&mut self) {
        self.text += "## ConnectionConfig\n\nThe config of a connection.\n\n| value | meaning |\n|---|---|\n";
        for (name, about) in ConnectionConfig::NAMES {
            let config = self.link(&format!("{name}Config"));
            writeln!(self.text, "| `{name}`({config}) | {} |", about.trim()).unwrap();
        }
        self.text += "\n";
    }

    /// Writes the fields of a struct. If `all` is false, only fields with a default attribute have a default.
    fn fields(&mut self, name: &str, fields: &Fields, all: bool) {
        self.text += "| field | type | default | meaning |\n|---|---|---|---|\n";
        for field in fields {
            let field_name = field.ident.as_ref().unwrap().to_string();
            let ty = self.type_of(&field.ty);
            let is_optional = all || has_serde(&field.attrs, "default");
            let default = match self.defaults.get(name).map(|all| all.get(&field_name)) {
                _ if !is_optional => "required".into(),
                None if all => panic!("the defaults of {name} are not listed"),
                None => "all defaults".into(),
                Some(Some(value)) if is_config(value) => "all defaults".into(),
                Some(Some(value)) => format!("`{}`", ron(value)),
                Some(None) => format!("`{}`", self.omitted(&field.ty)),
            };
            let about = doc(&field.attrs);
            writeln!(self.text, "| `{field_name}` | {ty} | {default} | {about} |").unwrap();
        }
        self.text += "\n";
    }

    /// Returns the default of a field that serde omits at its default.
    fn omitted(&self, ty: &Type) -> String {
        let Type::Path(path) = ty else {
            panic!("a field that is not a path");
        };
        let name = path.path.segments.last().unwrap().ident.to_string();
        match self.named(&name) {
            Some(Item::Enum(item)) => {
                let initial = item.variants.iter().find(|variant| is_default(variant));
                initial.expect("a default variant").ident.to_string()
            }
            _ if name == "bool" => "false".into(),
            _ if name == "usize" => "0".into(),
            _ => "None".into(),
        }
    }

    /// Returns the content of a variant.
    fn content(&mut self, fields: &Fields) -> String {
        let mut parts = Vec::new();
        for field in fields {
            let ty = self.type_of(&field.ty);
            parts.push(match &field.ident {
                Some(name) => format!("`{name}`: {ty}"),
                None => ty,
            });
        }
        match parts.is_empty() {
            true => String::new(),
            false => format!("({})", parts.join(", ")),
        }
    }

    /// Describes a type in words. Named types get a section.
    fn type_of(&mut self, ty: &Type) -> String {
        if let Type::Tuple(tuple) = ty {
            let parts: Vec<String> = tuple.elems.iter().map(|ty| self.type_of(ty)).collect();
            return format!("({})", parts.join(", "));
        }
        let Type::Path(path) = ty else {
            panic!("a field that is not a path");
        };
        let last = path.path.segments.last().unwrap();
        let mut inner = || match &last.arguments {
            PathArguments::AngleBracketed(arguments) => match arguments.args.last().unwrap() {
                GenericArgument::Type(inner) => self.type_of(inner),
                _ => panic!("a generic argument that is not a type"),
            },
            _ => panic!("a type without an argument"),
        };
        match last.ident.to_string().as_str() {
            "usize" | "u64" | "u32" | "u8" => "integer".into(),
            "f64" | "f32" => "number".into(),
            "bool" => "`true` or `false`".into(),
            "String" => "string".into(),
            "PathBuf" => "path".into(),
            "Option" => format!("{} or `None`", inner()),
            "Vec" => format!("list of {}", inner()),
            "BTreeMap" => format!("{} by name", inner()),
            "M" | "C" => "a [model](#models)".into(),
            "S" => "the base of the architecture".into(),
            "D" => self.link("ConnectionConfig"),
            "Mup" => {
                let base = inner();
                format!("{} with {base}", self.link("Mup"))
            }
            name => self.link(name),
        }
    }

    fn link(&mut self, name: &str) -> String {
        self.due.push(name.into());
        format!("[{name}](#{})", name.to_lowercase())
    }
}

/// Whether the serde attributes contain `word`.
fn has_serde(attributes: &[Attribute], word: &str) -> bool {
    let mut serde = attributes.iter().filter(|a| a.path().is_ident("serde"));
    serde.any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => {
            let mut tokens = list.tokens.clone().into_iter();
            tokens.any(|token| token.to_string() == word)
        }
        _ => false,
    })
}

/// Whether this is the default variant of an enum.
fn is_default(variant: &Variant) -> bool {
    variant.attrs.iter().any(|a| a.path().is_ident("default"))
}

/// Whether a value is a struct. The only field of an enum's value has a variant's name, and an empty map has no field.
fn is_config(value: &Value) -> bool {
    let first = value.as_object().and_then(|fields| fields.keys().next());
    first.is_some_and(|name| !name.starts_with(char::is_uppercase))
}

/// Formats a value as RON writes it.
fn ron(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::String(text) if text.starts_with(char::is_uppercase) => text.clone(),
        Value::Object(fields) if fields.is_empty() => "{}".into(),
        Value::Object(fields) => {
            let variant = fields.iter().next();
            let variant = variant.filter(|(name, _)| name.starts_with(char::is_uppercase));
            let named = |(name, value): (&String, &Value)| format!("{name}: {}", ron(value));
            match variant {
                Some((name, content @ Value::Object(_))) => format!("{name}{}", ron(content)),
                Some((name, content)) => format!("{name}({})", ron(content)),
                None => format!(
                    "({})",
                    fields.iter().map(named).collect::<Vec<_>>().join(", ")
                ),
            }
        }
        other => other.to_string(),
    }
}

#[test]
fn the_page_of_fields_is_what_the_source_says() {
    let page = Page::write();
    let path = root().join(PAGE);
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "{PAGE} is out of date: WRITE_DOCS=1 cargo test --release --workspace --test models config_page"
    );
    for field in [
        "learning_rate",
        "valid_fraction",
        "n_attn",
        "inverse_layer_scale",
        "alpha",
    ] {
        assert!(page.contains(&format!("| `{field}` |")), "{field}");
    }
}
