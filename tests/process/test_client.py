#!/usr/bin/python3
"""Clients where things are not at hand: a daemon whose folder is on another machine, cancels that take effect late, answers to
abandoned requests, sockets that one may not open. Against a stand-in daemon.

HELM_BIN: folder of the programs; HELM_PYPROTO: where protoc's Python output lies. Run from the repository's root.
"""
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "client/python", "tests/process"]
import processor  # noqa: E402
from cli_harness import CLI, MODEL, TEMPLATE, Terminal, check, check_exit, cli, run_in_folder  # noqa: E402
from fake_helmd import FakeDaemon  # noqa: E402
import helm_client  # noqa: E402


def ids_of(text):
    return json.loads(cli("--model", MODEL, "tokenize", "--json", "--no-special", text)[1])


def text_of(ids):
    return json.loads(cli("--model", MODEL, "detokenize", "--json", ",".join(map(str, ids)))[1])


class Scripted(FakeDaemon):
    """Does as `script` says, whatever the prompt is; keeps the prompts that came, and everything while `hold` is set."""

    def __init__(self, endpoint, folder="/nowhere", script=()):
        super().__init__(endpoint, folder)
        self.script, self.prompts, self.hold, self.held = list(script), [], False, []

    def handle(self, client, request):
        if self.hold:
            self.held.append((client, request))
            return
        while self.held:
            self.handle(*self.held.pop(0))
        if request.WhichOneof("body") == "generate" and self.script:
            self.prompts.append(list(request.generate.prompt))
            request.generate.prompt[:] = self.script
        super().handle(client, request)


def remote_tests(folder):
    """The daemon's folder is not on this machine, as over TCP."""
    endpoint = "ipc://%s/remote.sock" % folder
    at = ("--connect", endpoint)
    own = os.path.join(folder, "own-files")
    os.mkdir(own)
    shutil.copy(MODEL + "/tokenizer.json", own)
    daemon = Scripted(endpoint, "/elsewhere/model", [11] + ids_of(" fine thanks"))
    daemon.start()
    told = "/elsewhere/model cannot be opened here (No such file or directory): --tokenizer DIR"
    check_exit("remote: run without a folder is refused", 4, *at, "run", "Hi", text=told)
    check_exit("remote: a tokenizer.json alone has no sampling defaults", 4, *at, "--tokenizer", own + "/tokenizer.json",
               "run", "Hi", text=told)
    check_exit("remote: run --chat is refused", 4, *at, "run", "--chat", "Hi", text=told)
    check_exit("remote: chat is refused", 4, *at, "chat", stdin=b"Hi\n", text=told)
    check_exit("remote: generate --prompt is refused", 4, *at, "generate", "--prompt", "Hi", "-n", "2", text=told)
    check_exit("remote: tokenize is refused", 4, *at, "tokenize", "Hi", text=told)
    check_exit("remote: --stop needs --tokenizer", 4, *at, "generate", "--tokens", "5", "-n", "2", "--stop", "x",
               text="--tokenizer PATH")
    check("remote: nothing of these reached the daemon", daemon.generated == [], daemon.generated)
    out = check_exit("remote: ids need no tokenizer", 0, *at, "generate", "--tokens", "5", "-n", "9")
    check("... and are printed", out.split() == [str(i) for i in daemon.script[1:] + [1]], out)

    at += ("--tokenizer", own)
    check_exit("remote: --tokenizer DIR without defaults is greedy", 0, *at, "run", "Hi", text=" fine thanks\n")
    check("... as the daemon sees it", daemon.generated[-1].sampling.temperature == 0, daemon.generated[-1])
    check_exit("remote: no chat template in it", 4, *at, "chat", stdin=b"Hi\n", text=own + " has no chat template")
    with open(own + "/tokenizer_config.json", "w") as f:
        json.dump({"chat_template": TEMPLATE, "eos_token": "<|eos|>"}, f)
    with open(own + "/generation_config.json", "w") as f:
        f.write('{"do_sample": true, "temperature": 0.6, "top_k": 20}')
    for name, more in (("run", {}), ("chat", {"stdin": b"Hi\n"})):
        args = ("run", "--chat", "Hi") if name == "run" else ("chat",)
        out = check_exit("remote: %s with a folder of one's own" % name, 0, *at, *args, **more)
        g = daemon.generated[-1]
        check("... its answer", out == " fine thanks\n", out)
        check("... its template and end token", text_of(daemon.prompts[-1]) == "[user]Hi\n[assistant]" and
              list(g.stop_token_ids) == [1], (daemon.prompts[-1], g))
        check("... its sampling", abs(g.sampling.temperature - 0.6) < 1e-6 and g.sampling.top_k == 20, g)
    with open(own + "/generation_config.json", "w") as f:
        f.write('{"do_sample": false, "temperature": 0.6, "repetition_penalty": 1.25}')
    check_exit("remote: do_sample false", 0, *at, "run", "Hi")
    s = daemon.generated[-1].sampling
    check("... is greedy, with the file's repetition penalty", s.temperature == 0 and s.repetition_penalty == 1.25, s)
    daemon.stop()


