//! A guardian of the test's own: images in the test's process, reached through a Unix socket. It fails when told to.

use cuda_driver::{BlockSink, Blocks, Committed, ImageStore, KeptImage, LinkLost, StoreError, TakenCut};
use cuda_wire::ImageName;
use serde_json::{Value, json};
use snapshot::{Block, BlockDigest, Bytes, Digest, EventAge, Image, ImageError, Key, Seal};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

/// The most bytes of an image here.
pub const BYTES_MAX: u64 = 64 << 20;

/// What the guardian does at a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Failure {
    /// It closes the connection and keeps its images.
    BreaksOff,
    /// It does what it is asked, and closes the connection instead of an answer.
    BreaksOffAfter,
    /// It ends, and the next one has no images.
    Dies,
    /// It refuses.
    Refuses,
}

/// What is wrong with a block: its first byte is another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spoilt {
    /// The digest is that of the right byte.
    Bytes,
    /// The digest fits.
    BytesAndDigest,
}

pub struct TestGuardian {
    shared: Arc<Shared>,
    path: PathBuf,
}

#[derive(Default)]
struct Shared {
    /// Connections that were ever made.
    streams: Mutex<Vec<UnixStream>>,
    books: Mutex<Books>,
    changed: Condvar,
}

#[derive(Default)]
pub struct Books {
    pub images: HashMap<[u8; 16], Kept>,
    /// Names of all calls so far.
    pub calls: Vec<String>,
    /// Bytes of the images that were committed, in their order.
    pub committed_bytes: Vec<u64>,
    /// Calls until the failure.
    failure: Option<(usize, Failure)>,
    /// What is wrong with blocks for sessions that read an image beside its writer.
    pub spoils_looks: Option<Spoilt>,
    /// Calls of this name wait.
    held: Option<&'static str>,
}

pub struct Kept {
    secret: [u8; 32],
    pub image: Image,
    pins: Vec<u64>,
}

