//! The codec on lines of text, so that programs in other languages can judge it.
//!
//! `tlp_lines decode`: each line of hexadecimal becomes `kind=MRd tc=0 …`, or `error: …`.
//! `tlp_lines encode`: the other way round. Numbers are decimal, bytes hexadecimal; fields that are missing are zero.

use std::collections::HashMap;
use std::io::{self, BufRead, Write};
use tlp::{
    AddressType, Atomic, AtomicOp, Attributes, Bdf, Body, ByteEnables, Completion, Config, Header, Hint, Io,
    Memory, MemoryOp, Message, MessageRouting, Prefixes, Status, Tag, Tlp, TransactionId,
};

fn main() -> io::Result<()> {
    let convert: fn(&str) -> Result<String, String> = match std::env::args().nth(1).as_deref() {
        Some("decode") => decode,
        Some("encode") => encode,
        _ => return Err(io::Error::other("usage: tlp_lines decode|encode")),
    };
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        match convert(line?.trim()) {
            Ok(text) => writeln!(out, "{text}")?,
            Err(why) => writeln!(out, "error: {why}")?,
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<u32> = text
        .chars()
        .map(|digit| digit.to_digit(16).ok_or(format!("{digit} is no digit")))
        .collect::<Result<_, _>>()?;
    if digits.len() % 2 == 1 {
        return Err("half a byte".into());
    }
    Ok(digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

fn causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", causes(source)),
        None => error.to_string(),
    }
}

fn decode(line: &str) -> Result<String, String> {
    let bytes = unhex(line)?;
    let tlp = Tlp::decode(&bytes).map_err(|error| causes(&error))?;
    let header = tlp.header;
    let (id, attributes) = (header.id(), header.attributes);
    let mut fields: Vec<(&str, String)> = vec![
        ("kind", header.kind().mnemonic().into()),
        ("tc", header.traffic_class.to_string()),
        ("ro", u8::from(attributes.relaxed_ordering).to_string()),
        ("ns", u8::from(attributes.no_snoop).to_string()),
        ("ido", u8::from(attributes.id_ordering).to_string()),
        ("ln", u8::from(attributes.lightweight_notification).to_string()),
        ("ep", u8::from(header.is_poisoned).to_string()),
        ("length", header.length_dw().to_string()),
        ("requester", id.requester.0.to_string()),
        ("tag", id.tag.value().to_string()),
    ];
    let mut hinted = |hint: Option<Hint>| {
        let Some(hint) = hint else { return };
        fields.push(("ph", hint.processing.to_string()));
        fields.push(("st", hint.steering.to_string()));
    };
    match header.body {
        Body::Memory(it) => {
            hinted(it.hint);
            fields.push(("at", (it.address_type as u8).to_string()));
            fields.push(("address", it.address.to_string()));
            fields.push(("first", it.enables.first.to_string()));
            fields.push(("last", it.enables.last.to_string()));
        }
        Body::Io(it) => {
            fields.push(("address", it.address.to_string()));
            fields.push(("first", it.first_enable.to_string()));
        }
        Body::Config(it) => {
            fields.push(("target", it.target.0.to_string()));
            fields.push(("register", it.register.to_string()));
            fields.push(("first", it.first_enable.to_string()));
        }
        Body::Atomic(it) => {
            hinted(it.hint);
            fields.push(("at", (it.address_type as u8).to_string()));
            fields.push(("address", it.address.to_string()));
        }
        Body::Completion(it) => {
            fields.push(("completer", it.completer.0.to_string()));
            fields.push(("status", (it.status as u8).to_string()));
            fields.push(("bcm", u8::from(it.byte_count_modified).to_string()));
            fields.push(("count", it.byte_count.to_string()));
            fields.push(("lower", it.lower_address.to_string()));
        }
        Body::Message(it) => {
            fields.push(("routing", (it.routing as u8).to_string()));
            fields.push(("code", it.code.to_string()));
            fields.push(("fields", hex(&it.fields)));
        }
    }
    fields.push(("prefixes", hex(tlp.prefixes.as_bytes())));
    fields.push(("data", hex(tlp.payload)));
    if let Some(digest) = tlp.digest {
        fields.push(("digest", hex(&digest.to_be_bytes())));
        fields.push(("right", u8::from(tlp.digest_is_right()).to_string()));
    }
    Ok(fields.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" "))
}

struct Fields<'a>(HashMap<&'a str, &'a str>);

