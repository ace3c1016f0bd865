//! Trains one run in several processes. Each process computes the gradients of its share of a step's micro-batches, and
//! all processes update the same weights with the sum. With `train.shard_optimizer`, each process instead updates a
//! part of the weights, sends this part to the others, and writes its own moments of the optimizer to each checkpoint.
//!
//! The leader calls [`run`](crate::run) with the team in its options, and writes the other files of the run directory.
//! The other processes [`follow`] the leader.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Tensor, TensorData};
use residual_zoo_core::params::ParamInfo;
use residual_zoo_core::{ConfigError, ModelConfig, params};
use residual_zoo_data::{Corpus, hash_of_parts};
use residual_zoo_runs::checkpoint::{OPTIMIZER, optimizer_file};
use residual_zoo_runs::run_dir::CONFIG;
use residual_zoo_runs::{Error, RunConfig};
pub use residual_zoo_system::team::Team;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::checkpoint::write_moments;
use crate::optimizer::Moments;
use crate::{Progress, Trainer};

/// The first message of the leader.
#[derive(Serialize, Deserialize)]
#[serde(bound = "C: ModelConfig")]
pub struct Start<C> {
    /// The config of the run.
    pub config: RunConfig<C>,
    /// The [identity](Corpus::identity) of the data.
    pub data: String,
}

/// An order from the leader after its first message.
#[derive(Serialize, Deserialize)]
enum Order {
    /// Take the leader's weights and moments.
    Share,
    /// Perform the next step, from this progress.
    Step(Progress),
    /// Show that your weights equal the leader's.
    Compare,
    /// Show that you see the run in this directory.
    Find(String),
    /// Write to this directory the moments that only you have.
    Save(String),
}

/// As the leader, tells the other processes which run will be trained.
///
/// # Errors
///
/// Returns an error if a step has fewer micro-batches than the team has processes, or if the model has running
/// statistics.
pub(crate) fn begin<C: ModelConfig>(
    team: Team,
    config: &RunConfig<C>,
    corpus: &Corpus,
) -> Result<(), Error> {
    if config.model.has_statistics() {
        let problem = "has batch norms, whose running statistics move with each micro-batch in turn; train it in one \
                       process, or set frozen_norm";
        return Err(ConfigError::new("model", problem).into());
    }
    let (micro_batches, size) = (config.train.accumulate, team.size());
    if micro_batches < size {
        let problem = format!(
            "is {micro_batches}, but {size} processes share the micro-batches of a step; set it to {size} or more, and \
             `train.batch` to a smaller number if the step is to keep its size, or start fewer processes"
        );
        return Err(ConfigError::new("train.accumulate", problem).into());
    }
    let start = Start {
        config: config.clone(),
        data: corpus.identity.clone(),
    };
    say(team, &start);
    Ok(())
}

/// In a process that follows the leader, receives the run that will be trained; `None` if the leader has ended.
pub fn start<C: ModelConfig>(team: Team) -> Option<Start<C>> {
    hear(team)
}

/// Follows the leader of `team` in training on `corpus`, until the leader ends.
///
/// # Errors
///
/// Returns an error if the data of this process differ from the leader's. Also returns the errors of [`Trainer::new`]
/// and [`Trainer::step`].
pub fn follow<B: AutodiffBackend, C: ModelConfig>(
    team: Team,
    start: Start<C>,
    corpus: &Corpus,
    device: B::Device,
) -> Result<(), Error> {
    if corpus.identity != start.data {
        return Err(Error::OtherData { rank: team.rank() });
    }
    let mut trainer = Trainer::<B, C>::new(start.config, corpus, device)?;
    while let Some(order) = hear(team) {
        match order {
            Order::Share => trainer.share(team),
            Order::Step(progress) => {
                trainer.progress = progress;
                trainer.step()?;
            }
            Order::Compare => drop(trainer.same_weights()),
            // The leader gets these errors too and reports them, so they are ignored here.
            Order::Find(run) => drop(find(team, Path::new(&run))),
            Order::Save(directory) => drop(trainer.save_shard(team, Path::new(&directory))),
        }
    }
    Ok(())
}

fn say(team: Team, what: &impl Serialize) {
    let message = serde_json::to_vec(what);
    team.send(&message.unwrap_or_else(|error| unreachable!("it is plain data: {error}")));
}

fn hear<T: DeserializeOwned>(team: Team) -> Option<T> {
    let message = team.receive()?;
    let what = serde_json::from_slice(&message);
    Some(what.unwrap_or_else(|error| unreachable!("the same program has written it: {error}")))
}

impl<B: AutodiffBackend, C: ModelConfig> Trainer<B, C> {
    /// As the leader, joins the team and gives it the weights and moments.
    ///
    /// # Errors
    ///
    /// With `train.shard_optimizer`, each process writes a part of every checkpoint. In that case, returns an error if
    /// a process does not see the run in `directory`, or if the path of `directory` is not UTF-8.
    pub(crate) fn lead(&mut self, team: Team, directory: &Path) -> Result<(), Error> {
        say(team, &Order::Share);
        self.share(team);
        if self.sharing().is_some() {
            let run = sendable(directory)?;
            say(team, &Order::Find(run.clone()));
            find(team, Path::new(&run))?;
        }
        Ok(())
    }

