//! Draws the state of a run. Small terminals show less.

use std::collections::VecDeque;
use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, LineGauge, Paragraph};

use super::axis::{ValueAxis, step_ticks};
use super::rows::{Metric, Reached};
use super::{Activity, LOSS, Pace, Unit, at_step};
use residual_zoo_report::{duration, si};

const TRAIN: Color = Color::Cyan;
const VALID: Color = Color::Magenta;
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const KEYS: &str = "q stop  tab chart";
/// Maximum number of notes that are kept.
const NOTES: usize = 20;

/// The state that the dashboard shows.
pub(super) struct State {
    /// The parts of the heading: names, parameters, number and seed.
    pub(super) heading: Vec<String>,
    /// The run directory.
    pub(super) directory: String,
    pub(super) pace: Pace,
    /// Tokens or images so far.
    pub(super) tokens: u64,
    pub(super) unit: Unit,
    pub(super) activity: Activity,
    /// Whether the user has asked to stop.
    pub(super) stopping: bool,
    /// A curve for every metric.
    pub(super) curves: Vec<Curve>,
    /// The index of the first chart, among the charts with points.
    pub(super) chosen: usize,
    /// The newest notes.
    pub(super) notes: VecDeque<String>,
}

/// A metric over the steps.
pub(super) struct Curve {
    name: String,
    train: Vec<(f64, f64)>,
    valid: Vec<(f64, f64)>,
    /// The last training value and the last validation value, as text, with their steps.
    shown: [Option<(String, usize)>; 2],
}

impl State {
    /// Makes the state of a run that has not begun.
    pub(super) fn new(heading: Vec<String>, directory: String, pace: Pace, unit: Unit) -> Self {
        Self {
            heading,
            directory,
            pace,
            tokens: 0,
            unit,
            activity: Activity::Starting,
            stopping: false,
            curves: Vec::new(),
            chosen: 0,
            notes: VecDeque::new(),
        }
    }

    /// Adds a row to the curves.
    pub(super) fn row(&mut self, reached: Reached, metrics: Vec<Metric>) {
        self.tokens = reached.tokens;
        for metric in metrics {
            let known = self
                .curves
                .iter()
                .position(|curve| curve.name == metric.name);
            let index = known.unwrap_or_else(|| {
                self.curves.push(Curve {
                    name: metric.name,
                    train: Vec::new(),
                    valid: Vec::new(),
                    shown: [None, None],
                });
                self.curves.len() - 1
            });
            let curve = &mut self.curves[index];
            let points = if metric.valid {
                &mut curve.valid
            } else {
                &mut curve.train
            };
            if metric.value.is_finite() {
                points.push((reached.step as f64, metric.value));
            }
            curve.shown[usize::from(metric.valid)] = Some((metric.shown, reached.step));
        }
    }

    /// Adds a note.
    pub(super) fn note(&mut self, text: &str) {
        if self.notes.len() == NOTES {
            self.notes.pop_front();
        }
        self.notes.push_back(text.replace('\n', " "));
    }

    /// Chooses the next or the previous chart.
    pub(super) fn choose(&mut self, forward: bool) {
        let count = self.charts().count().max(1);
        let by = if forward { 1 } else { count - 1 };
        self.chosen = (self.chosen + by) % count;
    }

    /// Returns the curves that have points.
    fn charts(&self) -> impl Iterator<Item = &Curve> {
        let curves = self.curves.iter();
        curves.filter(|curve| !curve.train.is_empty() || !curve.valid.is_empty())
    }
}

/// Draws `state` at the time `now`.
pub(super) fn draw(frame: &mut Frame, state: &State, now: Instant) {
    let area = frame.area();
    let (width, height) = (area.width as usize, area.height);
    let tall = |least: u16, lines: usize| if height >= least { lines } else { 0 };
    let heading = flow(&state.heading, width, tall(4, 1).max(tall(12, 2)));
    let numbers = flow(&numbers(state), width, tall(5, 1).max(tall(20, 3)));
    let notes = state
        .notes
        .len()
        .min(tall(14, 1).max(tall(22, 3)).max(tall(30, 5)));
    let place = tall(12, 1);
    let sizes = [
        heading.len(),
        place,
        1,
        tall(2, 1),
        numbers.len(),
        usize::MAX,
        notes,
        tall(3, 1),
    ];
    let constraint = |size: usize| match size {
        usize::MAX => Constraint::Fill(1),
        size => Constraint::Length(size as u16),
    };
    let [top, at, gauge, time, middle, charts, below, bottom] =
        Layout::vertical(sizes.map(constraint)).areas(area);

    let bold = Style::new().add_modifier(Modifier::BOLD);
    text(
        frame,
        top,
        heading.into_iter().map(|line| Line::styled(line, bold)),
    );
    if place > 0 {
        let directory = cut_front(&state.directory, width);
        text(frame, at, [Line::styled(directory, DIM)]);
    }
    draw_gauge(frame, gauge, state);
    text(frame, time, [Line::raw(times(&state.pace, now))]);
    text(frame, middle, numbers.into_iter().map(Line::raw));
    draw_charts(frame, charts, state);
    let newest = state.notes.iter().skip(state.notes.len() - notes);
    let yellow = Style::new().fg(Color::Yellow);
    text(
        frame,
        below,
        newest.map(|note| Line::styled(cut(note, width), yellow)),
    );
    draw_bottom(frame, bottom, state);
}

