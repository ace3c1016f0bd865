use super::*;
use crate::testing::random_text;

const TEXT: &str = "the cat sat on the mat, and the dog — a café owner's — sat too.\n";

fn all_kinds() -> Vec<Tokenizer> {
    let words = "the cat sat on mat".split(' ').map(str::to_owned).collect();
    let train = |config| Tokenizer::train(&config, &[TEXT]).unwrap();
    vec![
        train(TokenizerConfig::Bytes),
        train(TokenizerConfig::Chars),
        train(TokenizerConfig::Bpe { vocab_size: 280 }),
        Tokenizer::words(words).unwrap(),
    ]
}

#[test]
fn every_kind_survives_json_with_its_fingerprint_and_ids() {
    let text = "the cat sat on the mat";
    let mut fingerprints = Vec::new();
    for tokenizer in all_kinds() {
        let ids = tokenizer.encode(text).unwrap();
        let back = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
        assert_eq!(back.fingerprint(), tokenizer.fingerprint());
        assert_eq!(back.to_json(), tokenizer.to_json());
        assert_eq!(back.vocab_size(), tokenizer.vocab_size());
        assert_eq!(back.encode(text).unwrap(), ids);
        assert_eq!(back.decode(&ids).unwrap(), text);
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
        fingerprints.push(tokenizer.fingerprint());
    }
    fingerprints.sort();
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), 4);
}

#[test]
fn ids_beyond_the_tokens_have_no_text() {
    let text = "the cat sat on the mat";
    for tokenizer in all_kinds() {
        let size = tokenizer.vocab_size();
        let padded = tokenizer.clone().padded(size + 3).unwrap();
        assert_eq!(padded.vocab_size(), size + 3);
        assert_ne!(padded.fingerprint(), tokenizer.fingerprint());
        let back = Tokenizer::from_json(&padded.to_json()).unwrap();
        assert_eq!(back.fingerprint(), padded.fingerprint());
        let mut ids = padded.encode(text).unwrap();
        let last = ids.pop().unwrap();
        ids.extend([size as u32, last, size as u32 + 2]);
        assert_eq!(padded.decode(&ids).unwrap(), text);
        let mut stream = padded.stream();
        let pieces: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
        assert_eq!(pieces + &stream.finish().unwrap(), text);
        assert!(padded.decode(&[size as u32 + 3]).is_err());
        assert!(padded.padded(size).is_err());
    }
}

#[test]
fn the_tokenizer_of_a_run_can_be_given_as_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokenizer.json");
    for tokenizer in all_kinds() {
        std::fs::write(&file, tokenizer.to_json()).unwrap();
        let read = Tokenizer::train(&TokenizerConfig::File(file.clone()), &[]).unwrap();
        assert_eq!(read.fingerprint(), tokenizer.fingerprint());
    }
}

#[test]
fn every_kind_can_be_written_for_hugging_face() {
    let text = "the cat sat on the mat";
    for tokenizer in all_kinds() {
        let hf = Tokenizer::from_hf_json(tokenizer.to_hf_json(), "test").unwrap();
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(hf.encode(text).unwrap(), ids, "{tokenizer:?}");
        assert_eq!(hf.decode(&ids).unwrap(), text, "{tokenizer:?}");
        assert_eq!(hf.vocab_size(), tokenizer.vocab_size());
    }
    let bytes = Tokenizer::train(&TokenizerConfig::Bytes, &[]).unwrap();
    let hf = Tokenizer::from_hf_json(bytes.to_hf_json(), "test").unwrap();
    let odd = "\n\t é\u{0}\u{10ffff}";
    assert_eq!(hf.encode(odd).unwrap(), bytes.encode(odd).unwrap());
    let chars = Tokenizer::train(&TokenizerConfig::Chars, &[odd]).unwrap();
    let hf = Tokenizer::from_hf_json(chars.to_hf_json(), "test").unwrap();
    assert_eq!(hf.encode(odd).unwrap(), chars.encode(odd).unwrap());
    assert!(hf.encode("x").is_err());
}

