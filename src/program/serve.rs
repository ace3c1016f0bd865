//! `residual-zoo serve`

use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use residual_zoo::cli::{self, CheckpointArgs, PlaceArgs};
use residual_zoo::core::{ConfigError, ModelConfig as _};
use residual_zoo::data::check_is_file;
use residual_zoo::drive::{Reading, Sequences, Use, available_memory, check_reading, check_size};
use residual_zoo::experiment;
use residual_zoo::runs::{Error as RunError, checkpoint};
use residual_zoo::serve::Options as Serving;

use super::{LoopsArgs, name_of_run, note_edited, or_force};

/// Answer requests for completions over HTTP, from a run's model
///
/// The interface follows OpenAI's: /v1/models and /v1/completions. A page at / takes a prompt and shows the tokens as
/// they come. Requests of all clients are computed together. Ctrl-C waits for running requests to end, and stops.
#[derive(Args)]
#[command(after_long_help = "Examples:
  residual-zoo serve runs/gpt2
  curl http://127.0.0.1:8000/v1/completions \\
    -H 'Content-Type: application/json' \\
    -d '{\"prompt\": \"ROMEO:\"}'")]
pub struct ServeArgs {
    /// The run directory, such as runs/gpt2-shakespeare-cpu
    run: PathBuf,
    /// The port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// The address to listen on; with 0.0.0.0, other machines reach the server
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_parser = address)]
    host: IpAddr,
    /// A file with a key in its first line. Clients must send it as `Authorization: Bearer KEY` [default: the server
    /// answers everyone who reaches it]
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// The name of the model for clients [default: the name of the run directory]
    #[arg(long)]
    name: Option<String>,
    /// Sequences that are continued at once, 1 to 1024. Each needs memory for its context
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = cli::number(1, 1024))]
    batch: u32,
    /// Sequences that may wait or be continued, 1 to 65536; further ones are refused with status 429
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = cli::number(1, 65536))]
    queue: u32,
    /// Maximum tokens of a completion, 1 to 1000000. When the context is full, the model continues from its newest half
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = cli::number(1, 1_000_000))]
    max_tokens: u32,
    /// Seconds that running requests may take after the server is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = cli::parsed::<u32>("a whole number of at least 0"))]
    grace: u32,
    /// Go on even if this machine's memory cannot hold the model or the contexts of all sequences
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    loops: LoopsArgs,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    #[command(flatten)]
    place: PlaceArgs,
}

pub fn serve(options: ServeArgs) -> anyhow::Result<()> {
    let place = options.place.place()?;
    let mut run = options.checkpoint.open(&options.run)?;
    note_edited(run.directory());
    options.loops.apply(&mut run)?;
    let key = options.key.map(|path| key(&path)).transpose()?;
    if !options.force {
        let checked = check_size(
            &run.config,
            run.vocabulary(),
            (place.kind, place.gpu),
            Use::Load,
        );
        checked.map_err(or_force)?;
        let rows = options.batch as usize;
        let sequences = Sequences {
            option: ("--batch", rows),
            remedy: "give a smaller number",
            rows,
            // A prompt may fill the context.
            time: run.config.model.shape().context,
            reading: Reading::Serving,
        };
        let available = available_memory();
        let checked = check_reading(
            &run.config,
            run.vocabulary(),
            (place.kind, place.gpu),
            sequences,
            available,
        );
        checked.map_err(or_force)?;
    }
    let name = match options.name {
        Some(name) => name,
        None => name_of_run(&options.run)?,
    };
    if name.is_empty() || name.chars().any(char::is_control) {
        let problem = "of the model must have characters that can be shown; give one with `--name`";
        return Err(ConfigError::new("name", problem).into());
    }
    let is_open = key.is_none() && !options.host.is_loopback();
    let serving = Serving {
        host: options.host,
        port: options.port,
        key,
        name: name.clone(),
        batch: options.batch as usize,
        queue: options.queue as usize,
        max_tokens: options.max_tokens as usize,
        grace: Duration::from_secs(options.grace.into()),
    };
    let stop = cli::stop_on_signal()?;
    experiment::serve(&run, &serving, place, &stop, |address, checkpoint| {
        if is_open {
            cli::warn(
                "anyone who can reach this machine can use the model; require a key with `--key FILE`",
            );
        }
        let step = checkpoint::step_of(checkpoint);
        let step = step.map_or(String::new(), |step| format!(", step {step}"));
        // An error is ignored, because the server works without this line.
        let _ = cli::print(&format!("serving {name}{step}{place}, at http://{address}"));
    })?;
    Ok(())
}

/// Parses an IP address, or `localhost`.
fn address(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        text => text
            .parse()
            .map_err(|_| "must be an IP address, such as 0.0.0.0, or localhost".to_owned()),
    }
}

/// Reads the key in the first line of the file `path`.
fn key(path: &Path) -> anyhow::Result<String> {
    check_is_file(path)?;
    let unread = |error| RunError::io("read", path)(error);
    let mut start = Vec::new();
    File::open(path)
        .map_err(unread)?
        .take(MOST_KEY)
        .read_to_end(&mut start)
        .map_err(unread)?;
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&start);
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let key = String::from_utf8_lossy(line.trim_ascii()).into_owned();
    if key.is_empty()
        || key.len() as u64 == MOST_KEY
        || !key.bytes().all(|byte| byte.is_ascii_graphic())
    {
        let problem =
            "must have a key in its first line, of letters, digits and signs without spaces";
        return Err(ConfigError::new(path.display().to_string(), problem).into());
    }
    Ok(key)
}

/// Exclusive upper bound on the size of a key, in bytes.
const MOST_KEY: u64 = 1024;
