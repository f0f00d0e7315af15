"""Fields of other servers that a body may have. Those that would change the answer are accepted only with values that
have no effect; all others are ignored, and the reply's header names them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

IGNORED_HEADER = "X-Dilaserve-Ignored"
ADJUSTED_HEADER = "X-Dilaserve-Adjusted"  # names a limit that the model's room has lowered
MAX_NAMED = 20  # ignored fields in the header
MAX_NAME_LENGTH = 100  # characters of a field's path

# By field, the values that have no effect; null has none either.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "continue_final_message": (False,),
    "echo": (False,),  # of chats
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "max_completion_tokens": (),  # of chats
    "min_tokens": (0,),
    "prompt_logprobs": (0, False),
    "repetition_penalty": (1,),
    "return_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "template": (),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "web_search_options": (),
}

# Those of a body in another form than a completion's, where a client may give a completion's fields by mistake.
NEUTRAL_IN_OTHER_FORMS: Mapping[str, tuple[Any, ...]] = NEUTRAL | {
    "canvas": (False,),
    "frequency_penalty": (0,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "logit_bias": ({},),
    "logprobs": (False, 0),
    "max_tokens": (),
    "messages": (),
    "n": (1,),
    "presence_penalty": (0,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "stop": ([],),
    "structured_outputs": (),
}


def effective_field(extra: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> str | None:
    """The first field that would change the answer, by its value; None: there is none."""
    for name, value in extra.items():
        if name in neutral and value is not None and value not in neutral[name]:
            return name
    return None


def ignored_header(body: BaseModel, also: Iterable[str] = ()) -> dict[str, str]:
    """The header that names the ignored fields, those in `also` first; empty if there are none."""
    names = [*also, *_ignored(body)]
    if not names:
        return {}
    more = [f"and {len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
    return {IGNORED_HEADER: ", ".join([*names[:MAX_NAMED], *more])}


def _ignored(body: BaseModel, path: str = "") -> Iterator[str]:
    neutral = getattr(type(body), "neutral", NEUTRAL)
    for name, extra in (body.model_extra or {}).items():
        if extra is not None and name not in neutral:
            yield _printable(path + name)
    given = body.model_fields_set
    for name, value in vars(body).items():  # its fields
        if name not in given:
            continue
        if isinstance(value, BaseModel):
            yield from _ignored(value, f"{path}{name}.")
        elif isinstance(value, list):
            yield from _of_items(value, path + name)


def _of_items(items: Iterable[Any], path: str) -> Iterator[str]:
    for i, item in enumerate(items):
        if isinstance(item, BaseModel):
            yield from _ignored(item, f"{path}[{i}].")


def _printable(name: str) -> str:
    """A client chooses the name, so only characters that a header may have are kept."""
    return re.sub(r"[^A-Za-z0-9_.\[\]-]", "?", name[:MAX_NAME_LENGTH])
