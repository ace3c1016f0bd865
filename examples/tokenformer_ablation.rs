//! What takes the place of the softmax in Pattention, and the parameters of norms (Wang et al.,
//! Tables 4 and 5), on language.

residual_zoo::experiment!("tokenformer_ablation");
