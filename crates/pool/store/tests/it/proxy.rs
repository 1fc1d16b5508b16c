//! A wire that can lose the answers.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    is_mute: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) fn start(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_mute = Arc::new(AtomicBool::new(false));
        let flag = is_mute.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&target) else { continue };
                let (to_server, from_server) = (server.try_clone().unwrap(), server);
                let (to_client, from_client) = (client.try_clone().unwrap(), client);
                let flag = flag.clone();
                std::thread::spawn(move || carry(from_client, to_server, || false));
                std::thread::spawn(move || carry(from_server, to_client, || flag.load(Ordering::Acquire)));
            }
        });
        Self { address, is_mute }
    }

    /// From now on requests arrive and answers do not.
    pub(crate) fn lose_answers(&self) {
        self.is_mute.store(true, Ordering::Release);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, is_mute: impl Fn() -> bool) {
    let mut bytes = [0; 16384];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !is_mute() && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
