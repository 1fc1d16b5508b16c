//! Texts that are long, not wrong: what they cost must grow with their length, not with its square.
//!
//! They are made when needed, since as files they would be most of the corpus.

use super::Seed;

/// How many of each thing.
const COUNT: usize = 4000;

fn each(make: impl Fn(usize) -> String) -> String {
    (0..COUNT).map(make).collect()
}

/// All of them, for `ptx_load`.
pub fn bulk() -> Vec<Seed> {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    let kernel = |body: String| {
        format!(
            "{head}.visible .entry k(.param .u64 p)\n{{\n.reg .pred %p<4>;\n.reg .b32 %r<8>;\n{body}\nret;\n}}\n"
        )
    };
    // A quarter each: functions in a chain, and kernels that call its end.
    let quarter = COUNT / 4;
    let chain: String =
        (1..quarter).map(|i| format!(".func f{i}() {{ call.uni f{}; ret; }}\n", i - 1)).collect();
    let callers: String =
        (0..quarter).map(|i| format!(".entry k{i}() {{ call.uni f{}; ret; }}\n", quarter - 1)).collect();
    let texts = [
        ("variables", format!("{head}{}", each(|i| format!(".global .u32 v{i};\n")))),
        ("declarations", format!("{head}{}", each(|i| format!(".extern .func f{i}();\n")))),
        ("functions", format!("{head}{}", each(|i| format!(".func f{i}() {{ ret; }}\n")))),
        ("kernels", format!("{head}{}", each(|i| format!(".entry k{i}() {{ ret; }}\n")))),
        ("kernels-calling-a-chain", format!("{head}.func f0() {{ ret; }}\n{chain}{callers}")),
        ("aliases", format!("{head}.func f() {{ ret; }}\n{}", each(|i| format!(".alias a{i}, f;\n")))),
        ("branches", kernel(each(|i| format!("L{i}: @%p1 bra L{};\n", i * 7919 % COUNT)))),
        ("nested-loops", kernel(each(|i| format!("L{i}:\n")) + &each(|i| format!("@%p1 bra L{i};\n")))),
        (
            "live-registers",
            kernel(
                format!(".reg .b32 %x<{COUNT}>;\n")
                    + &each(|i| format!("mov.u32 %x{i}, %r1;\n"))
                    + &each(|i| format!("add.u32 %r1, %r1, %x{i};\n")),
            ),
        ),
        (
            "registers-across-loops",
            kernel(
                format!(".reg .b32 %x<{COUNT}>;\n")
                    + &each(|i| format!("L{i}: mov.u32 %x{i}, %x{};\n@%p1 bra L{i};\n", i * 31 % COUNT)),
            ),
        ),
        ("scopes", kernel(each(|i| format!("{{ .reg .b32 %y{i}; mov.u32 %y{i}, 1; }}\n")))),
        ("shared", kernel(each(|i| format!(".shared .b8 s{i}[4];\n")))),
        ("constants", kernel(each(|i| format!("add.u32 %r1, %r1, {i};\n")))),
        ("initialiser", format!("{head}.global .b8 x[{COUNT}] = {{{}1}};", "1,".repeat(COUNT - 1))),
        ("expression", format!("{head}.global .u32 x = {}1;", "1+".repeat(COUNT))),
        ("comments", "/* */".repeat(COUNT)),
        ("lines", format!("{head}{}", each(|i| format!(".loc 1 {i} 0\n")))),
    ];
    texts.into_iter().map(|(name, text)| Seed::new("ptx_load", format!("bulk-{name}"), text)).collect()
}
