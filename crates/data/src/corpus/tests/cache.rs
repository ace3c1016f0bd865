//! Tests of cache entries.

use super::*;

#[test]
fn the_cache_is_used_again() {
    let setup = Setup::new(&TEXT.repeat(10));
    let first = setup.open();
    let (entry, modified) = (setup.entry(), setup.modified());
    let names = [
        "manifest.json",
        "tokenizer.json",
        "train-00000.bin",
        "valid-00000.bin",
    ];
    assert!(names.iter().all(|name| entry.join(name).is_file()));
    let again = setup.open();
    assert_eq!(setup.modified(), modified);
    assert_eq!(
        (ids(tokens(&first.train)), ids(tokens(&first.valid))),
        (ids(tokens(&again.train)), ids(tokens(&again.valid)))
    );
    assert_eq!(first.identity, again.identity);
    assert_eq!(again.note, None);
}

#[test]
fn a_changed_source_is_another_corpus() {
    let setup = Setup::new(&TEXT.repeat(10));
    let first = setup.open();
    setup.write(&TEXT.repeat(11));
    let second = setup.open();
    assert_ne!(first.identity, second.identity);
    assert_eq!(setup.entries().len(), 2);
    assert_eq!(
        tokens(&second.train).len() + tokens(&second.valid).len(),
        TEXT.repeat(11).chars().count()
    );
}

#[test]
fn identity_depends_on_content_tokenizer_and_split_but_not_on_paths() {
    let (mut a, b) = (Setup::new(&TEXT.repeat(10)), Setup::new(&TEXT.repeat(10)));
    let identity = a.open().identity;
    assert_eq!(b.open().identity, identity);
    a.config.tokenizer = TokenizerConfig::Bytes;
    assert_ne!(a.open().identity, identity);
    a.config = DataConfig {
        valid_fraction: 0.2,
        ..b.config.clone()
    };
    assert_ne!(a.open().identity, identity);
}

