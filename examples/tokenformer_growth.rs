//! A TokenFormer grown from small to large against one trained from scratch (Wang et al., Tables 6 and 7,
//! Figures 3 and 4).

residual_zoo::experiment!("tokenformer_growth");
