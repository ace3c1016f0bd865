//! The recurrent transformer on the copy task, with a curriculum (Kausik, Table 4).

residual_zoo::experiment!("recurrent_copy");
