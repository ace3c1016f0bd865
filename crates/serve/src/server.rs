//! The answers to requests.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, Request as HttpRequest, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use burn::tensor::backend::Backend;
use futures_util::stream::{self, StreamExt as _};
use rand::RngExt as _;
use residual_zoo_core::{LanguageModel, ModelConfig};
use residual_zoo_data::Tokenizer;
use residual_zoo_runs::Run;
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::choice::{Choice, Logprobs, Piece};
use crate::connections;
use crate::engine::{Engine, Job, Sizes};
use crate::request::{ApiError, Limits, Request, read};
use crate::{Error, Options};

/// An address that is listened at, so that one in use is known before a model is loaded.
pub struct Bound {
    listener: TcpListener,
    options: Options,
}

impl Bound {
    /// Listens at the address of `options`.
    ///
    /// # Errors
    ///
    /// When the address is in use or is not one of this machine.
    pub fn new(options: &Options) -> Result<Self, Error> {
        let address = SocketAddr::new(options.host, options.port);
        let failed = |error: std::io::Error| Error::Address {
            address: address.to_string(),
            problem: error.to_string(),
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            listener,
            options: options.clone(),
        })
    }

    /// The address, with the port that was taken.
    ///
    /// # Errors
    ///
    /// When the system does not tell.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        self.listener
            .local_addr()
            .map_err(|error| Error::Failed(error.to_string()))
    }
}

/// Serves `model`, the newest checkpoint of `run`, until `should_stop`. Requests that are being answered have
/// some time to end.
///
/// # Errors
///
/// When the server cannot be started.
pub fn serve<B: Backend, C: ModelConfig>(
    run: &Run<C>,
    model: &C::Model<B>,
    bound: Bound,
    device: &B::Device,
    should_stop: impl Fn() -> bool + Send,
) -> Result<(), Error>
where
    C::Model<B>: LanguageModel<B>,
{
    let Bound { listener, options } = bound;
    let context = run.config.model.shape().context;
    let sizes = Sizes {
        rows: options.batch,
        context,
        vocabulary: run.config.data.outputs(run.tokenizer.vocab_size()),
    };
    let (jobs, received) = channel();
    let is_guarded = options.key.is_some() || !options.host.is_loopback();
    let server = Arc::new(Server {
        jobs,
        tokenizer: run.tokenizer.clone(),
        limits: Limits {
            context,
            max_tokens: options.max_tokens,
            choices: options.queue,
        },
        key: options.key.map(|key| blake3::hash(key.as_bytes())),
        checks_host: !is_guarded,
        queue: Arc::new(Semaphore::new(options.queue)),
        name: options.name,
        created: now(),
    });
    let revises = run.config.model.revises();
    let give_up = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let router = routes(server);
        let talking = scope.spawn(move || {
            let end = connections::End {
                grace: options.grace,
                give_up,
            };
            connections::accept(listener, router, should_stop, &end)
        });
        // It ends when the other thread has dropped the last sender.
        Engine::new(model, revises, sizes, device).work(&received, give_up);
        match talking.join() {
            Ok(ended) => ended.map_err(|error| Error::Failed(error.to_string())),
            Err(_) => Err(Error::Failed("it panicked".into())),
        }
    })
}

/// What all requests share.
struct Server {
    jobs: Sender<Job>,
    tokenizer: Tokenizer,
    name: String,
    created: u64,
    limits: Limits,
    key: Option<blake3::Hash>,
    checks_host: bool,
    /// A permit for each sequence that may wait or be continued.
    queue: Arc<Semaphore>,
}

type Shared = Arc<Server>;

