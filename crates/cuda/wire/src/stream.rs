//! Frames of the running session: commands, replies, notices, chunks.

use crate::codec::{Bytes, DecodeError, Reader, Wire};
use crate::{
    COMMAND_BYTES_MAX,
    ids::TransferId,
    timeline::{TimedAnswer, TimedKernel, TimedStream, TimedWork},
};

/// The most bulk lanes of a session.
pub const LANES_MAX: usize = 7;

/// Ways that bytes of transfers take to the client: the lanes, and [`ASIDE`].
pub const WAYS: usize = LANES_MAX + 1;

/// The way beside the lanes: small transfers among the replies, each in a frame whose call is 0 and whose body is the
/// name of the transfer and its bytes. The thread that waits for a reply reads them, so no other thread is woken.
pub const ASIDE: usize = LANES_MAX;

wire_struct! {
    /// In front of each command.
    #[derive(Copy, Eq)]
    pub struct CommandHeader {
        /// Bytes of the body.
        pub bytes: u32,
        /// Which command.
        pub opcode: u16,
        /// Zero; a receiver that sees anything else is too old.
        pub reserved: u16,
        /// Name of the reply the client waits for; 0 = no reply, an error surfaces later.
        pub call: u32,
        /// Zero.
        pub reserved2: u32,
    }
}

impl CommandHeader {
    /// Its bytes on the wire.
    pub const BYTES: usize = 16;

    /// Refuses what no well-behaved client sends.
    pub fn check(&self) -> Result<(), DecodeError> {
        if self.bytes > COMMAND_BYTES_MAX {
            let (value, bound) = (self.bytes.into(), COMMAND_BYTES_MAX.into());
            return Err(DecodeError::OverBound { what: "command", value, bound });
        }
        if self.reserved != 0 || self.reserved2 != 0 {
            return Err(DecodeError::Unknown { what: "command header", value: self.reserved.into() });
        }
        Ok(())
    }
}

/// Starts a command at the end of `out` and returns its place for [`finish_command`].
#[inline]
pub fn begin_command(out: &mut Vec<u8>, opcode: u16, call: u32) -> usize {
    let start = out.len();
    // What `CommandHeader::put` writes, field by field, in one piece: every launch passes here.
    let mut header = [0; CommandHeader::BYTES];
    header[4..6].copy_from_slice(&opcode.to_le_bytes());
    header[8..12].copy_from_slice(&call.to_le_bytes());
    out.extend_from_slice(&header);
    start
}

/// Writes the length of the command that began at `start`.
#[inline]
pub fn finish_command(out: &mut [u8], start: usize) {
    let bytes = (out.len() - start - CommandHeader::BYTES) as u32;
    out[start..start + 4].copy_from_slice(&bytes.to_le_bytes());
}

wire_struct! {
    /// In front of each reply.
    #[derive(Copy, Eq)]
    pub struct ReplyHeader {
        /// Bytes of the body.
        pub bytes: u32,
        /// Which call it answers; 0: none, it carries a transfer (see [`ASIDE`]).
        pub call: u32,
        /// `CUresult` of the call.
        pub status: u32,
        /// `CUresult` of an earlier one-way command, or 0.
        pub deferred: u32,
        /// The context it belongs to.
        pub deferred_context: u32,
        /// Notices sent on the events connection before this reply: they are seen first.
        pub notices: u32,
        /// Chunks sent on each way before this reply: they have landed before the call returns.
        pub chunks: [u32; WAYS],
        /// Further memory the client may allocate without awaiting.
        pub memory_credit_bytes: u64,
    }
}

impl ReplyHeader {
    /// Its bytes on the wire.
    pub const BYTES: usize = 64;
}

wire_struct! {
    /// In front of bulk bytes.
    #[derive(Copy, Eq)]
    pub struct ChunkHeader {
        /// Which transfer they belong to.
        pub transfer: TransferId,
        /// Where in it.
        pub offset: u64,
        /// How many bytes follow.
        pub bytes: u32,
        /// Zero.
        pub reserved: u32,
    }
}

impl ChunkHeader {
    /// Its bytes on the wire.
    pub const BYTES: usize = 24;
    /// The most bytes after one header, so that no transfer keeps a lane for long.
    pub const PAYLOAD_MAX: u32 = 1 << 20;
}

wire_struct! {
    /// In front of each notice.
    #[derive(Copy, Eq)]
    pub struct NoticeHeader {
        /// Bytes of the body.
        pub bytes: u32,
        /// Zero.
        pub reserved: u32,
    }
}

impl NoticeHeader {
    /// Its bytes on the wire.
    pub const BYTES: usize = 8;
    /// The longest notice: a piece of printf output.
    pub const BODY_MAX: u32 = 1 << 16;
}

