//! Registered host memory at one address.

use super::*;
use std::io::{Read as _, Write as _};
use std::sync::atomic::AtomicBool;

unsafe extern "C" {
    fn cuMemHostRegister_v2(address: u64, bytes: usize, flags: u32) -> u32;
    fn cuMemHostUnregister(address: u64) -> u32;
    fn cuDevicePrimaryCtxReset_v2(device: i32) -> u32;
}

const ALREADY_REGISTERED: u32 = 712;
const NOT_REGISTERED: u32 = 713;
const WORDS: usize = (1 << 18) + 1024;
const MANY: usize = 1 << 22;

/// The program's own pages, at an address if one is wished.
fn pages(at: u64, words: usize) -> &'static mut [u32] {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let exactly = if at == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | exactly;
    // SAFETY: nothing is replaced, and nothing else uses what is new.
    let got = unsafe { libc::mmap(at as *mut _, words * 4, rights, flags, -1, 0) };
    assert_ne!(got, libc::MAP_FAILED);
    // SAFETY: these pages are new.
    let memory = unsafe { std::slice::from_raw_parts_mut(got.cast::<u32>(), words) };
    memory.iter_mut().enumerate().for_each(|(at, word)| *word = at as u32);
    memory
}

fn register(memory: &[u32]) {
    // SAFETY: the memory is there until it is unregistered.
    good(unsafe { cuMemHostRegister_v2(address(memory), size_of_val(memory), MAPPED) });
}

fn unregister(memory: &[u32]) {
    // SAFETY: it was registered.
    good(unsafe { cuMemHostUnregister(address(memory)) });
}

fn unmap(memory: &[u32]) {
    // SAFETY: the caller does not use it any more.
    assert_eq!(unsafe { libc::munmap(address(memory) as *mut _, size_of_val(memory)) }, 0);
}

/// A kernel reaches a word of `memory` by a pointer that lies in other memory.
fn follow(gpu: &Gpu, memory: &[u32], word: usize, v: u32) {
    let list = managed(4);
    let at = address(memory) + 4 * word as u64;
    (list[0], list[1]) = (at as u32, (at >> 32) as u32);
    launch(gpu.follow, list, v, 0);
    synchronize();
    // SAFETY: it is not used afterwards.
    good(unsafe { cuMemFree_v2(address(list)) });
}

/// A line of /proc/self/maps.
fn mapping_of(memory: &[u32]) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let start = format!("{:x}-", address(memory));
    maps.lines().find(|line| line.starts_with(&start)).unwrap_or_default().to_owned()
}

pub(super) fn registered() {
    let gpu = begin();
    one_address(&gpu);
    mistakes();
    while_threads_write(&gpu);
    not_whole_pages(&gpu);
    unmapped_without_a_word(&gpu);
    when_the_context_ends(&gpu);
}

fn one_address(gpu: &Gpu) {
    let memory = pages(0, WORDS);
    register(memory);
    assert!(mapping_of(memory).contains("rw-s"), "it is managed where it lies: {}", mapping_of(memory));
    assert!(memory.iter().enumerate().all(|(at, word)| *word == at as u32), "bytes of before stay");
    follow(gpu, memory, WORDS - 1, 7);
    assert_eq!(memory[WORDS - 1], 3 * (WORDS as u32 - 1) + 7, "a kernel follows the pointer");
    mapped_is_memory_of_the_host(memory);

    // System calls fill it, copies read and write it.
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[9; 8192]).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    launch(gpu.bump, memory, 1, 0);
    // SAFETY: these bytes are the memory's.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast::<u8>(), 8192) };
    file.read_exact(bytes).unwrap();
    let mut device = 0;
    // SAFETY: the pointers are those of live memory.
    unsafe {
        good(cuMemAlloc_v2(&mut device, 65536));
        good(cuMemcpyHtoD_v2(device, memory.as_ptr().cast(), 65536));
        good(cuMemcpyAsync(address(memory) + 131_072, device, 65536, 0));
    }
    synchronize();
    assert_eq!((memory[0], memory[2047], memory[2048]), (0x0909_0909, 0x0909_0909, 3 * 2048 + 1));
    assert_eq!(memory[32768..49152], memory[..16384], "by the device and back");

    // What only the device has comes home.
    let before: Vec<u32> = memory.to_vec();
    launch(gpu.slow, &memory[..1], 2, 0);
    launch(gpu.bump, memory, 5, 0);
    unregister(memory);
    let mapping = mapping_of(memory);
    assert!(mapping.contains("rw-p") && !mapping.contains("memfd"), "it is private again: {mapping}");
    assert!(
        (1..WORDS).all(|at| memory[at] == before[at].wrapping_mul(3).wrapping_add(5)),
        "and has all bytes"
    );
    // SAFETY: the child does nothing but write and end.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let first = memory.as_mut_ptr();
            first.write_volatile(77);
            libc::_exit((first.read_volatile() != 77) as i32);
        }
        let mut status = 1;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0, "a child has the memory");
    }
    assert_ne!(memory[0], 77, "and none of its bytes comes back");
    // Again, at the same addresses.
    register(memory);
    memory[3] = 4;
    follow(gpu, memory, 3, 1);
    unregister(memory);
    assert_eq!(memory[3], 13);
    unmap(memory);
}

