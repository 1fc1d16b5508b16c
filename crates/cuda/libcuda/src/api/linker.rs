//! Bodies: the linker. Inputs gather here; the worker links them.

#![allow(unsafe_code)]

use crate::{
    api::{jit::JitArguments, module::read_file},
    border::*,
    state::{Linker, client, current_context, lock},
};
use core::ffi::CStr;
use cuda_abi::*;
use cuda_wire::{Bytes, Command, LinkInput, LinkOutput};
use std::sync::{Arc, Mutex, MutexGuard};

fn find(state: LinkStateHandle) -> CuResult<Arc<Mutex<Linker>>> {
    client()?.linkers.get(state.0).ok_or(CudaError::INVALID_HANDLE)
}

/// cuLinkCreate_v2 cuLinkCreate
pub(crate) fn create(
    _num_options: u32,
    options: &[u32],
    mut option_values: InOutSlice<'_, u64>,
    mut state_out: Out<'_, LinkStateHandle>,
) -> CuResult<()> {
    current_context()?;
    let values_at = option_values.address();
    let scalars = JitArguments::new(options, Some(&mut option_values))?.scalars().to_vec();
    let linker = Linker { options: scalars, keys: options.to_vec(), values_at, ..Linker::default() };
    state_out.set(LinkStateHandle(client()?.linkers.insert(Arc::new(Mutex::new(linker)))?));
    Ok(())
}

fn add(state: LinkStateHandle, kind: u32, name: String, bytes: Vec<u8>) -> CuResult<()> {
    if kind >= CU_JIT_NUM_INPUT_TYPES {
        return Err(CudaError::INVALID_VALUE);
    }
    lock(&*find(state)?).inputs.push((kind, name, bytes));
    Ok(())
}

/// cuLinkAddData_v2 cuLinkAddData
pub(crate) fn add_data(
    state: LinkStateHandle,
    kind: u32,
    data: HostSource,
    _size: usize,
    name: Option<&CStr>,
    _num_options: u32,
    _options: &[u32],
    _option_values: InOutSlice<'_, u64>,
) -> CuResult<()> {
    if data.is_empty() {
        return Err(CudaError::INVALID_VALUE);
    }
    let mut bytes = Vec::new();
    data.append_to(&mut bytes);
    add(state, kind, name.map_or_else(String::new, |name| name.to_string_lossy().into_owned()), bytes)
}

/// cuLinkAddFile_v2 cuLinkAddFile
pub(crate) fn add_file(
    state: LinkStateHandle,
    kind: u32,
    path: &CStr,
    _num_options: u32,
    _options: &[u32],
    _option_values: InOutSlice<'_, u64>,
) -> CuResult<()> {
    add(state, kind, path.to_string_lossy().into_owned(), read_file(path)?)
}

/// cuLinkComplete
pub(crate) fn complete(
    state: LinkStateHandle,
    mut cubin_out: Out<'_, u64>,
    size_out: Option<Out<'_, usize>>,
) -> CuResult<()> {
    let linker = find(state)?;
    let mut linker = lock(&*linker);
    if linker.inputs.is_empty() {
        return Err(CudaError::INVALID_VALUE);
    }
    let output = link(&linker)?;
    write_logs(&linker, &output)?;
    if let Some(error) = CudaError::from_code(output.status) {
        crate::log::warn(&format!("linking failed: {}", output.error_log.trim_end()));
        return Err(error);
    }
    let image = linker.image.insert(output.cubin.0);
    cubin_out.set(image.as_ptr() as u64);
    if let Some(mut size) = size_out {
        size.set(image.len());
    }
    Ok(())
}

fn link(linker: &Linker) -> CuResult<LinkOutput> {
    let context = current_context()?;
    let input = |(kind, name, bytes): &(u32, String, Vec<u8>)| {
        // Texts are often handed over with their final zero.
        let text = bytes.strip_suffix(&[0]).filter(|_| *kind == CU_JIT_INPUT_PTX).map(<[u8]>::to_vec);
        (*kind, name.clone(), text.unwrap_or_else(|| bytes.clone()))
    };
    let inputs: Vec<_> = linker.inputs.iter().map(input).collect();
    let inputs = inputs
        .iter()
        .map(|(kind, name, bytes)| LinkInput { kind: *kind, name: name.clone(), bytes: Bytes(bytes) })
        .collect();
    let options = linker.options.clone();
    context.settle(context.link.ask(&Command::Link { context: context.id, inputs, options }))
}

fn write_logs(linker: &MutexGuard<'_, Linker>, output: &LinkOutput) -> CuResult<()> {
    // SAFETY: CUDA has the program keep the option arrays of cuLinkCreate until the state is destroyed.
    let mut values = unsafe { in_out_slice_at::<u64>(linker.values_at, linker.keys.len()) }?;
    JitArguments::new(&linker.keys, Some(&mut values))?.write_logs(&output.info_log, &output.error_log);
    Ok(())
}

/// cuLinkDestroy
pub(crate) fn destroy(state: LinkStateHandle) -> CuResult<()> {
    client()?.linkers.remove(state.0).map(drop).ok_or(CudaError::INVALID_HANDLE)
}
