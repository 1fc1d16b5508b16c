//! Video instructions: refused, by name.

use super::{Lower, Opcode};
use crate::{error::Result, syntax::Inst};

impl Lower<'_> {
    pub(super) fn video(&mut self, _inst: &Inst, op: &Opcode<'_>) -> Result<()> {
        self.refuse(op, "video instructions are not supported")
    }
}
