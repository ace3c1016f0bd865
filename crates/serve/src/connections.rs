//! Connections: how many, how slow, and how they end.

use std::io;
use std::net::{Shutdown, TcpListener as StdListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;

/// Most connections at once. Others wait until one ends.
const MOST_CONNECTIONS: usize = 512;

/// The time that a client has to send the head of a request, also of the next one.
const FOR_HEAD: Duration = Duration::from_secs(30);

/// The time that a client may leave an answer unread.
const UNREAD: Duration = Duration::from_secs(30);

/// The time to tell clients that the server has stopped.
const TO_TELL: Duration = Duration::from_secs(2);

/// How often a connection is watched.
const WATCH: Duration = Duration::from_millis(500);

/// How often the server looks whether it should stop.
const LOOK: Duration = Duration::from_millis(100);

/// How the server ends.
pub struct End<'a> {
    /// The time that requests have to end.
    pub grace: Duration,
    /// Set when those that are left are given up.
    pub give_up: &'a AtomicBool,
}

/// A socket that another task watches.
struct Shared(Arc<TcpStream>);

impl AsyncRead for Shared {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context,
        buf: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read(buf.initialize_unfilled()) {
                Ok(count) => {
                    buf.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Shared {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context, buf: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}

/// Ends when the client has closed the connection, even if it has sent something that nobody has read. hyper notices
/// it only when it reads.
async fn is_gone(stream: Arc<TcpStream>) {
    loop {
        tokio::time::sleep(WATCH).await;
        match stream.ready(Interest::READABLE).await {
            Ok(ready) if !ready.is_read_closed() => {}
            _ => return,
        }
    }
}

/// Answers connections with `router` until `should_stop`.
///
/// # Errors
///
/// When the system refuses the runtime or the socket.
pub fn accept(
    listener: StdListener,
    router: Router,
    should_stop: impl Fn() -> bool,
    end: &End,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        let connections = GracefulShutdown::new();
        let free = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let mut look = tokio::time::interval(LOOK);
        loop {
            let accepted = async {
                let permit = free.clone().acquire_owned().await;
                (permit, listener.accept().await)
            };
            let (permit, stream) = tokio::select! {
                (permit, Ok((stream, _))) = accepted => (permit, stream),
                _ = look.tick() => {
                    if should_stop() {
                        break;
                    }
                    continue;
                }
            };
            // Each token is a small packet, to be sent at once.
            let _ = stream.set_nodelay(true);
            let stream = Arc::new(stream);
            let gone = is_gone(stream.clone());
            let mut stream = TimeoutStream::new(Shared(stream));
            stream.set_write_timeout(Some(UNREAD));
            let stream = TokioIo::new(Box::pin(stream));
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(FOR_HEAD)
                .max_buf_size(64 << 10)
                .serve_connection(stream, TowerToHyperService::new(router.clone()));
            let connection = connections.watch(connection);
            tokio::spawn(async move {
                // A client that breaks off is no error of the server.
                tokio::select! {
                    _ = connection => {}
                    () = gone => {}
                }
                drop(permit);
            });
        }
        drop((listener, router));
        let mut ended = pin!(connections.shutdown());
        if timeout(end.grace, &mut ended).await.is_err() {
            end.give_up.store(true, Ordering::Relaxed);
            let _ = timeout(TO_TELL, ended).await;
        }
        Ok(())
    })
}
