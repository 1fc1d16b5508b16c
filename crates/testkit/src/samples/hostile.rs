//! Inputs that lie: cut short, lengths that promise what is not there, nesting without end, sizes without measure.

use super::{Seed, command_frame, commands, golden};
use cuda_image::{Compression, Fatbin};
use cuda_wire::{COMMAND_BYTES_MAX, CommandHeader, HANDSHAKE_BYTES_MAX, NoticeHeader, Wire};

/// A small fatbin with PTX in it, uncompressed, and two compressed ones.
const PLAIN: &[u8] = include_bytes!("../../../cuda/image/samples/ptx-none.fatbin");
const LZ4: &[u8] = include_bytes!("../../../cuda/image/samples/ptx-speed.fatbin");
const ZSTD: &[u8] = include_bytes!("../../../cuda/image/samples/ptx-size.fatbin");
const SMALL_PTX: &str = include_str!("../../../cuda/driver-soft/tests/samples/callee.ptx");

/// All of them.
pub fn hostile() -> Vec<Seed> {
    [frames(), lists(), addresses(), elf_files(), fatbins(), objects(), texts()].concat()
}

/// Every golden frame of a few targets, cut in the middle and one byte before its end, or with a byte too many.
fn frames() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for seed in golden() {
        let varied = match seed.target {
            "command_body" => seed.name.starts_with("graph-instantiate") || seed.name.starts_with("link"),
            "command_stream" => seed.name.starts_with("module-load"),
            "handshake" | "preamble" | "notice" | "chunk" | "module_info" | "device_status" => true,
            _ => false,
        };
        if varied {
            let bytes = &seed.bytes;
            let longer = [&bytes[..], &[0]].concat();
            for (how, bytes) in
                [("half", &bytes[..bytes.len() / 2]), ("short", &bytes[..bytes.len() - 1]), ("long", &longer)]
            {
                seeds.push(Seed::new(seed.target, format!("{how}-{}", seed.name), bytes));
            }
        }
    }
    for target in
        ["command_stream", "command_body", "op", "graph_node", "module_info", "link_output", "reply"]
    {
        seeds.push(Seed::new(target, "nothing.bin", b"".as_slice()));
        seeds.push(Seed::new(target, "all-ones.bin", [0xff; 96].as_slice()));
    }
    seeds
}

/// Counts and lengths over what follows them, over their bounds, and at their bounds.
fn lists() -> Vec<Seed> {
    let mut seeds = Vec::new();
    let header = |bytes, reserved| CommandHeader { bytes, opcode: 0x50, reserved, call: 1, reserved2: 0 };
    for (name, header) in [
        ("length-over-bound", header(COMMAND_BYTES_MAX + 1, 0)),
        ("length-at-bound", header(COMMAND_BYTES_MAX, 0)),
        ("length-most", header(u32::MAX, 0)),
        ("reserved", header(0, 1)),
    ] {
        seeds.push(Seed::new("command_stream", format!("{name}.bin"), header.to_bytes()));
    }
    let (_, goodbye) = commands().into_iter().find(|(name, _)| name == "goodbye").expect("it is a command");
    let mut frame = command_frame(&goodbye, 0);
    frame[4..6].copy_from_slice(&0xffffu16.to_le_bytes());
    seeds.push(Seed::new("command_stream", "unknown-opcode.bin", frame));
    // exec, context, then the count of nodes; behind it: no node at all, or empty nodes without edges.
    let graph = |count: u32, nodes: &[u8]| {
        [&[0x50, 0, 1, 0, 0, 0, 0, 0, 0, 0][..], &count.to_le_bytes(), nodes].concat()
    };
    let empty_nodes: Vec<u8> = [0, 0, 0, 0, 0, 1].repeat(2000);
    seeds.push(Seed::new("command_body", "graph-no-nodes.bin", graph(u32::MAX, &[])));
    seeds.push(Seed::new("command_body", "graph-2000-nodes.bin", graph(2000, &empty_nodes)));
    seeds.push(Seed::new("command_body", "graph-more-nodes.bin", graph(12_000, &empty_nodes)));
    seeds.push(Seed::new("command_body", "graph-million-nodes.bin", graph(1 << 20, &empty_nodes)));
    // A list that is as long as its frame has bytes, so that the count passes, of elements that are longer.
    seeds.push(Seed::new(
        "module_info",
        "as-many-as-bytes.bin",
        [&4000u32.to_le_bytes()[..], &[0; 4000]].concat(),
    ));
    seeds.push(Seed::new("op", "memory-ops-most.bin", b"\x0b\xff\xff\xff\xff".as_slice()));
    seeds.push(Seed::new("op", "bool-two.bin", [&[1][..], &[2; 200]].concat()));
    seeds.push(Seed::new(
        "module_info",
        "not-text.bin",
        b"\x01\0\0\0\x02\0\0\0\xff\xfe\0\0\0\0\0\0\0\0\0\0\0\0".as_slice(),
    ));
    for (name, length) in
        [("none", 0), ("at-bound", HANDSHAKE_BYTES_MAX), ("over-bound", HANDSHAKE_BYTES_MAX + 1)]
    {
        seeds.push(Seed::new(
            "handshake",
            format!("length-{name}.bin"),
            [&length.to_le_bytes()[..], &[1]].concat(),
        ));
    }
    for (name, bytes) in [("at-bound", NoticeHeader::BODY_MAX), ("over-bound", NoticeHeader::BODY_MAX + 1)] {
        let header = NoticeHeader { bytes, reserved: 0 };
        seeds.push(Seed::new("notice", format!("length-{name}.bin"), header.to_bytes()));
    }
    seeds.push(Seed::new(
        "preamble",
        "http.bin",
        b"GET / HTTP/1.1\r\nHost: gpu-box\r\nAccept: */*\r\nUser-Agent: browser/1\r\n\r\n".as_slice(),
    ));
    seeds.push(Seed::new(
        "preamble",
        "tls.bin",
        [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], &[7; 60]].concat(),
    ));
    seeds
}

