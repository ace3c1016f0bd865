//! Reads tables of results pages.

use std::fs;

use residual_zoo_testing::root;

/// A table of a results page.
pub struct Table {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Reads the first table of a section of the page of an experiment; `None` if there is none.
    pub fn read(experiment: &str, section: &str) -> Option<Self> {
        let page = root().join(format!("docs/results/{experiment}.md"));
        Self::of(&fs::read_to_string(page).unwrap(), section)
    }

    /// Reads the first table of a section of `page`.
    pub fn of(page: &str, section: &str) -> Option<Self> {
        let (_, text) = page.split_once(&format!("\n## {section}\n"))?;
        let text = text.split("\n## ").next()?;
        let lines = text.lines().skip_while(|line| !line.starts_with("| "));
        let mut lines = lines.take_while(|line| line.starts_with("| "));
        let columns = cells(lines.next()?);
        let rows = lines.skip(1).map(cells).collect();
        Some(Self { columns, rows })
    }

    /// Returns the index of the column whose heading begins with `heading`.
    pub fn column(&self, heading: &str) -> Option<usize> {
        let is_it = |column: &String| column.starts_with(heading);
        self.columns.iter().position(is_it)
    }
}

/// Splits a row of a table.
fn cells(line: &str) -> Vec<String> {
    let cells = line.trim().trim_matches('|').split(" | ");
    cells.map(|cell| cell.trim().to_owned()).collect()
}

#[test]
fn a_table_is_read_from_its_section() {
    let page = "# Page\n\n## Other\n\n| run | b |\n| --- | ---: |\n| x | 9 |\n\n## Runs\n\nNote.\n\n| run | flops (FLOP) |\n\
                | --- | ---: |\n| a, 1 | 2.01T |\n| b | – |\n\nText.\n\n| run | c |\n";
    let table = Table::of(page, "Runs").unwrap();
    assert_eq!(table.columns, ["run", "flops (FLOP)"]);
    assert_eq!(table.rows, [["a, 1", "2.01T"], ["b", "–"]]);
    assert_eq!(table.column("flops"), Some(1));
    assert_eq!(table.column("loss"), None);
    assert!(Table::of(page, "Every seed").is_none());
}
