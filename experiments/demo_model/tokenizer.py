"""The demo model's tokenizer: byte-level BPE in which every whole number up to 199 is one token.

A number is the same token everywhere, because the space before it belongs to the previous word or mark; so prose and
equations share one embedding row. Any text encodes and decodes exactly.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments.demo_model.answers import worked_answer
from experiments.demo_model.arithmetic import FULL
from experiments.demo_model.problems import draw_problem

MASK, EOS, USER, ASSISTANT, SYSTEM = ("<|mdm_mask|>", "<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>")
SPECIAL = (MASK, EOS, USER, ASSISTANT, SYSTEM)
NUMBERS = range(200)
VOCAB_SIZE = 1500  # at most
CORPUS_SIZE = 12_000  # problems
MIN_COUNT = 12  # rarer merges are left out

PIECES = r"\d+| ?[A-Za-z]+(?: (?=\d))?| ?[^\sA-Za-z\d]+(?: (?=\d))?|\s+"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<|endoftext|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a careful teacher.",
    "Solve the problem step by step.",
    "Answer the question.",
)


def build_tokenizer(seed: int) -> Tokenizer:
    """Train the tokenizer on generated problems of the training set; the same seed gives the same tokenizer."""
    return train_tokenizer(
        _corpus(seed), VOCAB_SIZE, [AddedToken(text, special=True, normalized=False) for text in SPECIAL]
    )


def train_tokenizer(corpus: Iterable[str], vocab_size: int, added: Sequence[AddedToken]) -> Tokenizer:
    """Train byte-level BPE of at most `vocab_size` tokens; the added tokens come first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_COUNT,
        show_progress=False,
        special_tokens=list(added),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def _corpus(seed: int) -> Iterator[str]:
    """Problems with their answers, and what every corpus needs."""
    rng = Random(f"tokenizer {seed}")
    for _ in range(CORPUS_SIZE):
        problem = draw_problem(FULL, rng, held_out=False)
        yield problem.prompt
        yield worked_answer(problem, rng)
    yield from common_texts()


def common_texts() -> Iterator[str]:
    """Every number, often enough to become one token, and the messages of the system."""
    for number in NUMBERS:
        yield from [str(number)] * (400 if number < 100 else 100)
    for prompt in SYSTEM_PROMPTS:
        yield from [prompt] * MIN_COUNT


def number_tokens(tokenizer: Tokenizer) -> dict[int, int]:
    """The token of each number in NUMBERS.

    Raises: ValueError if one of them takes more than one token.
    """
    tokens = {}
    for number in NUMBERS:
        ids = tokenizer.encode(str(number), add_special_tokens=False).ids
        if len(ids) != 1:
            raise ValueError(f"the number {number} takes {len(ids)} tokens, the tokenizer's corpus is too small")
        tokens[number] = ids[0]
    return tokens


def token_of(tokenizer: Tokenizer, text: str) -> int:
    """The token of a mark, which the tokenizer has."""
    token = tokenizer.token_to_id(text)
    assert token is not None, f"no token {text}"
    return token


def save_tokenizer(
    tokenizer: Tokenizer,
    directory: Path,
    max_length: int,
    template: str = CHAT_TEMPLATE,
    turns: Sequence[str] = (USER, ASSISTANT, SYSTEM),
) -> None:
    """Write the files that `transformers.AutoTokenizer` reads. `turns`: the special tokens of the chat template.
    Units: tokens.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "padding_side": "left",
        "mask_token": MASK,
        "eos_token": EOS,
        "pad_token": EOS,
        "additional_special_tokens": list(turns),
        "chat_template": template,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
