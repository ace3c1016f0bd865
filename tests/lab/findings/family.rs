//! Corrects the p-values of a paper's main claims as one family.

use super::rows::{P, Row};

/// Returns the p-value of each claim after Holm's correction for the claims of its paper among `rows`, as text for the
/// end of a table cell. The text is empty for a claim without a p-value, and if the paper has no other claim to
/// correct. It is also empty for a primary claim, because its family was named before the runs of the tested models.
pub fn corrected(rows: &[&Row]) -> Vec<String> {
    let mut texts = vec![String::new(); rows.len()];
    for paper in papers(rows) {
        let of_paper = |at: &usize| {
            let row = rows[*at];
            paper_of(row) == paper && !row.says.starts_with("primary: ")
        };
        let known = (0..rows.len()).filter(of_paper);
        let mut known: Vec<(usize, P)> = known.filter_map(|at| Some((at, rows[at].p?))).collect();
        let count = known.len();
        if count < 2 {
            continue;
        }
        known.sort_by(|a, b| a.1.value.total_cmp(&b.1.value));
        let mut most: f64 = 0.0;
        for (rank, (at, p)) in known.into_iter().enumerate() {
            most = most.max((count - rank) as f64 * p.value).min(1.0);
            let p = match p.is_below {
                true => format!("< {most:.3}"),
                false => format!("{most:.3}"),
            };
            texts[at] = format!("; p {p} among the {count} main claims");
        }
    }
    texts
}

/// Returns the paper of a claim: the authors that its source names, such as `(Zhu et al., Table 2)`. The text is empty
/// in a section with one paper.
fn paper_of(row: &Row) -> &str {
    let source = row.says.rsplit_once(" (").map_or("", |(_, source)| source);
    source
        .split_once(" et al.")
        .map_or("", |(authors, _)| authors)
}

fn papers<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let mut papers: Vec<&str> = rows.iter().map(|row| paper_of(row)).collect();
    papers.sort_unstable();
    papers.dedup();
    papers
}

#[test]
fn main_claims_are_corrected_within_their_paper() {
    let row = |says: &str, p: Option<f64>| Row {
        says: says.into(),
        sign: '?',
        found: String::new(),
        reported: String::new(),
        p: p.map(|value| P {
            value,
            is_below: value < 0.01,
        }),
        detectable: None,
    };
    let rows = [
        row("A (Zhu et al., Table 2)", Some(0.03)),
        row("B (Zhu et al., Table 3)", Some(0.001)),
        row("C (Zhou et al., abstract)", Some(0.04)),
        row("D (Zhu et al., Table 4)", None),
        row("E (Zhu et al., Table 5)", Some(0.02)),
        row("primary: F (Zhu et al., Table 6)", Some(0.02)),
    ];
    let rows: Vec<&Row> = rows.iter().collect();
    let expected = [
        "; p 0.040 among the 3 main claims",
        "; p < 0.003 among the 3 main claims",
        "",
        "",
        "; p 0.040 among the 3 main claims",
        "",
    ];
    assert_eq!(corrected(&rows), expected);
}
