"""How many tokens messages take: a cheap estimate that errs high, tiktoken where it is asked
for, and what the provider itself reported. Nothing here goes to the network or imports litellm.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any, Protocol

from nexo_django.messages import ASSISTANT, COMPLETE, Message

# Stored beside a count; a count by another ruler is made again.
RULER = "estimate:2"
CHARS_PER_TOKEN = 4.0
PER_MESSAGE = 4
IMAGE, LARGE_IMAGE, PAGE, FILE = 1600, 5000, 1500, 5000

# Letters, and the whitespace that joins words; other ASCII makes shorter tokens.
_WORDS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ \n\t\r"
# Base64, hexadecimal, keys: runs without a word in them, with letters and digits.
_DENSE = re.compile(r"[A-Za-z0-9+/=_-]{32,}")
_DIGIT, _LETTER = re.compile(r"[0-9]"), re.compile(r"[A-Za-z]")
_SHORT, _DENSE_CHARS = 1.35, 1.3


class Counter(Protocol):
    """Counts what messages, and the schemas of the tools sent with them, take.

    `count([])` is 0 and the count of a list is the sum of its messages' counts.
    """

    def count(self, messages: Sequence[Message], tools: Iterable[Any] | None = None) -> int:
        """Give the number of tokens."""


def _weigh(text: str, chars_per_token: float) -> float:
    ascii_bytes = text.encode("ascii", "ignore")
    other = len(text) - len(ascii_bytes)
    short = len(ascii_bytes.translate(None, _WORDS))
    weight = (len(ascii_bytes) - short) / chars_per_token + short / min(_SHORT, chars_per_token)
    if other:
        # Of two bytes are accents, Greek, Cyrillic, Arabic; of three and four Chinese and emoji.
        four = len(text.encode("utf-16-le", "surrogatepass")) // 2 - len(text)
        size = len(text.encode("utf-8", "surrogatepass")) - len(ascii_bytes)
        three = size - 2 * other - 2 * four
        weight += 0.6 * (other - three - four) + 1.3 * three + 3 * four
    for run in _DENSE.findall(text):
        if _DIGIT.search(run) and _LETTER.search(run):
            weight += len(run) / min(_DENSE_CHARS, chars_per_token) - len(run) / chars_per_token
    return weight


def estimate(text: str) -> int:
    """Estimate a text's tokens without a tokenizer, rather high than low.

    Never less for a longer text that begins with the same.
    """
    return ceil(_weigh(text, CHARS_PER_TOKEN))


def estimate_message(message: Message) -> int:
    """Estimate what one message takes in a request."""
    return Approximate().count([message])


def render(message: Message) -> str:
    """Give a message as one text: what is counted, and what a summariser reads."""
    pieces = [f"{message.role}: {message.content or ''}"]
    for call in message.calls:
        arguments = call.raw_arguments or _json(call.arguments)
        pieces.append(f" {call.name}({arguments}) -> {call.id}")
    if message.tool_call_id is not None:
        pieces.append(f" (answering {message.tool_call_id})")
    return "".join(pieces)


def count_parts(message: Message) -> int:
    """Count what a message holds beside its text; a part of an unknown kind is never 0."""
    return sum(_part(part) for part in message.parts or ())


def _part(part: Any) -> int:
    kind = str(part.get("type", "")) if isinstance(part, dict) else ""
    if kind == "text":
        return estimate(str(part.get("text", ""))) + 1
    if kind == "attachment":
        return _attachment(part)
    if "image" in kind:
        return _image(part)
    if any(word in kind for word in ("file", "document", "audio", "video")):
        pages = part.get("pages")
        return PAGE * pages if isinstance(pages, int) and pages > 0 else FILE
    return estimate(_json(part)) + 1


def _attachment(part: dict[str, Any]) -> int:
    tokens, pages = part.get("tokens"), part.get("pages")
    if isinstance(tokens, int):
        return tokens + 40
    if isinstance(pages, int):
        return PAGE * max(1, pages)
    return _image(part) if str(part.get("media_type")).startswith("image/") else FILE


def _image(part: dict[str, Any]) -> int:
    nested = part.get("image_url")
    about = {**part, **nested} if isinstance(nested, dict) else part
    width, height = about.get("width"), about.get("height")
    if isinstance(width, int) and isinstance(height, int) and width > 0 and height > 0:
        return min(LARGE_IMAGE, max(85, ceil(width * height / 750)))
    return LARGE_IMAGE if about.get("detail") == "high" else IMAGE


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def schemas(tools: Iterable[Any] | None) -> str:
    """Give the tools' schemas as the text that is counted."""
    shown = [tool.definition() if hasattr(tool, "definition") else tool for tool in tools or ()]
    return _json(shown) if shown else ""


