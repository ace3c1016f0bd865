//! The terminal of this process: the screen, the keys, and the drawing thread.
//!
//! A process has one terminal, so its state is static. Updates from a training thread return at once: while the
//! dashboard is open, only the drawing thread waits for the terminal.

use std::cell::RefCell;
use std::io::{self, Write};
use std::panic;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

use burn_train::Interrupter;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::{cursor, execute, terminal};
use ratatui::layout::Size;
use residual_zoo_system::console::{self, warn};
use residual_zoo_system::mutex::{lock, lock_within};
use residual_zoo_system::{panics, terminal as tty};

use super::rows::{Metric, Reached, Sink};
use super::view::{self, State};
use super::{About, Activity, Pace};

use tty::{Key, Keys, is_gone};

/// The longest time between two checks of keys and state.
const TICK: Duration = Duration::from_millis(250);
/// The longest wait for a terminal that accepts no output, when the program ends or is suspended.
const PATIENCE: Duration = Duration::from_millis(300);
/// Maximum number of terminal cells for the dashboard. Each cell takes 50 bytes in each of two buffers.
const MOST_CELLS: usize = 1 << 22;

/// The state to draw.
static STATE: Mutex<Option<Shown>> = Mutex::new(None);
/// Whether the dashboard is open.
static OPEN: AtomicBool = AtomicBool::new(false);
/// Whether the process is about to be suspended.
static SUSPENDED: AtomicBool = AtomicBool::new(false);
/// The lock that a thread holds while it writes to the terminal.
static WRITING: Mutex<()> = Mutex::new(());
/// The number of the newest drawing thread. Earlier threads end.
static THREAD: AtomicUsize = AtomicUsize::new(0);
/// Number of [`Screen`]s.
static SCREENS: AtomicUsize = AtomicUsize::new(0);

struct Shown {
    state: State,
    stop: Interrupter,
    /// Whether the state has changed since it was drawn.
    changed: bool,
}

/// A guard that keeps the dashboard open from one run to the next, until the guard is dropped.
pub struct Screen(());

impl Screen {
    /// Keeps the dashboard open once a run has opened it.
    pub fn keep() -> Self {
        SCREENS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if SCREENS.fetch_sub(1, Ordering::Relaxed) == 1 {
            restore_terminal();
            lock(&STATE).take();
        }
    }
}

/// The sink of one run. The dashboard stays open after the run as long as there is another [`Screen`].
pub(super) struct Terminal(Screen);

impl Terminal {
    /// Shows a run.
    pub(super) fn open(about: &About, pace: Pace, stop: &Interrupter) -> Self {
        let screen = Screen::keep();
        let directory = about.directory.display().to_string();
        let mut state = State::new(about.heading(), directory, pace, about.unit);
        let mut shown = lock(&STATE);
        if let Some(before) = shown.take() {
            // Only the choice of the chart is kept. The notes of the previous run are printed at the end.
            state.chosen = before.state.chosen;
        }
        *shown = Some(Shown {
            state,
            stop: stop.clone(),
            changed: true,
        });
        drop(shown);
        if !is_open() {
            open();
        }
        Self(screen)
    }
}

impl Sink for Terminal {
    fn row(&mut self, reached: Reached, metrics: Vec<Metric>) {
        update(|state| state.row(reached, metrics));
    }

    fn activity(&mut self, activity: Activity) {
        let now = Instant::now();
        update(|state| {
            if activity == Activity::Training {
                state.pace.begin(now);
            }
            state.activity = activity;
        });
    }

    fn step(&mut self, step: usize, tokens: u64) {
        let now = Instant::now();
        update(|state| {
            state.pace.step(step, now);
            state.tokens = tokens;
        });
    }

    fn note(&mut self, text: &str) {
        warn(text);
    }

    fn sample(&mut self, _: usize, _: &str) {}
}

/// Whether the dashboard is open.
pub fn is_open() -> bool {
    OPEN.load(Ordering::Acquire)
}

/// Shows a line in the dashboard.
fn note(text: &str) {
    update(|state| state.note(text));
}

/// Closes the dashboard, restores the terminal and prints the waiting lines. Does nothing if the dashboard is closed.
/// Any thread may call this function, even at the end of the program.
pub fn restore_terminal() {
    // A thread that waits for a stuck terminal must not keep the program from ending.
    let writing = lock_within(&WRITING, PATIENCE);
    if OPEN.swap(false, Ordering::AcqRel) {
        leave(writing.is_some());
    }
    drop(writing);
    console::uncover();
}

/// Gives up the screen before the process is suspended (`is_stopping`), or lets the dashboard take it again afterwards.
pub fn suspend_screen(is_stopping: bool) {
    let writing = lock_within(&WRITING, PATIENCE);
    SUSPENDED.store(is_stopping, Ordering::Release);
    if is_stopping && is_open() && tty::is_raw() {
        leave(writing.is_some());
    }
}

fn update(change: impl FnOnce(&mut State)) {
    if let Some(shown) = lock(&STATE).as_mut() {
        change(&mut shown.state);
        shown.changed = true;
    }
}

/// Opens the dashboard and starts its thread. A terminal that cannot show the dashboard is left unchanged.
fn open() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if panics::is_caught() {
                return;
            }
            restore_terminal();
            hook(info);
        }));
    });
    let writing = lock(&WRITING);
    if enter().is_err() {
        leave(true);
        return;
    }
    OPEN.store(true, Ordering::Release);
    console::cover(note);
    let number = THREAD.fetch_add(1, Ordering::AcqRel) + 1;
    drop(writing);
    let draw = move || {
        if Drawing::new(number)
            .and_then(|mut drawing| drawing.run())
            .is_err()
        {
            close(number);
        }
    };
    let thread = thread::Builder::new().name("dashboard".into());
    if thread.spawn(draw).is_err() {
        restore_terminal();
    }
}

