#!/usr/bin/python3
"""The short form of `make chaos` and `make soak`: the same, for seconds; a little longer of `make test-full`. The seed is printed;
HELM_SEED chooses it."""
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from chaos import chaos  # noqa: E402
from helmd_harness import run_tests  # noqa: E402
from soak import soak  # noqa: E402

CHAOS_S, SOAK_S = (30, 12) if os.environ.get("HELM_TEST_FULL") else (8, 6)
SEED = int(os.environ.get("HELM_SEED") or random.randrange(1 << 30))


def test_kills_floods_and_mutants_cost_no_token():
    chaos(float(os.environ.get("HELM_CHAOS_SECONDS", CHAOS_S)), SEED)


def test_mixed_load_leaves_nothing():
    soak(float(os.environ.get("HELM_SOAK_SECONDS", SOAK_S)), SEED)


if __name__ == "__main__":
    run_tests(globals())