def late_cancel_tests(folder):
    """A cancel takes effect when the step under way ends. Clients wait for that some seconds at most."""
    endpoint = "ipc://%s/late.sock" % folder
    model = os.path.join(folder, "late-model")
    os.mkdir(model)
    shutil.copy(MODEL + "/tokenizer.json", model)
    with open(model + "/tokenizer_config.json", "w") as f:
        json.dump({"chat_template": TEMPLATE, "eos_token": "<|eos|>"}, f)
    daemon = Scripted(endpoint, model, [18])
    daemon.start()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    silent = subprocess.Popen([CLI, "--connect", endpoint, "generate", "--tokens", "5", "-n", "9", "--json"], **pipes)
    check("late cancel: generate begins", processor.until(lambda: len(daemon.prompts) == 1))
    t = Terminal("--connect", endpoint, "chat")
    check("late cancel: chat begins", t.expect("> "), t.seen)
    t.type(b"Hello\n")
    check("... and asks", processor.until(lambda: len(daemon.prompts) == 2))
    daemon.script = [19] + ids_of(" alpha beta gamma delta")
    stopped = subprocess.Popen([CLI, "--connect", endpoint, "run", "--stats", "--stop", "ta gam", "Hi"], **pipes)
    silent.send_signal(signal.SIGINT)
    t.type(b"\x03")
    out, err = processor.finish(silent, 60)
    check("late cancel: Ctrl-C ends generate with 130", silent.returncode == 130, (silent.returncode, err))
    check("... cancelled, and no error", json.loads(out)["finish_reason"] == "cancelled" and err == b"", (out, err))
    out, err = processor.finish(stopped, 60)
    check("late cancel: --stop ends run with 0", stopped.returncode == 0 and out == b" alpha be\n",
          (stopped.returncode, out, err))
    check("... and --stats invents no timings", b"ended by stop; no timings" in err, err)
    check("late cancel: Ctrl-C gives chat's prompt back", t.expect("> ", 60), t.seen)
    check("... after all three were cancelled", len(daemon.cancelled) == 3 and len(daemon.late) == 3, daemon.late)
    daemon.script = [11] + ids_of(" fine thanks")
    t.type(b"again\n")
    check("... and the conversation goes on", t.expect(" fine thanks") and t.expect("> "), t.seen)
    check("... without the question that had no answer", text_of(daemon.prompts[-1]) == "[user]again\n[assistant]",
          daemon.prompts[-1])
    check("... past the late end of the first", len(daemon.late) == 2, daemon.late)
    t.type(b"\x04")
    check("... Ctrl-D leaves with 0", t.wait() == 0)
    daemon.stop()


def kinds(helm, count):
    return [(r.request_id, r.WhichOneof("body")) for r in (helm.receive() for _ in range(count))]


