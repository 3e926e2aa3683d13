"""A minimal client for helmd in pure Python: python3-zmq and what protoc makes of proto/helm.proto, nothing else.

Make the messages once and put both folders on the path:

    mkdir -p gen && protoc --python_out=gen proto/helm.proto
    PYTHONPATH=gen:client/python python3

    from helm_client import Client
    with Client() as helm:                       # or Client("ipc:///path/helmd.sock")
        print(helm.status().state)
        for token in helm.stream([1, 2, 3], max_tokens=16):
            print(token.token)
        done = helm.last_done                    # finish reason, usage, timings

Token ids in, token ids out: text belongs to a tokenizer (`helm-cli tokenize`, libhelm, or Hugging Face's). One Client
is one connection; several generations may be open on it at once (`generate` returns a number, `events` yields
whatever comes). Not safe to share between threads without a lock.
"""
import os

import zmq

try:
    from proto import helm_pb2 as pb
except ImportError:
    import helm_pb2 as pb

VERSION = 1
FRAME_BYTES_MAX = 8 << 20
FINISH = {1: "eos", 2: "stop", 3: "length", 4: "cancelled", 5: "error"}


class HelmError(Exception):
    """The daemon's Error message: `code` is an ErrorCode of helm.proto, or None where the daemon did not answer."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def default_endpoint():
    """The same rules as helm-cli's: $HELM_ENDPOINT, /run/helm, $XDG_RUNTIME_DIR/helm, /tmp/helm-UID."""
    if os.environ.get("HELM_ENDPOINT"):
        return os.environ["HELM_ENDPOINT"]
    if os.path.exists("/run/helm/helmd.sock"):
        return "ipc:///run/helm/helmd.sock"
    if os.environ.get("XDG_RUNTIME_DIR"):
        return "ipc://%s/helm/helmd.sock" % os.environ["XDG_RUNTIME_DIR"]
    return "ipc:///tmp/helm-%d/helmd.sock" % os.getuid()


class Client:
    def __init__(self, endpoint=None, timeout_ms=5000):
        self.endpoint = endpoint or default_endpoint()
        self.timeout_ms = timeout_ms  # longest silence before HelmError
        self.last_done = None
        self._number = 0
        self._waiting = []  # responses that came while another one was waited for
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
            return self._waiting.pop(0)
        return self._receive(timeout_ms)

    def _receive(self, timeout_ms=None):
        if not self._socket.poll(self.timeout_ms if timeout_ms is None else timeout_ms):
            raise HelmError(None, "no answer from %s" % self.endpoint)
        return pb.Response.FromString(self._socket.recv_multipart()[-1])

    def answer(self, number, timeout_ms=None):
        """The next Response to this number; others wait for their turn. An Error is raised."""
        for i, response in enumerate(self._waiting):
            if response.request_id == number:
                self._waiting.pop(i)
                break
        else:
            while True:
                response = self._receive(timeout_ms)
                if response.request_id == number:
                    break
                self._waiting.append(response)
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
            if not over:
                self.cancel_request(number)

    def cancel_request(self, number):
        """Cancels one of this connection's own generations; its Done still comes."""
        return self.send(cancel=pb.Cancel(request_id=number))

    def cancel(self, daemon_id):
        """Cancels anybody's generation by the id that `ps` shows."""
        return self.answer(self.send(cancel=pb.Cancel(id=daemon_id)))

    # ---- asking

    def status(self):
        return self.answer(self.send(status=pb.StatusRequest())).status

    def model_info(self):
        return self.answer(self.send(model_info=pb.ModelInfoRequest())).model_info

    def plan(self):
        """The plan in force, as JSON text."""
        return self.plan_info().json

    def plan_info(self):
        """The plan with what it should do (forecast) and was seen doing (decode, ttft, resources, drift)."""
        return self.answer(self.send(plan=pb.PlanRequest())).plan

    def list(self):
        return list(self.answer(self.send(list=pb.ListRequest())).list.entries)