impl TestGuardian {
    pub fn start(directory: &Path) -> Self {
        let path = directory.join("guardian");
        let listener = UnixListener::bind(&path).unwrap();
        let shared = Arc::new(Shared::default());
        let serving = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared) = (stream.unwrap(), serving.clone());
                shared.streams.lock().unwrap().push(stream.try_clone().unwrap());
                std::thread::spawn(move || {
                    let ended = stream.try_clone().unwrap();
                    serve(stream, &shared);
                    // The list has it open still.
                    let _ = ended.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        Self { shared, path }
    }

    pub fn path(&self) -> PathBuf {
        self.path.clone()
    }

    pub fn books<T>(&self, look: impl FnOnce(&mut Books) -> T) -> T {
        look(&mut self.shared.books.lock().unwrap())
    }

    /// Fails at the `nth` call from now on, counted from 0.
    pub fn fail(&self, nth: usize, failure: Failure) {
        self.books(|books| books.failure = Some((nth, failure)));
    }

    /// Dies now, and the next one has no images.
    pub fn die(&self) {
        self.books(|books| books.images.clear());
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Whether the failure is still to come; it is taken back.
    pub fn takes_failure_back(&self) -> bool {
        self.books(|books| books.failure.take().is_some())
    }

    pub fn hold(&self, call: &'static str) {
        self.books(|books| books.held = Some(call));
    }

    pub fn let_go(&self) {
        self.books(|books| books.held = None);
        self.shared.changed.notify_all();
    }

    /// Waits until a call of this name has come.
    pub fn wait_for(&self, call: &str) {
        let mut books = self.shared.books.lock().unwrap();
        while !books.calls.iter().any(|known| known == call) {
            books = self.shared.changed.wait(books).unwrap();
        }
    }

    /// Memory as the image has it.
    pub fn saved(&self, name: ImageName, number: u64, address: u64, bytes: usize) -> Vec<u8> {
        self.books(|books| {
            let image = &books.images[&name.bytes].image;
            let mut memory = vec![0; bytes];
            for entry in image.blocks(number).unwrap() {
                let block = image.read(number, entry.block).unwrap();
                let Some(at) = entry.block.address.checked_sub(address) else { continue };
                memory[at as usize..][..block.len()].copy_from_slice(&block);
            }
            memory
        })
    }
}

fn serve(mut stream: UnixStream, shared: &Shared) {
    let mut writer = None;
    while let Some((head, payload)) = receive(&mut stream) {
        let call = head["call"].as_str().unwrap().to_owned();
        let mut books = shared.books.lock().unwrap();
        books.calls.push(call.clone());
        shared.changed.notify_all();
        while books.held.is_some_and(|held| held == call) {
            books = shared.changed.wait(books).unwrap();
        }
        let failure = match &mut books.failure {
            Some((0, failure)) => Some(*failure),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        };
        if failure.is_some() {
            books.failure = None;
        }
        match failure {
            Some(Failure::Dies) => {
                books.images.clear();
                return;
            }
            Some(Failure::BreaksOff) => return,
            Some(Failure::Refuses) => {
                drop(books);
                send(&mut stream, &json!({ "refused": "the guardian will not" }), &[]);
                continue;
            }
            Some(Failure::BreaksOffAfter) | None => {}
        }
        let answer = books.answer(&call, &head, &payload, &mut writer);
        drop(books);
        if failure.is_some() {
            return;
        }
        match answer {
            Ok((head, payload)) => send(&mut stream, &head, &payload),
            Err(words) => send(&mut stream, &json!({ "refused": words }), &[]),
        }
    }
    let mut books = shared.books.lock().unwrap();
    if let Some((name, incarnation)) = writer
        && let Some(kept) = books.images.get_mut(&name)
    {
        kept.image.leave(incarnation);
    }
}

type Answer = Result<(Value, Vec<u8>), String>;

impl Books {
    fn answer(
        &mut self,
        call: &str,
        head: &Value,
        payload: &[u8],
        writer: &mut Option<([u8; 16], u64)>,
    ) -> Answer {
        let number = |key: &str| head[key].as_u64().unwrap_or_default();
        let done = |result: Result<(), ImageError>| match result {
            Ok(()) => Ok((json!({}), Vec::new())),
            Err(error) => Err(error.to_string()),
        };
        if call == "open" {
            let name: [u8; 16] = payload[..16].try_into().unwrap();
            let secret: [u8; 32] = payload[16..48].try_into().unwrap();
            let kept = self.images.entry(name).or_insert_with(|| {
                let seed = blake3::derive_key("dxpu survival image digest v1", &secret);
                Kept {
                    secret,
                    image: Image::new(Arc::new(Key::from_seed(&seed)), BYTES_MAX),
                    pins: Vec::new(),
                }
            });
            if kept.secret != secret {
                return Err("this is not the secret of the image".to_owned());
            }
            kept.image.admit(number("incarnation")).map_err(|error| error.to_string())?;
            *writer = Some((name, number("incarnation")));
            return Ok((json!({}), Vec::new()));
        }
        if call == "look" {
            let name: [u8; 16] = payload[..16].try_into().unwrap();
            let kept = self.images.get(&name).filter(|kept| kept.secret[..] == payload[16..48]);
            kept.ok_or("there is no such image")?;
            // Incarnations are counted from 1: this one writes nothing.
            *writer = Some((name, 0));
            return Ok((json!({}), Vec::new()));
        }
        let (name, incarnation) = writer.ok_or("nothing is open")?;
        if call == "end" {
            self.images.remove(&name).map(|kept| kept.image.end());
            return Ok((json!({}), Vec::new()));
        }
        let Kept { image, pins, secret } = self.images.get_mut(&name).ok_or("the image is gone")?;
        match call {
            "committed" => Ok((json!({ "number": image.committed() }), Vec::new())),
            "begin" => {
                let base = number("base");
                pins.retain(|&pin| {
                    if pin < base {
                        image.unpin(pin);
                    }
                    pin >= base
                });
                done(image.begin(incarnation, base, number("number")))
            }
            "put" => {
                let (entry, bytes) = payload.split_at(ENTRY_BYTES);
                done(image.put(incarnation, number("number"), entry_of(entry), Bytes::copy_of(bytes)))
            }
            "commit" => {
                let dead: Vec<u64> = serde_json::from_value(head["dead"].clone()).unwrap();
                let sum = u128::from_le_bytes(payload.try_into().unwrap());
                let seal = Seal::from_parts(number("blocks"), sum);
                let cut = number("number");
                let result = image.bury(incarnation, cut, &dead);
                let result = result.and_then(|()| image.commit(incarnation, cut, seal, Vec::new()));
                result.and_then(|()| image.pin(cut)).map_err(|error| error.to_string())?;
                pins.push(cut);
                let blocks = image.blocks(cut).map_err(|error| error.to_string())?;
                self.committed_bytes.push(blocks.iter().map(|entry| u64::from(entry.block.bytes)).sum());
                Ok((json!({ "bytes": image.bytes() }), Vec::new()))
            }
            "abandon" => done(image.abandon(incarnation, number("number"))),
            "image" => {
                let mut blocks = image.blocks(number("number")).map_err(|error| error.to_string())?;
                if incarnation == 0 && self.spoils_looks == Some(Spoilt::BytesAndDigest) {
                    let key = Key::from_seed(&blake3::derive_key("dxpu survival image digest v1", secret));
                    for entry in &mut blocks {
                        let mut bytes = image.read(number("number"), entry.block).unwrap().to_vec();
                        bytes[0] ^= 1;
                        entry.digest = key.digest(&bytes);
                    }
                }
                if incarnation == 0 {
                    // A guardian keeps what a reader has listed. This one keeps it for good.
                    image.pin(number("number")).map_err(|error| error.to_string())?;
                }
                Ok((json!({}), blocks.iter().flat_map(bytes_of).collect()))
            }
            "read" => {
                let block = Block { address: number("address"), bytes: number("bytes") as u32 };
                let bytes = image.read(number("number"), block).map_err(|error| error.to_string())?;
                let mut bytes = bytes.to_vec();
                if let Some(_spoilt) = self.spoils_looks.filter(|_| incarnation == 0) {
                    bytes[0] ^= 1;
                }
                Ok((json!({}), bytes))
            }
            "leave" => Ok((json!({}), Vec::new())),
            other => panic!("{other}"),
        }
    }
}

const ENTRY_BYTES: usize = 28;

fn bytes_of(entry: &BlockDigest) -> Vec<u8> {
    let block = &entry.block;
    let parts: [&[u8]; 3] =
        [&block.address.to_le_bytes(), &block.bytes.to_le_bytes(), &entry.digest.0.to_le_bytes()];
    parts.concat()
}

fn entry_of(bytes: &[u8]) -> BlockDigest {
    let address = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let length = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
    let digest = Digest(u128::from_le_bytes(bytes[12..28].try_into().unwrap()));
    BlockDigest { block: Block { address, bytes: length }, digest }
}

fn send(stream: &mut UnixStream, head: &Value, payload: &[u8]) {
    let head = head.to_string();
    let lengths = [(head.len() as u32).to_le_bytes(), (payload.len() as u32).to_le_bytes()].concat();
    let _ = stream.write_all(&[&lengths, head.as_bytes(), payload].concat());
}

fn receive(stream: &mut UnixStream) -> Option<(Value, Vec<u8>)> {
    let mut lengths = [0; 8];
    stream.read_exact(&mut lengths).ok()?;
    let length = |at: usize| u32::from_le_bytes(lengths[at..at + 4].try_into().unwrap()) as usize;
    let (mut head, mut payload) = (vec![0; length(0)], vec![0; length(4)]);
    stream.read_exact(&mut head).ok()?;
    stream.read_exact(&mut payload).ok()?;
    Some((serde_json::from_slice(&head).unwrap(), payload))
}

/// How a session process reaches the guardian of its test.
pub fn open_store(path: &Path, _lease: Option<&str>) -> Result<Arc<dyn ImageStore>, StoreError> {
    Ok(Arc::new(Remote { path: path.to_owned() }))
}

struct Remote {
    path: PathBuf,
}

struct RemoteImage {
    stream: Arc<Mutex<UnixStream>>,
    number: Mutex<u64>,
    /// Why a block was not taken.
    refusal: Mutex<Option<StoreError>>,
}

struct RemoteBlocks {
    stream: Arc<Mutex<UnixStream>>,
    number: u64,
    list: Vec<BlockDigest>,
}

fn ask(stream: &Mutex<UnixStream>, head: Value, payload: &[u8]) -> Result<(Value, Vec<u8>), StoreError> {
    let mut stream = stream.lock().unwrap();
    send(&mut stream, &head, payload);
    let (head, payload) = receive(&mut stream).ok_or_else(|| StoreError::Lost("it broke off".to_owned()))?;
    match head["refused"].as_str() {
        Some(words) => Err(StoreError::Refused(words.to_owned())),
        None => Ok((head, payload)),
    }
}

impl ImageStore for Remote {
    fn open(
        &self,
        name: ImageName,
        secret: &[u8; 32],
        incarnation: u64,
        _from: &str,
    ) -> Result<Box<dyn KeptImage>, StoreError> {
        let stream = UnixStream::connect(&self.path).map_err(|error| StoreError::Lost(error.to_string()))?;
        let stream = Arc::new(Mutex::new(stream));
        let head = json!({ "call": "open", "incarnation": incarnation });
        ask(&stream, head, &[&name.bytes[..], secret].concat())?;
        Ok(Box::new(RemoteImage { stream, number: Mutex::default(), refusal: Mutex::default() }))
    }

    fn read(
        &self,
        name: ImageName,
        secret: &[u8; 32],
        number: u64,
        _from: &str,
    ) -> Result<Box<dyn Blocks>, StoreError> {
        let stream = UnixStream::connect(&self.path).map_err(|error| StoreError::Lost(error.to_string()))?;
        let stream = Arc::new(Mutex::new(stream));
        ask(&stream, json!({ "call": "look" }), &[&name.bytes[..], secret].concat())?;
        let (_, list) = ask(&stream, json!({ "call": "image", "number": number }), &[])?;
        let list = list.chunks(ENTRY_BYTES).map(entry_of).collect();
        Ok(Box::new(RemoteBlocks { stream, number, list }))
    }

    fn address(&self) -> String {
        "elsewhere".to_owned()
    }
}

impl BlockSink for RemoteImage {
    fn put(&self, entry: &BlockDigest, bytes: &[u8]) -> Result<(), LinkLost> {
        let head = json!({ "call": "put", "number": *self.number.lock().unwrap() });
        let put = ask(&self.stream, head, &[&bytes_of(entry), bytes].concat());
        put.map(drop).map_err(|error| {
            *self.refusal.lock().unwrap() = Some(error);
            LinkLost
        })
    }
}

impl KeptImage for RemoteImage {
    fn bytes_max(&self) -> u64 {
        BYTES_MAX
    }

    fn committed(&self) -> Result<u64, StoreError> {
        let (head, _) = ask(&self.stream, json!({ "call": "committed" }), &[])?;
        Ok(head["number"].as_u64().unwrap())
    }

    /// Says whether the guardian is there without a call that it would count.
    fn copied(&self) -> Result<u64, StoreError> {
        let mut stream = self.stream.lock().unwrap();
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0]);
        stream.set_nonblocking(false).unwrap();
        match read {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(0),
            _ => Err(StoreError::Lost("it broke off".to_owned())),
        }
    }

