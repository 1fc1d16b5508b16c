//! Answers as YAML: what the API gives as JSON, for people who read and tools that want YAML. Pure.
//!
//! Every text is quoted unless it can be nothing but a text, so that no reader takes a name such as `no` or `1e3` for
//! something else. YAML is written, never read.

use serde_json::Value;

/// The value as a YAML document.
pub(crate) fn document(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(fields) if !fields.is_empty() => block(value, 0, &mut text),
        Value::Array(items) if !items.is_empty() => block(value, 0, &mut text),
        scalar => {
            text.push_str(&inline(scalar));
            text.push('\n');
        }
    }
    text
}

fn block(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                text.push_str(&format!("{indent}{}:", plain_or_quoted(name)));
                below(field, depth + 1, text);
            }
        }
        Value::Array(items) => {
            for item in items {
                if is_empty_or_scalar(item) {
                    text.push_str(&format!("{indent}- {}\n", inline(item)));
                    continue;
                }
                let mut own = String::new();
                block(item, depth + 1, &mut own);
                // The first line of the item stands behind its dash.
                text.push_str(&format!("{indent}- {}", own.trim_start_matches(' ')));
            }
        }
        scalar => text.push_str(&format!("{indent}{}\n", inline(scalar))),
    }
}

fn below(value: &Value, depth: usize, text: &mut String) {
    if is_empty_or_scalar(value) {
        text.push_str(&format!(" {}\n", inline(value)));
    } else {
        text.push('\n');
        block(value, depth, text);
    }
}

fn is_empty_or_scalar(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => true,
    }
}

fn inline(value: &Value) -> String {
    match value {
        Value::Object(_) => "{}".to_owned(),
        Value::Array(_) => "[]".to_owned(),
        Value::String(text) => plain_or_quoted(text),
        other => other.to_string(),
    }
}

/// JSON's quoted texts are YAML's double-quoted ones.
fn plain_or_quoted(text: &str) -> String {
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'));
    let means_else = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    if is_word && !means_else.contains(&text.to_ascii_lowercase().as_str()) {
        text.to_owned()
    } else {
        Value::String(text.to_owned()).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_api_gives_is_yaml() {
        let value = json!([
            {"id": "l-1", "gpus": [{"gpu": "a/0", "epoch": 3}, {"gpu": "a/1", "epoch": 1}], "note": "", "ended": null},
            {"id": "no", "gpus": [], "tenants": ["vision", "1e3"], "note": "a: b\n# c", "quotas": {}}
        ]);
        let expected = "\
- ended: null
  gpus:
    - epoch: 3
      gpu: a/0
    - epoch: 1
      gpu: a/1
  id: l-1
  note: \"\"
- gpus: []
  id: \"no\"
  note: \"a: b\\n# c\"
  quotas: {}
  tenants:
    - vision
    - \"1e3\"
";
        assert_eq!(document(&value), expected);
        assert_eq!(document(&json!([])), "[]\n");
        assert_eq!(document(&json!({"free": 3})), "free: 3\n");
    }
}
