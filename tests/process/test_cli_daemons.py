#!/usr/bin/python3
"""helm-cli with a daemon of its own (--model), a stand-in and the real one; the real one over TCP, with keys.

HELM_BIN: folder of the programs; HELM_PYPROTO: where protoc's Python output lies. Run from the repository's root.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "client/python", "tests/process"]
from cli_harness import CLI, MODEL, PROFILE, Terminal, check, check_exit, cli, run_in_folder  # noqa: E402
import processor  # noqa: E402
import zmq  # noqa: E402


def private_tests(folder):
    own = os.path.join(folder, "own")
    runtime = os.path.join(folder, "runtime")
    os.mkdir(own)
    os.mkdir(runtime, 0o700)
    program = os.path.join(own, "helm-cli")
    shutil.copy(CLI, program)
    more = {"program": program, "env": {"XDG_RUNTIME_DIR": runtime, "FAKE_HELMD_ARGS": folder + "/args"}}
    check_exit("--model without a helmd beside helm-cli", 4, "--model", MODEL, "status", text="no helmd to start", **more)
    shutil.copy("tests/process/fake_helmd.py", os.path.join(own, "helmd"))
    os.chmod(os.path.join(own, "helmd"), 0o755)
    out = check_exit("--model starts a private daemon", 0, "--model", MODEL, "--device", "cpu", "--vram", "1GiB",
                     "--host-memory", "2GiB", "--ctx", "512", "--threads", "2", "--plan", "p.json", "--kv-dtype", "f32", "--profile", "q.json", "--strategy", "thesis",
                     "generate", "--tokens", "10", "-n", "2", "--json", **more)
    check("... that generates", json.loads(out)["tokens"] == [100, 101], out)
    args = open(folder + "/args").read().split("\n")
    value = dict(zip(args, args[1:]))
    check("... with the options handed over", value["--model"] == MODEL and value["--device"] == "cpu" and
          value["--vram"] == str(1 << 30) and value["--host-memory"] == str(2 << 30) and value["--ctx"] == "512" and
          value["--threads"] == "2" and value["--plan"] == "p.json" and value["--kv-dtype"] == "f32" and
          value["--profile"] == "q.json" and value["--strategy"] == "thesis" and
          "--die-with-parent" in args and value["--listen"].startswith("ipc://" + runtime), args)
    check("... and leaves nothing behind", os.listdir(runtime) == [], os.listdir(runtime))
    for how, status, text in (("refuse", 4, "does not fit: needs 10 GiB"), ("die", 5, "about to die")):
        more["env"]["FAKE_HELMD"] = how
        check_exit("a private daemon told to %s" % how, status, "--model", MODEL, "status", text=text, **more)
        check("... leaves nothing behind", os.listdir(runtime) == [], os.listdir(runtime))
    more["env"]["FAKE_HELMD"] = "measure"
    err = cli("--model", MODEL, "status", **more)[2]
    check("that the machine is measured is said once", err == "helm-cli: measuring this machine\n", err)
    err = cli("--model", MODEL, "--log-level", "warn", "status", **more)[2]
    check("... not beside the daemon's own log", "measuring" not in err, err)
    t = Terminal("--model", MODEL, "status", program=program, env=more["env"])
    check("... on a terminal with how far it is", t.expect(" s  measuring this machine: 1.5 s  CPU: 2 threads read 12 GB/s") and
          t.expect("helmd 0.0-fake") and t.wait() == 0, t.seen)
    more["env"]["FAKE_HELMD"] = "check"
    err = cli("--model", MODEL, "status", **more)[2]
    check("so is that int8 activations are checked", err == "helm-cli: checking int8 activations\n", err)
    t = Terminal("--model", MODEL, "status", program=program, env=more["env"])
    check("... on a terminal by name, with how far it is, not as loading",
          t.expect(" s  checking int8 activations: 96 positions compared in 2.1 s of at most 10") and
          t.expect("helmd 0.0-fake") and t.wait() == 0 and "loading" not in t.seen, t.seen)
    for how, args in (("hang", ["status"]), ("", ["generate", "--tokens", "12,300", "-n", "4000"])):
        env = {**os.environ, **more["env"], "FAKE_HELMD": how}
        p = subprocess.Popen([program, "--model", MODEL, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        if how:
            begun = processor.wait_blocks(p, signal.SIGINT)
            time.sleep(0.5)  # its helmd loads and never ends
        else:
            begun = p.stdout.read(1) != b""
        p.send_signal(signal.SIGINT)
        out, err = processor.finish(p, 15)
        name = "while loading" if how else "while generating"
        check("Ctrl-C %s ends with 130" % name, begun and p.returncode == 130, (begun, p.returncode, err))
        check("... and leaves nothing behind", os.listdir(runtime) == [], os.listdir(runtime))


def helmd_tests(folder):
    """The real daemon behind --model: what the stand-in cannot show."""
    runtime = os.path.join(folder, "real")
    os.mkdir(runtime, 0o700)
    env = {"XDG_RUNTIME_DIR": runtime}
    golden = json.load(open(os.path.join(MODEL, "golden.json")))["cases"][0]
    prompt = ",".join(map(str, golden["prompt"]))
    at = ("--model", MODEL, "--device", "cpu", "--threads", "1", "--profile", PROFILE)
    out = check_exit("helmd: generate", 0, *at, "generate", "--tokens", prompt, "-n", "4", "--logprobs", "3", "--json",
                     env=env)
    result = json.loads(out)
    steps = golden["steps"][:4]
    sure = all(step["gap"] > 0.4 for step in steps)
    check("... agrees with the reference", len(result["tokens"]) == 4 and
          (not sure or result["tokens"] == [step["token"] for step in steps]) and
          abs(result["logprobs"][0][0]["logprob"] - steps[0]["top"][0][1]) < 0.4, result)
    check("... leaves nothing behind", os.listdir(runtime) == [], os.listdir(runtime))
    check_exit("helmd: run", 0, *at, "run", "Once upon", "-n", "8", env=env)
    check_exit("helmd: status", 0, *at, "status", text="ready", env=env)
    plan = json.loads(check_exit("helmd: plan --json", 0, *at, "plan", "--json", env=env))
    check("... covers every layer", plan["stages"]["decode"][-1]["layers"][1] == plan["layers"] - 1, plan)
    check("... with a forecast of everything, and nothing measured yet", plan["forecast"]["decode_tok_s"]["value"] > 0 and
          plan["forecast"]["ttft_ms"]["value"] > 0 and plan["measured"]["decode"] == [], plan)
    saved = os.path.join(folder, "saved.json")
    with open(saved, "w") as f:
        json.dump(plan, f)
    again = json.loads(check_exit("helmd: what it prints is a plan again", 0, *at, "--plan", saved, "plan", "--json",
                                  env=env))
    check("... the same", again["stages"] == plan["stages"], again)
    check_exit("helmd: plan as a table", 0, *at, "plan", text="HOST MEMORY", env=env)
    check_exit("helmd: a device that is none is a usage error", 2, "--model", MODEL, "--device", "foo", "run", "x",
               text="foo", env=env)
    check_exit("helmd: --strategy is handed on", 4, *at, "--strategy", "all-gpu", "plan", env=env)
    check_exit("helmd: a strategy that is none", 2, *at, "--strategy", "fast", "plan", text="--strategy", env=env)
    check_exit("helmd: a profile that is none", 4, *at[:-1], saved, "plan", text="--profile", env=env)
    check_exit("helmd: too little memory is refused with numbers", 4, *at, "--host-memory", "1MiB", "status",
               text="1.00 MiB", env=env)
    check_exit("helmd: no such folder is refused", 4, "--model", folder + "/none", "status", text="/none", env=env)
    check_exit("helmd: a prompt beyond the context is refused", 4, *at, "--ctx", "64", "generate", "--tokens", "5,6", "-n",
               "100", text="64", env=env)
    check_exit("helmd: a token beyond the vocabulary is refused", 4, *at, "generate", "--tokens", "99999", "-n", "1",
               text="99999", env=env)
    check("... all of them leave nothing behind", os.listdir(runtime) == [], os.listdir(runtime))
    for name, number in (("Ctrl-C", signal.SIGINT), ("kill -9", signal.SIGKILL)):
        p = subprocess.Popen([CLI, *at, "generate", "--tokens", prompt, "-n", "4000", "--ignore-eos"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **env})
        p.stdout.read(1)
        children = [int(c) for c in open("/proc/%d/task/%d/children" % (p.pid, p.pid)).read().split()]
        p.send_signal(number)
        processor.finish(p, 20)
        check("helmd: %s ends helm-cli" % name, p.returncode == (130 if number == signal.SIGINT else -9), p.returncode)
        check("... and the daemon with it", children and processor.until(lambda: not any(os.path.exists("/proc/%d" % c) for c in children)))
        sockets = [f for _, _, files in os.walk(runtime) for f in files if f.endswith(".sock")]
        check("... no socket is left", sockets == [], sockets)
    left = os.listdir(runtime)
    check("kill -9 leaves only its directory", len(left) == 1, left)
    os.utime(os.path.join(runtime, left[0]), (1, 1))
    check_exit("the next helm-cli", 0, *at, "status", env=env)
    check("... removes it", os.listdir(runtime) == [], os.listdir(runtime))


def curve_tests(folder):
    """The real daemon over TCP: only with keys that fit."""
    for name, key in zip(("daemon", "client", "stranger"), [zmq.curve_keypair() for _ in range(3)]):
        for part, text in zip(("public", "secret"), key):
            path = os.path.join(folder, "%s.%s" % (name, part))
            with open(path, "wb") as f:
                f.write(text + b"\n")
            os.chmod(path, 0o600)
    free = socket.socket()
    free.bind(("127.0.0.1", 0))
    endpoint = "tcp://127.0.0.1:%d" % free.getsockname()[1]
    free.close()
    local = "ipc://%s/local.sock" % folder
    ready, told = os.pipe()
    daemon = subprocess.Popen(
        [os.path.join(os.environ["HELM_BIN"], "helmd"), "--model", MODEL, "--listen", endpoint, "--listen", local, "--rundir", folder,
         "--curve-secret-key-file", folder + "/daemon.secret", "--curve-clients-file", folder + "/client.public",
         "--ready-fd", str(told), "--log-level", "error", "--threads", "1", "--profile", PROFILE], pass_fds=[told])
    os.close(told)
    check("helmd listens on TCP", os.read(ready, 200).startswith(b"ready"))
    os.close(ready)

    def at(public, secret):
        return ("--connect", endpoint, "--curve-daemon-key-file", "%s/%s.public" % (folder, public),
                "--curve-secret-key-file", "%s/%s.secret" % (folder, secret))
    check_exit("TCP with the right keys", 0, *at("daemon", "client"), "generate", "--tokens", "5", "-n", "2")
    check_exit("TCP with a key that is not allowed", 3, *at("daemon", "stranger"), "status", text="keys")
    check_exit("TCP with another daemon's key", 3, *at("stranger", "client"), "status", text="keys")
    # a model that is not there: what is refused first is refused before anything is read, planned or measured
    for name, listen, text in (("socket", local, "another helmd (pid %d) already listens on %s: " % (daemon.pid, local)),
                               ("port", endpoint, "cannot listen on %s: Address already in use" % endpoint)):
        check_exit("a second daemon on the same %s is refused at once" % name, 4, "--model", folder + "/absent", "--listen", listen,
                   "--rundir", folder, text=text, program=os.path.join(os.environ["HELM_BIN"], "helmd"))
    daemon.terminate()
    processor.ended(daemon, 20)


if __name__ == "__main__":
    run_in_folder(private_tests, helmd_tests, curve_tests)
