//! Tests the server's answers.

use burn::backend::Flex;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor, TensorData};
use residual_zoo::core::LanguageModel;
use residual_zoo::runs::generate::Sampling;
use residual_zoo_testing::zoo;
use serde_json::{Value, json};

use super::{Served, bytes, tokenizer};

const GREEDY: Sampling = Sampling {
    temperature: 0.0,
    top_k: None,
    top_p: None,
    seed: 0,
};

fn texts(answer: &Value) -> Vec<String> {
    let choices = answer["choices"].as_array().unwrap().iter();
    choices
        .map(|choice| choice["text"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn completions_of_every_model_are_those_of_generate() {
    let prompts = [
        "the cat",
        "a",
        "the dog sat on the mat and",
        "on",
        "the cat",
    ];
    // During generation, the text outgrows the context, so the model continues from the newest half of the context.
    let tokens = 90;
    for (name, model) in [zoo::architectures(), zoo::compositions(), zoo::loops()].concat() {
        let served = Served::new(&model, &tokenizer(), &["--batch", "4"]);
        let run = served.opened();
        let built = run.model::<Flex>(&Default::default()).unwrap();
        let answer = served.server.complete(
            &json!({ "prompt": prompts, "max_tokens": tokens, "temperature": 0, "echo": true }),
        );
        for (prompt, found) in prompts.iter().zip(texts(&answer)) {
            let expected = run
                .generate::<Flex>(&built, Some(prompt), tokens, GREEDY)
                .unwrap();
            let expected = expected.split("<|endoftext|>").next().unwrap().to_owned();
            assert_eq!(found, expected, "{name}");
        }
    }
}

#[test]
fn one_request_at_a_time_and_many_at_once_get_the_same() {
    let served = Served::gpt2();
    let ask = |i: usize| {
        let prompt = "many words make a long prompt"
            .split_at(i % 25 + 1)
            .0
            .to_owned();
        let body =
            json!({ "prompt": prompt, "max_tokens": i % 40 + 1, "seed": i, "temperature": 0.7 });
        let answer = served.server.complete(&body);
        assert_eq!(answer["usage"]["completion_tokens"], i % 40 + 1);
        texts(&answer)
    };
    let alone: Vec<_> = (0..64).map(ask).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..64).map(|i| scope.spawn(move || ask(i))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    // Sums in another order can change which token is drawn, so a few texts may differ.
    let equal = alone.iter().zip(&together).filter(|(a, b)| a == b).count();
    assert!(equal >= 60, "{equal} of 64 are equal");
}

#[test]
fn log_probabilities_are_those_of_the_whole_sequence() {
    for (name, model) in [zoo::architectures(), zoo::compositions(), zoo::loops()].concat() {
        let served = Served::new(&model, &tokenizer(), &[]);
        let run = served.opened();
        let built = run.model::<Flex>(&Default::default()).unwrap();
        let ids = run.tokenizer.encode("the cat sat on the mat").unwrap();
        let answer = served.server.complete(&json!({
            "prompt": [ids, ids[..3]], "max_tokens": 5, "echo": true, "logprobs": 3, "seed": 2,
        }));
        for choice in answer["choices"].as_array().unwrap() {
            let scored = &choice["logprobs"];
            let tokens: Vec<&str> = scored["tokens"]
                .as_array()
                .unwrap()
                .iter()
                .map(|token| token.as_str().unwrap())
                .collect();
            let text = choice["text"].as_str().unwrap();
            // Tokens that are parts of characters have no text of their own.
            if tokens.iter().all(|token| !token.starts_with("token_id:")) {
                assert_eq!(tokens.concat(), text);
                let mut at = 0;
                for (token, offset) in tokens.iter().zip(scored["text_offset"].as_array().unwrap())
                {
                    assert_eq!(offset.as_u64(), Some(at));
                    at += token.chars().count() as u64;
                }
            }
            let id = |token: &&str| match token.strip_prefix("token_id:") {
                Some(id) => id.parse().unwrap(),
                None => run.tokenizer.encode(token).unwrap()[0] as i32,
            };
            let ids: Vec<i32> = tokens.iter().map(id).collect();
            assert!(scored["token_logprobs"][0].is_null() && scored["top_logprobs"][0].is_null());
            for at in 1..ids.len() {
                // The prompt is read as a whole, and then each appended token.
                let prompt = ids.len() - 5;
                let read = if at < prompt { prompt } else { at };
                let data = TensorData::new(ids[..read].to_vec(), [1, read]);
                let logits =
                    built.forward(Tensor::<Flex, 2, Int>::from_data(data, &Default::default()));
                let row = log_softmax(logits, 2).narrow(1, at - 1, 1);
                let row: Vec<f64> = row.into_data().iter::<f64>().collect();
                let found = scored["token_logprobs"][at].as_f64().unwrap();
                assert!(
                    (found - row[ids[at] as usize]).abs() < 1e-4,
                    "{name}, token {at}"
                );
                let top = scored["top_logprobs"][at].as_object().unwrap();
                let best = top
                    .values()
                    .map(|value| value.as_f64().unwrap())
                    .fold(f64::MIN, f64::max);
                let expected = row.iter().copied().fold(f64::MIN, f64::max);
                assert!(
                    (best - expected).abs() < 1e-4 && (3..=4).contains(&top.len()),
                    "{name}: {top:?}"
                );
                assert!(top.values().any(|value| value.as_f64() == Some(found)));
            }
        }
    }
}

#[test]
fn a_stream_has_the_text_of_a_whole_answer() {
    let served = Served::new(&zoo::rmt(), &tokenizer(), &[]);
    let mut body = json!({
        "prompt": ["the cat", "a dog"], "max_tokens": 40, "n": 2, "seed": 5, "echo": true, "logprobs": 1,
        "stop": ["zz", "the mat"],
    });
    let whole = served.server.complete(&body);
    body["stream"] = true.into();
    body["stream_options"] = json!({ "include_usage": true });
    let mut events = served.server.stream(&body);
    assert_eq!(events.pop().unwrap(), "[DONE]");
    let usage: Value = serde_json::from_str(&events.pop().unwrap()).unwrap();
    assert_eq!(usage["usage"], whole["usage"]);
    let mut texts = vec![String::new(); 4];
    let mut tokens = vec![Vec::new(); 4];
    let mut ends = vec![Value::Null; 4];
    for event in &events {
        let piece: Value = serde_json::from_str(event).unwrap();
        assert_eq!(
            (&piece["model"], &piece["object"]),
            (&whole["model"], &whole["object"])
        );
        let choice = &piece["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        texts[index] += choice["text"].as_str().unwrap();
        tokens[index].extend(choice["logprobs"]["tokens"].as_array().unwrap().clone());
        assert!(ends[index].is_null(), "a piece after the end");
        ends[index] = choice["finish_reason"].clone();
    }
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!(choice["text"], texts[index]);
        assert_eq!(
            choice["logprobs"]["tokens"],
            Value::from(tokens[index].clone())
        );
        assert_eq!(choice["finish_reason"], ends[index]);
    }
    // Different choices draw different numbers.
    assert_ne!(texts[0], texts[1]);
    assert!(events.len() > 20, "{} pieces", events.len());
}

#[test]
fn a_stop_ends_the_text_before_it() {
    let served = Served::gpt2();
    let greedy = |stop: Value| {
        let body = json!({ "prompt": "abc", "max_tokens": 40, "temperature": 0, "stop": stop });
        let answer = served.server.complete(&body);
        let choice = &answer["choices"][0];
        let text = choice["text"].as_str().unwrap().to_owned();
        (
            text,
            choice["finish_reason"].as_str().unwrap().to_owned(),
            answer["usage"]["completion_tokens"].clone(),
        )
    };
    let (text, finish, tokens) = greedy(Value::Null);
    assert_eq!((finish.as_str(), tokens), ("length", json!(40)));
    // The stop sequences are two adjacent characters of the text, and a character that does not occur in it.
    let chars: Vec<char> = text.chars().collect();
    let stop: String = chars[10..12].iter().collect();
    let at = text.find(&stop).unwrap();
    let (cut, finish, tokens) = greedy(json!(["\u{1}never", stop]));
    assert_eq!((cut.as_str(), finish.as_str()), (&text[..at], "stop"));
    assert!(tokens.as_u64().unwrap() < 40);
    // Text that could have begun a stop sequence is sent at the end.
    let last: String = chars[chars.len() - 1..].iter().collect();
    assert_eq!(greedy(json!(format!("{last}\u{1}never"))).0, text);
}

#[test]
fn a_prompt_that_ends_within_a_character_is_echoed_whole() {
    let served = Served::gpt2();
    // The bytes are part of a character of three bytes, part of a character of four bytes, and a byte that no character
    // has.
    for (prompt, text, starts) in [
        (vec![97, 230, 151], "a\u{fffd}", vec![0, 1, 1]),
        (
            vec![97, 240, 159, 152, 97],
            "a\u{fffd}a",
            vec![0, 1, 1, 1, 2],
        ),
        (vec![230, 151, 165, 230], "日\u{fffd}", vec![0, 0, 0, 1]),
        (vec![255], "\u{fffd}", vec![0]),
        (vec![97, 98], "ab", vec![0, 1]),
    ] {
        for logprobs in [Value::Null, json!(0), json!(2)] {
            for stream in [false, true] {
                let body = json!({
                    "prompt": prompt, "max_tokens": 0, "echo": true, "logprobs": logprobs, "n": 2, "stop": "\u{fffd}",
                    "stream": stream,
                });
                let choices: Vec<Value> = match stream {
                    false => vec![served.server.complete(&body)],
                    true => {
                        let mut events = served.server.stream(&body);
                        assert_eq!(events.pop().unwrap(), "[DONE]");
                        let parsed = events
                            .iter()
                            .map(|event| serde_json::from_str(event).unwrap());
                        parsed.collect()
                    }
                };
                let choices = choices
                    .iter()
                    .flat_map(|answer| answer["choices"].as_array().unwrap());
                let choices: Vec<&Value> = choices.collect();
                assert_eq!(choices.len(), 2);
                for choice in choices {
                    assert_eq!(choice["text"], text, "{prompt:?}");
                    assert_eq!(choice["finish_reason"], "length");
                    let found = &choice["logprobs"]["text_offset"];
                    let expected = if logprobs.is_null() {
                        Value::Null
                    } else {
                        json!(starts)
                    };
                    assert_eq!(*found, expected, "{prompt:?}");
                }
            }
        }
    }
}

#[test]
fn choices_stop_each_for_itself() {
    let served = Served::gpt2();
    let prompts: Vec<String> = ('a'..='p').map(String::from).collect();
    let ask = |stop: Value| {
        let body = json!({
            "prompt": prompts, "max_tokens": 60, "temperature": 0, "stop": stop, "n": 2, "logprobs": 0,
        });
        served.server.complete(&body)
    };
    let free = ask(Value::Null);
    let texts = texts(&free);
    // Chooses a character that many texts have, but not all.
    let count = |stop: char| texts.iter().filter(|text| text.contains(stop)).count();
    let stop = texts.concat().chars().max_by_key(|c| match count(*c) {
        count if count < texts.len() => count,
        _ => 0,
    });
    let stop = stop.unwrap();
    let stopped = ask(json!(stop.to_string()));
    let (mut tokens, mut stops) = (0, 0);
    for (text, choice) in texts.iter().zip(stopped["choices"].as_array().unwrap()) {
        let (expected, finish) = match text.split_once(stop) {
            Some((before, _)) => (before, "stop"),
            None => (text.as_str(), "length"),
        };
        assert_eq!(
            (choice["text"].as_str(), choice["finish_reason"].as_str()),
            (Some(expected), Some(finish))
        );
        let scored = &choice["logprobs"];
        for (token, start) in scored["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .zip(scored["text_offset"].as_array().unwrap())
        {
            assert!(
                start.as_u64().unwrap() < expected.chars().count() as u64,
                "{token}"
            );
        }
        stops += usize::from(finish == "stop");
        tokens += if finish == "stop" { 0 } else { 60 };
    }
    assert!(
        stops >= 2 && stops < texts.len(),
        "{stops} of {}",
        texts.len()
    );
    // Tokens after a stop are not counted.
    let counted = stopped["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(counted > tokens as u64 && counted < 60 * texts.len() as u64);
}

#[test]
fn settings_of_a_request_are_respected() {
    let served = Served::gpt2();
    let text = |body: Value| texts(&served.server.complete(&body));
    let seeded = |seed: i64| text(json!({ "prompt": "abc", "max_tokens": 20, "seed": seed }));
    assert_eq!(seeded(-3), seeded(-3));
    assert_ne!(seeded(1), seeded(2));
    // No two choices draw the same numbers, whatever their seed is.
    let all = (0..12)
        .flat_map(|seed| text(json!({ "prompt": "abc", "max_tokens": 20, "seed": seed, "n": 8 })));
    let all: std::collections::BTreeSet<String> = all.collect();
    assert_eq!(all.len(), 12 * 8);
    let free = || text(json!({ "prompt": "abc", "max_tokens": 20 }));
    assert_ne!(free(), free());
    let greedy = text(json!({ "prompt": "abc", "max_tokens": 20, "temperature": 0 }));
    for narrow in ["top_p", "top_k"] {
        let value = if narrow == "top_k" {
            json!(1)
        } else {
            json!(1e-9)
        };
        assert_eq!(
            text(json!({ "prompt": "abc", "max_tokens": 20, narrow: value })),
            greedy
        );
    }
    // The prompt is given as text, as ids, and without the name of the model.
    let ids = bytes().encode("abc").unwrap();
    let body = json!({ "model": "model", "prompt": ids, "max_tokens": 20, "temperature": 0 });
    assert_eq!(text(body), greedy);
    // Without new tokens, the answer is the prompt, which may be empty.
    assert_eq!(
        text(json!({ "prompt": "abc", "max_tokens": 0, "echo": true })),
        ["abc"]
    );
    assert_eq!(text(json!({ "max_tokens": 0, "echo": true })), [""]);
    let answer = served
        .server
        .complete(&json!({ "prompt": "", "echo": true, "logprobs": 0 }));
    assert_eq!(
        answer["choices"][0]["logprobs"]["tokens"]
            .as_array()
            .unwrap()
            .len(),
        16
    );
    assert_eq!(
        answer["usage"],
        json!({ "prompt_tokens": 0, "completion_tokens": 16, "total_tokens": 16 })
    );
}

#[test]
fn the_model_and_the_page_are_shown() {
    let served = Served::gpt2();
    let get = |path: &str| served.server.send("GET", path, "", b"");
    let (status, _, body) = get("/v1/models");
    let models: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (
            status,
            &models["data"][0]["id"],
            &models["data"][0]["max_model_len"]
        ),
        (200, &json!("model"), &json!(64))
    );
    assert_eq!(get("/v1/models/model").0, 200);
    assert_eq!(get("/health").0, 200);
    let (status, head, body) = get("/");
    assert!(status == 200 && head.contains("content-security-policy"));
    assert!(String::from_utf8(body).unwrap().contains("</html>"));
}

#[test]
#[ignore = "needs Python with openai"]
fn the_package_of_openai_completes_and_streams() {
    let served = Served::new(&zoo::gpt2(), &tokenizer(), &[]);
    let python = std::env::var("RESIDUAL_ZOO_PYTHON").unwrap_or("python3".into());
    let mut client = std::process::Command::new(python);
    client.arg(residual_zoo_testing::root().join("tests/serve/with_openai.py"));
    client.arg(format!("http://127.0.0.1:{}/v1", served.server.port));
    println!("{}", residual_zoo_testing::program::ok(&mut client));
}
