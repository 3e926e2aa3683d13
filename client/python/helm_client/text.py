"""Tokenizer and chat template of a model, by libhelm (client/text/tokenizer/tokenizer.h, client/text/chat.h).

The library is loaded when it is first needed: a program that uses token ids alone needs none."""
import ctypes
import ctypes.util
import json
import os
from typing import Iterable, List, Optional

from .connection import HelmError

PARSE_ADDED, ADD_SPECIAL, SKIP_SPECIAL = 1, 2, 1


class _Err(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("text", ctypes.c_char * 512)]


class _Prompt(ctypes.Structure):
    _fields_ = [("text", ctypes.c_void_p), ("length", ctypes.c_size_t), ("ids", ctypes.c_void_p), ("count", ctypes.c_size_t),
                ("marks", ctypes.c_uint32 * 64), ("mark_count", ctypes.c_size_t)]


class _Input(ctypes.Structure):
    _fields_ = [("messages", ctypes.c_char_p), ("tools", ctypes.c_char_p), ("extra", ctypes.c_char_p),
                ("add_generation_prompt", ctypes.c_int), ("now_s", ctypes.c_int64)]


_loaded = None


def _library():
    global _loaded
    if _loaded:
        return _loaded
    name = os.environ.get("HELM_LIBHELM") or ctypes.util.find_library("helm") or "libhelm.so.0"
    try:
        lib = ctypes.CDLL(name)
    except OSError as e:
        raise HelmError(None, "libhelm is needed for text, and %s cannot be loaded: %s (HELM_LIBHELM names the file)"
                        % (name, e)) from None
    pointer, size, flags = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
    for function, arguments in {
        "helm_tokenizer_open": [ctypes.c_char_p, pointer, pointer],
        "helm_tokenizer_encode": [pointer, ctypes.c_char_p, size, flags, pointer, pointer, pointer],
        "helm_tokenizer_decode": [pointer, pointer, size, flags, pointer, pointer, pointer],
        "helm_detokenizer_open": [pointer, flags, pointer, pointer],
        "helm_detokenizer_push": [pointer, ctypes.c_uint32, pointer, pointer, pointer],
        "helm_detokenizer_finish": [pointer, pointer, pointer, pointer],
        "helm_chat_open": [ctypes.c_char_p, pointer, pointer],
        "helm_chat_render_json": [pointer, pointer, pointer, pointer, pointer],
        "helm_chat_encode_json": [pointer, pointer, pointer, flags, pointer, pointer],
    }.items():
        getattr(lib, function).argtypes = arguments
        getattr(lib, function).restype = ctypes.c_int
    for function in ("helm_tokenizer_close", "helm_detokenizer_close", "helm_chat_close", "helm_chat_prompt_free"):
        getattr(lib, function).argtypes = [pointer]
        getattr(lib, function).restype = None
    lib.helm_tokenizer_role_id.argtypes = [pointer, ctypes.c_char_p]
    lib.helm_tokenizer_role_id.restype = ctypes.c_uint32
    lib.helm_tokenizer_vocab_size.argtypes = [pointer]
    lib.helm_tokenizer_vocab_size.restype = ctypes.c_uint32
    _loaded = lib
    return lib


_free = ctypes.CDLL(None).free
_free.argtypes = [ctypes.c_void_p]


def _call(function, *arguments):
    err = _Err()
    if getattr(_library(), function)(*arguments, ctypes.byref(err)):
        raise HelmError(None, err.text.decode("utf-8", "replace"))


def _taken(pointer, size):
    """The bytes of what libhelm allocated, which is freed."""
    data = ctypes.string_at(pointer, size.value)
    _free(pointer)
    return data


