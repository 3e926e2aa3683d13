"""GGUF files taken apart and put together again, for tests that need one changed: another key, another type of a tensor, a
longer header, the same in parts. Tensors' data are not looked at."""
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
ALIGNMENT = 32


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def u16(value):
    return struct.pack("<IH", 2, value)


def string(value):
    return struct.pack("<I", 8) + text(value)


class Gguf:
    """keys: {name: type and value as in the file}; tensors: [name, dimensions, type, data]"""

    def __init__(self, data):
        self.data, self.at = data, 8
        self.keys, self.tensors = {}, []
        count, values = self.number(8), self.number(8)
        for _ in range(values):
            key, begin = self.string(), self.at
            self.skip(self.number(4))
            self.keys[key] = data[begin:self.at]
        for _ in range(count):
            name = self.string()
            shape = [self.number(8) for _ in range(self.number(4))]
            self.tensors.append([name, shape, self.number(4), self.number(8)])
        base = self.pad(self.at)
        ends = sorted(t[3] for t in self.tensors) + [len(data) - base]
        for t in self.tensors:
            t[3] = data[base + t[3]:base + ends[ends.index(t[3]) + 1]]

    def number(self, size):
        self.at += size
        return int.from_bytes(self.data[self.at - size:self.at], "little")

    def string(self):
        length = self.number(8)
        self.at += length
        return self.data[self.at - length:self.at].decode(errors="replace")

    def skip(self, kind):
        if kind == 8:
            self.string()
        elif kind == 9:
            kind, count = self.number(4), self.number(8)
            if kind in SIZES:
                self.at += SIZES[kind] * count
            else:
                for _ in range(count):
                    self.skip(kind)
        else:
            self.at += SIZES[kind]

    @staticmethod
    def pad(length):
        return -(-length // ALIGNMENT) * ALIGNMENT

    def bytes(self, keys=None, tensors=None):
        keys = self.keys if keys is None else keys
        tensors = self.tensors if tensors is None else tensors
        out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
        out += b"".join(text(key) + value for key, value in keys.items())
        data = b""
        for name, shape, kind, content in tensors:
            out += text(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *shape, kind, len(data))
            data += content.ljust(self.pad(len(content)), b"\0")
        return out.ljust(self.pad(len(out)), b"\0") + data

    def parts(self, count):
        """The bytes of each of so many files."""
        out, each = [], -(-len(self.tensors) // count)
        for i in range(count):
            split = {"split.no": u16(i), "split.count": u16(count),
                     "split.tensors.count": struct.pack("<Ii", 5, len(self.tensors))}
            out.append(self.bytes(dict(self.keys if i == 0 else {}, **split), self.tensors[i * each:(i + 1) * each]))
        return out
