//! Keys from the lease's secret, and the seal on every datagram.
//!
//! ```text
//!   secret ─ HKDF(salt: link, epoch) ─▶ greeting key: MAC of greetings
//!          └ HKDF(salt: link, epoch, both randoms) ─▶ host's key and IV │ box's key and IV │ session number
//! ```
//!
//! AES-256-GCM. The nonce is the sender's IV with the datagram's number laid over it. Numbers only grow, each end has a
//! key of its own, and keys have fresh randomness of both ends in them: no nonce is used twice, not even by a proxy
//! that forgot everything and starts again in the same epoch.

use crate::wire::{EpochField, MAC_BYTES, RANDOM_BYTES, SEAL_BYTES};
use ring::{aead, hkdf, hmac};
use units::LinkName;

/// Datagrams under one key, far below what AES-GCM bears.
pub(crate) const DATAGRAMS_MAX: u64 = 1 << 48;

/// A secret of the host and the box of a lease; only the managers know it too.
#[derive(Clone)]
pub struct LeaseSecret(pub [u8; 32]);

impl std::fmt::Debug for LeaseSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LeaseSecret(…)")
    }
}

/// Whether TLPs are readable on the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// Header and payload are encrypted; a forged datagram is noticed.
    #[default]
    Encrypted,
    /// For networks that only the pool can reach: CRCs notice accidents, not attackers. Greetings are still checked.
    Plain,
}

/// Proves a greeting.
pub(crate) struct GreetingKey(hmac::Key);

/// Both directions of a session.
pub(crate) struct Session {
    pub(crate) number: u32,
    ours: Option<Sealer>,
    theirs: Option<Sealer>,
}

struct Sealer {
    key: aead::LessSafeKey,
    iv: [u8; aead::NONCE_LEN],
}

/// The length of what HKDF makes.
struct Bytes(usize);

impl hkdf::KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

fn derive<const N: usize>(secret: &LeaseSecret, salt: &[u8], what: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    hkdf::Salt::new(hkdf::HKDF_SHA256, salt)
        .extract(&secret.0)
        .expand(&[b"dxpu fabric 1 ", what], Bytes(N))
        .and_then(|made| made.fill(&mut bytes))
        .expect("HKDF makes up to 8160 bytes, and we ask for 44 at most");
    bytes
}

impl GreetingKey {
    pub(crate) fn new(secret: &LeaseSecret, name: LinkName, epoch: EpochField) -> Self {
        let salt = [name.0.to_be_bytes(), epoch.to_bytes()].concat();
        let key: [u8; 32] = derive(secret, &salt, b"greeting");
        Self(hmac::Key::new(hmac::HMAC_SHA256, &key))
    }

    pub(crate) fn sign(&self, greeting: &[u8]) -> [u8; MAC_BYTES] {
        let mut mac = [0; MAC_BYTES];
        mac.copy_from_slice(hmac::sign(&self.0, greeting).as_ref());
        mac
    }

    pub(crate) fn is_right(&self, greeting: &[u8], mac: &[u8; MAC_BYTES]) -> bool {
        hmac::verify(&self.0, greeting, mac).is_ok()
    }
}

impl Session {
    pub(crate) fn new(
        secret: &LeaseSecret,
        name: LinkName,
        epoch: EpochField,
        randoms: [&[u8; RANDOM_BYTES]; 2],
        is_host: bool,
        protection: Protection,
    ) -> Self {
        let [host, other] = randoms;
        let salt = [&name.0.to_be_bytes()[..], &epoch.to_bytes(), host, other].concat();
        let sealer = |is_host: bool| {
            let what: &[u8] = if is_host { b"from host" } else { b"from box" };
            let made: [u8; 44] = derive(secret, &salt, what);
            let key = aead::UnboundKey::new(&aead::AES_256_GCM, &made[..32]).expect("the key has 32 bytes");
            let mut iv = [0; aead::NONCE_LEN];
            iv.copy_from_slice(&made[32..]);
            Sealer { key: aead::LessSafeKey::new(key), iv }
        };
        let number = u32::from_be_bytes(derive(secret, &salt, b"session"));
        match protection {
            Protection::Plain => Self { number, ours: None, theirs: None },
            Protection::Encrypted => {
                Self { number, ours: Some(sealer(is_host)), theirs: Some(sealer(!is_host)) }
            }
        }
    }

    /// Encrypts `body` in place and writes the seal behind it into `seal`. False when the session is not encrypted.
    pub(crate) fn seal(&self, number: u64, header: &[u8], body: &mut [u8], seal: &mut [u8]) -> bool {
        let Some(sealer) = &self.ours else { return false };
        let tag = sealer
            .key
            .seal_in_place_separate_tag(sealer.nonce(number), aead::Aad::from(header), body)
            .expect("a datagram is far shorter than AES-GCM's limit");
        seal.copy_from_slice(tag.as_ref());
        true
    }

