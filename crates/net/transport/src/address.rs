//! Where a connection goes, as a person writes it.
//!
//! ```text
//! tls:HOST:PORT     TCP with TLS 1.3; `HOST:PORT` alone means the same
//! tcp:HOST:PORT     TCP in the clear, only if the address asks for it
//! unix:/path        a Unix socket
//! shm:/path         shared-memory rings, set up over a Unix socket at that path
//! pcie:0000:01:00.0 a PCI function of this (virtual) machine with a worker behind it: domain, bus, device, function
//! ```
//!
//! An IPv6 host stands in brackets: `tls:[::1]:7400`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where a connection goes, and how its bytes travel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// TCP in the clear.
    Tcp(HostPort),
    /// TCP with TLS 1.3.
    Tls(HostPort),
    /// A Unix socket at this path.
    Unix(PathBuf),
    /// Shared-memory rings, set up over a Unix socket at this path.
    Shm(PathBuf),
    /// A PCI function of this machine, with a worker behind it.
    Pcie(PciAddress),
}

/// A host name or IP address (without brackets), and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// Host name or IP address; an IPv6 address is kept without its brackets.
    pub host: String,
    /// TCP port. 0 lets a listener choose a free one.
    pub port: u16,
}

/// Where a PCI function is. Prints as sysfs calls it: `0000:01:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PciAddress {
    /// Domain, also called segment.
    pub domain: u16,
    /// Bus.
    pub bus: u8,
    /// Device, below 32.
    pub device: u8,
    /// Function, below 8.
    pub function: u8,
}

/// The five ways in which bytes travel, without the place they go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Scheme {
    /// TCP in the clear.
    Tcp = 0,
    /// TCP with TLS 1.3.
    Tls = 1,
    /// A Unix socket.
    Unix = 2,
    /// Shared-memory rings beside a Unix socket.
    Shm = 3,
    /// Rings in memory that a PCI function reads and writes.
    Pcie = 4,
}

impl Scheme {
    /// All of them, for tests and tables.
    pub const ALL: [Scheme; 5] = [Scheme::Tcp, Scheme::Tls, Scheme::Unix, Scheme::Shm, Scheme::Pcie];

    /// Those that a listener can have. Behind a PCI function it has one of these.
    pub const LISTENING: [Scheme; 4] = [Scheme::Tcp, Scheme::Tls, Scheme::Unix, Scheme::Shm];

    /// The scheme with this number on the wire.
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| *scheme as u8 == number)
    }

    /// The word before the colon of an address.
    pub fn word(self) -> &'static str {
        match self {
            Scheme::Tcp => "tcp",
            Scheme::Tls => "tls",
            Scheme::Unix => "unix",
            Scheme::Shm => "shm",
            Scheme::Pcie => "pcie",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A text that is not an address. Each message says what a good one looks like.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Nothing was given.
    #[error(
        "the address is empty; write tls:HOST:PORT, tcp:HOST:PORT, unix:/path, shm:/path or pcie:0000:01:00.0"
    )]
    Empty,
    /// `HOST` without a port, or a port that is no number.
    #[error("`{text}` has no valid port; write HOST:PORT with a port from 0 to 65535, like gpu-box:7400")]
    Port {
        /// What was given.
        text: String,
    },
    /// The host is empty or has a character no host name has.
    #[error("`{text}` has no valid host; write HOST:PORT, like gpu-box:7400 or 10.0.0.7:7400")]
    Host {
        /// What was given.
        text: String,
    },
    /// An IPv6 address needs brackets, or what stands in the brackets is no IPv6 address.
    #[error("`{text}` looks like an IPv6 address; write it in brackets, like tls:[2001:db8::7]:7400")]
    Brackets {
        /// What was given.
        text: String,
    },
    /// A PCI function has a domain, a bus, a device and a function, in hexadecimal.
    #[error("`{text}` is no PCI address; write it as lspci -D does, like pcie:0000:01:00.0")]
    Pci {
        /// What was given.
        text: String,
    },
    /// A Unix socket needs an absolute path that fits the kernel's structure.
    #[error(
        "`{text}` is no socket path; write an absolute path of at most {PATH_BYTES_MAX} bytes, like unix:/run/dxpu.sock"
    )]
    Path {
        /// What was given.
        text: String,
    },
}

/// `sun_path` has 108 bytes, one of them for the final zero.
const PATH_BYTES_MAX: usize = 107;

impl Address {
    /// How the bytes travel.
    pub fn scheme(&self) -> Scheme {
        match self {
            Address::Tcp(_) => Scheme::Tcp,
            Address::Tls(_) => Scheme::Tls,
            Address::Unix(_) => Scheme::Unix,
            Address::Shm(_) => Scheme::Shm,
            Address::Pcie(_) => Scheme::Pcie,
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Address::Unix(parse_path(path)?));
        }
        if let Some(path) = text.strip_prefix("shm:") {
            return Ok(Address::Shm(parse_path(path)?));
        }
        if let Some(at) = text.strip_prefix("pcie:") {
            return Ok(Address::Pcie(at.parse()?));
        }
        if let Some(rest) = text.strip_prefix("tcp:") {
            return Ok(Address::Tcp(rest.parse()?));
        }
        Ok(Address::Tls(text.strip_prefix("tls:").unwrap_or(text).parse()?))
    }
}

