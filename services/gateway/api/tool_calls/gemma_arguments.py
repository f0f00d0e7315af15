"""The arguments of calls as Gemma 4 writes them: {city:<|"|>Rome<|"|>,days:[1,2]}. Keys have no quotes, and texts
are between marks, without escapes."""

import json
import re
from contextlib import suppress

from services.gateway.api.tool_calls.call_text import Arguments

NAME = r'[^\s{}\[\],:<"][^{}\[\],:<"]*'  # a key, a number or a constant
_STRING = r'<\|"\|>(?P<text>(?s:.*?))(?:(?P<closing><\|"\|>)|(?:<(?:\|(?:"\|?)?)?)?\Z)'
_CUT = rf'(?P<cut>{NAME}\Z|<(?:\|(?:"\|?)?)?\Z|"(?:[^"\\]|\\.)*\\?\Z)'  # may continue in other ways
_TOKEN = re.compile(rf'{_STRING}|{_CUT}|(?P<json>"(?:[^"\\]|\\.)*"|[{{}}\[\],:\s])|(?P<name>{NAME})(?P<is_key>:)?')
_DEPTHS = {"{": 1, "[": 1, "}": -1, "]": -1}


def gemma_arguments(text: str, start: int) -> Arguments:
    """The object that begins at `start`, as JSON. Of an incomplete one, the JSON begins that of the whole one."""
    written, depth, at = list[str](), 0, start
    while found := _TOKEN.match(text, at):
        at = found.end()
        if found["text"] is not None:
            quoted = json.dumps(found["text"], ensure_ascii=False)
            written.append(quoted if found["closing"] else quoted[:-1])
        elif found["json"]:
            written.append(found["json"])
            depth += _DEPTHS.get(found["json"], 0)
            if not depth:
                break
        elif found["name"]:
            name = found["name"].rstrip()
            written.append(f"{json.dumps(name, ensure_ascii=False)}:" if found["is_key"] else _scalar(name))
    return "".join(written), at


def _scalar(word: str) -> str:
    """A number or a constant as JSON has it; another word is a text."""
    if word == "None":
        return "null"
    with suppress(ValueError):
        json.loads(word)
        return word
    return json.dumps(word, ensure_ascii=False)
