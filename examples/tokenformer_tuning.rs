//! Tuning a TokenFormer with new parameter tokens, against LoRA and training of all weights (Wang et al., Section 5).

residual_zoo::experiment!("tokenformer_tuning");
