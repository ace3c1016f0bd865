//! The documentation refers only to what exists: its links lead to files and headings, and the source defines the Rust
//! items that it mentions.
//!
//! These are mentions of Rust items:
//!
//! - in a code span or a code block, a path with `::`, such as `Branch::forward`;
//! - in a code span or a Rust block, a word in CamelCase, such as `Branch`, or a macro, such as `zoo!`;
//! - a code span that is the text of a link to a Rust file, if the span is a path or an identifier. Its item must be in
//!   that file, unless the item is part of the file's own path, such as the name of its crate.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use residual_zoo_testing::root;
use syn::parse::{ParseStream, Parser};
use syn::{ImplItem, Item, TraitItem, Type};

/// Names in the documentation that the source does not define.
const ELSEWHERE: &[&str] = &[
    // Names of Rust and Burn.
    "Autodiff",
    "B",
    "Backend",
    "Box",
    "Clone",
    "Debug",
    "Default",
    "Deserialize",
    "Flex",
    "Initializer",
    "Int",
    "LayerNorm",
    "Linear",
    "Module",
    "None",
    "Ok",
    "Option",
    "Param",
    "PartialEq",
    "Result",
    "Self",
    "Serialize",
    "Some",
    "Tensor",
    "Vec",
    "burn",
    "std",
    // `Cargo.toml`, and the suffix of norm names.
    "Cargo",
    "Norm",
    // The examples of docs/adding-an-architecture.md.
    "Mine",
    "MineConfig",
    "Mlp",
    "residual_zoo_mine",
];

/// Returns the files below `directory` with this extension.
pub fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found
}

/// Every item of the source: its path and its file.
#[derive(Default)]
struct Items(Vec<(Vec<String>, PathBuf)>);

impl Items {
    /// Returns the items of `src` and of `crates/*/src`, without tests.
    fn of_source() -> Self {
        let mut items = Self::default();
        items.add_crate(&[], &root().join("src"));
        for entry in fs::read_dir(root().join("crates")).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            items.add_crate(&[name], &entry.path().join("src"));
        }
        items
    }

    fn add_crate(&mut self, name: &[String], source: &Path) {
        for file in files(source, "rs") {
            let relative = file.strip_prefix(source).unwrap().with_extension("");
            let modules = relative
                .iter()
                .map(|part| part.to_str().unwrap().to_string());
            let modules: Vec<String> = modules
                .filter(|part| !["lib", "mod", "main"].contains(&part.as_str()))
                .collect();
            if modules.iter().any(|module| module == "tests") {
                continue;
            }
            let path = [name, &modules].concat();
            let code = syn::parse_file(&fs::read_to_string(&file).unwrap()).unwrap();
            let file = file.canonicalize().unwrap();
            self.0.push((path.clone(), file.clone()));
            self.add(&path, &file, code.items);
        }
    }

    fn add(&mut self, module: &[String], file: &Path, items: Vec<Item>) {
        for item in items {
            let (owner, members) = match item {
                Item::Const(item) => (item.ident, Vec::new()),
                Item::Fn(item) => (item.sig.ident, Vec::new()),
                Item::Struct(item) => (item.ident, Vec::new()),
                Item::Type(item) => (item.ident, Vec::new()),
                Item::Enum(item) => {
                    let variants = item.variants.into_iter().map(|variant| variant.ident);
                    (item.ident, variants.collect())
                }
                Item::Trait(item) => (item.ident, trait_members(item.items)),
                Item::Impl(item) => match *item.self_ty {
                    Type::Path(of) => {
                        let of = of.path.segments.last().unwrap().ident.clone();
                        (of, impl_members(item.items))
                    }
                    _ => continue,
                },
                Item::Mod(item) if item.ident != "tests" => {
                    let inner = [module, &[item.ident.to_string()]].concat();
                    let (_, items) = item.content.unwrap_or_default();
                    self.add(&inner, file, items);
                    (item.ident, Vec::new())
                }
                Item::Macro(item) => match item.ident {
                    Some(ident) => (ident, Vec::new()),
                    // The macro is called with an item, as in `zoo! { pub enum … }`.
                    None => {
                        if let Ok(inner) = first_item.parse2(item.mac.tokens) {
                            self.add(module, file, vec![inner]);
                        }
                        continue;
                    }
                },
                _ => continue,
            };
            let path = [module, &[owner.to_string()]].concat();
            for member in members {
                let path = [path.as_slice(), &[member.to_string()]].concat();
                self.0.push((path, file.into()));
            }
            self.0.push((path, file.into()));
        }
    }

    /// Whether the path of an item ends with the last segment of `mention` and has the other segments before it, in
    /// order. With `file`, the item must be in this file. The path may have further segments, because re-exports leave
    /// segments out.
    fn has(&self, mention: &str, file: Option<&Path>) -> bool {
        let segments: Vec<&str> = mention
            .split("::")
            // These crates re-export others.
            .filter(|segment| !["crate", "residual_zoo", "residual_zoo_models"].contains(segment))
            .map(|segment| segment.strip_prefix("residual_zoo_").unwrap_or(segment))
            .collect();
        self.0.iter().any(|(path, of)| {
            let mut rest = path.iter();
            path.last().map(String::as_str) == segments.last().copied()
                && segments
                    .iter()
                    .all(|segment| rest.any(|part| part == segment))
                && file.is_none_or(|file| file == of)
        })
    }
}