    /// Joins the team and gives all processes the leader's weights and moments.
    fn share(&mut self, team: Team) {
        self.team = Some(team);
        let mut weights = params::export::<B, _>(self.model());
        for data in weights.values_mut() {
            broadcast(team, data);
        }
        let mut moments = self.optimizer.export(self.model());
        let steps: Vec<(String, usize)> = match team.leads() {
            true => {
                let steps = moments
                    .iter()
                    .map(|(name, moments)| (name.clone(), moments.steps));
                let steps = steps.collect();
                say(team, &steps);
                steps
            }
            false => hear(team).unwrap_or_default(),
        };
        let of_others = self.of_others();
        let parameters = params::list::<B, _>(self.model()).into_iter();
        let mut parameters: HashMap<String, ParamInfo> =
            parameters.map(|p| (p.name.clone(), p)).collect();
        for (name, steps) in steps {
            let same = "all processes have the same model";
            let parameter = parameters.remove(&name);
            let parameter = parameter.unwrap_or_else(|| unreachable!("{same}"));
            let mut of_name = moments.remove(&name).unwrap_or_else(|| Moments {
                first: TensorData::zeros::<f32, _>(parameter.shape.clone()),
                second: (self.optimizer.second_shape(&parameter)).map(TensorData::zeros::<f32, _>),
                steps,
            });
            broadcast(team, &mut of_name.first);
            if let Some(second) = &mut of_name.second {
                broadcast(team, second);
            }
            if !of_others.contains(&parameter.id) {
                moments.insert(name, of_name);
            }
        }
        if !team.leads() {
            self.leave_average();
            let same = "all processes have the same model";
            let model = self.take_model();
            let model = params::import::<B, _>(model, weights);
            self.replace_model(model.unwrap_or_else(|error| unreachable!("{same}: {error}")));
            let taken = self.import_moments(moments);
            taken.unwrap_or_else(|error| unreachable!("{same}: {error}"));
        }
        self.optimizer.leave(of_others);
    }

    /// Returns the parameters that other processes update.
    fn of_others(&self) -> HashSet<ParamId> {
        let Some(team) = self.sharing() else {
            return HashSet::new();
        };
        let owners = self.owners().into_iter();
        let of_others = owners.filter(|(_, rank)| *rank != team.rank());
        of_others.map(|(id, _)| id).collect()
    }

    /// Returns, for each parameter, the rank of the process that updates it. In order of size, largest first, each
    /// parameter goes to the process that has the fewest values so far.
    fn owners(&self) -> HashMap<ParamId, usize> {
        let size = self.team.map_or(1, |team| team.size());
        let count = |parameter: &ParamInfo| parameter.shape.iter().product::<usize>();
        let mut parameters = params::list::<B, _>(self.model());
        parameters.sort_by_key(|parameter| std::cmp::Reverse(count(parameter)));
        let mut held = vec![0; size];
        let owners = parameters.into_iter().map(|parameter| {
            let rank = (0..size).min_by_key(|&rank| held[rank]).unwrap_or(0);
            held[rank] += count(&parameter);
            (parameter.id, rank)
        });
        owners.collect()
    }

    /// Returns the team, if its processes divide the moments among themselves.
    fn sharing(&self) -> Option<Team> {
        self.team.filter(|_| self.config.train.shard_optimizer)
    }

    /// If each process has updated only a part of the parameters, sends each part to all processes.
    pub(crate) fn exchange_weights(&mut self) {
        if let Some(team) = self.sharing() {
            let owners = self.owners();
            let model = self.take_model();
            self.replace_model(model.map(&mut Exchange { team, owners }));
        }
    }

    /// Writes the moments of the optimizer to `directory`. Processes that divide the moments write one file each.
    /// Returns the number of files.
    ///
    /// # Errors
    ///
    /// Returns I/O errors, including errors of other processes.
    pub(crate) fn save_moments(&self, directory: &Path) -> Result<usize, Error> {
        let Some(team) = self.sharing() else {
            let moments = self.optimizer.export(self.model());
            write_moments(&directory.join(OPTIMIZER), moments)?;
            return Ok(1);
        };
        let directory = sendable(directory)?;
        say(team, &Order::Save(directory.clone()));
        self.save_shard(team, Path::new(&directory))?;
        Ok(team.size())
    }

    /// Writes the moments of this process to `directory`.
    ///
    /// # Errors
    ///
    /// Returns the same error in all processes if one of them could not write.
    fn save_shard(&self, team: Team, directory: &Path) -> Result<(), Error> {
        let file = directory.join(optimizer_file(team.rank(), team.size()));
        let written = write_moments(&file, self.optimizer.export(self.model()));
        let problem = written.err().map(|error| error.to_string());
        match team.first_problem(problem) {
            None => Ok(()),
            Some((rank, problem)) => Err(Error::OfRank { rank, problem }),
        }
    }

