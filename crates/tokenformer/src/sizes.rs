//! Sizes of the paper's models.

use crate::TokenFormerConfig;

/// The models of Table 8. The column `pairs` gives the number of pairs in each of Q, K, V and O, then in the
/// feed-forward network:
///
/// | constructor | L | d | heads | pairs | reported | parameters of the layers | with the token table |
/// |---|---|---|---|---|---|---|---|
/// | [`m150`](Self::m150) | 12 | 768 | 12 | 768, 3072 | 150M | 113,246,208 | 151,879,680 |
/// | [`m450`](Self::m450) | 24 | 1024 | 16 | 1024, 4096 | 450M | 402,653,184 | 454,164,480 |
/// | [`m900`](Self::m900) | 32 | 1280 | 16 | 1280, 5120 | 900M | 838,860,800 | 903,249,920 |
/// | [`b1_5`](Self::b1_5) | 40 | 1536 | 16 | 1536, 6144 | 1.5B | 1,509,949,440 | 1,587,216,384 |
/// | [`m124`](Self::m124) | 12 | 768 | 12 | 576, 2304 | 124M | 84,934,656 | 123,568,128 |
/// | [`m354`](Self::m354) | 12 | 768 | 12 | 2140, 8560 | 354M | 315,555,840 | 354,189,312 |
/// | [`m757`](Self::m757) | 12 | 768 | 12 | 4850, 19400 | 757M | 715,161,600 | 753,795,072 |
/// | [`b1_4`](Self::b1_4) | 12 | 768 | 12 | 8620, 34480 | 1.4B | 1,271,070,720 | 1,309,704,192 |
/// | [`base_86m`](Self::base_86m) | 12 | 768 | 12 | 576, 2304 | 86M | 84,934,656 | |
/// | [`base_109m`](Self::base_109m) | 12 | 768 | 12 | 768, 3072 | 109M | 113,246,208 | |
/// | [`large_307m`](Self::large_307m) | 24 | 1024 | 16 | 768, 3072 | 307M | 301,989,888 | |
/// | [`large_407m`](Self::large_407m) | 24 | 1024 | 16 | 1024, 4096 | 407M | 402,653,184 | |
///
/// The layers have 2 L d (4 n_attn + n_ffn) parameters, and the norms have none. The token table has 50,304 rows (the
/// ids of the GPT-NeoX tokenizer, padded to a multiple of 128) and is also the unembedding. The context is 1024.
/// Learned positions add 1024 d, so `m150().cost(50_304).params.total()` is 152,666,112. Rotary positions add nothing,
/// and `affine_final_norm` adds 2d.
///
/// The last four rows are the layers of the paper's vision models, which read images through the patch embeddings of
/// `residual-zoo-vit`.
impl TokenFormerConfig {
    fn sized(n_layer: usize, width: usize, n_attn: usize, n_ffn: usize, n_head: usize) -> Self {
        Self {
            n_layer,
            n_head,
            width,
            n_attn: Some(n_attn),
            n_ffn: Some(n_ffn),
            ..Self::default()
        }
    }

    /// Returns the config of the 150M language model.
    pub fn m150() -> Self {
        Self::sized(12, 768, 768, 3072, 12)
    }

    /// Returns the config of the 450M language model.
    pub fn m450() -> Self {
        Self::sized(24, 1024, 1024, 4096, 16)
    }

    /// Returns the config of the 900M language model.
    pub fn m900() -> Self {
        Self::sized(32, 1280, 1280, 5120, 16)
    }

    /// Returns the config of the 1.5B language model.
    pub fn b1_5() -> Self {
        Self::sized(40, 1536, 1536, 6144, 16)
    }

    /// Returns the config of the 124M model for parameter reuse, from which the 354M, 757M and 1.4B models grow.
    pub fn m124() -> Self {
        Self::sized(12, 768, 576, 2304, 12)
    }

    /// Returns the config of the 354M model for parameter reuse.
    pub fn m354() -> Self {
        Self::sized(12, 768, 2140, 8560, 12)
    }

    /// Returns the config of the 757M model for parameter reuse.
    pub fn m757() -> Self {
        Self::sized(12, 768, 4850, 19_400, 12)
    }

    /// Returns the config of the 1.4B model for parameter reuse. The exact count is 1.31B.
    pub fn b1_4() -> Self {
        Self::sized(12, 768, 8620, 34_480, 12)
    }

    /// Returns the config of the 86M vision model, Base.
    pub fn base_86m() -> Self {
        Self::m124()
    }

    /// Returns the config of the 109M vision model, Base.
    pub fn base_109m() -> Self {
        Self::m150()
    }

    /// Returns the config of the 307M vision model, Large. The paper prints 768 pairs for the feed-forward network,
    /// which give 189M. 3072 pairs fit the reported size.
    pub fn large_307m() -> Self {
        Self::sized(24, 1024, 768, 3072, 16)
    }

    /// Returns the config of the 407M vision model, Large.
    pub fn large_407m() -> Self {
        Self::m450()
    }
}
