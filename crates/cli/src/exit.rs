//! The end of a program: exit codes and signals.

use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use residual_zoo_backend::BackendError;
use residual_zoo_core::ConfigError;
use residual_zoo_data::DataError;
use residual_zoo_drive::Error as DriveError;
use residual_zoo_exchange::Error as ExchangeError;
use residual_zoo_lab::{Error, of_comparison};
use residual_zoo_runs::{Error as RunError, OtherPlace};
use residual_zoo_system::console::warn;
use residual_zoo_system::signals::{on_stop, on_suspension};
use residual_zoo_system::terminal::is_gone;
use residual_zoo_system::{Blame, Fault, output, short_numbers, stop};
use residual_zoo_train::Interrupter;
use residual_zoo_train::dashboard::{is_open, restore_terminal, suspend_screen};

use crate::arguments;

/// Prints an error as one line on standard error, and returns the exit code of the program. The code is 2 if the
/// request cannot be fulfilled, for example because the output path is not writable. The code is 1 if the machine or
/// the run failed, for example because the disk is full. A command that was stopped before its end has the code that
/// shells expect: 128 plus the number of the signal. A stopped command has this code even if it has saved its work.
pub fn report(result: anyhow::Result<()>) -> ExitCode {
    let Err(mut error) = result else {
        return ExitCode::SUCCESS;
    };
    let fault = fault(&error);
    if fault == Fault::Stop {
        warn(&error.to_string());
        return ExitCode::from(stopped_by());
    }
    set_remedies(&mut error);
    // A path may contain a line break, but an error must be one line.
    let text = error.to_string().replace('\n', "\\n");
    warn(&format!("error: {}", short_numbers(&text)));
    ExitCode::from(if fault == Fault::Input { 2 } else { 1 })
}

/// Adds the remedies of the running command to an error.
fn set_remedies(error: &mut anyhow::Error) {
    let Some(error) = of_run(error) else { return };
    let mut arguments = arguments();
    let command = arguments.next();
    if command.as_deref() == Some("compare") {
        of_comparison(error);
    }
    let is_resume = |it: &String| it == "--resume" || it.starts_with("--resume=");
    if let (_, Some(chosen)) = error.remedies() {
        *chosen = match command.as_deref() {
            Some("train") if arguments.any(|it| is_resume(&it)) => OtherPlace::Fixed,
            _ => place().map_or(OtherPlace::Free, OtherPlace::By),
        };
    }
}

/// Returns the error of a run inside `error`, if there is one.
pub fn of_run(error: &mut anyhow::Error) -> Option<&mut RunError> {
    if error.is::<RunError>() {
        error.downcast_mut()
    } else if error.is::<DriveError>() {
        error.downcast_mut::<DriveError>()?.of_run()
    } else if error.is::<ExchangeError>() {
        error.downcast_mut::<ExchangeError>()?.of_run()
    } else {
        error.downcast_mut::<Error>()?.of_run()
    }
}

/// Returns the options that set the place of the running command's output.
fn place() -> Option<&'static str> {
    let command = arguments().next().unwrap_or_default();
    match command.as_str() {
        "train" | "compare" | "import" | "merge" => Some("`--run DIR`"),
        "evaluate" => Some("`--out DIR`"),
        "plot" => Some("`--out FILE`"),
        "bench" => Some("`--json FILE`"),
        "export" => Some("another DIRECTORY"),
        // An experiment also publishes.
        "experiment" => Some("`--runs DIR` or `--publish DIR`"),
        "sweep" => Some("`--runs DIR`"),
        _ => None,
    }
}

/// Returns the origin of an error: the input, the machine, or a stop by the user.
fn fault(error: &anyhow::Error) -> Fault {
    let known: [Option<&dyn Blame>; 6] = [
        error.downcast_ref::<Error>().map(|it| it as _),
        error.downcast_ref::<DriveError>().map(|it| it as _),
        error.downcast_ref::<RunError>().map(|it| it as _),
        error.downcast_ref::<DataError>().map(|it| it as _),
        error.downcast_ref::<ExchangeError>().map(|it| it as _),
        error.downcast_ref::<BackendError>().map(|it| it as _),
    ];
    let known = known.into_iter().flatten().next();
    match known {
        Some(error) => error.fault(),
        None if error.is::<ConfigError>() => Fault::Input,
        None => Fault::Machine,
    }
}

/// The number of the first signal that asked this process to end.
static SIGNAL: OnceLock<i32> = OnceLock::new();

/// Returns the exit code of a command that was stopped by a signal, or by a key, which counts as Ctrl-C.
fn stopped_by() -> u8 {
    const SIGHUP: i32 = 1;
    const SIGINT: i32 = 2;
    // The dashboard may notice a closed terminal before the signal comes.
    let of_terminal = if is_gone() { SIGHUP } else { SIGINT };
    let signal = *SIGNAL.get().unwrap_or(&of_terminal);
    u8::try_from(128 + signal).unwrap_or(130)
}

/// The time within which several signals count as one.
const TOGETHER: Duration = Duration::from_millis(500);

/// Returns a switch that Ctrl-C, SIGTERM or SIGHUP sets, unless the program started with these signals ignored. The
/// first signal prints a line, or shows in an open dashboard. A second signal ends the program at once. Signals within
/// a short time count as one: a closing terminal sends several, and `timeout` signals the process and its group.
///
/// # Errors
///
/// Returns an error if signals cannot be caught.
pub fn stop_on_signal() -> Result<Interrupter, Error> {
    let interrupter = Interrupter::new();
    let (switch, mut first) = (interrupter.clone(), None);
    on_stop(move |signal| {
        SIGNAL.get_or_init(|| signal);
        let is_one = first.is_some_and(|first: Instant| first.elapsed() < TOGETHER);
        if is_one || first.is_some() && is_gone() {
            return;
        }
        output::hurry();
        if switch.should_stop() && !is_gone() {
            restore_terminal();
            std::process::exit(stopped_by().into());
        }
        first = Some(Instant::now());
        stop::ask();
        switch.stop(None);
        if !is_open() {
            warn("stopping; Ctrl-C again ends the program at once");
        }
    })
    .and_then(|()| on_suspension(suspend_screen))
    .map_err(|error| DriveError::Signals(error.to_string()))?;
    Ok(interrupter)
}