class Approximate:
    """Counts by characters: about four to a token, fewer where text is dense or not ASCII."""

    ruler = RULER

    def __init__(
        self, chars_per_token: float = CHARS_PER_TOKEN, per_message: int = PER_MESSAGE
    ) -> None:
        if chars_per_token <= 0:
            raise ValueError(f"chars_per_token must be more than 0, not {chars_per_token!r}.")
        self.chars_per_token, self.per_message = chars_per_token, per_message
        self.usual = (chars_per_token, per_message) == (CHARS_PER_TOKEN, PER_MESSAGE)

    def count(self, messages: Sequence[Message], tools: Iterable[Any] | None = None) -> int:
        """Count messages and schemas; what a store counted with this ruler is not counted again."""
        total = self._text(schemas(tools))
        for message in messages:
            known = message.token_count if self.usual else None
            total += self._message(message) if known is None else known
        return total

    def _message(self, message: Message) -> int:
        total = self.per_message + self._text(render(message)) + count_parts(message)
        return total + self._text(_json(message.reasoning)) if message.reasoning else total

    def _text(self, text: str) -> int:
        return int(_weigh(text, self.chars_per_token))


class Tiktoken:
    """Counts with OpenAI's own tokens, from the files that litellm ships.

    Without the file or tiktoken it counts as `Approximate` does; it never downloads one.
    `count` remembers what it counted, so that a message is encoded once in a process.
    """

    def __init__(self, per_message: int = PER_MESSAGE, encoding: str = "o200k") -> None:
        self.per_message, self.encoding = per_message, encoding
        self.ruler = f"{encoding}:1"

    def count(self, messages: Sequence[Message], tools: Iterable[Any] | None = None) -> int:
        """Count messages and schemas."""
        total = self._text(schemas(tools))
        for message in messages:
            total += self.per_message + self._text(render(message)) + count_parts(message)
            if message.reasoning:
                total += self._text(_json(message.reasoning))
        return total

    def _text(self, text: str) -> int:
        if not text:
            return 0
        seed = f"{self.encoding} {text}".encode("utf-8", "surrogatepass")
        key = blake2b(seed, digest_size=16).digest()
        with _remembering:
            found = _remembered.get(key)
        if found is None:
            found = count_text(text, self.encoding)
            with _remembering:
                _remembered[key] = found
                if len(_remembered) > _REMEMBERED:
                    del _remembered[next(iter(_remembered))]
        return found


_OPENAI = re.compile(r"(ft:)?(gpt-(\d|oss)|chatgpt-|o\d(-|$))")
_OLDER = re.compile(r"(ft:)?gpt-(3|4(-|$))")


def exact(model: str | None) -> Tiktoken | None:
    """Give the counter that counts as the model's provider does; None where there is none."""
    name = (model or "").rpartition("/")[2]
    if not _OPENAI.match(name):
        return None
    return Tiktoken(encoding="cl100k" if _OLDER.match(name) else "o200k")


# A tokenizer is given pieces: about a million spaces in one text make it panic.
_PIECE = 100_000
_REMEMBERED = 20_000
_remembered: dict[bytes, int] = {}
_remembering, _loading = threading.Lock(), threading.Lock()
_WORD = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_WORD[0]}*{_WORD[1]}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_WORD[0]}+{_WORD[1]}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
# The names of the files that litellm ships, and how a text is split into words.
_ENCODINGS = {
    "o200k": ("fb374d419588a4632f3f557e76b4b70aebbca790", _O200K),
    "cl100k": ("9b5ad71b2ce5302211f9c61530b329a4922fc6a4", _CL100K),
}


