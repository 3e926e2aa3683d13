#!/usr/bin/python3
"""A stand-in for helmd that speaks the client protocol and does as it is told: the first token of a prompt says how
to behave. Used by test_cli*.py and test_client.py, in a thread (FakeDaemon) or as a program named helmd beside a copy of helm-cli.

    10   answers with the tokens 100, 101, 102, ... up to max_tokens (at most 64)
    11   the prompt's other tokens, then end of sequence
    12   the prompt's other tokens again and again, slowly, until cancelled
    13   Error BUSY          14   Error CONTEXT
    15   two tokens, then a Done with FINISH_ERROR
    16   two tokens, then the daemon goes away without a word
    17   two tokens, then silence
    18   silence, as in a long prefill: a cancel is accepted, and takes effect when the same client's next Generate comes
    19   the prompt's other tokens once, then as 18
    20   the prompt's other tokens, then a Done with FINISH_LENGTH
As a program, $FAKE_HELMD says how to start: "" as usual, "refuse" reports an error, "die" ends before it is ready,
"hang" never becomes ready, "measure" says on $NOTIFY_SOCKET that it measures the machine, and is ready then. It writes its arguments to $FAKE_HELMD_ARGS.
"""
import os
import socket
import sys
import threading
import time

sys.path.insert(0, os.environ.get("HELM_PYPROTO", "."))
import zmq

try:
    from proto import helm_pb2 as pb
except ImportError:
    import helm_pb2 as pb

PLAN = """{"layers": 4, "context_tokens": 4096, "step_tokens": 256, "slots": 8, "page_tokens": 32, "page_count": 1024,
"kv_dtype": "f16", "stages": [{"layers": [0, 3], "home": "cpu", "bytes": 1048576}],
"host": {"limit": null, "lines": [{"what": "weights", "bytes": 1048576}], "total": 1048576},
"vram": {"limit": null, "lines": [], "total": 0}}"""


