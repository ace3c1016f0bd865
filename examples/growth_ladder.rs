//! TokenFormers that grow against TokenFormers that train on, over model sizes (Wang et al. 2025).

residual_zoo::experiment!("growth_ladder");
