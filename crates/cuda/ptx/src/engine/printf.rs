//! Functions that the device runtime brings: printf, malloc, free, assert, the values of conditional nodes.

use super::{
    access::Reach,
    fault::{FaultKind, Trouble},
};
use crate::{
    code::{Argument, Builtin, CallSite, Kernel, lanes},
    hooks::Hooks,
    memory::DeviceMemory,
};

/// The longest text one `%s` prints, and the longest format.
const TEXT_MAX: usize = 1 << 16;

/// Calls a function of the runtime for every lane of the mask.
pub(super) fn builtin<M: DeviceMemory, H: Hooks>(
    which: Builtin,
    site: &CallSite,
    reach: &mut Reach<'_, '_, M>,
    hooks: &H,
    kernel: &Kernel,
    base: usize,
    mask: u32,
) -> Result<(), Trouble> {
    for lane in lanes(mask) {
        let argument = |reach: &Reach<'_, '_, M>, index: usize| match site.arguments.get(index) {
            Some(&Argument::Frame { offset, size }) => {
                let start = (reach.base_local + offset) as usize;
                let size = size.min(8) as usize;
                let mut bytes = [0; 8];
                bytes[..size].copy_from_slice(&reach.warp.local[lane][start..start + size]);
                u64::from_le_bytes(bytes)
            }
            Some(&Argument::Value(src)) => reach.warp.row(kernel, base, src)[lane],
            None => 0,
        };
        let result = match which {
            Builtin::Printf => {
                let (format, arguments) = (argument(reach, 0), argument(reach, 1));
                let format = reach.text(lane, format, TEXT_MAX)?;
                let (text, conversions) = print(reach, lane, &format, arguments)?;
                hooks.print(&text);
                conversions
            }
            Builtin::Malloc => hooks.malloc(argument(reach, 0)),
            Builtin::Free => {
                hooks.free(argument(reach, 0));
                0
            }
            Builtin::SetCondition => {
                hooks.set_condition(argument(reach, 0), argument(reach, 1) as u32);
                0
            }
            Builtin::AssertFail => {
                let mut part = |index: usize| {
                    let address = argument(reach, index);
                    let text = if address == 0 { Vec::new() } else { reach.text(lane, address, TEXT_MAX)? };
                    Ok::<_, Trouble>(String::from_utf8_lossy(&text).into_owned())
                };
                let (message, file, function) = (part(0)?, part(1)?, part(3)?);
                let line = argument(reach, 2) as u32;
                let message = format!("{file}:{line}: {function}: Assertion `{message}` failed.");
                return Err(Trouble::saying(FaultKind::Assert, lane, message));
            }
        };
        if let Some(&(offset, size)) = site.results.first() {
            let start = (reach.base_local + offset) as usize;
            let size = size.min(8) as usize;
            reach.warp.local[lane][start..start + size].copy_from_slice(&result.to_le_bytes()[..size]);
        }
    }
    Ok(())
}

/// One conversion of a format.
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    /// Bytes of an integer.
    size: u32,
}

/// Formats like C's printf, with arguments one after the other at `arguments`. Returns also how many there were.
fn print<M: DeviceMemory>(
    reach: &mut Reach<'_, '_, M>,
    lane: usize,
    format: &[u8],
    mut arguments: u64,
) -> Result<(Vec<u8>, u64), Trouble> {
    let mut out = Vec::new();
    let mut count = 0;
    let mut at = 0;
    // Every argument is aligned to its own size.
    let mut next = |reach: &mut Reach<'_, '_, M>, size: u32| -> Result<u64, Trouble> {
        arguments = arguments.next_multiple_of(u64::from(size));
        let value = reach.value(lane, arguments, size)?;
        arguments += u64::from(size);
        count += 1;
        Ok(value)
    };
    while at < format.len() {
        let byte = format[at];
        at += 1;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut spec = Spec {
            left: false,
            plus: false,
            space: false,
            alternate: false,
            zero: false,
            width: 0,
            precision: None,
            size: 4,
        };
        let peek = |at: usize| format.get(at).copied().unwrap_or(0);
        loop {
            match peek(at) {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.alternate = true,
                b'0' => spec.zero = true,
                _ => break,
            }
            at += 1;
        }
        let mut number = |at: &mut usize, reach: &mut Reach<'_, '_, M>| -> Result<i64, Trouble> {
            if peek(*at) == b'*' {
                *at += 1;
                return Ok(i64::from(next(reach, 4)? as i32));
            }
            let mut value = 0i64;
            while peek(*at).is_ascii_digit() {
                value = (value * 10 + i64::from(peek(*at) - b'0')).min(4096);
                *at += 1;
            }
            Ok(value)
        };
        let width = number(&mut at, reach)?;
        spec.left |= width < 0;
        spec.width = width.unsigned_abs().min(4096) as usize;
        if peek(at) == b'.' {
            at += 1;
            let precision = number(&mut at, reach)?;
            spec.precision = usize::try_from(precision).ok().map(|precision| precision.min(4096));
        }
        loop {
            match peek(at) {
                b'l' | b'j' | b'z' | b't' | b'q' | b'L' => spec.size = 8,
                b'h' => {}
                _ => break,
            }
            at += 1;
        }
        let conversion = peek(at);
        at += 1;
        let text = match conversion {
            b'%' => {
                out.push(b'%');
                continue;
            }
            b'd' | b'i' => {
                let bits = next(reach, spec.size)?;
                let value = if spec.size == 8 { bits as i64 } else { i64::from(bits as i32) };
                integer(&spec, value < 0, value.unsigned_abs().to_string(), "")
            }
            b'u' => integer(&spec, false, next(reach, spec.size)?.to_string(), ""),
            b'o' => integer(
                &spec,
                false,
                format!("{:o}", next(reach, spec.size)?),
                if spec.alternate { "0" } else { "" },
            ),
            b'x' => integer(
                &spec,
                false,
                format!("{:x}", next(reach, spec.size)?),
                if spec.alternate { "0x" } else { "" },
            ),
            b'X' => integer(
                &spec,
                false,
                format!("{:X}", next(reach, spec.size)?),
                if spec.alternate { "0X" } else { "" },
            ),
            b'p' => integer(&spec, false, format!("{:x}", next(reach, 8)?), "0x"),
            b'c' => vec![next(reach, 4)? as u8],
            b's' => {
                let address = next(reach, 8)?;
                let mut text =
                    if address == 0 { b"(null)".to_vec() } else { reach.text(lane, address, TEXT_MAX)? };
                if let Some(precision) = spec.precision {
                    text.truncate(precision);
                }
                text
            }
            b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                let value = f64::from_bits(next(reach, 8)?);
                float(&spec, value, conversion)
            }
            // Not a conversion: print it as it stands.
            0 => {
                out.push(b'%');
                continue;
            }
            other => {
                out.extend([b'%', other]);
                continue;
            }
        };
        pad(&mut out, &spec, text, conversion);
    }
    Ok((out, count))
}

