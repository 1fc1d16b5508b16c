//! The C prototypes, and whether a row agrees with them.

use crate::{
    argument::{Kind, Type},
    data::PROTOTYPES,
    parse::TableError,
    row::Row,
};
use std::collections::BTreeMap;

/// A type of C: a base and how many pointers lie above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CType<'a> {
    base: &'a str,
    pointers: usize,
    is_const: bool,
}

impl<'a> CType<'a> {
    fn new(text: &'a str) -> Self {
        let pointers = text.chars().filter(|c| *c == '*').count();
        let (base, is_const) = match text.strip_prefix("const ") {
            Some(base) => (base, true),
            None => (text, false),
        };
        Self { base: base.trim_end_matches('*').trim(), pointers, is_const }
    }

    /// What the table calls the base. An unknown name of CUDA is an enum.
    fn word(self) -> &'a str {
        let known = HANDLES.iter().chain(NUMBERS).chain(STRUCT_NAMES).find(|(c, _)| *c == self.base);
        match known {
            Some((_, word)) => word,
            None if Type::from_word(self.base).is_some() => self.base,
            None if self.base.starts_with("CU") => "u32",
            None => "",
        }
    }
}

const HANDLES: &[(&str, &str)] = &[
    ("CUarray", "array"),
    ("CUcontext", "ctx"),
    ("CUevent", "event"),
    ("CUfunction", "function"),
    ("CUgraph", "graph"),
    ("CUgraphExec", "graphexec"),
    ("CUgraphNode", "graphnode"),
    ("CUgreenCtx", "greenctx"),
    ("CUkernel", "kernel"),
    ("CUlibrary", "library"),
    ("CUlinkState", "linkstate"),
    ("CUmemGenericAllocationHandle", "memhandle"),
    ("CUmemoryPool", "mempool"),
    ("CUmipmappedArray", "mipmap"),
    ("CUmodule", "module"),
    ("CUstream", "stream"),
    ("CUsurfref", "surfref"),
    ("CUtexref", "texref"),
    ("CUuserObject", "userobject"),
];

const NUMBERS: &[(&str, &str)] = &[
    ("CUasyncCallbackHandle", "u64"),
    ("CUdevice", "i32"),
    ("CUdevResourceDesc", "u64"),
    ("CUdeviceptr", "u64"),
    ("CUgraphConditionalHandle", "u64"),
    ("CUlogsCallbackHandle", "u64"),
    ("CUsurfObject", "u64"),
    ("CUtexObject", "u64"),
    ("char", "u8"),
    ("cuuint32_t", "u32"),
    ("cuuint64_t", "u64"),
    ("float", "f32"),
    ("int", "i32"),
    ("size_t", "usize"),
    ("unsigned", "u32"),
    ("unsigned char", "u8"),
    ("unsigned int", "u32"),
    ("unsigned long long", "u64"),
    ("unsigned short", "u16"),
];

/// Structures whose newest form has a plain name in the header.
const STRUCT_NAMES: &[(&str, &str)] = &[
    ("CUDA_KERNEL_NODE_PARAMS", "CUDA_KERNEL_NODE_PARAMS_v2"),
    ("CUkernelNodeAttrValue", "CUlaunchAttributeValue"),
    ("CUstreamAttrValue", "CUlaunchAttributeValue"),
];

const CALLBACKS: &[(&str, &str)] = &[
    ("CUhostFn", "HostFn"),
    ("CUlogsCallback", "LogsCallback"),
    ("CUasyncCallback", "NotificationCallback"),
    ("CUoccupancyB2DSize", "BlockSizeToSharedMemory"),
    ("CUstreamCallback", "StreamCallback"),
];

