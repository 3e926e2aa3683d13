"""The processors of the tests: instructions and time. For tests and for tests/run.py.

flags(): those that HELM's programs see, the kernel's in /proc/cpuinfo less those that HELM_CPU masks (common/base/cpu.c).
clock(): seconds for limits of time. While more tasks want to run than there are processors, a second counts as the part of
one that a task gets, so that a limit holds beside other work too.
Others: whether other programs ran meanwhile. Rates that were measured beside them compare with nothing."""
import contextlib
import os
import resource
import subprocess
import threading
import time

LEAST_SHARE = 1 / 16
LOOK_S = 0.1
SLICE_S = 0.5
TICKS = os.sysconf("SC_CLK_TCK")

AVX2 = {"avx2"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
BF16 = AVX512 | {"avx512_bf16"}
# each name of HELM_CPU, and the flags that it leaves
LEFT = {"avx2": AVX2, "avx512": AVX512, "avx512-bf16": BF16, "amx-bf16": BF16 | {"amx_bf16", "amx_tile", "amx_int8"},
        "avx512-fp16": AVX512 | {"avx512_fp16"}, "avx512-vbmi2": AVX512 | {"avx512vbmi", "avx512_vbmi2"},
        "avx512-vnni": AVX512 | {"avx512_vnni"}, "none": set()}
KNOWN = set().union(*LEFT.values())


def flags(mask=None):
    with open("/proc/cpuinfo") as f:
        found = next((set(line.split()) for line in f if line.startswith("flags")), set())
    mask = os.environ.get("HELM_CPU", "") if mask is None else mask
    return found - KNOWN | found & set().union(*(LEFT[name] for name in mask.split(","))) if mask else found


def share():
    """The part of a processor that a task gets now, where all that want to run get as much."""
    with open("/proc/loadavg") as f:
        running = int(f.read().split()[3].split("/")[0]) - 1  # this thread is one
    return max(min(1, len(os.sched_getaffinity(0)) / max(running, 1)), LEAST_SHARE)


class Clock:
    """A thread looks at the share all the time, since who asks twice in a minute would miss what was between. Who asks does not look:
    clients ask several times a token."""

    def __init__(self):
        self.lock, self.sum, self.at, self.share = threading.Lock(), 0, time.monotonic(), share()
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while True:
            time.sleep(LOOK_S)
            now = share()
            with self.lock:
                self.sum += (time.monotonic() - self.at) * now
                self.at, self.share = time.monotonic(), now

    def now(self):
        with self.lock:
            return self.sum + (time.monotonic() - self.at) * self.share


the_clock = None


def clock():
    global the_clock
    the_clock = the_clock or Clock()
    return the_clock.now()


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def said_of(pid, what):
    """A file of a process's folder in /proc; nothing where it has ended."""
    try:
        fd = os.open("/proc/%d/%s" % (pid, what), os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(fd)


def command_line(pid):
    """Its arguments, each with a NUL at its end. The kernel's threads and zombies have none."""
    return said_of(pid, "cmdline")


def stat_rows():
    """Each process: its number, its parent's, and its processor seconds with those of its children that it waited for."""
    for pid in pids():
        fields = said_of(pid, "stat").rpartition(b")")[2].split()
        if fields:
            yield pid, int(fields[1]), sum(map(int, fields[11:15])) / TICKS


def spent_by_tree():
    """Processor seconds of this process and all that it started. None where one ended while they were read."""
    def below():
        rows, tree = list(stat_rows()), {os.getpid()}
        while (more := {pid for pid, parent, _ in rows if parent in tree} - tree):
            tree |= more
        return {pid: spent for pid, _, spent in rows if pid in tree}
    before = below()
    spent = sum(os.times()[:4]) - before[os.getpid()] + sum(before.values())
    return spent if below().keys() == before.keys() else None


def spent_by_all():
    """Seconds that the processors this may run on were busy, those included that a host took from a virtual machine."""
    mine = {"cpu%d" % cpu for cpu in os.sched_getaffinity(0)}
    with open("/proc/stat") as f:
        rows = [line.split() for line in f if line.startswith("cpu")]
    return sum(sum(map(int, row[1:4] + row[6:9])) for row in rows if row[0] in mine) / TICKS


class Others:
    """The processors' part that other programs take. A thread looks twice a second, so that no short burst is missed."""

    def __init__(self):
        self.lock, self.slices, self.last = threading.Lock(), [], None
        self.look()
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while True:
            time.sleep(SLICE_S)
            self.look()

    def look(self):
        with self.lock:
            at, own, busy = time.monotonic(), spent_by_tree(), spent_by_all()
            if own is None or self.last and at - self.last[0] < SLICE_S / 2:
                return
            if self.last:
                taken = (busy - self.last[2] - (own - self.last[1])) / (at - self.last[0])
                self.slices.append((at, taken / len(os.sched_getaffinity(0))))
            self.last = at, own, busy

    def most(self, since):
        """The largest part of the processors that they took in a slice of the time since."""
        self.look()
        return max([part for at, part in self.slices if at > since], default=0)


class Attention:
    """The processor time of a process's first thread, as the kernel counts it. Other processes' work is no part of it."""

    def __init__(self, pid):
        try:
            self.fd = os.open("/proc/%d/task/%d/schedstat" % (pid, pid), os.O_RDONLY)
        except FileNotFoundError:  # a kernel without CONFIG_SCHED_INFO
            self.fd = None

    def now(self):
        """(seconds that it ran, seconds that it waited for a processor), or None."""
        try:
            return tuple(int(n) * 1e-9 for n in os.pread(self.fd, 100, 0).split()[:2]) if self.fd else None
        except ProcessLookupError:  # it has ended
            return None


def spent_by_children():
    """Seconds of processor time of all processes that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wait(seconds, attempt):
    """Calls attempt(slice of time) until it gives something or `seconds` of clock() are over; then None."""
    end = clock() + seconds
    while (given := attempt(max(min(end - clock(), 1), 0.001))) is None and clock() < end:
        pass
    return given


def until(condition, seconds=30):
    """A condition's value, as soon as it is true; its last value where seconds of clock() are over."""
    return wait(seconds, lambda slice_s: condition() or time.sleep(min(slice_s, 0.005))) or condition()


def blocks(process, number):
    """Whether a program that reads signals from a descriptor has come so far: before, the signal would just end it."""
    with open("/proc/%d/status" % process.pid) as f:
        blocked = next(int(line.split()[1], 16) for line in f if line.startswith("SigBlk:"))
    return bool(blocked >> number - 1 & 1)


def wait_blocks(process, number, seconds=30):
    return until(lambda: blocks(process, number), seconds)


def ended(process, seconds):
    """The exit status of a process that ends within that many seconds of clock()."""
    def attempt(slice_s):
        try:
            return process.wait(slice_s)
        except subprocess.TimeoutExpired:
            return None

    status = wait(seconds, attempt)
    if status is None:
        raise subprocess.TimeoutExpired(process.args, seconds)
    return status


def feed(stream, text):
    with contextlib.suppress(BrokenPipeError), stream:
        stream.write(text)


def finish(process, seconds, text=None):
    """As process.communicate(text, seconds), but the seconds are those of clock(). A thread writes the text, since
    communicate() forgets the rest of it after a timeout (seen in Python 3.11)."""
    if text:
        threading.Thread(target=feed, args=(process.stdin, text), daemon=True).start()
        process.stdin = None

    def attempt(slice_s):
        try:
            return process.communicate(timeout=slice_s)
        except subprocess.TimeoutExpired:
            return None

    both = wait(seconds, attempt)
    if both is None:
        process.kill()
        raise subprocess.TimeoutExpired(process.args, seconds, *process.communicate())
    return both


def run(command, timeout, input=None, capture_output=False, **named):
    """subprocess.run() with a limit in seconds of clock()."""
    if input is not None:
        named["stdin"] = subprocess.PIPE
    if capture_output:
        named["stdout"] = named["stderr"] = subprocess.PIPE
    with subprocess.Popen(command, **named) as process:
        out, err = finish(process, timeout, input)
    return subprocess.CompletedProcess(command, process.returncode, out, err)
