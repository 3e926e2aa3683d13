#!/usr/bin/python3
"""tests/run.py over tests that fail, are skipped, do not end or are killed: what its end says of each, and in which order.

Needs no program of HELM. Run from the repository's root."""
import os
import subprocess
import sys
import tempfile
import time

import processor

RUN = os.path.abspath("tests/run.py")
CMOCKA = """#!/bin/sh
cat <<'END'
[==========] Running 5 test(s).
[ RUN      ] adds
[       OK ] adds
[ RUN      ] multiplies bf16, avx512
rows skipped: this machine lacks avx512-bf16
[  SKIPPED ] multiplies bf16, avx512
[ RUN      ] divides
columns skipped: this machine lacks avx512-bf16
[  SKIPPED ] divides
%s
[==========] 5 test(s) run.
[  PASSED  ] %d test(s).
[  SKIPPED ] %d test(s), listed below:
[  SKIPPED ] multiplies bf16, avx512
[  SKIPPED ] divides
%s
END
exit %d
"""
FAKE = {
    "good.sh": "#!/bin/sh\necho 'ok   one'; echo '3 passed, 0 failed'\n",
    "bad.sh": "#!/bin/sh\necho 'ok   one'; echo 'FAIL the second  [detail]'; echo '1 passed, 1 failed, 0 skipped'; exit 1\n",
    "page.sh": "#!/bin/sh\necho 'the page skipped: there is no node here'; echo '2 passed, 0 failed, 1 skipped'\n",
    "npm.sh": "#!/bin/sh\necho 'skipped: there is no node here'; echo '0 passed, 0 failed, 1 skipped'\n",
    "silent.sh": "#!/bin/sh\necho '2 passed, 0 failed, 1 skipped'\n",
    "empty.sh": "#!/bin/sh\nexit 0\n",
    "killed.sh": "#!/bin/sh\necho 'ok   one'; kill -SEGV $$\n",
    "endless.sh": "#!/bin/sh\nexec sleep 600\n",
    "liar.sh": "#!/bin/sh\necho '3 passed, 0 failed'; exit 7\n",
    "mask.sh": "#!/bin/sh\necho \"$HELM_CPU $OPENBLAS_CORETYPE\" >mask; echo '1 passed, 0 failed'\n",
    "release/unit": CMOCKA % ("[ RUN      ] ends\n[       OK ] ends\n[ RUN      ] begins\n[       OK ] begins", 3, 2, "", 0),
    "release/unit_absent": """#!/bin/sh
echo '[==========] a group: Running 1 test(s).
[ RUN      ] reads
skipped: there is no collection
[  SKIPPED ] reads
[==========] a group: 1 test(s) run.
[  PASSED  ] 0 test(s).
[  SKIPPED ] a group: 1 test(s), listed below:
[  SKIPPED ] reads

 1 SKIPPED TEST(S)'
""",
    "release/unit_bad": CMOCKA.replace("] %d test(s), listed", "] a group: %d test(s), listed") % ("[ RUN      ] ends\n[  FAILED  ] ends\n[ RUN      ] begins\n[  SKIPPED ] begins", 1, 3,
                                  "[  SKIPPED ] begins\n[  FAILED  ] a group: 1 test(s), listed below:\n[  FAILED  ] ends", 1),
}
counts = {True: 0, False: 0}


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else "  [%r]" % (detail,)), flush=True)


