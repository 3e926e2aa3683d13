"""Client for helmd, the daemon of HELM.

    from helm_client import Client                     # token ids, one connection
    with Client() as helm:                             # or Client("ipc:///path/helmd.sock")
        for token in helm.stream([1, 2, 3], max_tokens=16):
            print(token.token)
        print(helm.last_done.timings.decode_tok_s)

    from helm_client import Model                      # text and chats; needs libhelm
    with Model() as model:                             # the model of the daemon that listens here
        for piece in model.stream("The capital of France is", max_tokens=32):
            print(piece, end="")
        print(model.chat([{"role": "user", "content": "Hello"}]).text)

    from helm_client.aio import AsyncClient, AsyncModel  # the same for asyncio

Needs pyzmq and protobuf. Text is made and read by libhelm.so.0 (HELM_LIBHELM names another file): the tokenizer and
the chat templates of helm-cli, so that ids are the same everywhere."""
from .connection import FINISH, Client, HelmError, default_endpoint
from .protocol import pb
from .text import Chat, Detokenizer, Tokenizer
from .model import Answer, Model

__all__ = ["Answer", "Chat", "Client", "Detokenizer", "FINISH", "HelmError", "Model", "Tokenizer", "default_endpoint",
           "pb"]
