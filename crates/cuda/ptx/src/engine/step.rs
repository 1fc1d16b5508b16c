//! The interpreter: one warp, one instruction after the other.

use super::{
    access::{Reach, addresses, wants_result},
    arith,
    block::{self, BARRIERS, Shared, arrive},
    call, exchange,
    fault::{Fault, FaultKind, Trouble},
    printf,
    run::Context,
    sample,
    warp::{Group, Wait, Warp},
};
use crate::{
    code::{AtomicKind, BarrierKind, LANES, Op, Row, Special, SurfaceWork, Target, VoteKind, lanes},
    hooks::Hooks,
    memory::DeviceMemory,
};
use locks::lock;
use std::sync::{Mutex, MutexGuard};

/// What became of a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// It executed something.
    pub(super) ran: bool,
    /// Most of its time went into waiting.
    pub(super) spun: bool,
}

/// Instructions one group may run while another could.
const PATIENCE: i64 = 4_000;
/// Instructions of the other one, then.
const FAIR: i64 = 1_000;
/// What an instruction costs that looks like waiting for another thread.
const SPIN_COST: i64 = 64;

/// Runs a warp until its fuel is used, or no lane of it can go on.
pub(super) fn run<M: DeviceMemory, H: Hooks>(
    context: &mut Context<'_, M, H>,
    shared: &mut Shared,
    warp: &mut Warp,
    fuel: i64,
) -> Result<Outcome, Fault> {
    let mut turn = Turn { fuel, spun: 0, ran: false };
    let mut fair = false;
    while turn.fuel > 0 {
        let Some(mut group) = warp.pick(fair) else { break };
        turn.ran = true;
        let limit = turn.fuel - if fair { FAIR } else { PATIENCE };
        let end = step(context, shared, warp, &mut group, &mut turn, fair, limit);
        match end {
            Ok(End::Switch) => fair = false,
            Ok(End::Patience) => fair = !fair,
            Err(trouble) => return Err(fault(context, shared, warp, &group, trouble)),
        }
    }
    Ok(Outcome { ran: turn.ran, spun: turn.spun * 2 > fuel })
}

struct Turn {
    fuel: i64,
    spun: i64,
    ran: bool,
}

impl Turn {
    fn spin(&mut self) {
        self.fuel -= SPIN_COST;
        self.spun += SPIN_COST;
    }
}

/// Held while a warp reads or writes strong vectors, of which each element is an access of its own here. A GPU moves a vector of
/// up to 16 bytes at once, and scans that look back at other blocks rely on it. Such accesses are rare: one lock is enough.
fn whole_vectors() -> MutexGuard<'static, ()> {
    static WHOLE: Mutex<()> = Mutex::new(());
    lock(&WHOLE)
}

/// Why a group stopped.
enum End {
    /// It waits, ended, or another goes first.
    Switch,
    /// It had its share.
    Patience,
}

fn fault<M: DeviceMemory, H: Hooks>(
    context: &Context<'_, M, H>,
    shared: &Shared,
    warp: &Warp,
    group: &Group,
    trouble: Trouble,
) -> Fault {
    let lane = trouble.lane & 31;
    Fault {
        kind: trouble.kind,
        kernel: context.kernel.name.to_string(),
        line: context.kernel.code.get(group.pc as usize).map_or(0, |inst| inst.line),
        block: shared.place.block,
        thread: [warp.tid[0][lane] as u32, warp.tid[1][lane] as u32, warp.tid[2][lane] as u32],
        address: trouble.address,
        message: trouble.message,
    }
}

