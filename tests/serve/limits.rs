//! Tests many clients, slow clients, and clients that disconnect.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use burn::backend::Flex;
use residual_zoo::core::ModelConfig as _;
use residual_zoo::serve::{Bound, Options, serve};
use residual_zoo::{ModelConfig, Run};
use residual_zoo_testing::program::Scratch;
use residual_zoo_testing::{runs, zoo};
use serde_json::json;

use super::{Served, bytes, memory};

fn request(body: &serde_json::Value) -> Vec<u8> {
    let body = body.to_string();
    format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[test]
fn of_many_clients_none_is_lost() {
    let served = Served::gpt2();
    let done: usize = std::thread::scope(|scope| {
        let client = |client: usize| {
            let server = &served.server;
            scope.spawn(move || {
                let prompt = &"a prompt of some length"[..client % 20 + 1];
                let body = json!({ "prompt": prompt, "max_tokens": 32, "temperature": 0.9, "seed": client });
                let right = |_: &usize| server.complete(&body)["usage"]["completion_tokens"] == 32;
                (0..6).filter(right).count()
            })
        };
        let clients: Vec<_> = (0..64).map(client).collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum()
    });
    assert_eq!(done, 64 * 6);
}

#[test]
fn more_than_the_queue_holds_are_told_to_come_again() {
    let served = Served::new(&zoo::gpt2(), &bytes(), &["--queue", "20", "--batch", "4"]);
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let ask = || {
            let (status, answer) = served
                .server
                .ask(&json!({ "prompt": "a", "max_tokens": 400 }));
            if status == 429 {
                assert_eq!(answer["error"]["code"], "queue_full");
            }
            status
        };
        let clients: Vec<_> = (0..200).map(|_| scope.spawn(ask)).collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .collect()
    });
    let count = |status| statuses.iter().filter(|found| **found == status).count();
    assert_eq!(count(200) + count(429), 200, "{statuses:?}");
    assert!(
        count(200) >= 20 && count(429) > 0,
        "{} answered",
        count(200)
    );
    // Afterwards, all places are free again.
    served.server.complete(&json!({ "prompt": vec!["a"; 10] }));
    let both = || {
        served
            .server
            .complete(&json!({ "prompt": vec!["a"; 10], "max_tokens": 100 }))
    };
    std::thread::scope(|scope| {
        [(); 2]
            .map(|()| scope.spawn(both))
            .map(|one| one.join().unwrap())
    });
}

/// The longest wait for an event that happens on any machine if the server is correct.
const LONG: Duration = Duration::from_secs(600);

/// The number of tokens of a request that would take longer than any test.
const ENDLESS: usize = 200_000;

/// Waits until `is_done` returns true, for half as long as an endless request would take. Meanwhile, the server
/// generates tokens, and their number measures the time.
fn wait(served: &Served, problem: &str, mut is_done: impl FnMut() -> bool) {
    let begin = Instant::now();
    let tick = json!({ "prompt": "a", "max_tokens": ENDLESS / 200 });
    let mut ticks = 0;
    while !is_done() {
        assert!(ticks < 100 && begin.elapsed() < LONG, "{problem}");
        match served.server.ask(&tick).0 {
            200 => ticks += 1,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Waits until two requests, each for half of the queue of 8, are answered at the same time.
fn all_places_are_free(served: &Served) {
    both_fit(served, 4, 4);
}

/// Waits until a request for `one` places and a request for `other` places are answered at the same time.
fn both_fit(served: &Served, one: usize, other: usize) {
    let ask = |n: usize| {
        let body = json!({ "prompt": "a", "max_tokens": 2000, "n": n });
        served.server.ask(&body).0
    };
    wait(served, "the places stay taken", || {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| ask(other));
            (ask(one), other.join().unwrap()) == (200, 200)
        })
    });
}

