#!/usr/bin/python3
"""helmd when things die: workers, helmd itself, its keeper, its parent. Time may be lost, tokens may not, and
nothing may be left behind."""
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import (Client, Daemon, check, expected_tokens, pb, run_tests, running, same, wait_until,  # noqa: E402
                           SLOW)


def stream_through(d, count=120, requests=4, disturb=None):
    """Several requests; `disturb(tokens so far)` is called as tokens come. All must end as if nothing happened."""
    c = Client(d.endpoint)
    streams = [c.generate([5 + n, 6, 7] * (n + 1), count, seed=n) for n in range(requests)]
    end = processor.clock() + 60 * SLOW
    while not all(s.ended for s in streams) and processor.clock() < end:
        c.receive(30)
        if disturb:
            disturb(sum(len(s.tokens) for s in streams))
    for n, s in enumerate(streams):
        same(s.tokens, expected_tokens([5 + n, 6, 7] * (n + 1), count, seed=n), f"stream {n} ({s.error or s.done})")
    return c.ask("status").status


def test_a_worker_killed_mid_stream_costs_no_token():
    with running(faults="step_us=3000") as d:
        killed = []

        def disturb(tokens):
            if tokens > 60 * (len(killed) + 1) and len(killed) < 4:
                worker = d.children().get("worker")
                if worker and worker not in killed:
                    os.kill(worker, signal.SIGKILL)
                    killed.append(worker)

        stream_through(d, disturb=disturb)
        check(len(killed) >= 3, f"killed only {len(killed)}")
        # The last one may have been killed when all tokens were on their way already.
        c = Client(d.endpoint)
        wait_until(lambda: c.ask("status").status.workers[0].restarts == len(killed) and
                   c.ask("status").status.state == "ready", 5)
        status = c.ask("status").status
        same(status.workers[0].restarts, len(killed), "restarts")
        same(status.workers[0].kernels, "fake reused", "the weights in the arena were read again")


def test_a_worker_that_crashes_in_a_step_costs_no_token():
    with running("--parallel", 8, faults="step_us=1000 crash_step=25 crash_epoch=1") as d:
        status = stream_through(d)
        same(status.workers[0].epoch, 2, "epoch")
        check("signal 6" in d.log(), "no abort in the log")


def test_a_worker_that_breaks_the_result_is_replaced():
    with running(faults="bad_result=20 crash_epoch=1") as d:
        status = stream_through(d)
        same(status.workers[0].epoch, 2, "epoch")
        check("sampled token" in d.log(), "no reason in the log")


def test_a_worker_that_hangs_is_replaced():
    with running("--step-timeout-ms", 300, faults="hang_step=20 crash_epoch=1") as d:
        status = stream_through(d)
        same(status.workers[0].epoch, 2, "epoch")
        check("PING is not answered" in d.log(), "no reason in the log")


def test_a_worker_that_sends_garbage_is_killed():
    with running("--restart-limit", 2, faults="garbage=1") as d:
        same(processor.ended(d.process, 20 * SLOW), 5, "exit status")
        check("no control message" in d.log(), d.log())
        same(d.left_behind(), [], "left behind")


def test_a_request_that_kills_workers_fails_alone():
    with running("--restart-limit", 50, faults="crash_step=1") as d:
        c = Client(d.endpoint)
        s = c.generate([3], 10)
        c.run(s)
        same(s.done.finish_reason, pb.FINISH_ERROR, "reason")
        check("3 workers died" in s.done.detail, s.done.detail)
        check(wait_until(lambda: c.ask("status").status.state == "ready", 10), "not ready again")


def test_workers_that_never_start_are_refused_with_the_reason():
    for faults, code, word in [("exit_load=1", "peer", "status 9"), ("bad_epoch=1", "peer", "epoch"),
                               ("fault_load=1", "capacity", "fake weights do not fit"),
                               ("bad_abi=1", "mismatch", "ABI")]:
        d = Daemon(faults=faults)
        same(processor.ended(d.process, 20 * SLOW), 4, f"{faults}: {d.log()}")
        check(d.ready.startswith(f"error {code} ") and word in d.ready, f"{faults}: {d.ready}")
        same(d.left_behind(), [], "left behind")
        d.close()


def test_workers_that_never_start_again_end_the_daemon_with_the_reason():
    """However seldom they die: loading may take minutes, and what it needs be gone for good."""
    for faults, word in [("fault_load=1", "the fake weights do not fit"), ("exit_load=1", "exited with status 9")]:
        with running("--restart-limit", 1000, faults=f"crash_step=5 crash_epoch=1 load_from=2 {faults}") as d:
            c = Client(d.endpoint)
            s = c.generate([3], 100)
            c.run(s)
            same(s.done.finish_reason, pb.FINISH_ERROR, "reason")
            check("could not be started again" in s.done.detail and word in s.done.detail, s.done.detail)
            same(processor.ended(d.process, 20 * SLOW), 5, "exit status")
            check("giving up: workers could not be started again" in d.log(), d.log())
            check("epoch 4" in d.log() and "epoch 5" not in d.log(), d.log())
            same(d.left_behind(), [], "left behind")


