//! Numbers and times as people read them. Pure.

use serde::Serialize;

/// The name a value has in the API, such as `same_box`.
pub(crate) fn name_of(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        _ => "?".to_owned(),
    }
}

/// The same with dashes, as options are spelled: `same-box`.
pub(crate) fn spelled(value: &impl Serialize) -> String {
    name_of(value).replace('_', "-")
}

/// `1 GPU`, `2 GPUs`, `2 boxes`.
pub(crate) fn counted(count: u64, one: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ if one.ends_with('x') => format!("{count} {one}es"),
        _ => format!("{count} {one}s"),
    }
}

/// `141.0 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// `42s`, `7m`, `3h`, `12d`: one number, the largest unit that gives at least one.
pub(crate) fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// How long ago.
pub(crate) fn age(then_ms: u64, now_ms: u64) -> String {
    duration(now_ms.saturating_sub(then_ms))
}

/// How long until then.
pub(crate) fn left(then_ms: u64, now_ms: u64) -> String {
    if then_ms <= now_ms { "now".to_owned() } else { duration(then_ms - now_ms) }
}

/// `2026-11-15 09:33:11Z`.
pub(crate) fn time(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    let Ok(time) = ::time::OffsetDateTime::from_unix_timestamp(seconds) else { return ms.to_string() };
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second) = time.to_hms();
    format!("{year:04}-{:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z", u8::from(month))
}

/// The last part of an identity, with its tenant: `vision/ada`, `admin/first`.
pub(crate) fn who(identity: &str) -> &str {
    let bare = identity.strip_prefix("spiffe://dxpu/").unwrap_or(identity);
    bare.strip_prefix("tenant/").unwrap_or(bare)
}

/// Nothing is shown as a dash, so that columns stay columns.
pub(crate) fn or_dash(text: impl Into<String>) -> String {
    let text = text.into();
    if text.is_empty() { "-".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!((bytes(0).as_str(), bytes(1023).as_str()), ("0 B", "1023 B"));
        assert_eq!((bytes(1 << 30).as_str(), bytes(141 << 30).as_str()), ("1.0 GiB", "141 GiB"));
        assert_eq!((duration(119_999).as_str(), duration(120_000).as_str()), ("119s", "2m"));
        assert_eq!((duration(7_200_000).as_str(), duration(172_800_000).as_str()), ("2h", "2d"));
        assert_eq!(
            (left(5, 5).as_str(), left(5_000, 0).as_str(), age(0, 9_000).as_str()),
            ("now", "5s", "9s")
        );
        assert_eq!(time(1_794_735_191_000), "2026-11-15 09:33:11Z");
        assert_eq!(who("spiffe://dxpu/tenant/vision/ada"), "vision/ada");
        assert_eq!(who("spiffe://dxpu/admin/first"), "admin/first");
        assert_eq!(name_of(&pool_api::Topology::SameBox), "same_box");
        assert_eq!(spelled(&pool_api::Topology::SameBox), "same-box");
        let some = (counted(1, "box"), counted(2, "box"), counted(0, "GPU"));
        assert_eq!(some, ("1 box".to_owned(), "2 boxes".to_owned(), "0 GPUs".to_owned()));
    }
}
