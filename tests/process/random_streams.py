"""Requests whose prompts are beginnings of others and of answers, many at once, cancelled or not, while workers are killed: what
test_helmd_prefix.py and test_helmd_tiers.py do to their daemons. Streams that are not cancelled must have their own
tokens."""
import os
import signal

from helmd_harness import expected_tokens, pb, same, status_of

PROMPT, CONTEXT = 180, 256  # tokens at most; of a prompt with its answer


class RandomStreams:
    """Every choice comes from `draw`; prompt_of(length, kind) makes texts."""

    def __init__(self, d, draw, prompt_of):
        self.d, self.draw, self.prompt_of = d, draw, prompt_of
        self.known, self.going, self.ended, self.killed = [prompt_of(40)], [], 0, 0

    def begin(self, client):
        draw, base = self.draw, self.draw.choice(self.known)
        prompt = (base[:draw.randrange(len(base) + 1)] + self.prompt_of(draw.randrange(1, 40), draw.randrange(20)))[:PROMPT]
        seed, count = draw.randrange(2), draw.randrange(1, CONTEXT - PROMPT)
        self.going.append((client.generate(prompt, count, seed=seed), prompt, count, seed))

    def cancel(self, client):
        if self.going:
            client.ask("cancel", id=self.draw.choice(self.going)[0].id)

    def kill(self):
        """A worker, if all are ready."""
        pid = self.d.children().get(self.draw.choice(["cpu", "gpu"]))
        if pid and status_of(self.d).state == "ready":
            os.kill(pid, signal.SIGKILL)
            self.killed += 1

    def take_ended(self):
        for one in [one for one in self.going if one[0].ended]:
            self.going.remove(one)
            s, prompt, count, seed = one
            self.ended += 1
            if s.done and s.done.finish_reason == pb.FINISH_CANCELLED:
                same(s.tokens, expected_tokens(prompt, len(s.tokens), seed=seed), "tokens up to its end")
            else:
                same(s.tokens, expected_tokens(prompt, count, seed=seed),
                     f"tokens of {len(prompt)} + {count} ({s.error or s.done})")
                self.known = self.known[-15:] + [prompt + s.tokens]
