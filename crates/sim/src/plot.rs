//! Line charts as SVG.
