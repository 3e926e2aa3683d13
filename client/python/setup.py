"""Builds the package; helm_pb2 is made of proto/helm.proto by protoc (Debian: protobuf-compiler)."""
import os
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = os.path.dirname(os.path.abspath(__file__))
PROTO = os.path.join(HERE, "..", "..", "proto")


class BuildWithProtocol(build_py):
    def run(self):
        super().run()
        out = os.path.join(self.build_lib, "helm_client")
        subprocess.run(["protoc", "--python_out=" + out, "-I" + PROTO, "helm.proto"], check=True)


with open(os.path.join(HERE, "..", "..", "VERSION")) as version:
    setup(version=version.read().strip(), cmdclass={"build_py": BuildWithProtocol})
