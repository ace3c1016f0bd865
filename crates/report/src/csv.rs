//! Rows as CSV.

use ::csv::Writer;

/// `head` and `rows` as CSV, a line each; fields are quoted where they have to be.
///
/// A short row is padded and a long one is cut to the columns of `head`.
pub fn csv(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let titles = head.iter().map(|&name| name.to_owned()).collect();
    let mut writer = Writer::from_writer(Vec::new());
    for mut row in std::iter::once::<Vec<String>>(titles).chain(rows) {
        row.resize(head.len(), String::new());
        let written = writer.write_record(&row);
        written.unwrap_or_else(|e| unreachable!("rows of one length in memory: {e}"));
    }
    let bytes = writer.into_inner();
    let bytes = bytes.unwrap_or_else(|e| unreachable!("writing to memory: {e}"));
    String::from_utf8(bytes).unwrap_or_else(|e| unreachable!("strings are UTF-8: {e}"))
}