fn routes(server: Shared) -> Router {
    let nothing = || async {
        ApiError::new(
            404,
            "not_found",
            "there is nothing here; see /v1/models and /v1/completions",
        )
    };
    let wrong_method = || async {
        ApiError::new(
            405,
            "method_not_allowed",
            "this address takes another method: GET /v1/models, POST /v1/completions",
        )
    };
    Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{name}", get(model))
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", any(no_chat))
        .layer(from_fn_with_state(server.clone(), check_key))
        .route("/", get(page))
        .route("/health", get(|| async { "ok\n" }))
        .fallback(nothing)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(server.clone(), check_host))
        .with_state(server)
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(self.body())).into_response();
        if self.status == 429 {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == 401 {
            let scheme = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

/// Refuses requests without the key.
async fn check_key(State(server): State<Shared>, request: HttpRequest, next: Next) -> Response {
    let given = request
        .headers()
        .get(header::AUTHORIZATION)
        .map(HeaderValue::as_bytes);
    // Hashes are compared in constant time.
    let fits = |key: &blake3::Hash, given: &[u8]| {
        let (scheme, given) = given.split_at(given.len().min(b"Bearer ".len()));
        scheme.eq_ignore_ascii_case(b"Bearer ") && blake3::hash(given) == *key
    };
    let problem = match (&server.key, given) {
        (None, _) => return next.run(request).await,
        (Some(key), Some(given)) if fits(key, given) => return next.run(request).await,
        (Some(_), Some(_)) => "the key is wrong",
        (Some(_), None) => "this server asks for a key; send it as `Authorization: Bearer KEY`",
    };
    ApiError::new(401, "invalid_api_key", problem).into_response()
}

/// Refuses requests that a web page of another host sends, by a name that leads to this machine.
async fn check_host(State(server): State<Shared>, request: HttpRequest, next: Next) -> Response {
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    match host {
        Some(host) if server.checks_host && !is_local(host) => ApiError::new(
            403,
            "wrong_host",
            "a server without a key answers to localhost and 127.0.0.1 only; start it with `--key`",
        )
        .into_response(),
        _ => next.run(request).await,
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
        .parse::<std::net::IpAddr>()
        .is_ok_and(|address| address.is_loopback());
    name.eq_ignore_ascii_case("localhost") || is_loopback
}

async fn no_chat() -> ApiError {
    let problem = "the models here continue texts and hold no conversations; use /v1/completions";
    ApiError::new(404, "not_found", problem)
}

async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
             frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
        ),
    ];
    (headers, include_str!("page.html")).into_response()
}

impl Server {
    fn card(&self) -> Value {
        json!({
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "residual-zoo",
            "max_model_len": self.limits.context,
        })
    }
}

async fn models(State(server): State<Shared>) -> Response {
    axum::Json(json!({ "object": "list", "data": [server.card()] })).into_response()
}

async fn model(
    State(server): State<Shared>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    match name == server.name {
        true => Ok(axum::Json(server.card()).into_response()),
        false => Err(ApiError::new(
            404,
            "model_not_found",
            format!(
                "there is no model of this name; this server has {}",
                server.name
            ),
        )),
    }
}

/// Most bytes of a request.
const MOST_BYTES: usize = 1 << 20;

/// The time that a client has to send a request.
const TO_SEND: Duration = Duration::from_secs(30);

async fn completions(
    State(server): State<Shared>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    // A page of another origin can send other types without asking this server first.
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let is_json = kind.is_some_and(|kind| {
        kind.split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .eq_ignore_ascii_case("application/json")
    });
    if !is_json {
        let problem = "send JSON, with the header `Content-Type: application/json`";
        return Err(ApiError::new(415, "unsupported_media_type", problem));
    }
    let body = received(body).await?;
    let request = read_request(&server, body).await?;
    let permits = u32::try_from(request.choices.len()).unwrap_or(u32::MAX);
    let permit = server
        .queue
        .clone()
        .try_acquire_many_owned(permits)
        .map_err(|_| {
            let problem =
                "as many sequences as the server takes are waiting; try again in a moment";
            ApiError::new(429, "queue_full", problem)
        })?;
    let choices = start(&server, &request)?;
    let head = Head {
        id: format!("cmpl-{:032x}", rand::rng().random::<u128>()),
        created: now(),
        model: server.name.clone(),
    };
    match request.stream {
        true => Ok(streamed(head, request, choices, permit)),
        false => whole(head, &request, choices).await,
    }
}

async fn received(body: Body) -> Result<Bytes, ApiError> {
    let read = tokio::time::timeout(TO_SEND, to_bytes(body, MOST_BYTES)).await;
    match read {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) => {
            let mut cause: Option<&dyn std::error::Error> = Some(&error);
            while let Some(error) = cause {
                if error.to_string().contains("length limit exceeded") {
                    let problem =
                        format!("the body is larger than {MOST_BYTES} bytes; send less at once");
                    return Err(ApiError::new(413, "too_large", problem));
                }
                cause = error.source();
            }
            Err(ApiError::new(
                400,
                "incomplete",
                format!("the body cannot be read: {error}"),
            ))
        }
        Err(_) => {
            let problem = format!("the body did not arrive within {} s", TO_SEND.as_secs());
            Err(ApiError::new(408, "timeout", problem))
        }
    }
}

/// Reads the body on another thread, because a long text takes a while to become tokens.
async fn read_request(server: &Shared, body: Bytes) -> Result<Request, ApiError> {
    let server = server.clone();
    let task = tokio::task::spawn_blocking(move || {
        let seed = || rand::rng().random();
        read(&body, &server.name, &server.tokenizer, &server.limits, seed)
    });
    task.await
        .unwrap_or_else(|error| Err(ApiError::new(500, "internal", error.to_string())))
}

