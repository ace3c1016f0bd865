//! The recurrent transformer on the selective copy task, with a curriculum (Kausik, Table 4).

residual_zoo::experiment!("recurrent_selective_copy");
