"""A connection to helmd: requests and answers as proto/helm.proto has them, token ids in and out.

Client is one connection; several generations may be open on it at once (`generate` returns a number, `answer` the next
Response to one, `receive` the next to any). Not safe to share between threads without a lock; aio.py is for asyncio."""
import collections
import grp
import os
import pwd
import socket
import stat
import struct
import time

import zmq

from .protocol import pb

VERSION = 1
FRAME_BYTES_MAX = 8 << 20
SYSTEM_SOCKET = "/run/helm/helmd.sock"
FINISH = {1: "eos", 2: "stop", 3: "length", 4: "cancelled", 5: "error"}


class HelmError(Exception):
    """The daemon's Error message: `code` is an ErrorCode of helm.proto, or None where the daemon did not answer."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def default_endpoint():
    """The same rules as helm-cli's: $HELM_ENDPOINT, /run/helm, $XDG_RUNTIME_DIR/helm, /tmp/helm-UID; /run/helm also where
    this user may not enter it and has no daemon of its own."""
    if os.environ.get("HELM_ENDPOINT"):
        return os.environ["HELM_ENDPOINT"]
    folder = os.environ.get("XDG_RUNTIME_DIR")
    own = "%s/helm/helmd.sock" % folder if folder else "/tmp/helm-%d/helmd.sock" % os.getuid()
    try:
        os.stat(SYSTEM_SOCKET)
        return "ipc://" + SYSTEM_SOCKET
    except PermissionError:
        return "ipc://" + (own if os.path.exists(own) else SYSTEM_SOCKET)
    except OSError:
        return "ipc://" + own


def who_may_connect(path):
    """By the socket's mode, or that of the folder that keeps this user out; "" where neither can be seen."""
    while len(path) > 1:
        try:
            st = os.stat(path)
            break
        except PermissionError:
            path = os.path.dirname(path)
        except OSError:
            return ""
    else:
        return ""
    try:
        if st.st_mode & (stat.S_IXGRP if stat.S_ISDIR(st.st_mode) else stat.S_IWGRP):
            return "; members of group '%s' may connect" % grp.getgrgid(st.st_gid).gr_name
        return "; user '%s' alone may connect" % pwd.getpwuid(st.st_uid).pw_name
    except KeyError:
        return ""


def user_name(uid):
    try:
        return "%s (uid %d)" % (pwd.getpwuid(uid).pw_name, uid)
    except KeyError:
        return "uid %d" % uid


def is_system_directory(folder):
    """Whether root alone may change every directory above this one."""
    folder = os.path.realpath(folder)
    while folder != "/":
        folder = os.path.dirname(folder)
        st = os.stat(folder)
        if st.st_uid != 0 or st.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
    return True


def foreign(path, what, uid):
    return HelmError(None, "%s: %s belongs to %s, not to %s, root or the owner of a system directory: not trusted" %
                     (path, what, user_name(uid), user_name(os.geteuid())))


def check_owner(path, what, uid):
    """HelmError unless it is this user's, root's, or the owner's of the system directory that the socket lies in."""
    if uid in (os.geteuid(), 0):
        return
    folder = os.path.dirname(path)
    try:
        if not path.startswith("@") and os.stat(folder).st_uid == uid and is_system_directory(folder):
            return
    except OSError:
        pass
    raise foreign(path, what, uid)


def check_place(path):
    """The socket's directory and the socket, as libhelm does (client/connection/trust.h)."""
    folder = os.path.dirname(path)
    try:
        link, st = os.lstat(folder), os.stat(folder)
    except OSError:
        return  # connecting says it
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (os.geteuid(), 0):
        raise foreign(path, "the link to its directory", link.st_uid)
    check_owner(path, "its directory", st.st_uid)
    try:
        check_owner(path, "the socket", os.lstat(path).st_uid)
    except OSError:
        pass
    if st.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not st.st_mode & stat.S_ISVTX:
        raise HelmError(None, "%s: its directory has mode %04o, so that others may replace the socket: chmod go-w it" %
                        (path, st.st_mode & 0o7777))


def check_permission(endpoint):
    """The daemon must be a trusted user's; and ZeroMQ would try again and again without a word where this
    user may not open the socket."""
    if not endpoint.startswith("ipc://"):
        return
    path = endpoint[len("ipc://"):]
    if not path.startswith("@"):
        path = os.path.abspath(path)
        check_place(path)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect("\0" + path[1:] if path.startswith("@") else path)
        except PermissionError:
            raise HelmError(None, "%s: not permitted for this user%s" % (endpoint, who_may_connect(path))) from None
        except OSError:
            return  # no daemon yet, or a busy one: the first answer will tell
        peer = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        check_owner(path, "the process that listens there", peer[1] & 0xffffffff)


