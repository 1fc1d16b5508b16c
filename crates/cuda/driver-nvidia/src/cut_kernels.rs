//! The kernels of a cut, as PTX text: digests of blocks, and the copy of what changed into a shadow.
//!
//! A driver compiles the text for its GPU when it is loaded. A test runs the same text on the PTX engine and compares
//! every bit with [`snapshot::Key::digest`].
//!
//! ```text
//! dxpu_digest   a thread block per block of memory, 16 bytes a load, the key in shared memory; says which changed
//! dxpu_shadow   copies the blocks that changed to slots of 64 KiB
//! ```

use snapshot::digest::{BLOCK_BYTES, FOLD_KEYS, KEY_BYTES, NH_KEY_BYTES, PASSES, UNIT_BYTES};
use std::fmt::Write;

/// Threads of a thread block. The key takes 64 KiB of shared memory, so a multiprocessor holds three thread blocks.
pub(crate) const THREADS: u32 = 512;

/// Units that a thread does of a whole block.
const UNITS_PER_THREAD: usize = BLOCK_BYTES / UNIT_BYTES / THREADS as usize;

/// Units that a thread loads before it needs the first: enough to hide the memory's latency, few enough that the
/// registers of three thread blocks fit in a multiprocessor, so that some load while another adds up.
const UNITS_AT_ONCE: usize = 4;

const WARPS: usize = THREADS as usize / 32;

/// Dynamic shared memory of `dxpu_digest`: the key, then four sums of each warp.
pub(crate) const DIGEST_SHARED_BYTES: usize = KEY_BYTES + WARPS * PASSES * 8;

/// The upper word of 2^127 - 1.
const HIGH: &str = "0x7fffffffffffffff";

/// A module with both kernels.
///
/// `dxpu_digest(blocks, count, key, committed, pending, dirty, dirty_count, skipped, cut)`, all 64 bits: it touches nothing
/// if the word at `skipped` is at least `cut`, because then the blocks may be gone; `blocks` has address and bytes of
/// each block, 64 bits each; `key` is what [`snapshot::Key::to_bytes`] says; `committed` and `pending` are tables of
/// digests of 16 bytes by place in `blocks`; `dirty` gets the places whose digest differs from the committed one, in no
/// order, and the 32-bit word at `dirty_count` is raised by their number.
///
/// `dxpu_shadow(blocks, dirty, dirty_count, first, slots, shadow)`: copies the blocks at places `dirty[first..]`, at most
/// `slots` of them, to slots of 64 KiB from `shadow` on.
pub(crate) fn text() -> String {
    let mut text = String::from(
        ".version 7.0\n.target sm_70\n.address_size 64\n.extern .shared .align 16 .b8 dxpu_memory[];\n",
    );
    digest(&mut text);
    text.push_str(SHADOW);
    text
}

fn digest(text: &mut String) {
    text.push_str(HEAD);
    // The key moves into shared memory once; a thread block does many blocks.
    text.push_str(&format!(
        "LOAD_KEY:\n setp.ge.u32 %p0, %unit, {};\n @%p0 bra KEY_LOADED;\n mul.wide.u32 %at, %unit, 16;\n \
         add.u64 %from, %key, %at;\n ld.global.v4.u32 {{%k0,%k1,%k2,%k3}}, [%from];\n shl.b32 %place, %unit, 4;\n \
         add.u32 %place, %place, %shared;\n st.shared.v4.u32 [%place], {{%k0,%k1,%k2,%k3}};\n \
         add.u32 %unit, %unit, {THREADS};\n bra LOAD_KEY;\nKEY_LOADED:\n bar.sync 0;\n",
        KEY_BYTES / 16
    ));
    text.push_str(&format!(
        "NEXT_BLOCK:\n setp.ge.u64 %p0, %block, %count;\n @%p0 bra DONE;\n shl.b64 %at, %block, 4;\n \
         add.u64 %from, %blocks, %at;\n ld.global.v2.u64 {{%address,%bytes}}, [%from];\n mov.u64 %y0, 0;\n \
         mov.u64 %y1, 0;\n mov.u64 %y2, 0;\n mov.u64 %y3, 0;\n mov.u32 %unit, %thread;\n and.b64 %at, %address, 15;\n \
         setp.ne.u64 %p0, %at, 0;\n @%p0 bra SLOW;\n setp.ne.u64 %p0, %bytes, {BLOCK_BYTES};\n @%p0 bra SHORT;\n"
    ));
    // A whole block: several loads, then their sums.
    text.push_str(
        " mul.wide.u32 %at, %thread, 16;\n add.u64 %from, %address, %at;\n shl.b32 %place, %thread, 4;\n \
         add.u32 %place, %place, %shared;\n",
    );
    for first in (0..UNITS_PER_THREAD).step_by(UNITS_AT_ONCE) {
        let offset = |unit: usize| (first + unit) * UNIT_BYTES * THREADS as usize;
        for unit in 0..UNITS_AT_ONCE {
            let [a, b, c, d] = [0, 1, 2, 3].map(|word| unit * 4 + word);
            let from = offset(unit);
            let _ = writeln!(text, " ld.global.v4.u32 {{%m{a},%m{b},%m{c},%m{d}}}, [%from+{from}];");
        }
        for unit in 0..UNITS_AT_ONCE {
            sums(text, unit * 4, offset(unit));
        }
    }
    text.push_str(" bra SUMMED;\n");
    // Whole units of a shorter block.
    text.push_str(
        "SHORT:\n mul.wide.u32 %at, %unit, 16;\n add.u64 %end, %at, 16;\n setp.gt.u64 %p0, %end, %bytes;\n \
         @%p0 bra SLOW;\n add.u64 %from, %address, %at;\n ld.global.v4.u32 {%m0,%m1,%m2,%m3}, [%from];\n \
         shl.b32 %place, %unit, 4;\n add.u32 %place, %place, %shared;\n",
    );
    sums(text, 0, 0);
    text.push_str(&format!(" add.u32 %unit, %unit, {THREADS};\n bra SHORT;\n"));
    slow(text);
    reduce_and_fold(text);
    text.push_str(TAIL);
}

