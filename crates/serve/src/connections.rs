//! Client connections: their maximum number, their time limits, and how they end.

use std::io;
use std::net::TcpListener as StdListener;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;

use crate::request::ApiError;
use crate::room::Room;
use crate::seat::{MOST, Seat, Seats};
use crate::socket::{MOST_FIELDS, MOST_HEAD, Socket, UNREAD, is_gone, refuse};

/// The time that a client has to send the request line and headers of each request.
const FOR_HEAD: Duration = Duration::from_secs(30);

/// The time to tell clients that the server has stopped.
const TO_TELL: Duration = Duration::from_secs(2);

/// The interval at which the server checks whether to stop, and whether there is room for connections and responses.
const LOOK: Duration = Duration::from_millis(100);

/// The bytes of unsent responses that the operating system keeps for a client. The system reserves twice as many.
const UNSENT: usize = 64 << 10;

/// Maximum number of clients that are told at the same time that their network has too many connections. Further
/// clients are not told.
const MOST_TOLD: usize = 32;

/// The settings of a shutdown.
pub struct End<'a> {
    /// The time that running requests have to finish.
    pub grace: Duration,
    /// The flag that is set when the server gives up the remaining requests.
    pub give_up: &'a AtomicBool,
}

/// Serves connections with `router` until `should_stop` returns true. When the memory for `answers` is nearly full,
/// closes connections of clients that leave their responses unread.
///
/// # Errors
///
/// Returns an error if the runtime cannot be started or the socket cannot be used.
pub fn accept(
    listener: StdListener,
    router: Router,
    answers: &Room,
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
        let free = Arc::new(Semaphore::new(MOST));
        let told = Arc::new(Semaphore::new(MOST_TOLD));
        let mut seats = Seats::default();
        let mut look = tokio::time::interval(LOOK);
        loop {
            let accepted = async {
                let permit = free.clone().acquire_owned().await;
                (permit, listener.accept().await)
            };
            let (permit, stream, address) = tokio::select! {
                (permit, Ok((stream, address))) = accepted => (permit, stream, address.ip()),
                _ = look.tick() => {
                    if should_stop() {
                        break;
                    }
                    seats.make_room();
                    seats.close_unread(answers.missing());
                    continue;
                }
            };
            let Some(seat) = seats.take(address) else {
                if let Ok(telling) = told.clone().try_acquire_owned() {
                    tokio::spawn(async move {
                        refuse(&stream, &too_many()).await;
                        drop(telling);
                    });
                }
                continue;
            };
            // Each token is a small packet, which must be sent at once.
            let _ = stream.set_nodelay(true);
            let _ = SockRef::from(&stream).set_send_buffer_size(UNSENT);
            let stream = Arc::new(stream);
            let connection = connections.watch(served(&stream, &seat, router.clone()));
            tokio::spawn(async move {
                tokio::select! {
                    ended = connection => if let Some(error) = refusal(ended, &seat) {
                        refuse(&stream, &error).await;
                    },
                    () = is_gone(&stream, &seat) => {}
                    () = seat.closed() => {}
                }
                if seat.leaves_unread() {
                    // Otherwise, the operating system keeps the unread bytes for a while.
                    let _ = SockRef::from(&*stream).set_linger(Some(Duration::ZERO));
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

/// Returns the connection that serves the requests of a client, one after the other. Each request gets the [`Seat`] of
/// its connection as an extension.
fn served(
    stream: &Arc<TcpStream>,
    seat: &Arc<Seat>,
    router: Router,
) -> impl hyper_util::server::graceful::GracefulConnection<Error = hyper::Error> + use<> {
    let mut socket = TimeoutStream::new(Socket::new(stream.clone(), seat.clone()));
    socket.set_write_timeout(Some(UNREAD));
    let (service, seat) = (TowerToHyperService::new(router), seat.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(seat.clone());
        service.call(request)
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(FOR_HEAD)
        .max_buf_size(MOST_HEAD)
        .max_header_size(MOST_HEAD)
        .max_headers(MOST_FIELDS)
        .serve_connection(TokioIo::new(Box::pin(socket)), service)
}

/// Returns the error to send to a client whose connection has ended. A client's disconnection is not an error of
/// the server.
fn refusal(ended: hyper::Result<()>, seat: &Seat) -> Option<ApiError> {
    match ended {
        // An idle connection, which a client keeps for another request, ends without an error.
        Err(error) if error.is_timeout() && seat.has_begun() => Some(late()),
        // hyper itself sends no error to a client that begins with HTTP/2.
        Err(error) if error.is_parse() => Some(seat.refusal().unwrap_or_else(wrong_version)),
        _ => None,
    }
}

fn wrong_version() -> ApiError {
    let problem =
        "the server understands HTTP/1.1 only; turn HTTP/2 off, or put a proxy in between";
    ApiError::new(505, "http_version", problem)
}

fn too_many() -> ApiError {
    let problem = "this address has as many connections as the server accepts, all in use; try again in a moment";
    ApiError::new(429, "too_many_connections", problem)
}

fn late() -> ApiError {
    let problem = format!("the request did not arrive within {} s", FOR_HEAD.as_secs());
    ApiError::new(408, "timeout", problem)
}