#[test]
fn the_end_of_a_text_begins_the_next_one() {
    let bpe = Tokenizer::train(&TokenizerConfig::Bpe { vocab_size: 280 }, &[TEXT]).unwrap();
    assert_eq!(bpe.first_id(), 0);
    let added = r#""added_tokens":[{"id":280,"content":"<|endoftext|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}]"#;
    let json = bpe.to_hf_json();
    let json = json.replace("\"added_tokens\":[]", added);
    assert_eq!(
        Tokenizer::from_hf_json(json, "test").unwrap().first_id(),
        280
    );
}

/// Makes a BPE tokenizer with the added tokens 280, 281, ….
fn with_added(tokens: &[&str]) -> Tokenizer {
    let bpe = Tokenizer::train(&TokenizerConfig::Bpe { vocab_size: 280 }, &[TEXT]).unwrap();
    let added = (280..).zip(tokens).map(|(id, content)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        })
    });
    let mut file: Value = serde_json::from_str(&bpe.to_hf_json()).unwrap();
    file["added_tokens"] = added.collect();
    Tokenizer::from_hf_json(file.to_string(), "test").unwrap()
}

#[test]
fn a_text_may_have_several_ends() {
    let plain = with_added(&["<|endoftext|>", "<s>", "</s>"]);
    let several = plain.clone().with_more_ends([282, 280, 281, 282, 9999]);
    // The first end is not listed twice, and an id without a token is left out.
    assert_eq!(several.more_ends(), [281, 282]);
    assert_eq!(several.end_of_text(), Some(280));
    for tokenizer in [
        Tokenizer::from_json(&several.to_json()).unwrap(),
        several.clone().padded(300).unwrap(),
        several,
    ] {
        let ends = (0..300).filter(|id| tokenizer.ends_text(*id));
        assert_eq!(ends.collect::<Vec<_>>(), [280, 281, 282]);
        // The further ends stop generation, and change no other result.
        assert_eq!(tokenizer.begin_of_text(), plain.begin_of_text());
    }
    let ends = (0..300).filter(|id| plain.ends_text(*id));
    assert_eq!(ends.collect::<Vec<_>>(), [280]);
    assert!(!plain.to_json().contains("more_ends"));
}

#[test]
fn the_ends_of_a_text_may_be_other_tokens() {
    let plain = with_added(&["<|endoftext|>", "<s>", "</s>"]);
    let ends = |tokenizer: &Tokenizer| {
        let ends = (tokenizer.begin_of_text(), tokenizer.end_of_text());
        (tokenizer.first_id(), ends)
    };
    assert_eq!(ends(&plain), (280, (Some(280), Some(280))));
    let mut fingerprints = vec![plain.fingerprint()];
    for (begin, end, expected) in [
        (Some(281), Some(282), (281, (Some(281), Some(282)))),
        (None, Some(282), (282, (Some(282), Some(282)))),
        (Some(281), None, (281, (Some(281), Some(280)))),
        (Some(281), Some(281), (281, (Some(281), Some(281)))),
        (Some(280), Some(282), (280, (Some(280), Some(282)))),
        (Some(0), None, (0, (Some(0), Some(280)))),
    ] {
        let tokenizer = plain.clone().with_ends(begin, end).unwrap();
        assert_eq!(ends(&tokenizer), expected);
        let tokenizer = tokenizer.padded(300).unwrap();
        let back = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
        assert_eq!(ends(&back), expected);
        assert_eq!(back.fingerprint(), tokenizer.fingerprint());
        assert_eq!(back.to_json(), tokenizer.to_json());
        assert_eq!(back.encode(TEXT).unwrap(), plain.encode(TEXT).unwrap());
        fingerprints.push(tokenizer.fingerprint());
    }
    let different = fingerprints
        .iter()
        .collect::<std::collections::BTreeSet<_>>();
    assert_eq!(different.len(), fingerprints.len());
    // An id equal to the default changes nothing, and is not written.
    for (begin, end) in [(None, None), (Some(280), Some(280)), (Some(280), None)] {
        let same = plain.clone().with_ends(begin, end).unwrap();
        assert_eq!(same.to_json(), plain.to_json());
        assert_eq!(same.fingerprint(), plain.fingerprint());
    }
    assert!(plain.clone().with_ends(Some(283), None).is_err());
    assert!(
        plain
            .clone()
            .padded(300)
            .unwrap()
            .with_ends(None, Some(299))
            .is_err()
    );
    assert_eq!(plain.special_token(282).as_deref(), Some("</s>"));
    assert_eq!(plain.special_token(0), None);
    let bytes = Tokenizer::train(&TokenizerConfig::Bytes, &[]).unwrap();
    assert_eq!(bytes.to_json(), "{\"kind\":\"bytes\"}");
    let bytes = bytes.with_ends(None, Some(0)).unwrap();
    assert_eq!(bytes.to_json(), "{\"end\":0,\"kind\":\"bytes\"}");
    assert_eq!(
        ends(&Tokenizer::from_json(&bytes.to_json()).unwrap()),
        (0, (Some(0), Some(0)))
    );
    assert!(Tokenizer::from_json("{\"end\":256,\"kind\":\"bytes\"}").is_err());
}

