//! What the experiments say about each paper, in a few words.

/// A paper and what the trained models show.
pub struct Paper {
    /// The directory of its experiments.
    pub directory: &'static str,
    pub title: &'static str,
    pub address: &'static str,
    /// Its main claims: an experiment, and how the claim begins.
    pub main: &'static [(&'static str, &'static str)],
    /// The positions in `main` of the claims that the README shows.
    pub front: &'static [usize],
    pub summary: &'static [&'static str],
}

pub const PAPERS: [Paper; 5] = [
    Paper {
        directory: "rmt",
        title: "Residual Matrix Transformer",
        address: "https://arxiv.org/abs/2506.22696",
        main: &[
            (
                "rmt_vs_transformer",
                "After the same number of tokens, the loss of the RMT is lower",
            ),
            (
                "rmt_scaling",
                "With the same FLOPs, the loss of the RMT is lower",
            ),
            (
                "rmt_variants",
                "The RMT has a lower training loss than the highway transformer",
            ),
            ("rmt_stream_size", "The loss falls as the stream grows"),
            (
                "zero_shot",
                "On WikiText, the RMT needs fewer bits per byte",
            ),
        ],
        front: &[0],
        summary: &[
            "After the same tokens, the loss of the RMT is between 0.039 lower and 0.001 higher for each character (95 % interval): \
             undecided. The paper reports 0.11 for each token, about four characters, for models 2,000 times larger. In `zero_shot`, \
             with parts of words as tokens, 512 of them, the RMT ends 0.18 lower for each token.",
            "At the same FLOPs, the larger two of four RMTs cannot be told from transformers: they end 0.010 ± 0.041 and 0.019 ± 0.040 \
             lower. The second one ends 0.125 ± 0.057 higher; its rate was chosen on two seeds, which ended at 2.20 with it; the eight seeds end at 2.41. \
             The smallest has no transformer of so few FLOPs to compare with.",
            "Of the variants of Table 10, the RMT has the lowest training loss here too, but only its lead over the depth-wise LSTM is \
             decided. Hierarchical aggregation, in a form guessed from its parameters, ends 0.007 ± 0.003 below the transformer, where the paper has it above, and the \
             highway transformer, second in the paper, cannot be told from the transformer.",
            "The loss falls as the stream grows from 32 to 128; the sizes from 128 to 512 cannot be told apart.",
            "On WikiText, after training on tiny shakespeare, the RMT needs 0.07 to 0.16 fewer bits per byte. This was a second run: \
             in the first one, characters absent from the training text masked the difference.",
            "The best learning rate of a narrow model costs one four times as wide 0.117 (RMT) and 0.396 (transformer) without μP, \
             and 0.020 and 0.037 with it.",
            "The tasks of Table 6 need larger models.",
        ],
    },
    Paper {
        directory: "laurel",
        title: "LAuReL",
        address: "https://arxiv.org/abs/2411.07501",
        main: &[
            (
                "laurel_ablation",
                "LAuReL-RW+LR is better than the baseline",
            ),
            (
                "laurel_ablation",
                "The deeper baseline is better than the baseline",
            ),
            ("laurel_rank", "A medium rank is better than RW alone"),
            ("laurel_rank", "Rank 16 is better than rank 4"),
            (
                "laurel_resnet",
                "On a ResNet, LAuReL-RW+LR is better than the baseline",
            ),
            (
                "laurel_resnet",
                "On a ResNet, one more layer is better than the baseline",
            ),
        ],
        front: &[0],
        summary: &[
            "RW, LR and PA are the parts of LAuReL: residual weights, a low-rank correction, and the previous activations.",
            "No variant can be told from the baseline; with RW+LR, the loss is between 0.014 lower and 0.004 higher for each character. The paper \
             reports gains of 0.054 to 0.066 for each token, 0.013 to 0.017 for each character if a token has four, so they are smaller at this \
             size. One more layer gains 0.020 for each token there, which is too little for these seeds to find.",
            "On another machine, RW alone ended 0.012 ± 0.006 above the baseline with the same seeds; here it is 0.005 ± 0.007.",
            "RW+LR with rank 16 ends 0.010 ± 0.005 below RW, but so does rank 4 (0.009 ± 0.005), so the pattern of Figure 3 is not seen. Rank 16 \
             is at the level of the baseline.",
            "On a small ResNet, neither LAuReL nor one more layer can be told from the baseline; the seeds differ by more than the gains that the \
             paper reports for ResNet-50.",
            "RW has twice the softmax of two weights, which starts as the plain residual; the paper names the softmax and the sigmoid.",
        ],
    },
    Paper {
        directory: "tokenformer",
        title: "TokenFormer",
        address: "https://arxiv.org/abs/2410.23168",
        main: &[
            (
                "tokenformer_growth",
                "With the tokens of the last stage alone, a transformer from scratch is worse",
            ),
            (
                "tokenformer_chain",
                "After growing twice, a TokenFormer has a lower loss than a transformer that was widened twice",
            ),
            (
                "tokenformer_chain",
                "Growing twice lowers the loss of a TokenFormer by more",
            ),
            (
                "tokenformer_net2net",
                "A grown TokenFormer starts with the loss of the small one",
            ),
            (
                "tokenformer_ablation",
                "The L2 norm and GELU are better than the softmax",
            ),
            (
                "tokenformer_vision",
                "A TokenFormer as large as a ViT is about as good",
            ),
            (
                "tokenformer_tuning",
                "New tokens reach a lower loss than LoRA with as many parameters",
            ),
            (
                "tokenformer_merge",
                "The merged model is within 0.05 of the one that was tuned on the first text",
            ),
        ],
        front: &[1],
        summary: &[
            "With the tokens of the last stage alone, a transformer from scratch is worse than the grown model, as the paper reports; so is the \
             large TokenFormer, which the paper does not train. For the same FLOPs, which the paper does not compare, the grown model ends 0.007 to 0.036 above the large one from scratch, and \
             0.072 to 0.096 above a transformer.",
            "A TokenFormer from scratch is worse than a transformer, by 0.052 to 0.073.",
            "Growing keeps the function. Growing twice on the same data lowers the loss by more than widening a transformer twice, but \
             the transformer, which is 0.161 ahead before, stays ahead by 0.107. On new data, neither gains from its size within 300 steps.",
            "Starting from the weights of a transformer saves training, but the transformer that is trained on is better.",
            "The order of Table 4 holds on text: L2 norm and GELU, then the L1 norm, then the softmax. On images the softmax is the worst too, and \
             the two norms cannot be told apart.",
            "On patches of images, after two passes, when all models are far from trained, a TokenFormer as large as a ViT ends 0.021 ± 0.022 above \
             it, which is undecided; 37 and 39 % of the test images are classified correctly.",
            "New tokens that are tuned on another text end where LoRA with as many parameters does, 0.170 ± 0.015 above tuning all weights. \
             Put into one model with tokens tuned on the first text, they raise its loss from 2.03 to 2.86.",
            "With the start of the authors' code, made for widths of 768 and more, a TokenFormer of width 64 ends 0.196 ± 0.024 higher.",
        ],
    },
    Paper {
        directory: "recurrent",
        title: "Recurrent transformer",
        address: "https://arxiv.org/abs/2402.14746",
        main: &[
            (
                "recurrent_shakespeare",
                "For the same FLOPs, one recurrent layer is as good as six ordinary ones or better",
            ),
            (
                "recurrent_shakespeare",
                "α goes to zero on language (Section 6.3)",
            ),
            (
                "recurrent_copy",
                "One recurrent layer solves the copy over 256 tokens of noise (",
            ),
            (
                "recurrent_image",
                "The recurrent transformer classifies images with an accuracy of 47.3 %",
            ),
        ],
        front: &[2],
        summary: &[
            "From block to block, the equations of the paper carry the hidden state, and its code the output of a layer; where both \
             were trained, a claim says which form it is of. α is the factor of what is carried. It is printed before it is \
             limited to 0 to 1, so it can be negative.",
            "For the FLOPs of six ordinary layers, one recurrent layer ends between 0.015 below and 0.006 above them, with a fifth of their \
             parameters. The tolerance of 0.01 with which this counts as good was added after the runs. After the same tokens, which the paper does not compare, it is worse than one ordinary layer, by \
             0.043 to 0.056.",
            "α goes to zero, as reported, and the larger a fixed α, the higher the loss.",
            "After the same tokens, four stacked layers are better than one, by 0.077 to 0.089. They need 3.9 times the FLOPs. One \
             layer ends lower with fewer FLOPs in `recurrent_shakespeare`, so the paper is not contradicted: it finds no benefit in stacking.",
            "The copy over 256 tokens of noise is solved by all seeds, with and without the curriculum; the paper goes to 4096.",
            "The selective copy is not solved after 128,000 samples; the published code uses up to 25.6 million. After 16,000 of 600,000 samples, \
             18 to 21 % of the images are classified correctly, where the paper has 47 %.",
        ],
    },
    Paper {
        directory: "streams",
        title: "Streams",
        address: "papers/streams.md#equations-and-code",
        main: &[
            (
                "value_residual",
                "ResFormer with learned weights reaches the final loss of the transformer with fewer tokens",
            ),
            (
                "dense_former",
                "A DenseFormer has a lower loss than a transformer of the same depth",
            ),
            (
                "attention_residual",
                "Blocks of 3 residuals have a lower loss than the plain residual for the same tokens",
            ),
            (
                "hyper_depth",
                "Hyper-connections have a lower loss than the plain residual, 12 layers",
            ),
            (
                "hyper_depth",
                "Static hyper-connections have a lower loss than the plain residual, 12 layers",
            ),
            (
                "hyper_depth",
                "mHC has a lower loss than the plain residual, 12 layers",
            ),
            ("deep_norm", "DeepNorm has a lower loss than post-norm"),
            ("deep_norm", "ReZero has a lower loss than post-norm"),
        ],
        front: &[4, 1],
        summary: &[
            "DenseFormer with twelve layers ends 0.019 ± 0.008 below the transformer, and below one of sixteen layers, which is itself \
             worse than that of twelve after so few tokens. That it needs fewer FLOPs than that one follows from its size.",
            "Attention residuals in eight blocks end 0.035 ± 0.010 below the plain residual; the full form, 0.014 ± 0.017 below, cannot be \
             told from it, and ends above the blocks, while the paper has it just below them.",
            "Value residuals cannot be told from the transformer with twelve layers: with learned weights the loss is lower by \
             0.008 ± 0.008, and five of eight runs reach the final loss of the transformer sooner; the paper saves 20 % of the tokens. Eight seeds \
             find 0.011.",
            "With 12 layers, static hyper-connections end 0.048 ± 0.017 below the plain residual, and 0.065 ± 0.011 below it if their outputs do \
             not start √n times as large. Dynamic ones end 0.031 ± 0.022 and mHC 0.011 ± 0.029 below it, undecided after the correction; with other starts, without \
             √n and from b_res = −3, they end 0.052 ± 0.016 and 0.018 ± 0.017 below it. \
             With 4 layers, none can be told from it. Per character, the papers' differences are smaller than these runs can find.",
            "With 32 layers, post-norm still trains if its rate is small. DeepNorm trains at two and four times that rate, where most seeds of \
             post-norm fail. It takes a rate twice as large and ends 0.056 ± 0.050 below post-norm \
             (undecided after the correction), and 0.340 ± 0.026 above pre-norm after so few tokens. ReZero takes four times post-norm's rate; seven of eight seeds \
             end below every seed of post-norm, but one learns no more than the frequencies of characters, so the difference from post-norm \
             is undecided. All eight end above pre-norm, by 0.245 or more.",
        ],
    },
];
