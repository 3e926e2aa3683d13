#!/usr/bin/python3
"""/v1/responses with what is kept of them: conversations that go on by an id, references to items, GET, DELETE, input_items,
`store`, whose they are, and how much memory they take. HELM_BIN, HELM_PYPROTO as in test_gateway.py. Run from the
repository's root.
"""
import json
import os
import sys
import tempfile

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
from gateway_harness import Gateway, Stage, check, sum_up  # noqa: E402

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def refused(a, status, *words, code=None, param=None):
    error = a.json["error"]
    return (a.status == status and error["type"] == "invalid_request_error" and error["code"] == code and error["param"] == param
            and all(word in error["message"] for word in words))


def last_event(g, body):
    data = [line[6:] for line in g.post(PATH, {**body, "stream": True}).body.decode().splitlines() if line.startswith("data: ")]
    return json.loads(data[-1])["response"]


def conversation_tests(stage):
    g, daemon = stage.gateway, stage.daemon
    daemon.say("<think>I recall.</think>It rains.")
    first = g.post(PATH, {"input": "What is the weather?", "instructions": "Be brief."}).json
    check("an answer says that it is kept", first["store"] is True and first["previous_response_id"] is None, first)
    second = last_event(g, {"input": [{"role": "user", "content": "And now?"}], "previous_response_id": first["id"]})
    text = stage.prompt()
    check("a conversation goes on by an id", second["previous_response_id"] == first["id"] and "What is the weather?" in text
          and text.index("It rains.") < text.index("And now?"), text)
    check("... without the instructions of the earlier request", "Be brief." not in text, text)
    g.post(PATH, {"input": "Again?", "previous_response_id": second["id"]})
    text = stage.prompt()
    check("... from a stream's answer too, with all that is before", text.count("It rains.") == 2 and
          [text.index(word) for word in ("What is", "And now?", "Again?")] == sorted(text.index(word) for word in ("What is", "And now?", "Again?")), text)
    whole = g.post(PATH, {"input": [{"role": "user", "content": "What is the weather?"}, *first["output"], {"role": "user", "content": "And now?"}],
                          "store": False})
    g.post(PATH, {"input": "And now?", "previous_response_id": first["id"]})
    check("... as if its items were sent", whole.status == 200 and daemon.prompts[-1] == daemon.prompts[-2], (whole.body, stage.prompt()))
    counted = [g.post(PATH + "/input_tokens", {"input": "And now?", **more}).json["input_tokens"] for more in ({"previous_response_id": first["id"]}, {})]
    check("input_tokens counts what is before", counted[0] == len(daemon.prompts[-1]) and counted[1] < counted[0], counted)


def tool_tests(stage):
    g, daemon = stage.gateway, stage.daemon
    daemon.say(CALL)
    call = g.post(PATH, {"input": "Weather?", "tools": [TOOL]}).json
    daemon.say("It rains.")
    output = {"type": "function_call_output", "call_id": call["output"][0]["call_id"], "output": "rain"}
    a = g.post(PATH, {"input": [output], "tools": [TOOL], "previous_response_id": call["id"]})
    text = stage.prompt()
    check("a call's result goes on with the call", a.status == 200 and '"city": "Paris"' in text and "<tool_response>\nrain" in text, (a.body, text))
    asked = {"role": "user", "content": "Weather?"}
    b = g.post(PATH, {"input": [asked, {"type": "item_reference", "id": call["output"][0]["id"]}, output], "tools": [TOOL], "store": False})
    check("a reference is the item", b.status == 200 and daemon.prompts[-1] == daemon.prompts[-2], (b.body, stage.prompt()))
    b = g.post(PATH, {"input": [asked, {"id": call["output"][0]["id"]}, output], "tools": [TOOL]})
    check("... also without its type", b.status == 200 and daemon.prompts[-1] == daemon.prompts[-3], b.body)
    listed = g.get(PATH + "/%s/input_items?order=asc" % b.json["id"]).json
    check("... and is listed as the item", [i["type"] for i in listed["data"]] == ["message", "function_call", "function_call_output"], listed)
    b = g.post(PATH, {"input": [{"type": "item_reference", "id": listed["data"][2]["id"]}, {"type": "item_reference", "id": "msg_none"}]})
    check("one that is not there is named", refused(b, 404, "Item with id 'msg_none' not found", param="input"), b.body)
    daemon.say("<think>Hm.</think>Yes.")
    thought = g.post(PATH, {"input": "x"}).json["output"][0]
    g.post(PATH, {"input": [{"role": "user", "content": "x"}, {"type": "reasoning", "id": thought["id"], "summary": []}, {"type": "function_call", "call_id": "a",
                            "name": "get_weather", "arguments": "{}"}, {**output, "call_id": "a"}], "tools": [TOOL]})
    check("a reasoning by its id alone has its text", "Hm." in stage.prompt(), stage.prompt())