/// Every symbol of a covered row takes what its prototype says.
pub fn check_prototypes(rows: &[Row<'_>]) -> Vec<TableError> {
    let prototypes: BTreeMap<&str, Vec<CType<'_>>> = PROTOTYPES
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, types)| {
            (name, types.split(',').map(str::trim).filter(|ty| !ty.is_empty()).map(CType::new).collect())
        })
        .collect();
    let mut faults = Vec::new();
    for row in rows.iter().filter(|row| row.body.is_some()) {
        for symbol in row.symbols() {
            let what = match prototypes.get(symbol.name.as_str()) {
                None => Some("has no prototype".to_owned()),
                Some(types) => disagreement(row, types),
            };
            if let Some(what) = what {
                let what = format!("{}: {what}", symbol.name);
                faults.push(TableError { group: row.group.to_owned(), line: row.line, what });
            }
        }
    }
    faults
}

fn disagreement(row: &Row<'_>, types: &[CType<'_>]) -> Option<String> {
    if row.arguments.len() != types.len() {
        return Some(format!("takes {} arguments in C, {} here", types.len(), row.arguments.len()));
    }
    let mut pairs = row.arguments.iter().zip(types);
    pairs
        .find(|(argument, ty)| !agrees(&argument.kind, **ty))
        .map(|(argument, ty)| format!("{} is {} with {} pointers in C", argument.name, ty.base, ty.pointers))
}

fn agrees(kind: &Kind<'_>, c: CType<'_>) -> bool {
    let is_value = |word: &str| c.pointers == 0 && c.word() == word;
    // A pointer to a pointer is a place for, or an array of, addresses.
    let points_to = |ty: Type<'_>| match ty {
        Type::Scalar("u64") if c.pointers == 2 => true,
        Type::Scalar(word) | Type::Handle(word) | Type::Struct(word) => c.pointers == 1 && c.word() == word,
    };
    let is_bytes = c.base == "void" && c.pointers == 1;
    // `const char **` is a place for the address of a text, which is not written through.
    let is_writable = !c.is_const || c.pointers == 2;
    match *kind {
        Kind::In(Type::Scalar(word) | Type::Struct(word)) => is_value(word),
        Kind::In(Type::Handle(_)) => false,
        Kind::Stream => is_value("stream"),
        Kind::Handle(word) => is_value(word),
        Kind::Out { ty, .. } | Kind::InOut { ty, .. } | Kind::Outs { ty, .. } | Kind::InOuts { ty, .. } => {
            points_to(ty) && is_writable
        }
        Kind::Ref { ty, .. } | Kind::Slice { ty, .. } | Kind::Array(ty) => points_to(ty),
        Kind::Text { .. } => c == CType { base: "char", pointers: 1, is_const: true },
        Kind::Upload { .. } | Kind::Image | Kind::InAny => is_bytes,
        Kind::Download { .. } | Kind::OutAny => is_bytes && !c.is_const,
        Kind::Opaque => c.base == "void" && c.pointers > 0,
        Kind::Callback { ty, .. } => c.pointers == 0 && CALLBACKS.contains(&(c.base, ty)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_width_is_noticed() {
        let rows =
            crate::parse("memory", "cuMemAlloc_v2 awaited memory::alloc\n    out p: u64\n    in n: u32\n");
        let faults = check_prototypes(&rows.expect("readable"));
        assert_eq!(faults[0].what, "cuMemAlloc_v2: n is size_t with 0 pointers in C");
    }

    #[test]
    fn a_result_is_not_written_through_a_const_pointer() {
        let ty = Type::Struct("CUmemAllocationProp");
        let c = CType::new("const CUmemAllocationProp *");
        assert!(!agrees(&Kind::Out { ty, optional: false }, c));
        assert!(agrees(&Kind::Ref { ty, optional: false }, c));
    }

    #[test]
    fn a_missing_argument_is_noticed() {
        let rows = crate::parse("memory", "cuMemAlloc_v2 awaited memory::alloc\n    out p: u64\n");
        let faults = check_prototypes(&rows.expect("readable"));
        assert_eq!(faults[0].what, "cuMemAlloc_v2: takes 2 arguments in C, 1 here");
    }
}
