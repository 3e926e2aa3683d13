"""A stand-in daemon for the gateway's page: the last marker in a prompt decides what is said, and how. Used by
test_gateway_page.py."""
import dataclasses
import os
import sys
import time

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import helm_pb2 as pb  # noqa: E402
from fake_helmd import FakeDaemon  # noqa: E402
from gateway_harness import Gateway, Scripted, ids_of, model_folder  # noqa: E402

WAITS = 1e9  # seconds: a request that is not to go on


@dataclasses.dataclass
class Said:
    marker: list
    script: list
    pace: float = 0.0     # seconds from one token to the next
    looks: int = 0        # how often the list of requests is asked for until the prompt is read
    how: int = 11         # as in fake_helmd.py
    until: str = ""       # the marker of a request that lets this one go on after its first tokens


class PageDaemon(Scripted):
    def __init__(self, endpoint, folder):
        super().__init__(endpoint, folder)
        self.answers, self.open, self.seen = {}, {}, set()
        self.context_tokens = 65536

    def when(self, marker, text, **how):
        self.answers[marker] = Said(ids_of(marker, self.folder), ids_of(text, self.folder), **how)

    def chosen(self, prompt):
        """The marker that is last in the prompt."""
        def place(marker):
            ids = self.answers[marker].marker
            return max((i for i in range(len(prompt) - len(ids) + 1) if prompt[i:i + len(ids)] == ids), default=-1)
        return max(self.answers, key=place)

    def handle(self, client, request):
        kind = request.WhichOneof("body")
        if kind == "generate":
            prompt = list(request.generate.prompt)
            self.prompts.append(prompt)
            marker = self.chosen(prompt)
            self.seen.add(marker)
            said = self.answers[marker]
            request.generate.prompt[:] = [said.how] + said.script
            FakeDaemon.handle(self, client, request)
            self.open[self.last_id] = {"said": said, "tokens": len(prompt), "looks": 0, "at": 0.0}
        elif kind == "list":
            entries = []
            for key, entry in self.going.items():
                state = self.open[key]
                part = min(1, state["looks"] / state["said"].looks) if state["said"].looks else 1
                state["looks"] += 1
                entries.append(pb.ListEntry(id=key, state="decode" if entry[3] else "prefill", prompt_tokens=state["tokens"],
                                            prefilled_tokens=int(part * state["tokens"]), output_tokens=entry[3], age_ms=100))
            self.send(client, request.request_id, list=pb.List(entries=entries))
        else:
            FakeDaemon.handle(self, client, request)

    def tick(self):
        for _ in range(64):
            now = time.monotonic()
            for key, entry in self.going.items():
                state = self.open[key]
                said = state["said"]
                held = said.until and said.until not in self.seen and entry[3] >= 20
                ready = now >= state["at"] and state["looks"] >= said.looks and not held
                entry[4] = 0.0 if ready else now + WAITS
                if ready:
                    state["at"] = now + said.pace
            FakeDaemon.tick(self)


def open_page(*options):
    """(gateway, daemon, folder) with the template of Qwen3."""
    folder = model_folder("qwen3.jinja")
    daemon = PageDaemon("ipc://%s/helmd.sock" % folder, folder)
    daemon.start()
    return Gateway(daemon.endpoint, "--name", "local", *options), daemon, folder
