//! AWS Signature Version 4: who sent a request, and that nothing of it was changed.
//!
//! ```text
//!   canonical request (method, path, query, signed headers, hash of the body)
//!     ▸ string to sign (time, scope, hash of it) ▸ HMAC by a key derived from the secret, day, region and service
//! ```

use ring::{digest, hmac};
use std::fmt::Write;

/// A request as it came, before anything in it is believed.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `POST`.
    pub method: &'a str,
    /// As it was sent, encoded.
    pub path: &'a str,
    /// Behind the `?`, encoded.
    pub query: &'a str,
    /// Names in lower case.
    pub headers: &'a [(String, String)],
    /// All of it.
    pub body: &'a [u8],
}

/// Why a request is refused. The words are those that Lambda's clients know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// It has no signature.
    #[error("Missing Authentication Token")]
    Missing,
    /// The header cannot be read.
    #[error("the Authorization header is not one of AWS4-HMAC-SHA256 for the service lambda")]
    Malformed,
    /// A header that must be signed is not.
    #[error("the headers host and x-amz-date must be signed")]
    Unsigned,
    /// Its time is not now.
    #[error("Signature expired: the request is more than 5 minutes away from this service's clock")]
    Expired,
    /// The key is not known, or the signature is not by its secret.
    #[error("The request signature we calculated does not match the signature you provided")]
    Mismatch,
}

/// What the header `Authorization` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorization {
    /// Which key.
    pub key_id: String,
    day: String,
    region: String,
    signed: Vec<String>,
    signature: Vec<u8>,
    time: String,
}

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SERVICE: &str = "lambda";
const TERMINATOR: &str = "aws4_request";
/// A request may be so old, or so far ahead.
const WINDOW_S: u64 = 300;

impl Authorization {
    /// Reads it. Nothing is checked yet but its form.
    pub fn of(request: &Request<'_>) -> Result<Self, Denied> {
        let text = header(request, "authorization").ok_or(Denied::Missing)?;
        let parts = text.strip_prefix(ALGORITHM).ok_or(Denied::Malformed)?;
        let mut found = [None; 3];
        for part in parts.split(',') {
            let (name, value) = part.trim().split_once('=').ok_or(Denied::Malformed)?;
            match name {
                "Credential" => found[0] = Some(value),
                "SignedHeaders" => found[1] = Some(value),
                "Signature" => found[2] = Some(value),
                _ => return Err(Denied::Malformed),
            }
        }
        let [Some(credential), Some(signed), Some(signature)] = found else { return Err(Denied::Malformed) };
        let scope: Vec<&str> = credential.split('/').collect();
        let [key_id, day, region, SERVICE, TERMINATOR] = scope[..] else { return Err(Denied::Malformed) };
        let time = header(request, "x-amz-date").ok_or(Denied::Unsigned)?;
        let signed: Vec<String> = signed.split(';').map(str::to_owned).collect();
        if !["host", "x-amz-date"].iter().all(|must| signed.iter().any(|name| name == must)) {
            return Err(Denied::Unsigned);
        }
        if !time.starts_with(day) {
            return Err(Denied::Malformed);
        }
        Ok(Self {
            key_id: key_id.to_owned(),
            day: day.to_owned(),
            region: region.to_owned(),
            signed,
            signature: from_hex(signature).ok_or(Denied::Malformed)?,
            time: time.to_owned(),
        })
    }

    /// Whether the holder of this secret sent the request, just now.
    pub fn check(&self, request: &Request<'_>, secret: &str, now_s: u64) -> Result<(), Denied> {
        let sent_s = seconds(&self.time).ok_or(Denied::Malformed)?;
        if sent_s.abs_diff(now_s) > WINDOW_S {
            return Err(Denied::Expired);
        }
        let text = self.string_to_sign(request);
        let key = signing_key(secret, &self.day, &self.region);
        hmac::verify(&key, text.as_bytes(), &self.signature).map_err(|_| Denied::Mismatch)
    }