#[test]
fn a_damaged_cache_entry_is_rebuilt() {
    let setup = Setup::new(&TEXT.repeat(10));
    // The tokens are copied, because damage to the mapped file would also change them.
    let identity = setup.open().identity;
    let all = |corpus: &Corpus| (ids(tokens(&corpus.train)), ids(tokens(&corpus.valid)));
    let good = all(&setup.open());
    type Damage = fn(&Path);
    let flip: Damage = |entry| {
        let path = entry.join("valid-00000.bin");
        let mut bytes = fs::read(&path).unwrap();
        bytes[100] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    let damages: [Damage; 7] = [
        flip,
        |entry| fs::write(entry.join("train-00000.bin"), b"RZ").unwrap(),
        |entry| fs::remove_file(entry.join("train-00000.bin")).unwrap(),
        |entry| {
            fs::copy(entry.join("valid-00000.bin"), entry.join("train-00000.bin")).unwrap();
        },
        |entry| fs::write(entry.join("manifest.json"), b"{}").unwrap(),
        |entry| fs::write(entry.join("tokenizer.json"), b"{\"kind\": \"bytes\"}").unwrap(),
        |entry| {
            fs::remove_dir_all(entry).unwrap();
            fs::write(entry, b"a file").unwrap();
        },
    ];
    for damage in damages {
        damage(&setup.entry());
        let rebuilt = setup.open();
        assert!(
            rebuilt
                .note
                .clone()
                .unwrap()
                .contains("tokenized the data again"),
            "{:?}",
            rebuilt.note
        );
        assert!(!is_in_memory(&rebuilt));
        assert_eq!(all(&rebuilt), good);
        assert_eq!(rebuilt.identity, identity);
        drop(rebuilt);
        assert_eq!(setup.open().note, None);
    }
}

/// Reads the files of an entry.
fn content(entry: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = fs::read_dir(entry).unwrap().map(|file| file.unwrap());
    let mut files: Vec<_> = files
        .map(|file| (file.file_name().into(), fs::read(file.path()).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn a_stopped_process_leaves_segments_with_which_the_next_one_continues() {
    let text: String = (0..100).map(|seed| random_text(seed, 400)).collect();
    for tokenizer in [
        TokenizerConfig::Bytes,
        TokenizerConfig::Chars,
        TokenizerConfig::Bpe { vocab_size: 300 },
    ] {
        let mut straight = Setup::new(&text);
        straight.config.tokenizer = tokenizer.clone();
        straight.open();
        let expected = content(&straight.entry());
        assert!(expected.len() > 12, "{}", expected.len());

        let mut stopped = Setup::new(&text);
        stopped.config.tokenizer = tokenizer;
        let mut stops = 0;
        let corpus = loop {
            let opened = Corpus::open_with(&stopped.config, &mut |stage, done, _| {
                stage != Stage::Tokenizing || done <= (stops + 1) * 9000
            });
            match opened {
                Err(DataError::Stopped) => stops += 1,
                opened => break opened.unwrap(),
            }
            if stops == 1 {
                // Tokenized segments are not tokenized again.
                let part = fs::canonicalize(stopped.entry()).unwrap();
                assert!(part.to_str().unwrap().contains(".part-"));
                let first = part.join("new/train-00000.bin");
                let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
                let first = fs::File::options().append(true).open(first).unwrap();
                first.set_modified(old).unwrap();
            }
            assert!(stops < 100);
        };
        assert!(stops > 2, "{stops}");
        assert_eq!(corpus.note, None);
        assert_eq!(content(&stopped.entry()), strip(&expected, &stopped));
        let first = stopped.entry().join("train-00000.bin");
        let modified = fs::metadata(first).unwrap().modified().unwrap();
        assert!(modified < SystemTime::now() - Duration::from_secs(1 << 20));
    }
}

#[test]
fn what_killed_processes_leave_is_used_or_swept() {
    let setup = Setup::new(&TEXT.repeat(500));
    let stopped = Corpus::open_with(&setup.config, &mut |stage, done, _| {
        stage != Stage::Tokenizing || done < 9000
    });
    assert!(matches!(stopped, Err(DataError::Stopped)));
    let part = setup.entry();
    fs::write(part.join("new/.tmp1234"), b"half of a shard").unwrap();
    let root = part.parent().unwrap();
    let (old, young) = (root.join(".part-old"), root.join(".part-young"));
    for left in [&old, &young] {
        fs::create_dir_all(left.join("new")).unwrap();
        fs::write(left.join("lock"), b"").unwrap();
    }
    let long_ago = SystemTime::now() - Duration::from_secs(30 * 24 * 3600);
    let new = fs::File::open(old.join("new")).unwrap();
    new.set_modified(long_ago).unwrap();
    setup.open();
    assert!(!old.exists() && !part.exists() && young.exists());
    fs::remove_dir_all(&young).unwrap();
    assert!(
        content(&setup.entry())
            .iter()
            .all(|(name, _)| !name.starts_with(".tmp1234"))
    );
}

/// Returns the content of an entry, but with the path of another source in its manifest.
fn strip(content: &[(PathBuf, Vec<u8>)], of: &Setup) -> Vec<(PathBuf, Vec<u8>)> {
    let source = of.dir.path().join("input.txt").display().to_string();
    let with_source = |(name, bytes): &(PathBuf, Vec<u8>)| {
        if name != Path::new("manifest.json") {
            return (name.clone(), bytes.clone());
        }
        let mut manifest: Manifest = serde_json::from_slice(bytes).unwrap();
        manifest.source = source.clone();
        let json = serde_json::to_string_pretty(&manifest).unwrap() + "\n";
        (name.clone(), json.into_bytes())
    };
    content.iter().map(with_source).collect()
}

#[test]
fn without_a_writable_cache_tokens_are_kept_in_memory() {
    let mut setup = Setup::new(&TEXT.repeat(10));
    let good = setup.open();
    let file = setup.dir.path().join("file");
    fs::write(&file, b"").unwrap();
    setup.config.cache = Some(file.join("cache"));
    let corpus = setup.open();
    assert!(is_in_memory(&corpus));
    assert!(
        corpus
            .note
            .unwrap()
            .contains("so tokens are kept in memory")
    );
    assert_eq!(
        (ids(tokens(&corpus.train)), ids(tokens(&corpus.valid))),
        (ids(tokens(&good.train)), ids(tokens(&good.valid)))
    );
    assert_eq!(corpus.identity, good.identity);
}

#[test]
fn processes_that_race_for_an_entry_all_get_it() {
    let setup = Setup::new(&TEXT.repeat(200));
    let lengths: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| tokens(&setup.open().train).len()))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(lengths.iter().all(|len| *len == lengths[0]));
    assert_eq!(setup.open().note, None);
    setup.entry();
}

#[cfg(unix)]
#[test]
fn links_in_place_of_an_unfinished_entry_are_not_followed() {
    use std::os::unix::fs::symlink;
    for link in ["", "new", "lock"] {
        let mut setup = Setup::new(&TEXT.repeat(20));
        setup.open();
        let key = setup.entry();
        fs::remove_dir_all(&key).unwrap();
        let theirs = setup.dir.path().join("theirs");
        fs::create_dir_all(theirs.join("new")).unwrap();
        fs::write(theirs.join("new/thesis"), "mine").unwrap();
        fs::write(theirs.join("lock"), "mine").unwrap();
        let name = format!(".part-{}", key.file_name().unwrap().to_str().unwrap());
        let part = key.with_file_name(name);
        if !link.is_empty() {
            fs::create_dir(&part).unwrap();
        }
        symlink(theirs.join(link), part.join(link).components().as_path()).unwrap();
        let corpus = setup.open();
        assert!(corpus.note.unwrap().contains("is a link"), "{link}");
        assert_eq!(
            fs::read_to_string(theirs.join("new/thesis")).unwrap(),
            "mine"
        );
        assert_eq!(fs::read_to_string(theirs.join("lock")).unwrap(), "mine");
        assert!(!theirs.join("new/tokenizer.json").exists());
        setup.config.valid_fraction = 0.2;
        assert!(setup.open().note.is_none());
    }
}

#[test]
fn what_a_killed_process_has_left_beside_a_complete_entry_is_deleted() {
    let setup = Setup::new(&TEXT.repeat(20));
    setup.open();
    let name = setup.entry();
    let name = format!(".part-{}", name.file_name().unwrap().to_str().unwrap());
    let part = setup.entry().with_file_name(name);
    fs::create_dir_all(part.join("new")).unwrap();
    for has_lock in [false, true] {
        fs::create_dir_all(part.join("new")).unwrap();
        if has_lock {
            let lock = fs::File::create(part.join("lock")).unwrap();
            lock.lock().unwrap();
            setup.open();
            assert!(part.join("new").exists(), "it is in use");
        }
        setup.open();
        assert!(!part.exists());
    }
}
