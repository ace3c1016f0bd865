//! The tricks of the speedruns modded-nanogpt and nanochat, one by one and together.

residual_zoo::experiment!("speedrun_tricks");
