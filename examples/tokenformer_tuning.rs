//! Tuning a TokenFormer by new parameter tokens, against LoRA and all weights (Wang et al., section 5).

residual_zoo::experiment!("tokenformer_tuning");
