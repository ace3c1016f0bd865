//! Checks every request: its key, its host name, and the type of its body. Every error has OpenAI's format.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::body::{check_length, discard, received};
use crate::host::is_for_this_machine;
use crate::request::ApiError;
use crate::room::Room;
use crate::seat::{Answer, Seat};

/// The checks that a request must pass.
pub struct Guard {
    /// The hash of the key that clients have to send.
    pub key: Option<blake3::Hash>,
    /// Whether a request must name this machine as its host.
    pub checks_host: bool,
    /// The memory for bodies.
    pub bodies: Room,
}

/// Refuses requests that fail a check, and receives the body of all others.
pub async fn guard(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let body = body.into_data_stream();
    let seat = parts.extensions.get::<Arc<Seat>>().cloned();
    let received = match guard.check(&parts) {
        Ok(()) => received(body, &guard.bodies).await,
        Err(error) => {
            // A client that sends `Expect: 100-continue` gets the error before it sends its body.
            if !parts.headers.contains_key(header::EXPECT) {
                discard(body).await;
            }
            Err(error)
        }
    };
    if let Some(seat) = &seat {
        seat.has_request();
    }
    let response = match received {
        Ok(bytes) => {
            next.run(Request::from_parts(parts, Body::from(bytes)))
                .await
        }
        Err(error) => error.into_response(),
    };
    let response = in_form(response);
    match seat {
        Some(seat) => response.map(|body| Body::new(Answer::new(body, seat))),
        None => response,
    }
}

/// Converts error responses to OpenAI's format, including the router's error responses.
fn in_form(response: Response) -> Response {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_json = kind.is_some_and(|kind| kind == "application/json");
    match status.is_client_error() || status.is_server_error() {
        true if !is_json => {
            let problem = format!("the request cannot be answered: {status}");
            ApiError::new(status.as_u16(), "refused", problem).into_response()
        }
        _ => response,
    }
}

impl Guard {
    /// Checks the request line and headers, before the body arrives.
    fn check(&self, parts: &Parts) -> Result<(), ApiError> {
        let text = |name: HeaderName| {
            parts
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        if self.checks_host && !is_for_this_machine(parts) {
            let problem = "a server without a key answers to localhost and 127.0.0.1 only, in one `Host`; start it with \
                           `--key`";
            return Err(ApiError::new(403, "wrong_host", problem));
        }
        if parts.uri.path().starts_with("/v1") {
            self.check_key(&parts.headers)?;
        }
        check_length(text(header::CONTENT_LENGTH).and_then(|length| length.parse().ok()))?;
        let kind = text(header::CONTENT_TYPE).and_then(|kind| kind.split(';').next());
        let is_json = kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
        if parts.method == Method::POST && !is_json {
            // Only JSON is accepted, because a page from another origin could send other types without a CORS
            // preflight.
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
            (Some(_), None) => "this server requires a key; send it as `Authorization: Bearer KEY`",
        };
        Err(ApiError::new(401, "invalid_api_key", problem))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == 401 {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
