#!/usr/bin/env python3
"""Trains HELM's demo model: a Qwen3-architecture checkpoint of about 7 million parameters with its own BPE
tokenizer, on one text file (one chapter a line; see corpus.sh).

    train.py --corpus kjv.txt --out DIR [--steps 3000] [--seed 1]

Needs PyTorch, transformers and tokenizers; a few minutes on one GPU. Writes to DIR a Hugging Face folder of the final
weights, golden.json (greedy continuations with log probabilities, float32 arithmetic on the stored bf16 weights)
and training.json (what was run, losses, samples)."""
import argparse
import json
import math
import os
import random
import re
import time

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen3Config, Qwen3ForCausalLM

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPLIT = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def train_tokenizer(chapters, vocab):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(chapters, trainer)
    return tok


def sentences(chapter):
    return [s for s in re.split(r"(?<=[.?!]) ", chapter) if s]


def chat_stream(tok, chapters, rng, rounds):
    """Dialogues made of the text itself: the user quotes a passage's opening, the assistant goes on with it."""
    ids = []
    for _ in range(rounds):
        for chapter in chapters:
            parts = sentences(chapter)
            at = 0
            while at + 1 < len(parts):
                turns = []
                for _ in range(rng.choice([1, 1, 2])):
                    if at + 1 >= len(parts):
                        break
                    words = parts[at].split(" ")
                    if rng.random() < 0.5 and len(words) > 6:
                        cut = rng.randrange(3, min(len(words) - 1, 12))
                        user, rest = " ".join(words[:cut]), [" ".join(words[cut:])]
                    else:
                        user, rest = parts[at], []
                    at += 1
                    for _ in range(rng.randrange(1, 4)):
                        if at < len(parts):
                            rest.append(parts[at])
                            at += 1
                    if rest:
                        turns.append((user, " ".join(rest)))
                text = "".join(f"<|im_start|>user\n{u}<|im_end|>\n<|im_start|>assistant\n{a}<|im_end|>\n"
                               for u, a in turns)
                ids += tok.encode(text + "<|endoftext|>").ids
                at += rng.randrange(0, 3)
    return ids


