//! `docs/findings.md` and the table of the README, made from the pages in `docs/results`.

use std::fmt::Write as _;
use std::fs;

use residual_zoo_testing::root;

const PAGE: &str = "docs/findings.md";
const HEAD: &str = "\
# Findings

What the experiments say about the claims of the papers. The models are 30 to 15,000 times smaller than those
of the papers, so a claim that does not hold here may hold at their size. Differences are means over the seeds with
their 95 % confidence interval; p is corrected for the number of claims of an experiment (Holm). Losses are validation
losses in nats per token. A budget is the number of seeds, the passes over the text and the time of all training on one
core, tuning included. [How claims are judged](experiments.md#how-a-claim-is-judged).

✓ holds · ✗ does not hold · ? undecided · – not tested

";

/// A paper: the directory of its experiments, its name and address, and what the trained models show.
struct Paper {
    directory: &'static str,
    title: &'static str,
    address: &'static str,
    summary: &'static str,
}

const PAPERS: [Paper; 5] = [
    Paper {
        directory: "rmt",
        title: "Residual Matrix Transformer",
        address: "https://arxiv.org/abs/2506.22696",
        summary: "After the same tokens, the loss of the RMT is lower than that of a transformer by 0.002 to 0.042 \
                  (95 % interval); the paper reports 0.11 for models 2,000 times larger. After the correction for \
                  several claims this is undecided, and the transformer's start was chosen after a first run. At the same FLOPs, the larger two of four RMTs are \
                  within 0.04 of transformers, on either side; the smaller ones have too few steps to tell. A larger \
                  stream lowers the loss, but not beyond a stream of 128 at this size. On a text of another kind, \
                  WikiText, the RMT needs 0.07 to 0.16 fewer bits per byte, in a second run: in the first one, characters that \
                  training never showed hid the difference. The data sets of Table 6 need larger models.",
    },
    Paper {
        directory: "laurel",
        title: "LAuReL",
        address: "https://arxiv.org/abs/2411.07501",
        summary: "No variant lowers the loss by as much as the paper reports, 0.05 to 0.07; the intervals exclude more \
                  than 0.016. But one more layer makes no measurable difference either, so models of this size \
                  cannot test Table 5. The start matters: RW with a softmax from ½ and ½ is worse than the baseline. \
                  The rank matters too: RW+LR with rank 16 ends at 1.904, RW at 1.914. No claim compares it with the \
                  plain baseline, which ends at 1.910.",
    },
    Paper {
        directory: "tokenformer",
        title: "TokenFormer",
        address: "https://arxiv.org/abs/2410.23168",
        summary: "Growing does not pay at this size: for the same FLOPs, the grown model ends 0.007 to 0.036 above the \
                  large model from scratch, and 0.072 to 0.096 above a transformer. That a TokenFormer from scratch \
                  is worse than a transformer (by 0.052 to 0.073) explains most of the latter. With the tokens of the last \
                  stage alone, models from scratch are worse than the grown one, as the paper reports. Growing keeps \
                  the function. On new data, neither a grown TokenFormer nor a widened transformer gains from its size \
                  within 300 steps. Growing twice on the same data lowers the loss by more than widening a transformer \
                  twice, but the transformer stays ahead. Starting from the weights of a transformer saves \
                  training, but the transformer that is trained on is better. The order of Table 4 holds: L2 norm and GELU, then the L1 norm, then the softmax.",
    },
    Paper {
        directory: "recurrent",
        title: "Recurrent transformer",
        address: "https://arxiv.org/abs/2402.14746",
        summary: "For the FLOPs of six ordinary layers, one recurrent layer differs in loss by −0.015 to +0.006 \
                  (undecided), with a fifth of their parameters. After the same tokens it is worse than one ordinary \
                  layer, by 0.043 to 0.056; the paper's recurrent layer sees more samples. α goes to zero, as reported, and a fixed α is \
                  the worse the larger it is. Four stacked layers are better than one, by 0.077 to 0.089; the paper sees no benefit. The copy over 256 tokens of noise is solved by all seeds of both forms, also \
                  without the curriculum; the paper goes to 4096. The selective copy is not solved after 128,000 samples, of which the paper has up to 25.6 million. After 16,000 of 600,000 samples, 18 to 21 % of the images are \
                  classified, where the paper has 47 %.",
    },
    Paper {
        directory: "streams",
        title: "Streams",
        address: "papers/streams.md#equations-and-code",
        summary: "Value residuals cannot be told from the transformer with twelve layers of width 48: with learned weights the loss \
                  is lower by 0.007 ± 0.010, and the median run saves 3 % of the tokens, where the paper reports 20 %.",
    },
];

/// The published results of an experiment.
struct Results {
    name: String,
    claims: Vec<Row>,
    /// Seeds, passes over the text and time.
    budget: String,
    /// Whether something was trained.
    is_trained: bool,
    /// Whether it was designed to be fair to all of its models, or nothing was trained.
    is_fair: bool,
}

/// A claim with its verdict.
#[derive(Clone)]
struct Row {
    says: String,
    sign: char,
    found: String,
    reported: String,
}

impl Results {
    fn read(name: &str) -> Self {
        let path = root().join(format!("docs/results/{name}.md"));
        let page = fs::read_to_string(path).unwrap();
        let claims = page.lines().filter_map(Row::read).collect();
        let after = |start: &str| page.split(start).nth(1)?.split_whitespace().next();
        let time = page
            .lines()
            .find_map(|line| line.strip_suffix(" of training"));
        // Of several texts, each has its passes.
        let passes = page.split("## Data").nth(1).and_then(|data| {
            let mut lines = data.lines().filter(|line| line.starts_with("| "));
            let cells = |line: &str| {
                line.trim_matches(['|', ' '])
                    .split(" | ")
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            let column = cells(lines.next()?)
                .iter()
                .position(|cell| cell.starts_with("passes"))?;
            let passes = lines
                .skip(1)
                .filter_map(|line| cells(line).get(column).cloned());
            Some(passes.collect::<Vec<_>>().join(" and "))
        });
        let seeds = after("Means over ");
        let budget = match (time, seeds, passes.as_deref()) {
            (None, None, _) => "exact".into(),
            (None, Some(seeds), _) => format!("{seeds} measurements"),
            // Data that are generated have no passes.
            (Some(time), Some(seeds), None | Some("–")) => format!("{seeds} seeds, {time}"),
            (Some(time), Some(seeds), Some(passes)) => {
                format!("{seeds} seeds, {passes} passes, {time}")
            }
            (Some(time), ..) => time.into(),
        };
        Self {
            name: name.into(),
            claims,
            budget,
            is_trained: time.is_some(),
            // Of the trained ones, the old results have fewer seeds.
            is_fair: time.is_none() || seeds.is_some_and(|seeds| seeds == "8"),
        }
    }

    /// Its name as a link, from a directory whose path to `docs` is `docs`.
    fn link(&self, docs: &str) -> String {
        format!("[`{0}`]({docs}results/{0}.md)", self.name)
    }
}

impl Row {
    /// Whether the claim is one of the paper.
    fn is_of_paper(&self) -> bool {
        !self.says.ends_with("(not in the paper)")
    }

    /// A row of the table of claims.
    fn read(line: &str) -> Option<Self> {
        let cells = line.strip_prefix("| ")?.strip_suffix(" |")?;
        let [says, verdict, measured, reported] = cells.split(" | ").collect::<Vec<_>>()[..] else {
            return None;
        };
        let sign = verdict.chars().next()?;
        "✓✗?–".contains(sign).then(|| Self {
            says: says.into(),
            sign,
            found: short(measured, sign),
            reported: reported.into(),
        })
    }
}

/// `A: 1.5; B: 1.7 nats/token; difference -0.2 ± 0.1 over 8 seeds, …; p = 0.01, corrected 0.02` as
/// `1.5 against 1.7: -0.2 ± 0.1, p 0.02`. Other texts stay, without what is reported.
/// Of an undecided claim, it says whether the difference is smaller than the reported one.
fn short(measured: &str, sign: char) -> String {
    let parts = || -> Option<String> {
        let (values, rest) = measured.split_once("; difference ")?;
        let value = |part: &str| Some(part.rsplit_once(": ")?.1.split(' ').next()?.to_owned());
        let (first, second) = values.split_once("; ")?;
        let difference = rest.split(" over ").next()?;
        let p = rest.split("corrected ").nth(1);
        let p = p.or_else(|| Some(rest.split("; p ").nth(1)?.trim_start_matches("= ")));
        let p = p.map_or(String::new(), |p| format!(", p {p}"));
        let excludes = measured.contains("excludes the reported");
        let reported = match sign == '?' && excludes {
            true => "; smaller than reported",
            false => "",
        };
        Some(format!(
            "{} against {}: {difference}{p}{reported}",
            value(first)?,
            value(second)?
        ))
    };
    // What was reported has its own column.
    let alone = || {
        let found = measured.split(", reported").next().unwrap_or(measured);
        // Between lines of runs, the distance and those of each size are enough.
        let distance = found.split_once(" over ");
        let distance = distance.filter(|(_, rest)| rest.contains("detectable"));
        let short = distance.and_then(|(mean, rest)| Some((mean, rest.split_once("; ")?.1)));
        short.map_or(found.to_owned(), |(mean, rest)| format!("{mean}; {rest}"))
    };
    parts().unwrap_or_else(alone)
}

/// All experiments of a paper, in the order of `docs/results/README.md`.
fn of_paper(paper: &str) -> Vec<Results> {
    let text = fs::read_to_string(root().join("docs/results/README.md")).unwrap();
    let names = text
        .lines()
        .filter_map(|line| line.strip_prefix("| [`")?.split('`').next());
    let own = names.filter(|name| root().join(format!("experiments/{paper}/{name}")).is_dir());
    own.map(Results::read).collect()
}

/// A table of claims. The budget of an experiment stands beside its first claim.
fn rows<'a>(rows: impl Iterator<Item = (&'a Results, &'a Row)>) -> String {
    let (mut text, mut last) = (String::new(), "");
    for (results, row) in rows {
        let Row {
            says,
            sign,
            found,
            reported,
        } = row;
        let mut link = results.link("");
        if last != results.name {
            write!(link, ": {}", results.budget).unwrap();
        }
        last = &results.name;
        writeln!(text, "| {sign} | {says} | {reported} | {found} | {link} |").unwrap();
    }
    match text.is_empty() {
        true => text,
        false => format!(
            "| | claim | paper | here | experiment, budget |\n|---|---|---|---|---|\n{text}\n"
        ),
    }
}

fn write_page() -> String {
    let mut page = HEAD.to_owned();
    let (mut sections, mut repeated, mut open) = (String::new(), Vec::new(), String::new());
    page += "| paper | trained models: ✓ | ✗ | ? | – | without training: ✓ | ✗ | ? |\n";
    page += "|---|---|---|---|---|---|---|---|\n";
    for paper in &PAPERS {
        let Paper {
            directory,
            title,
            address,
            summary,
        } = paper;
        let (fair, old): (Vec<_>, Vec<_>) =
            of_paper(directory).into_iter().partition(|it| it.is_fair);
        repeated.extend(old.iter().map(|it| it.link("")));
        let all = || {
            fair.iter()
                .flat_map(|it| it.claims.iter().map(move |row| (it, row)))
        };
        let of_paper = |is_trained: bool| {
            all().filter(move |(it, row)| row.is_of_paper() && it.is_trained == is_trained)
        };
        let count = |is_trained, sign| {
            of_paper(is_trained)
                .filter(|(_, row)| row.sign == sign)
                .count()
        };
        let trained = ['✓', '✗', '?', '–']
            .map(|sign| count(true, sign).to_string())
            .join(" | ");
        let exact = ['✓', '✗', '?']
            .map(|sign| count(false, sign).to_string())
            .join(" | ");
        let anchor = title.to_lowercase().replace(' ', "-");
        writeln!(page, "| [{title}](#{anchor}) | {trained} | {exact} |").unwrap();
        writeln!(sections, "## {title}\n\n{summary}\n").unwrap();
        sections += &rows(of_paper(true));
        let exact: Vec<_> = fair.iter().filter(|it| !it.is_trained).collect();
        if !exact.is_empty() {
            sections += "Counted or measured without training, and how many claims hold:\n\n";
        }
        for it in exact {
            let own: Vec<_> = it.claims.iter().filter(|row| row.is_of_paper()).collect();
            let good = own.iter().filter(|row| row.sign == '✓').count();
            writeln!(sections, "- {}: {good} of {}", it.link(""), own.len()).unwrap();
        }
        sections += "\n";
        sections += &rows(of_paper(false).filter(|(_, row)| row.sign != '✓'));
        let (papers, it) = match address.starts_with("http") {
            true => ("The paper", "it leaves"),
            false => ("The papers", "they leave"),
        };
        write!(
            sections,
            "[{papers}]({address}). [What {it} open](papers/{directory}.md).\n\n"
        )
        .unwrap();
        open += &rows(all().filter(|(_, row)| !row.is_of_paper()));
    }
    page += "\n";
    page += &sections;
    write!(page, "## Choices that the papers leave open\n\n{open}").unwrap();
    if !repeated.is_empty() {
        let list = repeated.join(", ");
        write!(
            page,
            "## Not yet repeated\n\nThe models of {list} had one learning rate, which was not "
        )
        .unwrap();
        page += "tuned. They are being repeated, and are not counted above.\n";
    }
    page.trim_end().to_owned() + "\n"
}

/// The first claim of every tuned experiment that is about a difference between trained models.
fn write_table() -> String {
    let mut table =
        "| | claim of the paper | reported | here | experiment |\n|---|---|---|---|---|\n"
            .to_owned();
    for paper in &PAPERS {
        for results in of_paper(paper.directory)
            .iter()
            .filter(|it| it.is_trained && it.is_fair)
        {
            let is_difference = |row: &&Row| row.is_of_paper() && row.found.contains(" ± ");
            if let Some(row) = results.claims.iter().find(is_difference) {
                let Row {
                    says,
                    sign,
                    found,
                    reported,
                } = row;
                let link = results.link("docs/");
                writeln!(table, "| {sign} | {says} | {reported} | {found} | {link} |").unwrap();
            }
        }
    }
    table
}

const MARKS: [&str; 2] = ["<!-- findings -->\n", "<!-- end of findings -->\n"];

#[test]
fn the_findings_are_those_of_the_results() {
    let page = write_page();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (before, rest) = readme.split_once(MARKS[0]).unwrap();
    let (_, after) = rest.split_once(MARKS[1]).unwrap();
    let table = write_table();
    let expected = [before, MARKS[0], &table, MARKS[1], after].concat();
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(root().join(PAGE), &page).unwrap();
        fs::write(root().join("README.md"), &expected).unwrap();
    }
    let says = "is out of date: WRITE_DOCS=1 cargo test --release --workspace --test lab findings";
    let found = fs::read_to_string(root().join(PAGE)).unwrap_or_default();
    assert!(found == page, "{PAGE} {says}");
    assert!(
        fs::read_to_string(root().join("README.md")).unwrap() == expected,
        "README.md {says}"
    );
}

#[test]
fn a_measured_difference_is_shortened() {
    let measured = "A, 1: 1.5; B: 1.7 nats/token; difference -0.2 ± 0.1 over 8 seeds, detectable 0.14; p = 0.010, \
                    corrected 0.020";
    assert_eq!(short(measured, '✓'), "1.5 against 1.7: -0.2 ± 0.1, p 0.020");
    let alone = measured.split(", corrected").next().unwrap();
    assert_eq!(short(alone, '✓'), "1.5 against 1.7: -0.2 ± 0.1, p 0.010");
    assert_eq!(short("A: 148k; B: 210k", '✓'), "A: 148k; B: 210k");
}
