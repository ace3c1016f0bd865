use image::{GrayImage, Luma, Rgb, Rgba, RgbaImage};

use residual_zoo_system::Blame as _;

use super::*;
use crate::{Corpus, DataConfig, Examples, ImageSet, ImagesConfig, Source};

/// Makes a directory with two classes. Each class has images of its own colour for training and for validation.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (class, colour) in [("cat", [200, 0, 0]), ("dog", [0, 0, 200])] {
        for part in ["train", "val"] {
            let folder = directory.path().join(part).join(class);
            fs::create_dir_all(&folder).unwrap();
            let image = RgbImage::from_pixel(12, 10, Rgb(colour));
            image.save(folder.join("1.png")).unwrap();
            image.save(folder.join("2.JPEG")).unwrap();
        }
    }
    directory
}

fn config(directory: &Path) -> FolderConfig {
    FolderConfig {
        path: directory.to_path_buf(),
        classes: 2,
        size: 8,
        shorter: 10,
        ..FolderConfig::default()
    }
}

fn opened(config: &FolderConfig) -> Result<Opened, DataError> {
    config.validate()?;
    open(config, &mut |_, _, _| true)
}

/// Returns the error for a directory that `change` has changed.
fn error(change: impl FnOnce(&Path)) -> String {
    let directory = directory();
    change(directory.path());
    let error = opened(&config(directory.path())).err().unwrap();
    assert!(error.is_bad_input(), "{error}");
    error.to_string()
}

#[test]
fn what_is_skipped_has_its_reason() {
    for (skipped, why) in [
        ("train/cat/notes.txt", "it is not .jpg, .jpeg or .png"),
        ("train/cat/x.png", "it is not a regular file"),
        ("train/x.png", "it is not in the directory of a class"),
    ] {
        let directory = directory();
        let path = directory.path().join(skipped);
        match why.ends_with("file") {
            true => fs::create_dir(&path).unwrap(),
            false => fs::write(&path, "").unwrap(),
        }
        let note = opened(&config(directory.path())).unwrap().note.unwrap();
        let says = format!("{skipped}` was skipped, because {why}");
        assert!(note.ends_with(&says), "{note}");
    }
}

#[test]
fn classes_are_the_directories_in_the_order_of_their_names() {
    let directory = directory();
    fs::write(directory.path().join("train/cat/notes.txt"), "").unwrap();
    fs::write(directory.path().join("train/.hidden"), "").unwrap();
    let Opened {
        train,
        valid,
        names,
        note,
    } = opened(&config(directory.path())).unwrap();
    assert_eq!(names, ["cat", "dog"]);
    let labels: Vec<usize> = (0..train.len()).map(|i| train.label(i)).collect();
    assert_eq!((labels, valid.len()), (vec![0, 0, 1, 1], 4));
    let note = note.unwrap();
    assert!(note.contains("notes.txt` was skipped"), "{note}");
    for (i, colour) in [(0, [200, 0, 0]), (2, [0, 0, 200])] {
        for draws in [None, Some(&mut RandomNumbers::new("a test", 0, 0, 0))] {
            let pixels = train.pixels(i, draws).unwrap();
            assert!(
                pixels
                    .chunks(64)
                    .zip(colour)
                    .all(|(plane, value)| plane == [value; 64])
            );
        }
    }
}

#[test]
fn a_validation_image_is_the_middle() {
    let directory = directory();
    let image = RgbImage::from_fn(14, 10, |x, y| Rgb([x as u8, y as u8, 7]));
    image.save(directory.path().join("val/cat/1.png")).unwrap();
    let valid = opened(&config(directory.path())).unwrap().valid;
    // The shorter side of the image already has 10 pixels.
    let pixels = valid.pixels(0, None).unwrap();
    let expected: Vec<u8> = (0..64)
        .map(|i| 3 + i % 8)
        .chain((0..64).map(|i| 1 + i / 8))
        .collect();
    assert_eq!(pixels[..128], expected);
}

