//! Value embeddings from modded-nanogpt and nanochat: a layer with a table of token vectors e = table[id] has
//!
//! ```text
//! v + r σ(c W) e  in place of  v,   c = first channels of u, or of u and of e
//! a v + b e       in place of  v                                (modded-nanogpt, December 2024 to December 2025)
//! ```
//!
//! σ(c W) is one number per position and head, r is a constant, a and b are parameters, and u is the normalised input
//! of the layer. In the second form, layers without a table use a · v.

use burn::module::{Initializer, Module, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{Tensor, backend::Backend};
use residual_zoo_core::ops::attention::split_heads;
use residual_zoo_core::ops::embedding::embedding;
use residual_zoo_core::{
    Branch, BranchFn, ConfigError, Connection, Cost, Design, Params, Plain, Sites, Stream, check,
    normal, project, widen,
};
use serde::{Deserialize, Serialize};

use crate::values::{merged, need_equal_attention, per_head, size};

/// x + f(x), where attention adds rows of a table to its values. The stream carries the rows `[batch, time, heads · d]`
/// of tables that several layers read.
#[derive(Module, Debug)]
pub struct ValueEmbedding<B: Backend> {
    /// The table, `[ids, heads · d]`; only in the first layer that reads it.
    table: Option<Param<Tensor<B, 2>>>,
    /// W `[channels, heads]`, or `[2 · channels, heads]`.
    gate: Option<Param<Tensor<B, 2>>>,
    /// a and b, `[2]`; only a, `[1]`, in a layer without a table.
    lambda: Option<Param<Tensor<B, 1>>>,
    form: TableGate,
    /// The index of e among the carried tensors, if several layers read the table.
    shared: Option<usize>,
    is_attention: bool,
}

impl<B: Backend> ValueEmbedding<B> {
    /// Returns e `[batch, time, heads · d]`; `None` in a layer without a table.
    fn rows(&self, stream: &mut Stream<B>) -> Option<Tensor<B, 3>> {
        let Some(table) = &self.table else {
            return self.shared.map(|place| stream.carried[place].clone());
        };
        let Some(ids) = stream.ids.clone() else {
            unreachable!("the design refuses streams without ids")
        };
        let e = embedding(table.val(), ids);
        if self.shared.is_some() {
            stream.carried.push(e.clone());
        }
        Some(e)
    }

    /// Returns the values that replace v, from v and e `[batch, time, heads · d]` and u `[batch, time, width]`.
    fn change(&self, v: Tensor<B, 3>, e: Option<Tensor<B, 3>>, u: Tensor<B, 3>) -> Tensor<B, 3> {
        if let Some(lambda) = &self.lambda {
            let factor = |i| lambda.val().narrow(0, i, 1).unsqueeze();
            let v = v * factor(0);
            return match e {
                Some(e) => v + e * factor(1),
                None => v,
            };
        }
        let (Some(e), Some(gate)) = (e, &self.gate) else {
            return v;
        };
        let (c, range) = match self.form {
            TableGate::Channels { count, range } => (u.narrow(2, 0, count), range),
            TableGate::Both { count, range } => {
                let parts = vec![u.narrow(2, 0, count), e.clone().narrow(2, 0, count)];
                (Tensor::cat(parts, 2), range)
            }
            TableGate::Lambda => return v,
        };
        let g = sigmoid(project(c, gate.val())) * range;
        v + per_head(g, e)
    }
}

impl<B: Backend> Connection<B> for ValueEmbedding<B> {
    fn update<M: Branch<B>>(&self, mut stream: Stream<B>, f: BranchFn<'_, B, M>) -> Stream<B> {
        if !self.is_attention {
            return Plain.update(stream, f);
        }
        let e = self.rows(&mut stream);
        if e.is_none() && self.lambda.is_none() {
            return Plain.update(stream, f);
        }
        let fx = f.attend(stream.x.clone(), |mut heads| {
            let (count, [_, _, u]) = (heads.v.dims()[1], heads.u.clone());
            let v = self.change(merged(&heads.v), e.clone(), widen(u));
            heads.v = split_heads(v, count);
            heads
        });
        Stream {
            x: fx + stream.x,
            ..stream
        }
    }
}

/// The layers that have a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ValueTables {
    /// A table in every second layer, including the last (nanochat).
    #[default]
    EveryOther,
    /// The table number of each layer, or `None`. Tables are counted from 0 in the order of their first layers. Layers
    /// with the same number share the table.
    Layers(Vec<Option<usize>>),
}

