//! What can be wrong with a packet: one variant for each rule.

/// A rule of the specification that a packet breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Byte 0 names no kind.
    #[error("no packet begins with {byte:#04x}")]
    UnknownType {
        /// Byte 0.
        byte: u8,
    },
    /// A bit that must be zero is one.
    #[error("reserved bits of header byte {byte} are set")]
    ReservedBits {
        /// Which byte, counted from the beginning of the header.
        byte: u8,
    },
    /// The fourth value of the address type.
    #[error("address type 3 is reserved")]
    ReservedAddressType,
    /// A traffic class above 7.
    #[error("traffic class {0} is above 7")]
    TrafficClass(u8),
    /// Steering hints that need more than two bits.
    #[error("processing hint {0} is above 3")]
    ProcessingHint(u8),
    /// More than 1024 DW, or none where there must be one.
    #[error("a length of {0} DW cannot be written")]
    Length(u16),
    /// I/O and configuration requests are one DW.
    #[error("an I/O or configuration request of {0} DW")]
    NotOneDw(u16),
    /// I/O and configuration requests have traffic class 0, no attributes and no address type.
    #[error("an I/O or configuration request with a traffic class or attributes")]
    PlainOnly,
    /// The lower two bits of an address are set.
    #[error("address {address:#x} is not a multiple of 4")]
    UnalignedAddress {
        /// As given.
        address: u64,
    },
    /// The specification has requesters use the 3 DW form below 4 GiB and leaves receivers undefined. We refuse, so
    /// that two encodings never mean the same request.
    #[error("address {address:#x} is below 4 GiB in a 4 DW header")]
    LowAddressIn4Dw {
        /// As decoded.
        address: u64,
    },
    /// A request reaches over a boundary of 4 KiB.
    #[error("{length_dw} DW from {address:#x} cross a boundary of 4 KiB")]
    CrossesPage {
        /// Where it begins.
        address: u64,
        /// How long it is.
        length_dw: u16,
    },
    /// A request of one DW has last enables.
    #[error("a request of one DW has last byte enables {last:#x}")]
    LastEnableOfOneDw {
        /// Those.
        last: u8,
    },
    /// A request of several DW enables nothing in its first.
    #[error("a request of several DW enables no byte of its first")]
    NoFirstEnable,
    /// A request of several DW enables nothing in its last.
    #[error("a request of several DW enables no byte of its last")]
    NoLastEnable,
    /// Enabled bytes are not contiguous where they must be.
    #[error("byte enables {first:#x} and {last:#x} leave gaps")]
    GapsInEnables {
        /// Of the first DW.
        first: u8,
        /// Of the last DW.
        last: u8,
    },
    /// With a processing hint the enables are implied, so nothing but all bytes can be meant.
    #[error("a request with a processing hint cannot leave bytes out")]
    EnablesWithHint,
    /// A write with a processing hint has no tag: the steering tag lies in its place.
    #[error("a write with a processing hint cannot have a tag")]
    TagWithHint,
    /// An atomic operation's length is not an operand's, or not two of them for a compare-and-swap.
    #[error("{length_dw} DW are no operands of {mnemonic}")]
    OperandLength {
        /// Which operation.
        mnemonic: &'static str,
        /// What it brings.
        length_dw: u16,
    },
    /// An atomic operation's address is not a multiple of its operand.
    #[error("address {address:#x} is no multiple of the {operand_bytes} byte operand")]
    UnalignedOperand {
        /// As given.
        address: u64,
        /// The operand's size.
        operand_bytes: u8,
    },
    /// A completion status that means nothing.
    #[error("completion status {0} is reserved")]
    ReservedStatus(u8),
    /// Only a successful completion has data.
    #[error("a completion with data and status {status}")]
    DataWithoutSuccess {
        /// The three bits.
        status: u8,
    },
    /// A byte count that twelve bits cannot hold.
    #[error("byte count {0} is not between 1 and 4096")]
    ByteCount(u16),
    /// A lower address above seven bits.
    #[error("lower address {0:#x} is above 0x7f")]
    LowerAddress(u8),
    /// A completion brings DWs in which no byte is owed.
    #[error("a completion of {length_dw} DW with {byte_count} bytes left to come")]
    MoreDataThanCount {
        /// What it brings.
        length_dw: u16,
        /// What it says is left, this packet included.
        byte_count: u16,
    },
    /// A configuration register number that is no multiple of 4, or beyond 4 KiB.
    #[error("configuration register {0:#x} cannot be named")]
    Register(u16),
    /// What a caller gave as a prefix is none.
    #[error("no prefix begins with {byte:#04x}")]
    NotAPrefix {
        /// Its first byte.
        byte: u8,
    },
    /// Prefixes are whole DWs.
    #[error("{0} bytes are no whole number of prefixes")]
    PrefixBytes(usize),
    /// Local prefixes come before end-to-end ones.
    #[error("a local prefix follows an end-to-end prefix")]
    PrefixOrder,
    /// More prefixes than a packet may have.
    #[error("more than {0} prefixes of one kind")]
    TooManyPrefixes(usize),
}

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end too early.
    #[error("a packet of at least {need} bytes in {have}")]
    Truncated {
        /// How many there must be, as far as one can tell.
        need: usize,
        /// How many there are.
        have: usize,
    },
    /// The bytes go on after the packet.
    #[error("{extra} bytes after the packet")]
    Trailing {
        /// How many.
        extra: usize,
    },
    /// They break a rule.
    #[error("malformed packet")]
    Malformed(
        #[source]
        #[from]
        Malformed,
    ),
}

/// Why a packet cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The payload is not as long as the header says.
    #[error("the header announces {announced} bytes, the payload has {given}")]
    PayloadLength {
        /// What the header says.
        announced: usize,
        /// What there is.
        given: usize,
    },
    /// The buffer is too short.
    #[error("{need} bytes do not fit into {have}")]
    NoRoom {
        /// What the packet takes.
        need: usize,
        /// What there is.
        have: usize,
    },
    /// It would break a rule.
    #[error("malformed packet")]
    Malformed(
        #[source]
        #[from]
        Malformed,
    ),
}