fn text<'a>(frame: &mut Frame, area: Rect, lines: impl IntoIterator<Item = Line<'a>>) {
    let lines: Vec<Line> = lines.into_iter().collect();
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_gauge(frame: &mut Frame, area: Rect, state: &State) {
    let State {
        pace, tokens, unit, ..
    } = state;
    let (step, total) = (pace.reached(), pace.total().max(1));
    let ratio = (step as f64 / total as f64).clamp(0.0, 1.0);
    let percent = (100.0 * ratio).floor();
    let label = format!(
        "step {step}/{total} · {} {} · {percent} %",
        si(*tokens as f64),
        unit.name()
    );
    let gauge = LineGauge::default()
        .ratio(ratio)
        .label(label)
        .filled_symbol("━")
        .unfilled_symbol("─")
        .filled_style(Style::new().fg(Color::Green))
        .unfilled_style(DIM);
    frame.render_widget(gauge, area);
}

/// Describes the time so far and the time left.
fn times(pace: &Pace, now: Instant) -> String {
    let mut parts = vec![format!("{} so far", duration(pace.elapsed(now)))];
    match pace.left(now) {
        Some(left) => parts.push(format!("{} left", duration(left))),
        None => parts.push("first step…".into()),
    }
    let all = pace.left_of_all(now);
    parts.extend(all.map(|all| format!("{} left of all runs", duration(all))));
    parts.join(" · ")
}

/// Returns the newest values, as text.
fn numbers(state: &State) -> Vec<String> {
    let shown = |valid: usize| {
        let curves = state.curves.iter();
        curves.filter_map(move |curve| {
            Some((curve.name.to_lowercase(), curve.shown[valid].as_ref()?))
        })
    };
    let train = shown(0).map(|(name, (value, _))| match name.as_str() {
        "mfu" => format!("MFU {value}"),
        name => format!("{name} {value}"),
    });
    // A validation of an earlier row is shown with its step.
    let newest = shown(0).map(|(_, (_, step))| *step).max();
    let valid = shown(1).map(|(name, (value, step))| match newest > Some(*step) {
        true => format!("valid {name} {}", at_step(value, *step)),
        false => format!("valid {name} {value}"),
    });
    train.chain(valid).collect()
}

/// Draws the activity and the keys.
fn draw_bottom(frame: &mut Frame, area: Rect, state: &State) {
    let doing = state.activity.describe();
    let line = match (state.stopping, state.activity) {
        (false, _) => Line::raw(doing),
        (true, Activity::Training | Activity::Starting) => stopping("after this step…"),
        (true, _) => stopping(&format!("({doing})")),
    };
    let keys = match state.stopping {
        true => "Ctrl-C ends at once",
        false => KEYS,
    };
    let (used, wanted) = (line.width(), keys.chars().count());
    text(frame, area, [line]);
    if used + 2 + wanted <= area.width as usize {
        text(frame, area, [Line::styled(keys, DIM).right_aligned()]);
    }
}

fn stopping(what: &str) -> Line<'static> {
    let style = Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD);
    Line::styled(format!("stopping {what}"), style)
}

/// Draws the chosen chart and, in a large area, as many of the next charts as fit below it.
fn draw_charts(frame: &mut Frame, area: Rect, state: &State) {
    let mut charts: Vec<&Curve> = state.charts().collect();
    if charts.is_empty() {
        let doing = state.activity.describe();
        let line = format!("the curves begin with the first measurement ({doing})");
        let middle = Rect {
            y: area.y + area.height / 2,
            height: area.height.min(1),
            ..area
        };
        let line = cut(&line, area.width as usize);
        text(frame, middle, [Line::styled(line, DIM).centered()]);
        return;
    }
    charts.rotate_left(state.chosen % state.charts().count().max(1));
    let beside = (charts.len() - 1).min(area.width as usize / 50);
    if area.height < 24 || beside == 0 {
        draw_chart(frame, area, charts[0], state.unit);
        return;
    }
    let [main, rest] = Layout::vertical([Constraint::Fill(3), Constraint::Fill(2)]).areas(area);
    draw_chart(frame, main, charts[0], state.unit);
    let columns = Layout::horizontal(vec![Constraint::Fill(1); beside]).spacing(2);
    for (column, curve) in columns.split(rest).iter().zip(&charts[1..]) {
        draw_chart(frame, *column, curve, state.unit);
    }
}

