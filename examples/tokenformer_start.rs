//! TokenFormer with the initialisation of this project and with the initialisation of the authors' code.

residual_zoo::experiment!("tokenformer_start");
