//! Parts of a device's multiprocessors, and green contexts, whose streams run on such a part.

use crate::ids::GreenId;

/// A split makes so many groups at most.
pub const SM_GROUPS_MAX: u32 = 1024;
/// A green context is made of so many parts at most.
pub const SM_PARTS_MAX: usize = 64;

wire_struct! {
    /// What the driver says of some multiprocessors: `CUdevSmResource`.
    #[derive(Copy, Eq, Default)]
    pub struct SmInfo {
        /// How many they are.
        pub count: u32,
        /// The smallest part that they can be split into, if the driver says it.
        pub least: u32,
        /// Parts have a multiple of so many, if the driver says it.
        pub alignment: u32,
        /// `CU_DEV_SM_RESOURCE_GROUP_*`.
        pub flags: u32,
    }
}

wire_struct! {
    /// How multiprocessors are split: the arguments of cuDevSmResourceSplitByCount.
    #[derive(Copy, Eq)]
    pub struct SmSplit {
        /// Wanted groups; 0 asks only how many there could be.
        pub groups: u32,
        /// `CU_DEV_SM_RESOURCE_SPLIT_*`.
        pub flags: u32,
        /// Multiprocessors of a group, at least.
        pub least: u32,
    }
}

wire_struct! {
    /// What came of a split.
    #[derive(Copy, Eq)]
    pub struct SmGroups {
        /// Groups that were made, or could be.
        pub groups: u32,
        /// Each of them.
        pub group: SmInfo,
        /// What is left.
        pub rest: Option<SmInfo>,
    }
}

wire_struct! {
    /// A part of the multiprocessors, as it can be had again: drivers split the same in the same way.
    #[derive(Copy, Eq)]
    pub struct SmPart {
        /// The green context whose multiprocessors they are; the whole device's if there is none.
        pub of: Option<GreenId>,
        /// How they were split; not at all if there is none.
        pub split: Option<SmSplit>,
        /// The group; the rest if there is none.
        pub group: Option<u32>,
    }
}
