//! Writing the figure.

use super::ticks::{label, ticks};
use super::{Axis, Chart, Stroke};
use std::fmt::Write;

/// Of Okabe and Ito: told apart by colour-blind readers too, and readable on light and dark.
const COLOURS: [&str; 8] =
    ["#7f7f7f", "#56b4e9", "#e69f00", "#cc79a7", "#009e73", "#d55e00", "#0072b2", "#b8a800"];

const WIDTH: f64 = 820.0;
const TITLE_HEIGHT: f64 = 44.0;
const CHART_HEIGHT: f64 = 330.0;
const PLOT_LEFT: f64 = 64.0;
const PLOT_RIGHT: f64 = 620.0;
const PLOT_TOP: f64 = 34.0;
const PLOT_BOTTOM: f64 = 282.0;
const X_TICKS: usize = 8;
const Y_TICKS: usize = 6;
const KEY_LINE: f64 = 20.0;

const STYLE: &str = "\
text { font-family: system-ui, sans-serif; font-size: 13px; fill: #3d444d; }
.title { font-size: 17px; font-weight: 600; }
.chart { font-size: 14px; font-weight: 600; }
.grid { stroke: #8c959f; stroke-opacity: 0.35; stroke-width: 1; }
.frame { stroke: #8c959f; stroke-width: 1; fill: none; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
@media (prefers-color-scheme: dark) { text { fill: #d1d7e0; } }";

/// The whole figure as an SVG document.
pub fn figure(title: &str, charts: &[Chart]) -> String {
    let height = TITLE_HEIGHT + CHART_HEIGHT * charts.len() as f64;
    let mut svg = String::new();
    let title = escaped(title);
    put(
        &mut svg,
        format_args!(r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">"#),
    );
    put(&mut svg, format_args!("<title>{title}</title>\n<style>\n{STYLE}\n</style>"));
    put(&mut svg, format_args!(r#"<text class="title" x="{PLOT_LEFT}" y="28">{title}</text>"#));
    for (number, chart) in charts.iter().enumerate() {
        let down = TITLE_HEIGHT + CHART_HEIGHT * number as f64;
        // Lines that leave the axes are cut off at the frame.
        put(
            &mut svg,
            format_args!(
                r#"<clipPath id="frame{number}"><rect x="{PLOT_LEFT}" y="{PLOT_TOP}" width="{}" height="{}"/></clipPath>"#,
                PLOT_RIGHT - PLOT_LEFT,
                PLOT_BOTTOM - PLOT_TOP
            ),
        );
        put(&mut svg, format_args!(r#"<g transform="translate(0 {down})">"#));
        draw_axes(&mut svg, chart);
        draw_lines(&mut svg, chart, number);
        draw_key(&mut svg, chart);
        put(&mut svg, format_args!("</g>"));
    }
    svg.push_str("</svg>\n");
    svg
}

fn put(svg: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(svg, "{line}").expect("a string takes everything");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn place(value: f64, axis: &Axis, from: f64, to: f64) -> f64 {
    from + (value - axis.from) / (axis.to - axis.from) * (to - from)
}

fn x_of(value: f64, chart: &Chart) -> f64 {
    place(value, &chart.x, PLOT_LEFT, PLOT_RIGHT)
}

fn y_of(value: f64, chart: &Chart) -> f64 {
    place(value, &chart.y, PLOT_BOTTOM, PLOT_TOP)
}

fn draw_axes(svg: &mut String, chart: &Chart) {
    put(
        svg,
        format_args!(
            r#"<text class="chart" x="{PLOT_LEFT}" y="{}">{}</text>"#,
            PLOT_TOP - 12.0,
            escaped(&chart.title)
        ),
    );
    for tick in ticks(&chart.x, X_TICKS) {
        let (x, text) = (x_of(tick, chart), label(tick, &chart.x, X_TICKS));
        put(svg, format_args!(r#"<path class="grid" d="M{x:.1} {PLOT_TOP}V{PLOT_BOTTOM}"/>"#));
        put(
            svg,
            format_args!(r#"<text x="{x:.1}" y="{}" text-anchor="middle">{text}</text>"#, PLOT_BOTTOM + 18.0),
        );
    }
    for tick in ticks(&chart.y, Y_TICKS) {
        let (y, text) = (y_of(tick, chart), label(tick, &chart.y, Y_TICKS));
        put(svg, format_args!(r#"<path class="grid" d="M{PLOT_LEFT} {y:.1}H{PLOT_RIGHT}"/>"#));
        put(
            svg,
            format_args!(
                r#"<text x="{}" y="{:.1}" text-anchor="end">{text}</text>"#,
                PLOT_LEFT - 8.0,
                y + 4.5
            ),
        );
    }
    put(svg, format_args!(r#"<path class="frame" d="M{PLOT_LEFT} {PLOT_TOP}V{PLOT_BOTTOM}H{PLOT_RIGHT}"/>"#));
    let (middle_x, middle_y) = ((PLOT_LEFT + PLOT_RIGHT) / 2.0, (PLOT_TOP + PLOT_BOTTOM) / 2.0);
    let (x, y) = (escaped(&chart.x.label), escaped(&chart.y.label));
    put(
        svg,
        format_args!(r#"<text x="{middle_x}" y="{}" text-anchor="middle">{x}</text>"#, PLOT_BOTTOM + 37.0),
    );
    put(
        svg,
        format_args!(
            r#"<text transform="translate(18 {middle_y}) rotate(-90)" text-anchor="middle">{y}</text>"#
        ),
    );
}

fn draw_lines(svg: &mut String, chart: &Chart, number: usize) {
    put(svg, format_args!(r#"<g clip-path="url(#frame{number})">"#));
    for (number, series) in chart.series.iter().enumerate() {
        let (mut path, mut pen_down) = (String::new(), false);
        for &(x, y) in &series.points {
            if x.is_finite() && y.is_finite() {
                let command = if pen_down { 'L' } else { 'M' };
                write!(path, "{command}{:.1} {:.1}", x_of(x, chart), y_of(y, chart))
                    .expect("a string takes everything");
            }
            pen_down = x.is_finite() && y.is_finite();
        }
        put(svg, format_args!(r#"<path class="line"{} d="{path}"/>"#, pen(number, series.stroke)));
    }
    put(svg, format_args!("</g>"));
}

fn pen(number: usize, stroke: Stroke) -> String {
    let dashes = if stroke == Stroke::Dashed { r#" stroke-dasharray="6 4""# } else { "" };
    format!(r#" stroke="{}"{dashes}"#, COLOURS[number % COLOURS.len()])
}

/// Names, highest line first, each with where its line ends.
fn draw_key(svg: &mut String, chart: &Chart) {
    let within = |x: f64| x <= chart.x.to + 1e-9;
    let end = |points: &[(f64, f64)]| {
        points.iter().rev().find(|(x, y)| within(*x) && y.is_finite()).map(|point| point.1)
    };
    let mut entries: Vec<(usize, Option<f64>)> =
        chart.series.iter().map(|series| end(&series.points)).enumerate().collect();
    entries.sort_by(|a, b| b.1.unwrap_or(f64::NEG_INFINITY).total_cmp(&a.1.unwrap_or(f64::NEG_INFINITY)));
    for (row, (number, end)) in entries.into_iter().enumerate() {
        let series = &chart.series[number];
        let (y, left) = (PLOT_TOP + 12.0 + KEY_LINE * row as f64, PLOT_RIGHT + 16.0);
        put(
            svg,
            format_args!(r#"<path class="line"{} d="M{left} {}h22"/>"#, pen(number, series.stroke), y - 4.5),
        );
        let name = escaped(&series.name);
        let end = end.map_or(String::new(), |end| format!(" {end:.2}"));
        put(svg, format_args!(r#"<text x="{}" y="{y}">{name}{end}</text>"#, left + 30.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Series;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        Chart {
            title: "a < b".to_owned(),
            x: Axis { label: "x".to_owned(), from: 0.0, to: 10.0 },
            y: Axis { label: "y".to_owned(), from: 0.0, to: 100.0 },
            series: vec![
                Series {
                    name: "low".to_owned(),
                    points: vec![(0.0, 1.0), (10.0, 2.0)],
                    stroke: Stroke::Dashed,
                },
                Series { name: "high".to_owned(), points, stroke: Stroke::Solid },
            ],
        }
    }

    #[test]
    fn corners_of_the_data_are_corners_of_the_frame() {
        let svg = figure("t", &[chart(vec![(0.0, 0.0), (10.0, 100.0)])]);
        assert!(
            svg.contains(&format!("M{PLOT_LEFT:.1} {PLOT_BOTTOM:.1}L{PLOT_RIGHT:.1} {PLOT_TOP:.1}")),
            "{svg}"
        );
        assert!(svg.contains("a &lt; b") && !svg.contains("a < b"));
        assert!(
            svg.find("high 100.00").unwrap() < svg.find("low 2.00").unwrap(),
            "the key follows the lines"
        );
    }

    #[test]
    fn a_missing_number_interrupts_the_line() {
        let svg = figure("t", &[chart(vec![(0.0, 50.0), (2.0, f64::NAN), (4.0, 50.0), (6.0, 50.0)])]);
        let line = svg.lines().find(|line| line.contains(COLOURS[1]) && line.contains('L')).unwrap();
        assert_eq!((line.matches('M').count(), line.matches('L').count()), (2, 1), "{line}");
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn every_element_that_opens_closes() {
        let svg = figure("t", &[chart(vec![(1.0, 1.0)]), chart(vec![(1.0, 1.0)])]);
        for name in ["g", "text", "svg", "style", "title", "clipPath"] {
            let opened =
                svg.matches(&format!("<{name} ")).count() + svg.matches(&format!("<{name}>")).count();
            assert_eq!(opened, svg.matches(&format!("</{name}>")).count(), "{name}");
        }
    }
}
