//! Makes a function for every symbol that a driver exports.
//!
//! - Symbols that a file of `src/hooks` defines are left to it.
//! - Symbols that the table of the driver API classes, and whose arguments all travel in integer registers or words of the
//!   stack, become calls that are counted (`src/counted.rs`).
//! - The rest are jumps: whatever their arguments are, they stay where they are.

use cuda_table::{Class, Kind, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/hooks");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The program's exit runs our code: it must stay when a program closes the library.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");

    let exports: Vec<&str> = cuda_table::exports().collect();
    let index: BTreeMap<&str, usize> = exports.iter().enumerate().map(|(at, &name)| (name, at)).collect();
    let hooked = hooked();
    for name in &hooked {
        assert!(index.contains_key(name.as_str()), "src/hooks has {name}, which no driver exports");
    }
    let counted = counted(&hooked);

    let mut text = String::new();
    let put = &mut text;
    writeln!(put, "/// Exported symbols of the driver.\npub(crate) const COUNT: usize = {};", exports.len())
        .unwrap();
    writeln!(put, "/// Their names, ascending.\npub(crate) static NAMES: [&CStr; COUNT] = [").unwrap();
    for name in &exports {
        writeln!(put, "    c\"{name}\",").unwrap();
    }
    writeln!(
        put,
        "];\n/// Where each stands.\n#[allow(non_upper_case_globals, dead_code)]\npub(crate) mod at {{"
    )
    .unwrap();
    for (name, at) in &index {
        writeln!(put, "    pub(crate) const {name}: usize = {at};").unwrap();
    }
    writeln!(put, "}}").unwrap();

    for (&name, &at) in &index {
        if hooked.contains(name) {
            continue;
        }
        match counted.get(name) {
            Some((class, arguments)) => counted_function(put, name, at, class, *arguments),
            None => jump(put, name, at),
        }
    }

    writeln!(put, "/// Our function for each symbol that is more than a jump, hooks first.").unwrap();
    writeln!(put, "pub(crate) static OURS: &[(usize, Address)] = &[").unwrap();
    for (&name, &at) in index.iter().filter(|(name, _)| hooked.contains(**name)) {
        writeln!(put, "    ({at}, Address(crate::hooks::{name} as *const ())),").unwrap();
    }
    for (&name, &at) in index.iter().filter(|(name, _)| counted.contains_key(**name)) {
        writeln!(put, "    ({at}, Address({name} as *const ())),").unwrap();
    }
    writeln!(put, "];").unwrap();
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    std::fs::write(out.join("symbols.rs"), text).expect("the build directory can be written to");
}

/// Symbols that `src/hooks` defines: lines `    cuSymbol @ …`.
fn hooked() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in std::fs::read_dir("src/hooks").expect("the hooks are there") {
        let path = file.expect("a file of the hooks").path();
        let source = std::fs::read_to_string(&path).expect("a file of the hooks can be read");
        for line in source.lines() {
            let Some((name, _)) = line.trim().split_once(" @ ") else { continue };
            if name.starts_with("cu") && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                assert!(names.insert(name.to_owned()), "{name} is hooked twice");
            }
        }
    }
    names
}

/// Symbols that are counted: their class and how many arguments they take.
fn counted(hooked: &BTreeSet<String>) -> BTreeMap<String, (&'static str, usize)> {
    let mut counted = BTreeMap::new();
    for row in cuda_table::rows().expect("the table is readable") {
        let class = match row.class {
            Class::Local => "Class::Local",
            Class::OneWay => "Class::OneWay",
            Class::Awaited => "Class::Awaited",
            Class::Refused { .. } => continue,
        };
        // Floats and structures by value travel elsewhere than words do.
        let is_word = |kind: &Kind<'_>| !matches!(kind, Kind::In(Type::Scalar("f32") | Type::Struct(_)));
        if !row.arguments.iter().all(|argument| is_word(&argument.kind)) {
            continue;
        }
        for symbol in row.symbols() {
            if !hooked.contains(&symbol.name) {
                counted.insert(symbol.name, (class, row.arguments.len()));
            }
        }
    }
    counted
}

fn counted_function(put: &mut String, name: &str, at: usize, class: &str, arguments: usize) {
    let names: Vec<String> = (0..arguments).map(|at| format!("a{at}")).collect();
    let typed: Vec<String> = names.iter().map(|name| format!("{name}: usize")).collect();
    let types = vec!["usize"; arguments].join(", ");
    write!(
        put,
        "#[unsafe(no_mangle)]\nunsafe extern \"C\" fn {name}({typed}) -> u32 {{\n\
         \x20   // SAFETY: the symbol takes {arguments} words, which are handed on as they came.\n\
         \x20   counted::call({class}, || unsafe {{\n\
         \x20       core::mem::transmute::<usize, unsafe extern \"C\" fn({types}) -> u32>(real::address({at}))({names})\n\
         \x20   }})\n}}\n",
        typed = typed.join(", "),
        names = names.join(", "),
    )
    .unwrap();
}

fn jump(put: &mut String, name: &str, at: usize) {
    let offset = 8 * at;
    write!(
        put,
        "#[unsafe(no_mangle)]\n#[unsafe(naked)]\nunsafe extern \"C\" fn {name}() {{\n\
         \x20   #[cfg(target_arch = \"x86_64\")]\n\
         \x20   core::arch::naked_asm!(\"jmp qword ptr [rip + {{table}} + {offset}]\", table = sym real::TABLE);\n\
         \x20   #[cfg(target_arch = \"aarch64\")]\n\
         \x20   core::arch::naked_asm!(\n\
         \x20       \"adrp x16, {{table}}\", \"add x16, x16, :lo12:{{table}}\", \"ldr x16, [x16, #{offset}]\", \"br x16\",\n\
         \x20       table = sym real::TABLE\n\
         \x20   );\n}}\n"
    )
    .unwrap();
}
