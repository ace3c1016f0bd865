//! Requests with errors.

use std::io::{Read, Write};

use residual_zoo_testing::program::{Scratch, fails, zoo as command};
use residual_zoo_testing::server::Server;
use residual_zoo_testing::{runs, zoo};
use serde_json::{Value, json};

use super::{Served, bytes, memory};

/// Returns invalid bodies, with the status and the field of the error.
fn wrong() -> Vec<(Value, u16, Option<&'static str>)> {
    let long_stop = "a".repeat(1001);
    let bad = |field: &'static str, value: Value| {
        (json!({ "prompt": "a", field: value }), 400, Some(field))
    };
    let mut all = vec![
        (json!([]), 400, None),
        (json!("text"), 400, None),
        (
            json!({ "prompt": "a", "n": 128, "max_tokens": 4096, "logprobs": 20 }),
            400,
            Some("max_tokens"),
        ),
        (
            json!({ "prompt": "a", "max_token": 4 }),
            400,
            Some("max_token"),
        ),
        (
            json!({ "prompt": "a", "messages": [] }),
            400,
            Some("messages"),
        ),
        (
            json!({ "prompt": "a", "model": "gpt-4" }),
            404,
            Some("model"),
        ),
        (
            json!({ "prompt": "a", "max_tokens": 0 }),
            400,
            Some("max_tokens"),
        ),
        (json!({ "prompt": "a".repeat(66) }), 400, Some("prompt")),
        (json!({ "prompt": vec![1; 200_000] }), 400, Some("prompt")),
        (json!({ "prompt": vec!["a"; 200] }), 400, Some("prompt")),
        (
            json!({ "prompt": vec!["a"; 100], "n": 2 }),
            400,
            Some("prompt"),
        ),
        (
            json!({ "prompt": "a", "stream_options": { "include_usage": true } }),
            400,
            Some("stream_options"),
        ),
    ];
    for prompt in [
        json!(3),
        json!({}),
        json!(true),
        json!([]),
        json!([[]]),
        json!([[], [1]]),
        json!([256]),
        json!([-1]),
        json!([1.5]),
        json!([1, "a"]),
        json!(["a", 1]),
        json!([["a"]]),
        json!([[[1]]]),
        json!([null]),
        json!([18_446_744_073_709_551_615_u64]),
    ] {
        all.push((json!({ "prompt": prompt }), 400, Some("prompt")));
    }
    for (field, values) in [
        (
            "max_tokens",
            vec![
                json!(-1),
                json!(1.5),
                json!("4"),
                json!(4097),
                json!(1e30),
                json!([]),
            ],
        ),
        (
            "temperature",
            vec![
                json!(-0.1),
                json!("hot"),
                json!(101),
                json!(1e300),
                json!({}),
            ],
        ),
        ("top_p", vec![json!(0), json!(-1), json!(1.1), json!("all")]),
        ("top_k", vec![json!(0), json!(-1), json!(0.5)]),
        ("n", vec![json!(0), json!(-1), json!(129), json!("two")]),
        ("best_of", vec![json!(2), json!(0)]),
        ("stream", vec![json!(1), json!("yes")]),
        ("stream_options", vec![json!(1), json!({ "usage": true })]),
        ("logprobs", vec![json!(-1), json!(21), json!(true)]),
        ("echo", vec![json!(1)]),
        (
            "stop",
            vec![
                json!(""),
                json!(long_stop),
                json!([""]),
                json!(1),
                json!([1]),
                json!(vec!["x"; 17]),
            ],
        ),
        ("seed", vec![json!(0.5), json!("one"), json!(1e40)]),
        ("presence_penalty", vec![json!(0.5), json!("a")]),
        ("frequency_penalty", vec![json!(-1)]),
        ("logit_bias", vec![json!({ "50256": -100 })]),
        ("suffix", vec![json!("end")]),
        ("model", vec![json!(1), json!(["model"])]),
    ] {
        all.extend(values.into_iter().map(|value| bad(field, value)));
    }
    all
}