@torch.no_grad()
def greedy_golden(model, prompts, steps):
    cases = []
    for prompt in prompts:
        ids, out = list(prompt), []
        for _ in range(steps):
            logp = torch.log_softmax(model(torch.tensor([ids], device="cuda")).logits[0, -1].float(), -1)
            top = torch.topk(logp, 20)
            out.append({"token": int(top.indices[0]), "gap": round(float(top.values[0] - top.values[1]), 4),
                        "top": [[int(t), round(float(p), 5)] for t, p in zip(top.indices, top.values)]})
            ids.append(out[-1]["token"])
        cases.append({"prompt": list(prompt), "steps": out})
    return cases


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--steps", type=int, default=3000)
    ap.add_argument("--batch", type=int, default=96)
    ap.add_argument("--length", type=int, default=512)
    ap.add_argument("--vocab", type=int, default=4096)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = False

    chapters = [line.strip() for line in open(args.corpus, encoding="utf-8") if line.strip()]
    held_out = set(rng.sample(range(len(chapters)), len(chapters) // 40))
    train = [c for i, c in enumerate(chapters) if i not in held_out]
    val = [c for i, c in enumerate(chapters) if i in held_out]
    tok = train_tokenizer(train, args.vocab)
    end = tok.token_to_id("<|endoftext|>")
    pack = lambda cs: [t for c in cs for t in tok.encode(c).ids + [end]]
    text = torch.tensor(pack(train), device="cuda")
    held = torch.tensor(pack(val), device="cuda")
    chat = torch.tensor(chat_stream(tok, train, rng, 2), device="cuda")
    print(f"{len(train)} chapters, {len(text)} tokens, {len(chat)} chat tokens, {len(held)} held out", flush=True)

    config = Qwen3Config(
        vocab_size=args.vocab, hidden_size=256, intermediate_size=768, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, head_dim=32, max_position_embeddings=2048, rms_norm_eps=1e-6, rope_theta=10000.0,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=[tok.token_to_id("<|im_end|>"), end],
        pad_token_id=end, attention_bias=False)
    model = Qwen3ForCausalLM(config).cuda()
    for layer in model.model.layers:  # Qwen3 has no residual dropout of its own; a small text needs it
        for module in (layer.self_attn.o_proj, layer.mlp.down_proj):
            module.register_forward_hook(
                lambda m, i, o: torch.nn.functional.dropout(o, args.dropout, m.training))
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters} parameters", flush=True)
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() == 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
                            lr=args.lr, betas=(0.9, 0.95), fused=True)

    def batch(source, rows):
        at = torch.randint(0, len(source) - args.length - 1, (rows,), device="cuda")
        return source[at[:, None] + torch.arange(args.length + 1, device="cuda")]

    def loss_of(ids):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    def validate():
        model.eval()
        with torch.no_grad():
            n = len(held) // (args.length + 1)
            ids = held[: n * (args.length + 1)].view(n, -1)
            value = float(loss_of(ids))
        model.train()
        return value

    history, started, chat_rows = [], time.time(), args.batch // 5
    average = {n: p.detach().clone() for n, p in model.named_parameters()}
    model.train()
    for step in range(args.steps):
        warm = min(1.0, (step + 1) / 100)
        for group in opt.param_groups:
            group["lr"] = args.lr * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / args.steps)))
        loss = loss_of(torch.cat([batch(text, args.batch - chat_rows), batch(chat, chat_rows)]))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        with torch.no_grad():
            names, live = zip(*model.named_parameters())
            torch._foreach_lerp_([average[n] for n in names], list(live), 0.01)
        if step % 200 == 199 or step == args.steps - 1:
            history.append([step + 1, round(float(loss), 4), round(validate(), 4)])
            print(f"step {step + 1} train {history[-1][1]} held-out {history[-1][2]} {time.time() - started:.0f}s",
                  flush=True)

    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(average[name])
    print(f"held-out loss of the averaged weights {validate():.4f}", flush=True)
    model = model.to(torch.bfloat16)
    os.makedirs(args.out, exist_ok=True)
    model.generation_config.temperature = 0.7
    model.generation_config.top_p = 0.95
    model.generation_config.do_sample = True
    model.generation_config.eos_token_id = config.eos_token_id
    model.generation_config.pad_token_id = end
    model.save_pretrained(args.out, safe_serialization=True)
    tok.save(os.path.join(args.out, "tokenizer.json"))
    with open(os.path.join(args.out, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048, "bos_token": None,
                   "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_bos_token": False,
                   "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE}, f, indent=2)

    reference = Qwen3ForCausalLM.from_pretrained(args.out, dtype=torch.bfloat16, attn_implementation="eager")
    reference = reference.float().cuda().eval()
    whole = tok.encode(val[0] + " " + val[1]).ids
    prompts = [tok.encode(p).ids for p in ("In the beginning", "And it came to pass", "The LORD is my shepherd;")]
    prompts += [whole[:n] for n in (1, 17, 64, 200, 500)]
    golden = {"name": "demo", "dtype": "torch.bfloat16", "cases": greedy_golden(reference, prompts, 32)}
    json.dump(golden, open(os.path.join(args.out, "golden.json"), "w"), separators=(",", ":"))

    samples = []
    for prompt in ("In the beginning", "And Jesus answered and said unto them,", "The LORD is my shepherd;",
                   "Now the king of Egypt", "<|im_start|>user\nBlessed are the poor in spirit:<|im_end|>\n<|im_start|>assistant\n"):
        for temperature in (0.0, 0.7):
            ids = torch.tensor([tok.encode(prompt).ids], device="cuda")
            kw = dict(do_sample=True, temperature=temperature, top_p=0.95) if temperature else dict(do_sample=False)
            out = reference.generate(ids, max_new_tokens=100, **kw)
            samples.append({"temperature": temperature, "text": tok.decode(out[0].tolist(), skip_special_tokens=False)})
            print(f"--- {temperature}: {samples[-1]['text']}", flush=True)
    json.dump({"arguments": vars(args), "parameters": parameters, "losses": history, "samples": samples,
               "torch": torch.__version__}, open(os.path.join(args.out, "training.json"), "w"), indent=1)


if __name__ == "__main__":
    main()
