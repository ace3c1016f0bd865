//! Targets for shards, tokenizers, documents and images.

use residual_zoo_models::data::{
    Cifar, Shard, Tokenizer, TokenizerConfig, cifar, read_documents, write_shard,
};

use crate::{Scratch, Verdict, refused};

/// A shard. Arbitrary bytes fail the checksum, so a second try gives `data` a correct checksum.
pub fn shard(data: &[u8]) -> Verdict {
    let verdict = open_shard(data);
    if let Some((header, tokens)) = data.split_at_checked(96) {
        let checksum = blake3::hash(&[&header[..64], tokens].concat());
        open_shard(&[&header[..64], checksum.as_bytes(), tokens].concat()).ok();
    }
    verdict
}

fn open_shard(data: &[u8]) -> Verdict {
    let scratch = Scratch::new();
    let path = scratch.file("a.bin", data);
    let shard = Shard::open(&path).map_err(refused)?;
    let tokens = shard.get(0..shard.len());
    assert!(tokens.iter().all(|&id| (id as usize) < shard.vocab_size()));
    // The tokens determine everything except the tokenizer's hash and the checksum.
    write_shard(&path, &tokens, shard.vocab_size(), "").unwrap();
    let again = std::fs::read(&path).unwrap();
    assert_eq!((&again[..32], &again[96..]), (&data[..32], &data[96..]));
    Ok(())
}

const TEXTS: [&str; 4] = [
    "",
    "The cat's 12 hats: naïve café, 本 🦀!\r\n\n  \u{a0}\u{301}\u{0} <unk>[MASK]",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "the cat sat on the mat",
];

/// A tokenizer file, read as a run's tokenizer and as a Hugging Face `tokenizer.json`.
pub fn tokenizer(data: &[u8]) -> Verdict {
    let scratch = Scratch::new();
    let path = scratch.file("tokenizer.json", data);
    let file = Tokenizer::train(&TokenizerConfig::File(path), &[]).map_err(refused);
    let run = match std::str::from_utf8(data) {
        Ok(text) => Tokenizer::from_json(text).map_err(refused),
        Err(error) => Err(refused(error)),
    };
    file.iter().chain(&run).for_each(use_tokenizer);
    file.and(Ok(())).or(run.and(Ok(())))
}

/// Checks that the ids of a tokenizer are in its vocabulary and that using it does not panic.
fn use_tokenizer(tokenizer: &Tokenizer) {
    let size = tokenizer.vocab_size();
    assert!(size > 0);
    let check = |ids: &[u32]| {
        let text = tokenizer.decode(ids).map_err(refused);
        let mut stream = tokenizer.stream();
        let streamed: Result<String, _> = ids.iter().map(|&id| stream.push(id)).collect();
        let streamed = streamed.and_then(|text| Ok(text + &stream.finish()?));
        (text, streamed.map_err(refused))
    };
    for text in TEXTS {
        match tokenizer.encode(text) {
            Ok(ids) => {
                assert!(ids.iter().all(|&id| (id as usize) < size), "{ids:?}");
                check(&ids).0.ok();
            }
            Err(error) => drop(refused(error)),
        }
    }
    let some: Vec<u32> = (0..size.min(300) as u32).collect();
    check(&some).0.ok();
    check(&[size as u32 - 1]).0.ok();
    tokenizer.decode(&[size as u32]).unwrap_err();

    let again = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
    assert_eq!(again.fingerprint(), tokenizer.fingerprint());
    assert_eq!(again.vocab_size(), size);
}

/// A JSONL file, and the same bytes as plain text.
pub fn documents(data: &[u8]) -> Verdict {
    let scratch = Scratch::new();
    // A byte order mark is not part of the text.
    let content = data.strip_prefix(b"\xef\xbb\xbf").unwrap_or(data);
    let text = read_documents(&scratch.file("d.txt", data), "text");
    match text {
        Ok(documents) => assert_eq!(documents.concat().as_bytes(), content),
        Err(error) => drop(refused(error)),
    }
    let path = scratch.file("d.jsonl", data);
    let documents = read_documents(&path, "text").map_err(refused)?;
    let text = std::str::from_utf8(content).unwrap();
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    assert_eq!(documents.len(), lines.count());
    assert!(documents.iter().any(|document| !document.is_empty()));
    Ok(())
}

/// CIFAR-10 batches, all with the same content.
pub fn cifar(data: &[u8]) -> Verdict {
    let scratch = Scratch::new();
    for name in ["data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"] {
        scratch.file(name, data);
    }
    let Cifar { train, test } = Cifar::open(scratch.path()).map_err(refused)?;
    assert_eq!(test.len() * 3073, data.len());
    assert_eq!(train.len(), 2 * test.len());
    let mut values = Vec::new();
    for i in 0..test.len() {
        values.clear();
        test.grey(i, &mut values);
        assert_eq!(values.len(), cifar::PIXELS);
        assert!(values.iter().all(|&value| (value as usize) < cifar::LEVELS));
        assert!(test.label(i) < cifar::CLASSES);
        assert_eq!(test.label(i), usize::from(data[i * 3073]));
        assert_eq!(train.label(i + test.len()), test.label(i));
    }
    Ok(())
}