/// Returns the item at the start of a macro's input.
fn first_item(input: ParseStream) -> syn::Result<Item> {
    let item = input.parse()?;
    while !input.is_empty() {
        input.step(|cursor| {
            let next = cursor.token_tree();
            next.map(|(_, rest)| ((), rest))
                .ok_or_else(|| cursor.error("no token"))
        })?;
    }
    Ok(item)
}

fn trait_members(items: Vec<TraitItem>) -> Vec<syn::Ident> {
    let name = |item| match item {
        TraitItem::Const(item) => Some(item.ident),
        TraitItem::Fn(item) => Some(item.sig.ident),
        TraitItem::Type(item) => Some(item.ident),
        _ => None,
    };
    items.into_iter().filter_map(name).collect()
}

fn impl_members(items: Vec<ImplItem>) -> Vec<syn::Ident> {
    let name = |item| match item {
        ImplItem::Const(item) => Some(item.ident),
        ImplItem::Fn(item) => Some(item.sig.ident),
        ImplItem::Type(item) => Some(item.ident),
        _ => None,
    };
    items.into_iter().filter_map(name).collect()
}

/// A page in Markdown.
struct Page {
    path: PathBuf,
    /// The text outside of code blocks, split at each backtick: code spans have odd indices.
    prose: Vec<String>,
    /// The language and text of each code block.
    blocks: Vec<(String, String)>,
}

impl Page {
    fn read(path: &Path) -> Self {
        Self::new(path, &fs::read_to_string(path).unwrap())
    }