def run(*tests, options=(), **env):
    """Status, lines of the closing part."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HELM_", "OPENBLAS"))}
    done = subprocess.run([RUN, *options, *tests], capture_output=True, text=True, timeout=60, env={**kept, **env})
    text = done.stdout + done.stderr
    return done.returncode, text.rsplit("\n\n", 1)[-1].splitlines(), text


def alone(lines, name):
    """The command that the closing part gives for a failed test."""
    at = next(i for i, line in enumerate(lines) if line.startswith("failed: release " + name))
    return next(line.split("alone: ", 1)[1] for line in lines[at:] if "alone: " in line)


def test_all_is_well():
    rc, lines, text = run("release:good.sh", "release:page.sh", "release:npm.sh", "release:unit", "release:unit_absent", options=["--jobs", "2"])
    check("well: status 0", rc == 0, text)
    check("well: the last line is the sum alone", lines[-1] == "8 passed, 0 failed, 5 skipped", lines)
    check("well: before it how long it took", lines[-2].startswith("took ") and "build/logs/times" in lines[-2], lines)
    check("well: before that the skipped, by reason", lines[:-2] == [
        "2 skipped: there is no node here", "2 skipped: this machine lacks avx512-bf16",
        "1 skipped: there is no collection"], lines)
    with open("build/logs/times") as f:
        check("well: the times of each are in the folder of logs", len(f.readlines()) == 6)


def test_failures():
    tests = ["release:" + name for name in ("good.sh", "bad.sh words of_names", "silent.sh", "empty.sh", "killed.sh", "liar.sh",
                                            "unit_bad", "absent.sh")]
    rc, lines, text = run(*tests, HELM_GOLDEN_GGUF="/a folder")
    failed = [line[len("failed: release "):] for line in lines if line.startswith("failed: ")]
    check("failures: status 1", rc == 1, text)
    check("failures: each is named with what failed in it", sorted(failed)[1:] == [
        "bad.sh words of_names: the second  [detail]", "empty.sh: it reports no test", "killed.sh: status killed by SIGSEGV",
        "liar.sh: status 7", "silent.sh: 1 skipped, 0 reasons", "unit_bad: ends; begins was skipped without a reason"] and
        sorted(failed)[0].startswith("absent.sh: status [Errno 2]"), failed)
    check("failures: the sum counts them", lines[-1] == "10 passed, 8 failed, 4 skipped", lines[-1])
    command = alone(lines, "bad.sh")
    check("failures: the command has the variables of the tests and all words",
          command == "HELM_GOLDEN_GGUF='/a folder' tests/run.py 'release:bad.sh words of_names'", command)
    again = subprocess.run(["bash", "-c", command.replace("tests/run.py", RUN)], capture_output=True, text=True, timeout=60)
    check("failures: it runs that test alone, and it fails again", again.returncode == 1 and
          again.stdout.endswith("\n1 passed, 1 failed, 0 skipped\n"), again)
    check("failures: its log is where the line above says", open("build/logs/release_bad.sh_words_of_names.log").read().startswith("ok   one"))
    rc, lines, text = run("release:bad.sh", options=["--log-dir", "elsewhere"])
    check("failures: another folder of logs is in the command", alone(lines, "bad.sh") ==
          "tests/run.py --log-dir elsewhere release:bad.sh" and os.path.exists("elsewhere/release_bad.sh.log"), lines)


def test_no_end():
    rc, lines, text = run("release:endless.sh", "release:good.sh", options=["--timeout", "0.5", "--jobs", "2"])
    check("no end: it is ended and says so", rc == 1 and "failed: release endless.sh: status no end after 0.5 s" in lines and
          lines[-1] == "3 passed, 1 failed, 0 skipped", text)


def test_what_a_second_counts_as():
    processors = len(os.sched_getaffinity(0))
    check("a second counts as a second at most", 0 < processor.share() <= 1, processor.share())
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * processors)]
    try:
        fair, begin = processor.clock(), time.monotonic()
        time.sleep(2)
        part = (processor.clock() - fair) / (time.monotonic() - begin)
        done = processor.run(["cat"], 5, input="text", capture_output=True, text=True)
        try:
            processor.run(["sleep", "60"], 0.2)
            ended = False
        except subprocess.TimeoutExpired:
            ended = True
    finally:
        for process in busy:
            process.kill()
            process.wait()
    check("... and with two tasks a processor as half", part <= 0.75, part)
    check("... for what is run, too", done.stdout == "text" and done.returncode == 0 and ended, done)


BUSY = "import time; end = time.process_time() + %g\nwhile time.process_time() < end: pass"


def test_others():
    before = processor.spent_by_tree()
    subprocess.run([sys.executable, "-c", BUSY % 0.3], check=True)
    after = processor.spent_by_tree()
    check("others: a child is not one of them", before is not None and 0.3 <= after - before < 5, (before, after))
    others, begin = processor.Others(), time.monotonic()
    loop = "%s -c '%s' >&- 2>&- & echo $!;" % (sys.executable, BUSY % 60)
    strangers = subprocess.run(["bash", "-c", loop * 2 * len(os.sched_getaffinity(0))], stdout=subprocess.PIPE, text=True)
    try:
        some = processor.wait(60, lambda slice_s: others.most(begin) > 0.4 or time.sleep(min(slice_s, 0.1)))
    finally:
        for pid in strangers.stdout.split():
            os.kill(int(pid), 9)
    check("others: programs whose parent has ended are", some, others.slices)


def test_flags():
    """This machine's flags that HELM_CPU leaves."""
    whole = processor.flags("")
    check("flags: none of what is masked", not processor.flags("none") & processor.KNOWN and
          processor.flags("none") == whole - processor.KNOWN)
    check("flags: avx2 alone", processor.flags("avx2") == whole - processor.KNOWN | whole & {"avx2"})
    check("flags: two names leave what both do", processor.flags("avx512-vbmi2,avx512-vnni") & {"avx2", "avx512_bf16"} == whole & {"avx2"})


def test_mask():
    rc, lines, text = run("release:mask.sh", HELM_CPU="avx2")
    check("mask: tests have it, and OpenBLAS's", rc == 0 and open("mask").read() == "avx2 Haswell\n", text)
    check("mask: the end names it, before the sum", lines[-2] == "HELM_CPU=avx2", lines)
    run("release:mask.sh", HELM_CPU="avx2", OPENBLAS_CORETYPE="Zen")
    check("mask: OpenBLAS's that is set stays", open("mask").read() == "avx2 Zen\n")
    rc, lines, text = run("release:mask.sh", HELM_CPU="avx9")
    check("mask: an unknown name is refused", rc == 2 and "HELM_CPU=avx9: 'avx9' is none of avx2 " in text, text)


def main():
    with tempfile.TemporaryDirectory(prefix="helm-runner-") as folder:
        os.chdir(folder)
        os.makedirs("build/release")
        for name, text in FAKE.items():
            path = name if name.endswith(".sh") else os.path.join("build", name)
            with open(path, "w") as f:
                f.write(text)
            os.chmod(path, 0o755)
        for test in test_all_is_well, test_failures, test_no_end, test_what_a_second_counts_as, test_others, test_flags, test_mask:
            test()
        os.chdir("/")
    print("%d passed, %d failed" % (counts[True], counts[False]))
    sys.exit(counts[False] > 0)


main()
