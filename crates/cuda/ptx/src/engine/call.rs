//! Calls and returns.

use super::{
    fault::{FaultKind, Trouble},
    warp::{Frame, Group, Wait, Warp},
};
use crate::{
    address::{FUNCTION, FUNCTION_STRIDE, in_window},
    code::{Argument, CallSite, Kernel, LANES, Op, Row, lanes},
};

/// Rows one warp may use for nested calls: 256 MiB.
const ROWS_MAX: usize = 1 << 20;

/// Enters a function with the lanes of `mask`. They leave `group`, which goes on behind the call without them.
pub(super) fn enter(
    kernel: &Kernel,
    warp: &mut Warp,
    group: &mut Group,
    mask: u32,
    site: &CallSite,
    function: usize,
    stack_bytes: u32,
) -> Result<(), Trouble> {
    let caller = warp.frames[group.frame as usize];
    let from = &kernel.functions[caller.function as usize];
    let code = &kernel.functions[function];
    let base_row = caller.base_row + from.rows;
    let base_pred = caller.base_pred + from.preds;
    let base_local = caller.base_local + from.frame;
    let lane = mask.trailing_zeros() as usize;
    // Also bound recursion that needs no memory of its own.
    let depth_max = stack_bytes / 16 + 16;
    if base_local + code.frame > stack_bytes.max(kernel.functions[0].frame)
        || base_row as usize + code.rows as usize > ROWS_MAX
        || caller.depth > depth_max
    {
        return Err(Trouble::new(FaultKind::StackOverflow, lane));
    }
    // Results may differ: a linker joins a declaration that promises one with a definition that gives none, and what the
    // caller then reads is whatever was there.
    if site.arguments.len() != code.params.len() {
        let message = format!("a call of `{}` with other parameters than it has", code.name);
        return Err(Trouble::saying(FaultKind::InvalidPc, lane, message));
    }
    let rows = (base_row + code.rows) as usize;
    if warp.rows.len() < rows {
        warp.rows.resize(rows, [0; LANES]);
    }
    let preds = (base_pred + code.preds) as usize;
    if warp.preds.len() < preds {
        warp.preds.resize(preds, 0);
    }
    let bytes = (base_local + code.frame) as usize;
    for lane in lanes(mask) {
        if warp.local[lane].len() < bytes {
            warp.local[lane].resize(bytes, 0);
        }
    }
    for (argument, &(offset, size)) in site.arguments.iter().zip(&code.params) {
        let to = (base_local + offset) as usize;
        match *argument {
            Argument::Frame { offset, size: given } => {
                let start = (caller.base_local + offset) as usize;
                let end = start + size.min(given) as usize;
                for lane in lanes(mask) {
                    warp.local[lane].copy_within(start..end, to);
                }
            }
            Argument::Value(src) => {
                let row = *warp.row(kernel, caller.base_row as usize, src);
                let size = size.min(8) as usize;
                for lane in lanes(mask) {
                    warp.local[lane][to..to + size].copy_from_slice(&row[lane].to_le_bytes()[..size]);
                }
            }
        }
    }
    let frame = Frame {
        parent: Some(group.frame),
        site: group.pc,
        function: function as u32,
        base_row,
        base_pred,
        base_local,
        depth: caller.depth + 1,
        lanes: mask,
    };
    // Frames that all lanes left are used again.
    let slot = match warp.frames.iter().skip(1).position(|frame| frame.lanes == 0) {
        Some(index) => {
            warp.frames[index + 1] = frame;
            index + 1
        }
        None => {
            warp.frames.push(frame);
            warp.frames.len() - 1
        }
    };
    let rest = group.mask & !mask;
    let inside =
        Group { pc: code.entry, mask, frame: slot as u32, wait: Wait::No, forced: false, stamp: group.stamp };
    if rest != 0 {
        warp.groups.push(Group { pc: group.pc + 1, mask: rest, ..*group });
    }
    *group = inside;
    Ok(())
}

/// Leaves the current function with the lanes of `mask`; `false` if that ended the kernel for them.
pub(super) fn leave(kernel: &Kernel, warp: &mut Warp, group: &mut Group, mask: u32) -> bool {
    let frame = warp.frames[group.frame as usize];
    let Some(parent) = frame.parent else { return false };
    let caller = warp.frames[parent as usize];
    let code = &kernel.functions[frame.function as usize];
    if let Op::Call(site) = &kernel.code[frame.site as usize].op {
        for (&(to, size), &(from, given)) in site.results.iter().zip(&code.results) {
            let start = (frame.base_local + from) as usize;
            let to = (caller.base_local + to) as usize;
            for lane in lanes(mask) {
                warp.local[lane].copy_within(start..start + size.min(given) as usize, to);
            }
        }
    }
    warp.frames[group.frame as usize].lanes &= !mask;
    let rest = group.mask & !mask;
    if rest != 0 {
        warp.groups.push(Group { pc: group.pc + 1, mask: rest, ..*group });
    }
    *group = Group { pc: frame.site + 1, mask, frame: parent, ..*group };
    true
}

/// The function that the first lane calls through a pointer, and the lanes that call the same.
pub(super) fn resolve(kernel: &Kernel, pointers: &Row, mask: u32) -> Result<(usize, u32), Trouble> {
    let lane = mask.trailing_zeros() as usize & 31;
    let pointer = pointers[lane];
    let same =
        lanes(mask).filter(|&other| pointers[other] == pointer).fold(0, |mask, other| mask | 1 << other);
    let number = pointer.wrapping_sub(FUNCTION) / FUNCTION_STRIDE;
    let aligned = pointer.is_multiple_of(FUNCTION_STRIDE) && in_window(pointer, FUNCTION);
    let found = kernel.by_address.binary_search_by_key(&number, |&(function, _)| function);
    match found {
        Ok(at) if aligned => Ok((kernel.by_address[at].1 as usize, same)),
        _ => Err(Trouble::at(FaultKind::InvalidPc, lane, pointer)),
    }
}