#[test]
fn clients_that_go_away_free_their_places() {
    let served = Served::new(
        &zoo::gpt2(),
        &bytes(),
        &[
            "--queue",
            "8",
            "--batch",
            "8",
            "--max-tokens",
            &ENDLESS.to_string(),
        ],
    );
    for stream in [true, false] {
        // Each request would take minutes.
        for _ in 0..3 {
            let body = json!({ "prompt": "a", "max_tokens": ENDLESS, "stream": stream, "n": 4 });
            let mut client = served.server.connect();
            client.write_all(&request(&body)).unwrap();
            if stream {
                // The server refuses this client until the places of the previous client are free.
                wait(&served, "the places stay taken", || {
                    let mut line = String::new();
                    BufReader::new(&client).read_line(&mut line).unwrap();
                    let has_place = line.starts_with("HTTP/1.1 200");
                    if !has_place {
                        client = served.server.connect();
                        client.write_all(&request(&body)).unwrap();
                    }
                    has_place
                });
                client.read_exact(&mut [0; 1000]).unwrap();
            } else {
                std::thread::sleep(Duration::from_millis(50));
            }
            client.shutdown(Shutdown::Both).unwrap();
        }
    }
    all_places_are_free(&served);
}

#[test]
fn slow_clients_hold_up_nobody() {
    let served = Served::gpt2();
    // The clients send half of the headers, send half of a body, or do not read the answer.
    let whole = request(&json!({ "prompt": "a", "max_tokens": 4000, "stream": true }));
    let slow: Vec<_> = (0..90)
        .map(|i| {
            let mut client = served.server.connect();
            let part = [20, whole.len() - 3, whole.len()][i % 3];
            client.write_all(&whole[..part]).unwrap();
            client
        })
        .collect();
    for _ in 0..5 {
        served
            .server
            .complete(&json!({ "prompt": "a", "max_tokens": 8 }));
    }
    drop(slow);
}

#[test]
fn a_stop_frees_the_place_of_its_choice() {
    let served = Served::new(
        &zoo::gpt2(),
        &bytes(),
        &["--queue", "8", "--max-tokens", &ENDLESS.to_string()],
    );
    // Finds three prompts whose text reaches a stop sequence, and one whose text does not.
    let texts: Vec<(String, String)> = ('a'..='z')
        .map(|prompt| {
            let body = json!({ "prompt": prompt, "max_tokens": 3000, "temperature": 0 });
            let answer = served.server.complete(&body);
            let text = answer["choices"][0]["text"].as_str().unwrap();
            (prompt.to_string(), text.to_owned())
        })
        .collect();
    let stops = texts.iter().flat_map(|(_, text)| text.chars());
    let (stop, with) = stops
        .filter_map(|stop| {
            let with = texts.iter().filter(|(_, text)| text.contains(stop));
            let with: Vec<&String> = with.map(|(prompt, _)| prompt).take(3).collect();
            let is_good = with.len() == 3 && texts.iter().any(|(_, text)| !text.contains(stop));
            is_good.then_some((stop, with))
        })
        .next()
        .unwrap();
    let without = texts.iter().find(|(_, text)| !text.contains(stop)).unwrap();
    for stream in [false, true] {
        // The endless prompt comes first, so that the others stop while it continues.
        let prompts = [&[&without.0], &with[..]].concat();
        let body = json!({
            "prompt": prompts, "max_tokens": ENDLESS, "temperature": 0, "stop": stop.to_string(), "stream": stream,
        });
        let mut client = served.server.connect();
        client.write_all(&request(&body)).unwrap();
        // The endless prompt then holds one of the eight places, so a request for four and a request for three fit.
        both_fit(&served, 4, 3);
        client.shutdown(Shutdown::Both).unwrap();
        all_places_are_free(&served);
    }
}

