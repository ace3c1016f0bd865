//! The main claims of each paper, and a short summary of its findings.

/// A paper and the findings of its trained models.
pub struct Paper {
    /// The directory of the paper's experiments.
    pub directory: &'static str,
    pub title: &'static str,
    pub address: &'static str,
    /// The main claims: an experiment, and the beginning of the claim's text.
    pub main: &'static [(&'static str, &'static str)],
    /// Notes on main claims: the beginning of the claim's text, and what its row must not leave out.
    pub notes: &'static [(&'static str, &'static str)],
    /// The indices in `main` of the claims that the README shows.
    pub front: &'static [usize],
    /// The experiment that measures how the loss of the baseline falls with the number of tokens.
    pub tokens: Option<&'static str>,
    /// The claims whose differences are also given as multiples of the baseline's tokens.
    pub sizes: &'static [Size],
    /// The runs of ladders whose gains are also given as multiples of the baseline's tokens.
    pub ladders: &'static [Rungs],
    pub summary: &'static [&'static str],
}

/// A claim about a difference from the baseline, and the factor on the tokens that the paper reports.
pub struct Size {
    pub name: &'static str,
    pub experiment: &'static str,
    /// The beginning of the claim's text.
    pub claim: &'static str,
    /// The name of the model in the experiment.
    pub run: &'static str,
    /// The factor that the paper reports, its measure, and its place in the paper.
    pub reported: Option<(f64, &'static str)>,
}

/// A run of a ladder.
pub struct Rungs {
    pub experiment: &'static str,
    /// The name of the run without a size.
    pub run: &'static str,
    /// The name of the design, as in [`Size::name`].
    pub design: &'static str,
}

pub const PAPERS: [Paper; 6] = [
    Paper {
        directory: "rmt",
        title: "Residual Matrix Transformer",
        address: "https://arxiv.org/abs/2506.22696",
        main: &[
            (
                "rmt_vs_transformer",
                "After the same number of tokens, the Residual Matrix Transformer (RMT) has a lower loss than the transformer",
            ),
            (
                "rmt_scaling",
                "primary: With the same FLOPs, the loss of the RMT is lower",
            ),
            (
                "rmt_ladder",
                "primary: At the largest size, the RMT has a lower loss",
            ),
            (
                "rmt_ladder",
                "primary: At the largest size, the RMT has at most 0.01 more",
            ),
            (
                "rmt_variants",
                "The RMT has a lower training loss than the highway transformer",
            ),
            ("rmt_stream_size", "The loss falls as the stream grows"),
            (
                "zero_shot",
                "On WikiText without the characters that the training text lacks, the RMT needs fewer bits per byte",
            ),
        ],
        notes: &[
            (
                "primary: With the same FLOPs, the loss of the RMT is lower",
                "p is for a higher loss; the learning rates of the RMTs are not settled",
            ),
            (
                "primary: At the largest size, the RMT has a lower loss",
                "17 % fewer FLOPs, 31 % fewer parameters, 17 % more peak memory",
            ),
            (
                "The loss falls as the stream grows",
                "without the smallest stream, the slope is -0.004 ± 0.017",
            ),
        ],
        front: &[0],
        tokens: Some("rmt_tokens"),
        sizes: &[Size {
            name: "RMT",
            experiment: "rmt_vs_transformer",
            claim: "After the same number of tokens, the Residual Matrix Transformer (RMT) has a lower loss than the transformer",
            run: "RMT",
            reported: Some((
                1.69,
                "tokens to the same training loss, in one run (Table 3)",
            )),
        }],
        ladders: &[Rungs {
            experiment: "rmt_ladder",
            run: "RMT",
            design: "RMT",
        }],
        summary: &[
            "After the same tokens, the RMT's loss is between 0.039 lower and 0.001 higher per character (95 %\n  \
             interval): undecided. The paper reports 0.11 lower per token, for models 2,000 times larger. Both\n  \
             models here read 2.05M characters. The RMT takes 2.40T FLOP and the transformer 2.87T.",
            "In `zero_shot`, with a vocabulary of 512 subword tokens and on seeds that no earlier run had used,\n  \
             the RMT ends 0.178 lower per token. This is not a claim: `rmt_vs_transformer` tests the loss, and a\n  \
             claim about these losses would have been named after they were known.",
            "The shares of tokens and FLOPs at which the RMT reaches the transformer's final loss are upper\n  \
             bounds. The models are validated ten times (five times in `rmt_stream_size`), and the loss in between\n  \
             is interpolated linearly.",
            "At the same FLOPs, the second of four RMTs ends 0.13 ± 0.05 above the transformers. The two larger\n  \
             ones cannot be distinguished from them: 0.012 ± 0.038 below and 0.041 ± 0.048 above. Four sweep\n  \
             seeds do not settle the learning rates of the RMTs. This also holds for the two primary claims.",
            "At the largest size, the RMT ends 0.100 ± 0.049 above the transformer. Its losses vary from seed to\n  \
             seed by 0.06, so four sweep seeds do not settle its learning rate. In an earlier run, at another\n  \
             learning rate, it ended 0.046 ± 0.038 above. So the claim is not tested.",
            "In `rmt_ladder`, with four sizes of 4 to 7 layers and the same tokens, the RMT gains 0.032 ± 0.052 at\n  \
             the largest size, with 17 % fewer FLOPs. Only at the second size is a gain found (0.120 ± 0.025). Its\n  \
             losses vary from seed to seed by 0.03 to 0.07, and the rule of the learning rate failed for both\n  \
             models, so the claims are undecided.",
            "The smallest RMT is not compared, because no transformer here has so few FLOPs.",
            "Of the variants of Table 10, the RMT has the lowest training loss here too. Only its lead over the\n  \
             depth-wise LSTM is decided. Its leads over the transformer (p 0.069) and the highway transformer\n  \
             (p 0.053) are undecided. Without the claim that is not in the paper, p is 0.046 and 0.040, and both\n  \
             claims would hold.",
            "Hierarchical aggregation ends 0.007 ± 0.003 below the transformer, and in the paper above it. This is\n  \
             no test of the paper, because the form of the aggregation is guessed from its parameters. The RMT's\n  \
             lead over it, 0.019 ± 0.022, is no test either.",
            "The highway transformer, second in Table 10, cannot be distinguished from the transformer. Its form\n  \
             or initialisation is probably not the paper's, because it hardly trains at the paper's learning rate.",
            "Nearly all of the fall with the stream's size is from 32 to 64, where the smallest stream trains\n  \
             unstably. Without it, the slope is −0.004 ± 0.017 for each doubling. The sizes from 128 to 512 cannot\n  \
             be distinguished. The largest stream takes 30 % more FLOPs than the smallest.",
            "On WikiText without the characters that the training text lacks, after training on tiny shakespeare,\n  \
             the RMT needs 0.07 to 0.16 fewer bits per byte. This is a second run, on other seeds: in the first,\n  \
             these characters masked the difference.",
            "A model four times as wide ends higher at the best learning rate of a narrow model than at its own\n  \
             best learning rate. Without μP, the difference is 0.117 (RMT) and 0.396 (transformer). With μP, it is\n  \
             0.020 and 0.037. The best learning rates for a seed are the best ones of the other seven seeds.",
            "At its own best learning rate, the wide model with μP ends higher than the one without: at 2.09\n  \
             against 2.04 (RMT) and 2.21 against 2.04 (transformer). The transformer's best learning rate with μP\n  \
             still moves, from 0.048 to 0.024. The ranges of learning rates were moved three times, on the seeds\n  \
             that judge the claims.",
            "The tasks of Table 6 need larger models.",
        ],
    },
    Paper {
        directory: "laurel",
        title: "LAuReL",
        address: "https://arxiv.org/abs/2411.07501",
        main: &[
            ("laurel_ablation", "LAuReL-RW+LR, whose learned weights"),
            (
                "laurel_ablation",
                "The deeper baseline is better than the baseline",
            ),
            (
                "laurel_ladder",
                "primary: At the largest size, LAuReL-RW+LR, whose weights",
            ),
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
        notes: &[(
            "LAuReL-RW+LR, whose learned weights",
            "the paper names a softmax and a sigmoid, not twice a softmax",
        )],
        front: &[0],
        tokens: None,
        sizes: &[],
        ladders: &[Rungs {
            experiment: "laurel_ladder",
            run: "RW+LR",
            design: "LAuReL-RW+LR",
        }],
        summary: &[
            "RW, LR and PA are the parts of LAuReL: residual weights, a low-rank correction, and the previous\n  \
             activations.",
            "In all rows, RW weights the stream and the branch by twice the softmax of two numbers. It is\n  \
             initially the plain residual. The paper names the softmax and the sigmoid.",
            "In `laurel_ablation`, no variant can be distinguished from the baseline. With RW+LR, the loss is between\n  \
             0.014 lower and 0.004 higher per character.",
            "In `laurel_ladder`, with four sizes of 4 to 7 layers, RW+LR gains 0.006 ± 0.008 at the largest size\n  \
             (undecided), 0.006 ± 0.009 at the third and 0.020 ± 0.014 at the second. RW gains nothing measurable\n  \
             but at the second size, 0.020 ± 0.016.",
            "The paper reports gains of 0.054 to 0.066 per token, which cannot be compared with losses per\n  \
             character.",
            "In the paper, four more layers (28 instead of 24) gain 0.020 per token. In `laurel_ablation`, the deeper\n  \
             baseline has seven layers instead of six, the same ratio. It ends 0.001 ± 0.012 above the baseline, so\n  \
             claims about losses against the deeper baseline are not tested.",
            "RW, LR, PA and RW+LR need less memory than one more layer, and RW+LR+PA needs more. In the paper, all\n  \
             variants need less.",
            "On another machine, RW alone ended 0.012 ± 0.006 above the baseline with the same seeds. Here it\n  \
             ends 0.005 ± 0.007 above.",
            "RW+LR with rank 16 ends 0.010 ± 0.005 below RW. With rank 4, it ends 0.009 ± 0.005 below RW, so the\n  \
             pattern of Figure 3 does not appear. Rank 16 is at the level of the baseline. The claims about ranks\n  \
             were replaced after runs on the same seeds.",
            "\"About as good\" is undecided for rank 4 and for the ResNet. Half of each interval (0.0053 and\n  \
             0.049) is wider than the tolerance (0.005 and 0.02), so eight seeds could not have confirmed these\n  \
             claims.",
            "On a small ResNet, neither LAuReL nor one more layer can be distinguished from the baseline. The\n  \
             seeds differ by more than the gains that the paper reports for ResNet-50.",
        ],
    },
    Paper {
        directory: "tokenformer",
        title: "TokenFormer",
        address: "https://arxiv.org/abs/2410.23168",
        main: &[
            (
                "tokenformer_growth",
                "On the tokens of the last stage alone, a transformer",
            ),
            (
                "tokenformer_chain",
                "After growing twice, a TokenFormer has a lower loss than a transformer that was widened twice",
            ),
            (
                "tokenformer_ablation",
                "The L2 norm and GELU are better than the softmax",
            ),
            (
                "tokenformer_vision",
                "A TokenFormer as large as a ViT is about as good",
            ),
        ],
        notes: &[
            (
                "On the tokens of the last stage alone, a transformer",
                "the grown TokenFormer has seen 4.5 times as many tokens",
            ),
            ("The L2 norm and GELU are better", "losses on text"),
        ],
        front: &[0],
        tokens: None,
        sizes: &[],
        ladders: &[Rungs {
            experiment: "growth_ladder",
            run: "grown",
            design: "grown TokenFormer, over training on",
        }],
        summary: &[
            "On the tokens of the last stage alone, a transformer from scratch is worse than the grown model,\n  \
             as the paper reports. The large TokenFormer from scratch, which the paper does not train, is worse\n  \
             too.",
            "For the same FLOPs, the grown model is worse: it ends 0.007 to 0.036 above the large TokenFormer\n  \
             from scratch, and 0.072 to 0.096 above a transformer. The paper does not make this comparison.",
            "In `growth_ladder`, with four sizes of 4 to 7 layers, a grown TokenFormer gains 0.004 ± 0.003 at the\n  \
             largest size over a small one that trains on with as many tokens. With as many FLOPs, it ends 0.061 ±\n  \
             0.005 above it. The rule of the learning rate failed for the small model, so these differences are\n  \
             undecided.",
            "A TokenFormer from scratch is worse than a transformer, by 0.052 to 0.073.",
            "With τ kept, growing keeps the function of a TokenFormer by construction. With τ = √n of\n  \
             equation 5, it does not: in a small example, logits of at most 3.1 move by up to 0.76.",
            "After growing twice on the same data, a TokenFormer ends 0.107 ± 0.014 above a transformer that was\n  \
             widened twice. This says nothing about growing: the small TokenFormer is 0.161 above the small\n  \
             transformer before either grows, and no small model trains on.",
            "In `tokenformer_net2net`, the small models train on too. On new data, neither the grown nor the\n  \
             widened model gains from its size within 300 steps. The grown TokenFormer ends 0.128 ± 0.010 above\n  \
             the widened transformer, and the small models differ by 0.130.",
            "Starting from the weights of a transformer saves training, but training the transformer further is\n  \
             better.",
            "On text, the order of Table 4 holds: L2 norm and GELU, then the L1 norm, then the softmax. On\n  \
             images, too, the softmax is the worst, but the two norms cannot be distinguished. The L1 norm has\n  \
             τ = n, a choice made here.",
            "On image patches, a TokenFormer as large as a ViT ends 0.021 ± 0.022 above it: undecided. Half of\n  \
             the interval (0.022) is wider than the tolerance (0.020), so eight seeds could not have confirmed the\n  \
             claim. The two classify 37 and 39 % of the test images correctly. After two passes, all models are far\n  \
             from fully trained.",
            "New tokens that are tuned on another text end at the loss of LoRA with as many parameters. This is\n  \
             0.170 ± 0.015 above the loss after tuning all weights.",
            "Merging tokens tuned on another text with tokens tuned on the first text raises the loss on the\n  \
             first text from 2.03 to 2.86.",
            "The initialisation of the authors' code is designed for widths of 768 and more. With it, a\n  \
             TokenFormer of width 64 ends 0.196 ± 0.024 higher than with √(2 / (5 d)), which the\n  \
             other experiments use.",
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
                "One recurrent layer solves the copy task over 256 tokens of noise (",
            ),
            (
                "recurrent_image",
                "The recurrent transformer classifies images with an accuracy of 47.3 %",
            ),
        ],
        notes: &[
            (
                "For the same FLOPs, one recurrent layer",
                "the tolerance was added after the runs, and without it the claim is undecided; the recurrent layer sees 3.2 times the tokens",
            ),
            (
                "α goes to zero on language (Section 6.3)",
                "a negative α is clamped to 0",
            ),
        ],
        front: &[2],
        tokens: None,
        sizes: &[],
        ladders: &[],
        summary: &[
            "From block to block, the equations of the paper carry the hidden state, and the authors' code\n  \
             carries the output of a layer. If both forms were trained, a claim names the form.",
            "α multiplies the carried value. Reports show it before it is clamped to [0, 1], so it can be\n  \
             negative.",
            "For the FLOPs of six ordinary layers, one recurrent layer ends between 0.015 below and 0.006 above\n  \
             them, with a fifth of their parameters. The tolerance of 0.01 for \"as good\" was added after the\n  \
             runs. Without it, the claim is undecided.",
            "After the same tokens, one recurrent layer is worse than one ordinary layer, by 0.043 to 0.056. The\n  \
             paper does not make this comparison.",
            "α goes to zero, as reported. The larger a fixed α, the higher the loss.",
            "After the same tokens, four stacked layers are better than one, by 0.077 to 0.089. They need 3.9\n  \
             times the FLOPs. In `recurrent_shakespeare`, one layer that is trained for fewer FLOPs ends lower\n  \
             than the four. So this does not contradict the paper, which finds no benefit in stacking.",
            "All seeds solve the copy over 256 tokens of noise, with and without the curriculum. The paper uses\n  \
             up to 4096 tokens of noise, 16 times as many. The claim was narrowed to 256 tokens after runs.",
            "The selective copy is not solved after 128,000 samples. The published code uses up to 25.6\n  \
             million.",
            "After 16,000 of 600,000 samples, 18 to 21 % of the images are classified correctly. The paper\n  \
             reports 47 %.",
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
                "attention_blocks",
                "primary: Attention residuals have a lower loss than the plain residual for the same tokens",
            ),
            (
                "attention_blocks",
                "primary: Blocks of 4 residuals have a lower loss than the plain residual for the same tokens",
            ),
            (
                "hyper_depth",
                "primary: With 12 layers, and initial output projections divided by",
            ),
            (
                "hyper_depth",
                "primary: Static hyper-connections have a lower loss than the plain residual, 12 layers",
            ),
            (
                "hyper_ladder",
                "primary: At the largest size, hyper-connections with initial outputs",
            ),
            (
                "hyper_ladder",
                "primary: At the largest size, static hyper-connections with initial outputs",
            ),
            (
                "mhc_depth",
                "primary: mHC has a lower loss than the plain residual, 12 layers",
            ),
            (
                "mhc_ladder",
                "primary: At the largest size, mHC has a lower loss",
            ),
            (
                "attention_ladder",
                "primary: At the largest size, attention residuals have a lower loss",
            ),
            (
                "attention_ladder",
                "primary: At the largest size, attention residuals in blocks have a lower loss",
            ),
            (
                "dense_ladder",
                "primary: At the largest size, a DenseFormer has a lower loss than a transformer of the same",
            ),
            ("deep_norm", "DeepNorm has a lower loss than post-norm"),
            ("deep_norm", "ReZero has a lower loss than post-norm"),
            (
                "values",
                "primary: Value residuals with learned scalars have a lower loss",
            ),
            (
                "values",
                "primary: Gated value residuals have a lower loss than learned scalars",
            ),
            (
                "values",
                "primary: Value embeddings have a lower loss than the plain",
            ),
            (
                "values",
                "primary: Values shared by all layers cost at most",
            ),
        ],
        notes: &[
            (
                "primary: Attention residuals have",
                "after the results, with the seeds of `attention_residual`: -0.0156 ± 0.0155 over 16 seeds",
            ),
            (
                "primary: With 12 layers, and initial output",
                "12 % more FLOPs",
            ),
            ("primary: Static hyper-connections have", "6 % more FLOPs"),
            (
                "primary: At the largest size, hyper-connections",
                "8 % more FLOPs",
            ),
            (
                "primary: At the largest size, static hyper-connections",
                "4 % more FLOPs",
            ),
            (
                "primary: mHC has a lower loss",
                "33 % more FLOPs; with as many, the plain residual ends 0.064 ± 0.024 below mHC",
            ),
            (
                "primary: At the largest size, attention residuals have",
                "3 % more FLOPs; with as many, the gain is 0.008 ± 0.007, with p 0.035 before a correction",
            ),
            (
                "primary: At the largest size, mHC",
                "21 % more FLOPs; with as many, the plain residual ends 0.019 ± 0.012 below mHC",
            ),
            (
                "primary: Value residuals with learned",
                "after the results, with the seeds of `value_residual`: -0.0122 ± 0.0079 over 16 seeds",
            ),
            ("primary: Value embeddings have", "6 % more parameters"),
        ],
        front: &[4, 1],
        tokens: Some("streams_tokens"),
        sizes: &[
            Size {
                name: "value residuals, learned weights",
                experiment: "values",
                claim: "primary: Value residuals with learned scalars have a lower loss",
                run: "learned scalars",
                reported: Some((1.25, "tokens (abstract of version 5)")),
            },
            Size {
                name: "value embeddings",
                experiment: "values",
                claim: "primary: Value embeddings have a lower loss than the plain",
                run: "embedded",
                reported: None,
            },
            Size {
                name: "DenseFormer",
                experiment: "dense_former",
                claim: "A DenseFormer has a lower loss than a transformer of the same depth",
                run: "DenseFormer, 12 layers",
                reported: None,
            },
            Size {
                name: "attention residuals, full",
                experiment: "attention_blocks",
                claim: "primary: Attention residuals have a lower loss",
                run: "attention residual",
                reported: None,
            },
            Size {
                name: "attention residuals, blocks of two layers",
                experiment: "attention_blocks",
                claim: "primary: Blocks of 4 residuals have a lower loss",
                run: "blocks of 4",
                reported: Some((1.25, "compute (Section 5.1)")),
            },
            Size {
                name: "hyper-connections",
                experiment: "hyper_depth",
                claim: "primary: With 12 layers, and initial output projections divided by",
                run: "hyper, 12 layers",
                reported: Some((
                    1.8,
                    "faster, in the curve of one run (Figure 1, OLMoE-1B-7B)",
                )),
            },
            Size {
                name: "static hyper-connections",
                experiment: "hyper_depth",
                claim: "primary: Static hyper-connections have a lower loss than the plain residual, 12 layers",
                run: "static hyper, 12 layers",
                reported: None,
            },
            Size {
                name: "mHC",
                experiment: "mhc_depth",
                claim: "primary: mHC has a lower loss than the plain residual, 12 layers",
                run: "mHC, 12 layers",
                reported: None,
            },
        ],
        ladders: &[
            Rungs {
                experiment: "hyper_ladder",
                run: "hyper",
                design: "hyper-connections",
            },
            Rungs {
                experiment: "hyper_ladder",
                run: "static hyper",
                design: "static hyper-connections",
            },
            Rungs {
                experiment: "mhc_ladder",
                run: "mHC",
                design: "mHC",
            },
            Rungs {
                experiment: "attention_ladder",
                run: "attention residual",
                design: "attention residuals, full",
            },
            Rungs {
                experiment: "attention_ladder",
                run: "blocks",
                design: "attention residuals, blocks of one layer",
            },
            Rungs {
                experiment: "dense_ladder",
                run: "DenseFormer",
                design: "DenseFormer",
            },
        ],
        summary: &[
            "DenseFormer with twelve layers ends 0.019 ± 0.008 below the transformer. A transformer\n  \
             of sixteen layers ends above the transformer of twelve layers after so few tokens, so the claim\n  \
             about a deeper transformer is not tested.",
            "Attention residuals in blocks of two layers end 0.020 ± 0.022 below the plain residual, and full ones\n  \
             0.018 ± 0.031 below: both undecided. In two of eight seeds, the full form ends above the plain residual.",
            "Value residuals are undecided in two experiments with twelve layers. In `value_residual`, learned\n  \
             weights lower the loss by 0.008 ± 0.008, and in `values`, on other seeds, by 0.016 ± 0.015. Taken\n  \
             together after the results, they lower it by 0.012 ± 0.008 over 16 seeds.",
            "Attention residuals were trained twice too. Taken together after the results, the full form lowers the\n  \
             loss by 0.0156 ± 0.0155 over 16 seeds.",
            "With learned weights, five of eight runs reach the final loss of the transformer sooner. The other\n  \
             three never do, by 0.0017, 0.0003 and 0.0001. In the paper, value residuals save 20.3 % of the\n  \
             tokens, which is 1.25 times.\n  \
             The abstract does not say to which variant this figure belongs.",
            "On the seeds of `hyper_depth`, value embeddings end 0.034 ± 0.010 below the transformer. Learned\n  \
             scalars end 0.016 ± 0.015 below it, and gated values 0.012 ± 0.013: both undecided. Gated values end\n  \
             0.005 ± 0.007 above learned scalars (undecided); in their paper, they end below.",
            "Values that all layers share, with 7 % fewer parameters, end 0.005 ± 0.015 below the transformer. So\n  \
             eight seeds do not show a penalty of sharing, and do not rule out one of 0.01. On the four seeds of\n  \
             the sweep, they end 0.019 ± 0.037 above it.",
            "The shares of tokens and FLOPs at which value residuals and attention residuals reach a loss are\n  \
             upper bounds. The models are validated four times, and the loss in between is interpolated linearly.",
            "With 12 layers, static hyper-connections end 0.077 ± 0.013 below the plain residual, and dynamic ones\n  \
             0.068 ± 0.013 below, in all eight seeds. The plain residual with 12 layers is itself 0.024 ± 0.012\n  \
             worse than with 4 layers after so few tokens. Against the plain residual with 4 layers, static\n  \
             hyper-connections with 12 layers end 0.053 ± 0.010 below, and dynamic ones 0.043 ± 0.011 below.",
            "In `hyper_depth`, the initial outputs of hyper-connections are divided by √n. The paper's \"by a factor\n  \
             of √n\" can also mean a multiplication. In `hyper_root_n`, with 12 layers, static ones gain\n  \
             0.077 ± 0.013 with division, 0.078 ± 0.017 with unchanged outputs, and 0.062 ± 0.015 with\n  \
             multiplication. Dynamic ones gain 0.068 ± 0.013, 0.059 ± 0.014 and 0.047 ± 0.020. With\n  \
             multiplication, these gains are exploratory, and undecided with 4 layers. Which reading is better is\n  \
             undecided.",
            "In the paper, dynamic hyper-connections are better than static ones. Here they end 0.0097 ± 0.0095\n  \
             above them: undecided after the correction.",
            "In `hyper_ladder`, with four sizes of 4 to 7 layers, static hyper-connections gain 0.047 ± 0.009 and\n  \
             0.040 ± 0.012 at the two largest sizes, and dynamic ones 0.039 ± 0.014 and 0.032 ± 0.010. At the\n  \
             second size, they gain 0.045 ± 0.041 and 0.028 ± 0.054. At the smallest, no gain is found\n  \
             (−0.002 ± 0.019 and −0.003 ± 0.013). Whether the gain holds as the models grow is undecided.",
            "With as many FLOPs, at the largest size of `hyper_ladder`, static ones keep 0.034 ± 0.012 of the gain,\n  \
             and dynamic ones 0.019 ± 0.011 (computed after the results).",
            "With 12 layers and the initial values of Megatron-LM, mHC ends 0.032 ± 0.014 below the plain residual\n  \
             after the same tokens. At this width, mHC has 455k parameters against 339k (+34 %), and takes 2.67T\n  \
             FLOP against 2.01T (+33 %).",
            "The plain residual with 12 layers ends 0.024 ± 0.012 above the plain residual with 4 layers. mHC with\n  \
             12 layers cannot be distinguished from the plain residual with 4 layers: 0.007 ± 0.018 below.",
            "With as many FLOPs as mHC, the plain residual ends 0.064 ± 0.024 below mHC. This comparison\n  \
             interpolates the losses of `streams_tokens` and was added after the results.",
            "In `attention_ladder`, with four sizes of 4 to 7 layers, full attention residuals gain 0.013 ± 0.008 at\n  \
             the largest size. Over the plain residual with as many FLOPs, they gain 0.008 ± 0.007, which a correction\n  \
             for two claims would make undecided. Blocks of one layer gain 0.004 ± 0.015 (undecided). At the third\n  \
             size, the forms gain 0.014 ± 0.009 and 0.015 ± 0.015. At the two smaller sizes, no gain is found.",
            "In `dense_ladder`, with four sizes of 4 to 7 layers, DenseFormer ends 0.003 ± 0.007 above the plain\n  \
             residual at the largest size, after three tokens per parameter. No gain is decided at any size. The\n  \
             comparison with a deeper transformer is not tested. This says little about 48 layers.",
            "In `mhc_ladder`, with four sizes of 4 to 7 layers, mHC gains 0.012 ± 0.014 at the largest size and nothing\n  \
             measurable at the smaller ones. With as many FLOPs, the plain residual has a lower loss at every size.\n  \
             The claims are undecided, also because the rule of mHC's learning rate failed.",
            "The paper's figure for mHC is a training loss, and the rows here compare validation losses.",
            "On the four seeds of the sweep, at the same learning rate, mHC ends 0.007 ± 0.018 below the plain\n  \
             residual with 12 layers and 0.009 ± 0.013 above it with 4. Over all twelve seeds, it ends\n  \
             0.023 ± 0.012 and 0.003 ± 0.009 below it.",
            "The difference between mHC and mHC with b_res = −8, which hardly mixes the streams at first, is\n  \
             undecided: 0.014 ± 0.029.",
            "With 4 layers, static and dynamic hyper-connections end 0.026 ± 0.015 and 0.018 ± 0.010 below the\n  \
             plain residual. The gain of dynamic ones is larger with 12 layers, by 0.049 ± 0.019. Half of this is\n  \
             the plain model, which is worse with 12 layers than with 4, so the claim about depth is not tested.",
            "With 4 layers, mHC cannot be distinguished from the plain residual.",
            "With 32 layers, post-norm still trains if its learning rate is small. At twice that learning rate,\n  \
             all six sweep seeds of DeepNorm train and two of post-norm. At four times, four of DeepNorm train and\n  \
             none of post-norm. The claim of DeepNorm's paper is stability, so its claim about losses is not tested.",
            "At twice post-norm's best learning rate, DeepNorm ends 0.056 ± 0.050 below post-norm: undecided\n  \
             after the correction for two claims (p 0.066, and 0.033 without it). After so few tokens, DeepNorm\n  \
             ends 0.340 ± 0.026 above pre-norm.",
            "ReZero's best learning rate is four times post-norm's. Seven of its eight seeds end below every seed\n  \
             of post-norm. The eighth learns no more than the frequencies of characters. All eight end above\n  \
             pre-norm, by 0.245 or more. Their initialisation comes from GPT-2, not from ReZero's authors, and a\n  \
             loss after 800 steps is not the speed of training. So the paper's claims are not tested.",
        ],
    },
    Paper {
        directory: "llama",
        title: "Modern decoder",
        address: "papers/llama.md#equations-and-code",
        main: &[
            (
                "modern_baseline",
                "primary: The modern decoder has a lower loss than GPT-2",
            ),
            (
                "modern_baseline",
                "primary: SwiGLU has a lower loss than GELU",
            ),
            (
                "modern_baseline",
                "primary: Attention with a gate for each head has a lower loss than without",
            ),
            (
                "modern_baseline",
                "primary: Canon layers have a lower loss than none",
            ),
            (
                "muon",
                "primary: For the same tokens, Muon has a lower loss than AdamW",
            ),
            (
                "muon",
                "primary: With half the tokens, Muon has no higher loss than AdamW with all of them",
            ),
        ],
        notes: &[
            (
                "primary: Attention with a gate",
                "+0.011 on the four seeds of the sweep, and -0.004 ± 0.011 over all twelve",
            ),
            ("primary: Canon layers have", "7 % more parameters"),
        ],
        front: &[],
        tokens: None,
        sizes: &[],
        ladders: &[
            Rungs {
                experiment: "modern_ladder",
                run: "hyper",
                design: "hyper-connections, modern decoder",
            },
            Rungs {
                experiment: "modern_ladder",
                run: "static hyper",
                design: "static hyper-connections, modern decoder",
            },
            Rungs {
                experiment: "modern_ladder",
                run: "mHC",
                design: "mHC, modern decoder",
            },
        ],
        summary: &[
            "A Llama of 117k parameters ends 0.113 ± 0.015 below a GPT-2 of the same size, both with tuned\n  \
             learning rates. Without SwiGLU and the untied unembedding, the lead is still 0.095 ± 0.013. RMS norms,\n  \
             rotary instead of learned positions, and the initial weights cause this rest; they were not separated.",
            "Canon layers lower the loss by 0.111 ± 0.015, with 7 % more parameters, 6 % more FLOPs and 44 % more\n  \
             memory. No control has the same size. A convolution over four characters may help less with words.",
            "Gated attention ends 0.011 ± 0.008 lower on the eight seeds of the claims. On the four seeds of the sweep, at\n  \
             the same learning rate, it ends 0.011 higher, and over all twelve 0.004 ± 0.011 lower. The gate\n  \
             also halves the initial output of attention; the two effects were not separated.",
            "Norms after branches, without OLMo 2's QK-norm, raise the loss by 0.119 ± 0.018. The verdicts on a\n  \
             separate unembedding, QK-norm, shared key-value heads, and norms before and after branches are\n  \
             undecided.",
            "With the same tokens, Muon ends 0.065 ± 0.008 below AdamW on a Llama of 117k parameters. The\n  \
             learning rate and the weight decay of both optimizers are tuned. Muon is used in Moonlight's form.",
            "Muon reaches AdamW's final loss after 75 % of the tokens, on a schedule of the whole length.\n  \
             With the FLOPs of Newton-Schulz, these are about 87 % of AdamW's FLOPs. The paper reports about 52 %, if\n  \
             the size of the model and the number of tokens are optimal for the FLOPs.",
            "With half the tokens and a schedule of half the length, Muon ends 0.063 ± 0.014 above AdamW with\n  \
             all of them. The learning rate and the weight decay of this run are tuned too. This claim is derived\n  \
             from the paper, whose authors reduce model and tokens together.",
            "Liu et al. compare models of 0.4B to 1.5B parameters, each trained on the number of tokens that is\n  \
             optimal for its compute. The models here see seven tokens per parameter.",
        ],
    },
];
