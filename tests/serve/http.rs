//! Requests as raw bytes: their framing, the host that they name, and the form of errors.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::Served;

/// Returns the status and the error code of an answer whose body must be an error in OpenAI's form.
fn error_of(answer: &[u8]) -> (u16, String) {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no head: {text:?}"));
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let head = head.to_ascii_lowercase();
    assert!(head.contains("content-type: application/json"), "{head}");
    assert!(
        head.contains(&format!("content-length: {}", body.len())),
        "{head}"
    );
    let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("no JSON: {text:?}"));
    let error = body["error"].as_object().unwrap();
    let mut names: Vec<&String> = error.keys().collect();
    names.sort();
    assert_eq!(names, ["code", "message", "param", "type"]);
    (status.unwrap(), error["code"].as_str().unwrap().to_owned())
}

#[test]
fn every_error_has_the_form_of_openai() {
    let served = Served::gpt2();
    let host = "Host: localhost\r\nConnection: close\r\n";
    let json = "Content-Type: application/json\r\n";
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\n{host}\r\n").into_bytes();
    let long = |length: usize| "a".repeat(length);
    let post =
        |more: &str| format!("POST /v1/completions HTTP/1.1\r\n{host}{json}{more}").into_bytes();
    let many: String = (0..200).map(|i| format!("X-{i}: 1\r\n")).collect();
    for (request, status, code) in [
        (get("/v1/models/%ff"), 404, "model_not_found"),
        (get("/v1/models/%"), 404, "model_not_found"),
        (get("/v1/models/%00"), 404, "model_not_found"),
        (get("/v1/models/"), 404, "not_found"),
        (get("/%ff"), 404, "not_found"),
        (get("//"), 404, "not_found"),
        (
            b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".into(),
            404,
            "not_found",
        ),
        (
            format!("OPTIONS /v1/models HTTP/1.1\r\n{host}\r\n").into(),
            405,
            "method_not_allowed",
        ),
        (
            format!("TRACE /v1/completions HTTP/1.1\r\n{host}\r\n").into(),
            405,
            "method_not_allowed",
        ),
        // hyper itself answers these requests.
        (b"\x16\x03\x01\x02\x00".into(), 400, "bad_request"),
        (b"hello\r\n\r\n".into(), 400, "bad_request"),
        (b"POST / HTTP/9.9\r\n\r\n".into(), 400, "bad_request"),
        (
            b"GET / HTTP/1.1\r\nno colon\r\n\r\n".into(),
            400,
            "bad_request",
        ),
        (
            b"GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n".into(),
            400,
            "bad_request",
        ),
        (post("Content-Length: -1\r\n\r\n"), 400, "bad_request"),
        (
            post("Content-Length: 5\r\nContent-Length: 6\r\n\r\n"),
            400,
            "bad_request",
        ),
        (
            format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", long(1 << 20)).into(),
            431,
            "head_too_large",
        ),
        (
            format!("GET / HTTP/1.1\r\n{many}\r\n").into(),
            431,
            "head_too_large",
        ),
        (
            format!("GET /{} HTTP/1.1\r\n\r\n", long(65_535)).into(),
            431,
            "head_too_large",
        ),
        // These requests have a broken body.
        (
            post("Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
            400,
            "incomplete",
        ),
        (
            post("Transfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh\r\n"),
            400,
            "incomplete",
        ),
        (
            post("Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"),
            400,
            "incomplete",
        ),
    ] {
        let answer = served.server.raw(&request);
        let shown = String::from_utf8_lossy(&request[..request.len().min(90)]).into_owned();
        println!(
            "{shown:?}: {}",
            String::from_utf8_lossy(&answer[..answer.len().min(200)])
        );
        assert_eq!(error_of(&answer), (status, code.to_owned()), "{shown:?}");
    }
    // An error can follow a good answer on the same connection.
    let answer = served
        .server
        .raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nbad\r\n\r\n");
    let text = String::from_utf8_lossy(&answer);
    let (good, bad) = text.split_once("ok\n").unwrap();
    assert!(good.starts_with("HTTP/1.1 200"));
    assert_eq!(error_of(bad.as_bytes()), (400, "bad_request".into()));
    served.server.complete(&json!({ "prompt": "a" }));
}

#[test]
fn other_protocols_are_answered() {
    let served = Served::gpt2();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // An HTTP/2 client sends a SETTINGS frame after its preface.
    let settings = [
        &preface[..],
        &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100],
    ]
    .concat();
    // The first message of TLS is what a browser sends to `https://`.
    let mut hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec();
    hello.extend((0..506).map(|i| (i * 7 % 256) as u8));
    for (start, status, code) in [
        (&preface[..], 505, "http_version"),
        (&settings, 505, "http_version"),
        (&preface[..18], 400, "bad_request"),
        (
            b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n",
            400,
            "bad_request",
        ),
        (
            b"GET / HTTP/3\r\nHost: localhost\r\n\r\n",
            400,
            "bad_request",
        ),
        (b"GET / HTTP/0.9\r\n\r\n", 400, "bad_request"),
        (b"GET /\r\n", 400, "bad_request"),
        (b"GET /\n", 400, "bad_request"),
        (&hello, 400, "bad_request"),
        (b"\x80\x2e\x01\x03\x01\x00\x15", 400, "bad_request"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", 400, "bad_request"),
        (b"EHLO example.com\r\n", 400, "bad_request"),
        (b"*1\r\n$4\r\nPING\r\n", 400, "bad_request"),
        (
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
            400,
            "bad_request",
        ),
        (b"\x05\x01\x00", 400, "bad_request"),
        (b"\xef\xbb\xbfGET / HTTP/1.1\r\n\r\n", 400, "bad_request"),
        (b"\0\0\0\x08\x04\xd2\x16\x2f", 400, "bad_request"),
    ] {
        let shown = String::from_utf8_lossy(&start[..start.len().min(40)]).into_owned();
        println!("{shown:?}");
        let answer = served.server.raw(start);
        assert_eq!(error_of(&answer), (status, code.to_owned()), "{shown:?}");
        // The start of another protocol can also follow a good answer.
        let good = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let answer = served.server.raw(&[good, start].concat());
        let at = answer
            .windows(3)
            .position(|three| three == b"ok\n")
            .unwrap();
        assert_eq!(
            error_of(&answer[at + 3..]),
            (status, code.to_owned()),
            "{shown:?}"
        );
    }
    // HTTP/1.0 is supported.
    let answer = served
        .server
        .raw(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n");
    let text = String::from_utf8_lossy(&answer);
    assert!(
        text.starts_with("HTTP/1.0 200") && text.ends_with("ok\n"),
        "{text}"
    );
}

#[test]
fn a_head_is_as_large_as_the_message_says() {
    let served = Served::gpt2();
    let start = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let sized = |size: usize| {
        let rest = size - start.len() - "X: \r\n\r\n".len();
        format!("{start}X: {}\r\n\r\n", "a".repeat(rest))
    };
    let fields = |count: usize| {
        let more: String = (2..count).map(|i| format!("X-{i}: 1\r\n")).collect();
        format!("{start}{more}\r\n")
    };
    let address = |size: usize| {
        let rest = size - start.len() - "?\r\n".len();
        start.replace("health", &format!("health?{}", "a".repeat(rest))) + "\r\n"
    };
    for (head, is_taken) in [
        (sized(65_536), true),
        (sized(65_537), false),
        (sized(100_000), false),
        (sized(300_000), false),
        (address(65_536), true),
        (address(65_537), false),
        (fields(100), true),
        (fields(101), false),
    ] {
        let size = head.len();
        // The body is sent all at once, and in parts.
        for part in [size, 10_000] {
            let mut client = served.server.connect();
            for part in head.as_bytes().chunks(part) {
                // The server may have refused the earlier parts.
                let _ = client.write_all(part);
                std::thread::sleep(Duration::from_millis(2));
            }
            let mut answer = Vec::new();
            let _ = client.read_to_end(&mut answer);
            match is_taken {
                true => assert!(answer.starts_with(b"HTTP/1.1 200"), "{size} bytes"),
                false => assert_eq!(
                    error_of(&answer),
                    (431, "head_too_large".into()),
                    "{size} bytes"
                ),
            }
        }
    }
}

#[test]
fn bodies_in_any_frame_are_read() {
    let served = Served::gpt2();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n";
    let body = "{\"prompt\":\"a\"}";
    let chunks: String = body
        .chars()
        .map(|c| format!("1;name=\"a b\";x\r\n{c}\r\n"))
        .collect();
    for request in [
        // Chunks may have extensions, and header fields may follow the last chunk.
        format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\nX-After: 1\r\n\r\n"),
        format!(
            "{head}Expect: 100-continue\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ),
        format!(
            "{head}Content-Length: {}\r\n\r\n{body}GET /never HTTP/1.1\r\n\r\n",
            body.len()
        ),
        format!(
            "{}Content-Length: {}\r\n\r\n{body}",
            head.replace("json", "json; charset=utf-8"),
            body.len()
        ),
    ] {
        let answer = String::from_utf8(served.server.raw(request.as_bytes())).unwrap();
        let answer = answer.trim_start_matches("HTTP/1.1 100 Continue\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200"), "{request}: {answer}");
        assert!(!answer.contains("never"), "{answer}");
    }
    // The server answers many pipelined requests in order.
    let many = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200);
    let last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let answer = served.server.raw(&[many.as_slice(), last].concat());
    let text = String::from_utf8(answer).unwrap();
    assert_eq!(text.matches("HTTP/1.1 200").count(), 201);
}

#[test]
fn without_a_key_other_names_are_refused() {
    let served = Served::gpt2();
    let status = |request: Vec<u8>| {
        let answer = served.server.raw(&request);
        let text = String::from_utf8_lossy(&answer).into_owned();
        if text.starts_with("HTTP/1.1 403") {
            assert_eq!(error_of(&answer), (403, "wrong_host".into()));
        }
        text.get(9..12)
            .unwrap_or_else(|| panic!("{text:?}"))
            .to_owned()
    };
    let with = |line: &str, hosts: &[&[u8]]| {
        let hosts = hosts
            .iter()
            .map(|host| [b"Host: ", *host, b"\r\n"].concat());
        let hosts: Vec<u8> = hosts.flatten().collect();
        status(
            [
                line.as_bytes(),
                b"\r\nConnection: close\r\n",
                &hosts,
                b"\r\n",
            ]
            .concat(),
        )
    };
    let get = "GET /v1/models HTTP/1.1";
    for host in [
        "localhost",
        "localhost:1",
        "LOCALHOST:8000",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:8000",
        "127.1.2.3",
        "[::1]",
        "[::1]:8000",
    ] {
        assert_eq!(with(get, &[host.as_bytes()]), "200", "{host}");
    }
    for host in [
        &b"example.com"[..],
        b"example.com:80",
        b"",
        b"\xc3\xa9vil.com",
        b"localhost\xff",
        b"127.0.0.1@evil.com",
        b"evil.com@127.0.0.1",
        b"localhost:8000@evil.com",
        b"localhost.evil.com",
        b"localhost, evil.com",
        b"[::1",
        b"::1",
        b"[::1].evil.com",
        b"0.0.0.0",
        b"127.0.0.1.evil.com",
    ] {
        assert_eq!(
            with(get, &[host]),
            "403",
            "{}",
            String::from_utf8_lossy(host)
        );
    }
    // A request must name exactly one host.
    assert_eq!(with(get, &[]), "403");
    assert_eq!(with("GET /v1/models HTTP/1.0", &[]), "403");
    assert_eq!(with("GET /v1/models HTTP/1.0", &[b"localhost"]), "200");
    assert_eq!(with(get, &[b"localhost", b"localhost"]), "403");
    assert_eq!(with(get, &[b"localhost", b"evil.com"]), "403");
    assert_eq!(with(get, &[b"evil.com", b"localhost"]), "403");
    // A whole URI names a host too.
    for (uri, expected) in [
        ("http://localhost/v1/models", "200"),
        ("HTTP://LOCALHOST:80/v1/models", "200"),
        ("http://[::1]/v1/models", "200"),
        ("http://evil.com/v1/models", "403"),
        ("http://evil.com:80@localhost/v1/models", "403"),
        ("http://localhost@evil.com/v1/models", "403"),
        ("http://user@localhost/v1/models", "403"),
        ("https://evil.com/v1/models", "403"),
    ] {
        assert_eq!(
            with(&format!("GET {uri} HTTP/1.1"), &[b"127.0.0.1"]),
            expected,
            "{uri}"
        );
    }
    assert_eq!(
        with("GET http://localhost/v1/models HTTP/1.1", &[b"evil.com"]),
        "403"
    );
    assert_eq!(with("CONNECT evil.com:80 HTTP/1.1", &[b"localhost"]), "403");
}
