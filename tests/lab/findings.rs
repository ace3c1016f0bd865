//! Generates `docs/findings.md` and the table of the README from the pages in `docs/results`.

mod family;
mod forest;
mod ladder;
mod pages;
mod papers;
mod rows;
mod worth;

use std::fmt::Write as _;
use std::fs;

use papers::{PAPERS, Paper};
use residual_zoo_testing::root;
use rows::{Results, Row};

const PAGE: &str = "docs/findings.md";
const PLOT: &str = "docs/findings-tokens.svg";
const HEAD: &str = "\
# Findings

This page compares the claims of the papers with the experiments of the zoo.

- **Size.** Most models here are 30 to 15,000 times smaller than the models of the papers. A claim that does not hold
  here may hold at their size, and vice versa.
- **Losses of text** are mostly per character here, and per token in most papers. The sizes of such differences cannot
  be compared.

";

const MAIN: &str = "\
✓ holds · ✗ does not hold · ? undecided · – not tested

- **Values.** A value is the mean over the seeds. A difference is given with its 95 % confidence interval, which is not
  corrected for the number of claims. Of two values, the first belongs to the claim's subject.
- **p** is corrected (Holm) for the number of claims of the experiment, or of the claim's family if the experiment has
  primary claims. A claim holds if the interval excludes zero and the corrected p is below 0.05.
- **Primary** claims were named before the runs on the seeds that judge them. `hyper_depth`, `mhc_depth`, `rmt_scaling`
  and `muon` had earlier runs, whose outcomes were known; their pages say what changed. Some designs of
  `attention_blocks` and `values` had been trained on other seeds before, in `attention_residual` and `value_residual`.
- **p among the main claims** is corrected for the paper's main claims that have a p-value and are not primary. They
  were chosen after most of these runs, so this p decides nothing.
- **Families.** `(0.683 in one family of all claims)` is the p-value that the claim would have without primary claims.
- **Detectable**, given for undecided differences, is the smallest difference that the seeds would show in 80 % of
  cases, without the correction of p.
- **Shared runs.** The rows of `hyper_depth`, `hyper_root_n`, `mhc_depth`, `attention_blocks` and `values` have the same
  eight runs of the plain residual, whose mean loss is 1.974, so these rows are not independent. Twelve more, on
  other seeds, have a mean of 1.964. Against all twenty, static hyper-connections end 0.071 ± 0.011 lower, dynamic ones
  0.062 ± 0.010, mHC 0.026 ± 0.013 and value embeddings 0.028 ± 0.012. The rows of `hyper_ladder`, `mhc_ladder`,
  `attention_ladder`, `dense_ladder` and `laurel_ladder` have the same runs of the plain residual too.
- **Seeds.** The pages of older experiments lack the losses of each seed. Among them are `rmt_vs_transformer`,
  `zero_shot`, `recurrent_shakespeare` and the older pages of LAuReL and of the TokenFormer's
  growth.
- **Units.** Numbers without a unit are validation losses, unless the claim says otherwise. They are in nats per token.
  A token is a character or a byte here, except in `zero_shot` (a subword), on copies (a symbol) and on images (a loss
  is per image). A model that ends below another has a lower final loss.

