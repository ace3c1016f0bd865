//! Reads documents from a column of a Parquet file.

use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::vec;

use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;
use residual_zoo_system::counted;
use residual_zoo_system::panics::caught;

use super::Piece;
use crate::{DataError, one_line};

/// Number of rows that are decoded at once. The page that contains them is in memory as a whole.
const ROWS: usize = 64;

/// A file with a document in each row.
pub(super) struct Rows {
    path: PathBuf,
    file: SerializedFileReader<File>,
    /// The column with the text.
    column: usize,
    /// The definition level of a row that has a text.
    present: i16,
    /// Number of row groups that were opened.
    groups: usize,
    /// The reader of the column in the last opened group.
    reader: Option<ColumnReaderImpl<ByteArrayType>>,
    /// Decoded texts that have not been returned yet.
    texts: vec::IntoIter<ByteArray>,
    /// Number of rows that were returned.
    read: usize,
}

impl Rows {
    /// Opens the file `path`, whose column `field` has the text. A column in a group is written as `group.field`.
    ///
    /// # Errors
    ///
    /// Returns an error for a damaged file, and for a file without this column.
    pub fn open(path: &Path, file: File, field: &str) -> Result<Self, DataError> {
        let file = contain(|| SerializedFileReader::new(file))
            .map_err(|e| damaged(path, "at its end", e))?;
        let schema = file.metadata().file_metadata().schema_descr();
        let columns = schema.columns();
        let column = (0..columns.len())
            .find(|i| is_text(schema, *i) && columns[*i].path().string() == field)
            .ok_or_else(|| no_column(path, schema, field))?;
        Ok(Self {
            path: path.into(),
            column,
            present: columns[column].max_def_level(),
            file,
            groups: 0,
            reader: None,
            texts: Vec::new().into_iter(),
            read: 0,
        })
    }

    pub fn next_piece(&mut self) -> Result<Option<Piece>, DataError> {
        loop {
            if let Some(text) = self.texts.next() {
                self.read += 1;
                let text = std::str::from_utf8(text.data()).map_err(|e| {
                    let at = e.valid_up_to() + 1;
                    self.wrong(format!("row {} is not UTF-8 at byte {at}", self.read))
                })?;
                return Ok(Some(Piece {
                    text: text.into(),
                    begins: true,
                }));
            }
            if !self.decode()? {
                return Ok(None);
            }
        }
    }

    /// Decodes the next rows. Returns false after the last row.
    fn decode(&mut self) -> Result<bool, DataError> {
        let failed = |read: usize, path: &Path, e| {
            damaged(path, format!("after {}", counted(read, "row")), e)
        };
        let Some(reader) = &mut self.reader else {
            if self.groups == self.file.num_row_groups() {
                return Ok(false);
            }
            let (file, group, column) = (&self.file, self.groups, self.column);
            let opened = contain(|| file.get_row_group(group)?.get_column_reader(column));
            self.groups += 1;
            match opened.map_err(|e| failed(self.read, &self.path, e))? {
                ColumnReader::ByteArrayColumnReader(reader) => self.reader = Some(reader),
                // `is_text` has excluded other columns from the schema, so this group differs from the schema.
                _ => return Err(self.wrong("its groups differ in their columns".into())),
            }
            return Ok(true);
        };
        let (mut texts, mut levels) = (Vec::with_capacity(ROWS), Vec::with_capacity(ROWS));
        let decoded = contain(|| reader.read_records(ROWS, Some(&mut levels), None, &mut texts));
        let (rows, ..) = decoded.map_err(|e| failed(self.read, &self.path, e))?;
        if let Some(row) = levels.iter().position(|level| *level < self.present) {
            let row = self.read + row + 1;
            return Err(self.wrong(format!("row {row} has no text; remove the row")));
        }
        if rows == 0 {
            self.reader = None;
        }
        self.texts = texts.into_iter();
        Ok(true)
    }

    fn wrong(&self, problem: String) -> DataError {
        DataError::Parquet {
            path: self.path.clone(),
            problem,
        }
    }
}

/// Whether this column may hold texts, with at most one value in each row.
fn is_text(schema: &SchemaDescriptor, column: usize) -> bool {
    let column = schema.column(column);
    column.physical_type() == Type::BYTE_ARRAY && column.max_rep_level() == 0
}

