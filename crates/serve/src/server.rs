//! The routes of the server, and the threads that answer requests.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Extension, Path, State};
use axum::http::header;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};
use burn::tensor::backend::Backend;
use rand::RngExt as _;
use residual_zoo_core::{LanguageModel, ModelConfig};
use residual_zoo_data::Tokenizer;
use residual_zoo_runs::Run;
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::answer::{Head, in_background, streamed, whole};
use crate::choice::Choice;
use crate::engine::{Engine, Job, Sizes};
use crate::guard::{Guard, guard};
use crate::request::{ApiError, Limits, Request, read};
use crate::room::Room;
use crate::seat::Seat;
use crate::unread::Unread;
use crate::writer::{Writer, internal};
use crate::{Error, Options, body, connections, unread};

/// A listening socket. It is opened before the model is loaded, so that an address in use is reported early.
pub struct Bound {
    listener: TcpListener,
    options: Options,
}

impl Bound {
    /// Listens on the address of `options`.
    ///
    /// # Errors
    ///
    /// Returns an error if the address cannot be used, for example because it is in use or belongs to another machine.
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

    /// Returns the address, with the port that was taken.
    ///
    /// # Errors
    ///
    /// Returns an error if the system does not report the address.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        self.listener
            .local_addr()
            .map_err(|error| Error::Failed(error.to_string()))
    }
}

/// Serves `model`, the chosen checkpoint of `run`, until `should_stop` returns true. Running requests then have
/// [`Options::grace`] to finish.
///
/// # Errors
///
/// Returns an error if the server cannot be started, or if it fails.
///
/// # Panics
///
/// If the model panics, all requests end, and this function panics.
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
    let answers = unread::room();
    let is_guarded = options.key.is_some() || !options.host.is_loopback();
    let server = Arc::new(Server {
        jobs,
        tokenizer: run.tokenizer.clone(),
        limits: Limits {
            context,
            max_tokens: options.max_tokens,
            // One request takes at most half of the queue, rounded up, so that others find places.
            choices: options.queue.div_ceil(2),
        },
        guard: Arc::new(Guard {
            key: options.key.map(|key| blake3::hash(key.as_bytes())),
            checks_host: !is_guarded,
            bodies: body::room(),
        }),
        requests: AtomicU64::new(0),
        queue: Arc::new(Semaphore::new(options.queue)),
        answers: answers.clone(),
        name: options.name,
        created: now(),
    });
    let revises = run.config.model.revises();
    let give_up = &AtomicBool::new(false);
    let has_panicked = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let router = routes(server);
        let talking = scope.spawn(move || {
            let end = connections::End {
                grace: options.grace,
                give_up,
            };
            let should_stop = || should_stop() || has_panicked.load(Ordering::Relaxed);
            connections::accept(listener, router, &answers, should_stop, &end)
        });
        // A panic of the engine drops the jobs, so that all requests end. The panic continues once the other thread has
        // ended.
        let jobs = received;
        let panicking = Panicking(has_panicked);
        // The engine ends when the other thread has dropped the last sender.
        Engine::new(model, revises, sizes, device).work(&jobs, give_up);
        drop(panicking);
        match talking.join() {
            Ok(ended) => ended.map_err(|error| Error::Failed(error.to_string())),
            Err(_) => Err(Error::Failed("it panicked".into())),
        }
    })
}

/// Sets a flag when it is dropped by a panic.
struct Panicking<'a>(&'a AtomicBool);

impl Drop for Panicking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// The state that all requests share.
struct Server {
    jobs: Sender<Job>,
    tokenizer: Tokenizer,
    name: String,
    created: u64,
    limits: Limits,
    guard: Arc<Guard>,
    /// The number of requests so far.
    requests: AtomicU64,
    /// A permit for each sequence that may wait or be continued.
    queue: Arc<Semaphore>,
    /// The memory for responses.
    answers: Room,
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
        .route("/", get(page))
        .route("/health", get(|| async { "ok\n" }))
        .fallback(nothing)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(server.guard.clone(), guard))
        .with_state(server)
}

async fn no_chat() -> ApiError {
    let problem = "this server continues texts and has no chat interface; use /v1/completions";
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
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    match name {
        Ok(Path(name)) if name == server.name => Ok(axum::Json(server.card()).into_response()),
        // This includes names that are not UTF-8.
        _ => Err(ApiError::new(
            404,
            "model_not_found",
            format!(
                "there is no model of this name; this server has {}",
                server.name
            ),
        )),
    }
}

async fn completions(
    State(server): State<Shared>,
    Extension(seat): Extension<Arc<Seat>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let body =
        body.map_err(|error| ApiError::new(error.status().as_u16(), "body", error.body_text()))?;
    let (head, request, choices) = in_background(move || {
        let seed = || rand::rng().random();
        let request = read(&body, &server.name, &server.tokenizer, &server.limits, seed)?;
        drop(body);
        let permits = u32::try_from(request.choices.len()).unwrap_or(u32::MAX);
        let places = server.queue.clone().try_acquire_many_owned(permits);
        let places = places.map_err(|_| {
            let problem = "the queue is full; try again in a moment";
            ApiError::new(429, "queue_full", problem)
        })?;
        let head = Head {
            id: format!("cmpl-{:032x}", rand::rng().random::<u128>()),
            created: now(),
            model: server.name.clone(),
            tokenizer: server.tokenizer.clone(),
            has_logprobs: request.top.is_some(),
            unread: Unread::new(&server.answers),
        };
        seat.answers(head.unread.clone());
        let choices = start(&server, &request, &head.unread, places)?;
        Ok((head, request, choices))
    })
    .await?;
    match request.stream {
        true => Ok(streamed(head, &request, choices)),
        false => whole(head, &request, choices).await,
    }
}

/// Hands the sequences of `request` to the engine. Each one has a place in the queue until it ends.
fn start(
    server: &Server,
    request: &Request,
    unread: &Unread,
    mut places: OwnedSemaphorePermit,
) -> Result<Vec<Choice>, ApiError> {
    let number = server.requests.fetch_add(1, Ordering::Relaxed);
    let started = request.choices.iter().enumerate().map(|(index, wanted)| {
        let (sender, pieces) = unbounded_channel();
        let place = places
            .split(1)
            .ok_or_else(|| internal("a choice has no place in the queue"))?;
        let unread = unread.clone();
        let writer = Writer::new(index, request, &server.tokenizer, sender, unread, place)?;
        if !writer.is_over() {
            let job = Job {
                request: number,
                prompt: wanted.prompt.clone(),
                sampling: wanted.sampling.clone(),
                top: request.top,
                scores_prompt: request.scores(wanted),
                writer,
            };
            // If the engine has ended, the choice finds its channel closed.
            let _ = server.jobs.send(job);
        }
        Ok(Choice::new(index, pieces))
    });
    started.collect()
}

/// Returns the seconds since 1970.
fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
