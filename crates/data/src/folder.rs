//! Image directories in ImageNet's layout. Each image is decoded when it is used.

mod ends;

use std::collections::HashSet;
use std::fs::{self, File, FileType};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use image::imageops::{self, FilterType};
use image::{
    DynamicImage, GrayAlphaImage, GrayImage, ImageFormat, ImageReader, RgbImage, RgbaImage,
};
use rayon::prelude::*;
use residual_zoo_system::{counted, stop};
use serde::{Deserialize, Serialize};

use crate::files::check_is_file;
use crate::meanwhile::unless_stopped;
use crate::progress::{OnProgress, Stage, report};
use crate::random::RandomNumbers;
use crate::{DataError, one_line};

/// Images in the files `train/CLASS/NAME` and `val/CLASS/NAME` of a directory, the usual layout of ImageNet. Fields
/// that the run file omits have their [`Default`] values.
///
/// Image files are JPEG or PNG. As in torchvision's `ImageFolder`, grey values become three equal channels,
/// transparency is dropped, and the orientation in a photograph's metadata is ignored. Only the upper 8 bits of 16-bit
/// values are read. `ImageFolder` differs for 16-bit grey images, in which it turns every value above 255 into white.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FolderConfig {
    /// The directory that contains `train` and `val`.
    pub path: PathBuf,
    /// Number of classes. The classes are the directories in `train`, in the order of their names.
    pub classes: usize,
    /// Height and width, in pixels, of the images that a model reads.
    pub size: usize,
    /// Smallest and largest share of an image's area that a training image shows. A training image is a random crop of
    /// the image in the file, scaled to `size`. The crop's share of the area is drawn uniformly between these two
    /// numbers. The crop's ratio of width to height is drawn between 3/4 and 4/3, uniformly on a logarithmic scale
    /// (Szegedy et al., "Going deeper with convolutions", 2015, section 6).
    pub area: (f64, f64),
    /// Length, in pixels, to which the shorter side of a validation image is scaled before a square of `size` is
    /// cropped from the centre. In practice, the program first crops the part that becomes this square, in whole
    /// pixels, and then scales only this part.
    pub shorter: usize,
}

impl Default for FolderConfig {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            classes: 1000,
            size: 224,
            area: (0.08, 1.0),
            shorter: 256,
        }
    }
}

/// Height and width of the largest images that a model can read.
const LARGEST: usize = 4096;
/// Maximum number of pixels in a file. A decoder takes 3 to 8 bytes per pixel.
const MOST_PIXELS: u64 = 40_000_000;
/// Maximum number of classes.
const MOST_CLASSES: usize = 1 << 16;
/// Maximum number of bad files that an error names.
const NAMED: usize = 5;
/// Number of pixels from which decoding counts as slow, because it takes about a tenth of a second or more.
const SLOW: u64 = 4_000_000;
/// Number of files whose headers are read between two reports of progress.
const CHUNK: usize = 1024;

impl FolderConfig {
    /// Checks every field without reading any file.
    ///
    /// # Errors
    ///
    /// Returns [`DataError::InvalidConfig`] for the first invalid field.
    pub fn validate(&self) -> Result<(), DataError> {
        let wrong = |field: &str, problem: String| {
            Err(DataError::InvalidConfig {
                field: format!("data.source.set.{field}"),
                problem,
            })
        };
        let Self {
            classes,
            size,
            area: (least, most),
            shorter,
            ..
        } = *self;
        if classes == 0 || classes > MOST_CLASSES {
            return wrong(
                "classes",
                format!("is {classes}; it must be between 1 and {MOST_CLASSES}"),
            );
        }
        if size == 0 || size > LARGEST {
            return wrong(
                "size",
                format!("is {size}; it must be between 1 and {LARGEST}"),
            );
        }
        if shorter < size || shorter > 2 * LARGEST {
            let most = 2 * LARGEST;
            return wrong(
                "shorter",
                format!("is {shorter}; it must be between the size, {size}, and {most}"),
            );
        }
        if !(least > 0.0 && least <= most && most <= 1.0) {
            return wrong(
                "area",
                format!(
                    "is ({least}, {most}); it must be two shares above 0 and at most 1, the smaller one first"
                ),
            );
        }
        Ok(())
    }
}

