//! What every request has to pass: the key, the name of the host, the size and the time of its body.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use tokio::time::timeout;

use crate::request::ApiError;

/// Whom the server answers.
pub struct Guard {
    /// The hash of the key that clients have to send.
    pub key: Option<blake3::Hash>,
    /// Whether requests under other names than that of this machine are refused.
    pub checks_host: bool,
}

/// Most bytes of a body.
const MOST_BYTES: usize = 1 << 20;

/// The time that a client has to send a body.
const TO_SEND: Duration = Duration::from_secs(30);

/// Most bytes of a body that is refused, and the longest pause in it. A client that is answered before it has sent its
/// body may not see the answer.
const MOST_DISCARDED: usize = 16 << 20;
const PAUSE: Duration = Duration::from_secs(1);

/// Answers requests that are refused, and receives the body of the others.
pub async fn guard(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let body = body.into_data_stream();
    let received = match guard.check(&parts) {
        Ok(()) => received(body).await,
        Err(error) => {
            // Who asks first gets the answer first.
            if !parts.headers.contains_key(header::EXPECT) {
                discard(body).await;
            }
            Err(error)
        }
    };
    match received {
        Ok(bytes) => {
            next.run(Request::from_parts(parts, Body::from(bytes)))
                .await
        }
        Err(error) => error.into_response(),
    }
}

impl Guard {
    /// Checks what is known before the body.
    fn check(&self, parts: &Parts) -> Result<(), ApiError> {
        let text = |name: HeaderName| {
            parts
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        if self.checks_host && text(header::HOST).is_some_and(|host| !is_local(host)) {
            // A web page of another host can use a name that leads to this machine.
            let problem = "a server without a key answers to localhost and 127.0.0.1 only; start it with `--key`";
            return Err(ApiError::new(403, "wrong_host", problem));
        }
        if parts.uri.path().starts_with("/v1") {
            self.check_key(&parts.headers)?;
        }
        let length = text(header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
        if length.is_some_and(|length| length > MOST_BYTES as u64) {
            return Err(too_large());
        }
        let kind = text(header::CONTENT_TYPE).and_then(|kind| kind.split(';').next());
        let is_json = kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
        if parts.method == Method::POST && !is_json {
            // A page of another origin can send other types without asking this server first.
            let problem = "send JSON, with the header `Content-Type: application/json`";
            return Err(ApiError::new(415, "unsupported_media_type", problem));
        }
        Ok(())
    }

    fn check_key(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let given = headers
            .get(header::AUTHORIZATION)
            .map(HeaderValue::as_bytes);
        // Hashes are compared in constant time.
        let fits = |key: &blake3::Hash, given: &[u8]| {
            let (scheme, given) = given.split_at(given.len().min(b"Bearer ".len()));
            scheme.eq_ignore_ascii_case(b"Bearer ") && blake3::hash(given) == *key
        };
        let problem = match (&self.key, given) {
            (None, _) => return Ok(()),
            (Some(key), Some(given)) if fits(key, given) => return Ok(()),
            (Some(_), Some(_)) => "the key is wrong",
            (Some(_), None) => "this server asks for a key; send it as `Authorization: Bearer KEY`",
        };
        Err(ApiError::new(401, "invalid_api_key", problem))
    }
}

/// Whether `host`, which may have a port, names this machine.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = name
        .parse::<IpAddr>()
        .is_ok_and(|address| address.is_loopback());
    name.eq_ignore_ascii_case("localhost") || is_loopback
}

fn too_large() -> ApiError {
    let problem = format!("the body is larger than {MOST_BYTES} bytes; send less at once");
    ApiError::new(413, "too_large", problem)
}

/// The whole body.
async fn received(mut body: BodyDataStream) -> Result<Bytes, ApiError> {
    let mut all = Vec::new();
    let reading = async {
        while let Some(part) = body.next().await {
            let incomplete = |error| {
                ApiError::new(
                    400,
                    "incomplete",
                    format!("the body cannot be read: {error}"),
                )
            };
            let part = part.map_err(incomplete)?;
            if all.len() + part.len() > MOST_BYTES {
                return Err(too_large());
            }
            all.extend_from_slice(&part);
        }
        Ok(())
    };
    match timeout(TO_SEND, reading).await {
        Ok(Ok(())) => Ok(all.into()),
        Ok(Err(error)) => {
            discard(body).await;
            Err(error)
        }
        Err(_) => {
            let problem = format!("the body did not arrive within {} s", TO_SEND.as_secs());
            Err(ApiError::new(408, "timeout", problem))
        }
    }
}

/// Reads the rest of a body.
async fn discard(mut body: BodyDataStream) {
    let reading = async {
        let mut count = 0;
        while let Ok(Some(Ok(part))) = timeout(PAUSE, body.next()).await
            && count < MOST_DISCARDED
        {
            count += part.len();
        }
    };
    let _ = timeout(TO_SEND, reading).await;
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self.body())).into_response();
        let header = match self.status {
            429 => Some((header::RETRY_AFTER, "1")),
            401 => Some((header::WWW_AUTHENTICATE, "Bearer")),
            _ => None,
        };
        if let Some((name, value)) = header {
            response
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
