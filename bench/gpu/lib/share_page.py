"""A page of sharing, as `dxpu box` makes it for the workers of one GPU: crates/cuda/sharing/src/page.rs. In memory, because the driver
registers no page of a file on a disk."""

import struct
import tempfile

# The last byte is the version; a worker refuses a page of another one.
MAGIC = b"dxpugat\x03"
WORDS = 16 + 63 * 16
# The word that counts the page's lives.
EPOCH = 3


def make():
    """Its path; the caller removes it."""
    place, path = tempfile.mkstemp(prefix="dxpu-bench-page-", dir="/dev/shm")
    with open(place, "wb") as file:
        words = [0] * WORDS
        words[0], words[EPOCH] = int.from_bytes(MAGIC, "little"), 1
        file.write(struct.pack(f"<{WORDS}Q", *words))
    return path