/// Adds the products of the unit in `%m{first}…` to all sums; its place in the key is `%place + offset`.
fn sums(text: &mut String, first: usize, offset: usize) {
    let m = |word: usize| first + word;
    for pass in 0..PASSES {
        let at = offset + pass * UNIT_BYTES;
        let _ = writeln!(text, " ld.shared.v4.u32 {{%k0,%k1,%k2,%k3}}, [%place+{at}];");
        for pair in [0, 2] {
            let _ = writeln!(
                text,
                " add.u32 %k{pair}, %k{pair}, %m{}; add.u32 %k{}, %k{}, %m{};\n \
                 mul.wide.u32 %product, %k{pair}, %k{}; add.u64 %y{pass}, %y{pass}, %product;",
                m(pair),
                pair + 1,
                pair + 1,
                m(pair + 1),
                pair + 1
            );
        }
    }
}

/// Units that are cut short or not aligned, byte by byte; zeros follow the last byte.
fn slow(text: &mut String) {
    text.push_str(
        "SLOW:\n mul.wide.u32 %at, %unit, 16;\n setp.ge.u64 %p0, %at, %bytes;\n @%p0 bra SUMMED;\n mov.u32 %m0, 0;\n \
         mov.u32 %m1, 0;\n mov.u32 %m2, 0;\n mov.u32 %m3, 0;\n add.u64 %from, %address, %at;\n",
    );
    for byte in 0..UNIT_BYTES {
        let (word, shift) = (byte / 4, byte % 4 * 8);
        let _ = writeln!(
            text,
            " add.u64 %end, %at, {byte};\n setp.lt.u64 %p0, %end, %bytes;\n @%p0 ld.global.u8 %k0, [%from+{byte}];\n \
             @%p0 shl.b32 %k0, %k0, {shift};\n @%p0 or.b32 %m{word}, %m{word}, %k0;"
        );
    }
    text.push_str(" shl.b32 %place, %unit, 4;\n add.u32 %place, %place, %shared;\n");
    sums(text, 0, 0);
    let _ = writeln!(text, " add.u32 %unit, %unit, {THREADS};\n bra SLOW;\nSUMMED:");
}

