"""A machine of its own for tests of profiles: a checkpoint, fake workers, a cache, and a helm-profile that is a script."""
import os
import re
import stat
import tempfile

import processor
from helmd_harness import Daemon, SLOW, TEST_BIN, check, same, write_checkpoint


class Machine:
    """A folder with a checkpoint, fake workers, a cache and maybe a helm-profile that is a shell script."""

    def __init__(self, gpu=False, **shape):
        self.base = tempfile.mkdtemp(prefix="helmd-test-")
        self.cache = os.path.join(self.base, "cache")
        self.workers = os.path.join(self.base, "workers")
        write_checkpoint(os.path.join(self.base, "model"), **shape)
        os.makedirs(self.workers)
        for name in ["helm-worker-cpu"] + ["helm-worker-gpu"] * gpu:
            os.symlink(os.path.join(TEST_BIN, "fake_worker"), os.path.join(self.workers, name))

    def helm_profile(self, script):
        path = os.path.join(self.workers, "helm-profile")
        with open(path, "w") as f:
            f.write("#!/bin/sh\necho \"$@\" >>%s/arguments\n%s\n" % (self.base, script))
        os.chmod(path, stat.S_IRWXU)

    def arguments(self, programs=False):
        """Those of each run since the last call: of the machine and of memory, or of the model's own programs."""
        path = os.path.join(self.base, "arguments")
        if not os.path.exists(path):
            return []
        lines = open(path).read().splitlines()
        os.unlink(path)
        return [line for line in lines if ("--programs" in line) == programs]

    def start(self, *options, faults="", wait=True):
        return Daemon(*options, base=self.base, faults=faults, profile=None, env={"XDG_CACHE_HOME": self.cache}, wait=wait)

    def refused(self, *options, faults=""):
        d = self.start(*options, faults=faults)
        same(processor.ended(d.process, 20 * SLOW), 4, f"{options}: {d.log()}")
        return d

    def place(self, *options, faults=""):
        """Where the profile of this hardware is to be: helmd says so when there is none."""
        self.helm_profile("exit 0")
        d = self.refused(*options, faults=faults)
        check("printed no profile" in d.ready, d.ready)
        self.arguments()
        path = re.findall(r"there is no profile of this machine yet: (\S+)", d.log())[-1]
        os.makedirs(os.path.dirname(path), exist_ok=True)
        check(path.startswith(self.cache + "/helm/profiles/") and path.endswith(".json"), path)
        return path
