//! A table that cuBLASLt asks for before its products in short types, and does not do without.
//!
//! What its 16 functions do is not public. cuBLASLt was seen to call one of them, and goes on when that one says that it
//! is not supported.

use super::table::{Table, unknown_places};

pub(super) static TABLE: Table<17> =
    Table::sized(unknown_places!(0x1734_dc26; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16));
