//! How the loss of grown TokenFormers depends on the length of the stages (Table 7).

residual_zoo::experiment!("tokenformer_stages");