/// Hands the sequences of `request` to the engine.
fn start(server: &Server, request: &Request) -> Result<Vec<Choice>, ApiError> {
    let started = request.choices.iter().enumerate().map(|(index, wanted)| {
        let (events, received) = unbounded_channel();
        let choice = Choice::new(index, request, &server.tokenizer, received)?;
        let scores_prompt = request.scores(wanted);
        if scores_prompt || request.max_tokens > 0 {
            let job = Job {
                prompt: wanted.prompt.clone(),
                max_tokens: request.max_tokens,
                sampling: wanted.sampling.clone(),
                top: request.top,
                scores_prompt,
                events,
            };
            // If the engine has ended, the choice finds its channel closed.
            let _ = server.jobs.send(job);
        }
        Ok(choice)
    });
    started.collect()
}

/// What all parts of an answer say.
struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    fn answer(&self, choices: Vec<Value>) -> Value {
        let Self { id, created, model } = self;
        json!({ "id": id, "object": "text_completion", "created": created, "model": model, "choices": choices })
    }

    fn piece(&self, index: usize, piece: Piece) -> Value {
        self.answer(vec![choice(
            index,
            &piece.text,
            piece.logprobs,
            piece.finish,
        )])
    }
}

fn choice(index: usize, text: &str, logprobs: Option<Logprobs>, finish: Option<&str>) -> Value {
    json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish })
}

fn usage(prompt: usize, generated: usize) -> Value {
    json!({ "prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated })
}

/// The answer once all choices have ended.
async fn whole(head: Head, request: &Request, choices: Vec<Choice>) -> Result<Response, ApiError> {
    let mut answers = Vec::new();
    let mut generated = 0;
    for mut each in choices {
        let (mut text, mut finish) = (String::new(), None);
        let mut logprobs = request.top.map(|_| Logprobs::default());
        while let Some(piece) = each.next().await? {
            text += &piece.text;
            finish = piece.finish;
            if let (Some(all), Some(more)) = (&mut logprobs, piece.logprobs) {
                all.extend(more);
            }
        }
        generated += each.generated;
        answers.push(choice(each.index, &text, logprobs, finish));
    }
    let mut answer = head.answer(answers);
    answer["usage"] = usage(request.prompt_tokens, generated);
    Ok(axum::Json(answer).into_response())
}

/// The answer as server-sent events, each as soon as there is text.
fn streamed(
    head: Head,
    request: Request,
    choices: Vec<Choice>,
    permit: OwnedSemaphorePermit,
) -> Response {
    let head = Arc::new(head);
    // What a choice has left to say: its pieces, then the number of its tokens.
    let each = choices.into_iter().map(|choice| {
        let head = head.clone();
        let pieces = stream::unfold(Some(choice), move |choice| {
            let head = head.clone();
            async move {
                let mut choice = choice?;
                match choice.next().await {
                    Ok(Some(piece)) => Some((Ok(head.piece(choice.index, piece)), Some(choice))),
                    Ok(None) => Some((Err(Ok(choice.generated)), None)),
                    Err(error) => Some((Err(Err(error)), None)),
                }
            }
        });
        pieces.boxed()
    });
    let pieces = stream::select_all(each);
    let last = move |generated: usize| {
        let mut answer = head.answer(Vec::new());
        answer["usage"] = usage(request.prompt_tokens, generated);
        request.include_usage.then_some(answer)
    };
    let events = stream::unfold(
        (pieces, 0, Some(last), permit),
        |(mut pieces, mut generated, mut last, permit)| async move {
            last.as_ref()?;
            loop {
                let sent = match pieces.next().await {
                    Some(Ok(answer)) => vec![answer.to_string()],
                    Some(Err(Ok(count))) => {
                        generated += count;
                        continue;
                    }
                    Some(Err(Err(error))) => {
                        last = None;
                        vec![error.body().to_string()]
                    }
                    None => {
                        let usage = last.take().and_then(|last| last(generated));
                        let usage = usage.map(|usage| usage.to_string());
                        usage.into_iter().chain(["[DONE]".to_owned()]).collect()
                    }
                };
                let events = sent
                    .into_iter()
                    .map(|data| Ok::<_, Infallible>(SseEvent::default().data(data)));
                return Some((stream::iter(events), (pieces, generated, last, permit)));
            }
        },
    );
    Sse::new(events.flatten())
        .keep_alive(KeepAlive::default())
        .into_response()
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
