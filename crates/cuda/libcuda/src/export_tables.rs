//! The driver's private tables (cuGetExportTable).
//!
//! NVIDIA's own libraries find parts of the driver not by name but in tables that the driver hands out by a 16-byte id.
//! A table is an array of words: its size in bytes, then functions. This module serves the tables that libcudart,
//! cuBLAS and cuDNN need to start, and answers in this process. It refuses every other id; those libraries then take
//! their public path. Sizes and answers are those of driver 580.
//!
//! | module | asked by | for what |
//! |---|---|---|
//! | [`runtime`] | libcudart | loads modules, names primary contexts |
//! | [`hooks`] | libcudart | which profiler callbacks are on (none) |
//! | [`thread`] | libcudart, cuBLASLt | the current context |
//! | [`local_storage`] | libcudart, cuBLAS, cuDNN | values kept in a context |
//! | [`checks`] | libcudart, cuBLAS | whether a context wraps another (none does) |
//! | [`integrity`] | libcudart | whether the driver is one |
//! | [`identity`] | cuBLASLt | a context's id |
//! | [`matrices`] | cuBLASLt | not known |
//! | [`functions`] | cuFFT | the functions of a module |
//! | [`compile_cache`] | NVRTC | keeps what it has compiled |
//!
//! CUPTI, which `torch.profiler` and Nsight build on, asks for [`is_profilers`] before anything else. It is refused: what CUPTI
//! measures happens on another machine, and it must not be given made-up events. CUPTI 12 and 13 then return errors from all
//! their functions, and the profiler goes on without a GPU.
//!
//! The address of a table never changes: the runtime puts it into the digest that [`integrity`] answers.

mod checks;
mod compile_cache;
mod functions;
mod hooks;
mod identity;
mod integrity;
mod local_storage;
mod matrices;
mod runtime;
mod table;
mod thread;

/// The address of the table with this id, whose first byte is the highest of the number.
pub(crate) fn find(id: &[u8; 16]) -> Option<u64> {
    Some(match u128::from_be_bytes(*id) {
        0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9 => runtime::TABLE.address(),
        0xa094798c_2e74_2e74_93f2_0800200c0a66 => hooks::TABLE.address(),
        0x42d85a81_23f6_cb47_8298_f6e78a3aecdc => thread::TABLE.address(),
        0xc693336e_1121_df11_a8c3_68f355d89593 => local_storage::TABLE.address(),
        0x263e8860_7cd2_6143_92f6_bbd5006dfa7e => checks::TABLE.address(),
        0xd4082055_bde6_704b_8d34_ba123c66e1f2 => integrity::TABLE.address(),
        0x21318c60_9714_3248_8ca6_41ff7324c8f2 => identity::TABLE.address(),
        0x1734dc26_800d_4745_8726_c0f1e7dd8bca => matrices::TABLE.address(),
        0x6e163fbe_b958_444d_835c_e182aff1991e => functions::TABLE.address(),
        0xda9151d3_3ae6_cc41_a5c0_4f26d533e328 => compile_cache::TABLE.address(),
        _ => return None,
    })
}

/// Whether it is the table that a profiler (CUPTI) begins with.
pub(crate) fn is_profilers(id: &[u8; 16]) -> bool {
    u128::from_be_bytes(*id) == 0x7cb63f9b_9ca4_8e42_a484_beb66e6aed7f
}

#[cfg(test)]
mod tests;
