//! TokenFormer on images, against a vision transformer, and its normalisations (Wang et al., Tables 2, 4 and 5).

residual_zoo::experiment!("tokenformer_vision");
