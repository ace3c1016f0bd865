//! Serves a model's completions over HTTP, with OpenAI's interface: `/v1/models`, `/v1/completions`, and a page at `/`.
//!
//! [`serve`] needs the cargo feature `http`. The model computes on the calling thread, for all clients together. A
//! second thread handles the connections.

#![forbid(unsafe_code)]

#[cfg(feature = "http")]
mod answer;
#[cfg(feature = "http")]
mod body;
#[cfg(feature = "http")]
mod choice;
#[cfg(feature = "http")]
mod connections;
#[cfg(feature = "http")]
mod engine;
#[cfg(feature = "http")]
mod guard;
#[cfg(feature = "http")]
mod host;
#[cfg(feature = "http")]
mod prompt;
#[cfg(feature = "http")]
mod request;
#[cfg(feature = "http")]
mod room;
#[cfg(feature = "http")]
mod seat;
#[cfg(feature = "http")]
mod server;
#[cfg(feature = "http")]
mod socket;
#[cfg(feature = "http")]
mod unread;
#[cfg(feature = "http")]
mod writer;

use residual_zoo_system::{Blame, Fault};
use std::net::IpAddr;
use std::time::Duration;

#[cfg(feature = "http")]
pub use server::{Bound, serve};

/// Options of the server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address to listen on.
    pub host: IpAddr,
    /// The port; 0 takes a free one.
    pub port: u16,
    /// The key that clients have to send.
    pub key: Option<String>,
    /// The name of the model.
    pub name: String,
    /// Maximum number of sequences that are continued at once.
    pub batch: usize,
    /// Maximum number of sequences that wait or are continued. Further sequences are refused.
    pub queue: usize,
    /// Maximum number of tokens that are generated for a choice.
    pub max_tokens: usize,
    /// The time that running requests have to finish once the server stops.
    pub grace: Duration,
}

impl Blame for Error {
    fn fault(&self) -> Fault {
        match self {
            Self::Run(error) => error.fault(),
            Self::Missing | Self::Address { .. } => Fault::Input,
            Self::Failed(_) => Fault::Machine,
        }
    }
}

/// Errors that keep a model from being served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run cannot be used.
    #[error(transparent)]
    Run(#[from] residual_zoo_runs::Error),
    /// The program was built without the cargo feature `serve`.
    #[error("this program has no server; build it with `--features serve`")]
    Missing,
    /// The address cannot be used.
    #[error("cannot listen on {address}: {problem}; choose another one with `--port` and `--host`")]
    Address {
        /// The address.
        address: String,
        /// The message of the system.
        problem: String,
    },
    /// The server ended by itself.
    #[error("the server failed: {0}")]
    Failed(String),
}

#[cfg(not(feature = "http"))]
mod missing;
#[cfg(not(feature = "http"))]
pub use missing::{Bound, serve};