[How claims are judged](experiments.md#how-a-claim-is-judged).

";

/// Returns the results of all experiments of a paper, in the order of `docs/results/README.md`.
fn of_paper(paper: &str) -> Vec<Results> {
    let text = fs::read_to_string(root().join("docs/results/README.md")).unwrap();
    let names = text
        .lines()
        .filter_map(|line| line.strip_prefix("| [`")?.split('`').next());
    let own = names.filter(|name| {
        root()
            .join(format!("experiments/{paper}/{name}.ron"))
            .exists()
    });
    own.map(Results::read).collect()
}

/// Formats a row of a table of claims. `link` leads to the experiment.
fn line(row: &Row, link: &str) -> String {
    let Row {
        says,
        sign,
        found,
        reported,
        ..
    } = row;
    format!("| {sign} | {says} | {reported} | {found} | {link} |\n")
}

/// Formats a table of claims. The first claim of an experiment states the experiment's budget. Untested claims of an
/// experiment share a row if the reason is the same.
fn rows<'a>(rows: impl Iterator<Item = (&'a Results, &'a Row)>) -> String {
    let mut joined: Vec<(&Results, Row)> = Vec::new();
    for (results, row) in rows {
        let same = |(other, it): &&mut (&Results, Row)| {
            other.name == results.name && row.sign == '–' && it.sign == '–' && it.found == row.found
        };
        match joined.iter_mut().find(same) {
            Some((_, it)) => {
                it.says += &format!("<br>{}", row.says);
                if !row.reported.is_empty() && !it.reported.is_empty() {
                    it.reported += "<br>";
                }
                it.reported += &row.reported;
            }
            None => joined.push((results, row.clone())),
        }
    }
    let (mut text, mut last) = (String::new(), "");
    for (results, row) in &joined {
        let budget = match last == results.name {
            true => String::new(),
            false => format!(": {}", results.budget),
        };
        last = &results.name;
        text += &line(row, &(results.link("") + &budget));
    }
    match text.is_empty() {
        true => text,
        false => format!(
            "| | claim | paper | here | experiment, budget |\n|---|---|---|---|---|\n{text}\n"
        ),
    }
}

/// The header of a table of papers' claims.
const CLAIMS: &str =
    "| | claim of the paper | paper | here | experiment |\n|---|---|---|---|---|\n";

/// Returns the claim of `experiment` that begins with `claim`.
fn find<'a>(results: &'a [Results], (experiment, claim): (&str, &str)) -> (&'a Results, &'a Row) {
    let of_experiment = results.iter().find(|it| it.name == experiment);
    let found = of_experiment.and_then(|it| {
        let row = it.claims.iter().find(|row| row.says.starts_with(claim));
        Some((it, row?))
    });
    found.unwrap_or_else(|| panic!("{experiment} has no claim `{claim}`"))
}

/// Returns the note on a main claim as text for the end of a table cell.
fn note(paper: &Paper, row: &Row) -> String {
    let mut notes = paper.notes.iter();
    let of_row = notes.find(|(claim, _)| row.says.starts_with(claim));
    of_row.map_or(String::new(), |(_, note)| format!("; {note}"))
}

/// Formats the table of the main claims of all papers.
fn main_claims() -> String {
    let mut table = CLAIMS.to_owned();
    for paper in &PAPERS {
        writeln!(table, "| | **{}** | | | |", paper.title).unwrap();
        let results = of_paper(paper.directory);
        let main: Vec<_> = paper.main.iter().map(|it| find(&results, *it)).collect();
        let rows: Vec<&Row> = main.iter().map(|(_, row)| *row).collect();
        for row in &rows {
            assert!(row.is_counted(), "no claim of the paper: {}", row.says);
        }
        for ((results, row), p) in main.iter().zip(family::corrected(&rows)) {
            let mut row = Row::clone(row);
            row.found += &p;
            if let Some(detectable) = row.detectable.as_ref().filter(|_| row.sign == '?') {
                row.found += &format!("; detectable {detectable}");
            }
            row.found += &note(paper, &row);
            table += &line(&row, &results.link(""));
        }
    }
    table
}

