#!/usr/bin/python3
"""Where `make install` puts files, that they work from there, and that `make uninstall` leaves nothing: manual pages,
completion in bash, libhelm from C++. HELM_BIN: folder of the release build's programs. Run from the repository's root."""
import os
import shutil
import subprocess
import sys
import tempfile

import processor

BIN = os.path.abspath(os.environ["HELM_BIN"])
LIB = os.path.dirname(BIN)
PROGRAMS = [p for p in sorted(os.listdir(BIN)) if not p.startswith("helm-test-")]
counts = {True: 0, False: 0}
CPP = r"""
#include <cstdio>
#include <cstring>
#include <helm/helm.h>
#include <helm/chat.h>
#include <helm/tokenizer.h>
static void on_token(void *, uint64_t, const helm_token *) {}
int main(int, char **argv)
{
    helm_err err = {};
    helm_client *client = nullptr;
    helm_tokenizer *tokenizer = nullptr;
    uint32_t *ids = nullptr;
    size_t count = 0;
    helm_callbacks callbacks = {};
    callbacks.token = on_token;
    if (callbacks.done) return 4;
    if (helm_connect("ipc:///nowhere/at/all", 100, &client, &err) != HELM_E_NOT_FOUND) return 1;
    if (helm_tokenizer_open(argv[1], &tokenizer, &err)) return 2;
    if (helm_tokenizer_encode(tokenizer, "And", 3, 0, &ids, &count, &err) || count == 0) return 3;
    std::printf("%s %zu\n", helm_code_name(HELM_E_NOT_FOUND), count);
    helm_tokenizer_close(tokenizer);
    free(ids);
    return 0;
}
""".replace("#include <cstring>", "#include <cstdlib>")


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else ("  [%s]" % (detail,))[:1500]), flush=True)


def run(*command, **more):
    done = processor.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, **more)
    return done.returncode, done.stdout, done.stderr


def install(what, root):
    return run("tools/install.sh", what, BIN, LIB, root, "/usr", *PROGRAMS)


def files(root):
    return sorted(os.path.relpath(os.path.join(d, n), root) for d, _, names in os.walk(root) for n in names)


def manual_tests(usr):
    pages = sorted(os.listdir(usr + "/share/man/man1"))
    check("every program that people call has a page, and every command", {"helm-cli.1", "helmd.1", "helm-plan.1", "helm-profile.1",
          "helm-quantize.1", "helm-cli-chat.1", "helm-cli-pull.1"} <= set(pages) and "helm-cli-help.1" not in pages, pages)
    text = open(usr + "/share/man/man1/helmd.1").read()
    check("... with its options", "\\-\\-kv\\-tokens" in text and ".SH OPTIONS" in text)
    if shutil.which("groff"):
        for page in pages:
            code, out, err = run("groff", "-man", "-ww", "-Tutf8", usr + "/share/man/man1/" + page)
            check("... groff takes " + page, code == 0 and not err and "helm" in out, err)


def completion_tests(usr):
    script = usr + "/share/bash-completion/completions/helmd"

    def complete(*words):
        code = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _helm; printf "%s\\n" "${COMPREPLY[@]}"'
        return run("bash", "-c", code, "bash", script, *words, cwd=usr)[1].split()
    cli = usr + "/bin/helm-cli"
    check("commands are completed", {"run", "chat", "pull"} <= set(complete(cli, "")), complete(cli, ""))
    check("... their options", complete(cli, "run", "--temp") == ["--temperature"], complete(cli, "run", "--temp"))
    check("... with the program's", complete(cli, "run", "--kv") == ["--kv-dtype"], complete(cli, "run", "--kv"))
    check("... and what they may be", complete(cli, "--strategy", "all") == ["all-gpu", "all-cpu"], complete(cli, "--strategy", "all"))
    check("helmd's options are completed", complete(usr + "/bin/helmd", "--drain") == ["--drain-seconds"], complete(usr + "/bin/helmd", "--drain"))
    check("... values with files", "bin" in complete(usr + "/bin/helmd", "--model", "b"), complete(usr + "/bin/helmd", "--model", "b"))
    for shell, script in (("zsh", "share/zsh/site-functions/_helm"), ("fish", "share/fish/vendor_completions.d/helm.fish")):
        if shutil.which(shell):
            check("%s reads its own" % shell, run(shell, "-n", os.path.join(usr, script))[0] == 0)


def library_tests(usr, folder):
    source = os.path.join(folder, "smoke.cpp")
    with open(source, "w") as f:
        f.write(CPP)
    pc = open(usr + "/lib/pkgconfig/libhelm.pc").read()
    check("pkg-config has libhelm", "-lhelm" in pc, pc)
    program = os.path.join(folder, "smoke")
    code, out, err = run("g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I" + usr + "/include", source, "-o", program,
                         "-L" + usr + "/lib", "-lhelm", "-Wl,-rpath," + usr + "/lib")
    check("a C++ program is built with the installed headers", code == 0, err)
    code, out, err = run(program, usr + "/share/helm/demo")
    check("... and runs", code == 0 and out.startswith("not"), (code, out, err))


