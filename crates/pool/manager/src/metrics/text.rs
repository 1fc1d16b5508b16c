//! The text format of Prometheus, version 0.0.4.
//!
//! Written here because DCGM's names do not fit the rules of OpenMetrics, which libraries for it enforce.

use std::fmt::Write;

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Gauge,
    Counter,
}

#[derive(Debug, Default)]
pub(super) struct Text {
    out: String,
    name: &'static str,
}

impl Text {
    /// Begins a metric; its samples follow.
    pub(super) fn begin(&mut self, name: &'static str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        self.head(name, kind, help);
    }

    fn head(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("writing to a string");
    }

    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.line("", labels, value);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        self.out.push_str(self.name);
        self.out.push_str(suffix);
        for (place, (name, text)) in labels.iter().enumerate() {
            self.out.push(if place == 0 { '{' } else { ',' });
            write!(self.out, "{name}=\"").expect("writing to a string");
            escape(text, &mut self.out);
            self.out.push('"');
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        writeln!(self.out, " {value}").expect("writing to a string");
    }

    /// A whole histogram: counts up to each bound, then in all.
    pub(super) fn histogram(
        &mut self,
        name: &'static str,
        help: &str,
        bounds: &[f64],
        counts: &[u64],
        sum: f64,
    ) {
        self.head(name, "histogram", help);
        for (bound, count) in bounds.iter().zip(counts) {
            self.line("_bucket", &[("le", &bound.to_string())], *count as f64);
        }
        let total = counts.last().copied().unwrap_or_default() as f64;
        self.line("_bucket", &[("le", "+Inf")], total);
        self.line("_sum", &[], sum);
        self.line("_count", &[], total);
    }

    pub(super) fn finish(self) -> String {
        self.out
    }
}

/// Boxes choose some of these texts.
fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_cannot_make_a_line() {
        let mut text = Text::default();
        text.begin("dxpu_gpus", Kind::Gauge, "GPUs.");
        text.sample(&[("model", "a\"} 1\nevil 2\\"), ("state", "free")], 3.0);
        assert_eq!(
            text.finish(),
            "# HELP dxpu_gpus GPUs.\n# TYPE dxpu_gpus gauge\n\
             dxpu_gpus{model=\"a\\\"} 1\\nevil 2\\\\\",state=\"free\"} 3\n"
        );
    }

    #[test]
    fn a_histogram_ends_with_everything() {
        let mut text = Text::default();
        text.histogram("dxpu_t_seconds", "T.", &[0.1, 1.0], &[1, 3, 4], 2.5);
        let text = text.finish();
        assert!(text.contains("dxpu_t_seconds_bucket{le=\"0.1\"} 1\n"), "{text}");
        assert!(
            text.ends_with("_bucket{le=\"+Inf\"} 4\ndxpu_t_seconds_sum 2.5\ndxpu_t_seconds_count 4\n"),
            "{text}"
        );
    }
}