/// Adds the threads' sums up and folds them, as [`snapshot::digest`] defines it: `%s1:%s0` is the digest, in thread 0.
fn reduce_and_fold(text: &mut String) {
    text.push_str(" bar.warp.sync -1;\n");
    add_lanes(text, &[16, 8, 4, 2, 1]);
    text.push_str(" setp.ne.u32 %p0, %lane, 0;\n");
    for pass in 0..PASSES {
        let at = KEY_BYTES + pass * 8;
        let _ = writeln!(text, " @!%p0 st.shared.u64 [%sums+{at}], %y{pass};");
    }
    // The first warp adds up what the warps have, a lane for each.
    let _ = writeln!(
        text,
        " bar.sync 0;\n setp.gt.u32 %p0, %thread, 31;\n @%p0 bra BLOCK_DONE;\n setp.lt.u32 %p0, %thread, {WARPS};\n \
         shl.b32 %place, %thread, 5;\n add.u32 %place, %place, %shared;"
    );
    for pass in 0..PASSES {
        let at = KEY_BYTES + pass * 8;
        let _ = writeln!(text, " mov.u64 %y{pass}, 0;\n @%p0 ld.shared.u64 %y{pass}, [%place+{at}];");
    }
    add_lanes(text, &[8, 4, 2, 1]);
    text.push_str(
        " setp.ne.u32 %p0, %thread, 0;\n @%p0 bra BLOCK_DONE;\n mov.u64 %s0, 0;\n mov.u64 %s1, 0;\n",
    );
    for fold in 0..FOLD_KEYS {
        let factor = if fold < PASSES { format!("%y{fold}") } else { "%bytes".to_owned() };
        let at = NH_KEY_BYTES + fold * 16;
        let _ = writeln!(
            text,
            " ld.shared.v2.u64 {{%a0,%a1}}, [%shared+{at}];\n mul.lo.u64 %l0, {factor}, %a0;\n \
             mul.hi.u64 %l1, {factor}, %a0;\n mul.lo.u64 %h0, {factor}, %a1;\n mul.hi.u64 %h1, {factor}, %a1;"
        );
        reduce(text, "l");
        text.push_str(" add.cc.u64 %s0, %s0, %l0;\n addc.u64 %s1, %s1, %l1;\n");
        reduce(text, "s");
        let _ = writeln!(text, " and.b64 %t, %h0, {HIGH};\n add.u64 %s1, %s1, %t;");
        reduce(text, "s");
        text.push_str(
            " shl.b64 %h1, %h1, 1;\n shr.u64 %h0, %h0, 63;\n or.b64 %h0, %h0, %h1;\n add.cc.u64 %s0, %s0, %h0;\n \
             addc.u64 %s1, %s1, 0;\n",
        );
        reduce(text, "s");
    }
    let _ = writeln!(
        text,
        " setp.eq.u64 %p0, %s0, -1;\n setp.eq.and.u64 %p0, %s1, {HIGH}, %p0;\n @%p0 mov.u64 %s0, 0;\n \
         @%p0 mov.u64 %s1, 0;"
    );
}

/// Adds the sums of a warp's lanes up, into those of its first.
fn add_lanes(text: &mut String, steps: &[u32]) {
    for pass in 0..PASSES {
        for step in steps {
            let _ = writeln!(
                text,
                " mov.b64 {{%k0,%k1}}, %y{pass};\n shfl.sync.down.b32 %k2, %k0, {step}, 31, -1;\n \
                 shfl.sync.down.b32 %k3, %k1, {step}, 31, -1;\n mov.b64 %product, {{%k2,%k3}};\n \
                 add.u64 %y{pass}, %y{pass}, %product;"
            );
        }
    }
}

/// The same modulo 2^127 - 1.
fn reduce(text: &mut String, of: &str) {
    let _ = writeln!(
        text,
        " shr.u64 %t, %{of}1, 63;\n and.b64 %{of}1, %{of}1, {HIGH};\n add.cc.u64 %{of}0, %{of}0, %t;\n \
         addc.u64 %{of}1, %{of}1, 0;"
    );
}

const HEAD: &str = "
.visible .entry dxpu_digest(.param .u64 p_blocks, .param .u64 p_count, .param .u64 p_key, .param .u64 p_committed,
    .param .u64 p_pending, .param .u64 p_dirty, .param .u64 p_dirty_count, .param .u64 p_skipped, .param .u64 p_cut)
