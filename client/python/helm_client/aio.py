"""The client for asyncio: any number of generations at once on one connection."""
import asyncio
from typing import AsyncIterator, Dict, List, Optional

import zmq
import zmq.asyncio

from .connection import FRAME_BYTES_MAX, VERSION, HelmError, check_permission, default_endpoint
from .model import Answer, Texts, answer_of, split_options
from .protocol import pb
from .text import Detokenizer


class AsyncClient:
    """One connection; call it from one event loop. timeout_s: the longest silence about a request before HelmError."""

    def __init__(self, endpoint: Optional[str] = None, timeout_s: float = 5):
        self.endpoint = endpoint or default_endpoint()
        check_permission(self.endpoint)
        self.timeout_s = timeout_s
        self._number = 0
        self._open: Dict[int, asyncio.Queue] = {}
        self._reader: Optional[asyncio.Task] = None
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 250)
        self._socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        self._socket.connect(self.endpoint)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        await self.close()

    async def close(self):
        if self._reader:
            self._reader.cancel()
            try:
                await self._reader
            except asyncio.CancelledError:
                pass
        self._socket.close()
        self._context.term()

    async def _read(self):
        """Gives each Response to the call that waits for its number; others are dropped."""
        while True:
            response = pb.Response.FromString((await self._socket.recv_multipart())[-1])
            queue = self._open.get(response.request_id)
            if queue:
                queue.put_nowait(response)

    async def _send(self, **body) -> int:
        if not self._reader:
            self._reader = asyncio.ensure_future(self._read())
        self._number += 1
        number = self._number
        self._open[number] = asyncio.Queue()
        await self._socket.send(pb.Request(version=VERSION, request_id=number, **body).SerializeToString())
        return number

    async def _answer(self, number: int):
        waiting = asyncio.ensure_future(self._open[number].get())
        done, _ = await asyncio.wait({waiting, self._reader}, timeout=self.timeout_s,
                                     return_when=asyncio.FIRST_COMPLETED)
        if waiting not in done:
            waiting.cancel()
            if self._reader in done:
                self._reader.result()  # what ended it
            raise HelmError(None, "no answer from %s" % self.endpoint)
        response = waiting.result()
        if response.WhichOneof("body") == "error":
            raise HelmError(response.error.code, response.error.message)
        return response

    async def _ask(self, kind: str, **body):
        number = await self._send(**body)
        try:
            return getattr(await self._answer(number), kind)
        finally:
            del self._open[number]

    async def status(self):
        return await self._ask("status", status=pb.StatusRequest())

    async def model_info(self):
        return await self._ask("model_info", model_info=pb.ModelInfoRequest())

    async def list(self):
        return list((await self._ask("list", list=pb.ListRequest())).entries)

    async def stream(self, prompt, max_tokens: int = 0, sampling: Optional[dict] = None, **fields) -> AsyncIterator:
        """Yields Token messages, then the Done message. Leaving the loop early cancels: use it in
        `async with contextlib.aclosing(...)` where one leaves it before its end."""
        number = await self._send(generate=pb.Generate(prompt=prompt, max_tokens=max_tokens,
                                                       sampling=pb.Sampling(**(sampling or {})), **fields))
        over = False
        try:
            while not over:
                try:
                    response = await self._answer(number)
                except HelmError as e:
                    over = e.code is not None
                    raise
                kind = response.WhichOneof("body")
                over = kind == "done"
                if kind in ("token", "done"):
                    yield getattr(response, kind)
        finally:
            del self._open[number]
            if not over:
                self._number += 1
                await self._socket.send(pb.Request(version=VERSION, request_id=self._number,
                                                   cancel=pb.Cancel(request_id=number)).SerializeToString())


class AsyncModel:
    """Text and chats; made by `await AsyncModel.open(client)`, or with the path of the model's folder or file."""

    def __init__(self, client: AsyncClient, path: str):
        self.client = client
        self.texts = Texts(path)

    @classmethod
    async def open(cls, client: AsyncClient, path: Optional[str] = None) -> "AsyncModel":
        return cls(client, path or (await client.model_info()).folder)

    async def stream(self, prompt, **options) -> AsyncIterator:
        """Pieces of text (str), then the Answer."""
        fields, sampling = split_options(options)
        detokenizer = Detokenizer(self.texts.tokenizer)
        pieces, tokens = [], []
        async for message in self.client.stream(self.texts.prompt_ids(prompt), sampling=sampling, **fields):
            if isinstance(message, pb.Done):
                piece = detokenizer.finish()
            else:
                tokens.append(message.token)
                piece = detokenizer.push(message.token)
            if piece:
                pieces.append(piece)
                yield piece
            if isinstance(message, pb.Done):
                yield answer_of("".join(pieces), tokens, message)

    async def complete(self, prompt, **options) -> Answer:
        answer = None
        async for answer in self.stream(prompt, **options):
            pass
        return answer

    async def chat(self, messages: List[Dict], tools: Optional[list] = None, template: Optional[dict] = None,
                   **options) -> Answer:
        return await self.complete(self.texts.chat_ids(messages, tools, **(template or {})), **options)
