"""ZMTP as bytes, for what no ZeroMQ library sends: a connection that identifies itself and then sends any bytes."""
import select
import socket
import struct

import processor


def greeting(mechanism=b"NULL"):
    return b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)


def frame(data=b"", more=False, command=False):
    flags = (1 if more else 0) | (4 if command else 0)
    if len(data) > 255:
        return bytes([flags | 2]) + struct.pack(">Q", len(data)) + data
    return bytes([flags, len(data)]) + data


def ready(socket_type=b"DEALER", identity=b""):
    body = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(socket_type)) + socket_type
    if identity:
        body += b"\x08Identity" + struct.pack(">I", len(identity)) + identity
    return frame(body, command=True)


class Raw:
    """A connection to an ipc endpoint, greeted unless told otherwise."""

    def __init__(self, endpoint, identity=b"", greet=True, timeout=30):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        self.socket.connect(endpoint[len("ipc://"):])
        if greet:
            self.socket.sendall(greeting() + ready(identity=identity))
            self.read(64)
            self.frame()  # its READY

    def read(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("closed")
            data += part
        return data

    def frame(self):
        flags, length = self.read(2)
        if flags & 2:
            length = struct.unpack(">Q", bytes([length]) + self.read(7))[0]
        return self.read(length)

    def send(self, data):
        """All of it, or False where the other end has closed."""
        try:
            self.socket.sendall(data)
            return True
        except OSError:
            return False

    def send_some(self, data, seconds):
        """Sends as much as the other end takes within that time; returns the bytes."""
        self.socket.settimeout(seconds)
        sent = 0
        try:
            while sent < len(data):
                sent += self.socket.send(data[sent:sent + (1 << 20)])
        except OSError:
            pass
        return sent

    def is_closed(self, seconds):
        def look(slice_s):
            self.socket.settimeout(slice_s)
            try:
                while self.socket.recv(1 << 16):
                    pass
                return True
            except socket.timeout:
                return None
            except OSError:
                return True

        return bool(processor.wait(seconds, look))

    def close(self):
        self.socket.close()


class Dealer(Raw):
    """As much of a DEALER as a client is: messages of one frame, for machines without a ZeroMQ library."""

    def __init__(self, endpoint):
        self.held = b""
        super().__init__(endpoint, timeout=60)

    def read(self, size):
        while len(self.held) < size:
            part = self.socket.recv(1 << 16)
            if not part:
                raise ConnectionError("closed")
            self.held += part
        data, self.held = self.held[:size], self.held[size:]
        return data

    def poll(self, milliseconds):
        return bool(self.held or select.select([self.socket], [], [], milliseconds / 1000)[0])

    def send(self, data):
        self.socket.sendall(frame(data))

    def recv(self):
        return self.frame()

    def close(self, linger=0):
        super().close()