fn addresses() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (index, text) in [
        "gpu-box:7400",
        "tls:10.0.0.7:7400",
        "tcp:[::1]:0",
        "unix:/run/dxpu.sock",
        "shm:/run/dxpu.sock",
        "",
        ":",
        "tls:",
        "tcp:[",
        "tcp:[]:1",
        "tcp:[::1]",
        "::1:80",
        "host:65536",
        "host:+1",
        "unix:relative",
        "unix:/\0",
        "tls:tls:h:1",
        "tcp:[fe80::1%eth0]:1",
        "ho st:1",
        "höst:1",
        "unix:/a/../b//c",
    ]
    .into_iter()
    .enumerate()
    {
        seeds.push(Seed::new("address", format!("text-{index:02}.txt"), text));
    }
    let digits = "0123456789abcdef".repeat(4);
    let pairs: Vec<&str> = (0..32).map(|at| &digits[2 * at..2 * at + 2]).collect();
    seeds.push(Seed::new("fingerprint", "plain.txt", digits.as_str()));
    seeds.push(Seed::new("fingerprint", "colons.txt", pairs.join(":")));
    seeds.push(Seed::new("fingerprint", "short.txt", &digits[..63]));
    seeds.push(Seed::new("fingerprint", "letters.txt", "é".repeat(64)));
    seeds
}