.maxntid 512, 1, 1
.minnctapersm 3
{
 .reg .pred %p0;
 .reg .b32 %m<16>;
 .reg .b32 %k<4>;
 .reg .b32 %thread, %lane, %unit, %place, %shared, %sums, %grid;
 .reg .b64 %y<4>, %l<2>, %h<2>, %s<2>, %a<2>;
 .reg .b64 %t, %at, %end, %from, %product, %address, %bytes, %block, %step, %count;
 .reg .b64 %blocks, %key, %committed, %pending, %dirty, %dirty_count;
 ld.param.u64 %from, [p_skipped];
 ld.volatile.global.u64 %t, [%from];
 ld.param.u64 %at, [p_cut];
 setp.ge.u64 %p0, %t, %at;
 @%p0 bra DONE;
 ld.param.u64 %blocks, [p_blocks];
 ld.param.u64 %count, [p_count];
 ld.param.u64 %key, [p_key];
 ld.param.u64 %committed, [p_committed];
 ld.param.u64 %pending, [p_pending];
 ld.param.u64 %dirty, [p_dirty];
 ld.param.u64 %dirty_count, [p_dirty_count];
 mov.u32 %thread, %tid.x;
 and.b32 %lane, %thread, 31;
 mov.u32 %shared, dxpu_memory;
 and.b32 %sums, %thread, -32;
 add.u32 %sums, %sums, %shared;
 mov.u32 %grid, %ctaid.x;
 cvt.u64.u32 %block, %grid;
 mov.u32 %grid, %nctaid.x;
 cvt.u64.u32 %step, %grid;
 mov.u32 %unit, %thread;
";

const TAIL: &str = " shl.b64 %at, %block, 4;
 add.u64 %from, %pending, %at;
 st.global.v2.u64 [%from], {%s0,%s1};
 add.u64 %from, %committed, %at;
 ld.global.v2.u64 {%l0,%l1}, [%from];
 setp.eq.u64 %p0, %l0, %s0;
 setp.eq.and.u64 %p0, %l1, %s1, %p0;
 @%p0 bra BLOCK_DONE;
 atom.global.add.u32 %k0, [%dirty_count], 1;
 mul.wide.u32 %at, %k0, 4;
 add.u64 %from, %dirty, %at;
 cvt.u32.u64 %k1, %block;
 st.global.u32 [%from], %k1;
BLOCK_DONE:
 bar.sync 0;
 add.u64 %block, %block, %step;
 bra NEXT_BLOCK;
DONE:
 ret;
}
";

const SHADOW: &str = "
.visible .entry dxpu_shadow(.param .u64 p_blocks, .param .u64 p_dirty, .param .u64 p_dirty_count, .param .u64 p_first,
    .param .u64 p_slots, .param .u64 p_shadow)
.maxntid 512, 1, 1
{
 .reg .pred %p0;
 .reg .b32 %m<4>;
 .reg .b32 %thread, %word;
 .reg .b64 %at, %end, %from, %to, %address, %bytes, %slot, %step, %place, %count;
 .reg .b64 %blocks, %dirty, %first, %slots, %shadow;
 ld.param.u64 %blocks, [p_blocks];
 ld.param.u64 %dirty, [p_dirty];
 ld.param.u64 %from, [p_dirty_count];
 ld.global.u32 %word, [%from];
 cvt.u64.u32 %count, %word;
 ld.param.u64 %first, [p_first];
 ld.param.u64 %slots, [p_slots];
 ld.param.u64 %shadow, [p_shadow];
 mov.u32 %thread, %tid.x;
 mov.u32 %word, %ctaid.x;
 cvt.u64.u32 %slot, %word;
 mov.u32 %word, %nctaid.x;
 cvt.u64.u32 %step, %word;
NEXT_SLOT:
 setp.ge.u64 %p0, %slot, %slots;
 @%p0 bra COPIED;
 add.u64 %place, %slot, %first;
 setp.ge.u64 %p0, %place, %count;
 @%p0 bra COPIED;
 shl.b64 %at, %place, 2;
 add.u64 %from, %dirty, %at;
 ld.global.u32 %word, [%from];
 mul.wide.u32 %at, %word, 16;
 add.u64 %from, %blocks, %at;
 ld.global.v2.u64 {%address,%bytes}, [%from];
 shl.b64 %to, %slot, 16;
 add.u64 %to, %to, %shadow;
 mul.wide.u32 %at, %thread, 16;
 and.b64 %end, %address, 15;
 setp.ne.u64 %p0, %end, 0;
 @%p0 bra BYTES;
UNITS:
 add.u64 %end, %at, 16;
 setp.gt.u64 %p0, %end, %bytes;
 @%p0 bra BYTES;
 add.u64 %from, %address, %at;
 ld.global.v4.u32 {%m0,%m1,%m2,%m3}, [%from];
 add.u64 %from, %to, %at;
 st.global.v4.u32 [%from], {%m0,%m1,%m2,%m3};
 add.u64 %at, %at, 8192;
 bra UNITS;
BYTES:
 setp.ge.u64 %p0, %at, %bytes;
 @%p0 bra SLOT_DONE;
 add.u64 %end, %at, 16;
 min.u64 %end, %end, %bytes;
BYTE:
 add.u64 %from, %address, %at;
 ld.global.u8 %word, [%from];
 add.u64 %from, %to, %at;
 st.global.u8 [%from], %word;
 add.u64 %at, %at, 1;
 setp.lt.u64 %p0, %at, %end;
 @%p0 bra BYTE;
 add.u64 %at, %at, 15;
 and.b64 %at, %at, -16;
 add.u64 %at, %at, 8176;
 bra BYTES;
SLOT_DONE:
 add.u64 %slot, %slot, %step;
 bra NEXT_SLOT;
COPIED:
 ret;
}
";

#[cfg(test)]
mod tests;
