//! Arrays: blocks of the driver's own memory, laid out as the wire numbers their bytes.

use crate::{
    promises::Promise,
    retire::What,
    session::{Session, Tables},
    sync::lock,
};
use cuda_abi::{CuResult, CudaError};
use cuda_wire::{ARRAY_BYTES_MAX, ArrayId, ArrayInfo, ContextId, LEVELS_MAX, Op, Plane, Shape};

/// An array of the program's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Array {
    pub(crate) info: ArrayInfo,
    /// Where its first byte lies.
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The life of its context.
    pub(crate) life: u64,
}

impl Session {
    pub(crate) fn create_array(&self, array: ArrayId, context: ContextId, info: ArrayInfo) -> CuResult<()> {
        let bytes = info.bytes().filter(|bytes| (1..=ARRAY_BYTES_MAX).contains(bytes));
        let bytes = bytes.filter(|_| info.levels <= LEVELS_MAX).ok_or(CudaError::INVALID_VALUE)?;
        let context = {
            let mut tables = lock(&self.tables);
            if tables.arrays.contains_key(&array) {
                return Err(CudaError::INVALID_VALUE);
            }
            self.context(&mut tables, context)?
        };
        let address = match self.allocate_internal(&context, bytes) {
            Some(address) => address,
            None => {
                // Memory that is about to be freed counts as free.
                self.drain()?;
                self.allocate_internal(&context, bytes).ok_or(CudaError::OUT_OF_MEMORY)?
            }
        };
        let life = context.life;
        let mut tables = lock(&self.tables);
        // Copies may use it from now on. It overlaps nothing: its addresses are the driver's.
        tables.promises.add(address, Promise { bytes, life, turn: 0, is_mapped: false })?;
        tables.arrays.insert(array, Array { info, address, bytes, life });
        Ok(())
    }

    /// Destroys an array: it is gone for the program now, its memory when the work so far is done.
    pub(crate) fn destroy_array(&self, array: ArrayId) -> CuResult<()> {
        let mut tables = lock(&self.tables);
        let Array { address, bytes, .. } = tables.arrays.remove(&array).ok_or(CudaError::INVALID_HANDLE)?;
        tables.promises.remove(address);
        let after = tables.all_busy_ends();
        drop(tables);
        self.retire(What::Internal { address, bytes }, after);
        Ok(())
    }

    /// Where the bytes of `plane` lie: as it says, or in the memory of the array that it names.
    pub(crate) fn in_memory(&self, plane: Plane, shape: &Shape) -> CuResult<Plane> {
        if ArrayId::at(plane.address).is_none() {
            return Ok(plane);
        }
        lock(&self.tables).array_in_memory(plane, shape)
    }

    /// The same work with places in arrays as places in memory.
    pub(crate) fn op_in_memory<'a>(&self, op: Op<'a>) -> CuResult<Op<'a>> {
        let at = |plane, shape: &Shape| self.in_memory(plane, shape);
        Ok(match op {
            Op::CopyDevice { target, source, shape } => {
                Op::CopyDevice { target: at(target, &shape)?, source: at(source, &shape)?, shape }
            }
            Op::CopyIn { target, shape, data } => Op::CopyIn { target: at(target, &shape)?, shape, data },
            Op::CopyOut { source, shape, transfer } => {
                Op::CopyOut { source: at(source, &shape)?, shape, transfer }
            }
            Op::CopyInShared { target, source, shape } => {
                Op::CopyInShared { target: at(target, &shape)?, source, shape }
            }
            Op::CopyOutShared { source, target, shape } => {
                Op::CopyOutShared { source: at(source, &shape)?, target, shape }
            }
            other => other,
        })
    }
}

impl Tables {
    /// The array whose window holds `address`, and the byte in it.
    pub(crate) fn array_at(&self, address: u64) -> CuResult<(&Array, u64)> {
        let (array, offset) = ArrayId::at(address).ok_or(CudaError::INVALID_VALUE)?;
        Ok((self.arrays.get(&array).ok_or(CudaError::INVALID_HANDLE)?, offset))
    }

    fn array_in_memory(&self, plane: Plane, shape: &Shape) -> CuResult<Plane> {
        let (array, offset) = self.array_at(plane.address)?;
        array.info.place(offset, &plane, shape).ok_or(CudaError::INVALID_VALUE)?;
        Ok(Plane { address: array.address + offset, ..plane })
    }
}
