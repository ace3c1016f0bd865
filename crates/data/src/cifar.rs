//! CIFAR-10 and CIFAR-100, as images or as sequences of grey pixels.
//!
//! The binary version of CIFAR-10 (Krizhevsky 2009, *Learning Multiple Layers of Features from
//! Tiny Images*; <https://www.cs.toronto.edu/~kriz/cifar.html>) is a directory with the files
//! `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`. Each file is a list of records:
//!
//! | bytes | content |
//! |---|---|
//! | 0 | label, 0 to 9 |
//! | 1..1025 | red, 32 rows of 32 pixels |
//! | 1025..2049 | green |
//! | 2049..3073 | blue |

use std::fs;
use std::path::Path;

use residual_zoo_system::counted;

use crate::{DataError, Images, files};

/// Number of classes of CIFAR-10.
pub const CLASSES: usize = 10;
/// Number of pixels in an image, which is the length of its sequence.
pub const PIXELS: usize = 32 * 32;
/// Number of grey levels from black to white, which is the vocabulary size.
pub const LEVELS: usize = 256;

/// Channels, height and width.
pub(crate) const SIZE: [usize; 3] = [3, 32, 32];
/// Number of fine classes of CIFAR-100.
pub(crate) const FINE_CLASSES: usize = 100;
/// The classes of CIFAR-10.
pub(crate) const NAMES: [&str; CLASSES] = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
];
/// The fine classes of CIFAR-100.
#[rustfmt::skip]
pub(crate) const FINE_NAMES: [&str; FINE_CLASSES] = [
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur",
    "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard",
    "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain",
    "mouse", "mushroom", "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
    "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket",
    "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider",
    "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor",
    "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
];

const TRAIN_BATCHES: [&str; 5] = [
    "data_batch_1.bin",
    "data_batch_2.bin",
    "data_batch_3.bin",
    "data_batch_4.bin",
    "data_batch_5.bin",
];
const TEST_BATCH: &str = "test_batch.bin";

/// Training and test images of CIFAR-10 or CIFAR-100, which have no separate validation set.
#[derive(Clone, Debug)]
pub struct Cifar {
    /// Training images: 50,000 if all files are complete.
    pub train: Images,
    /// Test images: 10,000 in the original.
    pub test: Images,
}

impl Cifar {
    /// Reads CIFAR-10's test batch, and all of its training batches that exist in `directory`. At least one training
    /// batch must exist. A batch may have fewer images than the original's 10,000.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::NoImages`] if there is no training batch, [`DataError::NotFound`] if the directory or the
    /// test batch is missing, and [`DataError::BadImages`] or [`DataError::BadLabel`] for an invalid batch. Also
    /// returns the errors of [`read_file`](crate::read_file).
    pub fn open(directory: &Path) -> Result<Self, DataError> {
        fs::metadata(directory).map_err(|e| DataError::io(directory, "read", e))?;
        let mut train = Images::empty(1, SIZE);
        for name in TRAIN_BATCHES {
            match train.read(&directory.join(name), CLASSES) {
                Err(DataError::NotFound { .. }) => {}
                read => read?,
            }
        }
        if train.is_empty() {
            return Err(DataError::NoImages {
                path: directory.to_path_buf(),
            });
        }
        let mut test = Images::empty(1, SIZE);
        test.read(&directory.join(TEST_BATCH), CLASSES)?;
        Ok(Self { train, test })
    }

    /// Reads CIFAR-100's `train.bin` and `test.bin` in `directory`, with the fine classes. A record has one byte for
    /// the coarse class, one byte for the fine class, and then the image.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::BadImages`] or [`DataError::BadLabel`] for an invalid file, and the errors of
    /// [`read_file`](crate::read_file), for example if a file is missing.
    pub fn open_100(directory: &Path) -> Result<Self, DataError> {
        let read = |name: &str| {
            let mut images = Images::empty(2, SIZE);
            images.read(&directory.join(name), FINE_CLASSES)?;
            Ok(images)
        };
        let (train, test) = (read("train.bin")?, read("test.bin")?);
        Ok(Self { train, test })
    }
}

