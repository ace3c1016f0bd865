//! A stand-in for the server, for programs without the cargo feature `http`.

use std::net::SocketAddr;

use burn::tensor::backend::Backend;
use residual_zoo_core::ModelConfig;
use residual_zoo_runs::Run;

use crate::{Error, Options};

/// A listening address. There is none without the cargo feature `http`.
pub enum Bound {}

impl Bound {
    /// Reports that the feature is missing.
    ///
    /// # Errors
    ///
    /// Always returns [`Error::Missing`].
    pub fn new(_: &Options) -> Result<Self, Error> {
        Err(Error::Missing)
    }

    /// Returns the address.
    ///
    /// # Errors
    ///
    /// Never returns an error, because no `Bound` exists.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        match *self {}
    }
}

/// Serves nothing.
///
/// # Errors
///
/// Never returns an error, because no `Bound` exists.
pub fn serve<B: Backend, C: ModelConfig>(
    _: &Run<C>,
    _: &C::Model<B>,
    bound: Bound,
    _: &B::Device,
    _: impl Fn() -> bool + Send,
) -> Result<(), Error> {
    match bound {}
}
