#!/usr/bin/python3
"""helmd and where its profile comes from, with fake workers: measured at the first start, kept, completed, refused."""
import glob
import json
import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import BIN, Daemon, PROFILE, SLOW, check, run_tests, running, same, wait_until  # noqa: E402
from profile_machine import Machine  # noqa: E402


APART = ["unshare", "-m" if os.geteuid() == 0 else "-rm"]  # mounts of its own


def test_without_a_profile_the_machine_is_measured_once():
    m = Machine()
    path = m.place("--device", "cpu")
    m.helm_profile(f"echo 'memory: 12 GB/s' >&2; tee {path} <{PROFILE}")
    d = m.start("--device", "cpu")
    check(d.ready.startswith("ready "), d.ready)
    same(m.arguments(), [f"--device cpu --worker-dir {m.workers} --json --quick"], "helm-profile's arguments")
    for words in ["measuring it, quickly", "helm-profile: memory: 12 GB/s", "profile: " + path, "forecast: "]:
        check(words in d.log(), f"'{words}' is not in the log:\n{d.log()}")
    same(d.stop(), 0, "exit status")
    m.helm_profile("exit 9")
    d = m.start("--device", "cpu")
    check(d.ready.startswith("ready "), d.ready)
    same(m.arguments(), [], "runs of helm-profile once there is a profile")
    same(d.stop(), 0, "exit status")
    d = m.refused("--device", "cpu", "--threads", "2")  # other threads, another profile
    same(m.arguments(), [f"--device cpu --threads 2 --worker-dir {m.workers} --json --quick"], "helm-profile's arguments")
    d.close()


def test_the_models_own_programs_are_measured_once_and_again_when_they_cannot_be_used():
    m = Machine()
    path = m.place("--device", "cpu")
    fingerprint = os.path.basename(path)[:-len(".json")]
    here = os.path.join(m.base, "here.json")
    with open(here, "w") as f:
        json.dump(dict(json.load(open(PROFILE)), fingerprint=fingerprint), f)
    # The shapes are this test's own, so their key is asked of the real program, which measures them in this cache.
    real = [os.path.join(BIN, "helm-profile"), "--programs", "--model", m.base + "/model", "--device", "cpu"]
    done = processor.run(real, env=dict(os.environ, XDG_CACHE_HOME=m.cache, STATE_DIRECTORY=""), capture_output=True,
                          text=True, timeout=120 * SLOW)
    same(done.returncode, 0, done.stderr)
    programs = json.loads(done.stdout)
    same(programs["fingerprint"], fingerprint, "the machine")
    kept = os.path.join(os.path.dirname(path), f"programs-{programs['key']}.json")
    same(json.load(open(kept)), programs, "what is kept")
    check({k["name"] for k in programs["kinds"]} > {"attention of bf16", "head of bf16"}, programs["kinds"])
    check(all(cell[2] > 0 for k in programs["kinds"] for cell in k["exact"]), "seconds of every cell")
    asked = f"--device cpu --worker-dir {m.workers} --programs --model {m.base}/model --weights stored --kv-dtype f16"

    def started(script, words, runs, what):
        m.helm_profile(f'case "$*" in *--programs*) {script};; *) tee {path} <{here};; esac')
        d = m.start("--device", "cpu")
        check(d.ready.startswith("ready "), d.ready)
        same(m.arguments(programs=True), [asked] * runs, what)
        log = d.log().splitlines()
        log = "\n".join(log[max(i for i, line in enumerate(log) if "profile: " + path in line):])
        for word in words:
            check(word in log, f"{what}: '{word}' is not in the log:\n{log}")
        same(d.stop(), 0, "exit status")

    started("exit 1", ["the model's own programs, of " + programs["made"]], 0, "the kept ones")
    with open(kept, "w") as f:
        f.write("{\"helm_programs\": 1, \"kinds\": [")
    started(f"echo '{done.stdout}'", ["measured programs cannot be used", "measuring the model's own programs"], 1, "half a file")
    os.unlink(kept)
    for script, word in (("exit 3", "could not be measured"), ("echo '{}'", "could not be measured"),
                         (f"echo '{json.dumps(dict(programs, key='0' * 32))}'", "of other shapes or another machine")):
        started(script, [word, "prices go by rates"], 1, script[:20])


