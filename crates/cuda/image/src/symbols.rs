//! Names that an image gives to memory: the variables of its module.
//!
//! A driver finds a variable by its name but lists none, so the names come from the image itself: from the symbol table
//! of a cubin, from the directives of PTX. They are candidates; the driver says which of them exist.

use crate::{
    EntryKind, Fatbin, ImageKind,
    bytes::{u16_at, u32_at, u64_at},
    kind_of,
};
use memchr::memmem;
use std::borrow::Cow;

const WHAT: &str = "ELF symbols";
const SECTION_HEADER_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
/// `SHT_SYMTAB`, and `STT_OBJECT`.
const SYMBOL_TABLE: u32 = 2;
const OBJECT: u8 = 1;
/// No module has more; a hostile one may claim so.
const NAMES_MAX: usize = 1 << 16;

/// What an image names, as far as it can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    /// Variables that others may name, each once.
    pub variables: Vec<String>,
    /// Whether its code may print.
    pub prints: bool,
    /// Whether its code may allocate memory of the device's heap: it names `malloc`.
    pub allocates: bool,
}

impl Symbols {
    /// Of a cubin, PTX, or the entries of a fatbin.
    pub fn of(image: &[u8]) -> Self {
        let mut symbols = Self::default();
        symbols.add(image);
        symbols.variables.sort_unstable();
        symbols.variables.dedup();
        symbols
    }

    fn add(&mut self, image: &[u8]) {
        match kind_of(image) {
            Some(ImageKind::Elf) => {
                self.prints |= mentions(image, b"vprintf");
                // A whole name in the table of names.
                self.allocates |= mentions(image, b"\0malloc\0");
                // What cannot be read has no names that we can tell; the driver judges the image itself.
                let _ = self.add_elf(image);
            }
            Some(ImageKind::Ptx) => {
                self.prints |= mentions(image, b"vprintf");
                self.allocates |= names(image, b"malloc");
                self.add_ptx(&String::from_utf8_lossy(image));
            }
            Some(ImageKind::Fatbin) => {
                let Ok(fatbin) = Fatbin::parse(image) else { return };
                for entry in &fatbin.entries {
                    if !matches!(entry.kind, EntryKind::Elf | EntryKind::Ptx) {
                        continue;
                    }
                    if let Ok(payload) = entry.contents() {
                        let payload: Cow<'_, [u8]> = payload;
                        // An entry is never a container itself.
                        if kind_of(&payload) != Some(ImageKind::Fatbin) {
                            self.add(&payload);
                        }
                    }
                }
            }
            None => {}
        }
    }

    fn add_elf(&mut self, image: &[u8]) -> Result<(), crate::ImageError> {
        let sections = u64_at(image, 40, WHAT)? as usize;
        let (entry_bytes, count) = (u16_at(image, 58, WHAT)? as usize, u16_at(image, 60, WHAT)? as usize);
        if entry_bytes < SECTION_HEADER_BYTES {
            return Ok(());
        }
        let section = |index: usize| image.get(sections.checked_add(index.checked_mul(entry_bytes)?)?..);
        for index in 0..count {
            let Some(header) = section(index) else { break };
            if u32_at(header, 4, WHAT)? != SYMBOL_TABLE {
                continue;
            }
            let (at, bytes) = (u64_at(header, 24, WHAT)? as usize, u64_at(header, 32, WHAT)? as usize);
            let Some(table) = at.checked_add(bytes).and_then(|end| image.get(at..end)) else { continue };
            let Some(strings) = section(u32_at(header, 40, WHAT)? as usize) else { continue };
            let strings = u64_at(strings, 24, WHAT)? as usize;
            for symbol in table.chunks_exact(SYMBOL_BYTES) {
                // Whatever the binding: CUDA's compiler makes the variables of a whole program local.
                if symbol[4] & 0xf != OBJECT || self.variables.len() >= NAMES_MAX {
                    continue;
                }
                let name = strings.checked_add(u32_at(symbol, 0, WHAT)? as usize);
                let Some(rest) = name.and_then(|name| image.get(name..)) else { continue };
                let name = rest.split(|&byte| byte == 0).next().unwrap_or_default();
                if let Ok(name) = std::str::from_utf8(name)
                    && !name.is_empty()
                    && !name.starts_with('.')
                {
                    self.variables.push(name.to_owned());
                }
            }
        }
        Ok(())
    }

    /// `.visible .global .align 4 .b8 name[16];` and the like, outside of functions.
    fn add_ptx(&mut self, text: &str) {
        let mut depth = 0usize;
        for line in text.lines() {
            let line = line.split("//").next().unwrap_or_default();
            if depth == 0
                && (line.contains(".global") || line.contains(".const"))
                && !line.contains(".func")
                && !line.contains(".entry")
                && self.variables.len() < NAMES_MAX
            {
                let declared = line.split(['=', ';', '[']).next().unwrap_or_default();
                if let Some(name) = declared.split_whitespace().next_back()
                    && !name.starts_with('.')
                {
                    self.variables.push(name.to_owned());
                }
            }
            let opened = line.matches('{').count();
            depth = (depth + opened).saturating_sub(line.matches('}').count());
        }
    }
}

/// Whether a text has `name` as a whole word.
fn names(text: &[u8], name: &[u8]) -> bool {
    let is_of_a_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%');
    text.split(|byte| !is_of_a_name(byte)).any(|word| word == name)
}

fn mentions(image: &[u8], word: &[u8]) -> bool {
    memmem::find(image, word).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_allocates_is_told_by_the_whole_name() {
        let ptx = |line: &str| Symbols::of(format!(".version 8.0\n.target sm_80\n{line}\n").as_bytes());
        assert!(ptx(".extern .func (.param .b64 out) malloc(.param .b64 bytes);").allocates);
        assert!(!ptx(".visible .entry malloc_free() { ret; }").allocates);
        assert!(!ptx(".visible .entry my_malloc() { ret; }").allocates);
    }

    #[test]
    fn ptx_names_its_variables() {
        let text = "\
.version 8.0
.target sm_80
.address_size 64
.visible .global .align 4 .b8 table[16] = {1, 2, 3, 4};
.global .align 8 .u64 counter;
.visible .const .align 4 .f32 scale = 0f3F800000; // a comment .global x
.extern .shared .align 16 .b8 dynamic[];
.visible .entry kernel(.param .u64 p)
{
\t.reg .u64 %rd<2>;
\tld.global.u64 %rd1, [counter];
\tret;
}
";
        let symbols = Symbols::of(text.as_bytes());
        assert_eq!(symbols.variables, ["counter", "scale", "table"]);
        assert!(!symbols.prints);
    }

    #[test]
    fn a_cubin_names_its_variables() {
        let symbols = Symbols::of(include_bytes!("../samples/sample.cubin"));
        assert!(symbols.variables.iter().all(|name| !name.starts_with('.')));
        assert!(!symbols.variables.is_empty(), "{symbols:?}");
    }

    #[test]
    fn broken_images_name_nothing() {
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(64, 0xff);
        assert_eq!(Symbols::of(&elf), Symbols::default());
        assert_eq!(Symbols::of(b""), Symbols::default());
    }
}