    /// As the leader, tells the other processes to perform the next step.
    pub(crate) fn announce_step(&self) {
        if let Some(team) = self.team.filter(Team::leads) {
            say(team, &Order::Step(self.progress));
        }
    }

    /// As the leader, checks that all processes have the same weights.
    ///
    /// # Errors
    ///
    /// Returns [`Error::OtherWeights`] if the weights differ.
    pub(crate) fn check_team(&self) -> Result<(), Error> {
        match self.team {
            Some(team) => {
                say(team, &Order::Compare);
                self.same_weights()
            }
            None => Ok(()),
        }
    }

    fn same_weights(&self) -> Result<(), Error> {
        let Some(team) = self.team else {
            return Ok(());
        };
        let weights = params::export::<B, _>(self.model());
        let parts: Vec<&[u8]> = weights.values().map(TensorData::as_bytes).collect();
        let hashes = team.gather(*hash_of_parts("residual-zoo team weights", &parts).as_bytes());
        match hashes.iter().position(|hash| *hash != hashes[0]) {
            None => Ok(()),
            Some(rank) => Err(Error::OtherWeights { rank }),
        }
    }
}

/// Returns the absolute path as text, which has the same meaning for all processes.
fn sendable(path: &Path) -> Result<String, Error> {
    let whole = std::path::absolute(path).map_err(Error::io("find", path))?;
    whole.into_os_string().into_string().map_err(|_| {
        let problem = "is not UTF-8, which `train.shard_optimizer` requires; choose another directory with `--run`";
        Error::Checkpoint { path: path.into(), problem: problem.into() }
    })
}

/// Checks that all processes see the config of the run in `directory`.
///
/// # Errors
///
/// Returns the same error in all processes.
fn find(team: Team, directory: &Path) -> Result<(), Error> {
    let problem = (!directory.join(CONFIG).is_file()).then(|| {
        format!(
            "does not see {}; with `train.shard_optimizer`, the run directory must be on a file system that all \
             processes share",
            directory.display()
        )
    });
    match team.first_problem(problem) {
        None => Ok(()),
        Some((rank, problem)) => Err(Error::OfRank { rank, problem }),
    }
}

/// Appends the values of `data` to `values`.
fn extend(values: &mut Vec<f32>, data: TensorData) {
    let data = data.convert::<f32>();
    let all = data.as_slice::<f32>();
    values.extend_from_slice(all.unwrap_or_else(|error| unreachable!("it is f32: {error:?}")));
}

/// Gives all processes the parameters of each owner.
struct Exchange {
    team: Team,
    owners: HashMap<ParamId, usize>,
}

impl<B: AutodiffBackend> ModuleMapper<B> for Exchange {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        if !param.is_require_grad() {
            return param;
        }
        let owner = self.owners[&param.id];
        param.map(|x| {
            let device = x.device();
            let mut data = x.clone().into_data();
            broadcast_from(self.team, owner, &mut data);
            match owner == self.team.rank() {
                true => x,
                false => Tensor::from_data(data, &device).require_grad(),
            }
        })
    }
}

/// Gives all processes the leader's tensor.
fn broadcast(team: Team, data: &mut TensorData) {
    broadcast_from(team, 0, data);
}

/// Gives all processes the tensor of the process with rank `rank`.
fn broadcast_from(team: Team, rank: usize, data: &mut TensorData) {
    let mut values = Vec::new();
    extend(&mut values, data.clone());
    team.broadcast_from(rank, &mut values);
    *data = TensorData::new(values, data.shape.clone());
}

/// Replaces the gradients of the parameters of `model` with their sums over all processes. Returns the sum of `loss`,
/// `[1]`.
///
/// The sums go through host memory in one buffer.
pub(crate) fn sum<B: AutodiffBackend, M: Module<B>>(
    team: Team,
    model: &M,
    grads: &mut GradientsParams,
    loss: Tensor<B::InnerBackend, 1>,
) -> Tensor<B::InnerBackend, 1> {
    let device = loss.device();
    let mut take = Take {
        values: Vec::with_capacity(1 + model.num_params()),
        grads,
    };
    extend(&mut take.values, loss.into_data());
    Module::<B>::visit(model, &mut take);
    let mut values = take.values;
    team.sum(&mut values);
    let mut put = Put {
        values: &values[1..],
        grads,
    };
    Module::<B>::visit(model, &mut put);
    Tensor::from_data([values[0]], &device)
}

struct Take<'a> {
    values: Vec<f32>,
    grads: &'a GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Take<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(grad) = self.grads.get::<B::InnerBackend, D>(param.id) {
            extend(&mut self.values, grad.into_data());
        }
    }
}

struct Put<'a> {
    values: &'a [f32],
    grads: &'a mut GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Put<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(grad) = self.grads.remove::<B::InnerBackend, D>(param.id) {
            let (values, rest) = self.values.split_at(grad.shape().num_elements());
            self.values = rest;
            let sum = TensorData::new(values.to_vec(), grad.shape());
            self.grads.register(
                param.id,
                Tensor::<B::InnerBackend, D>::from_data(sum, &grad.device()),
            );
        }
    }
}
