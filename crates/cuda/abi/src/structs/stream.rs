//! Memory operations on a stream.

use crate::value::{CValue, c_structs};

c_structs! {
    /// One memory operation: a union of 48 bytes whose first number says which.
    CUstreamBatchMemOpParams {
        words: [u64; 6],
    }

    /// The operation when it waits for or writes a value.
    CUstreamMemOpValueParams {
        operation: u32,
        address: u64,
        /// 64 bits; a 32-bit operation uses the low half.
        value: u64,
        flags: u32,
        alias: u64,
    }

    /// The operation when it is a flush or a barrier.
    CUstreamMemOpFlagsParams {
        operation: u32,
        flags: u32,
    }
}

impl CUstreamBatchMemOpParams {
    /// Which operation: one of `CU_STREAM_MEM_OP_*`.
    pub fn operation(&self) -> u32 {
        self.get()
    }

    /// The operation as one that waits for or writes a value.
    pub fn value_params(&self) -> CUstreamMemOpValueParams {
        self.get()
    }

    /// The operation as a flush or a barrier.
    pub fn flags_params(&self) -> CUstreamMemOpFlagsParams {
        self.get()
    }

    /// The union that holds this member.
    pub fn of<T: CValue>(member: T) -> Self {
        let mut bytes = [0; 48];
        member.write(&mut bytes);
        Self { words: CValue::read(&bytes) }
    }

    fn get<T: CValue>(&self) -> T {
        let mut bytes = [0; 48];
        self.words.write(&mut bytes);
        T::read(&bytes)
    }
}
