//! Bytes to claims and back.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::{LeaseClaims, LeaseKeyId, SignedClaims};
use work_class::Class;

/// A layout of tokens.
struct Layout {
    /// What every token begins with: what it is, and the version of its layout.
    prefix: &'static str,
    /// What is signed begins with this, and nothing else signed with a lease key does.
    label: &'static [u8],
}

/// For dedicated leases.
const PLAIN: Layout = Layout { prefix: "dxl1.", label: b"dxpu lease token 1\0" };
/// With a class behind the slot.
const CLASSED: Layout = Layout { prefix: "dxl2.", label: b"dxpu lease token 2\0" };

/// With a class and a slack behind the slot.
const SLACKED: Layout = Layout { prefix: "dxl3.", label: b"dxpu lease token 3\0" };

/// The one layout of a lease: each lease has one encoding.
fn layout(claims: &LeaseClaims) -> &'static Layout {
    match (claims.class.is_dedicated(), claims.slack_percent) {
        (true, _) => &PLAIN,
        (false, None) => &CLASSED,
        (false, Some(_)) => &SLACKED,
    }
}

const FIXED_BYTES: usize = 44;
const SIGNATURE_BYTES: usize = 64;

/// Leases, tenants and boxes have short names.
const TEXT_BYTES_MAX: usize = 63;

/// The longest possible token.
const TOKEN_BYTES_MAX: usize = FIXED_BYTES + 3 + 4 * (1 + TEXT_BYTES_MAX) + SIGNATURE_BYTES;

/// Why a text is no token, or claims cannot be put into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// Another kind of token, or another version of this one.
    #[error("it does not begin with dxl1., dxl2. or dxl3.")]
    Prefix,
    /// Not base64 for URLs, or written in another way than we write it.
    #[error("it is not base64")]
    Base64,
    /// It ends too early, or goes on.
    #[error("it has the wrong length")]
    Length,
    /// A name is empty, too long, or has characters that no name has.
    #[error("a name in it is no name")]
    Name,
    /// More than the whole of a GPU, or nothing of it.
    #[error("a share must be 1 to 1000 thousandths")]
    Share,
    /// A class that is not known here, or that has another layout.
    #[error("it has no class that goes with its layout")]
    Class,
    /// A slack of nothing, or of a lease that is not online.
    #[error("a slack must be at least 1 percent, of an online lease")]
    Slack,
}

pub(super) fn check(claims: &LeaseClaims) -> Result<(), CodecError> {
    for name in [&claims.lease, &claims.tenant, &claims.box_name].into_iter().chain(&claims.part) {
        check_text(name.as_bytes())?;
    }
    if claims.slack_percent.is_some_and(|percent| percent == 0 || claims.class != Class::Online) {
        return Err(CodecError::Slack);
    }
    if (1..=1000).contains(&claims.share_milli) { Ok(()) } else { Err(CodecError::Share) }
}

fn check_text(text: &[u8]) -> Result<(), CodecError> {
    let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(byte);
    let is_fine = (1..=TEXT_BYTES_MAX).contains(&text.len()) && text.iter().all(is_plain);
    if is_fine { Ok(()) } else { Err(CodecError::Name) }
}

fn body(key: &LeaseKeyId, claims: &LeaseClaims) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(TOKEN_BYTES_MAX);
    bytes.extend(key.0);
    for number in [claims.issued_ms, claims.expires_ms, claims.epoch, claims.memory_bytes] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend(claims.share_milli.to_be_bytes());
    bytes.extend(claims.slot.to_be_bytes());
    if !claims.class.is_dedicated() {
        bytes.push(claims.class.code());
        bytes.extend(claims.slack_percent.map(u16::to_be_bytes).into_iter().flatten());
    }
    for text in [&claims.lease, &claims.tenant, &claims.box_name].into_iter().chain(&claims.part) {
        bytes.push(u8::try_from(text.len()).expect("names are checked before"));
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// What the signature covers.
pub(super) fn signed_bytes(key: &LeaseKeyId, claims: &LeaseClaims) -> Vec<u8> {
    [layout(claims).label, &body(key, claims)].concat()
}

/// Writes a token.
pub fn encode(signed: &SignedClaims) -> Result<String, CodecError> {
    check(&signed.claims)?;
    let mut bytes = body(&signed.key, &signed.claims);
    bytes.extend(signed.signature);
    let prefix = layout(&signed.claims).prefix;
    Ok(format!("{prefix}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// Reads a token. Proves nothing: see [`verify`](super::verify).
pub fn decode(token: &str) -> Result<SignedClaims, CodecError> {
    let of = |layout: &Layout| token.strip_prefix(layout.prefix);
    let (text, has_class, has_slack) = match (of(&PLAIN), of(&CLASSED), of(&SLACKED)) {
        (Some(text), ..) => (text, false, false),
        (_, Some(text), _) => (text, true, false),
        (.., Some(text)) => (text, true, true),
        (None, None, None) => return Err(CodecError::Prefix),
    };
    if text.len() > TOKEN_BYTES_MAX.div_ceil(3) * 4 {
        return Err(CodecError::Length);
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| CodecError::Base64)?;
    let mut rest = bytes.as_slice();
    let key = LeaseKeyId(take(&mut rest)?);
    let issued_ms = u64::from_be_bytes(take(&mut rest)?);
    let expires_ms = u64::from_be_bytes(take(&mut rest)?);
    let epoch = u64::from_be_bytes(take(&mut rest)?);
    let memory_bytes = u64::from_be_bytes(take(&mut rest)?);
    let share_milli = u16::from_be_bytes(take(&mut rest)?);
    let slot = u16::from_be_bytes(take(&mut rest)?);
    let class = if has_class { class(&mut rest)? } else { Class::Dedicated };
    let slack_percent = if has_slack { Some(u16::from_be_bytes(take(&mut rest)?)) } else { None };
    let (lease, tenant, box_name) = (name(&mut rest)?, name(&mut rest)?, name(&mut rest)?);
    // A token of the whole lease ends here.
    let part = if rest.len() > SIGNATURE_BYTES { Some(name(&mut rest)?) } else { None };
    let signature = take(&mut rest)?;
    if !rest.is_empty() {
        return Err(CodecError::Length);
    }
    let claims = LeaseClaims {
        lease,
        tenant,
        box_name,
        slot,
        epoch,
        memory_bytes,
        share_milli,
        class,
        slack_percent,
        issued_ms,
        expires_ms,
        part,
    };
    check(&claims)?;
    Ok(SignedClaims { key, claims, signature })
}

fn class(rest: &mut &[u8]) -> Result<Class, CodecError> {
    let [code] = take(rest)?;
    Class::from_code(code).filter(|class| !class.is_dedicated()).ok_or(CodecError::Class)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], CodecError> {
    let (taken, left) = rest.split_first_chunk().ok_or(CodecError::Length)?;
    *rest = left;
    Ok(*taken)
}

fn name(rest: &mut &[u8]) -> Result<String, CodecError> {
    let [length] = take(rest)?;
    let (text, left) = rest.split_at_checked(usize::from(length)).ok_or(CodecError::Length)?;
    check_text(text)?;
    *rest = left;
    Ok(String::from_utf8(text.to_vec()).expect("plain characters"))
}