impl Images {
    /// Appends the [`PIXELS`] grey values of CIFAR image `i` to `values`, row by row from the top left, each below
    /// [`LEVELS`].
    ///
    /// Grey is the luma of ITU-R BT.601, 0.299 red + 0.587 green + 0.114 blue, rounded to the
    /// nearest integer, with halves rounded up.
    ///
    /// # Panics
    ///
    /// Panics if `i` is out of bounds.
    pub fn grey(&self, i: usize, values: &mut Vec<u32>) {
        let (red, rest) = self.values(i).split_at(PIXELS);
        let (green, blue) = rest.split_at(PIXELS);
        let colours = red.iter().zip(green).zip(blue);
        values.extend(colours.map(|((&r, &g), &b)| luma(r, g, b)));
    }

    /// Appends the images of the file `path`. Their labels must be below `classes`.
    fn read(&mut self, path: &Path, classes: usize) -> Result<(), DataError> {
        let batch = files::read_file(path)?;
        let size = self.record_size();
        if batch.is_empty() || batch.len() % size != 0 {
            return Err(DataError::BadImages {
                path: path.to_path_buf(),
                problem: format!(
                    "it has {}, not a positive multiple of {size}",
                    counted(batch.len(), "byte")
                ),
            });
        }
        let labels = batch.iter().skip(self.header - 1).step_by(size);
        let wrong = labels.enumerate().find(|l| usize::from(*l.1) >= classes);
        if let Some((record, &label)) = wrong {
            return Err(DataError::BadLabel {
                path: path.to_path_buf(),
                record,
                label,
                classes,
            });
        }
        if self.records.is_empty() {
            self.records = batch;
        } else {
            // `reserve` could double the capacity and waste as much memory as the images take.
            self.records.reserve_exact(batch.len());
            self.records.extend(batch);
        }
        Ok(())
    }
}

fn luma(red: u8, green: u8, blue: u8) -> u32 {
    let [red, green, blue] = [red, green, blue].map(u32::from);
    (299 * red + 587 * green + 114 * blue + 500) / 1000
}

#[cfg(test)]
mod tests {
    use std::fs;

    use residual_zoo_system::Blame as _;

    use super::*;

    const RECORD: usize = 1 + 3 * PIXELS;

