//! What a program sets one by one before a launch of CUDA 3: the block, the shared memory, and parameters at offsets.

use cuda_abi::{CuResult, CudaError};

/// Parameters took so many bytes at most then.
const PARAMETERS_MAX: usize = 4096;

/// The settings of a function. The next launches have them, until they are set anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OldLaunch {
    /// Threads of a block; zeros until they are set, which no launch takes.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// As many bytes as the program said that there are.
    parameters: Vec<u8>,
    size: usize,
}

impl OldLaunch {
    /// The block of the next launches.
    pub fn set_block(&mut self, shape: [i32; 3]) -> CuResult<()> {
        let mut block = [0; 3];
        for (to, from) in block.iter_mut().zip(shape) {
            *to = u32::try_from(from).ok().filter(|size| *size > 0).ok_or(CudaError::INVALID_VALUE)?;
        }
        self.block = block;
        Ok(())
    }

    /// How many bytes of parameters there are.
    pub fn set_size(&mut self, bytes: u32) -> CuResult<()> {
        let bytes = bytes as usize;
        if bytes > PARAMETERS_MAX {
            return Err(CudaError::INVALID_VALUE);
        }
        self.size = bytes;
        Ok(())
    }

    /// Room for a parameter, which the caller fills.
    pub fn parameter(&mut self, offset: i32, bytes: usize) -> CuResult<&mut [u8]> {
        let offset = usize::try_from(offset).map_err(|_| CudaError::INVALID_VALUE)?;
        let end =
            offset.checked_add(bytes).filter(|end| *end <= PARAMETERS_MAX).ok_or(CudaError::INVALID_VALUE)?;
        if self.parameters.len() < end {
            self.parameters.resize(end, 0);
        }
        Ok(&mut self.parameters[offset..end])
    }

    /// The parameters of a launch: what was set, and zeros where nothing was.
    pub fn parameters(&self) -> Vec<u8> {
        let mut parameters = self.parameters.clone();
        parameters.resize(self.size, 0);
        parameters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_lie_where_they_were_put() {
        let mut settings = OldLaunch::default();
        settings.parameter(8, 4).unwrap().copy_from_slice(&7u32.to_le_bytes());
        settings.parameter(0, 8).unwrap().copy_from_slice(&1u64.to_le_bytes());
        settings.set_size(16).unwrap();
        assert_eq!(settings.parameters(), [1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        settings.set_size(9).unwrap();
        assert_eq!(settings.parameters().len(), 9, "the size counts");
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        let mut settings = OldLaunch::default();
        assert_eq!(settings.parameter(-1, 4), Err(CudaError::INVALID_VALUE));
        assert_eq!(settings.parameter(4093, 4), Err(CudaError::INVALID_VALUE));
        assert!(settings.parameter(4092, 4).is_ok());
        assert_eq!(settings.set_size(4097), Err(CudaError::INVALID_VALUE));
        assert_eq!(settings.set_block([1, 0, 1]), Err(CudaError::INVALID_VALUE));
        assert_eq!(settings.set_block([1, -2, 1]), Err(CudaError::INVALID_VALUE));
        assert_eq!(settings.block, [0; 3]);
    }
}