fn parse_path(path: &str) -> Result<PathBuf, AddressError> {
    let good = path.starts_with('/') && path.len() <= PATH_BYTES_MAX && !path.contains('\0');
    if good { Ok(PathBuf::from(path)) } else { Err(AddressError::Path { text: path.to_owned() }) }
}

impl FromStr for PciAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError::Pci { text: text.to_owned() };
        let number = |digits: &str, count: usize, max: u16| {
            let is_hex = digits.len() == count && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            let number = u16::from_str_radix(digits, 16).ok().filter(|number| is_hex && *number <= max);
            number.ok_or_else(wrong)
        };
        let (place, function) = text.rsplit_once('.').ok_or_else(wrong)?;
        let (place, device) = place.rsplit_once(':').ok_or_else(wrong)?;
        let (domain, bus) = place.split_once(':').ok_or_else(wrong)?;
        Ok(Self {
            domain: number(domain, 4, u16::MAX)?,
            bus: number(bus, 2, 0xff)? as u8,
            device: number(device, 2, 31)? as u8,
            function: number(function, 1, 7)? as u8,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for HostPort {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let owned = || text.to_owned();
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, tail) =
                    rest.split_once(']').ok_or_else(|| AddressError::Brackets { text: owned() })?;
                if host.parse::<std::net::Ipv6Addr>().is_err() {
                    return Err(AddressError::Brackets { text: owned() });
                }
                (host, tail.strip_prefix(':').ok_or_else(|| AddressError::Port { text: owned() })?)
            }
            None => {
                let (host, port) =
                    text.rsplit_once(':').ok_or_else(|| AddressError::Port { text: owned() })?;
                if host.contains(':') {
                    return Err(AddressError::Brackets { text: owned() });
                }
                (host, port)
            }
        };
        // `u16::from_str` would also take "+7400".
        if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(AddressError::Port { text: owned() });
        }
        let port = port.parse().map_err(|_| AddressError::Port { text: owned() })?;
        let in_host_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        if host.is_empty() || !host.chars().all(in_host_name) {
            return Err(AddressError::Host { text: owned() });
        }
        Ok(HostPort { host: host.to_owned(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.scheme();
        match self {
            Address::Tcp(at) | Address::Tls(at) => write!(f, "{scheme}:{at}"),
            Address::Unix(path) | Address::Shm(path) => write!(f, "{scheme}:{}", path.display()),
            Address::Pcie(at) => write!(f, "{scheme}:{at}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(host: &str, port: u16) -> HostPort {
        HostPort { host: host.to_owned(), port }
    }

    #[test]
    fn good_addresses_parse() {
        let check = |text: &str, expected: Address| assert_eq!(text.parse(), Ok(expected), "{text}");
        check("tcp:127.0.0.1:80", Address::Tcp(at("127.0.0.1", 80)));
        check("tls:gpu-box.local:7400", Address::Tls(at("gpu-box.local", 7400)));
        check("gpu-box:7400", Address::Tls(at("gpu-box", 7400)));
        check("[::1]:7400", Address::Tls(at("::1", 7400)));
        check("tcp:[2001:db8::7]:0", Address::Tcp(at("2001:db8::7", 0)));
        check("unix:/run/dxpu.sock", Address::Unix("/run/dxpu.sock".into()));
        let at = PciAddress { domain: 0, bus: 0xa1, device: 31, function: 7 };
        check("pcie:0000:a1:1f.7", Address::Pcie(at));
        check("shm:/run/dx:pu", Address::Shm("/run/dx:pu".into()));
    }

    #[test]
    fn bad_addresses_say_what_a_good_one_looks_like() {
        let check = |text: &str, hint: &str| {
            let message = text.parse::<Address>().unwrap_err().to_string();
            assert!(message.contains(hint), "{text}: {message}");
        };
        check("", "unix:/path");
        check("box", "HOST:PORT");
        check("tcp:", "HOST:PORT");
        check("tcp::7400", "no valid host");
        check("box:70000", "65535");
        check("box:+7", "65535");
        check("::1:7400", "brackets");
        check("[::1]", "no valid port");
        check("[::1", "brackets");
        check("[box]:1", "brackets");
        check("http://box:1", "brackets");
        check("unix:relative", "absolute");
        for text in [
            "pcie:",
            "pcie:01:00.0",
            "pcie:0000:01:20.0",
            "pcie:0000:01:00.8",
            "pcie:0000:001:00.0",
            "pcie:0000:+1:00.0",
        ] {
            check(text, "pcie:0000:01:00.0");
        }
        check(&format!("shm:/{}", "x".repeat(200)), "107 bytes");
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused_and_what_parses_prints_back(text in ".{0,60}") {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
            }
        }
    }
}