fn mistakes() {
    let memory = pages(0, WORDS);
    register(memory);
    let at = address(memory);
    // SAFETY: nothing is changed.
    unsafe {
        assert_eq!(cuMemHostRegister_v2(at, 4096, 0), ALREADY_REGISTERED);
        assert_eq!(cuMemHostRegister_v2(at - 4096, 8192, MAPPED), ALREADY_REGISTERED);
        assert_eq!(cuMemHostUnregister(at + 4096), 1);
        assert_eq!(cuMemFreeHost(at), 1);
        assert_eq!(cuMemFree_v2(at), 1);
    }
    unregister(memory);
    // SAFETY: as before.
    assert_eq!(unsafe { cuMemHostUnregister(at) }, NOT_REGISTERED);
    unmap(memory);
}

/// Threads of the program write all the time, and find what they wrote.
fn while_threads_write(gpu: &Gpu) {
    // So much that copying it takes a while.
    let memory = pages(0, MANY);
    let (is_over, base) = (AtomicBool::new(false), address(memory));
    std::thread::scope(|scope| {
        let writers = [4096usize, 100_000, MANY - 1].map(|word| {
            let is_over = &is_over;
            scope.spawn(move || {
                // SAFETY: the word is this thread's alone.
                let word = unsafe { &*((base + 4 * word as u64) as *const AtomicU32) };
                let first = word.load(Ordering::Relaxed);
                let mut count = first;
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(word.fetch_add(1, Ordering::Relaxed), count, "a word was lost");
                    count += 1;
                }
                count - first
            })
        });
        for turn in 0..15 {
            register(memory);
            launch(gpu.bump, &memory[..1024], turn, 0);
            synchronize();
            unregister(memory);
        }
        is_over.store(true, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| assert!(writer.join().unwrap() > 0));
    });
    let expected = (0..15u32).fold(1000u32, |word, turn| word.wrapping_mul(3).wrapping_add(turn));
    assert_eq!(memory[1000], expected);
    unmap(memory);
}

/// Such memory is registered as it always was: a kernel is given its address at most.
fn not_whole_pages(gpu: &Gpu) {
    let memory = pages(0, WORDS);
    let part = &memory[4..WORDS - 4];
    register(part);
    assert!(mapping_of(memory).contains("rw-p"), "it stays where it is");
    launch(gpu.bump, part, 2, 0);
    synchronize();
    assert_eq!((part[0], part[5]), (3 * 4 + 2, 3 * 9 + 2));
    unregister(part);
    unmap(memory);
}

/// What the program maps there afterwards is left alone.
fn unmapped_without_a_word(gpu: &Gpu) {
    let memory = pages(0, WORDS);
    register(memory);
    launch(gpu.bump, memory, 1, 0);
    synchronize();
    // Open pages, which the next launch would close.
    memory.fill(1);
    let at = address(memory);
    unmap(memory);
    let others = pages(at, WORDS);
    let list = managed(1000);
    launch(gpu.bump, list, 1, 0);
    launch(gpu.bump, list, 1, 0);
    synchronize();
    assert!(others.iter().enumerate().all(|(at, word)| *word == at as u32), "other memory was changed");
    // SAFETY: nothing is registered there.
    let _ = unsafe { cuMemHostUnregister(at) };
    assert!(others.iter().enumerate().all(|(at, word)| *word == at as u32), "other memory was changed");
    unmap(others);
}

fn when_the_context_ends(gpu: &Gpu) {
    let memory = pages(0, WORDS);
    register(memory);
    launch(gpu.bump, memory, 9, 0);
    // SAFETY: no pointers.
    good(unsafe { cuDevicePrimaryCtxReset_v2(0) });
    assert!(
        memory.iter().enumerate().all(|(at, word)| *word == 3 * at as u32 + 9),
        "a kernel's bytes are here"
    );
    unmap(memory);
}
