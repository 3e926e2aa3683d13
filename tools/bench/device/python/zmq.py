"""The part of pyzmq that tests/process/helmd_harness.py and client/python use, through ctypes: for a machine that has libzmq.so.5 in
its library path and no pyzmq for its Python (tools/bench/device/go.sh). A part that is not here is an AttributeError. Messages have one
part."""
import contextlib
import ctypes

_zmq = ctypes.CDLL("libzmq.so.5", use_errno=True)
_zmq.zmq_ctx_new.restype = _zmq.zmq_socket.restype = _zmq.zmq_msg_data.restype = ctypes.c_void_p
_zmq.zmq_strerror.restype = ctypes.c_char_p
REQ, DEALER, ROUTER, POLLIN = 3, 5, 6, 1
LINGER, MAXMSGSIZE = 17, 22
_INTEGERS = {"linger": 17, "sndhwm": 23, "rcvhwm": 24}
_MESSAGE_BYTES = 64  # of a zmq_msg_t


def _checked(result):
    """A call's result, or its errno raised."""
    if result is None or result < 0:
        number = ctypes.get_errno()
        raise OSError(number, _zmq.zmq_strerror(number).decode())
    return result


def _retried(call):
    """The same of a call that signals interrupt."""
    while True:
        with contextlib.suppress(InterruptedError):
            return _checked(call())


class _PollItem(ctypes.Structure):
    _fields_ = [("socket", ctypes.c_void_p), ("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


class Context:
    def __init__(self):
        self._context = ctypes.c_void_p(_zmq.zmq_ctx_new())

    def socket(self, kind):
        return Socket(ctypes.c_void_p(_checked(_zmq.zmq_socket(self._context, kind))))


class Socket:
    def __init__(self, socket):
        object.__setattr__(self, "_socket", socket)

    def __setattr__(self, name, value):
        if name not in _INTEGERS:
            raise AttributeError(name)
        self.setsockopt(_INTEGERS[name], value)

    def setsockopt(self, option, value):
        number = (ctypes.c_int64 if option == MAXMSGSIZE else ctypes.c_int)(value)
        _checked(_zmq.zmq_setsockopt(self._socket, option, ctypes.byref(number), ctypes.c_size_t(ctypes.sizeof(number))))

    def connect(self, endpoint):
        _checked(_zmq.zmq_connect(self._socket, endpoint.encode()))

    def send(self, data):
        _retried(lambda: _zmq.zmq_send(self._socket, data, ctypes.c_size_t(len(data)), 0))

    def recv(self):
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        _checked(_zmq.zmq_msg_init(message))
        try:
            size = _retried(lambda: _zmq.zmq_msg_recv(message, self._socket, 0))
            return ctypes.string_at(_zmq.zmq_msg_data(message), size) if size else b""
        finally:
            _zmq.zmq_msg_close(message)

    def recv_multipart(self):
        return [self.recv()]

    def poll(self, timeout=-1, flags=POLLIN):
        """Events that are there within `timeout` milliseconds, or 0."""
        item = _PollItem(self._socket, 0, flags, 0)
        _retried(lambda: _zmq.zmq_poll(ctypes.byref(item), 1, ctypes.c_long(int(timeout))))
        return item.revents

    def close(self, linger=None):
        if self._socket:
            if linger is not None:
                self.linger = linger
            _checked(_zmq.zmq_close(self._socket))
            object.__setattr__(self, "_socket", None)

    def __del__(self):
        self.close(0)
