//! LAuReL-RW with several initialisations and bounds of α and β (Menghani et al., Section 2.1).

residual_zoo::experiment!("laurel_start");
