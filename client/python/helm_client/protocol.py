"""The module that protoc makes of proto/helm.proto: in an installed package beside this file, from a checkout
on the path."""
try:
    from . import helm_pb2 as pb
except ImportError:
    import helm_pb2 as pb

__all__ = ["pb"]