impl Fields<'_> {
    fn number<T: TryFrom<u64>>(&self, name: &str) -> Result<T, String> {
        let value: u64 = match self.0.get(name) {
            Some(text) => text.parse().map_err(|_| format!("{name} is no number"))?,
            None => 0,
        };
        T::try_from(value).map_err(|_| format!("{name} is too large"))
    }

    fn flag(&self, name: &str) -> Result<bool, String> {
        Ok(self.number::<u8>(name)? != 0)
    }

    fn bytes(&self, name: &str) -> Result<Vec<u8>, String> {
        unhex(self.0.get(name).copied().unwrap_or_default())
    }

    fn id(&self) -> Result<TransactionId, String> {
        let tag = Tag::new(self.number("tag")?).ok_or("the tag has more than ten bits")?;
        Ok(TransactionId::new(Bdf(self.number("requester")?), tag))
    }

    fn address_type(&self) -> Result<AddressType, String> {
        Ok(match self.number("at")? {
            0u8 => AddressType::Untranslated,
            1 => AddressType::TranslationRequest,
            2 => AddressType::Translated,
            _ => return Err("no such address type".into()),
        })
    }

    fn hint(&self) -> Result<Option<Hint>, String> {
        let hint = Hint { processing: self.number("ph")?, steering: self.number("st")? };
        Ok(self.0.contains_key("ph").then_some(hint))
    }

    fn memory(&self, op: MemoryOp) -> Result<Body, String> {
        Ok(Body::Memory(Memory {
            op,
            id: self.id()?,
            address: self.number("address")?,
            length_dw: self.number("length")?,
            enables: ByteEnables { first: self.number("first")?, last: self.number("last")? },
            address_type: self.address_type()?,
            hint: self.hint()?,
        }))
    }

    fn atomic(&self, op: AtomicOp) -> Result<Body, String> {
        let operands = if op == AtomicOp::CompareAndSwap { 2 } else { 1 };
        let operand_bytes =
            u8::try_from(self.number::<u16>("length")? * 4 / operands).map_err(|_| "too long")?;
        let (id, address) = (self.id()?, self.number("address")?);
        let (address_type, hint) = (self.address_type()?, self.hint()?);
        Ok(Body::Atomic(Atomic { op, id, address, operand_bytes, address_type, hint }))
    }

    fn io(&self, is_write: bool) -> Result<Body, String> {
        let (address, first_enable) = (self.number("address")?, self.number("first")?);
        Ok(Body::Io(Io { is_write, id: self.id()?, address, first_enable }))
    }

    fn config(&self, is_write: bool, is_type_1: bool) -> Result<Body, String> {
        let (target, register) = (Bdf(self.number("target")?), self.number("register")?);
        let first_enable = self.number("first")?;
        Ok(Body::Config(Config { is_write, is_type_1, id: self.id()?, target, register, first_enable }))
    }

    fn completion(&self, is_locked: bool) -> Result<Body, String> {
        Ok(Body::Completion(Completion {
            is_locked,
            completer: Bdf(self.number("completer")?),
            id: self.id()?,
            status: Status::from_bits(self.number("status")?).ok_or("no such status")?,
            byte_count_modified: self.flag("bcm")?,
            byte_count: self.number("count")?,
            lower_address: self.number("lower")?,
            length_dw: self.number("length")?,
        }))
    }

    fn message(&self) -> Result<Body, String> {
        Ok(Body::Message(Message {
            routing: MessageRouting::from_bits(self.number("routing")?).ok_or("no such routing")?,
            id: self.id()?,
            code: self.number("code")?,
            fields: self.bytes("fields")?.try_into().map_err(|_| "fields are eight bytes")?,
            length_dw: self.number("length")?,
        }))
    }
}

fn encode(line: &str) -> Result<String, String> {
    let fields = Fields(line.split_whitespace().filter_map(|field| field.split_once('=')).collect());
    let body = match fields.0.get("kind").copied().unwrap_or_default() {
        "MRd" => fields.memory(MemoryOp::Read)?,
        "MRdLk" => fields.memory(MemoryOp::ReadLocked)?,
        "MWr" => fields.memory(MemoryOp::Write)?,
        "DMWr" => fields.memory(MemoryOp::DeferrableWrite)?,
        "IORd" => fields.io(false)?,
        "IOWr" => fields.io(true)?,
        "CfgRd0" => fields.config(false, false)?,
        "CfgWr0" => fields.config(true, false)?,
        "CfgRd1" => fields.config(false, true)?,
        "CfgWr1" => fields.config(true, true)?,
        "Cpl" | "CplD" => fields.completion(false)?,
        "CplLk" | "CplDLk" => fields.completion(true)?,
        "FetchAdd" => fields.atomic(AtomicOp::FetchAdd)?,
        "Swap" => fields.atomic(AtomicOp::Swap)?,
        "CAS" => fields.atomic(AtomicOp::CompareAndSwap)?,
        "Msg" | "MsgD" => fields.message()?,
        other => return Err(format!("no kind is called {other}")),
    };
    let header = Header {
        traffic_class: fields.number("tc")?,
        attributes: Attributes {
            relaxed_ordering: fields.flag("ro")?,
            no_snoop: fields.flag("ns")?,
            id_ordering: fields.flag("ido")?,
            lightweight_notification: fields.flag("ln")?,
        },
        is_poisoned: fields.flag("ep")?,
        body,
    };
    let (prefixes, payload) = (fields.bytes("prefixes")?, fields.bytes("data")?);
    let prefixes = Prefixes::new(&prefixes).map_err(|error| error.to_string())?;
    let mut tlp = Tlp { prefixes, header, payload: &payload, digest: None };
    if fields.flag("ecrc")? {
        tlp = tlp.with_digest().map_err(|error| causes(&error))?;
    }
    let mut bytes = [0; tlp::TLP_BYTES_MAX];
    let length = tlp.encode(&mut bytes).map_err(|error| causes(&error))?;
    Ok(hex(&bytes[..length]))
}
