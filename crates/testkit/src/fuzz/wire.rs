//! Frames of a session.

use cuda_wire::{
    ChunkHeader, Command, CommandHeader, DecodeError, DeviceStatus, GraphNode, HANDSHAKE_BYTES_MAX,
    Handshake, LinkOutput, ModuleInfo, Notice, NoticeHeader, Op, ReplyHeader, Wire, header,
};

/// Decodes, and if that succeeds encodes: the same bytes must come out.
fn canonical<'a, T: Wire<'a>>(bytes: &'a [u8]) -> Option<T> {
    let value = T::from_bytes(bytes).map_err(explained).ok()?;
    assert_eq!(value.to_bytes(), bytes, "what was decoded encodes differently");
    Some(value)
}

/// A refusal must be printable, and short: it goes into logs, which strangers must not fill.
fn explained(error: DecodeError) -> DecodeError {
    assert!(error.to_string().len() < 200);
    error
}

fn decode_command(opcode: u16, body: &[u8]) {
    let Ok(command) = Command::decode(opcode, body).map_err(explained) else { return };
    assert_eq!(command.opcode(), opcode);
    let mut again = Vec::new();
    command.put_body(&mut again);
    assert_eq!(again, body, "{} encodes differently", command.name());
}

/// A command: u16 opcode, then its body.
pub fn command_body(data: &[u8]) {
    if let Some((opcode, body)) = data.split_first_chunk::<2>() {
        decode_command(u16::from_le_bytes(*opcode), body);
    }
}

/// Commands as they come from a connection: header, body, header, body.
pub fn command_stream(data: &[u8]) {
    let mut rest = data;
    while let Some((head, body)) = rest.split_at_checked(CommandHeader::BYTES) {
        let Some(head) = canonical::<CommandHeader>(head) else {
            panic!("a header of the right length decodes")
        };
        if head.check().map_err(explained).is_err() {
            return;
        }
        let Some((body, next)) = body.split_at_checked(head.bytes as usize) else { return };
        decode_command(head.opcode, body);
        rest = next;
    }
}

/// A reply's header and as much of its body as it claims.
pub fn reply(data: &[u8]) {
    let Some((head, body)) = data.split_at_checked(ReplyHeader::BYTES) else {
        assert!(header::<ReplyHeader>(data).is_err());
        return;
    };
    let head: ReplyHeader = canonical(head).expect("a header of the right length decodes");
    let body = body.get(..head.bytes as usize).unwrap_or(body);
    // The client knows from its call which answer to read; all of them must stand any body.
    canonical::<(u64, u64)>(body);
    canonical::<f32>(body);
    canonical::<cuda_wire::Blob>(body);
    canonical::<ModuleInfo>(body);
    canonical::<LinkOutput>(body);
    canonical::<DeviceStatus>(body);
}

/// A bulk chunk's header.
pub fn chunk(data: &[u8]) {
    match data.split_at_checked(ChunkHeader::BYTES) {
        None => assert!(header::<ChunkHeader>(data).is_err()),
        Some((head, _)) => assert!(canonical::<ChunkHeader>(head).is_some()),
    }
}

/// A notice: header, body.
pub fn notice(data: &[u8]) {
    let Some((head, body)) = data.split_at_checked(NoticeHeader::BYTES) else { return };
    let head: NoticeHeader = canonical(head).expect("a header of the right length decodes");
    if head.bytes > NoticeHeader::BODY_MAX {
        return;
    }
    let Some(body) = body.get(..head.bytes as usize) else { return };
    if let Some(notice) = canonical::<Notice<'_>>(body)
        && head.reserved == 0
    {
        assert_eq!(notice.to_frame(), data[..NoticeHeader::BYTES + body.len()]);
    }
}

/// A handshake frame: length, kind, body.
pub fn handshake(data: &[u8]) {
    let Some((prefix, rest)) = data.split_first_chunk::<4>() else { return };
    let Ok(length) = Handshake::body_length(*prefix).map_err(explained) else { return };
    assert!(length > 0 && length <= HANDSHAKE_BYTES_MAX as usize);
    let Some(body) = rest.get(..length) else { return };
    if let Ok(frame) = Handshake::from_body(body).map_err(explained) {
        assert_eq!(frame.to_frame(), data[..4 + length]);
    }
}

/// One piece of stream-ordered work.
pub fn op(data: &[u8]) {
    canonical::<Op<'_>>(data);
}

/// A node of a graph.
pub fn graph_node(data: &[u8]) {
    canonical::<GraphNode<'_>>(data);
}

/// What a module load reports.
pub fn module_info(data: &[u8]) {
    canonical::<ModuleInfo>(data);
}

/// What a device says of its state.
pub fn device_status(data: &[u8]) {
    canonical::<DeviceStatus>(data);
}

/// What a link reports.
pub fn link_output(data: &[u8]) {
    canonical::<LinkOutput>(data);
}