#[test]
fn fingerprints_of_tokenizers_without_ends_are_kept() {
    let bytes = Tokenizer::train(&TokenizerConfig::Bytes, &[]).unwrap();
    let expected = "9541d82bb58d89fdc5964b26d4b006007b91fe4a18e0bef58f6b93b07b9cd641";
    assert_eq!(bytes.fingerprint(), expected);
}

#[test]
fn bytes_and_bpe_round_trip_any_text() {
    let bytes = Tokenizer::train(&TokenizerConfig::Bytes, &[]).unwrap();
    let bpe = Tokenizer::train(&TokenizerConfig::Bpe { vocab_size: 280 }, &[TEXT]).unwrap();
    assert!(bytes.is_bytes() && !bpe.is_bytes());
    for seed in 0..300 {
        let text = random_text(seed, 200);
        for tokenizer in [&bytes, &bpe] {
            let ids = tokenizer.encode(&text).unwrap();
            assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        }
    }
    assert_eq!(bpe.vocab_size(), 280);
    assert!(bpe.encode(TEXT).unwrap().len() < TEXT.len() * 3 / 4);
}

#[test]
fn chars_are_the_sorted_distinct_characters_of_all_texts() {
    let tokenizer = Tokenizer::train(&TokenizerConfig::Chars, &["banana", "é c"]).unwrap();
    assert_eq!(tokenizer.vocab_size(), 6);
    assert_eq!(tokenizer.decode(&[0, 1, 2, 3, 4, 5]).unwrap(), " abcné");
    assert_eq!(tokenizer.encode("é b").unwrap(), [5, 0, 2]);
}

#[test]
fn unknown_characters_and_words_are_named() {
    let chars = Tokenizer::train(&TokenizerConfig::Chars, &["ab"]).unwrap();
    let error = chars.encode("aé").unwrap_err().to_string();
    assert!(
        error
            .starts_with("the tokenizer does not know the character \"é\" (it knows 2 characters)"),
        "{error}"
    );
    let words = Tokenizer::words(vec!["cat".into(), "dog".into()]).unwrap();
    let error = words.encode("cat mouse").unwrap_err().to_string();
    assert!(
        error.starts_with("the tokenizer does not know the word \"mouse\" (it knows 2 words)"),
        "{error}"
    );
    assert_eq!(words.encode(" cat\n dog ").unwrap(), [0, 1]);
    assert!(words.encode("").unwrap().is_empty());
}

