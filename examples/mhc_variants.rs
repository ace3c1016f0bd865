//! mHC, mHC-lite, KromHC and iHC, from each of three published starts.

residual_zoo::experiment!("mhc_variants");
