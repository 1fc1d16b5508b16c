//! Calls to NVIDIA's kernel driver, as far as they concern groups of channels.
//!
//! Numbers and layouts are those of the driver's published sources (open-gpu-kernel-modules, MIT licence).

/// The kind of all requests, in the second byte of a request's number.
const MAGIC: u64 = b'F' as u64;
const FREE: u64 = 0x29;
const CONTROL: u64 = 0x2a;
const ALLOC: u64 = 0x2b;
/// A group of channels: what the device's scheduler gives slices to.
const CHANNEL_GROUP: u32 = 0xa06c;
const SET_SLICE: u32 = 0xa06c_0103;
const GET_SLICE: u32 = 0xa06c_0104;

/// What a call told the kernel, and the kernel did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A group is there.
    Born(Name),
    /// An object is not there any more, whatever it was.
    Gone(Name),
}

/// What the kernel calls an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) client: u32,
    pub(super) object: u32,
}

/// How many bytes of its argument a request has that could be an event. `None`: it is none.
pub(super) fn bytes_of_interest(request: u64) -> Option<usize> {
    let (magic, number, bytes) = (request >> 8 & 0xff, request & 0xff, (request >> 16 & 0x3fff) as usize);
    let is_known = match number {
        ALLOC => bytes == 32 || bytes == 48,
        FREE => bytes == 16,
        _ => false,
    };
    (magic == MAGIC && is_known).then_some(bytes)
}

/// What a call was that the kernel has answered without an error of its own. `argument` has [`bytes_of_interest`].
pub(super) fn event(request: u64, argument: &[u8]) -> Option<Event> {
    let word = |at: usize| argument.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let client = word(0)?;
    // Behind what the caller says stands how it went.
    let (event, status) = match (request & 0xff, argument.len()) {
        (ALLOC, bytes) if word(12)? == CHANNEL_GROUP => {
            (Event::Born(Name { client, object: word(8)? }), word(if bytes == 32 { 28 } else { 40 })?)
        }
        (FREE, _) => (Event::Gone(Name { client, object: word(8)? }), word(12)?),
        _ => return None,
    };
    (status == 0).then_some(event)
}

/// A question or an order about a group's slice.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Control {
    client: u32,
    object: u32,
    command: u32,
    flags: u32,
    parameters: u64,
    parameter_bytes: u32,
    pub(super) status: u32,
}

/// The number of the request that takes a [`Control`]: read and written, 32 bytes.
pub(super) const CONTROL_REQUEST: u64 = 3 << 30 | (size_of::<Control>() as u64) << 16 | MAGIC << 8 | CONTROL;

impl Control {
    /// `parameters`: the address of eight bytes, which hold the slice in microseconds.
    pub(super) fn new(name: Name, sets: bool, parameters: u64) -> Self {
        let command = if sets { SET_SLICE } else { GET_SLICE };
        let Name { client, object } = name;
        Self { client, object, command, flags: 0, parameters, parameter_bytes: 8, status: u32::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(number: u64, bytes: u64) -> u64 {
        3 << 30 | bytes << 16 | MAGIC << 8 | number
    }

    /// The words of an allocation, as the two forms of the request have them.
    fn allocation(class: u32, bytes: usize, status: u32) -> Vec<u8> {
        let mut words = vec![7u32, 8, 9, class];
        words.resize(bytes / 4, 0);
        let at = if bytes == 32 { 7 } else { 10 };
        words[at] = status;
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn a_group_is_born_in_both_forms_of_the_request_and_only_if_it_went_well() {
        let name = Name { client: 7, object: 9 };
        for bytes in [32, 48] {
            let request = request(ALLOC, bytes as u64);
            assert_eq!(bytes_of_interest(request), Some(bytes));
            assert_eq!(event(request, &allocation(CHANNEL_GROUP, bytes, 0)), Some(Event::Born(name)));
            assert_eq!(event(request, &allocation(CHANNEL_GROUP, bytes, 0x1f)), None);
            assert_eq!(event(request, &allocation(0xc86f, bytes, 0)), None);
        }
    }

    #[test]
    fn an_object_is_gone() {
        let words: Vec<u8> = [7u32, 8, 9, 0].into_iter().flat_map(u32::to_le_bytes).collect();
        let gone = Event::Gone(Name { client: 7, object: 9 });
        assert_eq!(event(request(FREE, 16), &words), Some(gone));
    }

    #[test]
    fn other_calls_are_none_of_ours() {
        assert_eq!(bytes_of_interest(request(ALLOC, 40)), None);
        assert_eq!(bytes_of_interest(request(CONTROL, 32)), None);
        assert_eq!(bytes_of_interest(request(ALLOC, 32) ^ 1 << 8), None);
        assert_eq!(bytes_of_interest(0x5401), None);
        assert_eq!(event(request(ALLOC, 48), &[0; 12]), None);
    }

    #[test]
    fn a_control_call_has_the_layout_of_the_kernel() {
        assert_eq!(size_of::<Control>(), 32);
        assert_eq!(CONTROL_REQUEST, 0xc020_462a);
        let control = Control::new(Name { client: 1, object: 2 }, true, 3);
        assert_eq!((control.client, control.object, control.command), (1, 2, 0xa06c_0103));
    }
}
