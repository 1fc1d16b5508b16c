//! Quantities as people write them: `16GiB`, `50us`, `9.0`.

use std::time::Duration;

fn split(text: &str) -> (&str, &str) {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    (text[..at].trim(), text[at..].trim())
}

/// `16GiB`, `512M`, `1073741824`. K, M, G and T are powers of 1024, with or without `iB`; `GB` is a power of 1000.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let unit_bytes: f64 = match unit {
        "" | "B" => 1.0,
        "K" | "KiB" => 1024.0,
        "M" | "MiB" => f64::powi(1024.0, 2),
        "G" | "GiB" => f64::powi(1024.0, 3),
        "T" | "TiB" => f64::powi(1024.0, 4),
        "KB" | "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        _ => return Err(format!("`{unit}` is no unit of memory; write 16GiB or 512MiB")),
    };
    let number: f64 = number.parse().map_err(|_| "write a number and a unit, like 16GiB".to_owned())?;
    let bytes = number * unit_bytes;
    if (0.0..9e18).contains(&bytes) {
        Ok(bytes as u64)
    } else {
        Err("that is not an amount of memory".to_owned())
    }
}

/// `50us`, `1.5ms`, `2s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err("write a number and us, ms or s, like 50us".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "write a number and a unit, like 50us".to_owned())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| "that is not a length of time".to_owned())
}

/// `9.0`.
pub(crate) fn compute_capability(text: &str) -> Result<(u32, u32), String> {
    let parts =
        text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parts.ok_or_else(|| "write major.minor, like 9.0".to_owned())
}

/// A number that is at least 1.
pub(crate) fn from_one_up(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 1.0);
    number.ok_or_else(|| "write a number from 1 up".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_written_as_people_do() {
        for (text, expected) in [("16GiB", 16 << 30), ("1.5G", 3 << 29), ("4096", 4096), ("2 MB", 2_000_000)]
        {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "GiB", "16 furlongs", "-1GiB", "1e40T", "nan"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(duration("1.5ms"), Ok(Duration::from_micros(1500)));
        for text in ["50", "us", "-1s", "1h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn compute_capabilities_have_two_parts() {
        assert_eq!(compute_capability("9.0"), Ok((9, 0)));
        assert!(compute_capability("9").is_err() && compute_capability("a.b").is_err());
    }
}
