//! Text from strangers: nothing they send may panic, hang or take memory out of proportion.

mod common;

use proptest::prelude::*;
use ptx::{Module, Program, link};

const SAMPLES: [&str; 5] = [
    include_str!("samples/basics.ptx"),
    include_str!("samples/control.ptx"),
    include_str!("samples/grid.ptx"),
    include_str!("samples/cub.ptx"),
    include_str!("samples/numba_shared.ptx"),
];

/// Parses, links, binds and decodes; only the absence of a panic counts.
fn digest(text: &[u8]) {
    let Ok(module) = Module::parse(text) else { return };
    let Ok(linked) = link(vec![module]) else { return };
    let program = Program::bind(linked, |_| 0x1_0000_0000);
    for (variable, _) in program.variables() {
        let _ = program.initial_bytes(variable);
    }
    let names: Vec<String> = program.kernel_names().map(str::to_owned).collect();
    for name in names {
        let _ = program.kernel(&name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn changed_bytes(sample in 0..SAMPLES.len(), changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        let mut text = SAMPLES[sample].as_bytes().to_vec();
        for (place, byte) in changes {
            let place = place.index(text.len());
            text[place] = byte;
        }
        digest(&text);
    }

    #[test]
    fn cut_and_joined(sample in 0..SAMPLES.len(), a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>()) {
        let text = SAMPLES[sample].as_bytes();
        let (a, b) = (a.index(text.len()), b.index(text.len()));
        digest(&text[..a]);
        digest(&[&text[..a], &text[b..]].concat());
    }

    #[test]
    fn shuffled_words(words in prop::collection::vec(prop::sample::select(vec![
        ".entry", "k", "(", ")", "{", "}", ".reg", ".b32", ".pred", "%r<9>", ";", "%r1", "%p", "@", "!", "mov.u32", "add.cc.u32",
        "ld.param.u64", "[", "]", "+", "-", "4", ".shared", ".align", "x", ",", "=", "call", "bra", "L:", "L", "brx.idx", ".branchtargets",
        "st.global.v4.f32", "_", "|", "0f3F800000", "0x", "call.uni", ".param", ".global", ".func", "[4294967295]", "setp.eq.u32",
        "lop3.b32", "shfl.sync.up.b32", "mov.b64", "bar.red.popc.u32", "cvt.u16.u32", "prmt.b32",
    ]), 0..120)) {
        digest(words.join(" ").as_bytes());
        let inside = format!(".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 x) {{ .reg .b32 %r<9>; .reg .pred %p; {} }}", words.join(" "));
        digest(inside.as_bytes());
    }
}

#[test]
fn sizes_that_would_not_fit() {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    for text in [
        ".global .b8 x[99999999999999999999];",
        ".global .b8 x[1099511627777];",
        ".global .b64 x[4294967295][4294967295];",
        ".global .b8 x[1099511627776] = {{1},{2}};",
        ".visible .entry k() { .reg .b32 %r<4294967295>; mov.u32 %r4294967294, 1; ret; }",
        ".visible .entry k() { .local .b8 x[4000000000]; ret; }",
        ".visible .entry k() { .shared .b8 x[1099511627776]; .shared .b8 y[1099511627776]; ret; }",
        ".visible .entry k(.param .b8 x[4294967295], .param .b8 y[4294967295]) { ret; }",
        ".global .align 3 .b8 x;",
    ] {
        digest(format!("{head}{text}").as_bytes());
    }
    digest(format!("{head}.global .b32 x = {}1;", "(".repeat(100_000)).as_bytes());
    digest(format!("{head}.global .b32 x = {}1;", "-".repeat(100_000)).as_bytes());
    digest(format!("{head}.global .b32 x[2] = {}1;", "{".repeat(100_000)).as_bytes());
    digest(format!("{head}.entry k() {}", "{".repeat(100_000)).as_bytes());
    digest(format!("{head}.entry k() {{ mov.b64 {}; }}", "{".repeat(100_000)).as_bytes());
    digest(format!("{head}.entry k() {{ mov.b64 {}%x; }}", "!".repeat(100_000)).as_bytes());
}

#[test]
fn parameters_that_no_launch_could_carry_refuse_their_kernel() {
    let parameters = |bytes: &str| {
        let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
        let text = format!("{head}.entry k(.param .b8 x[{bytes}], .param .b8 y[4]) {{ ret; }}");
        let linked = link(vec![Module::parse(text.as_bytes()).unwrap()]).unwrap();
        let program = Program::bind(linked, |_| 0);
        program.kernel("k").unwrap().map(|info| info.param_bytes).map_err(|error| error.to_string())
    };
    assert_eq!(parameters("32760"), Ok(32_764));
    for bytes in ["32761", "4294967295"] {
        assert!(parameters(bytes).unwrap_err().contains("more than 32764 bytes"), "{bytes}");
    }
}

#[test]
fn kernels_that_copy_the_same_functions_over_and_over_are_refused_in_the_end() {
    let chain = |functions: usize, kernels: usize| {
        let mut text = ".version 8.0\n.target sm_80\n.address_size 64\n.func f0() { ret; }\n".to_owned();
        (1..functions).for_each(|i| text += &format!(".func f{i}() {{ call.uni f{}; ret; }}\n", i - 1));
        (0..kernels)
            .for_each(|i| text += &format!(".entry k{i}() {{ call.uni f{}; ret; }}\n", functions - 1));
        let linked = link(vec![Module::parse(text.as_bytes()).unwrap()]).unwrap();
        let program = Program::bind(linked, |_| 0);
        let names: Vec<String> = program.kernel_names().map(str::to_owned).collect();
        names.iter().filter(|name| program.kernel(name).unwrap().is_ok()).count()
    };
    // What programs do: a library that many kernels use.
    assert_eq!(chain(100, 100), 100);
    assert!((50..500).contains(&chain(1000, 1000)));
}
