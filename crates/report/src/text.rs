//! Tables as text for a terminal.

use crate::escape::one_line;
use crate::table::Table;
use crate::width::{end_cut, pad, shorten, width, wrap};

/// Number of spaces between two columns.
const GAP: usize = 2;
/// Minimum width of a shortened cell, in terminal columns.
const LEAST: usize = 12;

/// A table as lines of text: the titles; the units, if any column has one; and the rows.
pub(crate) struct Text {
    lines: Vec<Vec<String>>,
    /// Number of lines of the head.
    head: usize,
    /// Whether each column has numbers.
    numeric: Vec<bool>,
    /// Width of each column, in terminal columns.
    widths: Vec<usize>,
}

impl Text {
    pub(crate) fn of(table: &Table) -> Self {
        let titles = table.columns.iter().map(|column| one_line(&column.title));
        let hints = table.columns.iter().map(|column| one_line(&column.hint));
        let mut lines: Vec<Vec<String>> = vec![titles.collect(), hints.collect()];
        if lines[1].iter().all(String::is_empty) {
            lines.pop();
        }
        let head = lines.len();
        let cells = |row| table.cells(row).map(|cell| one_line(&cell.text)).collect();
        lines.extend(table.rows.iter().map(|row| cells(row)));
        let numeric = table.columns.iter().map(|column| column.numeric);
        let mut text = Self {
            widths: vec![0; table.columns.len()],
            numeric: numeric.collect(),
            head,
            lines,
        };
        text.measure();
        text
    }

    /// Sets the widths of the columns.
    fn measure(&mut self) {
        for (i, widest) in self.widths.iter_mut().enumerate() {
            let cells = self.lines.iter().map(|line| width(&line[i]));
            *widest = cells.max().unwrap_or(0);
        }
    }

    /// Breaks titles between words, so that they are no wider than the cells below, unless a single word is wider.
    fn break_titles(&mut self) {
        let (head, rows) = self.lines.split_at(self.head);
        let column = |i: usize| {
            let cells = rows.iter().map(|line| width(&line[i])).max().unwrap_or(0);
            let words = head.iter().flat_map(|line| line[i].split(' ')).map(width);
            let room = words.max().unwrap_or(0).max(cells);
            let lines = head.iter().flat_map(|line| wrap(&line[i], room));
            lines.collect::<Vec<_>>()
        };
        let columns: Vec<Vec<String>> = (0..self.widths.len()).map(column).collect();
        let height = columns.iter().map(Vec::len).max().unwrap_or(0);
        // The titles end at the same line.
        let cell = |lines: &Vec<String>, at: usize| {
            let above = height - lines.len();
            at.checked_sub(above)
                .map_or_else(String::new, |at| lines[at].clone())
        };
        let line = |at: usize| columns.iter().map(|lines| cell(lines, at)).collect();
        let head: Vec<Vec<String>> = (0..height).map(line).collect();
        self.lines.splice(..self.head, head);
        self.head = height;
        self.measure();
    }

    /// Renders all columns side by side.
    pub(crate) fn lines(&self) -> String {
        self.panel(&(0..self.widths.len()).collect::<Vec<_>>())
    }

    /// Renders the table at most `columns` wide, if possible.
    pub(crate) fn fit(mut self, columns: usize) -> String {
        let all: Vec<usize> = (0..self.widths.len()).collect();
        let gaps = GAP * all.len().saturating_sub(1);
        let too_wide =
            |text: &Self| (text.widths.iter().sum::<usize>() + gaps).saturating_sub(columns);
        if too_wide(&self) > 0 {
            self.break_titles();
        }
        let mut over = too_wide(&self);
        let words = || all.iter().copied().filter(|i| !self.numeric[*i]);
        let spare = words().map(|i| self.widths[i].saturating_sub(self.least(i)));
        if over > 0 && over <= spare.sum() {
            let mut widths = self.widths.clone();
            while over > 0 {
                let can = words().filter(|i| widths[*i] > self.least(*i));
                let Some(widest) = can.max_by_key(|i| widths[*i]) else {
                    break;
                };
                widths[widest] -= 1;
                over -= 1;
            }
            self.shorten(widths);
            over = 0;
        }
        match over.min(all.len()) {
            0 => self.panel(&all),
            _ => self.panels(columns),
        }
    }

    /// Returns the minimum width of column `i`, which contains words: the width of its title, and at least [`LEAST`].
    fn least(&self, i: usize) -> usize {
        let titles = self.lines[..self.head].iter().map(|line| width(&line[i]));
        titles.max().unwrap_or(0).max(LEAST)
    }

    /// Cuts the words of the rows to these widths.
    fn shorten(&mut self, widths: Vec<usize>) {
        for (i, to) in widths
            .into_iter()
            .enumerate()
            .filter(|(i, _)| !self.numeric[*i])
        {
            if to >= self.widths[i] {
                continue;
            }
            let cells: Vec<&str> = self.lines[self.head..]
                .iter()
                .map(|line| line[i].as_str())
                .collect();
            // Names distinguish rows, so the first column is shortened to different names.
            let short = match i {
                0 => shorten(&cells, to),
                _ => cells.iter().map(|cell| end_cut(cell, to)).collect(),
            };
            for (line, cell) in self.lines[self.head..].iter_mut().zip(short) {
                line[i] = cell;
            }
        }
        self.measure();
    }

    /// Renders several tables below each other, each with the first column and as many others as fit.
    fn panels(mut self, columns: usize) -> String {
        let mut widths = self.widths.clone();
        widths[0] = widths[0].min((columns / 3).max(self.least(0)));
        for i in 1..widths.len() {
            let room = columns.saturating_sub(widths[0] + GAP);
            widths[i] = widths[i].min(room.max(self.least(i)));
        }
        self.shorten(widths);
        let (mut panels, mut panel, mut used) = (Vec::new(), vec![0], self.widths[0]);
        for i in 1..self.widths.len() {
            let more = GAP + self.widths[i];
            if used + more > columns && panel.len() > 1 {
                panels.push(self.panel(&panel));
                (panel, used) = (vec![0], self.widths[0]);
            }
            panel.push(i);
            used += more;
        }
        panels.push(self.panel(&panel));
        panels.join("\n\n")
    }

    /// Renders these columns side by side.
    fn panel(&self, of: &[usize]) -> String {
        let is_empty = |line: &&Vec<String>| of.iter().all(|i| line[*i].is_empty());
        let format = |line: &Vec<String>| {
            let cells = of
                .iter()
                .map(|&i| pad(&line[i], self.widths[i], self.numeric[i]));
            let line = cells.collect::<Vec<_>>().join(&" ".repeat(GAP));
            line.trim_end().to_owned()
        };
        let (head, rows) = self.lines.split_at(self.head);
        // Removes lines of the head that are empty in all these columns.
        let head = head.iter().filter(|line| !is_empty(line));
        let lines = head.chain(rows).map(format);
        lines.collect::<Vec<_>>().join("\n")
    }
}
