"""What a server gives, as the text that a model reads."""

from __future__ import annotations

import pytest
from mcp_types import CallToolResult

from nexo_django.mcp import results


def told(*texts: str, data: object = None) -> str:
    content = [{"type": "text", "text": text} for text in texts]
    return results.of_call(
        CallToolResult.model_validate({"content": content, "structuredContent": data})
    ).text


@pytest.mark.parametrize(
    ("texts", "data", "said"),
    [
        ((), None, "(no content)"),
        (("one", "two"), None, "one\ntwo"),
        ((), {"a": 1}, '{"a": 1}'),
        (('{"a": 1}',), {"a": 1}, '{"a": 1}'),
        (("One.",), {"a": 1}, 'One.\n{"a": 1}'),
        (("42",), {"result": 42}, "42"),
        (("yes",), {"result": "yes"}, "yes"),
        (("1", "2"), {"result": [1, 2]}, "1\n2"),
        (("a", "b"), {"result": ["a", "b"]}, "a\nb"),
        (("ok",), {"result": 42}, 'ok\n{"result": 42}'),
        (("[" * 100_000,), {"a": 1}, "[" * 100_000 + '\n{"a": 1}'),
        (("a\x00\ud800b",), None, "a��b"),
    ],
)
def test_texts_and_data(texts, data, said):
    assert told(*texts, data=data) == said


def test_what_is_no_text_is_described():
    resource = {"uri": "file:///a", "mimeType": "application/pdf", "blob": "AAAA"}
    content = [
        {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"},
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "resource", "resource": resource},
        {"type": "resource_link", "uri": "file:///b", "name": "b", "description": "The\n b."},
    ]
    made = results.of_call(CallToolResult.model_validate({"content": content, "isError": True}))
    assert made.is_error
    assert made.text.splitlines() == [
        "[image image/png, 5 bytes, not shown]",
        "[audio audio/wav, 3 bytes, not shown]",
        "[resource file:///a]",
        "[application/pdf, 3 bytes, not shown]",
        "[resource file:///b (b, The b.)]",
    ]