/// Runs one group. It is back in the warp's list when this returns `Ok`, unless it ended.
fn step<M: DeviceMemory, H: Hooks>(
    context: &mut Context<'_, M, H>,
    shared: &mut Shared,
    warp: &mut Warp,
    group: &mut Group,
    turn: &mut Turn,
    fair: bool,
    limit: i64,
) -> Result<End, Trouble> {
    let kernel = context.kernel;
    let warps = context.warps;
    let mut frame = warp.frames[group.frame as usize];
    let mut base = frame.base_row as usize;
    let mut preds = frame.base_pred as usize;
    // Control may have moved to another frame.
    macro_rules! reframe {
        () => {
            frame = warp.frames[group.frame as usize];
            base = frame.base_row as usize;
            preds = frame.base_pred as usize;
        };
    }
    macro_rules! park {
        ($end:expr) => {{
            warp.groups.push(*group);
            return Ok($end);
        }};
    }
    macro_rules! reach {
        () => {
            Reach {
                spans: &mut context.spans,
                shared: &mut shared.bytes,
                params: &context.launch.params,
                warp,
                base_local: frame.base_local,
            }
        };
    }
    loop {
        let inst = &kernel.code[group.pc as usize];
        let mut mask = group.mask & warp.pred(preds, inst.guard);
        turn.fuel -= 1;
        if mask == 0 {
            group.pc += 1;
            continue;
        }
        context.lane_instructions += u64::from(mask.count_ones());
        // Waits until all named lanes are at this instruction.
        macro_rules! gather {
            ($members:expr) => {
                let members = block::uniform(warp, kernel, base, $members, mask) as u32;
                if !warp.gather(group, members) {
                    group.wait = Wait::Lanes;
                    park!(End::Switch);
                }
                mask = group.mask & warp.pred(preds, inst.guard);
            };
        }
        match &inst.op {
            Op::Join => {
                if !warp.groups.is_empty() {
                    warp.merge(group);
                    if !fair && warp.outranked(group) {
                        park!(End::Switch);
                    }
                    if turn.fuel < limit && warp.has_runnable() {
                        park!(End::Patience);
                    }
                }
                if turn.fuel <= 0 {
                    park!(End::Switch);
                }
                // The label itself costs nothing.
                context.lane_instructions -= u64::from(mask.count_ones());
            }
            Op::Nop => {}
            Op::Map1 { f, d, a } => {
                let mut out = [0; LANES];
                f(&mut out, warp.row(kernel, base, *a), mask);
                warp.set_row(base, *d, &out, mask);
            }
            Op::Map2 { f, d, a, b } => {
                let mut out = [0; LANES];
                f(&mut out, warp.row(kernel, base, *a), warp.row(kernel, base, *b), mask);
                warp.set_row(base, *d, &out, mask);
            }
            Op::Map3 { f, d, a, b, c } => {
                let mut out = [0; LANES];
                let (a, b, c) =
                    (warp.row(kernel, base, *a), warp.row(kernel, base, *b), warp.row(kernel, base, *c));
                f(&mut out, a, b, c, mask);
                warp.set_row(base, *d, &out, mask);
            }
            Op::Map4 { f, d, s } => {
                let mut out = [0; LANES];
                f(&mut out, s.map(|src| warp.row(kernel, base, src)), mask);
                warp.set_row(base, *d, &out, mask);
            }
            Op::MapN { f, d, s } => {
                let mut out = vec![[0; LANES]; d.len()];
                let rows: Vec<&Row> = s.iter().map(|&src| warp.row(kernel, base, src)).collect();
                f(&mut out, &rows, mask);
                for (&d, row) in d.iter().zip(&out) {
                    warp.set_row(base, d, row, mask);
                }
            }
            Op::Mov { d, a } => {
                let row = *warp.row(kernel, base, *a);
                warp.set_row(base, *d, &row, mask);
            }
            Op::Compare { f, a, b, p, q, combine, c } => {
                let value = f(warp.row(kernel, base, *a), warp.row(kernel, base, *b));
                let other = warp.pred(preds, *c);
                warp.set_pred(preds, *p, arith::combine(*combine, value, other), mask);
                warp.set_pred(preds, *q, arith::combine(*combine, !value, other), mask);
            }
            Op::Compare2 { lo, hi, a, b, p, q, combine, c } => {
                let (a, b) = (warp.row(kernel, base, *a), warp.row(kernel, base, *b));
                let (lo, hi) = (lo(a, b), hi(a, b));
                let other = warp.pred(preds, *c);
                warp.set_pred(preds, *p, arith::combine(*combine, lo, other), mask);
                warp.set_pred(preds, *q, arith::combine(*combine, hi, other), mask);
            }
            Op::Set { f, a, b, d, combine, c, yes } => {
                let value = f(warp.row(kernel, base, *a), warp.row(kernel, base, *b));
                let value = arith::combine(*combine, value, warp.pred(preds, *c));
                let mut out = [0; LANES];
                for (lane, place) in out.iter_mut().enumerate() {
                    *place = u64::from(value >> lane & 1) * yes;
                }
                warp.set_row(base, *d, &out, mask);
            }
            Op::Test { f, a, p } => {
                let value = f(warp.row(kernel, base, *a));
                warp.set_pred(preds, *p, value, mask);
            }
            Op::Select { d, a, b, p } => {
                let pick = warp.pred(preds, *p);
                let (a, b) = (warp.row(kernel, base, *a), warp.row(kernel, base, *b));
                let mut out = [0; LANES];
                for lane in 0..LANES {
                    out[lane] = if pick >> lane & 1 == 1 { a[lane] } else { b[lane] };
                }
                warp.set_row(base, *d, &out, mask);
            }
            Op::PredLogic { combine, p, a, b } => {
                let value = arith::combine(*combine, warp.pred(preds, *a), warp.pred(preds, *b));
                warp.set_pred(preds, *p, value, mask);
            }
            Op::Carry(op) => {
                let (a, b, c) = (
                    warp.row(kernel, base, op.a),
                    warp.row(kernel, base, op.b),
                    warp.row(kernel, base, op.c),
                );
                let (out, flags) = arith::carry(op, a, b, c, warp.carry);
                warp.set_row(base, op.d, &out, mask);
                if op.carry_out {
                    warp.carry = warp.carry & !mask | flags & mask;
                }
            }
            Op::Special { d, kind } => {
                let out = arith::special(*kind, warp, &shared.place, context.launch, kernel, context.hooks);
                warp.set_row(base, *d, &out, mask);
                if matches!(kind, Special::Clock | Special::GlobalTimer) {
                    turn.spin();
                }
            }
            Op::FrameAddress { d, offset } => {
                let out = [u64::from(frame.base_local.wrapping_add(*offset)); LANES];
                warp.set_row(base, *d, &out, mask);
            }
            Op::Load { at, d, width, signed, spin } => {
                let places = addresses(warp.row(kernel, base, at.base), at);
                let mut out = [0; LANES];
                reach!().load(at.space, &places, mask, *width, *signed, &mut out)?;
                warp.set_row(base, *d, &out, mask);
                if *spin {
                    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
                    turn.spin();
                }
            }
            Op::LoadVector { at, d, width, signed, strong } => {
                let mut places = addresses(warp.row(kernel, base, at.base), at);
                reach!().check_vector(&places, mask, width * d.len() as u32)?;
                let whole = strong.then(whole_vectors);
                // All elements are read before any is written: the address may be among the results.
                let mut out = [[0; LANES]; 8];
                for row in out.iter_mut().take(d.len()) {
                    reach!().load(at.space, &places, mask, *width, *signed, row)?;
                    places = places.map(|place| place.wrapping_add(u64::from(*width)));
                }
                drop(whole);
                for (&d, row) in d.iter().zip(&out) {
                    warp.set_row(base, d, row, mask);
                }
                if *strong {
                    turn.spin();
                }
            }
            Op::Store { at, s, width } => {
                let places = addresses(warp.row(kernel, base, at.base), at);
                let values = *warp.row(kernel, base, *s);
                reach!().store(at.space, &places, mask, *width, &values)?;
            }
            Op::StoreVector { at, s, width, strong } => {
                let mut places = addresses(warp.row(kernel, base, at.base), at);
                reach!().check_vector(&places, mask, width * s.len() as u32)?;
                let _whole = strong.then(whole_vectors);
                for &s in s {
                    let values = *warp.row(kernel, base, s);
                    reach!().store(at.space, &places, mask, *width, &values)?;
                    places = places.map(|place| place.wrapping_add(u64::from(*width)));
                }
            }
            Op::Copy { to, from, size, source_size } => {
                let target = addresses(warp.row(kernel, base, to.base), to);
                let source = addresses(warp.row(kernel, base, from.base), from);
                let wanted = source_size.map(|src| *warp.row(kernel, base, src));
                reach!().copy((to.space, &target), (from.space, &source), mask, *size, wanted.as_ref())?;
            }
            Op::Atomic(atomic) => {
                let places = addresses(warp.row(kernel, base, atomic.address.base), &atomic.address);
                let operands: Vec<Row> = atomic.b.iter().map(|&src| *warp.row(kernel, base, src)).collect();
                let expected = match &atomic.kind {
                    AtomicKind::Compare(src) => Some(*warp.row(kernel, base, *src)),
                    _ => None,
                };
                let old = reach!().atomic(atomic, &places, &operands, expected.as_ref(), mask)?;
                if wants_result(&atomic.d) {
                    for (&d, row) in atomic.d.iter().zip(&old) {
                        warp.set_row(base, d, row, mask);
                    }
                    // An atomic whose result matters may be a lock that another thread holds.
                    turn.spin();
                }
            }
            Op::Texture(op) => {
                let finder = (context.hooks, &mut context.sampler);
                let rows = sample::Rows { warp, kernel, base };
                let out = sample::texture(finder, &mut context.spans, &rows, op, mask)?;
                for (&d, row) in op.d.iter().zip(&out) {
                    warp.set_row(base, d, row, mask);
                }
            }
            Op::SamplerQuery { d, handle, level, question } => {
                let finder = (context.hooks, &mut context.sampler);
                let rows = sample::Rows { warp, kernel, base };
                let out = sample::query(finder, &rows, (*handle, *level), *question, mask)?;
                warp.set_row(base, *d, &out, mask);
            }
            Op::Surface(op) => {
                let finder = (context.hooks, &mut context.sampler);
                let rows = sample::Rows { warp, kernel, base };
                let places = sample::places(finder, &rows, op, mask)?;
                match &op.work {
                    SurfaceWork::Load { d } => {
                        let out = reach!().load_surface(&places, op.width, d.len())?;
                        for (&d, row) in d.iter().zip(&out) {
                            warp.set_row(base, d, row, mask);
                        }
                    }
                    SurfaceWork::Store { values, is_formatted } => {
                        let values: Vec<Row> =
                            values.iter().map(|&src| *warp.row(kernel, base, src)).collect();
                        reach!().store_surface(&places, op.width, &values, *is_formatted)?;
                    }
                    SurfaceWork::Reduce(atomic) => {
                        let values: Vec<Row> =
                            atomic.b.iter().map(|&src| *warp.row(kernel, base, src)).collect();
                        reach!().atomic(atomic, &places.at, &values, None, places.mask)?;
                    }
                }
            }
            Op::Fence => {
                std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            }
            Op::Yield => {
                turn.spun += turn.fuel.max(0);
                turn.fuel = 0;
                group.pc += 1;
                park!(End::Switch);
            }
            Op::Bra { target } => {
                if mask == group.mask {
                    group.pc = *target;
                } else {
                    warp.groups.push(Group { pc: *target, mask, ..*group });
                    group.mask &= !mask;
                    group.pc += 1;
                }
                if group.pc == u32::MAX {
                    return Err(Trouble::new(FaultKind::IllegalInstruction, mask.trailing_zeros() as usize));
                }
                continue;
            }
            Op::BraTable { index, targets } => {
                let indices = *warp.row(kernel, base, *index);
                let mut left = mask;
                while left != 0 {
                    let lane = left.trailing_zeros() as usize;
                    let chosen = indices[lane] as u32;
                    let same = lanes(left)
                        .filter(|&other| indices[other] as u32 == chosen)
                        .fold(0, |mask, other| mask | 1 << other);
                    let Some(&target) = targets.get(chosen as usize) else {
                        return Err(Trouble::new(FaultKind::IllegalInstruction, lane));
                    };
                    warp.groups.push(Group { pc: target, mask: same, ..*group });
                    left &= !same;
                }
                group.mask &= !mask;
                if group.mask == 0 {
                    return Ok(End::Switch);
                }
            }
            Op::Call(site) => match site.target {
                Target::Direct(function) => {
                    call::enter(kernel, warp, group, mask, site, function, context.launch.stack_bytes)?;
                    reframe!();
                    continue;
                }
                Target::Indirect(src) => {
                    let pointers = *warp.row(kernel, base, src);
                    let (function, same) = call::resolve(kernel, &pointers, mask)?;
                    if same != mask {
                        // The others make the same call again, by themselves.
                        warp.groups.push(Group { mask: mask & !same, ..*group });
                        group.mask &= !(mask & !same);
                        mask = same;
                    }
                    call::enter(kernel, warp, group, mask, site, function, context.launch.stack_bytes)?;
                    reframe!();
                    continue;
                }
                Target::Builtin(builtin) => {
                    printf::builtin(builtin, site, &mut reach!(), context.hooks, kernel, base, mask)?;
                }
            },
            Op::Ret => {
                if call::leave(kernel, warp, group, mask) {
                    reframe!();
                    continue;
                }
                warp.exit(mask);
                shared.changed = true;
                group.mask &= !mask;
                if group.mask == 0 {
                    return Ok(End::Switch);
                }
            }
            Op::Exit => {
                warp.exit(mask);
                shared.changed = true;
                group.mask &= !mask;
                if group.mask == 0 {
                    return Ok(End::Switch);
                }
            }
            Op::Trap => {
                let lane = mask.trailing_zeros() as usize;
                return Err(Trouble::saying(FaultKind::LaunchFailed, lane, "the kernel executed `trap`"));
            }
            Op::Barrier(barrier) => {
                let id = block::uniform(warp, kernel, base, barrier.id, mask) as usize;
                if id >= BARRIERS {
                    return Err(Trouble::new(FaultKind::IllegalInstruction, mask.trailing_zeros() as usize));
                }
                let count = barrier.count.map(|src| block::uniform(warp, kernel, base, src, mask) as u32);
                let trues = warp.pred(preds, barrier.pred);
                arrive(shared, warps, warp.index, id, mask, count, trues);
                if barrier.kind != BarrierKind::Arrive {
                    let rest = group.mask & !mask;
                    if rest != 0 {
                        warp.groups.push(Group { pc: group.pc + 1, mask: rest, ..*group });
                    }
                    group.mask = mask;
                    group.wait = Wait::Barrier(id as u8);
                    park!(End::Switch);
                }
            }
            Op::WarpSync { members } => {
                gather!(*members);
                let _ = mask;
            }
            Op::Vote { kind, d, p, members } => {
                if let Some(members) = members {
                    gather!(*members);
                }
                let value = warp.pred(preds, *p) & mask;
                let truth = |value: bool| if value { u32::MAX } else { 0 };
                match kind {
                    VoteKind::All => warp.set_pred(preds, *d, truth(value == mask), mask),
                    VoteKind::Any => warp.set_pred(preds, *d, truth(value != 0), mask),
                    VoteKind::Uni => warp.set_pred(preds, *d, truth(value == mask || value == 0), mask),
                    VoteKind::Ballot => warp.set_row(base, *d, &[u64::from(value); LANES], mask),
                }
            }
            Op::Shuffle { kind, d, p, a, b, c, members } => {
                if let Some(members) = members {
                    gather!(*members);
                }
                let (a, b, c) =
                    (warp.row(kernel, base, *a), warp.row(kernel, base, *b), warp.row(kernel, base, *c));
                let (out, valid) = exchange::shuffle(*kind, a, b, c, mask);
                warp.set_row(base, *d, &out, mask);
                warp.set_pred(preds, *p, valid, mask);
            }
            Op::Match { all, wide, d, p, a, members } => {
                gather!(*members);
                let out = exchange::match_any(warp.row(kernel, base, *a), *wide, mask);
                if *all {
                    let equal = lanes(mask).all(|lane| out[lane] as u32 == mask);
                    let row = [if equal { u64::from(mask) } else { 0 }; LANES];
                    warp.set_row(base, *d, &row, mask);
                    warp.set_pred(preds, *p, if equal { u32::MAX } else { 0 }, mask);
                } else {
                    warp.set_row(base, *d, &out, mask);
                }
            }
            Op::Redux { kind, d, a, members } => {
                gather!(*members);
                let value = exchange::redux(*kind, warp.row(kernel, base, *a), mask);
                warp.set_row(base, *d, &[value; LANES], mask);
            }
            Op::Elect { d, p, members } => {
                gather!(*members);
                let leader = mask.trailing_zeros();
                warp.set_row(base, *d, &[u64::from(leader); LANES], mask);
                warp.set_pred(preds, *p, 1 << leader, mask);
            }
            Op::ActiveMask { d } => {
                warp.set_row(base, *d, &[u64::from(mask); LANES], mask);
            }
            Op::Mbarrier(op) => {
                let places = addresses(warp.row(kernel, base, op.at.base), &op.at);
                let operand = op.a.map(|src| *warp.row(kernel, base, src));
                let (row, truth) = reach!().mbarrier(op, &places, operand.as_ref(), mask)?;
                if matches!(op.kind, crate::code::MbarrierKind::Test { .. }) {
                    warp.set_pred(preds, op.d, truth, mask);
                    turn.spin();
                } else {
                    warp.set_row(base, op.d, &row, mask);
                }
            }
        }
        group.pc += 1;
    }
}