/// Draws a chart under a line with its legend. An area that is too small stays empty.
fn draw_chart(frame: &mut Frame, area: Rect, curve: &Curve, unit: Unit) {
    if area.height < 5 || area.width < 24 {
        return;
    }
    let [legend_area, area] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    text(frame, legend_area, [legend(curve, unit)]);
    let points = || curve.train.iter().chain(&curve.valid);
    let (first, last) = (
        0.0,
        points().fold(1.0, |last: f64, point| last.max(point.0)),
    );
    let low = points().fold(f64::MAX, |low, point| low.min(point.1));
    let high = points().fold(f64::MIN, |high, point| high.max(point.1));
    let values = ValueAxis::new(low, high, (area.height as usize / 2 - 1).min(6));
    let label_width = values.labels[0].chars().count() as u16;
    let columns = area.width as usize;
    let (train, valid) = (thin(&curve.train, columns), thin(&curve.valid, columns));
    let line = Dataset::default()
        .marker(Marker::Braille)
        .graph_type(GraphType::Line)
        .style(Style::new().fg(TRAIN))
        .data(&train);
    let dots = Dataset::default()
        .marker(Marker::Dot)
        .graph_type(GraphType::Scatter)
        .style(Style::new().fg(VALID))
        .data(&valid);
    // The chart would not place the labels of the x axis exactly under their values, so `draw_steps` draws them.
    let x_axis = Axis::default()
        .title(Span::styled("steps", DIM))
        .style(DIM)
        .bounds([first, last])
        .labels([" ", " "]);
    let y_axis = Axis::default()
        .style(DIM)
        .bounds([values.low, values.high])
        .labels(values.labels);
    let chart = Chart::new(vec![line, dots])
        .x_axis(x_axis)
        .y_axis(y_axis)
        .legend_position(None);
    frame.render_widget(chart, area);
    let left = area.x + label_width.min(area.width / 3) + 1;
    let below = Rect::new(
        left,
        area.bottom() - 1,
        area.right().saturating_sub(left),
        1,
    );
    draw_steps(frame, below, first, last);
}

/// Returns the name of a chart, and the style of each curve.
fn legend(curve: &Curve, of: Unit) -> Line<'static> {
    let unit = match of {
        _ if curve.name != LOSS => "",
        Unit::Tokens(_) => " (nats per token)",
        Unit::Images => " (nats per image)",
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut spans = vec![Span::styled(format!("{}{unit}", curve.name), bold)];
    if !curve.valid.is_empty() {
        spans.push(Span::styled("   ⠒⠒ train", Style::new().fg(TRAIN)));
        spans.push(Span::styled("   • valid", Style::new().fg(VALID)));
    }
    Line::from(spans)
}

/// Draws step labels under their positions, from `first` at the left end to `last` at the right end.
fn draw_steps(frame: &mut Frame, area: Rect, first: f64, last: f64) {
    let mut free = area.x;
    for (step, label) in step_ticks(first, last, area.width as usize / 12) {
        let share = (step - first) / (last - first);
        let at = area.x + (share * f64::from(area.width.saturating_sub(1))).round() as u16;
        let width = label.chars().count() as u16;
        let start = at.saturating_sub(width / 2).max(area.x);
        let start = start.min(area.right().saturating_sub(width));
        if start >= free && start + width <= area.right() {
            let buffer = frame.buffer_mut();
            buffer.set_string(start, area.y, &label, DIM);
            free = start + width + 1;
        }
    }
}

/// Thins a curve for `columns` columns: keeps the lowest and the highest point of each part.
fn thin(points: &[(f64, f64)], columns: usize) -> Vec<(f64, f64)> {
    let part = points.len().div_ceil(2 * columns.max(1)).max(1);
    if part <= 2 {
        return points.to_vec();
    }
    let ends = points.chunks(part).flat_map(|chunk| {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let (low, high) = (chunk.iter().min_by(by_value), chunk.iter().max_by(by_value));
        let mut ends: Vec<(f64, f64)> = low.into_iter().chain(high).copied().collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends
    });
    ends.collect()
}

/// Arranges `parts` on lines of at most `width` columns. Leaves out parts that do not fit on `lines` lines.
fn flow(parts: &[String], width: usize, lines: usize) -> Vec<String> {
    const BETWEEN: &str = " · ";
    let mut flowed: Vec<String> = Vec::new();
    for part in parts {
        let part = cut(part, width);
        let fits = |line: &String| columns(line) + columns(BETWEEN) + columns(&part) <= width;
        if flowed.last().is_some_and(fits)
            && let Some(line) = flowed.last_mut()
        {
            *line += BETWEEN;
            *line += &part;
        } else if flowed.len() < lines {
            flowed.push(part);
        } else {
            break;
        }
    }
    flowed
}

fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

/// Keeps the beginning of a text that is too wide.
fn cut(text: &str, width: usize) -> String {
    let mut text = text.to_owned();
    if columns(&text) <= width {
        return text;
    }
    while columns(&text) >= width.max(1) {
        text.pop();
    }
    text.push('…');
    text
}

/// Keeps the end of a text that is too wide.
fn cut_front(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut rest = text;
    while columns(rest) >= width.max(1) {
        let mut chars = rest.chars();
        chars.next();
        rest = chars.as_str();
    }
    format!("…{rest}")
}

#[cfg(test)]
mod tests;