wire_enum! {
    /// What travels on the events connection.
    pub enum Notice<'a> {
        /// Worker: run this host function and say [`Notice::HostCallDone`]. Chunks counted here have landed before.
        0 HostCall { token: u64, chunks: [u32; WAYS], }
        /// Worker: send this transfer in the lanes, as it is once the chunks counted here have landed.
        1 Pull { transfer: TransferId, chunks: [u32; WAYS], }
        /// Worker: text of the device's printf, for the program's standard output.
        2 Print { text: Bytes<'a>, }
        /// Worker: this many pushed bytes were consumed, the window has room for them again.
        3 PushConsumed { bytes: u64, }
        /// Both: are you there?
        4 Ping { nonce: u64, }
        /// Both: yes.
        5 Pong { nonce: u64, }
        /// Client: the host function returned.
        6 HostCallDone { token: u64, }
        /// Worker: it ends the session, in words for the user.
        7 Closing { text: Bytes<'a>, }
        /// Client: the named pull cannot be served (its memory is gone): fail the copy.
        8 PullFailed { transfer: TransferId, }
        /// Worker: all streams stood still at this cut, and what changed is put aside. Sent before the streams go on, and
        /// after the text of everything before the cut.
        9 CutTaken { number: u64, live_bytes: u64, dirty_bytes: u64, pause_us: u32, }
        /// Worker: the image of this cut is kept outside of this process: by the box (level 1), by another box too (2). A
        /// cut that was told with level 1 is told again when the other box has it.
        10 CutSafe { number: u64, level: u8, image_bytes: u64, }
        /// Worker: this cut is given up, in words. The client may ask for the next one.
        11 CutAbandoned { number: u64, text: Bytes<'a>, }
        /// Worker: the device failed, not the program. The client resumes elsewhere.
        12 DeviceLost { code: u32, text: Bytes<'a>, }
        /// Worker: its guardian is lost, and the images with it. The next cut is a whole one, with the guardian that is there
        /// then.
        13 GuardianLost { text: Bytes<'a>, }
        /// Worker: what has run since it last said so, in sessions whose hello wished for a timeline. `missed`: how much work
        /// was not timed.
        14 Timed {
            streams: Vec<TimedStream>,
            kernels: Vec<TimedKernel>,
            works: Vec<TimedWork>,
            answers: Vec<TimedAnswer>,
            missed: u64,
        }
        /// Client: what does the clock of your timeline show? With `flush`, tell first of everything that has run.
        15 TimelineAsk { nonce: u64, flush: bool, }
        /// Worker: this is what it shows. The first one comes unasked, with nonce 0: it says that this worker keeps a timeline.
        16 TimelineTold { nonce: u64, worker_ns: u64, }
        /// Worker, once and before everything else, to a client whose hello wished for it: it keeps blocks of what this client
        /// sends, and has so many of its tenant's already. Their names are made with this key ([`crate::content`]).
        17 ContentKept { key: [u8; 32], blocks: u64, }
        /// Client, in place of the bytes of a pull: the names of its blocks from `first` on.
        18 ContentNamed { transfer: TransferId, first: u32, names: Vec<[u8; 32]>, }
        /// Worker: of these `count` blocks it lacks those, by number, and the client sends them in the lanes. The others are
        /// where they belong.
        19 ContentLacks { transfer: TransferId, first: u32, count: u32, lacking: Vec<u32>, }
        /// Worker, once in an online session that takes over: all work of the replay, and what came after it until now, has ended
        /// well.
        20 Rested {}
        /// Worker: the program's work waits before it begins, in words for the user.
        21 Waits { text: Bytes<'a>, }
    }
}

impl Notice<'_> {
    /// The frame, its header in front.
    pub fn to_frame(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        NoticeHeader { bytes: 0, reserved: 0 }.put(&mut out);
        self.put(&mut out);
        let bytes = (out.len() - NoticeHeader::BYTES) as u32;
        out[..4].copy_from_slice(&bytes.to_le_bytes());
        out
    }
}

/// Reads a fixed header.
pub fn header<'a, T: Wire<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    let mut reader = Reader::new(bytes);
    let header = T::take(&mut reader)?;
    reader.finish("header")?;
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_begins_with_its_header() {
        let mut out = vec![9];
        let start = begin_command(&mut out, 0x1234, 0x5678_9abc);
        out.extend_from_slice(b"body");
        finish_command(&mut out, start);
        let header = CommandHeader { bytes: 4, opcode: 0x1234, reserved: 0, call: 0x5678_9abc, reserved2: 0 };
        assert_eq!(out, [&[9], header.to_bytes().as_slice(), b"body"].concat());
    }

    #[test]
    fn headers_have_the_sizes_they_promise() {
        assert_eq!(begin_command(&mut Vec::new(), 1, 2), 0);
        let command = CommandHeader { bytes: 0, opcode: 0, reserved: 0, call: 0, reserved2: 0 };
        assert_eq!(command.to_bytes().len(), CommandHeader::BYTES);
        let reply = ReplyHeader {
            bytes: 0,
            call: 0,
            status: 0,
            deferred: 0,
            deferred_context: 0,
            notices: 0,
            chunks: [0; WAYS],
            memory_credit_bytes: 0,
        };
        assert_eq!(reply.to_bytes().len(), ReplyHeader::BYTES);
        let chunk = ChunkHeader { transfer: TransferId(0), offset: 0, bytes: 0, reserved: 0 };
        assert_eq!(chunk.to_bytes().len(), ChunkHeader::BYTES);
    }
}
