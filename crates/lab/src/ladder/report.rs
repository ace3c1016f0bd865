//! The tables of a ladder.

use residual_zoo_report::{Cell, Column, Table, si, sig};

use super::{Effects, Worth};
use crate::quantity::GAIN;
use crate::results::sentence;
use crate::tuning::RuleFit;
use crate::{Observed, Tuning};

impl Effects {
    /// Returns the table of gains and, if gains are extrapolated, the table of their trends.
    pub fn tables(&self) -> Vec<Table> {
        let tables = [self.gains_table(), self.trends_table()];
        tables
            .into_iter()
            .filter(|table| !table.rows.is_empty())
            .collect()
    }

    fn gains_table(&self) -> Table {
        let has_worth = self.gains.iter().any(|gain| gain.worth.is_some());
        let mut columns = vec![Column::text("run"), Column::number("gain", "nats")];
        columns.extend(has_worth.then(|| Column::number("worth × the tokens", "")));
        columns.push(Column::number("× the FLOPs", ""));
        columns.extend(has_worth.then(|| Column::number("gain at equal FLOPs", "nats")));
        columns.extend([
            Column::number("of the loss", "%"),
            Column::number("baseline's loss", "nats"),
            Column::number("size", ""),
            Column::number("tokens", ""),
            Column::number("tokens / size", ""),
        ]);
        let of = Observed::of(GAIN);
        let rows = self.gains.iter().map(|gain| {
            let mut row: Vec<Cell> = vec![
                format!("{}, {}", gain.run, gain.size).into(),
                of.show_interval(gain.mean, gain.half_width).into(),
            ];
            let shown = |factor| Worth::shown(factor, self.most_tokens);
            let worth = gain
                .worth
                .map(|Worth { factor, low, high }| match gain.seeds {
                    1 => shown(factor),
                    _ => format!("{} ({} to {})", shown(factor), shown(low), shown(high)),
                });
            row.extend(has_worth.then(|| worth.unwrap_or("–".into()).into()));
            let flops = gain.flops.map_or("–".into(), |flops| format!("{flops:.2}"));
            row.push(flops.into());
            let equal = gain
                .at_equal_flops
                .map(|(mean, half_width)| of.show_interval(mean, half_width));
            row.extend(has_worth.then(|| equal.unwrap_or("–".into()).into()));
            row.extend([
                Cell::from(sig(100.0 * gain.mean / gain.baseline_loss, 2)),
                Observed::of(super::LOSS).show(gain.baseline_loss).into(),
                si(gain.parameters).into(),
                si(gain.tokens).into(),
                sig(gain.tokens / gain.parameters, 2).into(),
            ]);
            row
        });
        let width = columns.len();
        let missing = self.missing.iter().map(|run| {
            let mut row = vec![Cell::from("–".to_owned()); width];
            row[0] = run.as_str().into();
            row
        });
        let mut note = format!(
            "A gain is the validation loss of {} minus the loss of the run, at the same size and with the same seed: the \
             mean over the seeds ± half the width of its 95 % confidence interval. The size is the number of parameters of \
             {0}, without embeddings. × the FLOPs is the run's training FLOPs divided by the training FLOPs of {0} at this \
             size.",
            self.baseline
        );
        if !self.missing.is_empty() {
            note += &format!(" No gain and so no trend: {}.", self.missing.join("; "));
        }
        if has_worth {
            note += &format!(
                " Worth is the factor on the tokens with which {} has the loss of the run, with the 95 % interval. {0} was \
                 trained on up to {} times its tokens, each time with a whole schedule and, under a rule, with its learning \
                 rate for 1 times the tokens. Losses in between are interpolated linearly in the logarithm of the tokens. \
                 The gain at equal FLOPs compares the run with {0} on so many more tokens that both have the same training \
                 FLOPs, and has no value where these lie outside of what was trained. Neither has a value if {0} lacks a \
                 seed of the run on more tokens. The loss falls faster at first, so the factor and the gain at equal FLOPs \
                 are too large rather than too small.",
                self.baseline, self.most_tokens
            );
        }
        Table {
            heading: "Gains at each size".into(),
            note,
            columns,
            rows: rows.chain(missing).collect(),
            highlight: None,
        }
    }

