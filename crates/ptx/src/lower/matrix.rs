//! Matrix instructions of a warp.

use super::{Lower, Opcode};
use crate::{error::Result, syntax::Inst};

/// A decoded matrix instruction.
pub(crate) struct Matrix {}

impl Lower<'_> {
    pub(super) fn matrix(&mut self, _inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        self.refuse(op, "matrix instructions are not supported")
    }
}