#[test]
fn training_images_are_parts_that_the_draws_determine() {
    let directory = directory();
    let noisy = RgbImage::from_fn(40, 30, |x, y| Rgb([(x * 37 + y * 91) as u8; 3]));
    for class in ["cat", "dog"] {
        noisy
            .save(directory.path().join("train").join(class).join("1.png"))
            .unwrap();
    }
    let images = ImagesConfig {
        flip: true,
        ..ImagesConfig::of(ImageSet::Folder(config(directory.path())))
    };
    let config = DataConfig {
        source: Source::Images(images),
        ..DataConfig::default()
    };
    let corpus = Corpus::open(&config).unwrap();
    assert_eq!((corpus.outputs, corpus.image()), (2, Some([3, 8, 8])));
    let sequences = corpus.train.sequences(1, "training").unwrap();
    let batch = |step| sequences.random_batch(5, step, 0, 6).unwrap();
    assert_eq!(batch(1), batch(1));
    assert_ne!(batch(1).images, batch(2).images);
    let larger = sequences
        .random_batch(5, 1, 0, 9)
        .unwrap()
        .images
        .unwrap()
        .values;
    assert_eq!(larger[..6 * 192], batch(1).images.unwrap().values);
    // ImageNet's mean and standard deviation.
    let Examples::Images(valid) = &corpus.valid else {
        unreachable!()
    };
    let red = valid.plain_batch([0]).unwrap().images.unwrap().values[0];
    assert!(
        (red - (200.0 / 255.0 - 0.485) / 0.229).abs() < 1e-5,
        "{red}"
    );
    // The identity depends on names and lengths.
    fs::rename(
        directory.path().join("train/dog/1.png"),
        directory.path().join("train/dog/3.png"),
    )
    .unwrap();
    assert_ne!(Corpus::open(&config).unwrap().identity, corpus.identity);
}

#[test]
fn parts_have_the_areas_and_ratios_that_are_allowed() {
    let mut draws = RandomNumbers::new("a test", 1, 2, 3);
    let (mut least, mut most) = (f64::MAX, 0.0f64);
    for _ in 0..2000 {
        let [x, y, width, height] = part((400, 300), (0.25, 0.5), &mut draws);
        assert!(x + width <= 400 && y + height <= 300);
        let area = f64::from(width * height) / 120_000.0;
        (least, most) = (least.min(area), most.max(area));
        let ratio = f64::from(width) / f64::from(height);
        assert!((0.74..1.345).contains(&ratio), "{ratio}");
    }
    assert!(
        (0.245..0.27).contains(&least) && (0.48..0.505).contains(&most),
        "{least} {most}"
    );
    // No crop with an allowed ratio has so large a share of the area.
    assert_eq!(part((1000, 3), (0.9, 1.0), &mut draws), [498, 0, 4, 3]);
    assert_eq!(part((1, 1), (0.08, 1.0), &mut draws), [0, 0, 1, 1]);
}

/// If this image were scaled until its shorter side has 10 pixels, it would be 30,000 pixels wide.
#[test]
fn a_long_and_narrow_image_is_cut_before_it_is_scaled() {
    let directory = directory();
    let long = RgbImage::from_pixel(3000, 1, Rgb([7, 8, 9]));
    long.save(directory.path().join("val/cat/1.png")).unwrap();
    let valid = opened(&config(directory.path())).unwrap().valid;
    assert_eq!(
        valid.pixels(0, None).unwrap()[..128],
        [[7; 64], [8; 64]].concat()
    );
    assert_eq!(middle((3000, 1), 224, 256), [1499, 0, 1, 1]);
    assert_eq!(middle((500, 400), 224, 256), [75, 25, 350, 350]);
}

#[test]
fn grey_and_transparent_images_become_three_channels() {
    let directory = directory();
    let cat = directory.path().join("val/cat");
    GrayImage::from_pixel(10, 10, Luma([9]))
        .save(cat.join("1.png"))
        .unwrap();
    RgbaImage::from_pixel(10, 10, Rgba([1, 2, 3, 4]))
        .save(cat.join("2.JPEG.png"))
        .unwrap();
    let valid = opened(&config(directory.path())).unwrap().valid;
    assert_eq!(valid.pixels(0, None).unwrap(), [9; 192]);
    let transparent = valid.pixels(2, None).unwrap();
    assert_eq!(
        [transparent[0], transparent[64], transparent[128]],
        [1, 2, 3]
    );
}

/// The expected colours are from PIL 13. For grey images, PIL turns values above 255 into 255.
#[test]
fn of_sixteen_bits_the_upper_half_is_read() {
    let directory = directory();
    let cat = directory.path().join("val/cat");
    let values: [u16; 4] = [383, 32767, 65407, 256];
    image::ImageBuffer::from_pixel(10, 10, image::Luma([values[0]]))
        .save(cat.join("1.png"))
        .unwrap();
    image::ImageBuffer::from_pixel(10, 10, image::Rgba(values))
        .save(cat.join("2.JPEG.png"))
        .unwrap();
    let valid = opened(&config(directory.path())).unwrap().valid;
    assert_eq!(valid.pixels(0, None).unwrap(), [1; 192]);
    let colours = valid.pixels(2, None).unwrap();
    assert_eq!([colours[0], colours[64], colours[128]], [1, 127, 255]);
}

