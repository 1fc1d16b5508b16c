//! Pages can be read and compared line by line.

use crate::tree;

/// The most characters of a line of prose.
const CHARACTERS_MAX: usize = 140;

/// Tables, code, headings and lines that are one long link stay as they are; so do pages that programs write.
#[test]
fn lines_of_prose_are_not_too_long() {
    let mut found = Vec::new();
    for path in tree::files(&["."], ".md") {
        let shown = path.display().to_string();
        if ["docs/generated/", "docs/benchmarks/", "docs/results/"]
            .iter()
            .any(|folder| shown.contains(folder))
        {
            continue;
        }
        let mut is_code = false;
        for (number, line) in tree::text(&path).lines().enumerate() {
            if line.trim_start().starts_with("```") {
                is_code = !is_code;
            }
            let is_prose = !is_code
                && !line.trim_start().starts_with('|')
                && !line.starts_with("    ")
                && !line.starts_with('#')
                && line.contains(' ');
            if is_prose && line.chars().count() > CHARACTERS_MAX {
                found.push(format!("{}:{}", shown.trim_start_matches("./"), number + 1));
            }
        }
    }
    tree::same(&format!("A line of prose in Markdown has at most {CHARACTERS_MAX} characters."), &found, &[]);
}
