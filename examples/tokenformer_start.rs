//! TokenFormer with the start of this project and with that of the authors' code.

residual_zoo::experiment!("tokenformer_start");
