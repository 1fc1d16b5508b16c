//! The linker: several inputs in, one image out.

use crate::{session::Session, soft_cubin, sync::lock};
use cuda_abi::{CuResult, CudaError};
use cuda_image::{EntryKind, FATBIN_MAGIC, Fatbin};
use cuda_wire::{Blob, LinkInput, LinkOutput};
use ptx::Program;

/// `CUjitInputType`.
mod input {
    pub(super) const CUBIN: u32 = 0;
    pub(super) const PTX: u32 = 1;
    pub(super) const FATBINARY: u32 = 2;
    pub(super) const OBJECT: u32 = 3;
    pub(super) const LIBRARY: u32 = 4;
}

/// How an archive of objects begins.
const ARCHIVE_MAGIC: &[u8] = b"!<arch>\n";

/// Where nvcc puts fatbins in objects of the host: code for linking, and code that is linked.
const OBJECT_SECTIONS: [&[u8]; 2] = [b"__nv_relfatbin", b".nv_fatbin"];

impl Session {
    /// Links; what fails is told in the output's log.
    pub(crate) fn link_images(&self, inputs: &[LinkInput<'_>]) -> LinkOutput {
        let outcome = self.try_link(inputs);
        let (cubin, status) = match outcome {
            Ok(cubin) => (cubin, 0),
            Err(error) => (Vec::new(), error.code()),
        };
        let error_log = if status == 0 { String::new() } else { self.take_message().unwrap_or_default() };
        LinkOutput { cubin: Blob(cubin), info_log: String::new(), error_log, status }
    }

    fn try_link(&self, inputs: &[LinkInput<'_>]) -> CuResult<Vec<u8>> {
        let mut texts = Vec::new();
        for part in inputs {
            let named = |error| {
                let why = self.take_message().unwrap_or_default();
                self.refuse(error, format!("{}: {why}", part.name))
            };
            texts.extend(self.input_texts(part).map_err(named)?);
        }
        let refuse = |message: String| self.refuse(CudaError::INVALID_IMAGE, message);
        if texts.len() > soft_cubin::TEXTS_MAX {
            return Err(refuse(format!("more than {} inputs", soft_cubin::TEXTS_MAX)));
        }
        let modules = self.parse(&texts)?;
        let linked = ptx::link(modules).map_err(|error| refuse(error.to_string()))?;
        // Addresses do not matter here, only that every name has one.
        let program = Program::bind(linked, |_| 0);
        for name in program.kernel_names() {
            if let Some(Err(error)) = program.kernel(name)
                && error.reason.contains("is not defined")
            {
                return Err(refuse(error.to_string()));
            }
        }
        Ok(soft_cubin::build(&texts, self.capability().architecture()))
    }

    fn input_texts(&self, part: &LinkInput<'_>) -> CuResult<Vec<Vec<u8>>> {
        match part.kind {
            input::CUBIN | input::PTX | input::FATBINARY => self.texts(part.bytes.0),
            input::OBJECT => self.object_texts(part.bytes.0),
            // CUDA's device runtime: an archive of machine code. What a kernel needs of it the engine has by itself, and
            // what it does not have is reported as undefined.
            input::LIBRARY if part.bytes.0.starts_with(ARCHIVE_MAGIC) => Ok(Vec::new()),
            kind => {
                let message =
                    format!("linker inputs of kind {kind} (libraries, compiler IR) are not supported");
                Err(self.refuse(CudaError::NOT_SUPPORTED, message))
            }
        }
    }

    /// The PTX in the fatbins of a host object.
    fn object_texts(&self, object: &[u8]) -> CuResult<Vec<Vec<u8>>> {
        let invalid =
            |error: cuda_image::ImageError| self.refuse(CudaError::INVALID_IMAGE, error.to_string());
        let sections = soft_cubin::sections(object).map_err(invalid)?;
        let Some((_, mut rest)) = sections.into_iter().find(|(name, _)| OBJECT_SECTIONS.contains(name))
        else {
            return Err(self.refuse(CudaError::INVALID_IMAGE, "the object holds no device code".to_owned()));
        };
        let mut texts = Vec::new();
        // Fatbins follow one another, padded with zeros.
        while let Some(at) = rest.windows(4).position(|word| word == FATBIN_MAGIC.to_le_bytes()) {
            rest = &rest[at..];
            let fatbin = Fatbin::parse(rest).map_err(invalid)?;
            let bytes = 16 + fatbin.entries.iter().map(|entry| entry.raw.len()).sum::<usize>();
            if fatbin.entries.iter().any(|entry| entry.kind == EntryKind::Ptx) {
                texts.extend(self.texts(&rest[..bytes])?);
            }
            rest = &rest[bytes.min(rest.len())..];
        }
        if texts.is_empty() {
            let message =
                "the object holds no PTX; compile it with -rdc=true and a virtual architecture".to_owned();
            return Err(self.refuse(CudaError::NO_BINARY_FOR_GPU, message));
        }
        Ok(texts)
    }

    /// Words about the last refusal of a launch, kept beside the code.
    pub(crate) fn say_refusal(&self, kernel: cuda_wire::KernelRef) {
        let found = Self::find_kernel(&lock(&self.tables), kernel);
        if let Some(refusal) = found.ok().and_then(|kernel| kernel.refusal()) {
            self.say(refusal);
        }
    }
}