def door_tests(stage):
    g, daemon = stage.gateway, stage.daemon
    daemon.say("It rains.")
    sent = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, {"type": "message", "id": "msg_mine", "role": "user", "content":
            [{"type": "input_text", "text": "three"}]}]
    made = g.post(PATH, {"input": sent, "metadata": {"a": "b"}})
    id, at = made.json["id"], PATH + "/" + made.json["id"]
    check("GET has the answer as it was", g.get(at).body == made.body and g.get(at[3:]).json == made.json, g.get(at).body)
    check("... HEAD too", g.request("HEAD", at).status == 200)
    items = g.get(at + "/input_items").json
    shown = [part["text"] for item in items["data"] for part in item["content"]]
    check("input_items, the newest first", shown == ["three", "two", "one"] and items["object"] == "list" and items["has_more"] is False and
          items["first_id"] == "msg_mine" == items["data"][0]["id"] and items["last_id"] == items["data"][2]["id"], items)
    check("... whole items", [i["type"] + i["role"] + i["content"][0]["type"] for i in items["data"]] ==
          ["messageuserinput_text", "messageassistantoutput_text", "messageuserinput_text"], items)
    page = g.get(at + "/input_items?limit=2&order=asc").json
    rest = g.get(at + "/input_items?limit=2&order=asc&after=" + page["last_id"]).json
    check("... by pages", [i["id"] for i in page["data"] + rest["data"]] == [i["id"] for i in items["data"]][::-1] and page["has_more"] and not rest["has_more"],
          (page, rest))
    for query, words in (("limit=0", ("limit", "'0'", "100")), ("limit=101", ("limit", "100")), ("limit=x", ("limit",)), ("order=up", ("order", "'up'"))):
        a = g.get(at + "/input_items?" + query)
        check("... %s is refused" % query, refused(a, 400, *words, code="invalid_value", param=query.split("=")[0]), a.body)
    check("... after what is not there", refused(g.get(at + "/input_items?after=x"), 404, "'x'", param="after"))
    check("events are not kept", refused(g.get(at + "?stream=true"), 400, "stream", code="unsupported_parameter", param="stream"))
    later = g.post(PATH, {"input": "four", "previous_response_id": id}).json
    a = g.request("DELETE", at)
    check("DELETE", a.status == 200 and a.json == {"id": id, "object": "response", "deleted": True}, a.body)
    for method, path in (("GET", at), ("DELETE", at), ("GET", at + "/input_items"), ("GET", PATH + "/none")):
        a = g.request(method, path)
        check("%s %s of what is gone" % (method, path[-20:]), refused(a, 404, "Response with id '%s' not found." % path.split("/")[3]), a.body)
    a = g.post(PATH, {"input": "x", "previous_response_id": id})
    check("... nor does a request go on with it", refused(a, 400, "Previous response with id '%s' not found." % id, code="previous_response_not_found",
                                                         param="previous_response_id"), a.body)
    g.post(PATH, {"input": "five", "previous_response_id": later["id"]})
    check("... but what went on with it has it", "three" in stage.prompt() and "four" in stage.prompt(), stage.prompt())
    for bad in ("x", 5, ["resp_1"]):
        check("not an id: %s" % bad, refused(g.post(PATH, {"input": "x", "previous_response_id": bad}), 400, "resp_", code="invalid_value",
                                             param="previous_response_id"))
    for method, path, allow in (("PUT", at, "GET, HEAD, DELETE"), ("POST", at + "/input_items", "GET, HEAD")):
        a = g.request(method, path)
        check("%s there: 405" % method, a.status == 405 and a.headers["Allow"] == allow, (a.status, a.headers))
    check("no path behind it", g.get(at + "/input_items/x").status == g.get(PATH + "/").status == 404)