    fn string_to_sign(&self, request: &Request<'_>) -> String {
        let canonical = canonical(request, &self.signed);
        let Self { day, region, time, .. } = self;
        format!(
            "{ALGORITHM}\n{time}\n{day}/{region}/{SERVICE}/{TERMINATOR}\n{}",
            sha256_hex(canonical.as_bytes())
        )
    }
}

/// The value of the header `Authorization` for a request that we send. `x-amz-date` and `host` are among its headers.
pub fn sign(request: &Request<'_>, key_id: &str, secret: &str, region: &str) -> Option<String> {
    let time = header(request, "x-amz-date")?.to_owned();
    let day = time.get(..8)?.to_owned();
    let mut signed: Vec<String> = request.headers.iter().map(|(name, _)| name.clone()).collect();
    signed.sort_unstable();
    signed.dedup();
    let authorization = Authorization {
        key_id: key_id.to_owned(),
        day: day.clone(),
        region: region.to_owned(),
        signed,
        signature: Vec::new(),
        time,
    };
    let text = authorization.string_to_sign(request);
    let tag = hmac::sign(&signing_key(secret, &day, region), text.as_bytes());
    Some(format!(
        "{ALGORITHM} Credential={key_id}/{day}/{region}/{SERVICE}/{TERMINATOR}, SignedHeaders={}, Signature={}",
        authorization.signed.join(";"),
        hex(tag.as_ref())
    ))
}

fn signing_key(secret: &str, day: &str, region: &str) -> hmac::Key {
    let next = |key: hmac::Key, text: &str| {
        hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, text.as_bytes()).as_ref())
    };
    let first = hmac::Key::new(hmac::HMAC_SHA256, format!("AWS4{secret}").as_bytes());
    [day, region, SERVICE, TERMINATOR].into_iter().fold(first, next)
}