#[test]
fn a_directory_of_another_layout_is_refused() {
    let missing = opened(&config(Path::new("/nowhere"))).err().unwrap();
    assert!(matches!(missing, DataError::NotFound { .. }), "{missing}");
    let unset = opened(&FolderConfig::default()).err().unwrap();
    assert!(unset.to_string().contains("--data DIRECTORY"), "{unset}");
    let remove =
        |name: &'static str| move |path: &Path| fs::remove_dir_all(path.join(name)).unwrap();
    for (change, expected) in [
        (
            Box::new(remove("val")) as Box<dyn FnOnce(&Path)>,
            "val` does not exist",
        ),
        (
            Box::new(remove("train/dog")),
            "has 1 class directory, but `data.source.set.classes` is 2; set it to 1, or give",
        ),
        (
            Box::new(|path| {
                fs::remove_dir_all(path.join("train")).unwrap();
                fs::create_dir(path.join("train")).unwrap();
            }),
            "train` has no directories",
        ),
        (
            Box::new(|path| {
                fs::remove_file(path.join("train/dog/1.png")).unwrap();
                fs::remove_file(path.join("train/dog/2.JPEG")).unwrap();
            }),
            "train/dog` has no .jpg, .jpeg or .png file",
        ),
        (
            Box::new(|path| fs::rename(path.join("val/dog"), path.join("val/fox")).unwrap()),
            "val/fox` is a class that `train` does not have",
        ),
        (
            Box::new(|path| {
                fs::rename(path.join("train/cat"), path.join("train/a dog")).unwrap();
                fs::rename(path.join("train/dog"), path.join("train/a_dog")).unwrap();
            }),
            "train` has two directories whose class is called `a_dog`",
        ),
    ] {
        let error = error(change);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn bad_files_are_counted_and_named() {
    // The width and height of a PNG are in bytes 16 to 24, and a checksum follows.
    let enormous = |path: &Path| {
        let path = path.join("train/dog/1.png");
        let mut bytes = fs::read(&path).unwrap();
        bytes[16..24].copy_from_slice(&[0, 0, 0x27, 0x10, 0, 0, 0x27, 0x10]);
        let mut checksum = flate2::Crc::new();
        checksum.update(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&checksum.sum().to_be_bytes());
        fs::write(path, bytes).unwrap();
    };
    let cut = |name: &'static str| {
        move |path: &Path| {
            let bytes = fs::read(path.join(name)).unwrap();
            fs::write(path.join(name), &bytes[..bytes.len() - 12]).unwrap();
        }
    };
    let write = |text: &'static str| {
        move |path: &Path| fs::write(path.join("train/cat/2.JPEG"), text).unwrap()
    };
    for (change, expected) in [
        (
            Box::new(enormous) as Box<dyn FnOnce(&Path)>,
            "train/dog/1.png` has 10000 × 10000 pixels, more than 40000000",
        ),
        (
            Box::new(cut("train/dog/1.png")),
            "train/dog/1.png` is truncated",
        ),
        (
            Box::new(cut("val/dog/2.JPEG")),
            "val/dog/2.JPEG` is truncated",
        ),
        (
            Box::new(write("no image")),
            "train/cat/2.JPEG` is neither JPEG nor PNG",
        ),
        (
            Box::new(write("")),
            "train/cat/2.JPEG` is neither JPEG nor PNG",
        ),
        (
            Box::new(write("GIF89a")),
            "train/cat/2.JPEG` is neither JPEG nor PNG",
        ),
    ] {
        let error = error(change);
        assert!(
            error.contains(expected) && error.ends_with("repair or delete it"),
            "{error}"
        );
    }
    let many = error(|path| {
        for i in 0..40 {
            fs::write(path.join(format!("train/cat/bad-{i:02}.jpg")), "none").unwrap();
        }
    });
    assert!(
        many.contains("bad-04.jpg") && many.contains("and 35 more files; repair or delete them"),
        "{many}"
    );
}