    fn new(path: &Path, text: &str) -> Self {
        let (mut prose, mut blocks) = (String::new(), Vec::<(String, String)>::new());
        let mut inside = false;
        for line in text.lines() {
            match line.trim_start().strip_prefix("```") {
                Some(_) if inside => inside = false,
                Some(language) => {
                    inside = true;
                    blocks.push((language.into(), String::new()));
                }
                None => {
                    let text = blocks.last_mut().filter(|_| inside);
                    let text = text.map_or(&mut prose, |(_, text)| text);
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
        let prose: Vec<String> = prose.split('`').map(Into::into).collect();
        assert!(
            prose.len() % 2 == 1 && !inside,
            "{path:?}: an open code span or block"
        );
        Self {
            path: path.into(),
            prose,
            blocks,
        }
    }

    /// Returns the targets of links inside the repository, each with the link text if this text is one code span.
    fn links(&self) -> Vec<(Option<&str>, &str)> {
        let mut links = Vec::new();
        for (i, text) in self.prose.iter().enumerate().step_by(2) {
            for (at, _) in text.match_indices("](") {
                let target = text[at + 2..].split(')').next().unwrap();
                let code = (at == 0 && self.prose[i - 2].ends_with('['))
                    .then(|| self.prose[i - 1].as_str());
                if !target.contains("://") {
                    links.push((code, target));
                }
            }
        }
        links
    }

    /// Returns the file and the anchor of a link target.
    fn resolve<'a>(&self, target: &'a str) -> (PathBuf, Option<&'a str>) {
        let (file, anchor) = match target.split_once('#') {
            Some((file, anchor)) => (file, Some(anchor)),
            None => (target, None),
        };
        match file {
            "" => (self.path.clone(), anchor),
            _ => (self.path.parent().unwrap().join(file), anchor),
        }
    }

    /// Returns the anchors that GitHub gives to headings.
    fn anchors(&self) -> Vec<String> {
        let prose = self.prose.concat();
        let headings = prose.lines().filter(|line| line.starts_with('#'));
        let anchor = |heading: &str| {
            let text = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = text
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        };
        headings.map(anchor).collect()
    }

    /// Returns links to files or headings that do not exist.
    fn dead_links(&self) -> Vec<&str> {
        let is_dead = |target: &&str| {
            let (file, anchor) = self.resolve(target);
            let is_page = file.extension().is_some_and(|extension| extension == "md");
            let has = |anchor: &str| Self::read(&file).anchors().iter().any(|a| a == anchor);
            !file.exists() || is_page && anchor.is_some_and(|anchor| !has(anchor))
        };
        let targets = self.links().into_iter().map(|(_, target)| target);
        targets.filter(is_dead).collect()
    }

    /// Returns the Rust items that are mentioned outside of links.
    fn mentions(&self) -> Vec<String> {
        let spans = self.prose.iter().skip(1).step_by(2);
        let spans = spans.flat_map(|span| mentions(span, true));
        let blocks = self.blocks.iter().flat_map(|(language, text)| {
            let code = text.lines().map(|line| line.split("//").next().unwrap());
            mentions(&code.collect::<Vec<_>>().join("\n"), language == "rust")
        });
        spans.chain(blocks).collect()
    }

    /// Returns mentions of Rust items that do not exist.
    fn dead_items(&self, items: &Items) -> Vec<String> {
        let mut dead = self.mentions();
        dead.retain(|mention| !items.has(mention, None));
        for (code, target) in self.links() {
            let (file, _) = self.resolve(target);
            let Some(code) = code.filter(|code| target.ends_with(".rs") && is_path(code)) else {
                continue;
            };
            let file = file.canonicalize().unwrap_or(file);
            let inside = file.strip_prefix(root().canonicalize().unwrap());
            let inside = inside.unwrap_or(&file).with_extension("");
            if !inside.iter().any(|part| part == code) && !items.has(code, Some(&file)) {
                dead.push(format!("{code} in {target}"));
            }
        }
        dead
    }
}

/// Whether a text consists of identifiers with `::` between them.
fn is_path(text: &str) -> bool {
    text.split("::").all(|part| {
        let is_word = part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        is_word && part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    })
}

/// Returns the paths in code; with `words`, also macros and words in CamelCase.
fn mentions(code: &str, words: bool) -> Vec<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let (mut rest, mut found) = (code, Vec::new());
    while let Some(start) = rest.find(is_part) {
        let end = rest[start..].find(|c| !is_part(c));
        let (word, after) = rest[start..].split_at(end.unwrap_or(rest.len() - start));
        let (word, is_macro) = (word.trim_matches(':'), after.starts_with('!'));
        let is_camel_case = word.starts_with(|c: char| c.is_ascii_uppercase())
            && word[1..].starts_with(|c: char| c.is_ascii_lowercase())
            && !word.contains('_');
        let is_mention = word.contains("::") || words && (is_macro || is_camel_case);
        let is_elsewhere = word.split("::").any(|part| ELSEWHERE.contains(&part));
        if is_mention && is_path(word) && !is_elsewhere {
            found.push(word.to_string());
        }
        rest = after;
    }
    found
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut pages = files(&root().join("docs"), "md");
    pages.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|page| root().join(page)));
    let pages: Vec<Page> = pages.iter().map(|page| Page::read(page)).collect();
    let dead = |page: &Page| {
        let links = page.dead_links().into_iter();
        links
            .map(|link| format!("{}: {link}", page.path.display()))
            .collect::<Vec<_>>()
    };
    let dead: Vec<String> = pages.iter().flat_map(dead).collect();
    assert!(dead.is_empty(), "{dead:#?}");
    let links: usize = pages.iter().map(|page| page.links().len()).sum();
    assert!(links > 200, "only {links} links");
}

