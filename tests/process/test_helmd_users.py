#!/usr/bin/python3
"""Users whom a gateway names (Request.user): who may name them, and that each is a peer of its own, although all requests come
over one connection: in the queue, in the prefix cache, in lists and for Cancel."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helmd_harness import (Client, as_user, check, expected_tokens, pb, run_tests, running, same, skip,  # noqa: E402
                           wait_until)
from raw_zmtp import Raw, frame  # noqa: E402
from test_helmd_hostile import with_keys  # noqa: E402


def finish(c, *streams):
    """The streams in the order in which they end."""
    order, left = [], list(streams)
    while left:
        c.receive()
        order += [s for s in left if s.ended]
        left = [s for s in left if not s.ended]
    return order


def accepted(c, *streams):
    while not all(s.id or s.error for s in streams):
        c.receive()


def named(user, **body):
    """A request in the name of `user` with this one-member body, and its bytes as a frame."""
    r = pb.Request(version=1, request_id=7, user=user)
    for name, fields in body.items():
        getattr(r, name).SetInParent()
        for field, value in fields.items():
            of = getattr(getattr(r, name), field)
            of.extend(value) if hasattr(of, "extend") else setattr(getattr(r, name), field, value)
    return r


# ---- who may name users ------------------------------------------------------------------------------------------


BODIES = ({"generate": {"prompt": [3], "max_tokens": 1}}, {"embed": {"prompt": [3]}}, {"cancel": {"id": 1}}, {"list": {}}, {"status": {}},
          {"model_info": {}}, {"plan": {}}, {"mask": {"tokens": [1]}}, {"session_save": {"tokens": [3] * 64}}, {"session_end": {"id": 1}})


def test_a_client_that_is_no_gateway_may_not_name_users():
    with with_keys(keys=("", "gateway", "admin", "# gateway")) as (d, connects):
        plain, gateway, admin, comment = (connect() for connect in connects)
        local = Client(d.endpoint)  # helmd's own user
        for who, c, may in (("a key", plain, False), ("a comment", comment, False), ("a gateway's key", gateway, True),
                            ("an administrator's key", admin, True), ("helmd's own user", local, True)):
            same(c.ask("status").status.names_users, may, f"what status says to {who}")
            s = c.generate([3], 4, user="alice")
            c.run(s)
            same(s.error.code if s.error else 0, 0 if may else pb.ERROR_DENIED, f"user named by {who}")
            check(may or "only a gateway" in s.error.message, f"{who}: {s.error}")
        for body in BODIES:
            plain.socket.send(named("alice", **body).SerializeToString())
            same(plain.receive().error.code, pb.ERROR_DENIED, f"{body} in another's name")
        s = plain.generate([3], 4)
        plain.run(s)
        same(s.tokens, expected_tokens([3], 4), "who names none is served as before")
        counts = {c.name: c.count for c in local.ask("status").status.refused}
        same(counts["denied"], 2 + len(BODIES), "refusals counted")
        same(len(gateway.ask("list").list.entries), 0, "a gateway's key administers nothing")


def test_a_user_has_a_short_clean_name():
    with running() as d:
        c = Client(d.endpoint)
        for name, code in (("u" * 64, 0), ("u" * 65, pb.ERROR_TOO_LARGE), ("\u00e9" * 32, 0), ("a\x1b[2J", pb.ERROR_MALFORMED), ("a\n", pb.ERROR_MALFORMED)):
            s = c.generate([3], 2, user=name)
            c.run(s)
            same(s.error.code if s.error else 0, code, f"user {name!r}")


def test_members_of_the_gateways_group_name_users():
    if os.getuid() != 0:
        skip("only root can be other users")
    with running("--gateway-group", "4321", faults="step_us=30000") as d:
        os.chmod(d.rundir, 0o755)
        os.chmod(d.rundir + "/helmd.sock", 0o666)

        def ask():
            raw = Raw("ipc://helmd.sock")
            for r in (named("", status={}), named("bob", list={}), named("", list={})):
                raw.send(frame(r.SerializeToString()))
            status, bobs, own = (pb.Response.FromString(raw.frame()) for _ in range(3))
            return f"{status.status.names_users} {bobs.WhichOneof('body')} {len(own.list.entries)} {own.list.others}"

        c = Client(d.endpoint)
        accepted(c, c.generate([3], 500), c.generate([3], 500, user="bob"))
        same(as_user(1234, 1234, [], d.rundir, ask), "False error 0 2", "a user")
        same(as_user(1234, 4321, [], d.rundir, ask), "True list 0 2", "one whose group that is")
        same(as_user(1234, 1234, [77, 4321], d.rundir, ask), "True list 0 2", "one who is in that group besides")


# ---- the queue ---------------------------------------------------------------------------------------------------


def test_a_user_with_one_request_is_next():
    """One connection: 100 requests of one user wait, then comes one of another, then one of the gateway itself."""
    with running("--parallel", 1, "--queue", 512, faults="step_us=5000") as d:
        c = Client(d.endpoint)
        many = [c.generate([3], 4, seed=n, user="greedy") for n in range(100)]
        accepted(c, *many)
        one = c.generate([5], 4, user="modest")
        own = c.generate([7], 4)
        accepted(c, one, own)
        before = sum(s.ended for s in many)
        c.run(one)
        check(sum(s.ended for s in many) <= before + 1, f"{sum(s.ended for s in many) - before} requests of the greedy one ended before")
        c.run(own)
        check(sum(s.ended for s in many) <= before + 2, f"{sum(s.ended for s in many) - before} ended before the gateway's own")
        same([s.tokens for s in (one, own)], [expected_tokens([5], 4), expected_tokens([7], 4)], "tokens")


def test_the_place_that_is_told_counts_users():
    with running("--parallel", 2, "--queue", 512, faults="step_us=20000") as d:
        c = Client(d.endpoint)
        many = [c.generate([3], 40, seed=n, user=f"u{n % 3}") for n in range(60)]
        accepted(c, *many)
        c.generate([5], 4, user="modest")
        while (answer := c.receive()).WhichOneof("body") != "accepted":
            pass
        check(answer.accepted.queue_position <= 3, f"place {answer.accepted.queue_position}: one of each other user and of the running")


def test_users_share_equally():
    """Requests of five users, one user's after another's: slots go round."""
    for parallel in (1, 3):
        with running("--parallel", parallel, "--queue", 512, faults="step_us=10000") as d:
            c = Client(d.endpoint)
            streams = [(f"user {u}", c.generate([3 + u], 3, seed=n, user=f"user {u}")) for u in range(5) for n in range(8)]
            accepted(c, *(s for _, s in streams))
            whose = {s.id: name for name, s in streams}
            left = dict.fromkeys(whose.values(), 0)
            for name, s in streams:  # the first got slots while they were alone
                left[name] += not s.ended
            counts = dict.fromkeys(whose.values(), 0)
            for s in finish(c, *(s for _, s in streams if not s.ended)):
                counts[whose[s.id]] += 1
                left[whose[s.id]] -= 1
                if min(left.values()) == 0:
                    break
                check(max(counts.values()) - min(counts.values()) <= parallel + 1, f"parallel {parallel}: {counts}")
            check(max(counts.values()) - min(counts.values()) <= parallel + 2, f"parallel {parallel}: {counts}")


def test_a_full_queue_has_room_for_another_user():
    with running("--parallel", 1, "--queue", 32, faults="step_us=20000") as d:
        c = Client(d.endpoint)
        many = [c.generate([3], 100, seed=n, user="greedy") for n in range(60)]
        accepted(c, *many)
        check(0 < sum(bool(s.error) for s in many) < 40, "the greedy one's bound")
        check("its share is 15, the rest is for others" in many[-1].error.message, many[-1].error)
        others = [c.generate([3], 2, user=f"modest {n}") for n in range(2)]
        accepted(c, *others)
        check(not any(s.error for s in others), [s.error for s in others])


def test_a_users_prompts_do_not_hold_up_another_user():
    """Chunks of prompts go round users of one connection, as they do among connections."""
    with running("--parallel", 8, "--step-tokens", 64, "--prefix-cache", "off", faults="token_us=200") as d:
        c = Client(d.endpoint)
        many = [c.generate([3 + (i + n) % 90 for i in range(400)], 1, seed=n, user="greedy") for n in range(7)]
        accepted(c, *many)
        one = c.generate([5] * 60, 1, user="modest")
        accepted(c, one)
        before = sum(s.ended for s in many)
        c.run(one)
        check(sum(s.ended for s in many) - before <= 2, f"{sum(s.ended for s in many) - before} long prompts went before a short one")


# ---- the prefix cache --------------------------------------------------------------------------------------------


def prompt_of(count, kind=0):
    return [2 + (i * 7 + i // 30 + kind * 11) % 90 for i in range(count)]


def found(c, prompt, user="", count=4):
    s = c.generate(prompt, count, user=user)
    c.run(s)
    same(s.tokens, expected_tokens(prompt, count), f"tokens for '{user}'")
    return s.done.usage.cached_tokens


def saves(c, prompt, user):
    c.socket.send(named(user, session_save={"tokens": prompt}).SerializeToString())
    while (answer := c.receive()).request_id != 7:
        pass
    if answer.WhichOneof("body") == "session_opened":
        c.socket.send(named(user, session_end={"id": answer.session_opened.id}).SerializeToString())
        c.receive()
        return answer.session_opened.pages
    same(answer.error.code, pb.ERROR_NOT_FOUND, "answer")
    return 0


def test_users_do_not_find_each_others_prompts():
    with with_keys("--prefix-cache", "peer", keys=("gateway", "gateway")) as (d, connects):
        c, again, other = connects[0](), connects[0](), connects[1]()
        c.next = again.next = other.next = 100
        prompt = prompt_of(200)
        same([found(c, prompt, "alice"), found(c, prompt, "alice")], [0, 192], "alice's own")
        same([found(c, prompt, user) for user in ("bob", "ALICE", "alice ", "")], [0] * 4, "others'")
        same(found(again, prompt, "alice"), 192, "alice's over another connection of the gateway")
        same(found(other, prompt, "alice"), 0, "an alice of another gateway")
        same([saves(c, prompt, user) for user in ("alice", "carol", "")], [6, 0, 6], "pages that are saved for each")
        same(found(Client(d.endpoint), prompt), 0, "the local user's")


def test_users_do_not_share_prompts_that_come_together():
    with running("--prefix-cache", "peer", "--parallel", 4, "--step-tokens", 64, faults="token_us=50") as d:
        c = Client(d.endpoint)
        prompt = prompt_of(400)
        streams = [c.generate(prompt, 3, user=user) for user in ("alice", "bob", "alice", "bob")]
        c.run(*streams)
        cached = [s.done.usage.cached_tokens for s in streams]
        same(sorted(cached[0::2]) + sorted(cached[1::2]), [0, 384, 0, 384], "found by each user's two")


def test_an_answer_that_is_computed_again_stays_its_users():
    with running("--prefix-cache", "peer", "--invariant", "on") as d:
        c = Client(d.endpoint)
        history = prompt_of(40)
        found(c, history, "alice", 60)
        history = history + expected_tokens(history, 60) + prompt_of(9)
        check(wait_until(lambda: c.ask("status").status.kv_pages_cached >= 3, 10), "the answer is not computed again")
        same([found(c, history, user) for user in ("bob", "alice")], [0, 96], "found by each")


def test_with_prefixes_for_all_users_share():
    with running("--prefix-cache", "on") as d:
        c = Client(d.endpoint)
        same([found(c, prompt_of(200), user) for user in ("alice", "bob", "")], [0, 192, 192], "found by each")


# ---- lists and Cancel --------------------------------------------------------------------------------------------


def test_a_user_neither_sees_nor_cancels_anothers_requests():
    with with_keys(keys=("gateway", ""), faults="step_us=30000") as (d, connects):
        c, stranger = (connect() for connect in connects)
        local = Client(d.endpoint)
        alices = c.generate([3], 400, user="alice", label="chat")
        bobs = c.generate([3], 400, user="bob")
        accepted(c, alices, bobs)

        def seen(client, user=""):
            got = client.ask("list", user=user).list
            return sorted(e.user for e in got.entries), got.others

        same([seen(c, "alice"), seen(c, "bob"), seen(c, "carol")], [(["alice"], 1), (["bob"], 1), ([], 2)], "each user's list")
        same([seen(c), seen(stranger), seen(local)], [(["alice", "bob"], 0), ([], 2), (["alice", "bob"], 0)], "gateway, stranger, helmd's user")
        same(seen(local, "alice"), ([], 2), "an alice of another gateway, whoever it is")
        number = {id(s): n for n, s in c.streams.items()}
        for name, fields in (("id", {"id": alices.id}), ("request_id", {"request_id": number[id(alices)]})):
            answer = c.ask("cancel", user="bob", **fields)
            same(answer.error.code, pb.ERROR_NOT_FOUND, f"bob cancels alice's by {name}")
            check("of yours" in answer.error.message, answer.error.message)
        same(local.ask("cancel", user="root", id=alices.id).error.code, pb.ERROR_NOT_FOUND, "an administrator's user")
        same(stranger.ask("cancel", id=alices.id).error.code, pb.ERROR_NOT_FOUND, "another key")
        same(c.ask("cancel", user="alice", id=alices.id).accepted.id, alices.id, "alice cancels her own")
        c.run(alices)
        same(alices.done.finish_reason, pb.FINISH_CANCELLED, "reason")
        check(not bobs.ended, "bob's ended, too")
        same(c.ask("cancel", request_id=number[id(bobs)]).accepted.id, bobs.id, "the gateway cancels what it sent")
        c.run(bobs)


if __name__ == "__main__":
    run_tests(globals())