fn no_column(path: &Path, schema: &SchemaDescriptor, field: &str) -> DataError {
    let columns = (0..schema.num_columns()).filter(|i| is_text(schema, *i));
    let columns = columns.map(|i| format!("`{}`", schema.column(i).path().string()));
    let columns = columns.collect::<Vec<_>>().join(", ");
    let problem = match columns.is_empty() {
        true => "it has no column of texts".into(),
        false => format!(
            "it has no column of texts `{field}`; set `data.text_field` to one of {columns}"
        ),
    };
    DataError::Parquet {
        path: path.into(),
        problem: one_line(problem),
    }
}

fn damaged(path: &Path, place: impl Display, problem: ParquetError) -> DataError {
    DataError::Damaged {
        path: path.into(),
        place: place.to_string(),
        problem: one_line(problem),
    }
}

/// Runs `call`, which calls the `parquet` crate, and turns a panic into an error.
fn contain<T>(call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    // A panic may leave the reader inconsistent, but the reader is not used after an error.
    let result = caught(call);
    let panicked = || ParquetError::General("the `parquet` crate panicked".into());
    result.unwrap_or_else(|_| Err(panicked()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::basic::{Compression, Encoding};
    use parquet::data_type::{DataType, Int32Type};
    use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
    use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
    use parquet::schema::parser::parse_message_type;

    use residual_zoo_system::Blame as _;

    use super::super::read_documents;
    use super::*;

    const SCHEMA: &str = "message schema {
        REQUIRED INT32 id;
        OPTIONAL BYTE_ARRAY text (UTF8);
        OPTIONAL GROUP meta { REQUIRED BYTE_ARRAY title (UTF8); }
        REPEATED BYTE_ARRAY tags (UTF8);
    }";

    fn write<T: DataType>(
        group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
        values: &[T::T],
        levels: Option<&[i16]>,
        repetitions: Option<&[i16]>,
    ) {
        let mut column = group.next_column().unwrap().unwrap();
        let written = column.typed::<T>().write_batch(values, levels, repetitions);
        written.unwrap();
        column.close().unwrap();
    }

    /// Makes a file with these texts, in groups of 300 rows.
    fn parquet(texts: &[Option<&[u8]>], properties: WriterPropertiesBuilder) -> Vec<u8> {
        let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
        let properties = Arc::new(properties.build());
        let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap();
        let bytes = |text: &[u8]| ByteArray::from(text.to_vec());
        for texts in texts.chunks(300) {
            let rows = texts.len();
            let (ones, zeros) = (vec![1; rows], vec![0; rows]);
            let present: Vec<i16> = texts.iter().map(|text| text.is_some().into()).collect();
            let values: Vec<ByteArray> = texts.iter().flatten().map(|text| bytes(text)).collect();
            let mut group = writer.next_row_group().unwrap();
            write::<Int32Type>(&mut group, &vec![7; rows], None, None);
            write::<ByteArrayType>(&mut group, &values, Some(&present), None);
            let titles = vec![bytes(b"title"); rows];
            write::<ByteArrayType>(&mut group, &titles, Some(&ones), None);
            write::<ByteArrayType>(&mut group, &titles, Some(&ones), Some(&zeros));
            group.close().unwrap();
        }
        writer.into_inner().unwrap()
    }

    fn read(content: &[u8], field: &str) -> Result<Vec<String>, DataError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.parquet");
        std::fs::write(&path, content).unwrap();
        read_documents(&path, field)
    }

    fn texts() -> Vec<String> {
        (0..1000)
            .map(|i| "é ".repeat(i % 7) + &i.to_string())
            .collect()
    }

    fn of(texts: &[String]) -> Vec<Option<&[u8]>> {
        texts.iter().map(|text| Some(text.as_bytes())).collect()
    }

    #[test]
    fn every_compression_and_encoding_has_the_same_documents() {
        let texts = texts();
        let compressions = [
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::GZIP(Default::default()),
            Compression::ZSTD(Default::default()),
            Compression::LZ4_RAW,
            Compression::BROTLI(Default::default()),
        ];
        let encodings = [
            None,
            Some(Encoding::PLAIN),
            Some(Encoding::DELTA_LENGTH_BYTE_ARRAY),
            Some(Encoding::DELTA_BYTE_ARRAY),
        ];
        for compression in compressions {
            for encoding in encodings {
                for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
                    let mut properties = WriterProperties::builder()
                        .set_compression(compression)
                        .set_writer_version(version)
                        .set_data_page_row_count_limit(70);
                    if let Some(encoding) = encoding {
                        properties = properties
                            .set_column_dictionary_enabled("text".into(), false)
                            .set_column_encoding("text".into(), encoding);
                    }
                    let content = parquet(&of(&texts), properties);
                    assert_eq!(read(&content, "text").unwrap(), texts);
                }
            }
        }
    }

    #[test]
    fn the_column_can_be_in_a_group_but_not_in_a_list() {
        let content = parquet(&of(&texts()), WriterProperties::builder());
        assert_eq!(read(&content, "meta.title").unwrap()[999], "title");
        for field in ["tags", "id", "title", "body"] {
            let error = read(&content, field).unwrap_err();
            assert!(error.is_bad_input(), "{error}");
            let error = error.to_string();
            let expected = format!("no column of texts `{field}`");
            assert!(error.contains(&expected), "{error}");
            assert!(error.contains("one of `text`, `meta.title`"), "{error}");
        }
    }

    #[test]
    fn rows_without_text_or_with_other_bytes_are_named() {
        for (bad, problem) in [
            (None, "row 701 has no text"),
            (Some(b"a\xff".as_slice()), "row 701 is not UTF-8 at byte 2"),
        ] {
            let texts = texts();
            let mut rows = of(&texts);
            rows[700] = bad;
            let error = read(&parquet(&rows, WriterProperties::builder()), "text");
            let error = error.unwrap_err();
            assert!(error.is_bad_input(), "{error}");
            assert!(error.to_string().contains(problem), "{error}");
        }
    }

    /// A file written by pyarrow 26 with `compression="zstd", write_page_checksum=True, row_group_size=100,
    /// data_page_size=512`; the column `text` has the type `large_string`.
    const PYARROW: &[u8] = include_bytes!("../../testdata/pyarrow.parquet");

    #[test]
    fn damaged_files_name_the_file_and_the_place() {
        let texts = &texts()[..300];
        assert_eq!(read(PYARROW, "text").unwrap(), texts);
        let cuts = (0..PYARROW.len())
            .step_by(50)
            .map(|len| PYARROW[..len].to_vec());
        let flips = (0..PYARROW.len()).map(|at| {
            let mut bad = PYARROW.to_vec();
            bad[at] ^= 0x55;
            bad
        });
        let mut errors = Vec::new();
        for bad in cuts.chain(flips) {
            match read(&bad, "text") {
                // The damage is in the other column or the statistics.
                Ok(found) => assert_eq!(found, texts),
                Err(error) => {
                    assert!(error.is_bad_input(), "{error}");
                    errors.push(error.to_string());
                }
            }
        }
        assert!(errors.iter().all(|error| error.contains("d.parquet")));
        assert!(errors.len() > PYARROW.len() / 3, "{}", errors.len());
        for place in ["at its end", "after 0 rows", "after 100 rows"] {
            let place = format!("is damaged, {place}: ");
            assert!(errors.iter().any(|error| error.contains(&place)), "{place}");
        }
    }

    /// Changes one to three bytes of a good file, 10,000 times.
    #[test]
    fn corrupted_files_do_not_panic() {
        let texts = texts();
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY);
        let good = parquet(&of(&texts[..50]), properties);
        let mut refused = 0;
        let mut draws = crate::random::RandomNumbers::new("corrupted Parquet files", 0, 0, 0);
        for _ in 0..10_000 {
            let mut bad = good.clone();
            for _ in 0..=draws.below(3) {
                let at = draws.below(bad.len());
                bad[at] = draws.below(256) as u8;
            }
            if let Err(error) = read(&bad, "text") {
                assert!(error.is_bad_input(), "{error}");
                let error = error.to_string();
                assert_eq!(error.lines().count(), 1);
                refused += 1;
            }
        }
        assert!(refused > 1000, "{refused}");
    }
}
