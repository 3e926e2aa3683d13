"""Text in, text out: a Client with the tokenizer and the chat template of the model that its daemon serves."""
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional

from .connection import FINISH, Client
from .text import Chat, Detokenizer, Tokenizer

# fields of Generate; other options are Sampling's
GENERATE = ("max_tokens", "stop_token_ids", "logprobs", "logprobs_of", "ignore_eos", "deadline_ms", "label", "marks", "speculate",
            "prediction")


@dataclass
class Answer:
    """finish_reason: "eos", "stop", "length", "cancelled" or "error"; seed: what a second request is given to be the
    same."""
    text: str
    tokens: List[int]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    seed: int
    ttft_ms: float
    decode_tok_s: float


def split_options(options: dict):
    """Splits options into Generate's and Sampling's."""
    options = dict(options)
    fields = {name: options.pop(name) for name in GENERATE if name in options}
    if options.get("seed") is not None:
        options["has_seed"] = True
    return fields, options


def answer_of(text: str, tokens: List[int], done) -> Answer:
    return Answer(text, tokens, FINISH.get(done.finish_reason, "error"), done.usage.prompt_tokens,
                  done.usage.cached_tokens, done.seed, done.timings.ttft_ms, done.timings.decode_tok_s)


class Texts:
    """Shared by Model and AsyncModel: prompts to ids, by a folder or GGUF file."""

    def __init__(self, path: str):
        self.tokenizer = Tokenizer(path)
        self._path = path
        self._chat: Optional[Chat] = None

    def prompt_ids(self, prompt) -> List[int]:
        """The ids of a text, a list of messages, or ids."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if prompt and isinstance(prompt[0], dict):
            return self.chat_ids(prompt)
        return list(prompt)

    def chat_ids(self, messages: List[Dict], tools: Optional[list] = None, **variables) -> List[int]:
        if self._chat is None:
            self._chat = Chat(self._path)
        return self._chat.encode(self.tokenizer, messages, tools, **variables)


class Model:
    """client: a Client of one's own; path: the model's folder or file, where it is not the one that the daemon names."""

    def __init__(self, client: Optional[Client] = None, path: Optional[str] = None):
        self.client = client or Client()
        self._owned = client is None
        self.texts = Texts(path or self.client.model_info().folder)
        self.last: Optional[Answer] = None

    def close(self):
        if self._owned:
            self.client.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def stream(self, prompt, **options) -> Iterator[str]:
        """Pieces of text; afterwards `last` is the Answer. prompt: a text, a list of messages, or ids. options:
        max_tokens, temperature, top_p, seed, stop_token_ids, ... as in helm.proto. Leaving the loop early cancels."""
        fields, sampling = split_options(options)
        detokenizer = Detokenizer(self.texts.tokenizer)
        pieces, tokens = [], []
        for token in self.client.stream(self.texts.prompt_ids(prompt), sampling=sampling, **fields):
            tokens.append(token.token)
            piece = detokenizer.push(token.token)
            if piece:
                pieces.append(piece)
                yield piece
        piece = detokenizer.finish()
        if piece:
            pieces.append(piece)
            yield piece
        self.last = answer_of("".join(pieces), tokens, self.client.last_done)

    def complete(self, prompt, **options) -> Answer:
        for _ in self.stream(prompt, **options):
            pass
        return self.last

    def chat(self, messages: List[Dict], tools: Optional[list] = None, template: Optional[dict] = None,
             **options) -> Answer:
        """template: variables of the chat template, {"enable_thinking": False}."""
        return self.complete(self.texts.chat_ids(messages, tools, **(template or {})), **options)
