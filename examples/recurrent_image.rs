//! The recurrent transformer on images as sequences of grey pixels (Tables 1 and 2).

residual_zoo::experiment!("recurrent_image");