def test_starts_that_fail_now_and_then_cost_no_token():
    """Two fail, the next comes to READY: they are counted anew after that."""
    with running("--restart-limit", 1000, faults="step_us=1000 crash_step=25 exit_load=1 load_from=2 load_to=3") as d:
        c = Client(d.endpoint)
        s = c.generate([3], 40)
        c.run(s)
        same(s.tokens, expected_tokens([3], 40), f"tokens ({s.error or s.done})")
        same(c.ask("status").status.workers[0].epoch, 4, "epoch")
        os.kill(d.children()["worker"], signal.SIGKILL)
        check(wait_until(lambda: d.log().count("worker cpu ready:") == 3, 10), d.log())


def test_too_many_deaths_end_the_daemon_with_a_reason():
    with running("--restart-limit", 3, faults="step_us=20000") as d:
        c = Client(d.endpoint)
        s = c.generate([3], 500)
        seen = set()

        def kill_next():
            worker = d.children().get("worker")
            if worker and worker not in seen and d.log().count("worker cpu ready:") > len(seen):
                seen.add(worker)
                os.kill(worker, signal.SIGKILL)
            return d.process.poll() is not None or s.ended

        check(wait_until(kill_next, 20), "still going")
        c.run(s, timeout=5)
        same(s.done.finish_reason, pb.FINISH_ERROR, "reason")
        check("died 4 times" in s.done.detail, s.done.detail)
        same(processor.ended(d.process, 5 * SLOW), 5, "exit status")
        same(d.left_behind(), [], "left behind")


def test_a_file_in_the_place_of_the_socket_is_refused_and_stays():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "notes.txt")
        with open(path, "w") as f:
            f.write("mine")
        d = Daemon("--listen", "ipc://" + path)
        same(processor.ended(d.process, 20 * SLOW), 4, f"exit status: {d.log()}")
        check("exists and is not a socket" in d.ready, d.ready)
        same(os.listdir(folder), ["notes.txt"], "files")
        with open(path) as f:
            same(f.read(), "mine", "its text")
        same(d.left_behind(), [], "left behind")
        d.close()


def test_helmd_killed_leaves_nothing_and_restarts_at_once():
    with running(faults="step_us=2000") as d:
        c = Client(d.endpoint)
        s = c.generate([3], 400)
        while len(s.tokens) < 3:
            c.receive()
        before = set(os.listdir("/dev/shm"))
        os.kill(d.pid, signal.SIGKILL)
        d.process.wait()
        started = processor.clock()
        again = Daemon(base=d.base)
        check(again.ready.startswith("ready "), again.ready + again.log())
        took = processor.clock() - started
        check(took < 2 * SLOW, f"restart took {took:.2f} s")
        fresh = Client(again.endpoint)
        t = fresh.generate([3], 20, seed=2)
        fresh.run(t)
        same(t.tokens, expected_tokens([3], 20, seed=2), "tokens after restart")
        again.process.kill()
        again.process.wait()
        check(wait_until(lambda: not again.left_behind(), 10), f"left behind: {again.left_behind()}")
        same(set(os.listdir("/dev/shm")) - before, set(), "shared memory")


def test_the_keeper_is_replaced_and_still_keeps():
    with running() as d:
        keeper = d.keeper()
        os.kill(keeper, signal.SIGKILL)
        check(wait_until(lambda: d.children().get("keeper") not in (None, keeper), 3), "no new keeper")
        os.kill(d.pid, signal.SIGKILL)
        d.process.wait()
        check(wait_until(lambda: not d.left_behind(), 10), f"left behind: {d.left_behind()}")


def test_helmd_and_keeper_killed_together_can_be_restarted():
    with running() as d:
        keeper = d.keeper()
        os.kill(keeper, signal.SIGKILL)
        os.kill(d.pid, signal.SIGKILL)
        d.process.wait()
        check(wait_until(lambda: not any("process" in x for x in d.left_behind()), 2), "the worker lives on")
        again = Daemon(base=d.base)
        check(again.ready.startswith("ready "), again.ready)
        again.stop()
        same(again.left_behind(), [], "left behind")


def test_a_worker_that_ignores_shutdown_is_killed():
    with running(faults="ignore_shutdown=1") as d:
        started = processor.clock()
        same(d.stop(), 0, "exit status")
        check(processor.clock() - started < 6 * SLOW, "slow")
        same(d.left_behind(), [], "left behind")


def test_a_private_daemon_ends_with_its_parent():
    with running() as first:
        base = first.base
        first.stop()
        script = (
            "import os, sys; sys.path.insert(0, sys.argv[1]); from helmd_harness import Daemon\n"
            "d = Daemon('--die-with-parent', base=sys.argv[2]); print(d.pid, d.ready, flush=True); import time\n"
            "time.sleep(60)\n")
        parent = subprocess.Popen([sys.executable, "-c", script, os.path.dirname(os.path.abspath(__file__)), base],
                                  stdout=subprocess.PIPE, text=True)
        line = parent.stdout.readline()
        check(" ready " in line, line)
        parent.kill()
        parent.wait()
        parent.stdout.close()
        check(wait_until(lambda: not first.left_behind(), 10), f"left behind: {first.left_behind()}")


def test_a_closed_parent_pipe_ends_it_too():
    with running() as first:
        base = first.base
        first.stop()
        r, w = os.pipe()
        os.set_inheritable(r, True)
        d = Daemon("--parent-fd", r, base=base)
        check(d.ready.startswith("ready "), d.ready)
        os.close(w)
        same(processor.ended(d.process, 5 * SLOW), 0, "exit status")
        os.close(r)
        same(d.left_behind(), [], "left behind")


if __name__ == "__main__":
    run_tests(globals())
