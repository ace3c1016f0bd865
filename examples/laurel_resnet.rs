//! LAuReL around the blocks of a ResNet, against the baseline and one more layer (Menghani et al., Table 1).

residual_zoo::experiment!("laurel_resnet");