class FakeDaemon(threading.Thread):
    def __init__(self, endpoint, folder="/nowhere", token_seconds=0.02):
        super().__init__(daemon=True)
        self.endpoint, self.folder, self.token_seconds = endpoint, folder, token_seconds
        self.context_tokens = 4096
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(endpoint)
        self.vocab = 2048
        self.going = {}        # daemon's id -> [client, request_id, generate, tokens sent]
        self.generated = []    # every Generate that came
        self.names_users = False  # what it says of that
        self.users = {}        # daemon's id -> the user who was named
        self.cancelled = []
        self.masks = []        # of every constrained Generate the first, and those that came later
        self.due = {}          # (client, request_id) of a constrained one -> the token that its last mask is for
        self.late = []         # daemon's ids whose cancel has not taken effect yet
        self.last_id = 6
        self.quit = False

    def stop(self):
        self.quit = True
        self.join(5)

    def run(self):
        while not self.quit:
            if self.socket.poll(10 if self.going else 50):
                client, frame = self.socket.recv_multipart()[0:2]
                self.handle(client, pb.Request.FromString(frame))
            self.tick()
        self.socket.close()
        self.context.term()

    def send(self, client, number, **body):
        self.socket.send_multipart([client, pb.Response(version=1, request_id=number, **body).SerializeToString()])

    def finish(self, key, reason, detail=""):
        client, number, generate, sent, _ = self.going.pop(key)
        self.send(client, number, done=pb.Done(
            id=key, finish_reason=reason, detail=detail, seed=5,
            usage=pb.Usage(prompt_tokens=len(generate.prompt), completion_tokens=sent, cached_tokens=2),
            timings=pb.Timings(ttft_ms=12.5, tpot_ms=3.25, prefill_tok_s=100, decode_tok_s=307.7)))

    def handle(self, client, request):
        number, kind = request.request_id, request.WhichOneof("body")
        if kind == "status":
            self.send(client, number, status=pb.Status(
                version="0.0-fake", state="ready", uptime_ms=1500, running=len(self.going), queue_limit=64,
                kv_pages_total=1024, kv_dtype="q8_0", kv_token_bytes=69632, prefix_cache="pe\x1ber", kv_pages_cached=12,
                prefix_hits_total=3, tokens_cached_total=640, prefix_evictions_total=5, snapshots=6,
                snapshots_total=32, snapshot_bytes=3 << 20, snapshot_hits_total=9, snapshots_dropped_total=2, kv_places_used=90, kv_places_total=120,
                kv_pages_host=33, kv_pages_moved_out_total=40, kv_pages_fetched_total=7, workers=[pb.WorkerStatus(name="cpu", pid=os.getpid(), state="ready", threads=2,
                                                              kernels="gemv ref", weight_bytes=1 << 20,
                                                              loaded_bytes=1 << 20),
                                              pb.WorkerStatus(name="gpu", state="ready", device="a fake\x1b", threads=1,
                                                              vram_bytes=3 << 20, busy_seconds=2, wait_seconds=4,
                                                              weight_bytes_read=1 << 20, link_bytes=2 << 20)],
                seconds_steps=8, names_users=self.names_users))
        elif kind == "model_info":
            self.send(client, number, model_info=pb.ModelInfo(
                folder=self.folder, architecture="Fake\x1b[31mForCausalLM", layers=4, hidden=256, vocab=self.vocab,
                context=self.context_tokens, model_context=2 * self.context_tokens, dtype="bf16", eos=[1, 2], bos=-1, parameters=1000000))
        elif kind == "plan":
            self.send(client, number, plan=pb.Plan(
                json=PLAN, now="host memory reads 80 GB/s\x1b now", drifting=True, drift="decode 100 % slower\x1b than planned",
                forecast=pb.PlanForecast(batch=1, context=128, prompt=128, decode_seconds=0.05, decode_seconds_low=0.04,
                                         decode_seconds_high=0.0625, ttft_seconds=0.3,
                                         ttft_seconds_high=0.4),
                decode=[pb.PlanSteps(batch=1, tokens=130, count=12, measured_seconds=0.1, planned_seconds=0.05)],
                ttft=[pb.PlanSteps(tokens=64, count=3, measured_seconds=0.25, planned_seconds=0.2)],
                resources=[pb.PlanResource(name="cpu", busy=0.9, busy_planned=0.8, bytes_per_second=61e9,
                                           bytes_per_second_planned=80e9)]))
        elif kind == "mask":
            self.masks.append(request.mask)
            self.due[client, number] = request.mask.index
        elif kind == "list":
            self.send(client, number, list=pb.List(entries=[
                pb.ListEntry(id=k, state="decode", label=v[2].label, user=self.users[k], prompt_tokens=len(v[2].prompt),
                             prefilled_tokens=len(v[2].prompt), output_tokens=v[3], max_tokens=v[2].max_tokens,
                             age_ms=100) for k, v in self.going.items()]))
        elif kind == "cancel":
            hits = [k for k, v in self.going.items()
                    if k == request.cancel.id or (v[0] == client and v[1] == request.cancel.request_id)]
            if not hits:
                self.send(client, number, error=pb.Error(code=pb.ERROR_NOT_FOUND, message="no request with that id"))
                return
            self.cancelled.append(hits[0])
            self.send(client, number, accepted=pb.Accepted(id=hits[0]))
            if self.going[hits[0]][2].prompt[0] in (18, 19):
                self.late.append(hits[0])
            else:
                self.finish(hits[0], pb.FINISH_CANCELLED, "cancelled by a client")
        elif kind == "generate":
            for key in [k for k in self.late if self.going[k][0] == client]:
                self.late.remove(key)
                self.send(client, self.going[key][1], token=pb.Token(id=key, index=self.going[key][3], token=7))
                self.finish(key, pb.FINISH_CANCELLED, "cancelled by a client")
            self.generated.append(request.generate)
            if request.generate.HasField("mask"):
                self.masks.append(request.generate.mask)
                self.due[client, number] = 0
            code = {13: pb.ERROR_BUSY, 14: pb.ERROR_CONTEXT}.get(request.generate.prompt[0])
            if code:
                self.send(client, number, error=pb.Error(code=code, message="refused \x1b[31mas told"))
                return
            self.last_id += 1
            self.going[self.last_id] = [client, number, request.generate, 0, 0.0]
            self.users[self.last_id] = request.user
            self.send(client, number, accepted=pb.Accepted(id=self.last_id))

    def tick(self):
        for key, entry in list(self.going.items()):
            client, number, generate, sent, at = entry
            how, rest = generate.prompt[0], list(generate.prompt[1:]) or [7]
            if time.monotonic() < at:
                continue
            if how == 11 and self.due.get((client, number), sent) < sent < len(rest):  # as helmd, it waits for the mask
                continue
            if how == 18 or (how == 19 and sent >= len(rest)):
                continue
            if how == 10 and sent >= min(generate.max_tokens or 64, 64):
                self.finish(key, pb.FINISH_LENGTH)
                continue
            if how == 20 and sent >= len(rest):
                self.finish(key, pb.FINISH_LENGTH)
                continue
            if how in (15, 16, 17) and sent >= 2:
                if how == 15:
                    self.finish(key, pb.FINISH_ERROR, "told to fail")
                elif how == 16:
                    self.quit = True
                continue
            if how == 11 and sent > len(rest):
                self.finish(key, pb.FINISH_EOS)
                continue
            token = 100 + sent if how == 10 else 1 if how == 11 and sent == len(rest) else rest[sent % len(rest)]
            listed = list(generate.logprobs_of) or range(token, token + generate.logprobs)
            top = [pb.TokenLogprob(token=t, logprob=-0.5 - i) for i, t in enumerate(listed)]
            self.send(client, number, token=pb.Token(id=key, index=sent, token=token, logprob=-0.5, top=top))
            entry[3] += 1
            entry[4] = time.monotonic() + (self.token_seconds if how == 12 else 0)


