"""TLPs through cocotbext-pcie, a simulation model of PCI Express that hardware is tested with.

Both directions: what it packs we read, and what we write it unpacks. It knows neither messages, deferrable writes,
prefixes nor digests; the digest is held against zlib's CRC-32, the rest against rtlp-lib in the crate's own tests.
"""

import os
import pathlib
import random
import subprocess
import zlib

import pytest
from cocotbext.pcie.core.tlp import CplStatus, Tlp, TlpAt, TlpAttr, TlpTc, TlpType
from cocotbext.pcie.core.utils import PcieId

PACKETS = 4000

# Ours, then theirs below and from 4 GiB.
MEMORY = {
    "MRd": (TlpType.MEM_READ, TlpType.MEM_READ_64),
    "MRdLk": (TlpType.MEM_READ_LOCKED, TlpType.MEM_READ_LOCKED_64),
    "MWr": (TlpType.MEM_WRITE, TlpType.MEM_WRITE_64),
}
ATOMICS = {
    "FetchAdd": (TlpType.FETCH_ADD, TlpType.FETCH_ADD_64),
    "Swap": (TlpType.SWAP, TlpType.SWAP_64),
    "CAS": (TlpType.CAS, TlpType.CAS_64),
}
IO = {"IORd": TlpType.IO_READ, "IOWr": TlpType.IO_WRITE}
CONFIG = {
    "CfgRd0": TlpType.CFG_READ_0,
    "CfgWr0": TlpType.CFG_WRITE_0,
    "CfgRd1": TlpType.CFG_READ_1,
    "CfgWr1": TlpType.CFG_WRITE_1,
}
COMPLETIONS = {
    "Cpl": TlpType.CPL,
    "CplD": TlpType.CPL_DATA,
    "CplLk": TlpType.CPL_LOCKED,
    "CplDLk": TlpType.CPL_LOCKED_DATA,
}
KINDS = [*MEMORY, *ATOMICS, *IO, *CONFIG, *COMPLETIONS]