/// An ELF file with these sections.
fn elf(sections: &[(&str, &[u8])]) -> Vec<u8> {
    let mut names = vec![0];
    let mut image = vec![0; 64];
    let mut headers = vec![0; 64];
    let mut add = |image: &mut Vec<u8>, name: usize, kind: u32, bytes: &[u8]| {
        let mut header = [0; 64];
        header[..4].copy_from_slice(&(name as u32).to_le_bytes());
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[24..32].copy_from_slice(&(image.len() as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        image.extend_from_slice(bytes);
        headers.extend_from_slice(&header);
    };
    for (name, bytes) in sections {
        let at = names.len();
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        add(&mut image, at, 1, bytes);
    }
    add(&mut image, 0, 3, &names);
    let at = image.len() as u64;
    image.extend_from_slice(&headers);
    image[..6].copy_from_slice(b"\x7fELF\x02\x01");
    image[40..48].copy_from_slice(&at.to_le_bytes());
    image[58..60].copy_from_slice(&64u16.to_le_bytes());
    image[60..62].copy_from_slice(&(sections.len() as u16 + 2).to_le_bytes());
    image[62..64].copy_from_slice(&(sections.len() as u16 + 1).to_le_bytes());
    image
}

fn elf_files() -> Vec<Seed> {
    let good = elf(&[(".text", b"abc"), (".data", b"defgh")]);
    let change = |at: usize, bytes: &[u8]| {
        let mut image = good.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        image
    };
    let mut seeds = Vec::new();
    for (name, image) in [
        ("good", good.clone()),
        ("sections-far", change(40, &u64::MAX.to_le_bytes())),
        ("sections-just-wrap", change(40, &(u64::MAX - 127).to_le_bytes())),
        ("sections-many", change(60, &u16::MAX.to_le_bytes())),
        ("sections-small", change(58, &8u16.to_le_bytes())),
        ("sections-themselves", change(40, &0u64.to_le_bytes())),
        ("programs-far", change(32, &[0xff; 8])),
        ("programs-many", change(54, &[56, 0, 0xff, 0xff])),
        ("header-only", good[..64].to_vec()),
        ("half-header", good[..33].to_vec()),
    ] {
        seeds.push(Seed::new("elf_length", format!("{name}.elf"), image.clone()));
        seeds.push(Seed::new("image_length", format!("{name}.elf"), image));
    }
    seeds.push(Seed::new("image_length", "text.ptx", b".version 8.0\n\0behind".as_slice()));
    seeds.push(Seed::new("image_length", "text-without-end.ptx", b".version 8.0\n".as_slice()));
    seeds
}

fn fatbins() -> Vec<Seed> {
    let mut seeds = Vec::new();
    let change = |image: &[u8], at: usize, bytes: &[u8]| {
        let mut image = image.to_vec();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        image
    };
    for (name, image) in [
        ("entries-most", change(PLAIN, 8, &u64::MAX.to_le_bytes())),
        ("entries-none", change(PLAIN, 8, &0u64.to_le_bytes())),
        ("header-short", change(PLAIN, 6, &15u16.to_le_bytes())),
        ("header-long", change(PLAIN, 6, &u16::MAX.to_le_bytes())),
        ("entry-header-short", change(PLAIN, 16 + 4, &63u32.to_le_bytes())),
        ("entry-header-most", change(PLAIN, 16 + 4, &u32::MAX.to_le_bytes())),
        ("payload-most", change(PLAIN, 16 + 8, &u32::MAX.to_le_bytes())),
        ("compressed-most", change(LZ4, 16 + 16, &u32::MAX.to_le_bytes())),
        ("lz4-claims-gigabyte", change(LZ4, 16 + 56, &(1u64 << 30).to_le_bytes())),
        ("lz4-claims-less", change(LZ4, 16 + 56, &7u64.to_le_bytes())),
        ("zstd-claims-most", change(ZSTD, 16 + 56, &u64::MAX.to_le_bytes())),
        ("zstd-claims-less", change(ZSTD, 16 + 56, &7u64.to_le_bytes())),
        ("flags-all", change(ZSTD, 16 + 40, &u64::MAX.to_le_bytes())),
        ("architecture-most", change(PLAIN, 16 + 28, &u32::MAX.to_le_bytes())),
        ("header-only", PLAIN[..16].to_vec()),
    ] {
        seeds.push(Seed::new("fatbin", format!("{name}.fatbin"), image));
    }
    for (name, image) in [("lz4", LZ4), ("zstd", ZSTD)] {
        let entry = Fatbin::parse(image).expect("a sample").entries[0];
        let how = u8::from(entry.compression() == Ok(Compression::Zstd));
        // The payload begins behind the entry's header, whose length stands at 4.
        let start = u32::from_le_bytes(std::array::from_fn(|at| entry.raw[4 + at])) as usize;
        let length = u32::from_le_bytes(std::array::from_fn(|at| entry.raw[16 + at])) as usize;
        let payload = &entry.raw[start..start + length];
        seeds.push(Seed::new("fatbin_entry", format!("{name}.bin"), [&[how, 8][..], payload].concat()));
        seeds.push(Seed::new(
            "fatbin_entry",
            format!("{name}-power.bin"),
            [&[how | 4, 12][..], payload].concat(),
        ));
    }
    // Zstandard: a frame whose window is as large as it can be said, and blocks that repeat one byte 128 KiB long.
    let bomb =
        [&[5u8, 20, 0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x50][..], &[0x02, 0x00, 0x10, 0x41].repeat(300)].concat();
    seeds.push(Seed::new("fatbin_entry", "zstd-repeats.bin", bomb));
    let window = [5u8, 20, 0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xff, 0x03, 0x00, 0x10, 0x41];
    seeds.push(Seed::new("fatbin_entry", "zstd-window-most.bin", window));
    // LZ4: a length that never ends, an offset before the start, an offset of nothing.
    let endless = [&[4u8, 20, 0xf0][..], &[0xff; 200]].concat();
    seeds.push(Seed::new("fatbin_entry", "lz4-endless-length.bin", endless));
    seeds.push(Seed::new("fatbin_entry", "lz4-before-start.bin", [4u8, 10, 0x1f, b'a', 0xff, 0xff, 0x00]));
    seeds.push(Seed::new("fatbin_entry", "lz4-offset-zero.bin", [4u8, 10, 0x1f, b'a', 0x00, 0x00, 0x00]));
    seeds
}

/// Linker inputs, each with its `CUjitInputType` in front.
fn objects() -> Vec<Seed> {
    let text = SMALL_PTX.as_bytes();
    let fatbins = [PLAIN, &[0; 24], LZ4].concat();
    let input = |kind: u8, bytes: &[u8]| [&[kind][..], bytes].concat();
    let linked = elf(&[(".dxpu.ptx", text)]);
    let object = elf(&[(".text", b"\x90"), (".nv_fatbin", &fatbins)]);
    let huge = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .global .b8 x[1099511627775];\n";
    let mut seeds = vec![
        Seed::new("soft_link", "text.bin", input(1, text)),
        Seed::new("soft_link", "fatbin.bin", input(2, PLAIN)),
        Seed::new("soft_link", "linked.bin", input(0, &linked)),
        Seed::new("soft_link", "object.bin", input(3, &object)),
        Seed::new("soft_link", "object-without-code.bin", input(3, &elf(&[(".text", b"\x90")]))),
        Seed::new(
            "soft_link",
            "twice-the-same.bin",
            input(0, &elf(&[(".dxpu.ptx", text), (".dxpu.ptx", text)])),
        ),
        Seed::new("soft_link", "huge-variable.bin", input(1, huge.as_bytes())),
        Seed::new("soft_link", "unknown-kind.bin", input(9, text)),
    ];
    for (name, image, kind) in [("linked", &linked, 0), ("object", &object, 3)] {
        for (how, at) in [("names", 62), ("count", 60), ("size", 58), ("place", 40)] {
            let mut image = image.clone();
            image[at..at + 2].copy_from_slice(&[0xff, 0xff]);
            seeds.push(Seed::new("soft_link", format!("{name}-bad-{how}.bin"), input(kind, &image)));
        }
    }
    seeds
}

fn texts() -> Vec<Seed> {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    let kernel = |body: &str| {
        format!(
            "{head}.visible .entry k(.param .u64 p, .param .u32 n)\n{{\n.reg .pred %p<4>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<8>;\n{body}\nret;\n}}\n"
        )
    };
    let printf = |format: &str, arguments: &str| {
        let bytes: Vec<String> = format.bytes().chain([0]).map(|byte| byte.to_string()).collect();
        format!(
            "{head}.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n.global .align 1 .b8 text[{}] = {{{}}};\n\
             .visible .entry k()\n{{\n.local .align 8 .b8 args[64];\n.reg .b64 %rd<8>;\n.reg .b32 %r<4>;\n{arguments}\n\
             mov.u64 %rd1, args;\ncvta.local.u64 %rd2, %rd1;\nmov.u64 %rd3, text;\ncvta.global.u64 %rd4, %rd3;\n{{\n\
             .param .b64 f;\nst.param.b64 [f], %rd4;\n.param .b64 a;\nst.param.b64 [a], %rd2;\n.param .b32 r;\n\
             call.uni (r), vprintf, (f, a);\nld.param.b32 %r1, [r];\n}}\nret;\n}}\n",
            bytes.len(),
            bytes.join(","),
        )
    };
    let plain = [
        ("registers-most", format!("{head}.entry k() {{ .reg .b32 %r<4294967295>; mov.u32 %r4294967294, 1; ret; }}")),
        ("registers-overflow", format!("{head}.entry k() {{ .reg .b32 %r<99999999999999999999>; ret; }}")),
        ("registers-many-names", format!("{head}.entry k() {{ {} ret; }}", ".reg .b64 %a<65536>;".repeat(60))),
        ("array-most", format!("{head}.global .b8 x[18446744073709551615];")),
        ("array-product", format!("{head}.global .b64 x[4294967295][4294967295][4294967295];")),
        ("array-dimensions", format!("{head}.global .b8 x{};", "[1]".repeat(3000))),
        ("array-sparse", format!("{head}.global .b8 x[1099511627776] = {{1,2}};")),
        ("array-too-few", format!("{head}.global .b8 x[2] = {{1,2,3,4,5}};")),
        ("shared-most", kernel(".shared .b8 x[4294967295];\n.shared .b8 y[4294967295];")),
        ("local-most", kernel(".local .b8 x[4294967295];\nmov.u64 %rd1, x;")),
        ("local-large", kernel(".local .b8 x[524288];\nmov.u64 %rd1, x;\nst.local.u32 [%rd1+524284], %r1;")),
        ("parameter-most", format!("{head}.entry k(.param .b8 x[4294967295], .param .b8 y[4294967295]) {{ ret; }}")),
        ("parameter-aligned", format!("{head}.entry k(.param .b8 a, .param .align 1073741824 .b8 b[4]) {{ ret; }}")),
        ("alignment-most", format!("{head}.global .align 4294967295 .b8 x;")),
        ("comment-open", format!("{head}/* {}", "never ends ".repeat(20))),
        ("comment-nested", "/*".repeat(2000)),
        ("text-open", format!("{head}.file 1 \"never ends")),
        ("braces-open", format!("{head}.entry k() {}", "{".repeat(5000))),
        ("braces-closed", format!("{head}.entry k() {}{}", "{".repeat(3000), "}".repeat(3000))),
        ("braces-lone", format!("{head}{}", "}".repeat(3000))),
        ("parentheses-deep", format!("{head}.global .b32 x = {}1{};", "(".repeat(3000), ")".repeat(3000))),
        ("minus-deep", format!("{head}.global .b32 x = {}1;", "-".repeat(5000))),
        ("tilde-deep", format!("{head}.global .b32 x = {}1;", "~!".repeat(3000))),
        ("initialiser-deep", format!("{head}.global .b32 x[2] = {}1{};", "{".repeat(3000), "}".repeat(3000))),
        ("question-deep", format!("{head}.global .b32 x = {}1;", "1?".repeat(3000))),
        ("divided-by-zero", format!("{head}.global .b32 x[1/0] = {{1%0, -9223372036854775808/-1, 1<<99}};")),
        ("vector-long", kernel(&format!("ld.global.v4.u32 {{{}%r1}}, [%rd1];", "%r0,".repeat(2000)))),
        ("vector-deep", kernel(&format!("mov.b64 {}%r1{}, %rd1;", "{".repeat(3000), "}".repeat(3000)))),
        ("vector-empty", kernel("mov.b64 {}, %rd1;\nld.global.v2.u32 {}, [%rd1];")),
        ("modifiers-many", kernel(&format!("add{} %r1, %r2, %r3;", ".u32".repeat(2000)))),
        ("guards-many", kernel(&format!("{} bra L;\nL:", "@%p1 ".repeat(1000)))),
        ("label-twice", kernel("L:\nL:\nbra L;")),
        ("label-missing", kernel("bra NOWHERE;")),
        ("targets-missing", kernel("brx.idx %r1, T;\nT: .branchtargets A, B;")),
        ("targets-far", kernel("mov.u32 %r1, 4294967295;\nT: .branchtargets A;\nbrx.idx %r1, T;\nA:")),
        ("loop-for-ever", kernel("L:\nbra L;")),
        ("loop-diverged", kernel("mov.u32 %r1, %tid.x;\nL:\nadd.u32 %r1, %r1, 1;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra L;")),
        ("barrier-alone", kernel("mov.u32 %r1, %tid.x;\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 bra L;\nbar.sync 0;\nL:")),
        ("barrier-absurd", kernel("bar.sync 4294967295, 4294967295;\nbar.sync 1, 7;\nbarrier.sync 0, 0;")),
        ("sleep-long", kernel("nanosleep.u32 4294967295;\nnanosleep.u32 4294967295;")),
        ("spin-on-memory", kernel("ld.param.u64 %rd1, [p];\nL:\nld.volatile.global.u32 %r1, [%rd1];\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 bra L;")),
        ("address-wraps", kernel("mov.u64 %rd1, 18446744073709551615;\nld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%rd1+15];\nst.shared.u64 [%rd1], %rd1;")),
        ("address-offset", kernel("ld.param.u64 %rd1, [p];\nld.global.u32 %r1, [%rd1+9223372036854775807];\nld.global.u32 %r1, [%rd1+-9223372036854775808];")),
        ("divided-at-run", kernel("mov.u32 %r1, 0;\ndiv.s32 %r2, -2147483648, -1;\ndiv.u32 %r3, 5, %r1;\nrem.s32 %r4, -2147483648, -1;\nrem.u64 %rd1, 5, 0;\ndiv.s64 %rd2, -9223372036854775808, -1;")),
        ("shifts-far", kernel("mov.u32 %r1, 4294967295;\nshl.b32 %r2, %r1, %r1;\nshr.s64 %rd1, %rd2, %r1;\nbfe.u32 %r3, %r1, %r1, %r1;\nbfi.b64 %rd3, %rd1, %rd2, %r1, %r1;\nshf.l.wrap.b32 %r4, %r1, %r2, %r1;\nbfind.s32 %r5, %r1;")),
        ("shuffle-absurd", kernel("shfl.sync.idx.b32 %r1|%p1, %r1, 4294967295, 4294967295, 0;\nshfl.sync.up.b32 %r1, %r1, 99, 99, 4294967295;\nvote.sync.ballot.b32 %r2, %p1, 0;\nmatch.any.sync.b32 %r3, %r1, 0;")),
        ("recursion", format!("{head}.func f()\n{{\ncall.uni f;\nret;\n}}\n.visible .entry k()\n{{\ncall.uni f;\nret;\n}}\n")),
        ("recursion-mutual", format!("{head}.func g();\n.func f()\n{{\n.local .b8 x[512];\ncall.uni g;\nret;\n}}\n.func g()\n{{\ncall.uni f;\nret;\n}}\n.visible .entry k()\n{{\ncall.uni f;\nret;\n}}\n")),
        ("call-nowhere", kernel("mov.u64 %rd1, 1;\nP: .prototype _ ();\ncall %rd1, P;")),
        ("call-kernel", format!("{head}.visible .entry k()\n{{\ncall.uni k;\nret;\n}}\n")),
        ("alias-itself", format!("{head}.func f();\n.alias f, f;\n.alias g, f;")),
        ("defined-twice", format!("{head}.global .u32 x;\n.global .u32 x;\n.visible .entry k() {{ ret; }}\n.visible .entry k() {{ ret; }}")),
        ("block-required", format!("{head}.visible .entry k() .reqntid 4294967295, 4294967295, 4294967295 {{ ret; }}")),
        ("block-none", format!("{head}.visible .entry k() .maxntid 0, 0, 0 .reqntid 0 {{ ret; }}")),
        ("numbers", format!("{head}.global .f64 x[6] = {{0d, 0dZZ, 0f3F80, 1e999999999, 0x, 0b2}};\n.global .u32 y = 08;")),
        ("version-absurd", ".version 99999999999.99999999\n.target sm_4294967295, texmode_independent, debug\n.address_size 32\n".to_owned()),
        ("not-text", String::from_utf8_lossy(&[0xff, 0xfe, 0, 1, 2]).into_owned()),
        ("printf-width", printf("%2147483647d %-999999999s|", "")),
        ("printf-precision", printf("%.2147483647f %.*d %*d", "mov.u32 %r1, 2147483647;\nst.local.u32 [args], %r1;\nst.local.u32 [args+16], %r1;")),
        ("printf-text-nowhere", printf("%s %n %lc %", "mov.u64 %rd5, 1;\nst.local.u64 [args], %rd5;")),
    ];
    let mut seeds = Vec::new();
    for (name, text) in plain {
        seeds.push(Seed::new("ptx_load", format!("{name}.ptx"), text.as_str()));
        // Only what has a kernel can run.
        if text.contains(".entry") {
            seeds.push(Seed::new("ptx_run", format!("{name}.ptx"), text));
        }
    }
    seeds
}
