//! Initial values.

use super::*;

#[test]
fn routers_and_tables_start_as_published() {
    let on = Sites {
        attention: Some(AttentionSize::of_heads(2, 4)),
        ids: Some(11),
        ..sites()
    };
    let device = Default::default();
    let values = |module: std::collections::BTreeMap<String, burn::tensor::TensorData>,
                  name: &str| { module[name].iter::<f32>().collect::<Vec<_>>() };
    // Connection 4 surrounds the attention of layer 2, whose router reads 3 · 2 heads.
    let router = |start| {
        let lime = LimeConfig { start }.connection::<B>(&on, 4, &device);
        values(params::export::<B, _>(&lime), "mixing")
    };
    let plain = router(LimeStart::Identity);
    assert_eq!(plain, [0., 0., 0., 0., 1., 0., 0., 0., 0., 0., 0., 1.]);
    let published = router(LimeStart::Published);
    for (i, x) in published.iter().enumerate() {
        match i % 6 < 4 {
            true => assert!(*x != 0.0 && x.abs() <= 0.5f32.sqrt(), "{published:?}"),
            false => assert_eq!(*x, plain[i]),
        }
    }
    let embedding = narrow_embedding().connection::<B>(&on, 4, &device);
    let embedding = params::export::<B, _>(&embedding);
    assert_eq!(*embedding["table"].shape, [11, 8]);
    assert!(
        values(embedding, "gate")
            .iter()
            .all(|x| (0.0..=0.02).contains(x))
    );
    // Of three layers, the first and the last have a table.
    let has = |i| narrow_embedding().connection::<B>(&on, i, &device);
    let tables = [0, 2, 4].map(|i| params::list::<B, _>(&has(i)).len());
    assert_eq!(tables, [2, 0, 2]);
}

#[test]
fn starts_are_those_of_the_papers() {
    let start = |on: &Sites| {
        let device = Default::default();
        let scaled = LayerScaleConfig::default().connection::<B>(on, 0, &device);
        params::export::<B, _>(&scaled)["a"]
            .iter::<f64>()
            .next()
            .unwrap() as f32
    };
    for (layers, expected) in [(12, 0.1), (18, 0.1), (24, 1e-5), (36, 1e-6)] {
        assert_eq!(start(&Sites::sublayers(8, layers, 2)), expected as f32);
    }
    // DeepNet, section 4.3: a decoder of L = 8 layers has α = 16^¼ = 2 and β = 64^-¼.
    let on = Sites::sublayers(8, 8, 2);
    let frame = DeepNormConfig::default().frame(on.count);
    assert!(!frame.pre_norm && !frame.final_norm && !frame.by_depth);
    for factor in [frame.inner, frame.output] {
        assert!((factor - 64f64.powf(-0.25)).abs() < 1e-12);
    }
    // a = 0 or a small a replaces GPT-2's 1/√(2L).
    for frame in [
        SkipInitConfig::default().frame(on.count),
        ReZeroConfig::default().frame(on.count),
        LayerScaleConfig::default().frame(on.count),
        // Nothing is added to the stream.
        DepthLstmConfig::default().frame(on.count),
        DepthLstmCellConfig::default().frame(on.count),
        // LayerNorm Scaling has 1/√(l + 1) instead. The authors of the other two do not divide either.
        placed(Placement::Lns).frame(on.count),
        placed(Placement::PostBranch).frame(on.count),
        placed(Placement::Mix { post_layers: None }).frame(on.count),
    ] {
        assert!(!frame.by_depth);
    }
    assert!(placed(Placement::Peri).frame(on.count).by_depth);
    assert_eq!(HyperConfig::default().frame(on.count).output, 0.5);
    let mix = InitialMixConfig {
        start: InitialMixStart::Nanochat,
    };
    let r_and_m = |i| {
        let mix = mix.connection::<B>(&Sites::sublayers(8, 3, 1), i, &Default::default());
        let values = params::export::<B, _>(&mix).into_values();
        values
            .map(|x| x.iter::<f32>().next().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(r_and_m(0), [0.20, 1.15]);
    assert_eq!(r_and_m(2), [0.05, 1.05]);
    let skip = |unet, i| {
        let config = SkipsConfig {
            unet: Some(unet),
            ..SkipsConfig::default()
        };
        let skips = config.connection::<B>(&Sites::sublayers(8, 2, 2), i, &Default::default());
        let values = params::export::<B, _>(&skips).into_iter();
        let values = values.map(|(name, x)| (name, x.iter::<f32>().next().unwrap()));
        values.collect::<Vec<_>>()
    };
    assert_eq!(skip(SkipWeight::Raw, 1), []);
    assert_eq!(skip(SkipWeight::Raw, 2), [("w".into(), 1.0)]);
    assert_eq!(skip(SkipWeight::Sigmoid, 3), [("w_logit".into(), -1.5)]);
}