class Tokenizer:
    """The tokenizer of a checkpoint's folder or a GGUF file. May be shared by threads."""

    def __init__(self, path: str):
        self._handle = ctypes.c_void_p()
        _call("helm_tokenizer_open", os.fsencode(path), ctypes.byref(self._handle))

    def __del__(self):
        if getattr(self, "_handle", None):
            _library().helm_tokenizer_close(self._handle)
            self._handle = None

    def encode(self, text: str, parse_added: bool = False, add_special: bool = True) -> List[int]:
        """Token ids. parse_added: added tokens written in the text become their ids (of rendered chats; never of what a
        person typed). add_special: what the model's texts begin with, <s> say."""
        data = text.encode("utf-8", "replace")
        ids, count = ctypes.c_void_p(), ctypes.c_size_t()
        flags = (PARSE_ADDED if parse_added else 0) | (ADD_SPECIAL if add_special else 0)
        _call("helm_tokenizer_encode", self._handle, data, len(data), flags, ctypes.byref(ids), ctypes.byref(count))
        found = list((ctypes.c_uint32 * count.value).from_address(ids.value)) if count.value else []
        _free(ids)
        return found

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        ids = list(ids)
        array = (ctypes.c_uint32 * max(1, len(ids)))(*ids)
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        _call("helm_tokenizer_decode", self._handle, array, len(ids), SKIP_SPECIAL if skip_special else 0,
              ctypes.byref(text), ctypes.byref(size))
        return _taken(text, size).decode("utf-8")

    def role_id(self, role: str) -> Optional[int]:
        """The id of "bos_token", "eos_token", ...; None where the model has none."""
        found = _library().helm_tokenizer_role_id(self._handle, role.encode())
        return None if found == 0xffffffff else found

    @property
    def vocab_size(self) -> int:
        return _library().helm_tokenizer_vocab_size(self._handle)


class Detokenizer:
    """Ids to text as they come; a piece never ends inside a character. One thread at a time."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True):
        self._tokenizer = tokenizer  # must outlive it
        self._handle = ctypes.c_void_p()
        _call("helm_detokenizer_open", tokenizer._handle, SKIP_SPECIAL if skip_special else 0,
              ctypes.byref(self._handle))

    def __del__(self):
        if getattr(self, "_handle", None):
            _library().helm_detokenizer_close(self._handle)
            self._handle = None

    def push(self, token: int) -> str:
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        _call("helm_detokenizer_push", self._handle, token, ctypes.byref(text), ctypes.byref(size))
        return ctypes.string_at(text, size.value).decode("utf-8") if size.value else ""

    def finish(self) -> str:
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        _call("helm_detokenizer_finish", self._handle, ctypes.byref(text), ctypes.byref(size))
        return ctypes.string_at(text, size.value).decode("utf-8") if size.value else ""


class Chat:
    """A model's chat template. HelmError where it has none."""

    def __init__(self, path: str):
        self._handle = ctypes.c_void_p()
        _call("helm_chat_open", os.fsencode(path), ctypes.byref(self._handle))

    def __del__(self):
        if getattr(self, "_handle", None):
            _library().helm_chat_close(ctypes.byref(self._handle))
            self._handle = None

    def render(self, messages: list, tools: Optional[list] = None, add_generation_prompt: bool = True,
               **variables) -> str:
        """The text that the model was trained on. messages: dicts with role and content; variables: further ones of
        the template (enable_thinking=False)."""
        given = self._input(messages, tools, add_generation_prompt, variables)
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        _call("helm_chat_render_json", self._handle, ctypes.byref(given), ctypes.byref(text), ctypes.byref(size))
        return _taken(text, size).decode("utf-8")

    def encode(self, tokenizer: Tokenizer, messages: list, tools: Optional[list] = None, add_generation_prompt: bool = True,
               allow_special: bool = False, **variables) -> List[int]:
        """Token ids of what render gives. Control tokens that a message spells ("<|im_end|>") are text, unless allow_special:
        encoding a rendered text by oneself lets whoever wrote a message write turns."""
        given, prompt = self._input(messages, tools, add_generation_prompt, variables), _Prompt()
        _call("helm_chat_encode_json", self._handle, tokenizer._handle, ctypes.byref(given), int(allow_special), ctypes.byref(prompt))
        found = list((ctypes.c_uint32 * prompt.count).from_address(prompt.ids)) if prompt.count else []
        _library().helm_chat_prompt_free(ctypes.byref(prompt))
        return found

    @staticmethod
    def _input(messages, tools, add_generation_prompt, variables):
        return _Input(json.dumps(messages).encode(), json.dumps(tools).encode() if tools else None,
                      json.dumps(variables).encode() if variables else None, add_generation_prompt, 0)
