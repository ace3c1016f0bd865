//! A process of `residual-zoo serve`, and a client that can send arbitrary bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::program::{ends, signal, zoo};

/// A process of `residual-zoo serve`. Dropping this value ends the process.
pub struct Server {
    child: Child,
    /// The port on 127.0.0.1.
    pub port: u16,
}

impl Server {
    /// Serves the run in `directory` on a free port.
    pub fn start(directory: &Path, arguments: &[&str]) -> Self {
        let mut command = zoo("serve");
        command.arg(directory).args(["--port", "0"]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let port = line
            .trim()
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("no port in {line:?}"));
        Self { child, port }
    }

    /// Returns the id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM.
    pub fn stop(&self) {
        signal(&self.child, "-TERM");
    }

    /// Waits for the end of the process, and returns its exit code.
    pub fn end(&mut self) -> Option<i32> {
        ends(&mut self.child).code()
    }

    /// Sends bytes over a new connection, and returns everything until the server closes the connection.
    pub fn raw(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // The server may refuse a request before it has read all of it.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    /// Opens a connection.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(600)))
            .unwrap();
        stream
    }

    /// Sends the request `method` `path` with `headers` and `body`. Returns the response's status code, its status line
    /// and headers, and its body.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> (u16, String, Vec<u8>) {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
        );
        let mut stream = self.connect();
        let _ = stream.write_all(&[head.as_bytes(), body].concat());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let end =
            end.unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(&answer)));
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap();
        (status, head, answer[end + 4..].to_vec())
    }

    /// Returns the status code and the body of the response to a completion request.
    pub fn ask(&self, body: &Value) -> (u16, Value) {
        let json = "Content-Type: application/json\r\n";
        let (status, _, body) =
            self.send("POST", "/v1/completions", json, body.to_string().as_bytes());
        let text = String::from_utf8_lossy(&body).into_owned();
        (
            status,
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text:?}")),
        )
    }

    /// Returns the body of the response to a valid completion request.
    pub fn complete(&self, body: &Value) -> Value {
        let (status, answer) = self.ask(body);
        assert_eq!(status, 200, "{body}: {answer}");
        answer
    }

    /// Returns the data of the events that answer a completion request with `stream`.
    pub fn stream(&self, body: &Value) -> Vec<String> {
        let json = "Content-Type: application/json\r\n";
        let (status, head, body) =
            self.send("POST", "/v1/completions", json, body.to_string().as_bytes());
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
        assert!(head.contains("text/event-stream"), "{head}");
        let text = unchunked(&body);
        let events = text
            .split("\n\n")
            .filter_map(|event| event.strip_prefix("data: "));
        events.map(str::to_owned).collect()
    }
}

/// Decodes a chunked body.
fn unchunked(mut body: &[u8]) -> String {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        whole.extend_from_slice(&body[end + 2..][..size]);
        body = &body[end + 2 + size + 2..];
    }
    String::from_utf8(whole).unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