/// Formats the README's table, which has one main claim of each idea, and counts the verdicts of all main claims.
fn front_page() -> String {
    let rows = PAPERS.iter().flat_map(|paper| {
        let results = of_paper(paper.directory);
        let rows = paper.front.iter();
        let rows = rows.map(|at| {
            let (results, row) = find(&results, paper.main[*at]);
            let mut row = row.clone();
            row.says = row.says.trim_start_matches("primary: ").into();
            // The README omits the p-value in another family.
            if let Some((found, _)) = row.found.rsplit_once(" (")
                && row.found.ends_with("in one family of all claims)")
            {
                row.found = found.into();
            }
            row.found += &note(paper, &row);
            line(&row, &results.link("docs/"))
        });
        rows.collect::<Vec<_>>()
    });
    let table = CLAIMS.to_owned() + &rows.collect::<String>();
    let main = PAPERS.iter().flat_map(|paper| {
        let results = of_paper(paper.directory);
        let signs = paper.main.iter().map(|claim| find(&results, *claim).1.sign);
        signs.collect::<Vec<_>>()
    });
    let main: Vec<char> = main.collect();
    let [hold, fail, undecided, untested] =
        VERDICTS.map(|(sign, _)| main.iter().filter(|it| **it == sign).count());
    let do_not = if fail == 1 { "does not" } else { "do not" };
    format!(
        "{table}\nOf all {} main claims, {hold} hold, {fail} {do_not} hold, {undecided} are undecided, and \
         {untested} are not tested.\n",
        main.len()
    )
}

const VERDICTS: [(char, &str); 4] = [
    ('✓', "hold"),
    ('✗', "do not hold"),
    ('?', "undecided"),
    ('–', "not tested"),
];

/// Counts the claims with each verdict.
fn tally<'a>(results: impl Iterator<Item = &'a Results>) -> [usize; 4] {
    let claims: Vec<&Row> = results
        .flat_map(|it| &it.claims)
        .filter(|row| row.is_counted())
        .collect();
    VERDICTS.map(|(sign, _)| claims.iter().filter(|row| row.sign == sign).count())
}

/// Formats a table with the number of claims of each paper, by verdict.
fn counts() -> String {
    let mut table = "| paper | trained: ✓ | ✗ | ? | – | not trained: ✓ | ✗ | ? | – |\n".to_owned();
    table += "|---|---|---|---|---|---|---|---|---|\n";
    for Paper {
        directory, title, ..
    } in &PAPERS
    {
        let all = of_paper(directory);
        let cells = [true, false]
            .map(|is_trained| tally(all.iter().filter(|it| it.is_trained == is_trained)));
        let cells = cells.as_flattened().iter().map(usize::to_string);
        let cells = cells.collect::<Vec<_>>().join(" | ");
        let anchor = title.to_lowercase().replace(' ', "-");
        writeln!(table, "| [{title}](#{anchor}) | {cells} |").unwrap();
    }
    table
}

/// Formats the section of a paper.
fn section(paper: &Paper, all: &[Results]) -> String {
    let Paper {
        directory,
        title,
        address,
        summary,
        ..
    } = paper;
    let claims = |is_trained: bool| {
        let own = all.iter().filter(move |it| it.is_trained == is_trained);
        own.flat_map(|it| it.claims.iter().map(move |row| (it, row)))
            .filter(|(_, row)| row.is_of_paper())
    };
    let summary: String = summary.iter().map(|line| format!("- {line}\n")).collect();
    let mut text = format!("## {title}\n\n{summary}\n{}", rows(claims(true)));
    let exact: Vec<_> = all.iter().filter(|it| !it.is_trained).collect();
    if !exact.is_empty() {
        text += "Counted or measured without training:\n\n";
        for it in exact {
            let counts = tally(std::iter::once(it)).into_iter().zip(VERDICTS);
            let counts = counts.filter(|(count, _)| *count > 0);
            let counts: Vec<String> = counts
                .map(|(count, (_, what))| format!("{count} {what}"))
                .collect();
            writeln!(text, "- {}: {}", it.link(""), counts.join(", ")).unwrap();
        }
        text += "\n";
        text += &rows(claims(false).filter(|(_, row)| row.sign != '✓'));
    }
    let (papers, more, section) = match address.starts_with("http") {
        true => ("The paper", "What it leaves open", ""),
        false => ("The papers", "Where papers and code differ", "#choices"),
    };
    text + &format!("[{papers}]({address}). [{more}](papers/{directory}.md{section}).\n\n")
}

const IN_TOKENS: &str = "\
## Gains in tokens

A gain is the factor on a baseline's tokens at which the baseline has the loss of the model.

