"""Fields of other servers that a body may have. Those that would change the answer are accepted only with values that
have no effect; all others are ignored, and the reply's header names them. So are items of a list, such as tools, that
are left out."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Tag

from services.gateway.errors import MAX_NAME_LENGTH

T = TypeVar("T")

IGNORED_HEADER = "X-Dilaserve-Ignored"
ADJUSTED_HEADER = "X-Dilaserve-Adjusted"  # names a limit that the model's room has lowered
MAX_NAMED = 20  # ignored fields in the header

# Fields by their only value that has no effect; null has none either. They are those of OpenAI, Anthropic, vLLM, TGI
# and NVIDIA, the forms, limits and samplers of SGLang, llama.cpp, KoboldCpp and transformers, and those of servers of
# diffusion models.
_NULL = (
    *("adapter_id", "alg", "audio", "block_size", "chat_template", "custom_logit_processor", "denoising_steps"),
    *("diffusion_max_steps", "diffusion_steps", "ebnf", "editing_threshold", "factor", "gen_length", "grammar"),
    *("guided_whitespace_pattern", "guideline", "instructions", "json_schema", "logprob_token_ids", "lora_path"),
    *("max_completion_tokens", "max_new_tokens", "max_output_tokens", "n_predict", "num_predict", "num_steps"),
    *("previous_input_messages", "previous_response", "prompt_embeds", "regex", "repetition_detection"),
    *("steps", "stop_regex", "structural_tag", "system", "template", "thread", "threshold", "tool_prompt"),
    *("truncate", "truncate_prompt_tokens", "web_search_options"),
)
_FALSE = (
    "dynamic_temperature",
    *("add_special_tokens", "continue_final_message", "decoder_input_details", "diffusing", "do_sample", "echo"),
    *("enable_response_messages", "guided_json_object", "include_stop_str_in_output", "partial", "prefix"),
    *("return_full_text", "return_prompt_text", "return_token_ids", "return_token_strs", "return_tokens_as_token_ids"),
    *("use_beam_search", "watermark", "watermarking"),
)
_ZERO = (
    *("alg_temp", "cfg_scale", "dry_multiplier", "dynatemp_range", "epsilon_cutoff", "eta_cutoff", "min_new_tokens"),
    *("min_tokens", "mirostat", "mirostat_mode", "no_repeat_ngram_size", "penalty_alpha", "smoothing_factor", "top_a"),
    *("top_n_tokens", "xtc_probability"),
)
_EMPTY = (
    *("allowed_token_ids", "bad_words", "documents", "functions", "logits_processors", "mcp_servers"),
    *("stop_sequences",),
)
_ONE = (
    *("best_of", "guidance_scale", "length_penalty", "num_beams", "repeat_penalty", "tfs", "tfs_z", "typ_p"),
    *("typical_p",),
)
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(_NULL, ()),
    **dict.fromkeys(_FALSE, (False,)),
    **dict.fromkeys(_ZERO, (0,)),
    **dict.fromkeys(_ONE, (1,)),
    **dict.fromkeys(_EMPTY, ([],)),
    "add_generation_prompt": (True,),
    "chat_template_kwargs": ({},),
    "diffusion_config": ({},),
    "extra_body": ({},),  # an argument of OpenAI's client, whose fields belong beside the others
    "format": ("",),  # Ollama's
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "negative_prompt": ("",),
    "nvext": ({},),  # NVIDIA's, with forms of the text
    "prompt_logprobs": (0, False),
    "remasking": ("low_confidence",),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "top_n_sigma": (-1, 0),
    "vllm_xargs": ({},),
}

# Of prompts without a chat template, to which vLLM adds special tokens by default: the header names this field.
NEUTRAL_OF_PROMPTS: Mapping[str, tuple[Any, ...]] = {
    name: values for name, values in NEUTRAL.items() if name != "add_special_tokens"
}

# Those of a body in another form than a completion's, where a client may give a completion's fields by mistake.
_COMPLETIONS = (
    *("guided_choice", "guided_grammar", "guided_json", "guided_regex", "max_tokens", "messages", "prompt"),
    *("reasoning_effort", "structured_outputs"),
)
NEUTRAL_IN_OTHER_FORMS: Mapping[str, tuple[Any, ...]] = {
    **NEUTRAL,
    **dict.fromkeys(_COMPLETIONS, ()),
    "background": (False,),
    "canvas": (False,),
    "logprobs": (False, 0),
    "n": (1,),
    "response_format": ({"type": "text"},),
    "stop": ([],),
    "top_logprobs": (0,),
}

# Of ignored fields, the values that need not be named: they ask for what is done anyway.
USUAL: Mapping[str, tuple[Any, ...]] = {
    "context_management": ([], {}, {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    "include_obfuscation": (False,),
    "is_error": (False,),  # of the result of a call
    "stream_options": ({}, {"include_obfuscation": False}),  # of responses
    "truncation": ("disabled",),
    "verbosity": ("medium",),
}


class LeftOut(BaseModel):
    """An item of a list that is accepted and not used, such as a tool that another server runs."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str


OrLeftOut = Annotated[T, Tag("Served")] | Annotated[LeftOut, Tag("LeftOut")]  # beside a `leaving_out`


def kind_of(item: Any) -> str:
    """The type of an item, as it was sent or read; empty: it has none."""
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return kind if isinstance(kind, str) else ""


def leaving_out(types: str) -> Discriminator:
    """The tag of an item: `LeftOut` if its type matches this pattern, else `Served`."""
    return Discriminator(lambda item: "LeftOut" if re.fullmatch(types, kind_of(item)) else "Served")


def effective_field(extra: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> str | None:
    """The first field that would change the answer, by its value; None: there is none."""
    given = ((name, value) for name, value in extra.items() if name in neutral and value is not None)
    return next((name for name, value in given if value not in neutral[name]), None)


def ignored_header(body: BaseModel | None, also: Iterable[str] = ()) -> dict[str, str]:
    """The header that names the ignored fields, those in `also` first; empty if there are none."""
    names = [*also, *(_ignored(body) if body is not None else ())]
    if not names:
        return {}
    more = [f"and {len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
    # A client chooses the names, so only characters that a header may have are kept
    shown = [re.sub(r"[^A-Za-z0-9_.=\[\]-]", "?", name[:MAX_NAME_LENGTH]) for name in names[:MAX_NAMED]]
    return {IGNORED_HEADER: ", ".join([*shown, *more])}


def _ignored(body: BaseModel, path: str = "") -> Iterator[str]:
    neutral = getattr(type(body), "neutral", NEUTRAL)
    for name, extra in (body.model_extra or {}).items():
        if extra is not None and name not in neutral and extra not in USUAL.get(name, ()):
            yield path + name
    for name, value in vars(body).items():  # its fields
        if name not in body.model_fields_set:
            continue
        items = enumerate(value) if isinstance(value, list) else ()
        for place, item in [(name, value), *((f"{name}[{i}]", item) for i, item in items)]:
            if isinstance(item, LeftOut):
                yield f"{path}{place}.type={item.type}"
            elif isinstance(item, BaseModel):
                yield from _ignored(item, f"{path}{place}.")