fn assert_error(answer: &Value, field: Option<&str>, body: &Value) {
    let error = &answer["error"];
    let body = body.to_string();
    let body = body.get(..200).unwrap_or(&body);
    assert_eq!(error["param"].as_str(), field, "{body}: {answer}");
    let message = error["message"].as_str().unwrap();
    assert!(message.len() < 600 && !message.contains('\n'), "{message}");
    assert!(
        error["type"].is_string() && error["code"].is_string(),
        "{answer}"
    );
}

#[test]
fn wrong_fields_are_named() {
    let served = Served::gpt2();
    for (body, expected, field) in wrong() {
        let (status, answer) = served.server.ask(&body);
        let size = body.to_string().len();
        assert_eq!(
            status,
            if size > 1 << 20 { 413 } else { expected },
            "{answer}"
        );
        assert_error(&answer, field, &body);
    }
    // An error shows only the beginning of a name.
    let (status, answer) = served.server.ask(&json!({ "x".repeat(500_000): 1 }));
    assert_eq!(status, 400);
    assert!(answer.to_string().len() < 2000);
    served.server.complete(&json!({ "prompt": "a" }));
}

#[test]
fn neutral_values_of_what_is_not_supported_are_taken() {
    let served = Served::gpt2();
    served.server.complete(&json!({
        "prompt": "a", "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "suffix": null, "user": "me",
        "best_of": 1, "n": 1, "stream_options": null, "stop": [], "logprobs": null, "temperature": 1,
    }));
}

#[test]
fn what_is_no_request_is_refused() {
    let served = Served::gpt2();
    let json = "Content-Type: application/json\r\n";
    let send = |method, path, headers: &str, body: &[u8]| {
        let (status, head, body) = served.server.send(method, path, headers, body);
        let answer: Value = serde_json::from_slice(&body).unwrap_or_else(|_| panic!("{head}"));
        assert_error(&answer, None, &Value::Null);
        (status, answer["error"]["code"].as_str().unwrap().to_owned())
    };
    let code = |status: u16, code: &str| (status, code.to_owned());
    let path = "/v1/completions";
    for body in [
        &b""[..],
        b"{",
        b"{\"prompt\": \"a",
        b"{} {}",
        b"\xff\xfe",
        b"{\"prompt\": \"\xc3\"}",
        b"NaN",
        b"{\"prompt\": \"a\", \"prompt\": \"b\"}",
        &b"[".repeat(100_000),
    ] {
        assert_eq!(send("POST", path, json, body), code(400, "invalid_json"));
    }
    assert_eq!(
        send("POST", path, "", b"{}"),
        code(415, "unsupported_media_type")
    );
    assert_eq!(
        send("POST", path, "Content-Type: text/plain\r\n", b"{}"),
        code(415, "unsupported_media_type")
    );
    assert_eq!(
        send("POST", path, json, &vec![b' '; (1 << 20) + 1]),
        code(413, "too_large")
    );
    assert_eq!(send("GET", path, "", b""), code(405, "method_not_allowed"));
    assert_eq!(
        send("DELETE", "/v1/models", "", b""),
        code(405, "method_not_allowed")
    );
    for path in [
        "/v1/chat/completions",
        "/v1",
        "/../etc/passwd",
        "/v1/models/other/x",
    ] {
        assert_eq!(send("POST", path, json, b"{}"), code(404, "not_found"));
    }
    assert_eq!(
        send("GET", "/v1/models/other", "", b""),
        code(404, "model_not_found")
    );
    served.server.complete(&json!({ "prompt": "a" }));
}

