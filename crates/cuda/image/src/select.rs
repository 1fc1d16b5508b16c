//! Which entries a GPU has a use for.
//!
//! A cubin runs on devices of its own major version whose minor version is not lower; PTX on any device that is not
//! older. Code of architecture-specific targets (`sm_90a`) runs on that architecture alone, of family-specific ones
//! (`sm_100f`) on devices of the same major version that are not older.

use crate::{Entry, EntryKind, Fatbin, ImageError, Reach, elf, length};
use std::borrow::Cow;

/// A compute capability, such as 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Capability {
    /// 9 of 9.0.
    pub major: u32,
    /// 0 of 9.0.
    pub minor: u32,
}

impl Capability {
    /// The number architectures are written with: 90.
    pub const fn architecture(self) -> u32 {
        self.major * 10 + self.minor
    }

    /// The capability of an architecture number.
    pub const fn of_architecture(architecture: u32) -> Self {
        Self { major: architecture / 10, minor: architecture % 10 }
    }

    /// Whether a device of this capability runs an entry.
    pub fn runs(self, entry: &Entry<'_>) -> bool {
        let code = Self::of_architecture(entry.architecture);
        match (entry.kind, entry.reach) {
            (EntryKind::Other(_), _) => false,
            (_, Reach::Exact) => code == self,
            (EntryKind::Elf, _) | (EntryKind::Ptx, Reach::Family) => code.major == self.major && code <= self,
            (EntryKind::Ptx, Reach::Open) => code <= self,
        }
    }
}

/// What a device executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// Machine code in cubins.
    pub sass: bool,
    /// PTX.
    pub ptx: bool,
}

/// What an image is, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// A container.
    Fatbin,
    /// A cubin.
    Elf,
    /// Text.
    Ptx,
}

/// What `image` is; `None` when it is none of the three.
pub fn kind_of(image: &[u8]) -> Option<ImageKind> {
    match image.first_chunk::<4>() {
        Some(word) if *word == length::FATBIN_MAGIC.to_le_bytes() => Some(ImageKind::Fatbin),
        Some(word) if *word == elf::MAGIC => Some(ImageKind::Elf),
        _ => {
            // A look at the start settles it: binary data shows itself within a few bytes.
            let start = &image[..image.len().min(64)];
            let start = start.split(|&byte| byte == 0).next().unwrap_or_default();
            (!start.is_empty() && start.iter().all(|&byte| length::is_text(byte))).then_some(ImageKind::Ptx)
        }
    }
}

/// The image with only the entries that a device of this capability would use: the best cubin and the best PTX.
///
/// Cubins and texts have no entries and pass as they are. A fatbin without a usable entry becomes an empty fatbin, which
/// loads nowhere: the device, not this function, says so to the program. Entries of equal rank all stay.
pub fn select_usable(
    image: &[u8],
    capability: Capability,
    wants: Wants,
) -> Result<Cow<'_, [u8]>, ImageError> {
    match kind_of(image).ok_or(ImageError::UnknownKind)? {
        ImageKind::Elf | ImageKind::Ptx => return Ok(Cow::Borrowed(image)),
        ImageKind::Fatbin => {}
    }
    let fatbin = Fatbin::parse(image)?;
    let best = |kind: EntryKind| {
        let usable = fatbin.entries.iter().filter(|entry| entry.kind == kind && capability.runs(entry));
        usable.map(rank).max()
    };
    let best_elf = if wants.sass { best(EntryKind::Elf) } else { None };
    let best_ptx = if wants.ptx { best(EntryKind::Ptx) } else { None };
    let chosen = fatbin.entries.iter().filter(|entry| {
        let best = match entry.kind {
            EntryKind::Elf => best_elf,
            EntryKind::Ptx => best_ptx,
            EntryKind::Other(_) => None,
        };
        capability.runs(entry) && best == Some(rank(entry))
    });
    Ok(Cow::Owned(Fatbin::build(chosen)))
}

/// The nearest architecture first; at the same one, the code that was made for it alone.
fn rank(entry: &Entry<'_>) -> (u32, Reach) {
    (entry.architecture, entry.reach)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: &[u8] = include_bytes!("../samples/many.fatbin");
    const FAMILY: &[u8] = include_bytes!("../samples/family.fatbin");
    const SPECIFIC: &[u8] = include_bytes!("../samples/ptx-specific.fatbin");
    const BOTH: Wants = Wants { sass: true, ptx: true };

    #[track_caller]
    fn check(image: &[u8], architecture: u32, wants: Wants, expected: &str) {
        let selected = select_usable(image, Capability::of_architecture(architecture), wants).unwrap();
        let names: Vec<String> = Fatbin::parse(&selected).unwrap().entries.iter().map(name).collect();
        assert_eq!(names.join(" "), expected);
    }

    fn name(entry: &Entry<'_>) -> String {
        let kind = if entry.kind == EntryKind::Ptx { "compute" } else { "sm" };
        let suffix = match entry.reach {
            Reach::Open => "",
            Reach::Family => "f",
            Reach::Exact => "a",
        };
        format!("{kind}_{}{suffix}", entry.architecture)
    }

    #[test]
    fn a_hopper_takes_its_own_code_and_the_newest_ptx() {
        check(MANY, 90, BOTH, "compute_90 sm_90a");
    }

    #[test]
    fn a_lower_minor_version_serves_and_an_exact_one_does_not_reach() {
        check(MANY, 89, BOTH, "compute_80 sm_86");
        check(MANY, 87, BOTH, "compute_80 sm_86");
        check(MANY, 120, BOTH, "compute_90");
        check(MANY, 75, BOTH, "sm_75");
        check(MANY, 103, BOTH, "compute_90 sm_100");
    }

    #[test]
    fn a_soft_device_takes_only_ptx() {
        check(MANY, 90, Wants { sass: false, ptx: true }, "compute_90");
    }

    #[test]
    fn nothing_usable_leaves_an_empty_container() {
        check(MANY, 70, BOTH, "");
    }

    #[test]
    fn family_code_reaches_the_family_and_exact_code_one_device() {
        check(FAMILY, 100, BOTH, "sm_100f");
        check(FAMILY, 103, BOTH, "sm_103a");
        check(FAMILY, 121, BOTH, "sm_120");
        check(SPECIFIC, 90, BOTH, "compute_90a");
        check(SPECIFIC, 103, BOTH, "compute_100f");
        check(SPECIFIC, 120, BOTH, "");
    }

    #[test]
    fn cubins_and_texts_pass() {
        let cubin = include_bytes!("../samples/sample.cubin");
        for image in [&cubin[..], b".version 9.0\n\0"] {
            assert_eq!(select_usable(image, Capability { major: 9, minor: 0 }, BOTH).unwrap(), image);
        }
    }

    #[test]
    fn kinds_are_told_by_their_first_bytes() {
        assert_eq!(kind_of(MANY), Some(ImageKind::Fatbin));
        assert_eq!(kind_of(b"//"), Some(ImageKind::Ptx));
        assert_eq!(kind_of(b""), None);
        assert_eq!(kind_of(b"\x01"), None);
    }
}
