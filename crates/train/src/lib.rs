//! x
/// x
pub struct RunConfig<M>(pub M);