def store_tests(stage):
    g, daemon = stage.gateway, stage.daemon
    daemon.say("It rains.")
    for stream in (False, True):
        a = last_event(g, {"input": "x", "store": False}) if stream else g.post(PATH, {"input": "x", "store": False}).json
        check("store false, %s: nothing is kept" % ("streamed" if stream else "whole"), a["store"] is False and g.get(PATH + "/" + a["id"]).status == 404, a)
        b = g.post(PATH, {"input": [{"type": "item_reference", "id": a["output"][0]["id"]}]})
        check("... no item either", refused(b, 404, a["output"][0]["id"], "store", param="input"), b.body)
    check("not a flag", g.post(PATH, {"input": "x", "store": "yes"}).status == 400)
    check("a refused request keeps nothing", g.post(PATH, {"input": "x", "temperature": -1}).status == 400)


def owner_tests(stage):
    stage.daemon.say("It rains.")
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write("anna key-of-anna\nbert key-of-bert\n")
        keys.flush()
        with Gateway(stage.endpoint, "--api-keys", keys.name, "--keep-responses", "40KiB") as g:
            anna, bert = ({"Authorization": "Bearer key-of-" + name} for name in ("anna", "bert"))
            made = g.post(PATH, {"input": "secret"}, headers=anna).json
            at = PATH + "/" + made["id"]
            check("one's own", g.get(at, headers=anna).json == made)
            for a in (g.get(at, headers=bert), g.request("DELETE", at, headers=bert), g.get(at + "/input_items", headers=bert)):
                check("... is no one else's", refused(a, 404, made["id"]), a.body)
            a = g.post(PATH, {"input": "x", "previous_response_id": made["id"]}, headers=bert)
            check("... to go on with", a.status == 400 and made["id"] in a.json["error"]["message"], a.body)
            a = g.post(PATH, {"input": [{"type": "item_reference", "id": made["output"][0]["id"]}]}, headers=bert)
            check("... to refer to", a.status == 404, a.body)
            check("... nor without a key", g.get(at).status == 401)
            ids = [g.post(PATH, {"input": "word " * 100}, headers=bert).json["id"] for _ in range(30)]
            found = [g.get(PATH + "/" + id, headers=bert).status for id in ids]
            check("a full memory loses the oldest of the one who has most", found[0] == 404 and found[-1] == 200 and found == sorted(found, reverse=True) and
                  g.get(at, headers=anna).status == 200, found)
            big = g.post(PATH, {"input": "x", "user": "x" * 50000}, headers=bert).json
            check("... and what is larger than it", g.get(PATH + "/" + big["id"], headers=bert).status == 404 and g.get(at, headers=anna).status == 200, big["id"])
    with Gateway(stage.endpoint, "--keep-responses", "0") as g:
        a = g.post(PATH, {"input": "x", "store": True})
        check("--keep-responses 0: store is ignored and named", a.json["store"] is False and a.headers["x-helm-ignored"] == "store", (a.headers, a.body))
        check("... an unsaid one is not", "x-helm-ignored" not in g.post(PATH, {"input": "x"}).headers)
        check("... and there is nothing to go on with", refused(g.post(PATH, {"input": "x", "previous_response_id": "resp_1"}), 400, "--keep-responses 0",
                                                               code="unsupported_parameter", param="previous_response_id"))


def main():
    with Stage("qwen3.jinja") as stage:
        conversation_tests(stage)
        tool_tests(stage)
        door_tests(stage)
        store_tests(stage)
        owner_tests(stage)
    sum_up()


if __name__ == "__main__":
    main()