    fn begin(&self, base: u64, number: u64) -> Result<(), StoreError> {
        *self.number.lock().unwrap() = number;
        ask(&self.stream, json!({ "call": "begin", "base": base, "number": number }), &[]).map(drop)
    }

    fn commit(&self, number: u64, taken: &TakenCut) -> Result<Committed, StoreError> {
        let (blocks, sum) = taken.delta.seal.to_parts();
        let head = json!({ "call": "commit", "number": number, "blocks": blocks, "dead": taken.delta.dead });
        if let Some(refusal) = self.refusal.lock().unwrap().take() {
            return Err(refusal);
        }
        let (head, _) = ask(&self.stream, head, &sum.to_le_bytes())?;
        Ok(Committed { level: 1, image_bytes: head["bytes"].as_u64().unwrap() })
    }

    fn abandon(&self, number: u64) -> Result<(), StoreError> {
        ask(&self.stream, json!({ "call": "abandon", "number": number }), &[]).map(drop)
    }

    fn image(&self, number: u64) -> Result<Box<dyn Blocks>, StoreError> {
        let (_, list) = ask(&self.stream, json!({ "call": "image", "number": number }), &[])?;
        let list = list.chunks(ENTRY_BYTES).map(entry_of).collect();
        Ok(Box::new(RemoteBlocks { stream: self.stream.clone(), number, list }))
    }

    fn end(self: Box<Self>) -> Result<(), StoreError> {
        ask(&self.stream, json!({ "call": "end" }), &[]).map(drop)
    }

    fn leave(self: Box<Self>) -> Result<(), StoreError> {
        ask(&self.stream, json!({ "call": "leave" }), &[]).map(drop)
    }
}

impl Blocks for RemoteBlocks {
    fn number(&self) -> u64 {
        self.number
    }

    fn list(&self) -> Vec<BlockDigest> {
        self.list.clone()
    }

    fn read(&self, block: Block) -> Result<Bytes, LinkLost> {
        let head = json!({
            "call": "read", "number": self.number, "address": block.address, "bytes": block.bytes,
        });
        let (_, bytes) = ask(&self.stream, head, &[]).map_err(|_| LinkLost)?;
        Ok(Bytes::copy_of(&bytes))
    }

    fn events(&self) -> Vec<EventAge> {
        Vec::new()
    }
}