impl ValueTables {
    /// Returns the table number of each of `count` layers.
    fn of(&self, count: usize) -> Vec<Option<usize>> {
        match self {
            Self::Layers(tables) => tables.clone(),
            Self::EveryOther => {
                let mut numbers = 0..;
                let number = |layer: usize| {
                    let has = (count - 1 - layer).is_multiple_of(2);
                    has.then(|| numbers.next()).flatten()
                };
                (0..count).map(number).collect()
            }
        }
    }
}

/// The way in which the rows of a table are added to the values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum TableGate {
    /// v + r σ(u\[..count\] W) e (nanochat). modded-nanogpt has this form from December 2025, with a range of 2, and
    /// with W and tables initially 0. This crate uses nanochat's initial weights.
    Channels {
        /// Number of channels of u that the gate reads.
        count: usize,
        /// r, the upper bound of the gate.
        range: f64,
    },
    /// v + r σ(\[u\[..count\], e\[..count\]\] W) e (modded-nanogpt in 2026).
    Both {
        /// Number of channels of u, and of e, that the gate reads.
        count: usize,
        /// r, the upper bound of the gate.
        range: f64,
    },
    /// a v + b e (modded-nanogpt, December 2024 to December 2025).
    Lambda,
}

/// The config of [`ValueEmbedding`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ValueEmbeddingConfig {
    /// The layers that have a table.
    pub tables: ValueTables,
    /// The way in which the rows of a table are added to the values. This choice also determines the initial tables and
    /// W.
    pub gate: TableGate,
}

impl Default for ValueEmbeddingConfig {
    /// Returns nanochat's form.
    fn default() -> Self {
        Self {
            tables: ValueTables::EveryOther,
            gate: TableGate::Channels {
                count: 12,
                range: 3.0,
            },
        }
    }
}

impl ValueEmbeddingConfig {
    /// Returns the table number of each layer on the stream.
    fn tables(&self, on: &Sites) -> Vec<Option<usize>> {
        self.tables.of(on.layers())
    }

    /// Returns the number of tables; `None` unless they are counted in the order of their first layers.
    fn count(tables: &[Option<usize>]) -> Option<usize> {
        tables.iter().flatten().try_fold(0, |seen, table| {
            (*table <= seen).then_some(seen.max(table + 1))
        })
    }

    /// Returns the number of tables whose rows the stream carries before layer `layer`. These are the tables that
    /// several layers read and that an earlier layer has read already.
    pub(crate) fn kept_rows(&self, on: &Sites, layer: usize) -> usize {
        let tables = self.tables(on);
        Self::shared(&tables, Self::count(&tables[..layer]).unwrap_or_default())
    }

    /// Whether several layers read `table`.
    fn is_shared(tables: &[Option<usize>], table: usize) -> bool {
        tables.iter().filter(|read| **read == Some(table)).count() > 1
    }

    /// Returns the number of tables with numbers below `end` that several layers read.
    fn shared(tables: &[Option<usize>], end: usize) -> usize {
        (0..end)
            .filter(|table| Self::is_shared(tables, *table))
            .count()
    }

    /// Returns the number of channels that a gate reads.
    fn channels(&self) -> usize {
        match self.gate {
            TableGate::Channels { count, .. } => count,
            TableGate::Both { count, .. } => 2 * count,
            TableGate::Lambda => 0,
        }
    }