/// Whether the server has closed a connection over which it has sent nothing.
fn is_closed(client: &TcpStream) -> bool {
    client.set_nonblocking(true).unwrap();
    let mut client = client;
    !matches!(client.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn half_requests_do_not_lock_others_out() {
    let served = Served::gpt2();
    let whole = request(&json!({ "prompt": "a" }));
    for part in [0, 20, whole.len() - 3] {
        let begin = Instant::now();
        let slow: Vec<_> = (0..600)
            .map(|_| {
                let mut client = served.server.connect();
                client.write_all(&whole[..part]).unwrap();
                client
            })
            .collect();
        for _ in 0..3 {
            served.server.complete(&json!({ "prompt": "a" }));
        }
        let closed = slow.iter().filter(|client| is_closed(client)).count();
        assert!(closed >= 88, "{closed} of 600 are closed");
        // In the first 30 s, the server closes only as many connections as it needs. After that, it closes all of them.
        if begin.elapsed() < Duration::from_secs(25) {
            assert!(closed < 250, "{closed} of 600 are closed");
        }
    }
}

#[test]
fn bodies_that_are_held_have_a_bound() {
    let served = Served::gpt2();
    let length = 1 << 20;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    let most = [head.as_bytes(), &vec![b' '; length - 1]].concat();
    let send = || {
        let mut client = served.server.connect();
        let _ = client.write_all(&most);
        client
    };
    let held: Vec<_> = (0..80).map(|_| send()).collect();
    // The server tells clients without a place to retry. It waits for the bodies of the other clients.
    let mut answers = vec![String::new(); held.len()];
    // All bodies share 64 MiB, so at most 64 of the 80 bodies have room.
    wait(&served, "fewer than 16 are refused", || {
        for (mut client, answer) in held.iter().zip(&mut answers) {
            client.set_nonblocking(true).unwrap();
            let mut buf = [0; 1000];
            let count = client.read(&mut buf).unwrap_or(0);
            answer.push_str(&String::from_utf8_lossy(&buf[..count]).to_ascii_lowercase());
        }
        answers
            .iter()
            .filter(|answer| answer.contains("\"no_room\""))
            .count()
            >= 16
    });
    for answer in answers {
        let is_refused = answer.starts_with("http/1.1 503") && answer.contains("retry-after: 1");
        // On a slow machine, the time limit for a body may pass.
        let is_late = answer.starts_with("http/1.1 408");
        assert!(is_refused || is_late || answer.is_empty(), "{answer}");
    }
    // Small requests always have room.
    for _ in 0..3 {
        served.server.complete(&json!({ "prompt": "a" }));
    }
    drop(held);
    // Large requests have room again.
    let begin = Instant::now();
    let large = json!({ "prompt": "a", "user": "x".repeat(900_000) });
    while served.server.ask(&large).0 != 200 {
        assert!(begin.elapsed() < LONG, "the room stays taken");
    }
}

/// Returns a request whose answer is several megabytes long: the log-probabilities of many prompts.
fn large_answer(stream: bool) -> serde_json::Value {
    let prompts = vec!["a prompt of sixty-four bytes, which fills the context of the one"; 128];
    json!({ "prompt": prompts, "max_tokens": 0, "echo": true, "logprobs": 20, "stream": stream })
}

#[test]
fn answers_that_nobody_reads_have_a_bound() {
    let served = Served::gpt2();
    let before = memory(served.server.id());
    let mut held = Vec::new();
    for stream in [false, true] {
        for _ in 0..40 {
            let begin = Instant::now();
            let body = request(&large_answer(stream));
            loop {
                let mut client = served.server.connect();
                client.write_all(&body).unwrap();
                let mut line = [0; 12];
                client.read_exact(&mut line).unwrap();
                match &line {
                    b"HTTP/1.1 200" => {
                        held.push(client);
                        break;
                    }
                    // The earlier clients still hold places, or the server is closing them.
                    b"HTTP/1.1 429" | b"HTTP/1.1 503" => {}
                    line => panic!("{}", String::from_utf8_lossy(line)),
                }
                assert!(begin.elapsed() < LONG, "no place");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        // A client that reads and retries gets its answer, however large the answer is.
        let begin = Instant::now();
        let whole = loop {
            match served.server.ask(&large_answer(false)) {
                (200, answer) => break answer,
                (status, answer) => assert!(matches!(status, 429 | 503), "{answer}"),
            }
            assert!(begin.elapsed() < LONG, "no room");
            std::thread::sleep(Duration::from_millis(100));
        };
        assert_eq!(whole["choices"].as_array().unwrap().len(), 128);
    }
    let after = memory(served.server.id());
    println!("{before} KiB before, {after} KiB after");
    assert!(
        after < before + (256 << 10),
        "{before} KiB before, {after} KiB after"
    );
    // The server has closed some of the clients to make room.
    let closed = held.iter().filter(|client| is_cut(client)).count();
    assert!(closed > 20, "{closed} of 80 are closed");
}

/// Whether an answer ends too early.
fn is_cut(mut client: &TcpStream) -> bool {
    client.set_nonblocking(true).unwrap();
    let mut buf = vec![0; 1 << 20];
    loop {
        match client.read(&mut buf) {
            Ok(1..) => {}
            Ok(0) => return true,
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn a_client_that_reads_slowly_gets_all_of_its_answer() {
    let served = Served::gpt2();
    let expected = served.server.complete(&large_answer(false));
    let mut client = served.server.connect();
    client.write_all(&request(&large_answer(false))).unwrap();
    let mut answer = Vec::new();
    let mut buf = vec![0; 50_000];
    let end = loop {
        let count = client.read(&mut buf).unwrap();
        answer.extend(&buf[..count]);
        std::thread::sleep(Duration::from_millis(5));
        let head = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(head) = head.filter(|_| answer.len() > 1000) else {
            continue;
        };
        let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
        let length = text.split("content-length: ").nth(1).unwrap();
        let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
        if answer.len() >= head + 4 + length {
            break head + 4;
        }
    };
    let answer: serde_json::Value = serde_json::from_slice(&answer[end..]).unwrap();
    assert_eq!(answer["choices"], expected["choices"]);
}

#[test]
fn a_half_closed_connection_counts_as_gone() {
    let served = Served::new(
        &zoo::gpt2(),
        &bytes(),
        &["--queue", "8", "--max-tokens", &ENDLESS.to_string()],
    );
    for stream in [true, false] {
        let body = json!({ "prompt": "a", "max_tokens": ENDLESS, "stream": stream, "n": 4 });
        let client = served.server.connect();
        (&client).write_all(&request(&body)).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        client.shutdown(Shutdown::Write).unwrap();
        // The connection ends long before the text does.
        wait(&served, "the connection stays open", || is_cut(&client));
    }
    all_places_are_free(&served);
}

#[test]
fn a_stopped_server_answers_what_it_has_begun() {
    let mut served = Served::new(&zoo::gpt2(), &bytes(), &["--grace", "600"]);
    let mut client = served.server.connect();
    client
        .write_all(&request(
            &json!({ "prompt": "a", "max_tokens": 2000, "stream": true }),
        ))
        .unwrap();
    let mut lines = BufReader::new(client);
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 200"), "{line}");
    served.server.stop();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(
        rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"),
        "the text was cut"
    );
    assert_eq!(served.server.end(), Some(0));
    assert!(std::net::TcpStream::connect(("127.0.0.1", served.server.port)).is_err());
}

#[test]
fn what_a_stopped_server_cannot_finish_is_told() {
    let mut served = Served::new(
        &zoo::gpt2(),
        &bytes(),
        &[
            "--queue",
            "2",
            "--max-tokens",
            &ENDLESS.to_string(),
            "--grace",
            "1",
        ],
    );
    let endless = json!({ "prompt": "a", "max_tokens": ENDLESS, "stream": true });
    let mut client = served.server.connect();
    client.write_all(&request(&endless)).unwrap();
    let mut lines = BufReader::new(client);
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 200"), "{line}");
    let mut whole = served.server.connect();
    whole
        .write_all(&request(&json!({ "prompt": "a", "max_tokens": ENDLESS })))
        .unwrap();
    // Both places are taken.
    while served
        .server
        .ask(&json!({ "prompt": "a", "max_tokens": 1 }))
        .0
        == 200
    {}
    served.server.stop();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"code\":\"stopping\"") && !rest.contains("[DONE]"));
    let mut answer = String::new();
    whole.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("stopping"),
        "{answer}"
    );
    assert_eq!(served.server.end(), Some(0));
}

#[test]
fn a_large_request_leaves_room_for_others() {
    let served = Served::new(&zoo::gpt2(), &bytes(), &["--queue", "64", "--batch", "8"]);
    let large = request(&json!({ "prompt": "a", "max_tokens": 1000, "n": 32, "stream": true }));
    let mut client = served.server.connect();
    client.write_all(&large).unwrap();
    let mut lines = BufReader::new(client);
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 200"), "{line}");
    for _ in 0..5 {
        served
            .server
            .complete(&json!({ "prompt": "b", "max_tokens": 16, "n": 3 }));
    }
    // One request must not fill the queue.
    let (status, answer) = served.server.ask(&json!({ "prompt": "a", "n": 33 }));
    assert_eq!(
        (status, answer["error"]["param"].as_str()),
        (400, Some("n"))
    );
    // The large request had to wait, and its answer is complete.
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]"));
    assert_eq!(rest.matches("\"finish_reason\":\"length\"").count(), 32);
}

#[test]
fn a_hang_up_is_noticed_behind_bytes_that_nobody_reads() {
    let served = Served::new(
        &zoo::gpt2(),
        &bytes(),
        &["--queue", "8", "--max-tokens", &ENDLESS.to_string()],
    );
    let endless = request(&json!({ "prompt": "a", "max_tokens": ENDLESS, "n": 4 }));
    for more in [
        &b"G"[..],
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        &[b'x'; 100_000],
        &vec![b'x'; 1_000_000],
    ] {
        let mut client = served.server.connect();
        client.write_all(&[&endless, more].concat()).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        drop(client);
        all_places_are_free(&served);
    }
}

#[test]
fn who_sends_much_sees_why_it_is_refused() {
    let served = Served::gpt2();
    let body = vec![b' '; 900_000];
    let json = "Content-Type: application/json\r\n";
    for _ in 0..5 {
        assert_eq!(
            served.server.send("POST", "/v1/nothing", json, &body).0,
            404
        );
        assert_eq!(
            served.server.send("POST", "/v1/completions", "", &body).0,
            415
        );
        assert_eq!(
            served.server.send("DELETE", "/v1/models", json, &body).0,
            405
        );
        assert_eq!(
            served
                .server
                .send("POST", "/v1/completions", json, &vec![b' '; 5_000_000])
                .0,
            413
        );
    }
    // The server refuses a body that is too long because of its declared length, before the client sends it.
    for more in ["", "Expect: 100-continue\r\n"] {
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{json}{more}Content-Length: 2000000\r\n\r\n"
        );
        let answer = served.server.raw(head.as_bytes());
        assert!(
            answer.starts_with(b"HTTP/1.1 413"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
}

/// A server that can no longer compute must not continue to accept requests.
#[test]
fn a_server_ends_when_its_model_panics() {
    let scratch = Scratch::new();
    let path = scratch.path("model");
    runs::untrained(&zoo::gpt2(), &bytes(), &path);
    let run = Run::open(&path).unwrap();
    // This model panics on a long prompt, because its context is shorter than the context of the run.
    let shorter = run.config.clone();
    let shorter = shorter.set(&["model.context=8".into()]).unwrap();
    let device = Default::default();
    let model = shorter
        .model
        .build::<Flex>(run.vocabulary(), &device)
        .unwrap();
    let options = Options {
        host: Ipv4Addr::LOCALHOST.into(),
        port: 0,
        key: None,
        name: "model".into(),
        batch: 4,
        queue: 8,
        max_tokens: 8,
        grace: Duration::from_secs(600),
    };
    let bound = Bound::new(&options).unwrap();
    let address = bound.address().unwrap();
    let server =
        thread::spawn(move || serve::<Flex, ModelConfig>(&run, &model, bound, &device, || false));
    let long = json!({ "prompt": "a prompt of more than eight bytes", "max_tokens": 4 });
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&request(&long)).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let begin = Instant::now();
    while !server.is_finished() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it still serves");
        thread::sleep(Duration::from_millis(20));
    }
    // The panic reaches the program, which then fails.
    assert!(server.join().is_err());
}
