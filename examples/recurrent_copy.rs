//! The recurrent transformer on the copy task, with a curriculum (Table 4).

residual_zoo::experiment!("recurrent_copy");