fn canonical(request: &Request<'_>, signed: &[String]) -> String {
    // All services but S3 encode the path again, as it was sent.
    let mut text =
        format!("{}\n{}\n{}\n", request.method, encoded(request.path.bytes(), true), query(request.query));
    for name in signed {
        let values: Vec<String> = request
            .headers
            .iter()
            .filter(|(header, _)| header == name)
            .map(|(_, value)| value.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let _ = writeln!(text, "{name}:{}", values.join(","));
    }
    let _ = write!(text, "\n{}\n{}", signed.join(";"), sha256_hex(request.body));
    text
}

fn query(query: &str) -> String {
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (encoded(decoded(name), false), encoded(decoded(value), false)))
        .collect();
    pairs.sort_unstable();
    let pairs: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

fn encoded(bytes: impl IntoIterator<Item = u8>, keeps_slash: bool) -> String {
    let mut text = String::new();
    for byte in bytes {
        let is_plain =
            byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (keeps_slash && byte == b'/');
        if is_plain {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

fn decoded(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let code = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    out
}

fn header<'a>(request: &Request<'a>, name: &str) -> Option<&'a str> {
    request.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
}

/// SHA-256 in hex.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let digits = digits.filter(|digits| digits.len() == 64)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// Seconds since 1970 of `20150830T123600Z`.
fn seconds(time: &str) -> Option<u64> {
    let number = |from: usize, to: usize| -> Option<u64> {
        let part = time.get(from..to)?;
        part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
    };
    if time.len() != 16 || time.get(8..9) != Some("T") || time.get(15..) != Some("Z") {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days from a year that begins in March: the leap day is its last (Howard Hinnant's days_from_civil).
    let shifted = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (shifted / 400, shifted % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some(days * 86_400 + number(9, 11)? * 3600 + number(11, 13)? * 60 + number(13, 15)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

    fn headers(more: &[(&str, &str)]) -> Vec<(String, String)> {
        let base = [("host", "127.0.0.1:9000"), ("x-amz-date", "20150830T123600Z")];
        base.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    const NOW: u64 = 1_440_938_160;

    /// Made by botocore's own signer (SigV4Auth) for this request.
    const BY_BOTOCORE: &str = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/lambda/aws4_request, SignedHeaders=host;x-amz-date;x-amz-invocation-type, Signature=df3ac8e5115e513b71c44ca7c4c7119d325761b76ad8e2b18cd601f08b1fd103";

    const PATH: &str = "/2015-03-31/functions/arn%3Aaws%3Alambda%3Ax/invocations";

    fn request<'a>(headers: &'a [(String, String)], body: &'a [u8]) -> Request<'a> {
        Request { method: "POST", path: PATH, query: "Qualifier=%24LATEST&A=b%20c", headers, body }
    }

    #[test]
    fn a_signature_is_that_of_botocore() {
        let headers = headers(&[("x-amz-invocation-type", "Event")]);
        let signed = sign(&request(&headers, b"{\"a\": 1}"), "AKIDEXAMPLE", SECRET, "us-east-1").unwrap();
        assert_eq!(signed, BY_BOTOCORE);
    }

    #[test]
    fn only_the_request_that_was_signed_is_believed() {
        let unsigned = headers(&[]);
        let signed = sign(&request(&unsigned, b"body"), "AKID", SECRET, "eu-1").unwrap();
        let all = headers(&[("authorization", &signed)]);
        let good = request(&all, b"body");
        let found = Authorization::of(&good).unwrap();
        assert_eq!(found.key_id, "AKID");
        assert_eq!(found.check(&good, SECRET, NOW), Ok(()));
        assert_eq!(found.check(&good, "other", NOW), Err(Denied::Mismatch));
        assert_eq!(found.check(&good, SECRET, NOW + 301), Err(Denied::Expired));
        assert_eq!(found.check(&good, SECRET, NOW - 301), Err(Denied::Expired));
        for changed in [
            Request { body: b"bodx", ..good },
            Request { method: "PUT", ..good },
            Request { path: "/2015-03-31/functions/other/invocations", ..good },
            Request { query: "Qualifier=1", ..good },
        ] {
            assert_eq!(found.check(&changed, SECRET, NOW), Err(Denied::Mismatch));
        }
        let mut other_host = all.clone();
        other_host[0].1 = "elsewhere".to_owned();
        assert_eq!(found.check(&request(&other_host, b"body"), SECRET, NOW), Err(Denied::Mismatch));
    }

    #[test]
    fn a_header_that_does_not_bind_the_request_is_refused() {
        let of = |text: &str| Authorization::of(&request(&headers(&[("authorization", text)]), b"")).err();
        let sig = "0".repeat(64);
        assert_eq!(Authorization::of(&request(&headers(&[]), b"")).err(), Some(Denied::Missing));
        let good = format!(
            "AWS4-HMAC-SHA256 Credential=A/20150830/r/lambda/aws4_request, SignedHeaders=host;x-amz-date, Signature={sig}"
        );
        assert_eq!(of(&good), None);
        assert_eq!(of(&good.replace("host;", "")), Some(Denied::Unsigned));
        assert_eq!(of(&good.replace(";x-amz-date", "")), Some(Denied::Unsigned));
        for (from, to) in [
            ("lambda", "s3"),
            ("20150830/", "20150831/"),
            ("AWS4-", "AWS5-"),
            ("000", "00"),
            ("aws4_request", "x"),
        ] {
            assert_eq!(of(&good.replacen(from, to, 1)), Some(Denied::Malformed), "{from}");
        }
    }

    #[test]
    fn times_are_read_right() {
        assert_eq!(seconds("19700101T000000Z"), Some(0));
        assert_eq!(seconds("20150830T123600Z"), Some(NOW));
        assert_eq!(seconds("20240229T235959Z"), Some(1_709_251_199));
        for bad in ["", "20150830T123600", "2015-830T123600Z", "20151330T123600Z", "20150830 123600Z"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
