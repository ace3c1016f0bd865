//! TokenFormer and its normalisations on images, against a vision transformer (Wang et al., Tables 2, 4 and 5).

residual_zoo::experiment!("tokenformer_vision");