def count_text(text: str, encoding: str = "o200k") -> int:
    """Count a text's tokens by an encoding; as `estimate` does where that can't be had."""
    if not text:
        return 0
    encode = _encoder(encoding)
    if encode is None:
        return estimate(text)
    pieces = pairwise((*range(0, len(text), _PIECE), len(text)))
    try:
        return sum(len(encode(text[start:end])) for start, end in pieces)
    except Exception:
        return estimate(text)


def _encoder(encoding: str = "o200k") -> Callable[[str], list[int]] | None:
    with _loading:
        return _load(encoding)


@cache
def _load(encoding: str) -> Callable[[str], list[int]] | None:
    name, pattern = _ENCODINGS[encoding]
    try:
        import tiktoken

        # find_spec does not run the package, which takes five seconds.
        found = importlib.util.find_spec("litellm")
        places = (found and found.submodule_search_locations) or []
        path = next(Path(p) / "litellm_core_utils" / "tokenizers" / name for p in places)
        lines = (line.split() for line in path.read_bytes().splitlines() if line)
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        made = tiktoken.Encoding(
            f"{encoding}_base", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
        )
    except Exception:
        return None
    return made.encode_ordinary


class Calibrated:
    """A counter times a factor: how much more the provider counted than the estimate did."""

    def __init__(self, counter: Counter, factor: float) -> None:
        self.counter, self.factor = counter, factor

    def count(self, messages: Sequence[Message], tools: Iterable[Any] | None = None) -> int:
        """Count messages and schemas."""
        return sum(ceil(self.counter.count([m]) * self.factor) for m in messages) + (
            ceil(self.counter.count([], tools=tools) * self.factor) if tools else 0
        )


LEAST, MOST = 1.0, 3.0
TOO_LITTLE = 5


def calibration(reported: int, counted: int) -> float:
    """Give how many tokens one counted token is, within what can be believed."""
    return min(MOST, max(LEAST, reported / counted)) if counted > 0 else LEAST


def anchor(messages: Sequence[Message], model: str | None, since: int = 0) -> int | None:
    """Find the last answer whose usage tells how large the messages up to it are.

    The same model reported it, for these very messages: `since` is the index from which
    messages were added to the view as it is now. None if there is none.
    """
    for index in range(len(messages) - 1, since - 1, -1):
        if _reports(messages[index], model):
            return index
    return None


def _reports(message: Message, model: str | None) -> bool:
    # What was cut short has no usage that can be relied on.
    if message.role != ASSISTANT or message.status != COMPLETE or message.usage is None:
        return False
    return message.usage.input > 0 and same_model(message.model, model)


def same_model(one: str | None, other: str | None) -> bool:
    """Tell whether two names are one model's: with or without its provider or its date."""
    if one is None or other is None:
        return True
    short, long = sorted((one.rpartition("/")[2], other.rpartition("/")[2]), key=len)
    rest = long.removeprefix(short) if long.startswith(short) else None
    return rest is not None and re.fullmatch(r"|[-@]\d{4}[\d-]*|[-@:]latest", rest) is not None


def measure(
    messages: Sequence[Message],
    counter: Counter,
    *,
    tools: Iterable[Any] | None = None,
    model: str | None = None,
    since: int = 0,
) -> tuple[int, float]:
    """Estimate what a request of these messages takes, and the calibration of the counter.

    What the provider reported for the messages up to its last answer, plus the counts of the
    later ones; without such a report everything is counted, the tools' schemas too.
    """
    index = anchor(messages, model, since)
    usage = None if index is None else messages[index].usage
    counted = 0 if index is None else counter.count(messages[:index], tools=tools)
    # No text takes so much less than the estimate: such a report is made up.
    if index is None or usage is None or usage.input * TOO_LITTLE < counted:
        return counter.count(messages, tools=tools), LEAST
    factor = calibration(usage.input, counted)
    return usage.total + Calibrated(counter, factor).count(messages[index + 1 :]), factor
