//! One recurrent layer against one and several ordinary ones, on Shakespeare (Table 6).

residual_zoo::experiment!("recurrent_shakespeare");
