//! A TokenFormer that starts from the weights of a transformer (Wang et al., Section 3.2).

residual_zoo::experiment!("tokenformer_from_transformer");
