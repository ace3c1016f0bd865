#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(residual_zoo_fuzz::weights(data)));