def test_a_model_that_vram_has_room_for_is_measured_on_the_device_alone():
    m = Machine(gpu=True)
    options = ["--device", "emulated"]
    path = m.place(*options)
    fingerprint = os.path.basename(path)[:-len(".json")]
    here = os.path.join(m.base, "here.json")
    with open(here, "w") as f:
        json.dump(dict(json.load(open(PROFILE)), fingerprint=fingerprint), f)
    real = [os.path.join(BIN, "helm-profile"), "--programs", "--model", m.base + "/model", *options, "--on", "device"]
    done = processor.run(real, env=dict(os.environ, XDG_CACHE_HOME=m.cache, STATE_DIRECTORY=""), capture_output=True,
                          text=True, timeout=120 * SLOW)
    same(done.returncode, 0, done.stderr)
    programs = json.loads(done.stdout)
    same(programs["fingerprint"], fingerprint, "the machine")
    kept = os.path.join(os.path.dirname(path), f"programs-{programs['key']}.json")
    asked = f"--device emulated --worker-dir {m.workers} --programs --model {m.base}/model --weights stored --kv-dtype f16"

    def started(*more, runs):
        m.helm_profile(f'case "$*" in *--programs*) exit 3;; *) tee {path} <{here};; esac')
        d = m.start(*options, *more)
        check(d.ready.startswith("ready "), d.ready)
        same(m.arguments(programs=True), runs, "what is measured")
        same(d.stop(), 0, "exit status")
        return d.log()
    check("the model's own programs, of " + programs["made"] in started(runs=[]), "the kept ones")
    os.unlink(kept)
    check("prices go by rates" in started(runs=[asked + " --on device"]), "none")


def test_a_disturbed_profile_widens_the_band_and_is_taken_again_when_it_is_quiet():
    m = Machine()
    path = m.place("--device", "cpu")
    busy = os.path.join(m.base, "busy.json")
    with open(busy, "w") as f:
        json.dump(dict(json.load(open(PROFILE)), busy_percent=40), f)
    m.helm_profile(f"tee {path} <{busy}")
    forecasts = []
    d = m.start("--device", "cpu")
    check("other programs took 40 % of the processors' time while it was measured" in d.log(), d.log())
    forecasts.append(decode_band(d))
    same(d.stop(), 0, "exit status")
    m.arguments()
    m.helm_profile(f"tee {path} <{PROFILE}")
    d = m.start("--device", "cpu")
    same(m.arguments(), [], "runs of helm-profile within ten minutes")
    same(d.stop(), 0, "exit status")
    for start in range(3):  # other tests are busy on this machine, too, mostly: then it is left for the next start
        os.utime(path, (time.time() - 700,) * 2)
        d = m.start("--device", "cpu")
        check(d.ready.startswith("ready "), d.ready)
        again = m.arguments()
        if again:
            break
        same(d.log().count("are at work now, too"), start + 1, "starts that left it, in the log")
        same(d.stop(), 0, "exit status")
    if again:
        same(again, [f"--device cpu --worker-dir {m.workers} --json --force"], "helm-profile's arguments")
        forecasts.append(decode_band(d))
        check(forecasts[0] > 1.5 * forecasts[1], forecasts)
    else:
        print("note: others kept this machine busy: nothing was measured again")
    d.close()


def decode_band(d):
    """The last forecast's band as a part of it: starts of one machine write to one log."""
    value, low, high = [float(x) for x in
                        re.findall(r"forecast: (\S+) token/s \((\S+) to (\S+)\)", d.log())[-1]]
    return (high - low) / value


