//! RMT and transformer on standard tasks, without further training (Mak & Flanigan, Tables 5 and 6).

residual_zoo::experiment!("zero_shot");
