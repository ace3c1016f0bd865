//! The socket of a client. It notices when the client has gone or reads nothing. It holds back hyper's own errors,
//! because they have no body.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::request::ApiError;
use crate::seat::Seat;

/// The time that a client may leave a response unread.
pub const UNREAD: Duration = Duration::from_secs(30);

/// The interval at which a connection is watched.
const WATCH: Duration = Duration::from_millis(500);

/// The time that a client has to read an error while it is still sending.
const LINGER: Duration = Duration::from_secs(1);

/// A socket that other tasks watch.
pub struct Socket {
    stream: Arc<TcpStream>,
    seat: Arc<Seat>,
    unread: Unread,
}

/// The time for which a client has left responses unread, less the time that is allowed for the bytes that it has read.
/// A client that reads a little from time to time thus does not keep its connection for hours.
#[derive(Default)]
struct Unread {
    since: Option<Instant>,
    whole: Duration,
}

/// Maximum number of bytes of the request line and headers of a request.
pub const MOST_HEAD: usize = 64 << 10;

/// Maximum number of bytes that a client may send after the request that is being answered. The system has room for
/// more.
const MOST_AHEAD: usize = 16 << 10;

/// Maximum number of headers per request.
pub const MOST_FIELDS: usize = 100;

/// The slowest rate at which a client may read for longer than [`UNREAD`], in bytes per second.
const SLOWEST: u32 = 4 << 10;

impl Unread {
    /// Notes that the client reads nothing. Returns false if the client has read nothing for too long.
    fn waits(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        self.whole + now.duration_since(since) < UNREAD
    }

    /// Notes that the client has read `count` bytes.
    fn reads(&mut self, count: usize, now: Instant) {
        if let Some(since) = self.since.take() {
            self.whole += now.duration_since(since);
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.whole = self
            .whole
            .saturating_sub(Duration::from_secs(1) * count / SLOWEST);
    }
}

impl Socket {
    /// Makes the socket of a connection.
    pub fn new(stream: Arc<TcpStream>, seat: Arc<Seat>) -> Self {
        Self {
            stream,
            seat,
            unread: Unread::default(),
        }
    }

    fn poll_send(&mut self, cx: &mut Context, buf: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let ready = self.stream.poll_write_ready(cx);
            self.seat.is_unread(ready.is_pending());
            if ready.is_pending() && !self.unread.waits(Instant::now()) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            ready!(ready)?;
            match self.stream.try_write(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    let count = written.as_ref().map_or(0, |count| *count);
                    self.unread.reads(count, Instant::now());
                    return Poll::Ready(written);
                }
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context,
        buf: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            match self.stream.try_read(buf.initialize_unfilled()) {
                Ok(count) => {
                    if count > 0 {
                        self.seat.begins();
                    }
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match bare_error(buf) {
            Some(error) => {
                self.seat.refuse(error);
                Poll::Ready(Ok(buf.len()))
            }
            None => self.poll_send(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(match self.seat.is_refused() {
            // An error must still be sent.
            true => Ok(()),
            false => SockRef::from(&*self.stream).shutdown(Shutdown::Write),
        })
    }
}

/// Returns the error to send instead of the response in `head`, if hyper itself made this response: an error without a
/// body. All other errors have a body.
fn bare_error(head: &[u8]) -> Option<ApiError> {
    let head = std::str::from_utf8(head.strip_prefix(b"HTTP/1.")?).ok()?;
    let (fields, "") = head.split_once("\r\n\r\n")? else {
        return None;
    };
    if !fields
        .to_ascii_lowercase()
        .contains("\r\ncontent-length: 0")
    {
        return None;
    }
    let (code, message) = match fields.get(2..5)?.parse().ok()? {
        431 => (
            "head_too_large",
            format!(
                "the head of the request is too large; send at most {MOST_FIELDS} fields and {} KiB, with the address",
                MOST_HEAD >> 10
            ),
        ),
        400.. => (
            "bad_request",
            "this is not a valid HTTP/1.1 request; see RFC 9112".into(),
        ),
        _ => return None,
    };
    Some(ApiError::new(
        fields.get(2..5)?.parse().ok()?,
        code,
        message,
    ))
}

/// Returns a response with an error, for a connection that ends.
fn raw(error: &ApiError) -> Vec<u8> {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = error.body().to_string();
    let again = match error.retry_after() {
        Some(seconds) => format!("retry-after: {seconds}\r\n"),
        None => String::new(),
    };
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n{again}\r\n{body}",
        body.len(),
    )
    .into_bytes()
}

/// Sends an error and ends the connection. Reads everything that the client still sends, so that the client sees the
/// error.
pub async fn refuse(stream: &TcpStream, error: &ApiError) {
    let answer = raw(error);
    let ending = async {
        let mut rest = &answer[..];
        while !rest.is_empty() && stream.writable().await.is_ok() {
            match stream.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
        let _ = SockRef::from(stream).shutdown(Shutdown::Write);
        let mut buf = [0; 1 << 12];
        while stream.readable().await.is_ok() {
            match stream.try_read(&mut buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(1..) => {}
                _ => break,
            }
        }
    };
    let _ = timeout(LINGER, ending).await;
}

/// Waits until the client has closed the connection, even if the client has sent bytes that nobody has read. hyper
/// notices the end of a connection only when it reads.
///
/// Also returns if the client sends too much after the request that is being answered. Once the buffer for such bytes
/// is full, the end of the connection does not arrive.
pub async fn is_gone(stream: &TcpStream, seat: &Seat) {
    loop {
        tokio::time::sleep(WATCH).await;
        match stream.ready(Interest::READABLE).await {
            Ok(ready) if !ready.is_read_closed() => {}
            _ => return,
        }
        if seat.is_answered() {
            let peeked = stream.peek(&mut [0; MOST_AHEAD]).await;
            if peeked.is_ok_and(|count| count == MOST_AHEAD) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_reads_little_is_not_waited_for_longer() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        // 1 KiB every 10 s.
        let mut unread = Unread::default();
        let waits = (0..100).take_while(|i| {
            let waits = unread.waits(at(10 * i)) && unread.waits(at(10 * i + 9));
            unread.reads(1 << 10, at(10 * i + 10));
            waits
        });
        assert_eq!(waits.count(), 3);
        // 100 KiB every 20 s.
        let mut unread = Unread::default();
        for i in 0..1000 {
            assert!(unread.waits(at(20 * i)) && unread.waits(at(20 * i + 19)));
            unread.reads(100 << 10, at(20 * i + 20));
        }
        // Nothing.
        let mut unread = Unread::default();
        assert!(unread.waits(at(0)) && unread.waits(at(29)) && !unread.waits(at(30)));
    }

    #[test]
    fn errors_of_hyper_are_known_and_others_are_not_changed() {
        let bare = |text: &str| bare_error(text.as_bytes()).map(|error| error.status);
        let head = "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        assert_eq!(bare(head), Some(431));
        assert_eq!(
            bare("HTTP/1.0 400 Bad Request\r\ncontent-length: 0\r\n\r\n"),
            Some(400)
        );
        for other in [
            "",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 7\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 7\r\n\r\n{\"a\":1}",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\nHTTP/1.1",
            "HTTP/1.",
            "HTTP/1.1 4",
        ] {
            assert_eq!(bare(other), None, "{other}");
        }
        let text = String::from_utf8(raw(&ApiError::new(429, "code", "message"))).unwrap();
        assert!(
            text.starts_with("HTTP/1.1 429 Too Many Requests\r\n"),
            "{text}"
        );
        assert!(text.contains("\r\nretry-after: 1\r\n"), "{text}");
    }
}