def test_formats_that_the_profile_lacks_are_measured_into_it():
    m = Machine()
    options = ["--device", "cpu", "--weights", "q8_0"]
    path = m.place(*options)
    described = json.load(open(PROFILE))
    rate = {"value": 1e9, "source": "measured"}
    with open(os.path.join(m.base, "more.json"), "w") as f:
        json.dump(dict(described, formats={"q8_0": {"cpu_gemv": rate, "gpu_gemv": rate}}), f)
    m.helm_profile(f"tee {path} <{m.base}/more.json")  # at first the machine and its formats
    d = m.start(*options)
    check(d.ready.startswith("ready "), d.ready)
    same(m.arguments(), [f"--device cpu --formats q8_0 --worker-dir {m.workers} --json --quick"], "helm-profile's arguments")
    same(d.stop(), 0, "exit status")
    # a profile from before there were formats
    with open(path, "w") as f:
        json.dump(described, f)
    d = m.start(*options)
    check(d.ready.startswith("ready "), d.ready)
    same(m.arguments(), [f"--device cpu --formats q8_0 --worker-dir {m.workers} --json --quick"], "helm-profile's arguments")
    check("it has no rates of q8_0 yet: measuring them" in d.log(), d.log())
    check("are assumed" not in d.log(), d.log())
    same(d.stop(), 0, "exit status")
    # and no more; a model of bf16 never asks
    d = m.start(*options)
    same(m.arguments(), [], "runs of helm-profile once the profile has the format")
    same(d.stop(), 0, "exit status")
    with open(path, "w") as f:
        json.dump(described, f)
    d = m.start("--device", "cpu")
    same(m.arguments(), [], "runs of helm-profile for bf16")
    same(d.log().count("no rates of"), 1, "times that a format was lacking, in all starts")
    same(d.stop(), 0, "exit status")
    # that it fails is said, and what is assumed then
    m.helm_profile("echo 'no memory' >&2; exit 1")
    d = m.start(*options)
    check(d.ready.startswith("ready "), d.ready)
    for words in ["q8_0 could not be measured: helm-profile", "no memory",
                  "the profile has no rates of q8_0: bf16's bytes a second are assumed"]:
        check(words in d.log(), f"'{words}' is not in the log:\n{d.log()}")
    same(d.stop(), 0, "exit status")
    d.close()


def test_the_hint_at_a_careful_profile_names_this_machine():
    """Other threads or copies are another machine's profile: helmd would not see it."""
    m = Machine(gpu=True)
    options = ["--device", "emulated", "--threads", "1", "--emulated-copy", "64MiB"]
    path = m.place(*options)
    with open(path, "w") as f:
        json.dump(dict(json.load(open(PROFILE)), quick=True), f)
    d = m.start(*options)
    check(d.ready.startswith("ready "), d.ready)
    check("`helm-profile --device emulated --threads 1 --emulated-copy 67108864` takes" in d.log(), d.log())
    same(d.stop(), 0, "exit status")
    d.close()


def test_a_cached_profile_that_is_broken_is_measured_again():
    m = Machine()
    path = m.place("--device", "cpu")
    for broken in ["{", "{}", json.dumps(dict(json.load(open(PROFILE)), helm_profile=99))]:
        with open(path, "w") as f:
            f.write(broken)
        m.helm_profile(f"tee {path} <{PROFILE}")
        d = m.start("--device", "cpu")
        check(d.ready.startswith("ready "), d.ready)
        same(len(m.arguments()), 1, "runs of helm-profile")
        check("the cached profile cannot be used" in d.log(), d.log())
        same(d.stop(), 0, "exit status")
    d.close()


def test_a_profile_of_some_formats_alone_is_completed_for_others():
    m = Machine(intermediate=64, head_dim=32)  # whole blocks: nothing stays in bf16
    rate = {"value": 1e9, "source": "measured"}
    brief = dict(json.load(open(PROFILE)), brief=True, quick=True, formats={"q8_0": {"cpu_gemv": rate, "gpu_gemv": rate}})
    path = m.place("--device", "cpu")
    with open(os.path.join(m.base, "brief.json"), "w") as f:
        json.dump(brief, f)
    m.helm_profile(f"tee {path} <{m.base}/brief.json")
    d = m.start("--device", "cpu", "--weights", "q8_0")
    same(m.arguments(), [f"--device cpu --formats q8_0 --worker-dir {m.workers} --json --quick --brief"], "arguments")
    same(d.stop(), 0, "exit status")
    with open(os.path.join(m.base, "whole.json"), "w") as f:
        json.dump(dict(brief, brief=False), f)
    m.helm_profile(f"tee {path} <{m.base}/whole.json")
    d = m.start("--device", "cpu", "--weights", "q8_0")
    same(m.arguments(), [], "runs of helm-profile where the plan needs no more")
    same(d.stop(), 0, "exit status")
    d = m.start("--device", "cpu")  # a model of bf16; what is there of q8_0 is not lost
    same(m.arguments(), [f"--device cpu --formats q8_0 --worker-dir {m.workers} --json --quick --force"], "arguments")
    check("for models of some formats alone" in d.log(), d.log())
    same(d.stop(), 0, "exit status")
    d = m.start("--device", "cpu")
    same(m.arguments(), [], "runs of helm-profile once it is whole")
    same(d.stop(), 0, "exit status")
    with open(path, "w") as f:
        json.dump(brief, f)
    d = m.start("--device", "cpu", "--weights", "q8_0", "--kv-dtype", "q8_0")
    same(len(m.arguments()), 1, "runs of helm-profile for another type of the cache")
    same(d.stop(), 0, "exit status")
    d.close()