#[test]
fn a_key_is_asked_for() {
    let scratch = Scratch::new();
    let key = scratch.file("key", "sesame-123\nmore\n");
    let served = Served::new(&zoo::gpt2(), &bytes(), &["--key", key.to_str().unwrap()]);
    let status = |headers: &str| served.server.send("GET", "/v1/models", headers, b"").0;
    assert_eq!(status("Authorization: Bearer sesame-123\r\n"), 200);
    assert_eq!(status("Authorization: bearer sesame-123\r\n"), 200);
    for wrong in [
        "",
        "Authorization: Bearer sesame\r\n",
        "Authorization: Basic sesame-123\r\n",
        "Authorization: sesame-123\r\n",
    ] {
        assert_eq!(status(wrong), 401, "{wrong}");
    }
    assert_eq!(served.server.ask(&json!({ "prompt": "a" })).0, 401);
    // The page is served without the key, and asks for it. A server with a key answers under any host name.
    assert_eq!(served.server.send("GET", "/", "", b"").0, 200);
    let answer = served
        .server
        .raw(b"GET /health HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}

#[test]
fn a_model_that_gives_no_numbers_is_reported() {
    let scratch = Scratch::new();
    let run = scratch.path("model");
    runs::untrained(&zoo::gpt2(), &bytes(), &run);
    runs::ruin(&run, 0);
    let server = Server::start(&run, &[]);
    for body in [
        json!({ "prompt": "a" }),
        json!({ "prompt": "a", "echo": true, "logprobs": 1, "max_tokens": 0 }),
    ] {
        let (status, answer) = server.ask(&body);
        assert_eq!(
            (status, answer["error"]["code"].as_str()),
            (500, Some("not_finite")),
            "{answer}"
        );
    }
    let events = server.stream(&json!({ "prompt": "a", "stream": true }));
    assert!(
        events.len() == 1 && events[0].contains("not_finite"),
        "{events:?}"
    );
}

#[test]
fn what_cannot_be_served_is_refused_at_the_start() {
    let served = Served::gpt2();
    let port = served.server.port.to_string();
    let serve = |arguments: &[&str]| {
        let mut serve = command("serve");
        serve.arg(&served.run).args(arguments);
        serve
    };
    fails(
        &mut serve(&["--port", &port]),
        2,
        &["cannot listen on 127.0.0.1:", "--port"],
    );
    fails(
        &mut serve(&["--host", "192.0.2.1", "--port", "0"]),
        2,
        &["cannot listen on 192.0.2.1:0"],
    );
    let scratch = Scratch::new();
    for (name, content) in [
        ("empty", ""),
        ("spaces", "two words\n"),
        ("blank", "\nkey\n"),
    ] {
        let key = scratch.file(name, content);
        fails(
            &mut serve(&["--port", "0", "--key", key.to_str().unwrap()]),
            2,
            &[name, "key in its first line"],
        );
    }
    // A key of a gigabyte is not read.
    let sparse = scratch.path("sparse");
    std::fs::File::create(&sparse)
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    fails(
        &mut serve(&["--port", "0", "--key", sparse.to_str().unwrap()]),
        2,
        &["key in its first line"],
    );
    for name in ["", "a\nserving evil"] {
        fails(&mut serve(&["--port", "0", "--name", name]), 2, &["`name`"]);
    }
    fails(command("serve").arg(scratch.path("none")), 2, &["none"]);
}

#[test]
fn memory_after_ten_thousand_bad_requests_is_as_before() {
    let served = Served::gpt2();
    let wrong: Vec<String> = wrong()
        .into_iter()
        .map(|(body, ..)| body.to_string())
        .filter(|body| body.len() < 4000)
        .collect();
    let mut refused = 0;
    let mut send = |count: usize| {
        let mut stream = served.server.connect();
        for (i, body) in wrong.iter().cycle().take(count).enumerate() {
            let length = body.len();
            let head = format!(
                "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            // Every tenth client sends half and hangs up.
            if i % 10 == 9 {
                stream
                    .write_all(&head.as_bytes()[..head.len() / 2])
                    .unwrap();
                stream = served.server.connect();
                continue;
            }
            stream.write_all(head.as_bytes()).unwrap();
            let mut answer = [0; 4096];
            let count = stream.read(&mut answer).unwrap();
            assert!(answer[..count].starts_with(b"HTTP/1.1 4"), "{body}");
            refused += 1;
        }
    };
    send(1000);
    let before = memory(served.server.id());
    send(10_000);
    let after = memory(served.server.id());
    assert_eq!(refused, 9900);
    println!("{} KiB before, {} KiB after", before, after);
    assert!(
        after < before + (8 << 10),
        "{before} KiB before, {after} KiB after"
    );
    served.server.complete(&json!({ "prompt": "a" }));
}