def main():
    args = sys.argv[1:]
    with open(os.environ["FAKE_HELMD_ARGS"], "w") as f:
        f.write("\n".join(args))
    value = {args[i]: args[i + 1] for i in range(len(args) - 1)}
    ready = int(value["--ready-fd"])
    how = os.environ.get("FAKE_HELMD", "")
    if how == "measure":
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for line in ("", ":   0.1 s  CPU: loading", ": 1.5 s  CPU: 2 threads read 12 GB/s"):
            notify.sendto(("STATUS=measuring this machine" + line).encode(), os.environ["NOTIFY_SOCKET"])
            time.sleep(0.4)
        for i in range(100):  # more than an unread socket holds
            notify.sendto(b"STATUS=measuring this machine: %d" % i, os.environ["NOTIFY_SOCKET"])
    if how == "check":
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for line in ("", ": 16 positions compared in 0.4 s of at most 10", ": 96 positions compared in 2.1 s of at most 10"):
            notify.sendto(("STATUS=checking int8 activations" + line).encode(), os.environ["NOTIFY_SOCKET"])
            time.sleep(0.4)
    if how == "refuse":
        os.write(ready, b"error -9 does not fit: needs 10 GiB, 1 GiB is free\n")
        sys.exit(4)
    if how == "die":
        print("about to die", file=sys.stderr)
        sys.exit(1)
    daemon = FakeDaemon(value["--listen"], value["--model"])
    daemon.start()
    if how != "hang":
        os.write(ready, ("ready %s\n" % value["--listen"]).encode())
    os.close(ready) if how != "hang" else None
    while os.getppid() != 1 and daemon.is_alive():
        time.sleep(0.05)


if __name__ == "__main__":
    main()
