//! mHC, mHC-lite, KromHC and iHC, from three starts.

residual_zoo::experiment!("mhc_variants");