    fn trends_table(&self) -> Table {
        let at = self
            .trends
            .first()
            .map_or(String::new(), |trend| si(trend.at));
        let of = Observed::of(GAIN);
        let row = |trend: &super::effects::Trend| -> Vec<Cell> {
            let doubts = match (trend.doubts.is_empty(), trend.detectable_bend) {
                (true, Some(bend)) => {
                    let bend = of.show_difference(bend);
                    format!("no doubt found; a bend of {bend} for each doubling would have shown")
                }
                _ => format!("not to be trusted: {}", trend.doubts.join("; ")),
            };
            vec![
                trend.run.as_str().into(),
                of.show_interval(trend.slope, trend.slope_half_width).into(),
                of.show_interval(trend.mean, trend.half_width).into(),
                doubts.into(),
            ]
        };
        let has_bend = |trend: &super::effects::Trend| {
            trend.doubts.is_empty() && trend.detectable_bend.is_some()
        };
        let bend = match self.trends.iter().any(has_bend) {
            true => {
                " A bend is a change of the slope. A bend that would have shown is the smallest that these seeds show in \
                 80 % of cases."
            }
            false => "",
        };
        Table {
            heading: "Gains beyond the largest size".into(),
            note: format!(
                "For each seed, a straight line is fitted to the gain over the logarithm of the size. The slope is in nats \
                 for each doubling of the size. Both ± are 95 % confidence intervals over the seeds. The interval of the \
                 gain at a size of {at} holds only if the line stays straight, which no run here tests.{bend}"
            ),
            columns: vec![
                Column::text("run"),
                Column::number("slope per doubling", "nats"),
                Column::number(format!("gain at a size of {at}"), "nats"),
                Column::text("extrapolation"),
            ],
            rows: self.trends.iter().map(row).collect(),
            highlight: None,
        }
    }
}

impl Tuning {
    /// Returns a table of the rule's fit for each run, if the sweep has a rule.
    pub(crate) fn rule_table(&self) -> Option<Table> {
        let rule = self.sweep.rule.as_ref().filter(|_| !self.rule.is_empty())?;
        let name = self.sweep.over.first()?.name();
        let mut columns = vec![Column::text("run")];
        let sizes = rule.fitted.iter();
        columns.extend(sizes.map(|size| Column::number(format!("best at {size}"), "")));
        let checked = &rule.checked;
        columns.extend([
            Column::number(format!("best at {checked}"), ""),
            Column::number(format!("predicted at {checked}"), ""),
            Column::number("cost", "nats"),
            Column::number("exponent used", ""),
        ]);
        let used = self.rule.iter().flat_map(|fit| &fit.values);
        let mut sizes: Vec<&str> = Vec::new();
        for (size, _) in used {
            if !sizes.contains(&&**size) {
                sizes.push(size);
            }
        }
        let used = sizes.iter();
        columns.extend(used.map(|size| Column::number(format!("used at {size}"), "")));
        let row = |fit: &RuleFit| -> Vec<Cell> {
            let mut cells: Vec<Cell> = vec![fit.run.as_str().into()];
            cells.extend(fit.fitted.iter().map(|best| Cell::from(sig(best.value, 3))));
            let cost = fit.cost.map_or("–".into(), |cost| {
                Observed::of(GAIN).show_difference(cost)
            });
            cells.extend([
                Cell::from(sig(fit.checked.value, 3)),
                sig(fit.at_checked, 3).into(),
                cost.into(),
                sig(fit.exponent, 2).into(),
            ]);
            cells.extend(sizes.iter().map(|size| {
                Cell::from(fit.at(size).map_or("–".into(), |value| value.to_string()))
            }));
            cells
        };
        let mut note = format!(
            "A best value is the minimum of a parabola over the logarithm, through the lowest mean loss of the sweep and its \
             two neighbours. A power of the size, fitted to the best values at {}, predicts the value at {checked}. The cost \
             is the loss by which this value ends above the best one, by the parabola at {checked}; the tolerance is {} \
             nats. The {name} of a run is a power with the given exponent, fitted to the best values at all of these sizes.",
            rule.fitted.join(" and "),
            rule.within
        );
        let failures = self.rule.iter().filter_map(|fit| fit.failure.as_ref());
        note.extend(failures.map(|failure| sentence(failure)));
        Some(Table {
            heading: format!("Rule of the {name}"),
            note,
            columns,
            rows: self.rule.iter().map(row).collect(),
            highlight: None,
        })
    }
}