def check_silent(name, helm):
    """No call waits, and no answer is left to be dropped."""
    def clean():
        helm.status()
        return not helm._waiting and not helm._abandoned
    check(name, processor.until(clean), (helm._waiting, helm._abandoned))
    try:
        response = helm.receive(timeout_ms=0)
        check("... receive() has nothing", False, response)
    except helm_client.HelmError as e:
        check("... receive() has nothing", e.code is None, e)


def python_tests(folder):
    endpoint = "ipc://%s/python.sock" % folder
    daemon = Scripted(endpoint)
    daemon.start()
    with helm_client.Client(endpoint, timeout_ms=20000) as helm:
        for token in helm.stream([12, 5]):
            break
        check("Python client: leaving the loop cancels", processor.until(lambda: helm.list() == []))
        check_silent("... and leaves nothing behind", helm)
        for token in helm.stream([10], max_tokens=2):  # its Done is on its way: the cancel comes too late
            break
        check_silent("Python client: a Done that crosses the cancel", helm)
        stream = helm.stream([10], max_tokens=2)
        next(stream)
        processor.until(lambda: helm.status() and helm._waiting and list(helm._waiting.values())[0][-1][1].HasField("done"))
        cancels = helm._number
        stream.close()
        check("Python client: what has ended is not cancelled", helm._number == cancels, helm._number)
        check_silent("... and leaves nothing behind", helm)
        other = helm.generate([10, 1], max_tokens=2)
        for token in helm.stream([12, 5]):
            break
        check("Python client: others' answers stay, in order", [k for n, k in kinds(helm, 4)] ==
              ["accepted", "token", "token", "done"])
        check_silent("... and nothing else", helm)
        first, second = helm.generate([10], max_tokens=2), helm.generate([10], max_tokens=1)
        processor.until(lambda: helm.status() and sum(map(len, helm._waiting.values())) == 7)
        seen = kinds(helm, 7)
        check("Python client: receive() keeps the order of arrival", seen[0] == (first, "accepted") and
              [k for n, k in seen if n == first] == ["accepted", "token", "token", "done"] and
              [k for n, k in seen if n == second] == ["accepted", "token", "done"] and
              seen.index((first, "token")) < seen.index((second, "done")), seen)
        daemon.hold, helm.timeout_ms = True, 50
        try:
            helm.plan()
            check("Python client: an answer that does not come", False)
        except helm_client.HelmError as e:
            check("Python client: an answer that does not come", e.code is None and endpoint in str(e), e)
        daemon.hold, helm.timeout_ms = False, 20000
        check("... and comes late is not taken for another's", helm.list() == [])
        check_silent("... nor kept", helm)
        try:
            helm.cancel(12345)
            check("Python client: cancel of an unknown id", False)
        except helm_client.HelmError as e:
            check("Python client: cancel of an unknown id", e.code is not None and "no request" in str(e), e)
    daemon.stop()


def drop_capabilities():
    """Root is let in everywhere by its capabilities: without them its files' modes are what counts."""
    version_3 = (ctypes.c_uint32 * 2)(0x20080522, 0)
    nothing = (ctypes.c_uint32 * 6)()
    return ctypes.CDLL(None, use_errno=True).capset(version_3, nothing) == 0


