//! Numbers in the form that readers expect: few digits, SI prefixes, powers of ten.

use std::time::Duration;

const PREFIXES: [&str; 5] = ["", "k", "M", "G", "T"];

/// Writes `value` to three digits with an SI prefix: `950`, `1.23k`, `124M`, `10G`. Uses a power of ten instead, such
/// as `2.5×10¹⁸`, if the magnitude is at least 10¹⁵, or below 10⁻³ but not zero.
pub fn si(value: f64) -> String {
    if !plain(value) {
        return power_of_ten(value, 3);
    }
    let rounded = round(value, 3);
    let prefix = prefix(rounded);
    let mantissa = rounded / 1000f64.powi(prefix as i32);
    trim(format!("{mantissa:.*}", decimals(mantissa, 3))) + PREFIXES[prefix]
}

/// Writes a rate of computation, such as `23.8 GFLOP/s`.
pub fn flops_per_second(rate: f64) -> String {
    let shown = si(rate);
    let number = shown.trim_end_matches(char::is_alphabetic);
    format!("{number} {}FLOP/s", &shown[number.len()..])
}

/// Writes a number of bytes in MiB, such as `73.9 MiB`, or from 1024 MiB on in GiB, such as `1.50 GiB`.
pub fn bytes(value: f64) -> String {
    let mebibytes = value / f64::from(1 << 20);
    match mebibytes < 1024.0 {
        true => format!("{mebibytes:.1} MiB"),
        false => format!("{:.2} GiB", mebibytes / 1024.0),
    }
}

/// Writes a duration in at most two units, such as `3m 20s`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m {s:02}s"),
        (h, m, _) => format!("{h}h {m:02}m"),
    }
}

/// Writes `value` for the end of a line or a legend: to four digits or, from 10⁵ on, to three with an SI prefix.
pub(crate) fn label(value: f64) -> String {
    match value.abs() >= 1e5 {
        true => si(value),
        false => sig(value, 4),
    }
}

/// Writes `value` to `digits` significant digits, without cutting the integer part: `3.142`, `0.00120`. Like
/// [`si`], uses a power of ten for very small and very large magnitudes, such as `10⁻⁵`.
pub fn sig(value: f64, digits: usize) -> String {
    if !plain(value) {
        return power_of_ten(value, digits);
    }
    // Adding zero drops the sign of a negative zero.
    format!("{:.*}", decimals(round(value, digits), digits), value + 0.0)
}

/// Appends the unit to `name`, in brackets, if there is one.
pub(crate) fn with_unit(name: &str, unit: &str) -> String {
    match unit {
        "" => name.to_owned(),
        unit => format!("{name} ({unit})"),
    }
}

/// Labels evenly spaced ticks with just enough digits to distinguish them.
pub(crate) fn tick_labels(ticks: &[f64]) -> Vec<String> {
    let largest = ticks.iter().fold(0f64, |a, t| a.max(t.abs()));
    let steps = ticks.windows(2).map(|w| w[1] - w[0]);
    let step = steps.fold(largest, f64::min);
    let label = |&tick: &f64| {
        if tick == 0.0 {
            return "0".to_owned();
        }
        if !plain(largest) {
            let digits = exponent(tick) - exponent(step * 1.000_001) + 1;
            return power_of_ten(tick, digits.max(1) as usize);
        }
        let prefix = prefix(tick);
        let unit = 1000f64.powi(prefix as i32);
        let places = (-(step / unit * 1.000_001).log10().floor()).clamp(0.0, 12.0) as usize;
        let text = format!("{:.*}", places, tick / unit);
        match PREFIXES[prefix] {
            "" => text,
            prefix => trim(text) + prefix,
        }
    };
    ticks.iter().map(label).collect()
}

/// Labels ticks that span decades: all as powers of ten if one tick needs that form.
pub(crate) fn decade_labels(ticks: &[f64]) -> Vec<String> {
    let label = match ticks.iter().all(|&tick| plain(tick)) {
        true => si,
        false => |tick| power_of_ten(tick, 3),
    };
    ticks.iter().copied().map(label).collect()
}

fn plain(value: f64) -> bool {
    value == 0.0 || (1e-3..1e15).contains(&value.abs())
}

fn power_of_ten(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return value.to_string().replace("NaN", "–").replace("inf", "∞");
    }
    let text = format!("{:.*e}", digits.max(1) - 1, value);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let raised: String = exponent.chars().map(superscript).collect();
    match trim(mantissa.to_owned()).as_str() {
        "1" => format!("10{raised}"),
        "-1" => format!("-10{raised}"),
        mantissa => format!("{mantissa}×10{raised}"),
    }
}

fn superscript(c: char) -> char {
    let mut pairs = "-0123456789".chars().zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹".chars());
    pairs.find(|pair| pair.0 == c).map_or(c, |pair| pair.1)
}

fn trim(text: String) -> String {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

fn exponent(value: f64) -> i32 {
    match value.abs() {
        0.0 => 0,
        size => size.log10().floor() as i32,
    }
}

fn prefix(value: f64) -> usize {
    (exponent(value).max(0) as usize / 3).min(PREFIXES.len() - 1)
}

fn decimals(value: f64, digits: usize) -> usize {
    (digits as i32 - 1 - exponent(value)).max(0) as usize
}

/// Rounds `value` to `digits` significant digits, so that 999.9 gets the prefix of 1000.
pub(crate) fn round(value: f64, digits: usize) -> f64 {
    let text = format!("{:.*e}", digits.max(1) - 1, value);
    text.parse().unwrap_or(value)
}
