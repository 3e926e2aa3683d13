#!/usr/bin/python3
"""The gateway's page in headless Chromium, with the demo model. Without Chromium or node the test is skipped, and says so.

HELM_BIN, HELM_PYPROTO as in test_gateway.py. Run from the repository's root.
"""
import os
import shutil
import subprocess
import sys
import tempfile

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import helmd_harness as helmd  # noqa: E402
from gateway_harness import Gateway, SLOW, check, missing_node, sum_up  # noqa: E402


def main():
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    why = missing_node() or ("" if browser else "there is no Chromium here")
    if why:
        print("the gateway's page skipped: %s" % why)
        sum_up(skipped=1)
    with helmd.running(real=True) as daemon, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        with Gateway(daemon.endpoint) as g:
            run = subprocess.run(["node", "--experimental-websocket", "tests/process/gateway_page.mjs", browser, folder, g.url],
                                 capture_output=True, timeout=120 * SLOW)
            for line in run.stdout.decode().splitlines():
                check(line[5:], line.startswith("ok  "))
            check("node's script comes to its end", run.returncode == 0, run.stderr.decode()[-1000:])
    sum_up()


if __name__ == "__main__":
    main()