#[test]
fn every_item_exists() {
    let mut pages = files(&root().join("docs/papers"), "md");
    let others = [
        "README.md",
        "docs/architecture.md",
        "docs/adding-an-architecture.md",
    ];
    pages.extend(others.map(|page| root().join(page)));
    let items = Items::of_source();
    let pages: Vec<Page> = pages.iter().map(|page| Page::read(page)).collect();
    let dead = |page: &Page| {
        let found = page.dead_items(&items).into_iter();
        found
            .map(|item| format!("{}: {item}", page.path.display()))
            .collect::<Vec<_>>()
    };
    let dead: Vec<String> = pages.iter().flat_map(dead).collect();
    assert!(dead.is_empty(), "{dead:#?}");
    let mentions: usize = pages.iter().map(|page| page.mentions().len()).sum();
    assert!(mentions > 200, "only {mentions} mentions");
}

#[test]
fn dead_links_and_items_are_found() {
    let page = |text: &str| Page::new(&root().join("docs/papers/laurel.md"), text);
    let items = Items::of_source();

    let alive = "[a](rmt.md), [b](rmt.md#in-a-run-file), [c](#sizes), [d](https://burn.dev/none),
        [`Laurel`](../../crates/laurel/src/connection.rs),
        [`laurel`](../../crates/laurel/src/connection.rs),
        [`DotAttention`](../../crates/core/src/ops/attention.rs)
        `Laurel::update`, `Connection::update`, `LaurelConfig::pa(3)`, `core::params::Role`, `zoo!`,
        `core::materialise`, `Zoo::Gpt2`, `Normalization::L2NormGelu`, `residual_zoo_rmt::memory::store`,
        `layers: Vec<A>`, `x = Σ_h W_O⁽ʰ⁾`, `augmentation: LowRank`
        \n```text\nEach layer: Branch::forward\n```";
    assert_eq!(page(alive).dead_links(), Vec::<&str>::new());
    assert_eq!(page(alive).dead_items(&items), Vec::<String>::new());

    let links = "[a](none.md), [b](rmt.md#none), [c](#none), ![d](../images/none.png)";
    let dead = ["none.md", "rmt.md#none", "#none", "../images/none.png"];
    assert_eq!(page(links).dead_links(), dead);

    for dead in [
        "Attention::heed",
        "Laurel::new_cache",
        "Attentiveness",
        "core::Laurel",
        "memory::forget",
        "residual_zoo_rmt::Laurel",
        "menagerie!",
    ] {
        let name = dead.trim_end_matches('!');
        for text in [
            format!("`{dead}`"),
            format!("`x: {dead}(4)`"),
            format!("```rust\nlet x = {dead}(4); // Comment\n```"),
        ] {
            assert_eq!(page(&text).dead_items(&items), [name], "{text}");
        }
    }
    let text = "```text\nEach layer: Attention::heed\n```";
    assert_eq!(page(text).dead_items(&items), ["Attention::heed"]);
    for (code, file) in [
        ("Laurel", "../../crates/laurel/src/config.rs"),
        ("retrieve_all", "../../crates/rmt/src/memory.rs"),
    ] {
        let dead = page(&format!("[`{code}`]({file})")).dead_items(&items);
        assert_eq!(dead, [format!("{code} in {file}")]);
    }
}

/// Words with which no doc comment begins, because they hide the noun or the verb of the sentence.
const OPENERS: [&str; 7] = ["What", "That of", "Those", "Whose", "Who", "Of", "Which"];

