//! Line charts as SVG, for pages that may be light or dark.
//!
//! A figure is a column of charts, each with its own axes and a key at its right. The background is left to the page, and
//! ink follows the reader's preference; every colour is readable on both.

mod svg;
mod ticks;

pub use svg::figure;

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// Without gaps.
    Solid,
    /// With gaps: something to compare with.
    Dashed,
}

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// What it is called in the key.
    pub name: String,
    /// Its points from left to right. A point without a number interrupts the line.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub stroke: Stroke,
}

/// One direction of a chart.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What is measured, with its unit.
    pub label: String,
    /// Where it begins.
    pub from: f64,
    /// Where it ends; more than `from`.
    pub to: f64,
}

/// Lines over common axes. Lines of equal number have equal colours in all charts of a figure.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What is to be seen.
    pub title: String,
    /// From left to right.
    pub x: Axis,
    /// From bottom to top.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Series>,
}
