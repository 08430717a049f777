"""Prompts: the shipped ones, those of a JSONL file, and random words."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from specsearch._search_space_file.document import shown

SHIPPED = ("chat", "code", "math", "long_context")
RANDOM_NAME = "random"
RANDOM_WARNING = (
    "workload {name}: random words say nothing about acceptance on real text, and the fastest configuration for them "
    "may be slow for yours; use text for any number that matters"
)
_FOLDER = Path(__file__).parents[1] / "workloads"
_MOST_BYTES = 64 << 20
_MOST_PROMPTS = 100_000
_SYLLABLES = ("ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru", "sa", "te", "vi", "wo", "xu", "ze")
_RANDOM_PROMPTS, _RANDOM_WORDS = 16, 96


def shipped_file(name: str) -> Path:
    """Where the prompts of a shipped workload lie."""
    return _FOLDER / f"{name}.jsonl"


def random_prompts(seed: int) -> tuple[str, ...]:
    """Prompts of made-up words; the same for the same seed."""
    chance = Random(seed)
    return tuple(
        " ".join("".join(chance.choices(_SYLLABLES, k=chance.randint(1, 3))) for _ in range(_RANDOM_WORDS))
        for _ in range(_RANDOM_PROMPTS)
    )


def read_prompts(path: Path) -> tuple[str, ...]:
    """The prompts of a JSONL file; raises ValueError with a sentence that names the first bad line."""
    try:
        if not path.is_file():
            raise ValueError(f"{path} is no file")
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{path} is larger than {_MOST_BYTES >> 20} MiB; take a sample of it")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    prompts = tuple(_prompts(path, text))
    if not prompts:
        raise ValueError(f"{path} holds no prompt")
    if len(prompts) > _MOST_PROMPTS:
        raise ValueError(f"{path} holds {len(prompts)} prompts, {_MOST_PROMPTS} are the most; take a sample of it")
    return prompts


def _prompts(path: Path, text: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _prompt(f"{path} line {number}", line)


def _prompt(where: str, line: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f'{where} is not JSON; a line is {{"prompt": "…"}}, {{"text": "…"}} or "…"') from None
    if isinstance(value, dict):
        value = value.get("prompt", value.get("text"))
    if not isinstance(value, str):
        raise ValueError(f'{where} has no text under "prompt" or "text"')
    if not value.strip():
        raise ValueError(f"{where} holds an empty prompt")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{where} holds half a surrogate pair: {shown(ascii(value))}")
    return value
