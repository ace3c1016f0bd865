//! The recurrent transformer on images as sequences of grey pixels (Kausik, Tables 1 and 2).

residual_zoo::experiment!("recurrent_image");
