//! Options of the compiler and linker: scalars travel, buffers for logs stay here.

#![allow(unsafe_code)]

use crate::{border::InOutSlice, host::HostRegion, link::take_last_message};
use cuda_abi::*;
use cuda_wire::JitOption;

/// A buffer of the program's for a log.
#[derive(Clone, Copy, Default)]
struct LogBuffer {
    address: u64,
    bytes: usize,
}

impl LogBuffer {
    /// Writes text and a final zero, cut to the room there is; says how many bytes were written.
    fn write(self, text: &str) -> usize {
        if self.address == 0 || self.bytes == 0 {
            return 0;
        }
        let kept = &text.as_bytes()[..text.len().min(self.bytes - 1)];
        // SAFETY: the program gave a buffer of `bytes` bytes for this log, and keeps it while the call lasts.
        let buffer = unsafe { HostRegion::line(self.address, self.bytes as u64) };
        buffer.write(0, kept);
        buffer.write(kept.len() as u64, &[0]);
        kept.len() + 1
    }
}

/// The options of one call, and where its logs go.
pub(crate) struct JitArguments<'a, 'b> {
    scalars: Vec<JitOption>,
    info: LogBuffer,
    error: LogBuffer,
    info_size_at: Option<usize>,
    error_size_at: Option<usize>,
    wall_time_at: Option<usize>,
    values: Option<&'a mut InOutSlice<'b, u64>>,
}

impl<'a, 'b> JitArguments<'a, 'b> {
    /// Reads the arrays of a call.
    pub(crate) fn new(options: &[u32], values: Option<&'a mut InOutSlice<'b, u64>>) -> CuResult<Self> {
        let mut arguments = Self {
            scalars: Vec::new(),
            info: LogBuffer::default(),
            error: LogBuffer::default(),
            info_size_at: None,
            error_size_at: None,
            wall_time_at: None,
            values,
        };
        for (index, option) in options.iter().enumerate() {
            let value = arguments.values.as_ref().map_or(0, |values| values.get(index));
            match *option {
                CU_JIT_INFO_LOG_BUFFER => arguments.info.address = value,
                CU_JIT_ERROR_LOG_BUFFER => arguments.error.address = value,
                // Values are pointers in C; numbers are stored in their low half.
                CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES => {
                    arguments.info.bytes = value as u32 as usize;
                    arguments.info_size_at = Some(index);
                }
                CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES => {
                    arguments.error.bytes = value as u32 as usize;
                    arguments.error_size_at = Some(index);
                }
                CU_JIT_WALL_TIME => arguments.wall_time_at = Some(index),
                // Tables of names and addresses of the program's host code: nothing here uses them.
                CU_JIT_GLOBAL_SYMBOL_NAMES..=CU_JIT_GLOBAL_SYMBOL_COUNT
                | CU_JIT_REFERENCED_KERNEL_NAMES..=CU_JIT_REFERENCED_VARIABLE_COUNT => {}
                option if option < CU_JIT_NUM_OPTIONS => {
                    arguments.scalars.push(JitOption { option, value: u64::from(value as u32) });
                }
                _ => return Err(CudaError::INVALID_VALUE),
            }
        }
        Ok(arguments)
    }

    /// What travels.
    pub(crate) fn scalars(&self) -> &[JitOption] {
        &self.scalars
    }

    /// Fills the program's logs: with the information log of a success, or with what the worker said of a failure.
    pub(crate) fn report(&mut self, result: Result<&str, CudaError>) {
        let (info, error) = match result {
            Ok(info) => (info.to_owned(), String::new()),
            Err(error) => {
                let message = take_last_message();
                let message = if message.is_empty() { error.to_string() } else { message };
                crate::log::warn(&format!("the module cannot be used: {message}"));
                (String::new(), message)
            }
        };
        self.write_logs(&info, &error);
    }

    /// Fills both logs.
    pub(crate) fn write_logs(&mut self, info: &str, error: &str) {
        let info_bytes = self.info.write(info);
        let error_bytes = self.error.write(error);
        let Some(values) = &mut self.values else { return };
        if let Some(place) = self.info_size_at {
            values.set(place, info_bytes as u64);
        }
        if let Some(place) = self.error_size_at {
            values.set(place, error_bytes as u64);
        }
        if let Some(place) = self.wall_time_at {
            values.set(place, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_cut_to_its_buffer_and_ends_in_a_zero() {
        let mut memory = [7u8; 8];
        let log = LogBuffer { address: memory.as_mut_ptr() as u64, bytes: 6 };
        assert_eq!(log.write("abc"), 4);
        assert_eq!(memory, *b"abc\0\x07\x07\x07\x07");
        assert_eq!(log.write("abcdefgh"), 6);
        assert_eq!(memory, *b"abcde\0\x07\x07");
        assert_eq!(LogBuffer { bytes: 0, ..log }.write("abc"), 0);
        assert_eq!(LogBuffer { address: 0, ..log }.write("abc"), 0);
    }
}