def without_a_place(what, m, env, words, cleanup=lambda: None):
    """A start that measures, keeps nothing and serves; twice."""
    m.helm_profile(f"cat {PROFILE}; echo '  1.0 s  not kept: no room' >&2")
    for start in range(2):
        d = Daemon("--device", "cpu", base=m.base, profile=None, env={"STATE_DIRECTORY": "", **env})
        check(d.ready.startswith("ready "), f"{what}: {d.ready}\n{d.log()}")
        same(len(m.arguments()), 1, f"{what}: runs of helm-profile")
        for word in ["warn: helm-profile:   1.0 s  not kept: no room: the next start measures again", *words]:
            check(word in d.log(), f"{what}: '{word}' is not in the log:\n{d.log()}")
        same(d.stop(), 0, "exit status")
    cleanup()
    d.close()


def test_a_profile_that_cannot_be_kept_or_read_is_no_reason_not_to_start():
    m = Machine()
    there = os.path.join(m.base, "there")
    os.mkdir(there)
    with open(os.path.join(there, "file"), "w"):
        pass
    for what, env, words in [
            ("no HOME", {"HOME": "", "XDG_CACHE_HOME": ""}, ["none of STATE_DIRECTORY, XDG_CACHE_HOME and HOME"]),
            ("a HOME that is not there", {"HOME": "/nonexistent", "XDG_CACHE_HOME": ""}, ["HOME is /nonexistent, which is no folder"]),
            ("a file in the cache's place", {"XDG_CACHE_HOME": there + "/file"}, [there + "/file/helm/profiles/"])]:
        without_a_place(what, Machine(), env, words)
    check(not os.path.exists("/nonexistent"), "a home was made for a user without one")
    path = m.place("--device", "cpu")
    os.makedirs(path)  # a folder where the file is to be: it can be neither read nor replaced, by root neither
    without_a_place("a folder in the profile's place", m, {"XDG_CACHE_HOME": m.cache}, ["the cached profile cannot be used: "])


def test_programs_name_a_proc_that_is_not_mounted():
    apart = [*APART, "sh", "-c"]
    if subprocess.run([*apart, "umount -l /proc && ! test -e /proc/self"], stderr=subprocess.DEVNULL).returncode:
        print("note: skipped, this user may not unmount /proc in a namespace of its own")
        return
    m = Machine()
    for command in [f"helmd --model {m.base}/model --device cpu", "helm-profile --device cpu --quick", "helm-plan --model " + m.base + "/model",
                    f"helm-cli --model {m.base}/model status"]:
        run = processor.run([*apart, f"umount -l /proc && exec {BIN}/{command}"], capture_output=True, text=True, timeout=60)
        check(run.returncode != 0 and "/proc is not mounted" in run.stderr, f"{command}: {run.returncode}, {run.stderr}")
        check("--ready-fd" not in run.stderr, run.stderr)


