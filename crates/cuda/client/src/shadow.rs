//! Pinned host memory that kernels are given pointers to: which bytes go where, and when.
//!
//! On one machine a kernel reads and writes pinned host memory by itself. With a remote GPU the memory is in the program's
//! process and the kernel runs elsewhere. So a launch whose parameters point into pinned memory is given device memory
//! instead, its *shadow*. The program never learns of it.
//!
//! ```text
//!                    side stream: send (what the program changed)
//!   pinned memory ───────────────────────────────────────────────▶ shadow ◀──▶ kernel
//!        ▲                                                            │
//!        └────────────────────────────────────────────────────────────┘
//!                    kernel's stream: fetch (what the kernel changed)
//! ```
//!
//! # The protocol
//!
//! 1. **Create.** The first launch that is lent a pinned range in a context allocates a shadow of the same size and fills it
//!    with zeros. [`Mirror`] is the client's copy of what the shadow holds (`known`), so it starts as zeros.
//! 2. **Send.** Before a launch, the client compares the pinned memory with `known` and sends only the pieces that differ,
//!    mostly nothing: some libraries pass such a pointer to every kernel and hardly ever use it. Sends travel on a *side
//!    stream*, one for each context, that waits for no kernel. Pieces that lie close together are sent as one, but only while
//!    no kernel can have written what lies between them; otherwise words that did not change are left out.
//! 3. **Order.** A stream must not run a kernel, or read a shadow back, before the sends to that shadow have arrived. [`Book`]
//!    numbers the sends and knows how far each stream waits for the side stream. A stream that is behind waits for an event
//!    of the side stream first.
//! 4. **Forward.** A kernel may wait for a word that the program writes after the launch. So whenever the program is about to
//!    wait, the client also sends what changed in small shadows (at most [`SIGNAL_BYTES_MAX`]) whose kernels may still run.
//! 5. **Fetch.** Before the program can learn that a kernel is done (an event is recorded, a stream waited for or queried, a
//!    host function run, a copy made), the client enqueues a copy of the shadow behind the kernel, in the kernel's stream.
//!    Where the bytes arrive, only those that a kernel changed are written to pinned memory: the program may use the others.
//! 6. **Forget.** When the memory is unpinned, or the context ends, the shadow goes. Bytes that arrive later are dropped.
//!
//! Copies of the program may write pinned memory as well. A launch that finds one under way forwards, waits for the context,
//! and then sends.
//!
//! # Which arriving bytes count
//!
//! A fetch cannot say what a kernel wrote: it says what the shadow held at one moment. A byte that differs from `known` as it
//! was when the fetch began is *news*, with these exceptions, all of them because sends and other fetches go on meanwhile:
//!
//! - The byte was sent, or arrived by another fetch, after this fetch began. The shadow may have held any of these values at
//!   that moment, so none of them is news.
//! - A later fetch of the same stream has arrived already. It was read later, so this one is old.
//!
//! News that an earlier fetch of the same stream brings is what the later kernels of that stream started from. So it takes the
//! place of what the byte was when the later fetch began, and a kernel that sets the byte back is seen.
//!
//! # What it cannot do
//!
//! - Pointers inside device memory are not seen. A kernel that follows one of those to the host faults, as it would on a GPU
//!   without mapped memory.
//! - A word of four bytes belongs to the program or to the kernel. If both write a part of it at once, one part may be lost.
//! - A kernel that sets a byte back to a value which the program sent since the fetch began, or to the value before that, is
//!   noticed by the next fetch only.
//! - Fetches of different streams are expected to arrive in the order in which the GPU did them. If their bytes overtake each
//!   other, and kernels of both streams wrote the same byte one after the other, then the earlier value may stay.
//! - A launch that must wait for a copy waits for the whole context, so a kernel there that waits for
//!   a word which the program writes after the launch hangs.
//!
//! [`Mirror`] and [`Book`] are plain values: no thread, lock, socket or memory of the program. libcuda's `state/shadow.rs`
//! holds the locks, reads and writes the program's memory and posts the commands.

mod book;
mod differences;
mod fetch;
mod mirror;

pub use book::{Book, Mark, ShadowKey};
pub use fetch::FetchId;
pub use mirror::{Mirror, Piece};

/// A launch sends what changed of the memory it is lent. More than this is meant for copies, and would cost every launch as
/// much as a copy.
pub const SHADOWED_BYTES_MAX: u64 = 64 << 20;

/// A kernel that waits for a word of the program looks at little memory. Larger shadows are not compared at every wait.
pub const SIGNAL_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests;
