#!/usr/bin/env python3
"""Writes the trampolines of the NVML tracer: one for each function that a real libnvidia-ml.so.1 exports.

    make.py REAL_LIBRARY OUT_DIRECTORY

The functions have different signatures, and the private ones none that is known. So a trampoline does not know its
arguments: it saves every register that may carry one, tells the C side who was called, and jumps on with the stack
as it was. The return address is exchanged for `trace_after`, which tells the C side the return code.
(x86-64, System V calling convention. NVML passes everything in registers and on the stack, nothing in x87.)
"""

import pathlib
import subprocess
import sys

# Functions behind nvmlInternalGetExportTable have no name: each gets one of these slots when its table is handed out.
TABLE_SLOTS = 4096

COMMON = """
    .text
    .type trace_common,@function
trace_common:                       # on the stack: which function, return address, the caller's stack arguments
    pushq %rbp
    movq %rsp, %rbp                 # 8(%rbp): which function; 16(%rbp): return address
    pushq %rax
    pushq %r10
    pushq %r9                       # from here six integer arguments, lowest address first: rdi rsi rdx rcx r8 r9
    pushq %r8
    pushq %rcx
    pushq %rdx
    pushq %rsi
    pushq %rdi
    movq %rsp, %rsi                 # second argument of trace_enter: the six
    subq $128, %rsp
    andq $-16, %rsp
    movups %xmm0, 0(%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    movq 8(%rbp), %rdi
    leaq 16(%rbp), %rdx
    call trace_enter@PLT
    movq %rax, %r11
    movups 0(%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    leaq -64(%rbp), %rsp
    popq %rdi
    popq %rsi
    popq %rdx
    popq %rcx
    popq %r8
    popq %r9
    popq %r10
    popq %rax
    popq %rbp
    addq $8, %rsp                   # the number of the function: the stack is the caller's again
    jmp *%r11

    .globl trace_after
    .hidden trace_after
    .type trace_after,@function
trace_after:                        # the real function returned here instead of to its caller
    subq $8, %rsp                   # room for where it should have returned
    pushq %rbp
    movq %rsp, %rbp
    pushq %rax
    pushq %rdx
    subq $16, %rsp
    andq $-16, %rsp
    movups %xmm0, 0(%rsp)
    movq %rax, %rdi
    call trace_leave@PLT
    movq %rax, 8(%rbp)
    movups 0(%rsp), %xmm0
    movq -8(%rbp), %rax
    movq -16(%rbp), %rdx
    movq %rbp, %rsp
    popq %rbp
    ret
"""


def exported_functions(library):
    listing = subprocess.run(
        ["nm", "--dynamic", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    names = set()
    for line in listing.splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[1] in "TWi":
            names.add(fields[2].split("@")[0])
    return sorted(name for name in names if name not in ("_init", "_fini"))


def main():
    library, out = sys.argv[1], pathlib.Path(sys.argv[2])
    names = exported_functions(library)
    if not names:
        sys.exit(f"{library} exports no function")

    assembly = [COMMON]
    for number, name in enumerate(names):
        assembly.append(
            f"    .globl {name}\n    .type {name},@function\n{name}:\n    pushq ${number}\n    jmp trace_common\n"
        )
    for slot in range(TABLE_SLOTS):
        assembly.append(f"trace_slot_{slot}:\n    pushq ${len(names) + slot}\n    jmp trace_common\n")
    assembly.append("    .section .data.rel.ro,\"aw\"\n    .globl trace_slots\n    .hidden trace_slots\ntrace_slots:\n")
    assembly.extend(f"    .quad trace_slot_{slot}\n" for slot in range(TABLE_SLOTS))
    assembly.append('    .section .note.GNU-stack,"",@progbits\n')
    (out / "trampolines.S").write_text("".join(assembly))

    (out / "names.h").write_text(
        f"#define NAME_COUNT {len(names)}\n#define TABLE_SLOTS {TABLE_SLOTS}\n"
        "static const char *const NAMES[NAME_COUNT] = {\n" + "".join(f'    "{name}",\n' for name in names) + "};\n"
    )


if __name__ == "__main__":
    main()