def test_a_cache_on_a_full_or_read_only_file_system():
    """A profile that is there is used; what cannot be kept is a warning."""
    m = Machine()
    m.helm_profile(f"cat {PROFILE}")
    there = os.path.join(m.base, "mounted")
    os.mkdir(there)
    for how in "size=4k,nr_inodes=3", "ro":
        script = (f"mount -t tmpfs -o {how} none {there} && {BIN}/helm-profile --device cpu --quick --brief --formats q8_0 2>&1 >/dev/null")
        run = subprocess.Popen([*APART, "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True, env={**os.environ, "STATE_DIRECTORY": "", "XDG_CACHE_HOME": there, "TMPDIR": m.base})
        said = [run.stdout.readline(), run.stdout.readline()]
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        if "mount:" in said[0] or "unshare:" in said[0]:
            print("note: skipped, this user may not mount in a namespace of its own")
            return
        check("not kept: " in said[0] and there in said[0] and "CPU: loading" in said[1], f"{how}: {said}")


def test_a_gpu_is_measured_quickly_too():
    m = Machine(gpu=True)
    faults = "probe_vram_mib=1000"
    path = m.place("--device", "cuda", faults=faults)
    described = json.load(open(PROFILE))
    for quick, hint in [(False, False), (True, True)]:
        with open(os.path.join(m.base, "made.json"), "w") as f:
            json.dump(dict(described, quick=quick), f)
        if os.path.exists(path):
            os.unlink(path)
        m.helm_profile(f"tee {path} <{m.base}/made.json")
        d = m.start("--device", "cuda", faults=faults)
        check(d.ready.startswith("ready "), d.ready)
        same(m.arguments(), [f"--device cuda:0 --worker-dir {m.workers} --json --quick"], "helm-profile's arguments")
        same("makes better forecasts" in d.log(), hint, "the hint at a careful profile")
        same("`helm-profile --device cuda:0` takes" in d.log(), hint, "what it says to run")
        check("measuring it, quickly (some seconds)" in d.log(), d.log())
        same(d.stop(), 0, "exit status")
    d.close()


def test_a_helm_profile_that_is_not_there_or_fails_is_an_error_with_its_last_line():
    m = Machine()
    d = m.refused("--device", "cpu")
    for words in ["error ", "--profile FILE", f"{m.workers}/helm-profile"]:
        check(words in d.ready, f"'{words}' is not in '{d.ready}'")
    for script, words in [("echo one >&2; echo 'two: no memory' >&2; exit 1", ["exited with status 1: two: no memory"]),
                          ("kill -9 $$", ["killed by signal 9"]),
                          ("printf 'half a line' >&2; exit 3", ["status 3: half a line"])]:
        m.helm_profile(script)
        d = m.refused("--device", "cpu")
        for word in words + ["no profile of this machine (--profile FILE gives one)"]:
            check(word in d.ready, f"{script}: '{word}' is not in '{d.ready}'")
    same(d.left_behind(), [], "left behind")
    d.close()


def running_as(line):
    """Whether any process has this command line."""
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            if open(path, "rb").read() == line:
                return True
        except OSError:
            pass
    return False


def test_ending_helmd_ends_a_measurement_in_order():
    m = Machine()
    m.helm_profile("echo begun >&2; exec sleep 100.125")
    for sig, name in [(signal.SIGTERM, "Terminated"), (signal.SIGINT, "Interrupt"), (signal.SIGHUP, "Hangup")]:
        d = m.start("--device", "cpu", wait=False)
        begun = d.log().count("begun")
        check(wait_until(lambda: d.log().count("begun") > begun and running_as(b"sleep\x00100.125\x00"), 10), d.log())
        same(d.stop(sig), 0, f"exit status: {d.log()}")
        ready = d.wait_ready()
        check(ready.startswith("error cancelled ended on request") and name in ready, ready)
        check(wait_until(lambda: not running_as(b"sleep\x00100.125\x00"), 5), "the measurement goes on")
        same(d.left_behind(), [], "left behind")
    d.close()


def test_ending_helmd_ends_a_probe_in_order():
    for device in "cuda", "auto":
        with running("--device", device, gpu=True, faults="probe_hang=1", wait=False) as d:
            check(wait_until(lambda: "gpu" in d.children(), 10), d.log())
            same(d.stop(), 0, f"exit status: {d.log()}")
            check(d.wait_ready().startswith("error cancelled "), d.log())
            same(d.left_behind(), [], "left behind")


def test_a_parents_unread_bytes_do_not_keep_helmd_busy_while_it_measures():
    m = Machine()
    m.helm_profile("echo begun >&2; exec sleep 100.25")
    r, w = os.pipe()
    os.set_inheritable(r, True)
    os.write(w, b"nobody reads this yet\n")
    d = m.start("--device", "cpu", "--parent-fd", r, wait=False)
    os.close(r)

    def cpu_seconds():
        with open(f"/proc/{d.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    check(wait_until(lambda: "begun" in d.log(), 10), d.log())
    before = cpu_seconds()
    time.sleep(1.5)
    used = cpu_seconds() - before
    check(used < 0.3, f"{used:.2f} s of processor time while waiting")
    os.close(w)
    same(processor.ended(d.process, 10 * SLOW), 0, f"exit status: {d.log()}")
    check("the parent has gone" in d.log(), d.log())
    check(wait_until(lambda: not running_as(b"sleep\x00100.25\x00"), 5), "the measurement goes on")
    d.close()


if __name__ == "__main__":
    run_tests(globals())
