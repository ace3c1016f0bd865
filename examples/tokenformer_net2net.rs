//! Growth of a TokenFormer against Net2Net widening of a transformer, on new data (Wang et al.,
//! Figures 6 and 7).

residual_zoo::experiment!("tokenformer_net2net");