#[test]
fn ids_outside_the_vocabulary_are_named() {
    for tokenizer in all_kinds() {
        let size = tokenizer.vocab_size();
        let error = tokenizer.decode(&[0, size as u32]).unwrap_err().to_string();
        assert!(
            error.contains(&format!(
                "token id {size} is outside the vocabulary of {size} ids"
            )),
            "{error}"
        );
        assert!(tokenizer.decode(&[u32::MAX]).is_err());
    }
}

#[test]
fn bytes_that_are_not_utf8_decode_lossily() {
    let bytes = Tokenizer::train(&TokenizerConfig::Bytes, &[]).unwrap();
    assert_eq!(
        bytes.decode(&[0x61, 0xff, 0xc3, 0xa9]).unwrap(),
        "a\u{fffd}é"
    );
}

#[test]
fn invalid_vocabularies_are_refused() {
    for words in [vec![], vec!["a", "a"], vec![""], vec!["a b"]] {
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        assert!(Tokenizer::words(words).is_err());
    }
    for json in [
        "",
        "{}",
        r#"{"kind": "runes"}"#,
        r#"{"kind": "bytes", "size": 256}"#,
        r#"{"kind": "chars", "chars": "ba"}"#,
        r#"{"kind": "chars", "chars": ""}"#,
        r#"{"kind": "words", "words": ["a", "a"]}"#,
        r#"{"kind": "hf", "json": "{}"}"#,
    ] {
        let error = Tokenizer::from_json(json).unwrap_err();
        assert!(
            matches!(error, DataError::Tokenizer { .. }),
            "{json}: {error}"
        );
    }
}

#[test]
fn a_tokenizer_json_is_read_as_it_was_trained() {
    let bpe = Tokenizer::train(&TokenizerConfig::Bpe { vocab_size: 300 }, &[TEXT]).unwrap();
    let Kind::Hf(hf) = bpe.kind() else {
        panic!("not hf")
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, hf.json()).unwrap();
    let file = Tokenizer::train(&TokenizerConfig::File(path.clone()), &[]).unwrap();
    assert_eq!(file.fingerprint(), bpe.fingerprint());
    assert_eq!(file.encode(TEXT).unwrap(), bpe.encode(TEXT).unwrap());

    std::fs::write(&path, "{\"version\": \"1.0\"").unwrap();
    let error = Tokenizer::train(&TokenizerConfig::File(path.clone()), &[]).unwrap_err();
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = Tokenizer::train(&TokenizerConfig::File(path), &[]).unwrap_err();
    assert!(matches!(error, DataError::NotFound { .. }));
}

#[test]
fn configs_refuse_unknown_fields() {
    let parse = serde_json::from_str::<TokenizerConfig>;
    assert_eq!(parse("\"Chars\"").unwrap(), TokenizerConfig::default());
    let bpe = parse("{\"Bpe\": {\"vocab_size\": 512}}").unwrap();
    assert_eq!(bpe, TokenizerConfig::Bpe { vocab_size: 512 });
    assert!(parse("{\"Bpe\": {\"vocab_size\": 512, \"dropout\": 0.1}}").is_err());
}

#[test]
fn bpe_vocabularies_without_all_bytes_are_refused() {
    for vocab_size in [0, 255, usize::MAX] {
        let error = Tokenizer::train(&TokenizerConfig::Bpe { vocab_size }, &[TEXT]).unwrap_err();
        assert!(matches!(error, DataError::InvalidConfig { .. }));
    }
    let bytes = Tokenizer::train(&TokenizerConfig::Bpe { vocab_size: 256 }, &[TEXT]).unwrap();
    assert_eq!(bytes.vocab_size(), 256);
    let small = Tokenizer::train(&TokenizerConfig::Bpe { vocab_size: 5000 }, &["ab"]).unwrap();
    assert_eq!(small.vocab_size(), 257);
}