def codec(mode, lines):
    """Runs our codec over lines of text; one line comes back for each."""
    program = pathlib.Path(os.environ["DXPU_TLP_LINES"])
    done = subprocess.run([program, mode], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == len(lines)
    return answers


def fields(line):
    assert not line.startswith("error"), line
    return dict(field.split("=", 1) for field in line.split())


def an_address(rng):
    return rng.randrange(1 << 32) if rng.random() < 0.5 else rng.randrange(1 << 32, 1 << 64)


def make(rng, kind):
    """A random packet of theirs, and the same as our fields."""
    tlp = Tlp()
    tlp.requester_id = PcieId.from_int(rng.randrange(1 << 16))
    tlp.tag = rng.randrange(1024)
    tlp.ep = rng.random() < 0.1
    ours = {"kind": kind}
    if kind not in IO and kind not in CONFIG:
        tlp.tc = TlpTc(rng.randrange(8))
        tlp.attr = TlpAttr(rng.randrange(8))
        tlp.ln = rng.random() < 0.1
    if kind in MEMORY:
        address = an_address(rng)
        count = rng.choice([0, 1, 4, 64, 4096, rng.randrange(1, 4097)])
        count = min(count, 0x1000 - address % 0x1000)
        tlp.fmt_type = MEMORY[kind][address >> 32 > 0]
        tlp.at = TlpAt(rng.randrange(3))
        # Theirs cannot say "no bytes" at an odd address.
        if count == 0:
            address &= ~3
        if kind == "MWr":
            tlp.set_addr_be_data(address, rng.randbytes(count))
        else:
            tlp.set_addr_be(address, count)
        if count == 0:
            tlp.length, tlp.first_be, tlp.last_be = 1, 0, 0
            tlp.data = bytearray(4) if kind == "MWr" else bytearray()
        ours |= {"at": int(tlp.at), "address": tlp.address, "first": tlp.first_be, "last": tlp.last_be}
    elif kind in ATOMICS:
        operand = rng.choice([4, 8, 16] if kind == "CAS" else [4, 8])
        tlp.address = an_address(rng) & ~(operand - 1)
        tlp.fmt_type = ATOMICS[kind][tlp.address >> 32 > 0]
        tlp.at = TlpAt(rng.randrange(3))
        tlp.set_data(rng.randbytes(operand * (2 if kind == "CAS" else 1)))
        ours |= {"at": int(tlp.at), "address": tlp.address}
    elif kind in IO:
        tlp.fmt_type = IO[kind]
        tlp.address = rng.randrange(1 << 32) & ~3
        tlp.first_be = rng.randrange(16)
        tlp.length = 1
        ours |= {"address": tlp.address, "first": tlp.first_be}
    elif kind in CONFIG:
        tlp.fmt_type = CONFIG[kind]
        tlp.completer_id = PcieId.from_int(rng.randrange(1 << 16))
        tlp.address = rng.randrange(1024) * 4
        tlp.first_be = rng.randrange(16)
        tlp.length = 1
        ours |= {"target": int(tlp.completer_id), "register": tlp.address, "first": tlp.first_be}
    else:
        tlp.fmt_type = COMPLETIONS[kind]
        tlp.completer_id = PcieId.from_int(rng.randrange(1 << 16))
        tlp.byte_count = rng.choice([1, 4, 4096, rng.randrange(1, 4097)])
        tlp.lower_address = rng.randrange(128)
        tlp.bcm = rng.random() < 0.1
        if tlp.has_data():
            owed = min((tlp.byte_count + tlp.lower_address % 4 + 3) // 4, 1024)
            tlp.set_data(rng.randbytes(4 * rng.randrange(1, owed + 1)))
        else:
            tlp.status = rng.choice(list(CplStatus))
        ours |= {
            "completer": int(tlp.completer_id),
            "status": int(tlp.status),
            "bcm": int(tlp.bcm),
            "count": tlp.byte_count,
            "lower": tlp.lower_address,
        }
    if tlp.has_data() and not tlp.data:
        tlp.set_data(rng.randbytes(4))
    ours |= {
        "tc": int(tlp.tc),
        "ro": int(bool(tlp.attr & TlpAttr.RO)),
        "ns": int(bool(tlp.attr & TlpAttr.NS)),
        "ido": int(bool(tlp.attr & TlpAttr.IDO)),
        "ln": int(tlp.ln),
        "ep": int(tlp.ep),
        "length": tlp.length,
        "requester": int(tlp.requester_id),
        "tag": tlp.tag,
        "data": bytes(tlp.data).hex(),
    }
    assert tlp.check(), "we made something that the judge finds malformed"
    return tlp, {name: str(value) for name, value in ours.items()}


def as_line(ours):
    return " ".join(f"{name}={value}" for name, value in ours.items() if value != "")


@pytest.fixture(scope="module")
def packets():
    rng = random.Random(20261115)
    return [make(rng, KINDS[number % len(KINDS)]) for number in range(PACKETS)]


def test_we_read_what_they_pack(packets):
    for (tlp, ours), line in zip(packets, codec("decode", [tlp.pack().hex() for tlp, _ in packets])):
        read = fields(line)
        assert {name: read.get(name) for name in ours} == ours, repr(tlp)


def test_they_unpack_what_we_write(packets):
    for (tlp, ours), line in zip(packets, codec("encode", [as_line(ours) for _, ours in packets])):
        assert not line.startswith("error"), f"{line} of {ours}"
        theirs = Tlp.unpack(bytearray.fromhex(line))
        assert theirs == tlp, ours
        assert bytes(tlp.pack()).hex() == line


def test_their_packets_with_a_bit_changed_never_mean_two_things(packets):
    """Whatever we accept of a damaged packet, we write back as it came; and they read the same from it."""
    rng = random.Random(7)
    damaged = []
    for tlp, _ in packets:
        packed = tlp.pack()
        packed[rng.randrange(12)] ^= 1 << rng.randrange(8)
        damaged.append(packed)
    accepted = 0
    for packed, line in zip(damaged, codec("decode", [packed.hex() for packed in damaged])):
        if line.startswith("error"):
            continue
        read = fields(line)
        if "digest" in read or read["kind"] in ("Msg", "MsgD", "DMWr"):
            continue
        theirs = Tlp.unpack(packed)
        accepted += 1
        assert read["tag"] == str(theirs.tag) or "st" in read
        assert read["length"] == str(theirs.length)
        assert read["data"] == bytes(theirs.data).hex()
        if "address" in read:
            assert read["address"] == str(theirs.address)
    assert accepted > PACKETS // 4


def test_the_digest_is_a_crc_32_over_all_but_two_bits(packets):
    lines = codec("encode", [as_line(ours) + " ecrc=1" for _, ours in packets])
    for (tlp, _), line in zip(packets, lines):
        whole = bytearray.fromhex(line)
        packet, digest = whole[:-4], whole[-4:]
        tlp = Tlp(tlp)
        tlp.td = True
        assert packet == tlp.pack()
        packet[0] |= 0x01
        packet[2] |= 0x40
        assert zlib.crc32(packet) == int.from_bytes(digest, "little")
    assert all(fields(line)["right"] == "1" for line in codec("decode", lines))


def test_what_they_find_malformed_we_refuse():
    crosses = Tlp()
    crosses.fmt_type = TlpType.MEM_READ
    crosses.set_addr_be(0xFFC, 8)
    too_much = Tlp()
    too_much.fmt_type = TlpType.CPL_DATA
    too_much.byte_count = 4
    too_much.set_data(bytes(8))
    with_length = Tlp()
    with_length.fmt_type = TlpType.CPL
    with_length.length = 1
    cases = {
        "cross a boundary of 4 KiB": crosses,
        "a completion of 2 DW with 4 bytes": too_much,
        "reserved bits of header byte 3": with_length,
    }
    for (why, tlp), line in zip(cases.items(), codec("decode", [tlp.pack().hex() for tlp in cases.values()])):
        assert not tlp.check()
        assert line.startswith("error") and why in line, line