class Client:
    def __init__(self, endpoint=None, timeout_ms=5000):
        self.endpoint = endpoint or default_endpoint()
        check_permission(self.endpoint)
        self.timeout_ms = timeout_ms  # longest silence before HelmError
        self.last_done = None
        self._number = 0
        self._arrived = 0
        self._waiting = {}    # number -> its Responses that came while another one was waited for, each with its arrival
        self._abandoned = {}  # abandoned number -> the kinds of Response that end it
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 250)
        self._socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        self._socket.connect(self.endpoint)

    def close(self):
        self._socket.close()
        self._context.term()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    # ---- frames

    def send(self, **body):
        """Sends one Request with the given body (generate=, cancel=, status=, ...); returns its number."""
        self._number += 1
        self._socket.send(pb.Request(version=VERSION, request_id=self._number, **body).SerializeToString())
        return self._number

    def receive(self, timeout_ms=None):
        """The next Response, whatever it answers."""
        if self._waiting:
            return self._take(min(self._waiting, key=lambda number: self._waiting[number][0][0]))
        return self._receive(timeout_ms)

    def _take(self, number):
        """The oldest Response to this number that waits, or None."""
        waiting = self._waiting.get(number)
        if not waiting:
            return None
        if len(waiting) == 1:
            del self._waiting[number]
        return waiting.popleft()[1]

    def _receive(self, timeout_ms=None):
        """The next Response off the socket whose number is not abandoned."""
        timeout_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        until = time.monotonic() + timeout_ms / 1000
        while True:
            left_ms = -1 if timeout_ms < 0 else max(0, round((until - time.monotonic()) * 1000))
            if not self._socket.poll(left_ms):
                raise HelmError(None, "no answer from %s" % self.endpoint)
            response = pb.Response.FromString(self._socket.recv_multipart()[-1])
            last_kinds = self._abandoned.get(response.request_id)
            if last_kinds is None:
                return response
            if response.WhichOneof("body") in last_kinds:
                del self._abandoned[response.request_id]

    def _abandon(self, number, *last_kinds):
        """Abandons this number: what came and what will come for it is dropped, up to a Response of one
        of these kinds or an Error. False: that was among what had come."""
        last_kinds += ("error",)
        if any(response.WhichOneof("body") in last_kinds for _, response in self._waiting.pop(number, ())):
            return False
        self._abandoned[number] = last_kinds
        return True

    def answer(self, number, timeout_ms=None):
        """The next Response to this number; others wait for their turn. An Error is raised."""
        response = self._take(number)
        while response is None:
            other = self._receive(timeout_ms)
            if other.request_id == number:
                response = other
            else:
                self._arrived += 1
                self._waiting.setdefault(other.request_id, collections.deque()).append((self._arrived, other))
        if response.WhichOneof("body") == "error":
            raise HelmError(response.error.code, response.error.message)
        return response

    # ---- generating

    def generate(self, prompt, max_tokens=0, sampling=None, **fields):
        """Sends a Generate and returns its number. `sampling` is a dict of Sampling's fields ({"temperature": 0.7,
        "has_seed": True, "seed": 1}), `fields` are Generate's (logprobs=5, ignore_eos=True, label="x", ...)."""
        return self.send(generate=pb.Generate(prompt=prompt, max_tokens=max_tokens,
                                              sampling=pb.Sampling(**(sampling or {})), **fields))

    def stream(self, prompt, max_tokens=0, sampling=None, **fields):
        """Yields Token messages; afterwards `last_done` is the Done message. Leaving the loop early cancels."""
        number = self.generate(prompt, max_tokens, sampling, **fields)
        over = False
        try:
            while not over:
                try:
                    response = self.answer(number)
                except HelmError as e:
                    over = e.code is not None
                    raise
                kind = response.WhichOneof("body")
                if kind == "done":
                    over = True
                    self.last_done = response.done
                elif kind == "token":
                    yield response.token
        finally:
            if not over and self._abandon(number, "done"):
                self._abandon(self.cancel_request(number), "accepted")

    def cancel_request(self, number):
        """Cancels one of this connection's own generations; its Done still comes. Returns the number that the daemon's
        Accepted will have, or an Error where the generation is over already."""
        return self.send(cancel=pb.Cancel(request_id=number))

    def cancel(self, daemon_id):
        """Cancels any client's generation by the id that `ps` shows."""
        return self._ask("accepted", cancel=pb.Cancel(id=daemon_id))

    # ---- asking

    def _ask(self, kind, **body):
        """Sends a question and returns its one answer; one that comes too late is dropped."""
        number = self.send(**body)
        try:
            return self.answer(number)
        except HelmError as e:
            if e.code is None:
                self._abandon(number, kind)
            raise

    def status(self):
        return self._ask("status", status=pb.StatusRequest()).status

    def model_info(self):
        return self._ask("model_info", model_info=pb.ModelInfoRequest()).model_info

    def plan(self):
        """The plan in force, as JSON text."""
        return self.plan_info().json

    def plan_info(self):
        """The plan with what it should do (forecast) and was seen doing (decode, ttft, resources, drift)."""
        return self._ask("plan", plan=pb.PlanRequest()).plan

    def list(self):
        return list(self._ask("list", list=pb.ListRequest()).list.entries)