![Gains as multiples of the baseline's tokens](findings-tokens.svg)

The numbers beside the names are the parameters of the baseline, without embeddings. An arrow means that the interval
goes on beyond the factors that were trained. The *factor at equal FLOPs* is the gain divided by the FLOPs of the design
for the same tokens, relative to the baseline's: below 1, the baseline with as many FLOPs has a lower loss. It is
computed from rounded figures, so its last digit can be off by one.

";

const BUDGET: &str = "\
In the tables below, the budget is the number of seeds, the passes over the text, and the time of all training on one
core, tuning included. Experiments that share runs each count the whole time of those runs.
";

const NOTES: &str = "\
- **A weak baseline.** After so few tokens, the plain residual with 12 layers ends 0.024 ± 0.012 above the plain
  residual with 4 layers, which takes a third of the FLOPs and ends at 1.950 on the same seeds. Value residuals and
  attention residuals with 12 layers end above 1.950, and value embeddings and mHC less than 0.01 below. Only
  hyper-connections are clearly better than the smaller plain model.
- **Method.** A baseline is trained on more tokens, each time with a schedule of that length, and the loss in between
  is interpolated linearly in the logarithm of the factor. The interval contains every factor at which the two losses
  do not differ significantly. Losses per character and per token cannot be compared, but factors can.
- **Baselines.** [`streams_tokens`](results/streams_tokens.md) and [`rmt_tokens`](results/rmt_tokens.md) train the
  plain residual with twelve layers and the transformer of `rmt_vs_transformer` on 1, 1.25, 1.5 and 2 times the tokens.
  With the same seeds, a difference between losses is taken seed by seed. `dense_former` ran on seeds 1 to 8, and the
  page of the RMT does not list its seeds. There, the loss of the design is its difference from its own baseline, added
  to the loss of the baseline here, and the two count as independent. The loss of the plain residual comes from
  the [shared runs](#main-claims), which end 0.010 ± 0.010 above the runs on other seeds. This difference alone is worth
  about 1.03 times the tokens, by which all gains over this baseline may be too large. A ladder trains its own plain
  residual of each size, on the seeds of the designs and on 1 and 1.5 times the tokens of this size. At the largest
  size, this is 1.6 and 2.4 passes over the text. The baseline of `growth_ladder` is a small TokenFormer that trains on,
  on 1, 1.26 and 1.5 times the tokens of both of its stages.
- **Against the paper.** *Smaller* and *larger* mean that the interval lies on one side of the paper's factor. *As
  reported* means that it contains this factor and not 1, *undecided* that it contains both. Without an entry, the paper
  gives no factor, or another row of the design has the factor. The factors of the papers are measured in other ways: as
  tokens to a training loss, as compute, or as a point on the curve of one run. They are also for other models, data and
  budgets, so an entry is no test of a paper. With training losses, as in the paper's Table 3, the RMT's gain is 1.14
  instead of 1.11. The RMT's factor at equal FLOPs has no lower end, because its transformer was not trained on fewer
  tokens. In `rmt_scaling`, at equal FLOPs and smaller sizes, one of three RMTs ends above the transformers, and the
  others cannot be distinguished from them.
- **Intervals** are 95 % intervals of each row alone. They are not corrected for the number of rows. If an interval
  reaches below 1, no gain is decided.
- **Cost.** Steps take more time than their FLOPs suggest: on an H100, in `Bf16` and around GPT-2 124M, steps with
  hyper-connections, mHC and attention residuals took [2.1 to 3.3 times](performance.md#on-a-gpu) as long as plain ones.
  The averages of DenseFormer, about 1 %, are not counted. With 1.33 times its tokens, and so the FLOPs of mHC, the
  plain residual with twelve layers ends 0.064 ± 0.024 below mHC.
- **Bias.** The learning rate of a baseline is the one tuned for 1 times its tokens, and the plain residual with twelve
  layers rereads text beyond 1.22 times its tokens. The RMT's transformer always does. Both can make the baseline fall
  too slowly, and so the factors too large.
- **Changes after seeing results.** At first, one straight line was fitted to the four losses, and differences counted
  as independent of it. Both were replaced after all differences were known. Every gain over the plain residual became
  smaller, for example 1.24 instead of 1.31 for static hyper-connections. No entry against a paper changed. The row of
  value residuals was that of `value_residual`, 1.02 (less than 1 to 1.05), until the same model had been trained on
  the seeds of the baseline. For the plain residual, it is undecided whether the loss falls faster near 1 (by 0.07 ±
  0.08 per doubling).
";

/// Formats the page, and the plot of the gains in tokens if there are any.
fn write_page() -> (String, Option<String>) {
    let mut page = HEAD.to_owned();
    let gains = PAPERS
        .iter()
        .flat_map(|paper| worth::gains(paper, &of_paper(paper.directory)));
    let gains: Vec<_> = gains.collect();
    if !gains.is_empty() {
        writeln!(page, "{IN_TOKENS}{}\n{NOTES}", worth::table(&gains)).unwrap();
    }
    writeln!(page, "## Main claims\n\n{MAIN}{}", main_claims()).unwrap();
    page += "## Number of claims\n\n\
             Claims of experiments that only count or measure stand under *not trained*. The counts leave out:\n\n\
             - claims that are not in the papers;\n\
             - checks: claims that hold by construction, such as a number of parameters, or test the experiment \
             itself, such as\n  a curriculum that reaches its full length (source \"check: …\");\n\
             - claims that another experiment tests with the same runs (source \"as in …\").\n\n";
    writeln!(page, "{}\n{BUDGET}", counts()).unwrap();
    let mut open = String::new();
    for paper in &PAPERS {
        let all = of_paper(paper.directory);
        page += &section(paper, &all);
        let claims = all
            .iter()
            .flat_map(|it| it.claims.iter().map(move |row| (it, row)));
        let more = rows(claims.filter(|(_, row)| !row.is_of_paper()));
        if !more.is_empty() {
            let more = more.replace(" (not in the paper)", "");
            write!(open, "### More about {}\n\n{more}", paper.title).unwrap();
        }
    }
    write!(page, "## Claims that are not in the papers\n\n{open}").unwrap();
    let plot = (!gains.is_empty()).then(|| forest::plot(&gains));
    (page.trim_end().to_owned() + "\n", plot)
}

#[test]
fn every_note_is_about_a_main_claim() {
    for paper in &PAPERS {
        let results = of_paper(paper.directory);
        let main = paper.main.iter().map(|it| find(&results, *it).1);
        let main: Vec<&Row> = main.collect();
        for (claim, note) in paper.notes {
            let is_main = main.iter().any(|row| row.says.starts_with(claim));
            assert!(is_main, "{}: `{claim}`: {note}", paper.title);
        }
    }
}

const MARKS: [&str; 2] = ["<!-- findings -->\n", "<!-- end of findings -->\n"];

#[test]
fn the_findings_are_those_of_the_results() {
    let (page, plot) = write_page();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (before, rest) = readme.split_once(MARKS[0]).unwrap();
    let (_, after) = rest.split_once(MARKS[1]).unwrap();
    let table = front_page();
    let expected = [before, MARKS[0], &table, MARKS[1], after].concat();
    if std::env::var_os("WRITE_DOCS").is_some() {
        fs::write(root().join(PAGE), &page).unwrap();
        if let Some(plot) = &plot {
            fs::write(root().join(PLOT), plot).unwrap();
        }
        fs::write(root().join("README.md"), &expected).unwrap();
    }
    let says = "is out of date: WRITE_DOCS=1 cargo test --release --workspace --test lab findings";
    let found = fs::read_to_string(root().join(PAGE)).unwrap_or_default();
    assert!(found == page, "{PAGE} {says}");
    assert!(
        fs::read_to_string(root().join(PLOT)).ok() == plot,
        "{PLOT} {says}"
    );
    assert!(
        fs::read_to_string(root().join("README.md")).unwrap() == expected,
        "README.md {says}"
    );
}