fn pad(out: &mut Vec<u8>, spec: &Spec, text: Vec<u8>, conversion: u8) {
    let missing = spec.width.saturating_sub(text.len());
    let number = !matches!(conversion, b's' | b'c' | b'p');
    let integer_precision =
        matches!(conversion, b'd' | b'i' | b'u' | b'x' | b'X' | b'o') && spec.precision.is_some();
    if spec.left {
        out.extend(&text);
        out.extend(std::iter::repeat_n(b' ', missing));
    } else if spec.zero && number && !integer_precision && !text.ends_with(b"nan") && !text.ends_with(b"inf")
    {
        // Zeros go behind the sign and the prefix.
        let sign = usize::from(matches!(text.first(), Some(b'-' | b'+' | b' ')));
        let prefix = if matches!(text.get(sign..sign + 2), Some(b"0x" | b"0X")) { sign + 2 } else { sign };
        out.extend(&text[..prefix]);
        out.extend(std::iter::repeat_n(b'0', missing));
        out.extend(&text[prefix..]);
    } else {
        out.extend(std::iter::repeat_n(b' ', missing));
        out.extend(&text);
    }
}

fn sign(spec: &Spec, negative: bool) -> &'static str {
    match (negative, spec.plus, spec.space) {
        (true, ..) => "-",
        (false, true, _) => "+",
        (false, false, true) => " ",
        _ => "",
    }
}

fn integer(spec: &Spec, negative: bool, digits: String, prefix: &str) -> Vec<u8> {
    let prefix = if digits == "0" { "" } else { prefix };
    let digits = match spec.precision {
        Some(0) if digits == "0" => String::new(),
        Some(precision) => format!("{digits:0>precision$}"),
        None => digits,
    };
    format!("{}{prefix}{digits}", sign(spec, negative)).into_bytes()
}

fn float(spec: &Spec, value: f64, conversion: u8) -> Vec<u8> {
    let upper = conversion.is_ascii_uppercase();
    let magnitude = value.abs();
    let text = if value.is_nan() {
        "nan".to_owned()
    } else if value.is_infinite() {
        "inf".to_owned()
    } else {
        match conversion.to_ascii_lowercase() {
            b'f' => format!("{magnitude:.*}", spec.precision.unwrap_or(6)),
            b'e' => exponent(magnitude, spec.precision.unwrap_or(6)),
            b'a' => hexadecimal(magnitude),
            _ => general(magnitude, spec.precision.unwrap_or(6).max(1), spec.alternate),
        }
    };
    let text = if upper { text.to_uppercase() } else { text };
    format!("{}{text}", sign(spec, value.is_sign_negative())).into_bytes()
}

fn exponent(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = exponent.parse().unwrap_or(0);
    format!("{digits}e{}{:02}", if power < 0 { '-' } else { '+' }, power.abs())
}

fn general(value: f64, precision: usize, keep: bool) -> String {
    let scientific = exponent(value, precision - 1);
    let power: i32 = scientific.split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0);
    let trim = |text: &str| {
        if keep || !text.contains('.') {
            return text.to_owned();
        }
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if power < -4 || power >= precision as i32 {
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "+00"));
        return format!("{}e{exponent}", trim(digits));
    }
    let places = (precision as i32 - 1 - power).max(0) as usize;
    trim(&format!("{value:.places$}"))
}

fn hexadecimal(value: f64) -> String {
    let bits = value.to_bits();
    let fraction = format!("{:013x}", bits & ((1 << 52) - 1));
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    match (bits >> 52) as i64 {
        0 if bits == 0 => "0x0p+0".to_owned(),
        0 => format!("0x0{point}{fraction}p-1022"),
        biased => format!("0x1{point}{fraction}p{:+}", biased - 1023),
    }
}
