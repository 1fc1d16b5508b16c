//! Tells the service manager how this process is: systemd's notification protocol, one datagram for each word.
//!
//! Without NOTIFY_SOCKET nothing is sent. A word that cannot be sent is dropped: systemd then acts as if the process hung,
//! and this process could do nothing better.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// The service manager that started this process.
pub(crate) struct ServiceManager {
    way: Option<(UnixDatagram, SocketAddr)>,
    /// How often it wants to hear that the process works.
    every: Option<Duration>,
    told: Option<Instant>,
}

impl ServiceManager {
    /// As the environment says.
    pub(crate) fn of_environment() -> Self {
        let text = |name: &str| std::env::var(name).ok();
        let watched = watchdog(text("WATCHDOG_USEC"), text("WATCHDOG_PID"), std::process::id());
        Self::new(std::env::var_os("NOTIFY_SOCKET").as_deref(), watched)
    }

    fn new(socket: Option<&std::ffi::OsStr>, every: Option<Duration>) -> Self {
        let way = socket.and_then(|socket| {
            let address = match socket.as_bytes().strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name),
                None => SocketAddr::from_pathname(socket),
            };
            Some((UnixDatagram::unbound().ok()?, address.ok()?))
        });
        Self { way, every, told: None }
    }

    /// The process serves.
    pub(crate) fn ready(&mut self) {
        self.say("READY=1\n");
    }

    /// The process ends, and may take a moment.
    pub(crate) fn stopping(&mut self) {
        self.say("STOPPING=1\n");
    }

    /// The calling loop goes round. Twice as often as systemd wants it, whatever the loop's own pace is.
    pub(crate) fn alive(&mut self) {
        let Some(every) = self.every else { return };
        if self.told.is_none_or(|told| told.elapsed() >= every / 2) {
            self.told = Some(Instant::now());
            self.say("WATCHDOG=1\n");
        }
    }

    fn say(&self, word: &str) {
        if let Some((socket, address)) = &self.way {
            let _ = socket.send_to_addr(word.as_bytes(), address);
        }
    }
}

/// How often the process with this number is to say that it works. Children inherit the variables, which do not concern
/// them.
fn watchdog(every_us: Option<String>, of: Option<String>, own: u32) -> Option<Duration> {
    if of.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    let every = Duration::from_micros(every_us?.parse().ok()?);
    (!every.is_zero()).then_some(every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_socket_that_the_environment_names() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        let mut manager = ServiceManager::new(Some(path.as_os_str()), Some(Duration::from_secs(3600)));
        manager.ready();
        manager.alive();
        manager.alive();
        manager.stopping();
        systemd.set_nonblocking(true).unwrap();
        let mut heard = Vec::new();
        let mut word = [0; 64];
        while let Ok(bytes) = systemd.recv(&mut word) {
            heard.push(String::from_utf8_lossy(&word[..bytes]).into_owned());
        }
        assert_eq!(heard, ["READY=1\n", "WATCHDOG=1\n", "STOPPING=1\n"], "one WATCHDOG in half an hour");
        let name = format!("dxpu-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let systemd = UnixDatagram::bind_addr(&address).unwrap();
        ServiceManager::new(Some(format!("@{name}").as_ref()), None).ready();
        assert_eq!(systemd.recv(&mut word).unwrap(), 8);
    }

    #[test]
    fn without_a_socket_or_a_watchdog_nothing_is_said() {
        let mut alone = ServiceManager::new(None, None);
        alone.ready();
        alone.alive();
        assert!(alone.told.is_none());
        ServiceManager::new(Some("/no/such/socket".as_ref()), None).ready();
    }

    #[test]
    fn a_watchdog_is_for_the_process_it_names() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(watchdog(text("3000000"), None, 7), Some(Duration::from_secs(3)));
        assert_eq!(watchdog(text("3000000"), text("7"), 7), Some(Duration::from_secs(3)));
        assert_eq!(watchdog(text("3000000"), text("8"), 7), None);
        assert_eq!(watchdog(text("0"), None, 7), None);
        assert_eq!(watchdog(text("soon"), None, 7), None);
        assert_eq!(watchdog(None, None, 7), None);
    }
}