/// Finds doc comments that begin with a word of [`OPENERS`], or with "Whether" before an item other than a `bool`.
fn poor_openings(path: &Path, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let comment = |line: &str| {
        let found = ["/// ", "//! "].iter().find_map(|it| line.strip_prefix(it));
        found.map(str::to_owned)
    };
    let begins = |text: &str, word: &str| {
        text.strip_prefix(word)
            .is_some_and(|rest| rest.starts_with(' '))
    };
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let is_first = at == 0 || comment(lines[at - 1]).is_none() && lines[at - 1] != "///";
        let Some(text) = comment(line).filter(|_| is_first) else {
            continue;
        };
        let item = lines[at..]
            .iter()
            .find(|line| !line.starts_with("//") && !line.starts_with("#["));
        let is_bool = item.is_some_and(|item| item.to_lowercase().contains("bool"));
        if OPENERS.iter().any(|word| begins(&text, word)) || begins(&text, "Whether") && !is_bool {
            found.push(format!("{}:{}: {line}", path.display(), at + 1));
        }
    }
    found
}

#[test]
fn doc_comments_begin_with_a_verb_or_a_noun() {
    let mut poor = Vec::new();
    for folder in ["crates", "src", "examples", "tests"] {
        for path in files(&root().join(folder), "rs") {
            poor.extend(poor_openings(&path, &fs::read_to_string(&path).unwrap()));
        }
    }
    assert!(poor.is_empty(), "{poor:#?}");

    let path = Path::new("a.rs");
    for (text, count) in [
        ("/// What a model reads.\nstruct A;", 1),
        ("/// Those of each layer.\nfn a();", 1),
        ("    /// Whether it is done.\n    fn a() -> f64;", 1),
        ("/// Whether it is done.\n#[must_use]\nfn a() -> bool;", 0),
        ("/// Reads a file.\n/// What is left stays.\nfn a();", 0),
        ("/// Whatever a model reads.\nstruct A;", 0),
    ] {
        assert_eq!(poor_openings(path, text).len(), count, "{text}");
    }
}

/// Returns the lines of prose on a page that are longer than `most` characters. Tables, code, headings, lone links and
/// pictures may be longer.
fn long_lines(text: &str, most: usize) -> Vec<&str> {
    let mut is_code = false;
    let long = |line: &&str| {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let starts = ["|", "#", "[![", "![", "<!--", "- [", "  - ["];
        !is_code
            && line.chars().count() > most
            && !starts.iter().any(|start| line.starts_with(start))
    };
    text.lines().filter(long).collect()
}

#[test]
fn lines_of_prose_are_short() {
    // The program writes the results pages, so their lines may be longer.
    let is_written = |path: &Path| path.parent().is_some_and(|it| it.ends_with("results"));
    let mut pages = files(&root().join("docs"), "md");
    pages.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|page| root().join(page)));
    pages.retain(|page| !is_written(page) || page.ends_with("results/README.md"));
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let long = long_lines(&text, 120);
        assert!(long.is_empty(), "{}: {long:#?}", page.display());
    }
    let line = "word ".repeat(25);
    assert_eq!(long_lines(&line, 120).len(), 1);
    assert_eq!(long_lines(&format!("| {line} |"), 120).len(), 0);
    assert_eq!(
        long_lines(&format!("```sh\n{line}\n```\n{line}"), 120).len(),
        1
    );
}

#[test]
fn the_book_has_every_page() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let listed: BTreeSet<&str> = summary
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .collect();
    let mut there = BTreeSet::new();
    for folder in ["", "decisions", "papers", "results"] {
        for entry in fs::read_dir(docs.join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") && name != "SUMMARY.md" {
                there.insert(Path::new(folder).join(name).display().to_string());
            }
        }
    }
    let there: BTreeSet<&str> = there.iter().map(String::as_str).collect();
    let missing: Vec<_> = there.difference(&listed).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md lacks {missing:?}");
    let dead: Vec<_> = listed.difference(&there).collect();
    assert!(dead.is_empty(), "docs/SUMMARY.md lists {dead:?}");
}
