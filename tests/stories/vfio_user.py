"""A virtual machine that does nothing but look at its device: the few words of vfio-user that this takes."""
import json
import socket
import struct

CONFIG = 7


class Guest:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(path)
        self.number = 0
        self.ask(1, struct.pack("<HH", 0, 0) + json.dumps({"capabilities": {}}).encode() + b"\0")

    def close(self):
        self.socket.close()

    def ask(self, command, body):
        """Sends one request; gives the error number and the body of its reply."""
        self.number += 1
        self.socket.sendall(struct.pack("<HHIII", self.number, command, 16 + len(body), 0, 0) + body)
        number, _, size, _, error = struct.unpack("<HHIII", self.take(16))
        assert number == self.number, (number, self.number)
        return error, self.take(size - 16)

    def take(self, count):
        taken = b""
        while len(taken) < count:
            piece = self.socket.recv(count - len(taken))
            assert piece, "the host has hung up"
            taken += piece
        return taken

    def config(self, count=4096):
        """Configuration space; None when the host says that nobody is there."""
        error, body = self.ask(9, struct.pack("<QII", 0, CONFIG, count))
        return None if error else body[16:]


def capabilities(config):
    """The capabilities in a copy of configuration space; a list without an end is none."""
    found, at = [], config[0x34]
    while at:
        assert len(found) < 48, "the list of capabilities has no end"
        found.append(config[at])
        at = config[at + 1]
    extended, at = 0, 0x100
    while at:
        extended += 1
        assert extended < 480, "the list of extended capabilities has no end"
        at = struct.unpack_from("<I", config, at)[0] >> 20 & 0xFFC
    return found
