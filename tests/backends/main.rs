//! What must hold on every backend that is compiled in: the reference cases, agreement with Flex, and
//! stopped runs.

#![allow(clippy::unwrap_used)]

mod bf16;
mod fixtures;
mod ops;
mod parity;
mod reuse;
mod stop;