    /// Makes records with these labels; byte `at` of image `i` is `i + at`, modulo 256.
    fn batch(labels: &[u8]) -> Vec<u8> {
        let record = |(i, &label): (usize, &u8)| {
            let bytes = (0..3 * PIXELS).map(move |at| (i + at) as u8);
            std::iter::once(label).chain(bytes)
        };
        labels.iter().enumerate().flat_map(record).collect()
    }

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(dir.path().join(name), content).unwrap();
        }
        dir
    }

    #[test]
    fn training_batches_are_joined_in_order_and_the_test_batch_is_separate() {
        let dir = folder(&[
            ("data_batch_4.bin", &batch(&[9, 0])),
            ("data_batch_2.bin", &batch(&[5])),
            ("test_batch.bin", &batch(&[7])),
            ("batches.meta.txt", b"airplane\n"),
        ]);
        let Cifar { train, test } = Cifar::open(dir.path()).unwrap();
        let labels: Vec<usize> = (0..train.len()).map(|i| train.label(i)).collect();
        assert_eq!(labels, [5, 9, 0]);
        assert_eq!((test.len(), test.label(0)), (1, 7));
    }

    #[test]
    fn grey_values_are_the_luma_of_each_pixel_in_rows() {
        let dir = folder(&[
            ("data_batch_1.bin", &batch(&[1, 2])),
            ("test_batch.bin", &batch(&[3])),
        ]);
        let train = Cifar::open(dir.path()).unwrap().train;
        let mut values = vec![42];
        train.grey(1, &mut values);
        assert_eq!((values.len(), values[0]), (1 + PIXELS, 42));
        // A plane has 4 · 256 bytes, so the red, green and blue values of a pixel are equal.
        for (at, value) in values[1..].iter().enumerate() {
            assert_eq!(*value, (1 + at as u32) % 256);
        }
    }

    #[test]
    fn luma_is_that_of_bt_601_rounded_to_the_nearest() {
        for (colour, grey) in [
            ([0, 0, 0], 0),
            ([255, 255, 255], 255),
            ([255, 0, 0], 76),  // 76.245
            ([0, 255, 0], 150), // 149.685
            ([0, 0, 255], 29),  // 29.07
            ([0, 0, 250], 29),  // 28.5
            ([10, 20, 30], 18), // 18.15
        ] {
            let [red, green, blue] = colour;
            assert_eq!(luma(red, green, blue), grey, "{colour:?}");
        }
    }

    #[test]
    fn an_invalid_batch_is_named() {
        let (good, test) = (batch(&[1, 2, 3]), ("test_batch.bin", batch(&[4])));
        for bad in [&good[..0], &good[..1], &good[..RECORD + 1], &good[..9218]] {
            for bad in [
                [("data_batch_1.bin", bad), (test.0, &test.1)],
                [("data_batch_1.bin", &good), (test.0, bad)],
            ] {
                let error = Cifar::open(folder(&bad).path()).unwrap_err();
                assert!(matches!(error, DataError::BadImages { .. }), "{error}");
                assert!(error.is_bad_input());
            }
        }
        let mut bad = good;
        bad[2 * RECORD] = 10;
        let dir = folder(&[("data_batch_3.bin", &bad), (test.0, &test.1)]);
        let error = Cifar::open(dir.path()).unwrap_err();
        let expected = matches!(
            &error,
            DataError::BadLabel { path, record: 2, label: 10, .. } if path.ends_with("data_batch_3.bin")
        );
        assert!(expected, "{error}");
    }

    #[test]
    fn missing_batches_are_named() {
        let image = batch(&[0]);
        let error = Cifar::open(folder(&[("test_batch.bin", &image)]).path()).unwrap_err();
        assert!(matches!(error, DataError::NoImages { .. }), "{error}");
        let error = Cifar::open(folder(&[("data_batch_1.bin", &image)]).path()).unwrap_err();
        let named =
            matches!(&error, DataError::NotFound { path } if path.ends_with("test_batch.bin"));
        assert!(named, "{error}");
        let error = Cifar::open(Path::new("/dev/null/none")).unwrap_err();
        assert!(!error.to_string().is_empty());
    }

    #[test]
    fn cifar_100_has_the_fine_class_in_its_second_byte() {
        let record = |coarse: u8, fine: u8| [vec![coarse, fine], vec![fine; 3072]].concat();
        let train = [record(3, 99), record(0, 5)].concat();
        let dir = folder(&[("train.bin", &train), ("test.bin", &record(1, 7))]);
        let Cifar { train, test } = Cifar::open_100(dir.path()).unwrap();
        assert_eq!((train.len(), train.label(0), train.label(1)), (2, 99, 5));
        assert_eq!((test.label(0), test.values(0)), (7, &[7; 3072][..]));
        let dir = folder(&[("train.bin", &record(3, 100)), ("test.bin", &record(1, 7))]);
        let error = Cifar::open_100(dir.path()).unwrap_err();
        assert!(
            error.to_string().contains("not between 0 and 99"),
            "{error}"
        );
        // A file in CIFAR-10's format.
        let dir = folder(&[("train.bin", &batch(&[1, 2])), ("test.bin", &record(1, 7))]);
        let error = Cifar::open_100(dir.path()).unwrap_err();
        assert!(matches!(error, DataError::BadImages { .. }), "{error}");
    }

    #[test]
    fn a_directory_is_not_a_batch() {
        let dir = folder(&[("data_batch_1.bin", &batch(&[0]))]);
        fs::create_dir(dir.path().join("test_batch.bin")).unwrap();
        let error = Cifar::open(dir.path()).unwrap_err();
        assert!(matches!(error, DataError::NotAFile { .. }), "{error}");
    }

    #[test]
    fn the_original_is_read_if_it_is_present() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let path = root.join("../shared/data/cifar-10-batches-bin");
        if !path.is_dir() {
            println!("skipped: {} does not exist", path.display());
            return;
        }
        let Cifar { train, test } = Cifar::open(&path).unwrap();
        for images in [&train, &test] {
            let mut counts = [0; CLASSES];
            (0..images.len()).for_each(|i| counts[images.label(i)] += 1);
            // All classes are about equally frequent.
            let expected = images.len() / CLASSES;
            let near = expected * 8 / 10..expected * 12 / 10;
            assert!(
                counts.iter().all(|count| near.contains(count)),
                "{counts:?}"
            );
        }
        let mut values = Vec::new();
        train.grey(0, &mut values);
        // Neighbouring pixels are similar only if the layout is read correctly.
        let steps = values.windows(2).map(|pair| pair[0].abs_diff(pair[1]));
        assert!(steps.sum::<u32>() / 1023 < 20);
    }
}