    /// Decrypts `sealed` in place; None when the seal is broken.
    #[inline]
    pub(crate) fn open<'a>(&self, number: u64, header: &[u8], sealed: &'a mut [u8]) -> Option<&'a [u8]> {
        let Some(sealer) = &self.theirs else { return Some(sealed) };
        if sealed.len() < SEAL_BYTES {
            return None;
        }
        let opened = sealer.key.open_in_place(sealer.nonce(number), aead::Aad::from(header), sealed);
        opened.ok().map(|body| &*body)
    }
}

impl Sealer {
    fn nonce(&self, number: u64) -> aead::Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        aead::Nonce::assume_unique_for_key(nonce)
    }
}

/// Which datagrams were seen: each number once.
#[derive(Debug)]
pub(crate) struct ReplayWindow {
    /// One above the newest.
    next: u64,
    seen: [u64; Self::WORDS],
}

impl ReplayWindow {
    const WORDS: usize = 64;
    /// Datagrams that may arrive this much late.
    const SPAN: u64 = Self::WORDS as u64 * 64;

    pub(crate) const fn new() -> Self {
        Self { next: 0, seen: [0; Self::WORDS] }
    }

    /// Whether `number` is new. Asked before the seal is opened, since it is cheap; recorded after.
    pub(crate) fn is_new(&self, number: u64) -> bool {
        if number >= self.next {
            return true;
        }
        self.next - number <= Self::SPAN && self.seen[Self::word(number)] & Self::bit(number) == 0
    }

    pub(crate) fn record(&mut self, number: u64) {
        if number == self.next {
            // Its place holds what was seen one span earlier, and is set below.
            self.next += 1;
        } else if number > self.next {
            if number - self.next >= Self::SPAN {
                self.seen = [0; Self::WORDS];
            } else {
                // Places from `next` to `number` still hold what was seen one span earlier.
                for skipped in self.next..=number {
                    self.seen[Self::word(skipped)] &= !Self::bit(skipped);
                }
            }
            self.next = number + 1;
        }
        self.seen[Self::word(number)] |= Self::bit(number);
    }

    const fn word(number: u64) -> usize {
        (number / 64) as usize % Self::WORDS
    }

    const fn bit(number: u64) -> u64 {
        1 << (number % 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Epoch;

    fn field(epoch: u64) -> EpochField {
        EpochField::try_from(Epoch(epoch)).unwrap()
    }

    #[test]
    fn keys_are_made_of_four_bytes_of_link_name_and_four_of_epoch() {
        let (secret, [host, other]) = (LeaseSecret([7; 32]), [[3; 32], [4; 32]]);
        let made = Session::new(&secret, LinkName(1), field(2), [&host, &other], true, Protection::Encrypted);
        let salt = [&[0, 0, 0, 1, 0, 0, 0, 2][..], &host, &other].concat();
        assert_eq!(made.number, u32::from_be_bytes(derive(&secret, &salt, b"session")));
    }

    fn pair(protection: Protection) -> (Session, Session) {
        let secret = LeaseSecret([7; 32]);
        let make =
            |is_host| Session::new(&secret, LinkName(1), field(2), [&[3; 32], &[4; 32]], is_host, protection);
        (make(true), make(false))
    }

    #[test]
    fn what_one_end_seals_the_other_opens_and_nobody_changes() {
        let (host, other) = pair(Protection::Encrypted);
        assert_eq!(host.number, other.number);
        let mut body = *b"doorbell................";
        let (text, seal) = body.split_at_mut(8);
        assert!(host.seal(5, b"header", text, seal));
        assert_ne!(&body[..8], b"doorbell");
        assert_eq!(other.open(6, b"header", &mut body.clone()), None, "another number");
        assert_eq!(other.open(5, b"Header", &mut body.clone()), None, "another header");
        assert_eq!(host.open(5, b"header", &mut body.clone()), None, "our own words, sent back to us");
        for bit in 0..body.len() * 8 {
            let mut changed = body;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(other.open(5, b"header", &mut changed), None);
        }
        assert_eq!(other.open(5, b"header", &mut body), Some(&b"doorbell"[..]));
    }

    #[test]
    fn keys_differ_by_everything_they_are_made_of() {
        let make = |link, epoch, random: u8| {
            let randoms = [&[random; 32], &[4; 32]];
            Session::new(
                &LeaseSecret([7; 32]),
                LinkName(link),
                field(epoch),
                randoms,
                true,
                Protection::Encrypted,
            )
        };
        let sealed = |session: &Session| {
            let (mut body, mut seal) = ([0; 16], [0; 16]);
            session.seal(0, &[], &mut body, &mut seal);
            body
        };
        let all =
            [make(1, 1, 1), make(2, 1, 1), make(1, 2, 1), make(1, 1, 2)].map(|session| sealed(&session));
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| other != one));
        }
    }

    #[test]
    fn each_number_is_new_once_in_any_order() {
        let mut window = ReplayWindow::new();
        for number in [0, 5, 3, 4, 1, 2, 4000, 3999, 100_000, 99_000] {
            assert!(window.is_new(number), "{number}");
            window.record(number);
            assert!(!window.is_new(number), "{number}");
        }
        assert!(!window.is_new(100_001 - ReplayWindow::SPAN - 1), "too old to tell");
        assert!(window.is_new(100_001 - ReplayWindow::SPAN));
        assert!(window.is_new(100_001));
    }
}