def in_child(function, prepare=drop_capabilities):
    """The function's result as text, in a process of its own without capabilities."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = "no capset"
        try:
            if prepare():
                text = function()
        except BaseException as e:
            text = "%s: %s" % (type(e).__name__, e)
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        text = f.read()
    os.waitpid(pid, 0)
    return text


def owner_tests(folder):
    """A prompt goes to no other user's daemon: sockets and directories of users 2001 and 2002, asked for by 2001."""
    if os.geteuid():
        print("skipped: only root can be several users")
        return
    os.chmod(folder, 0o755)
    program_copy = shutil.copy(CLI, folder + "/helm-cli")  # another user may not enter the checkout
    mine, victim, other = 0, 2001, 2002
    cases = [  # directory: owner, mode; socket's owner; listener; words of the refusal, "" where it is let in
        ("own", victim, 0o700, victim, victim, ""),
        ("roots", mine, 0o755, mine, mine, ""),
        ("forged", other, 0o777, other, other, "its directory belongs to uid 2002"),
        ("open", victim, 0o777, victim, victim, "chmod go-w it"),
        ("group", victim, 0o770, victim, victim, "chmod go-w it"),
        ("sticky", mine, 0o1777, victim, victim, ""),
        ("planted", mine, 0o1777, other, other, "the socket belongs to uid 2002"),
        ("lent", victim, 0o700, victim, other, "the process that listens there belongs to uid 2002"),
        ("link", victim, 0o700, victim, victim, "the link to its directory belongs to uid 2002"),
    ]
    for name, owner, mode, socket_owner, listener, words in cases:
        place = os.path.join(folder, "owner-" + name)
        os.mkdir(place, 0o700)
        server = socket.socket(socket.AF_UNIX)
        server.bind(place + "/helmd.sock")
        os.chmod(place + "/helmd.sock", 0o666)
        os.chown(place + "/helmd.sock", socket_owner, socket_owner)
        os.chown(place, owner, owner)
        os.chmod(place, mode)
        os.seteuid(listener)  # listen() says whose it is
        server.listen()
        os.seteuid(0)
        if name == "link":
            os.symlink(place, place + "-2")
            os.lchown(place + "-2", other, other)
            place += "-2"
        endpoint = "ipc://" + place + "/helmd.sock"

        def asked():
            helm_client.connection.check_permission(endpoint)
            return "let in"
        for program, said in (("Python client", as_user(victim, asked)), ("helm-cli", as_user(victim, lambda: processor.run(
                [program_copy, "--connect", endpoint, "status"], capture_output=True, text=True, timeout=20).stderr))):
            check("%s: a socket in a directory %s" % (program, name), words in said if words else said == "let in", said)
            check("... which names the path", not words or place + "/helmd.sock" in said, said)
            if not words:
                break  # nothing answers helm-cli
        server.close()


def as_user(uid, function):
    """The function's result as text, in a process of that user."""
    def change():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        return function()
    return in_child(change, lambda: True)


def permission_tests(folder):
    system = os.path.join(folder, "system")
    os.mkdir(system)
    open(system + "/helmd.sock", "w").close()
    helm_client.connection.SYSTEM_SOCKET = system + "/helmd.sock"
    os.environ.pop("HELM_ENDPOINT", None)
    os.environ["XDG_RUNTIME_DIR"] = folder
    own = "ipc://%s/helm/helmd.sock" % folder
    check("Python client: the system's daemon first", helm_client.default_endpoint() == "ipc://" + system + "/helmd.sock")
    os.chmod(system, 0)
    check("Python client: closed to this user, it is still the one", in_child(helm_client.default_endpoint) ==
          "ipc://" + system + "/helmd.sock", in_child(helm_client.default_endpoint))
    said = in_child(lambda: helm_client.Client().endpoint)
    check("... which is told so, and who may", said.startswith(
        "HelmError: ipc://%s/helmd.sock: not permitted for this user; user '" % system) and said.endswith("' alone may connect"), said)
    os.chmod(system, 0o050)
    said = in_child(lambda: helm_client.Client().endpoint)
    check("... or which group's members", "; members of group '" in said, said)
    os.chmod(system, 0)
    os.mkdir(folder + "/helm")
    open(folder + "/helm/helmd.sock", "w").close()
    check("... unless one's own is there", in_child(helm_client.default_endpoint) == own,
          in_child(helm_client.default_endpoint))
    os.chmod(system, 0o700)
    shutil.rmtree(system)
    check("Python client: without a system's daemon one's own", helm_client.default_endpoint() == own)


if __name__ == "__main__":
    run_in_folder(remote_tests, late_cancel_tests, python_tests, owner_tests, permission_tests)
