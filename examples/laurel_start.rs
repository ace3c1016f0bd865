//! LAuReL-RW with several starts and bounds of α and β (Menghani et al., section 2.1).

residual_zoo::experiment!("laurel_start");