def architecture_tests(folder):
    """GPUs that code is compiled for: those of the machine for `make install`, all for other goals."""
    plain = {k: v for k, v in os.environ.items() if k not in ("CUDA_ARCH", "CUDA_QUICK", "MAKEFLAGS", "MAKEOVERRIDES")}

    def asked(goal, *more):  # `make test` has a CUDA_ARCH of its own
        return run("make", "-s", "show", "MAKECMDGOALS=" + goal, "BUILD=" + folder + "/build", "--eval", "show: ; @echo $(CUDA_ARCHS)", *more,
                   env=dict(plain, PATH=folder + ":" + plain["PATH"]))[1].strip()
    with open(folder + "/nvidia-smi", "w") as file:
        file.write("#!/bin/sh\nprintf '9.0\\n8.6\\n'\n")
    os.chmod(folder + "/nvidia-smi", 0o755)
    check("make install compiles for the GPUs that are there", asked("install") == "86 90", asked("install"))
    check("... unless one says otherwise", asked("install", "CUDA_ARCH=80") == "80")
    check("... all others for all", asked("dist") == asked("all") == "75 80 86 89 90", asked("dist"))
    os.makedirs(folder + "/build/release")
    for had, wanted in (("75 86 90", "75 86 90"), ("75 86 90 quick", "86 90"), ("75 90", "86 90")):
        with open(folder + "/build/release/cuda-arch", "w") as file:
            file.write(had + "\n")
        check("... where objects for %s are there" % had, asked("install") == wanted, asked("install"))


def kernel_tests(folder):
    """`make test` compiles kernels quickly that this processor cannot run, and no other command leaves them so."""
    plain = {k: v for k, v in os.environ.items() if k not in ("QUICK_KERNELS", "FULL", "MODE", "MAKEFLAGS", "MAKEOVERRIDES")}
    kernels = folder + "/kernels/release/common/cpu/kernels"
    quick, others = "common/cpu/kernels/blocks_avx512", "common/cpu/kernels/blocks_avx2"

    def asked(what, *more):
        return run("make", "-s", "show", "BUILD=" + folder + "/kernels", "--eval", "show: ; @echo $(%s)" % what, *more,
                   env=dict(plain, HELM_CPU="avx2"))[1].split()
    now = asked("QUICK_NOW", "QUICK_KERNELS=1")
    check("make test compiles kernels quickly that it cannot run", quick in now and others not in now, now)
    check("... all others compile them as they are installed", asked("QUICK_NOW") == [], asked("QUICK_NOW"))
    os.makedirs(kernels)
    for name in ("blocks_avx512.o", "attention_avx512.o", "attention_avx512.quick", "gemm_avx2.quick"):
        open(os.path.join(kernels, name), "w").close()
    now = asked("QUICK_NOW", "QUICK_KERNELS=1")
    check("... make test leaves those that are optimised", quick not in now and "common/cpu/kernels/attention_avx512" in now, now)
    anew = asked("QUICK_ANEW", "QUICK_KERNELS=1")
    check("... and compiles anew what it can run now", anew == ["common/cpu/kernels/gemm_avx2"], anew)
    anew = asked("QUICK_ANEW")
    check("... all others whatever is quick", sorted(anew) == ["common/cpu/kernels/attention_avx512", "common/cpu/kernels/gemm_avx2"], anew)


def main():
    root = tempfile.mkdtemp(prefix="helm-install-")
    folder = tempfile.mkdtemp(prefix="helm-smoke-")
    try:
        code, out, err = install("install", root)
        usr = root + "/usr"
        check("install", code == 0, err)
        check("... every program", set(PROGRAMS) <= set(os.listdir(usr + "/bin")))
        docs = usr + "/share/doc/helm"
        links = [l for l in ("README.md", "CHANGELOG.md", "helmd.ini", "docs/operations.md", "docs/client.md", "docs/notes/README.md",
                             "docs/images/plan-qwen3-8b-rtx4060-laptop.svg") if not os.path.exists(os.path.join(docs, l))]
        check("... the documents, where they refer to each other", not links, links)
        unit = open(usr + "/lib/systemd/system/helmd.service").read()
        check("... the unit names its own place", "/usr/bin/helmd" in unit and "@PREFIX@" not in unit)
        manual_tests(usr)
        completion_tests(usr)
        library_tests(usr, folder)
        architecture_tests(folder)
        kernel_tests(folder)
        with open(usr + "/bin/another", "w") as f:
            f.write("not HELM's")
        code, out, err = install("uninstall", root)
        check("uninstall leaves what others put there, and nothing else", code == 0 and files(root) == ["usr/bin/another"],
              (code, err, files(root)[:5]))
        left = [d for d, _, _ in os.walk(root) if "helm" in os.path.relpath(d, root)]
        check("... and no folder of HELM's", not left, left)
    finally:
        shutil.rmtree(root, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    print("%d passed, %d failed" % (counts[True], counts[False]))
    sys.exit(1 if counts[False] else 0)


main()
