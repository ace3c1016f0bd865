//! Pattention with other functions in place of the softmax, and norms with and without parameters, on language
//! (Wang et al., Tables 4 and 5).

residual_zoo::experiment!("tokenformer_ablation");
