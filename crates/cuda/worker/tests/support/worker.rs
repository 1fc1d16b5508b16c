//! A worker with its front in this process and sessions in processes of their own: the test `session_process` of the same
//! test program.

use super::client::{Client, Target};
use cuda_worker::*;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use transport::ClientSecurity;

pub struct Worker {
    pub front: Option<FrontHandle>,
    pub events: Receiver<SessionEvent>,
    pub target: Target,
    pub directory: tempfile::TempDir,
}

impl Worker {
    pub fn start(scheme: &str, change: impl FnOnce(&mut FrontConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = match scheme {
            "tcp" => "tcp:127.0.0.1:0".to_owned(),
            scheme => format!("{scheme}:{}/socket", directory.path().display()),
        };
        let mut session = SessionConfig::new("secret".to_owned());
        session.image_cache = Some(directory.path().join("images"));
        let mut config = FrontConfig {
            addresses: vec![address.parse().unwrap()],
            spawn: SessionSpawn {
                program: std::env::current_exe().unwrap(),
                arguments: ["--exact", "session_process", "--ignored", "--nocapture"]
                    .map(str::to_owned)
                    .to_vec(),
            },
            session,
            grant: std::sync::Arc::new(|| Ok(Grant::plain(serde_json::Value::Null))),
            sessions_max: 16,
            unauthenticated_max: 16,
            preamble_timeout: Duration::from_secs(2),
            hold: Duration::from_secs(2),
            spares: 1,
            executes_ptx_only: false,
        };
        change(&mut config);
        let (sender, events) = channel();
        let sender = std::sync::Mutex::new(sender);
        let front = serve_listener(config, move |event| drop(sender.lock().unwrap().send(event))).unwrap();
        let address = front.addresses()[0].clone();
        let target = Target { address, security: ClientSecurity::Plain, token: "secret".to_owned() };
        Self { front: Some(front), events, target, directory }
    }

    pub fn attach(&self) -> Client {
        Client::attach(&self.target, 2)
    }

    /// The next session to end.
    pub fn end(&self) -> SessionEnd {
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if let SessionEvent::Ended { end, .. } = self.events.recv_timeout(left).unwrap() {
                return end;
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.front.take().unwrap().stop();
    }
}
