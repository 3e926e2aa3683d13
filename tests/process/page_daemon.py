"""A stand-in daemon for the gateway's page: the last marker in a prompt decides what is said, how fast, and how long the
prompt is read. Used by test_gateway_page.py."""
import os
import sys
import time

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import helm_pb2 as pb  # noqa: E402
from fake_helmd import FakeDaemon  # noqa: E402
from gateway_harness import Gateway, Scripted, ids_of, model_folder  # noqa: E402


class PageDaemon(Scripted):
    def __init__(self, endpoint, folder):
        super().__init__(endpoint, folder)
        self.answers, self.pace = [], {}
        self.context_tokens = 65536

    def when(self, marker, text, pace=0.0, reading=0.0):
        self.answers.append((ids_of(marker, self.folder), ids_of(text, self.folder), pace, reading))

    def chosen(self, prompt):
        """The answer whose marker is last in the prompt."""
        best, found = -1, self.answers[0]
        for answer in self.answers:
            ids, length = answer[0], len(answer[0])
            place = max((i for i in range(len(prompt) - length + 1) if prompt[i:i + length] == ids), default=-1)
            if place > best:
                best, found = place, answer
        return found

    def handle(self, client, request):
        kind = request.WhichOneof("body")
        if kind == "generate":
            self.prompts.append(list(request.generate.prompt))
            prompt = list(request.generate.prompt)
            _, script, pace, reading = self.chosen(prompt)
            request.generate.prompt[:] = [11] + script
            FakeDaemon.handle(self, client, request)
            if self.last_id in self.going:
                now = time.monotonic()
                self.pace[self.last_id] = {"pace": pace, "at": now + reading, "begin": now, "reading": reading, "tokens": len(prompt)}
        elif kind == "list":
            now = time.monotonic()
            entries = []
            for key, entry in self.going.items():
                p = self.pace[key]
                part = 1.0 if not p["reading"] else min(1.0, (now - p["begin"]) / p["reading"])
                entries.append(pb.ListEntry(id=key, state="decode" if entry[3] else "prefill", prompt_tokens=p["tokens"],
                                            prefilled_tokens=int(part * p["tokens"]), output_tokens=entry[3], age_ms=100))
            self.send(client, request.request_id, list=pb.List(entries=entries))
        else:
            FakeDaemon.handle(self, client, request)

    def tick(self):
        for _ in range(64):
            now = time.monotonic()
            for key, entry in self.going.items():
                p = self.pace[key]
                entry[4] = 0.0 if now >= p["at"] else now + 60
                if now >= p["at"]:
                    p["at"] = now + p["pace"]
            FakeDaemon.tick(self)


def open_page(*options):
    """(gateway, daemon, folder) with the template of Qwen3."""
    folder = model_folder("qwen3.jinja")
    daemon = PageDaemon("ipc://%s/helmd.sock" % folder, folder)
    daemon.start()
    return Gateway(daemon.endpoint, "--name", "local", *options), daemon, folder