#[cfg(unix)]
#[test]
fn links_are_followed_only_within_the_directory() {
    use std::os::unix::fs::symlink;
    let directory = directory();
    let cat = directory.path().join("train/cat");
    symlink("1.png", cat.join("3.png")).unwrap();
    assert_eq!(opened(&config(directory.path())).unwrap().train.len(), 5);
    let outside = tempfile::tempdir().unwrap();
    RgbImage::new(9, 9)
        .save(outside.path().join("a.png"))
        .unwrap();
    symlink(outside.path().join("a.png"), cat.join("4.png")).unwrap();
    let error = opened(&config(directory.path())).err().unwrap().to_string();
    assert!(
        error.contains("4.png` is a symbolic link to something outside"),
        "{error}"
    );
    fs::remove_file(cat.join("4.png")).unwrap();
    symlink(outside.path(), directory.path().join("train/dog2")).unwrap();
    let error = opened(&config(directory.path())).err().unwrap().to_string();
    assert!(
        error.contains("dog2` is a symbolic link to something outside"),
        "{error}"
    );
    fs::remove_file(directory.path().join("train/dog2")).unwrap();
    for link in ["train/cat/5.png", "train/dog3", "val/cat/5.png"] {
        let link = directory.path().join(link);
        symlink("gone.png", &link).unwrap();
        let error = opened(&config(directory.path())).err().unwrap().to_string();
        let says = format!(
            "{}` cannot be read, because it is a symbolic link to `gone.png`",
            link.display()
        );
        assert!(error.contains(&says), "{error}");
        fs::remove_file(link).unwrap();
    }
}

#[test]
fn a_file_that_changes_later_is_an_error_of_its_batch() {
    let directory = directory();
    let train = opened(&config(directory.path())).unwrap().train;
    fs::remove_file(directory.path().join("train/cat/1.png")).unwrap();
    let error = train.pixels(0, None).unwrap_err();
    assert!(matches!(error, DataError::NotFound { .. }), "{error}");
    fs::write(
        directory.path().join("train/cat/2.JPEG"),
        [0xff, 0xd8, 0xff, 0xe0, 0, 9],
    )
    .unwrap();
    let error = train.pixels(1, None).unwrap_err().to_string();
    assert!(
        error.contains("2.JPEG` is damaged") && error.lines().count() == 1,
        "{error}"
    );
}

#[test]
fn the_check_can_be_stopped() {
    let directory = directory();
    let stopped = open(&config(directory.path()), &mut |_, _, _| false).err();
    assert!(matches!(stopped, Some(DataError::Stopped)));
}

#[test]
fn invalid_settings_name_their_field() {
    let valid = || config(Path::new("images"));
    for (wrong, field) in [
        (
            FolderConfig {
                classes: 0,
                ..valid()
            },
            "classes",
        ),
        (FolderConfig { size: 0, ..valid() }, "size"),
        (
            FolderConfig {
                shorter: 7,
                ..valid()
            },
            "shorter",
        ),
        (
            FolderConfig {
                area: (0.0, 1.0),
                ..valid()
            },
            "area",
        ),
        (
            FolderConfig {
                area: (0.5, 0.4),
                ..valid()
            },
            "area",
        ),
        (
            FolderConfig {
                area: (0.5, f64::NAN),
                ..valid()
            },
            "area",
        ),
    ] {
        let error = wrong.validate().unwrap_err().to_string();
        assert!(
            error.contains(&format!("data.source.set.{field}")),
            "{error}"
        );
    }
}

#[test]
fn data_after_the_end_of_an_image_are_ignored() {
    let directory = directory();
    let names = ["val/cat/1.png", "val/cat/2.JPEG"].map(|name| directory.path().join(name));
    let before = opened(&config(directory.path())).unwrap().valid;
    // A video as in a motion photograph, longer than the part that is searched first.
    let film = [b"\0\0\0\x18ftypmp42".as_slice(), &[7; 20_000]].concat();
    for name in &names {
        let image = fs::read(name).unwrap();
        fs::write(name, [image, film.clone()].concat()).unwrap();
    }
    let after = opened(&config(directory.path())).unwrap().valid;
    for i in 0..2 {
        assert_eq!(
            after.pixels(i, None).unwrap(),
            before.pixels(i, None).unwrap()
        );
    }
    // A preview has an end marker, but the image has none.
    for name in &names {
        let image = fs::read(name).unwrap();
        let cut = &image[..image.len() - film.len() - 14];
        let preview = b"\xff\xd8\xff\xe1\0\x08\xff\xd8\xff\xd9\0\0";
        let damaged = match name.ends_with("1.png") {
            true => cut.to_vec(),
            false => [preview, &cut[2..]].concat(),
        };
        fs::write(name, [damaged, film.clone()].concat()).unwrap();
    }
    let error = opened(&config(directory.path())).err().unwrap().to_string();
    assert!(error.contains("1.png` is truncated"), "{error}");
    assert!(error.contains("2.JPEG` is truncated"), "{error}");
}
