"""Fields of other servers that a body may have. Those that would change the answer are accepted only with values that
have no effect; all others are ignored, and the reply's header names them. So are items of a list, such as tools, that
are left out."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Discriminator

IGNORED_HEADER = "X-Dilaserve-Ignored"
ADJUSTED_HEADER = "X-Dilaserve-Adjusted"  # names a limit that the model's room has lowered
MAX_NAMED = 20  # ignored fields in the header
MAX_NAME_LENGTH = 100  # characters of a field's path

# By field, the values that have no effect; null has none either. The fields are those of OpenAI, Anthropic, vLLM and
# TGI, the forms and limits of SGLang, llama.cpp and transformers, and those of servers of diffusion models.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "adapter_id": (),
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "alg": (),
    "alg_temp": (0,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),  # of chats
    "block_size": (),
    "cfg_scale": (0,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "custom_logit_processor": (),
    "decoder_input_details": (False,),
    "denoising_steps": (),
    "diffusing": (False,),
    "diffusion_config": ({},),
    "diffusion_max_steps": (),
    "diffusion_steps": (),
    "do_sample": (False,),
    "documents": ([],),
    "ebnf": (),
    "echo": (False,),  # of chats
    "editing_threshold": (),
    "enable_response_messages": (False,),
    "factor": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "gen_length": (),
    "grammar": (),
    "guided_json_object": (False,),
    "guided_whitespace_pattern": (),
    "guideline": (),
    "include_stop_str_in_output": (False,),
    "instructions": (),
    "json_schema": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "logprob_token_ids": (),
    "lora_path": (),
    "max_completion_tokens": (),  # of chats
    "max_new_tokens": (),
    "max_output_tokens": (),
    "mcp_servers": ([],),
    "min_new_tokens": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "n_predict": (),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "num_predict": (),
    "num_steps": (),
    "prefix": (False,),  # of messages
    "previous_input_messages": (),
    "previous_response": (),
    "prompt_embeds": (),
    "prompt_logprobs": (0, False),
    "refusal": (),  # of messages
    "regex": (),
    "remasking": ("low_confidence",),
    "repeat_penalty": (1,),
    "repetition_detection": (),
    "return_full_text": (False,),
    "return_prompt_text": (False,),
    "return_token_ids": (False,),
    "return_token_strs": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "steps": (),
    "stop_regex": (),
    "stop_sequences": ([],),
    "structural_tag": (),
    "suffix": ("",),
    "system": (),
    "template": (),
    "thread": (),
    "threshold": (),
    "tool_prompt": (),
    "top_n_tokens": (0,),
    "truncate": (),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermark": (False,),
    "watermarking": (False,),
    "web_search_options": (),
}

# Of prompts without a chat template, to which vLLM adds special tokens by default: the header names this field.
NEUTRAL_OF_PROMPTS: Mapping[str, tuple[Any, ...]] = {
    name: values for name, values in NEUTRAL.items() if name != "add_special_tokens"
}

# Those of a body in another form than a completion's, where a client may give a completion's fields by mistake.
NEUTRAL_IN_OTHER_FORMS: Mapping[str, tuple[Any, ...]] = NEUTRAL | {
    "background": (False,),
    "canvas": (False,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "logprobs": (False, 0),
    "max_tokens": (),
    "messages": (),
    "n": (1,),
    "prompt": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "stop": ([],),
    "structured_outputs": (),
    "top_logprobs": (0,),
}

# Of ignored fields, the values that need not be named: they ask for what is done anyway.
USUAL: Mapping[str, tuple[Any, ...]] = {
    "context_management": ([], {}, {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    "include_obfuscation": (False,),
    "is_error": (False,),  # of the result of a call
    "stream_options": ({}, {"include_obfuscation": False}),  # of responses
    "thinking": ({"type": "disabled"},),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
}


class LeftOut(BaseModel):
    """An item of a list that is accepted and not used, such as a tool that another server runs."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str


def leaving_out(types: str) -> Discriminator:
    """The tag of an item: `LeftOut` if its type matches this pattern, else `Served`."""

    def tag(item: Any) -> str:
        kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
        return "LeftOut" if isinstance(kind, str) and re.fullmatch(types, kind) else "Served"

    return Discriminator(tag)


def effective_field(extra: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> str | None:
    """The first field that would change the answer, by its value; None: there is none."""
    for name, value in extra.items():
        if name in neutral and value is not None and value not in neutral[name]:
            return name
    return None


def ignored_header(body: BaseModel, also: Iterable[str] = ()) -> dict[str, str]:
    """The header that names the ignored fields, those in `also` first; empty if there are none."""
    return header_of_ignored([*also, *_ignored(body)])


def header_of_ignored(names: Sequence[str]) -> dict[str, str]:
    """The header with these names; empty if there are none."""
    if not names:
        return {}
    more = [f"and {len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
    return {IGNORED_HEADER: ", ".join([*map(_printable, names[:MAX_NAMED]), *more])}


def _ignored(body: BaseModel, path: str = "") -> Iterator[str]:
    neutral = getattr(type(body), "neutral", NEUTRAL)
    for name, extra in (body.model_extra or {}).items():
        if extra is not None and name not in neutral and extra not in USUAL.get(name, ()):
            yield path + name
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
        if isinstance(item, LeftOut):
            yield f"{path}[{i}].type={item.type}"
        elif isinstance(item, BaseModel):
            yield from _ignored(item, f"{path}[{i}].")


def _printable(name: str) -> str:
    """A client chooses the name, so only characters that a header may have are kept."""
    return re.sub(r"[^A-Za-z0-9_.=\[\]-]", "?", name[:MAX_NAME_LENGTH])
