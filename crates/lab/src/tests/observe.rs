use residual_zoo_train::Summary;

use super::*;
use crate::observe::{add_bits_per_byte, learned, of_summary};

#[test]
fn totals_count_the_run_before() {
    let row = |step: usize, tokens, loss| Row {
        step,
        tokens,
        flops: tokens as f64,
        seconds: step as f64,
        valid_loss: Some(loss),
        ..Row::default()
    };
    let summary = |rows: Vec<Row>| Summary {
        rows,
        cost: Default::default(),
        train_loss: 1.0,
        valid_loss: 1.0,
        valid_accuracy: 0.5,
        tokens_per_second: 1.0,
        stopped: false,
        trained: true,
        checkpoint: Default::default(),
    };
    let (quantities, rows) = of_summary(&summary(vec![row(0, 0, 4.0), row(10, 100, 2.0)]), None);
    assert_eq!(
        (
            quantities["first_valid_loss"],
            quantities["lowest_valid_loss"]
        ),
        (4.0, 2.0)
    );
    assert_eq!(
        (quantities["step_time"], quantities["tokens"]),
        (1.0, 100.0)
    );
    assert_eq!(quantities.get("level"), None);
    let mut row_of_curriculum = row(20, 200, 1.0);
    row_of_curriculum.level = Some(2);
    let (quantities_of_it, _) = of_summary(&summary(vec![row_of_curriculum]), None);
    assert_eq!(quantities_of_it["level"], 2.0);
    let before = Observation {
        rows,
        ..Observation::default()
    };
    let second = summary(vec![row(0, 0, 2.0), row(5, 50, 1.0)]);
    let (quantities, rows) = of_summary(&second, Some(&before));
    assert_eq!((quantities["tokens"], quantities["seconds"]), (150.0, 15.0));
    assert_eq!(rows[0].tokens, 100);
    // The step time does not include the run before.
    assert_eq!(quantities["step_time"], 1.0);
}

#[test]
fn what_is_learned_is_the_mean_of_single_numbers_by_the_end_of_their_names() {
    let scalars = [("a.alpha", 0.25), ("b.alpha", 0.75), ("tau", 2.0)];
    let scalars = scalars.map(|(name, value)| (name.to_owned(), value)).into();
    let found = learned(&scalars);
    assert_eq!((found["learned alpha"], found["learned tau"]), (0.5, 2.0));
    let logits = [("block.alpha_logit".to_owned(), 3f64.ln())].into();
    assert!((learned(&logits)["learned alpha"] - 0.75).abs() < 1e-12);
}

#[test]
fn bits_per_byte_follow_from_the_loss_and_the_bytes_of_a_token() {
    let of = |bytes_per_token| {
        let mut quantities = [("valid_loss".to_owned(), 2.0)].into();
        add_bits_per_byte(&mut quantities, bytes_per_token);
        quantities.get("bits_per_byte").copied()
    };
    // 2 nats are 2 / ln 2 = 2.885 bits, over four bytes.
    assert!((of(Some(4.0)).unwrap() - 0.721_347_520_444).abs() < 1e-9);
    assert_eq!(of(None), None);
}