/// The image files for training, or for validation.
pub(crate) struct Folder {
    config: FolderConfig,
    /// The directory `train` or `val`.
    root: PathBuf,
    /// The names of the classes' directories.
    classes: Vec<String>,
    files: Vec<Picture>,
}

/// An image file.
struct Picture {
    class: u32,
    /// Whether decoding is slow. A slow decode is abandoned when the user stops the process.
    is_slow: bool,
    name: Box<str>,
    bytes: u64,
}

impl std::fmt::Debug for Folder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Folder({}, {})", self.root.display(), self.files.len())
    }
}

/// The training and validation images of an opened directory.
pub(crate) struct Opened {
    pub train: Folder,
    pub valid: Folder,
    /// The names of the classes. Each run of white space within a name is replaced by one `_`.
    pub names: Vec<String>,
    /// One line for the user about skipped files.
    pub note: Option<String>,
}

/// Lists the files of a directory, and reads the header of each file.
///
/// # Errors
///
/// Returns an error for an empty path, missing directories, a wrong number of classes, two class names that are equal
/// once white space is replaced by `_`, a class without an image, or a class of `val` that `train` lacks. Also returns
/// an error for names that are not UTF-8, for links that lead out of the directory or to nothing, and for image files
/// that are unreadable, damaged, truncated, too large, or neither JPEG nor PNG. Returns [`DataError::Stopped`] if the
/// user stops the process.
pub(crate) fn open(config: &FolderConfig, progress: OnProgress) -> Result<Opened, DataError> {
    if config.path.as_os_str().is_empty() {
        return Err(DataError::InvalidConfig {
            field: "data.source.set.path".into(),
            problem:
                "is empty; pass the directory that has `train` and `val` with `--data DIRECTORY`"
                    .into(),
        });
    }
    let mut listing = Listing::of(&config.path)?;
    let root = config.path.join("train");
    let classes = listing.names(&root, Kind::Directory)?;
    if classes.len() != config.classes {
        let problem = match classes.len() {
            0 => "has no directories; it needs one for each class, with the images in it".into(),
            found => format!(
                "has {}, but `data.source.set.classes` is {}; set it to {found}, or give a \
                 directory with that many classes",
                counted(found, "class directory"),
                config.classes
            ),
        };
        return Err(DataError::pictures(&root, problem));
    }
    // The class names become the tokenizer's words, and words cannot contain white space.
    let name = |class: &String| class.split_whitespace().collect::<Vec<_>>().join("_");
    let names: Vec<String> = classes.iter().map(name).collect();
    let mut seen = HashSet::new();
    if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
        let problem = format!(
            "has two directories whose class is called `{twice}`, because spaces become `_`; rename one"
        );
        return Err(DataError::pictures(&root, problem));
    }
    let of_valid = listing.names(&config.path.join("val"), Kind::Directory)?;
    let mut train = listing.part(config, "train", &classes, &classes)?;
    let mut valid = listing.part(config, "val", &of_valid, &classes)?;
    check([&mut train, &mut valid], progress)?;
    Ok(Opened {
        names,
        train,
        valid,
        note: listing.note(),
    })
}

/// Lists a directory and counts skipped files.
struct Listing {
    /// The root directory. No link may lead out of it.
    within: PathBuf,
    /// Number of skipped files.
    skipped: usize,
    /// The first skipped file, and the reason.
    first: Option<(PathBuf, &'static str)>,
}

#[derive(Clone, Copy)]
enum Kind {
    Directory,
    Image,
}

impl Listing {
    fn of(directory: &Path) -> Result<Self, DataError> {
        let within = fs::canonicalize(directory);
        Ok(Self {
            within: within.map_err(|e| DataError::io(directory, "read", e))?,
            skipped: 0,
            first: None,
        })
    }

