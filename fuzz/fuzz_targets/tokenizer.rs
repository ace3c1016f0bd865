#![no_main]
#![allow(missing_docs)]

libfuzzer_sys::fuzz_target!(
    init: residual_zoo_fuzz::pass_over_panics_of_dependencies(),
    |data: &[u8]| drop(residual_zoo_fuzz::tokenizer(data))
);
