//! Tests that work is abandoned when the user stops the process. A stop affects the whole process, so this is one test
//! in a program of its own.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::thread;
use std::time::Duration;

use residual_zoo_data::{
    Corpus, DataConfig, DataError, Examples, FolderConfig, ImageSet, ImagesConfig, Source,
    Tokenizer, read_utf8, unless_stopped,
};
use residual_zoo_system::{Blame as _, stop};

/// Makes a `tokenizer.json` that takes a long time to build.
fn large_tokenizer() -> String {
    let words: Vec<String> = (0..1_000_000)
        .map(|id| format!("\"a rather long word {id:012}\":{id}"))
        .collect();
    let words = words.join(",");
    format!(
        r#"{{"version":"1.0","model":{{"type":"WordLevel","unk_token":"?","vocab":{{{words}}}}}}}"#
    )
}

#[test]
fn slow_work_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    for (part, side) in [("train", 8), ("val", 2100)] {
        let class = folder.path().join(part).join("a");
        fs::create_dir_all(&class).unwrap();
        let image = image::RgbImage::from_pixel(side, side, image::Rgb([200, 100, 0]));
        image.save(class.join("x.png")).unwrap();
    }
    let images = Source::Images(ImagesConfig::of(ImageSet::Folder(FolderConfig {
        path: folder.path().into(),
        classes: 1,
        size: 8,
        shorter: 8,
        ..FolderConfig::default()
    })));
    let config = DataConfig {
        source: images,
        ..DataConfig::default()
    };
    let corpus = Corpus::open(&config).unwrap();
    let decode = |examples: &Examples| examples.images(1).unwrap().next().unwrap().map(drop);
    decode(&corpus.train).unwrap();
    decode(&corpus.valid).unwrap();
    let text = folder.path().join("text.json");
    fs::write(&text, "{}").unwrap();
    assert_eq!(unless_stopped(|| 7).unwrap(), 7);

    stop::ask();
    let endless = unless_stopped(|| thread::sleep(Duration::from_secs(100_000)));
    assert!(endless.unwrap_err().is_stop());
    let built = Tokenizer::from_hf_json(large_tokenizer(), "large");
    assert!(matches!(built.unwrap_err(), DataError::Stopped));
    for examples in [&corpus.train, &corpus.valid] {
        assert!(decode(examples).unwrap_err().is_stop());
    }
    // Quick work is still done after a stop, so that a stopped run can be saved.
    assert_eq!(read_utf8(&text).unwrap(), "{}");
}