    /// Lists the images of `classes` in the directory `name`. `all` has all classes, in the order of their labels.
    fn part(
        &mut self,
        config: &FolderConfig,
        name: &str,
        classes: &[String],
        all: &[String],
    ) -> Result<Folder, DataError> {
        let root = config.path.join(name);
        if classes.is_empty() {
            let problem = "has no directories; it needs the directories of `train`";
            return Err(DataError::pictures(&root, problem));
        }
        let mut files = Vec::new();
        for class in classes {
            let directory = root.join(class);
            let Ok(label) = all.binary_search(class) else {
                let problem = "is a class that `train` does not have";
                return Err(DataError::pictures(&directory, problem));
            };
            let names = self.names(&directory, Kind::Image)?;
            if names.is_empty() {
                let problem = "has no .jpg, .jpeg or .png file; add images of this class, or delete the directory";
                return Err(DataError::pictures(&directory, problem));
            }
            files.extend(names.into_iter().map(|name| Picture {
                is_slow: false,
                class: label as u32,
                name: name.into(),
                bytes: 0,
            }));
        }
        Ok(Folder {
            config: config.clone(),
            root,
            classes: all.to_vec(),
            files,
        })
    }

    /// Returns the sorted names of the directories, or of the images, in `directory`. Names that begin with a dot are
    /// ignored.
    fn names(&mut self, directory: &Path, kind: Kind) -> Result<Vec<String>, DataError> {
        let failed = |e| DataError::io(directory, "read", e);
        let mut names = Vec::new();
        for entry in fs::read_dir(directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            let Ok(name) = entry.file_name().into_string() else {
                let problem = "has a name that is not UTF-8; rename it";
                return Err(DataError::pictures(&path, problem));
            };
            if name.starts_with('.') {
                continue;
            }
            let mut file_type = entry.file_type().map_err(failed)?;
            if file_type.is_symlink() {
                file_type = self.target(&path)?;
            }
            let wanted = match kind {
                Kind::Directory => file_type.is_dir(),
                Kind::Image => file_type.is_file() && is_image(&name),
            };
            if wanted {
                names.push(name);
            } else {
                self.skipped += 1;
                let why = match kind {
                    _ if !is_image(&name) => "it is not .jpg, .jpeg or .png",
                    Kind::Image => "it is not a regular file",
                    Kind::Directory => "it is not in the directory of a class",
                };
                self.first.get_or_insert((path, why));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the file type of a link's target. Refuses a target outside of the root directory.
    fn target(&self, link: &Path) -> Result<FileType, DataError> {
        let failed = |e| DataError::io(link, "read", e);
        if !fs::canonicalize(link)
            .map_err(failed)?
            .starts_with(&self.within)
        {
            let problem = "is a symbolic link to something outside of the image directory; replace it with a copy";
            return Err(DataError::pictures(link, problem));
        }
        Ok(fs::metadata(link).map_err(failed)?.file_type())
    }

    /// Returns one line for the user about skipped files.
    fn note(self) -> Option<String> {
        let (first, why) = self.first?;
        let first = one_line(first.display());
        Some(match self.skipped {
            1 => format!("`{first}` was skipped, because {why}"),
            count => format!("{count} files were skipped, such as `{first}`, because {why}"),
        })
    }
}

fn is_image(name: &str) -> bool {
    let extension = Path::new(name)
        .extension()
        .and_then(|extension| extension.to_str());
    let extension = extension.unwrap_or_default().to_ascii_lowercase();
    ["jpg", "jpeg", "png"].contains(&extension.as_str())
}

/// Reads the headers of all files on all cores.
fn check(parts: [&mut Folder; 2], progress: OnProgress) -> Result<(), DataError> {
    let all: usize = parts.iter().map(|part| part.files.len()).sum();
    let mut done = 0;
    let mut bad: (usize, Vec<String>) = (0, Vec::new());
    for part in parts {
        for first in (0..part.files.len()).step_by(CHUNK) {
            report(progress, Stage::Checking, done, all)?;
            let chunk = first..part.files.len().min(first + CHUNK);
            let found: Vec<_> = chunk
                .clone()
                .into_par_iter()
                .map(|i| header(&part.path(i)))
                .collect();
            for (i, found) in chunk.clone().zip(found) {
                match found {
                    Ok((bytes, pixels)) => {
                        part.files[i].bytes = bytes;
                        part.files[i].is_slow = pixels >= SLOW;
                    }
                    Err(problem) => {
                        bad.0 += 1;
                        if bad.1.len() < NAMED {
                            bad.1
                                .push(format!("`{}` {problem}", part.path(i).display()));
                        }
                    }
                }
            }
            done += chunk.len();
        }
    }
    match bad {
        (0, _) => Ok(()),
        (count, named) => Err(DataError::BadPictures { count, named }),
    }
}

/// Returns the length of an image file in bytes, and its number of pixels. Fails unless the file begins and ends like a
/// JPEG or PNG image of an allowed size.
fn header(path: &Path) -> Result<(u64, u64), String> {
    let unread = |e: std::io::Error| format!("cannot be read: {e}");
    let mut file = File::open(path).map_err(unread)?;
    let bytes = file.metadata().map_err(unread)?.len();
    // Usually, the image ends in the last 4,096 bytes, because only metadata or padding follows it.
    file.seek(SeekFrom::Start(bytes.saturating_sub(4096)))
        .map_err(unread)?;
    let mut end = Vec::new();
    file.read_to_end(&mut end).map_err(unread)?;
    file.rewind().map_err(unread)?;
    let reader = ImageReader::new(BufReader::new(file))
        .with_guessed_format()
        .map_err(unread)?;
    let mark: &[u8] = match reader.format() {
        Some(ImageFormat::Jpeg) => &[0xff, 0xd9],
        Some(ImageFormat::Png) => b"IEND",
        _ => return Err("is neither JPEG nor PNG".into()),
    };
    let (width, height) = reader
        .into_dimensions()
        .map_err(|e| format!("is damaged: {}", one_line(e)))?;
    let pixels = u64::from(width) * u64::from(height);
    if pixels == 0 {
        return Err("has no pixels".into());
    }
    if pixels > MOST_PIXELS {
        return Err(format!(
            "has {width} × {height} pixels, more than {MOST_PIXELS}"
        ));
    }
    let is_whole =
        end.windows(mark.len()).any(|part| part == mark) || ends::has_end(path).map_err(unread)?;
    match is_whole {
        true => Ok((bytes, pixels)),
        false => Err("is truncated".into()),
    }
}

impl Folder {
    /// Returns the number of images.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns the height and width of the images that a model reads.
    pub fn size(&self) -> usize {
        self.config.size
    }

    /// Returns the class of image `i`.
    pub fn label(&self, i: usize) -> usize {
        self.files[i].class as usize
    }

    /// Returns the BLAKE3 hash of the names and lengths of all files, as 64 hexadecimal digits. Reading the files
    /// themselves could take hours.
    pub fn blake3(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("residual-zoo-data folder v1");
        let mut add = |number: u64, text: &str| {
            hasher.update(&number.to_le_bytes());
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        for Picture {
            class, name, bytes, ..
        } in &self.files
        {
            add(0, &self.classes[*class as usize]);
            add(*bytes, name);
        }
        hasher.finalize().to_string()
    }

    fn path(&self, i: usize) -> PathBuf {
        let Picture { class, name, .. } = &self.files[i];
        self.root.join(&self.classes[*class as usize]).join(&**name)
    }

    /// Returns a crop of image `i`, scaled to the size that a model reads, as one plane of rows per channel. With
    /// `draws`, the crop is random; without `draws`, it is the centre crop.
    ///
    /// # Errors
    ///
    /// Returns an error if the file was deleted or is damaged, and [`DataError::Stopped`] if the user stops the
    /// process.
    pub fn pixels(
        &self,
        i: usize,
        draws: Option<&mut RandomNumbers>,
    ) -> Result<Vec<u8>, DataError> {
        let (path, is_slow) = (self.path(i), self.files[i].is_slow);
        let image = if_not_stopped(is_slow, move || decode(&path))??;
        let part = match draws {
            Some(draws) => part(image.dimensions(), self.config.area, draws),
            None => middle(image.dimensions(), self.config.size, self.config.shorter),
        };
        let size = self.config.size as u32;
        if_not_stopped(is_slow, move || scaled(&image, part, size))
    }
}

/// Runs `work`, unless the user has stopped the process. If the user stops the process while slow work runs, the work
/// is abandoned.
fn if_not_stopped<T: Send + 'static>(
    is_slow: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, DataError> {
    match is_slow {
        _ if stop::is_asked() => Err(DataError::Stopped),
        true => unless_stopped(work),
        false => Ok(work()),
    }
}

/// Scales a crop of an image to a square of `size`. Returns one plane of rows per channel.
fn scaled(image: &RgbImage, [x, y, width, height]: [u32; 4], size: u32) -> Vec<u8> {
    let part = imageops::crop_imm(image, x, y, width, height);
    let scaled = imageops::resize(&*part, size, size, FilterType::Triangle);
    let plane = |channel: usize| scaled.as_raw().iter().skip(channel).step_by(3);
    (0..3).flat_map(plane).copied().collect()
}

fn decode(path: &Path) -> Result<RgbImage, DataError> {
    // The file may have been replaced since it was listed.
    check_is_file(path)?;
    let file = File::open(path).map_err(|e| DataError::io(path, "read", e))?;
    let reader = ImageReader::new(BufReader::new(file)).with_guessed_format();
    let mut reader = reader.map_err(|e| DataError::io(path, "read", e))?;
    let mut limits = image::Limits::default();
    limits.max_alloc = Some(MOST_PIXELS * 8);
    reader.limits(limits);
    let damaged = |e: image::ImageError| {
        let problem = one_line(e);
        DataError::pictures(
            path,
            format!("is damaged: {}; restore it", problem.trim_end()),
        )
    };
    Ok(eight_bits(reader.decode().map_err(damaged)?).into_rgb8())
}

/// Returns an image with 8 bits per value. Only the upper 8 bits of 16-bit values are kept, as in PIL for colour
/// images.
fn eight_bits(image: DynamicImage) -> DynamicImage {
    let upper = |values: Vec<u16>| values.into_iter().map(|value| (value >> 8) as u8).collect();
    let (width, height) = (image.width(), image.height());
    let of = match image {
        DynamicImage::ImageLuma16(image) => {
            GrayImage::from_raw(width, height, upper(image.into_raw())).map(Into::into)
        }
        DynamicImage::ImageLumaA16(image) => {
            GrayAlphaImage::from_raw(width, height, upper(image.into_raw())).map(Into::into)
        }
        DynamicImage::ImageRgb16(image) => {
            RgbImage::from_raw(width, height, upper(image.into_raw())).map(Into::into)
        }
        DynamicImage::ImageRgba16(image) => {
            RgbaImage::from_raw(width, height, upper(image.into_raw())).map(Into::into)
        }
        image => return image,
    };
    of.unwrap_or_else(|| unreachable!("as many values as before"))
}

/// Returns the left, top, width and height of an image's centre crop. The centre crop is the part that remains if the
/// shorter side is scaled to `shorter` and a square of `size` is cropped. The image is cropped before it is scaled,
/// because scaling could make a long and narrow image arbitrarily large.
fn middle((width, height): (u32, u32), size: usize, shorter: usize) -> [u32; 4] {
    let side = f64::from(width.min(height)) * size as f64 / shorter as f64;
    let side = (side.round() as u32).max(1);
    [(width - side) / 2, (height - side) / 2, side, side]
}

/// Draws the left, top, width and height of a crop, as torchvision's `RandomResizedCrop` does.
fn part(
    (width, height): (u32, u32),
    (least, most): (f64, f64),
    draws: &mut RandomNumbers,
) -> [u32; 4] {
    const TRIES: usize = 10;
    let (full_width, full_height) = (f64::from(width), f64::from(height));
    for _ in 0..TRIES {
        let area = full_width * full_height * (least + (most - least) * draws.unit());
        let widest = (4.0f64 / 3.0).ln();
        let ratio = (widest * (2.0 * draws.unit() - 1.0)).exp();
        let w = (area * ratio).sqrt().round() as u32;
        let h = (area / ratio).sqrt().round() as u32;
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let x = draws.below((width - w) as usize + 1) as u32;
            let y = draws.below((height - h) as usize + 1) as u32;
            return [x, y, w, h];
        }
    }
    // If no crop was found, returns the centre, with an allowed ratio.
    let w = width.min((full_height * 4.0 / 3.0).round() as u32);
    let h = height.min((full_width * 4.0 / 3.0).round() as u32);
    let (w, h) = (w.max(1), h.max(1));
    [(width - w) / 2, (height - h) / 2, w, h]
}

#[cfg(test)]
mod tests;