/// Closes the dashboard after an error in drawing thread `number`, unless a newer thread draws. The terminal is
/// probably gone, or too large.
fn close(number: usize) {
    if THREAD.load(Ordering::Acquire) == number {
        restore_terminal();
    }
}

/// Takes the screen. Ctrl-C still sends a signal.
fn enter() -> io::Result<()> {
    // Enabling raw mode alone has no effect after the process was suspended, because crossterm assumes that raw mode is
    // still on.
    terminal::disable_raw_mode()?;
    terminal::enable_raw_mode()?;
    tty::enable_interrupt();
    execute!(
        io::stdout(),
        terminal::EnterAlternateScreen,
        terminal::Clear(terminal::ClearType::All),
        cursor::Hide
    )
}

/// Gives up the screen. Without `writes`, only the terminal mode is reset.
fn leave(writes: bool) {
    if writes {
        execute!(io::stdout(), cursor::Show, terminal::LeaveAlternateScreen).ok();
    }
    terminal::disable_raw_mode().ok();
}

/// The state of the drawing thread.
struct Drawing {
    number: usize,
    keys: Keys,
    terminal: ratatui::Terminal<CrosstermBackend<Output>>,
    output: Output,
    /// The time of the last drawing.
    drawn: Option<Instant>,
    size: Size,
    /// Whether the screen must be taken again, because the process was in the background or gave it up.
    away: bool,
}

impl Drawing {
    fn new(number: usize) -> io::Result<Self> {
        let (columns, rows) = terminal::size()?;
        check_size(Size::new(columns, rows))?;
        let output = Output::default();
        Ok(Self {
            number,
            keys: Keys::new()?,
            terminal: ratatui::Terminal::new(CrosstermBackend::new(output.clone()))?,
            output,
            drawn: None,
            size: Size::default(),
            away: false,
        })
    }

    /// Draws until the dashboard is closed. An error means that the terminal is gone or too large.
    fn run(&mut self) -> io::Result<()> {
        while self.goes_on() {
            if is_gone() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if tty::is_in_background() || SUSPENDED.load(Ordering::Acquire) {
                self.away = true;
                thread::sleep(TICK);
                continue;
            }
            if self.away || !tty::is_raw() {
                self.come_back()?;
            }
            self.draw()?;
            let keys = self.keys.wait(TICK, is_open)?;
            for key in keys {
                self.press(key);
            }
        }
        Ok(())
    }

    fn goes_on(&self) -> bool {
        is_open() && THREAD.load(Ordering::Acquire) == self.number
    }

    /// Takes the screen again after the process was suspended.
    fn come_back(&mut self) -> io::Result<()> {
        let _writing = lock(&WRITING);
        if self.goes_on() {
            enter()?;
            // A new `Terminal` draws everything again. Clearing the old one would query the cursor position, and not
            // every terminal answers.
            self.terminal = ratatui::Terminal::new(CrosstermBackend::new(self.output.clone()))?;
            (self.drawn, self.away) = (None, false);
        }
        Ok(())
    }

    /// Draws if anything changed, and once a second to update the times.
    fn draw(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let old = |drawn: Instant| now.saturating_duration_since(drawn) >= Duration::from_secs(1);
        let size = self.terminal.size()?;
        check_size(size)?;
        {
            let mut shown = lock(&STATE);
            let Some(Shown {
                state,
                stop,
                changed,
            }) = shown.as_mut()
            else {
                return Ok(());
            };
            let resized = self.size != size;
            *changed |= stop.should_stop() != state.stopping || resized;
            state.stopping = stop.should_stop();
            if !*changed && !self.drawn.is_none_or(old) {
                return Ok(());
            }
            *changed = false;
            self.terminal.draw(|frame| view::draw(frame, state, now))?;
        }
        (self.drawn, self.size) = (Some(now), size);
        // The state is unlocked here, so a slow terminal does not hold up training.
        let _writing = lock(&WRITING);
        let bytes = self.output.0.take();
        match self.goes_on() && !SUSPENDED.load(Ordering::Acquire) {
            true => write_all(&bytes),
            false => Ok(()),
        }
    }

    fn press(&mut self, key: Key) {
        match key {
            Key::Stop => stop(),
            Key::Next => update(|state| state.choose(true)),
            Key::Previous => update(|state| state.choose(false)),
            Key::Suspend => self.suspend(),
        }
    }

    /// Gives up the screen and suspends the process, as Ctrl-Z does elsewhere.
    fn suspend(&mut self) {
        let writing = lock(&WRITING);
        if self.goes_on() {
            leave(true);
            self.away = true;
            drop(writing);
            tty::suspend();
        }
    }
}

fn stop() {
    if let Some(shown) = lock(&STATE).as_mut() {
        residual_zoo_system::stop::ask();
        shown.stop.stop(None);
    }
}

/// Refuses a terminal that is too large to draw.
fn check_size(size: Size) -> io::Result<()> {
    match usize::from(size.width) * usize::from(size.height) > MOST_CELLS {
        true => Err(io::ErrorKind::Unsupported.into()),
        false => Ok(()),
    }
}

/// Writes a whole frame to standard output.
fn write_all(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Collects a frame before it is written.
#[derive(Clone, Default)]
struct Output(Rc<RefCell<Vec<u8>>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
