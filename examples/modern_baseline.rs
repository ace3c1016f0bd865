//! GPT-2 against the modern decoder, switch by switch.

residual_zoo::experiment!("modern_baseline");
