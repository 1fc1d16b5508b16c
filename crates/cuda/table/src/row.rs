//! A row: one function of the driver API, and the symbols it is exported under.

use crate::argument::{Argument, Kind};

/// One function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// The name of its file.
    pub group: &'a str,
    /// Where it stands there, for messages.
    pub line: usize,
    /// The symbol that names it.
    pub symbol: &'a str,
    /// Older symbols with the same arguments and meaning.
    pub also: Vec<&'a str>,
    /// The suffix of the symbols for programs whose default stream is per thread, if there are such.
    pub variant: Option<Flavour>,
    /// What becomes of a call.
    pub class: Class<'a>,
    /// Callable before cuInit.
    pub preinit: bool,
    /// `module::function` under `crate::api` of libcuda; none when refused.
    pub body: Option<&'a str>,
    /// The commands a call may send.
    pub via: Vec<Via<'a>>,
    /// A sentence for the coverage page.
    pub note: Option<&'a str>,
    /// What it takes, in the order of C.
    pub arguments: Vec<Argument<'a>>,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class<'a> {
    /// Answered from the client's own state.
    Local,
    /// Sent without waiting; an error surfaces later, as CUDA's asynchronous errors do.
    OneWay,
    /// The caller waits for an answer.
    Awaited,
    /// Always an error.
    Refused {
        /// Its name, `CUDA_ERROR_…`.
        code: &'a str,
        /// Why, for people.
        reason: &'a str,
    },
}

/// Which default stream a symbol means, and how its name says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// `_ptsz`: stream 0 of the stream argument is the thread's own default stream.
    Ptsz,
    /// `_ptds`: a function without stream argument works on the thread's own default stream.
    Ptds,
}

impl Flavour {
    /// The suffix, with its underscore.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Ptsz => "_ptsz",
            Self::Ptds => "_ptds",
        }
    }
}

/// A command that a call may send, `Enqueue(Launch)` in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Via<'a> {
    /// The command.
    pub command: &'a str,
    /// For `Enqueue`, the work it carries.
    pub op: Option<&'a str>,
}

/// One exported symbol of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// What the linker sees.
    pub name: String,
    /// Stream 0 means the thread's own default stream rather than the context's legacy one.
    pub per_thread: bool,
}

impl Row<'_> {
    /// Every symbol the row stands for.
    pub fn symbols(&self) -> Vec<Symbol> {
        let mut symbols = Vec::new();
        for base in core::iter::once(&self.symbol).chain(&self.also) {
            symbols.push(Symbol { name: (*base).to_owned(), per_thread: false });
            if let Some(flavour) = self.variant {
                symbols.push(Symbol { name: format!("{base}{}", flavour.suffix()), per_thread: true });
            }
        }
        symbols
    }

    /// Whether the body is told which default stream the symbol means: it has variants, and no stream argument that
    /// could carry the answer. The stream may be in a structure (cuLaunchKernelEx) or nowhere (cuMemcpy).
    pub fn takes_default_stream(&self) -> bool {
        self.variant.is_some() && !self.arguments.iter().any(|argument| argument.kind == Kind::Stream)
    }
}