    fn validate_tables(&self, on: &Sites) -> Result<(), ConfigError> {
        let (tables, layers) = (self.tables(on), on.layers());
        let wrong = |problem: String| Err(ConfigError::new("tables", problem));
        if tables.len() != layers {
            return wrong(format!(
                "is a list of {}, but the stream has {layers} layers; give it one entry for each",
                tables.len()
            ));
        }
        match Self::count(&tables) {
            None => wrong(
                "has a number before all smaller ones; count the tables from 0 in the order of their first layers"
                    .into(),
            ),
            Some(0) => wrong("has no table; give at least one layer a table".into()),
            Some(_) => Ok(()),
        }
    }
}

impl Design for ValueEmbeddingConfig {
    type Connection<B: Backend> = ValueEmbedding<B>;
    type Ends<B: Backend> = Plain;

    fn name(&self) -> &'static str {
        "value embedding"
    }

    fn validate(&self, on: &Sites) -> Result<(), ConfigError> {
        const NAME: &str = "ValueEmbedding";
        let size = need_equal_attention(on, NAME, "it changes the values of attention")?;
        on.need_ids(NAME, "it has tables of token ids")?;
        self.validate_tables(on)?;
        let (count, range, most) = match self.gate {
            TableGate::Channels { count, range } => (count, range, on.width),
            TableGate::Both { count, range } => {
                (count, range, on.width.min(size.kv_heads * size.d))
            }
            TableGate::Lambda => return Ok(()),
        };
        check::at_least_one("gate.count", count)?;
        check::at_most("gate.count", count, most)?;
        check::positive("gate.range", range)
    }

    fn connection<B: Backend>(
        &self,
        on: &Sites,
        i: usize,
        device: &B::Device,
    ) -> ValueEmbedding<B> {
        let (size, layer, tables) = (size(on), on.layer(i), self.tables(on));
        let is_attention = on.is_attention(i);
        let table = tables[layer].filter(|_| is_attention);
        let is_first = |layer: &usize| !tables[..*layer].contains(&tables[*layer]);
        let (ids, of_values) = (on.ids.unwrap_or(1), size.kv_heads * size.d);
        let uniform = |min, max| Initializer::Uniform { min, max };
        let rows = || match self.gate {
            TableGate::Both { .. } => normal([ids, of_values], 0.01, device),
            // PyTorch's default for embedding tables.
            TableGate::Lambda => normal([ids, of_values], 1.0, device),
            // The distribution of nanochat's initial W_v.
            TableGate::Channels { .. } => {
                let bound = (3.0 / on.width as f64).sqrt();
                uniform(-bound, bound).init([ids, of_values], device)
            }
        };
        let gate = |of: Initializer| of.init([self.channels(), size.kv_heads], device);
        let half = Initializer::Constant { value: 0.5 };
        let factors = if table.is_some() { 2 } else { 1 };
        let is_lambda = self.gate == TableGate::Lambda;
        ValueEmbedding {
            table: table.filter(|_| is_first(&layer)).map(|_| rows()),
            gate: table.and_then(|_| match self.gate {
                TableGate::Channels { .. } => Some(gate(uniform(0.0, 0.02))),
                TableGate::Both { .. } => Some(gate(Initializer::Zeros)),
                TableGate::Lambda => None,
            }),
            lambda: (is_lambda && is_attention).then(|| half.init([factors], device)),
            form: self.gate,
            // The stream carries rows in the order of the table numbers.
            shared: table
                .filter(|table| Self::is_shared(&tables, *table))
                .map(|table| Self::shared(&tables, table)),
            is_attention,
        }
    }

    fn ends<B: Backend>(&self, _: &Sites, _: &B::Device) -> Plain {
        Plain
    }

    fn cost(&self, on: &Sites) -> Cost {
        let (size, tables) = (size(on), self.tables(on));
        let table = Params {
            embedding: on.ids.unwrap_or(1).saturating_mul(size.kv_heads * size.d),
            ..Params::default()
        };
        let table = Cost {
            params: table,
            ..Cost::default()
        };
        let tables_cost = table * Self::count(&tables).unwrap_or_default();
        let with_table = tables.iter().flatten().count();
        let joins = match self.gate {
            TableGate::Lambda => Cost::vector(tables.len() + with_table),
            _ => Cost::linear(self.channels(), size.kv_heads, false) * with_table,
        };
        tables_cost + joins
    }
}
