//! One recurrent layer against one and several ordinary layers, on Shakespeare (Kausik, Table 6).

residual_zoo::experiment!("recurrent_shakespeare");
