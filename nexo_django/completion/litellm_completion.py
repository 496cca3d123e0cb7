"""The completion that asks a model through litellm; the only file that imports it.

litellm takes seconds and 200 MB to import, so that happens with the first call, or in `warm`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import closing, suppress
from decimal import Decimal
from typing import Any

from nexo_django import conf, events, structured, transcript
from nexo_django.completion import catalogue, errors, offline, pacing, providers
from nexo_django.completion.answer import Assembly, deliver, deliver_partial, tell
from nexo_django.completion.shown import Shown
from nexo_django.completion.wire import mark_cache, marks_cache, may_think, to_wire
from nexo_django.exceptions import ConfigurationError, ProviderError, brief
from nexo_django.messages import Message
from nexo_django.pipeline import Env

# These sign in, over the network, when they are only asked about.
_SIGN_IN = frozenset({"github_copilot", "chatgpt"})
_OURS = frozenset({"messages", "model", "num_retries", "stream", "tools"})
_THINKING = frozenset({"thinking", "reasoning_effort"})
_CREDENTIALS = frozenset(
    {
        "api_base",
        "base_url",
        "azure_ad_token",
        "azure_ad_token_provider",
        "client",
        "custom_llm_provider",
        "extra_headers",
        "mock_response",
    }
)
_SECRET = ("key", "token", "secret", "password", "credential")


def warm() -> None:
    """Import litellm now: before a server forks, or before the first turn is timed."""
    _litellm()


def check(model: str, **options: Any) -> None:
    """Raise ConfigurationError when a model can't be asked: its id is wrong or has no key.

    Nothing is sent. `options` are those of the completion; credentials among them count.
    """
    if not isinstance(model, str) or not model.strip():
        raise ConfigurationError(f"A model is a litellm id like 'openai/gpt-4o', not {model!r}.")
    if model == offline.MODEL:
        return
    offline.refuse_other(model)
    provider = _provider(model, options)
    keys = providers.of(provider, model).keys
    given = options.get("api_key") or _CREDENTIALS & options.keys()
    if keys and not given and not _has_key(provider, keys):
        raise ConfigurationError(errors.no_key(model, provider))


class LiteLLMCompletion:
    """Ask a model once, through litellm, and append its answer.

    The model is the one given here, else the env's, else the setting DEFAULT_MODEL. `timeout`
    is in seconds, for each wait on the provider; default: the setting TIMEOUT. A failure that
    may pass is tried again up to `max_retries` times, as long as nothing of the answer was
    seen. Further options go to `litellm.completion`; those a provider does not know are
    dropped. With `cache` the parts of a request that come again are marked for the providers
    that cache nothing else. What fails is raised as a ProviderError.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float | None = None,
        max_retries: int = 2,
        cache: bool = False,
        **options: Any,
    ) -> None:
        if ours := _OURS & options.keys():
            raise TypeError(f"{', '.join(sorted(ours))} can't be an option of the completion.")
        if max_retries < 0:
            raise ValueError(f"max_retries counts from 0 up; it is {max_retries}.")
        if not isinstance(cache, bool):
            raise TypeError(f"cache is True or False, not {type(cache).__name__}.")
        self.model, self.timeout, self.max_retries = model, timeout, max_retries
        self.cache = cache
        self.options = options if api_key is None else {"api_key": api_key, **options}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"

    def check(self, model: str | None = None) -> None:
        """Raise ConfigurationError when the model can't be asked; nothing is sent."""
        check(self.model or model or conf.get("DEFAULT_MODEL"), **self.options)

    def __call__(self, env: Env) -> None:
        model = self.model or env.model or conf.get("DEFAULT_MODEL")
        if model == offline.MODEL:
            return offline.complete(env)
        return _Call(self, env, model).run()


class _Call:
    """One call of a model: the request, its attempts and the answer as it comes."""

    def __init__(self, completion: LiteLLMCompletion, env: Env, model: str) -> None:
        self.completion, self.env, self.model = completion, env, model
        self.provider = _provider(model, completion.options)
        self.answer = self._assembly()
        # What is being handled outside has no part in what fails in here.
        self.outer = sys.exc_info()[1]

    def run(self) -> None:
        """Ask, and append the answer or raise."""
        request = self._request()
        hook = {"model": self.model, "messages": len(request["messages"])}
        self.env.hook(events.BEFORE_LLM, hook)
        try:
            message = pacing.retrying(
                lambda: self._attempt(request),
                self.env,
                self.completion.max_retries,
                lambda: self.answer.began,
            )
        except ProviderError as error:
            self.env.hook(events.LLM_FAILURE, {"model": self.model, "error": error})
            raise
        deliver(self.env, message)
        if not self.env.stream:
            tell(self.env, self.answer.text, self.answer.thoughts)

    def _attempt(self, request: dict[str, Any]) -> Message:
        self.answer = self._assembly()
        try:
            with closing(self._chunks(request)) as chunks:
                for chunk in chunks:
                    said, thought = self.answer.add(chunk)
                    if self.env.stream:
                        tell(self.env, said, thought)
                        self.env.checkpoint()
        except BaseException:
            deliver_partial(self.env, self.answer.partial(self.model))
            raise
        return self.answer.message(self.model, self._cost)

    def _chunks(self, request: dict[str, Any]) -> Generator[Any, None, None]:
        """Give the answer's chunks; what litellm raises comes as an error of ours."""
        response = self._guarded(lambda: _litellm().completion(**request, **self._limits()))
        if not self.env.stream:
            yield response
            return
        pieces = iter(response)
        try:
            while (chunk := self._guarded(lambda: next(pieces, None))) is not None:
                yield chunk
            self.answer.reported = _reported(response)
        finally:
            _close(response)

    def _guarded(self, ask: Any) -> Any:
        try:
            return ask()
        except Exception as error:
            failure = errors.aborted(error, self.outer) or errors.classify(
                error, self.model, self._secrets(), self.provider, self.outer
            )
        # Outside the except block: the provider's text must not come along as the context.
        raise failure

    def _request(self) -> dict[str, Any]:
        env, facts = self.env, catalogue.facts(self.model)
        sent = transcript.request(env.messages)
        request: dict[str, Any] = {
            "drop_params": True,
            **self.completion.options,
            "model": self.model,
            "messages": to_wire(sent, self.provider, self.model, Shown(env, sent, facts)),
            "num_retries": 0,
            "max_retries": 0,
        }
        if not may_think(request["messages"], self.provider, self.model):
            for name in _THINKING & request.keys():
                del request[name]
        if env.tools:
            request["tools"] = [tool.definition() for tool in env.tools]
        asked = structured.asked(env.messages)
        schemas = providers.of(self.provider, self.model).schemas
        if asked and schemas is not None and schemas.capability in facts.capabilities:
            wanted = structured.response_format(asked)
            closed = wanted["json_schema"]["strict"] or not schemas.closed
            if closed and (schemas.beside_tools or not env.tools):
                request["response_format"] = wanted
        if env.stream:
            request["stream"] = True
            # litellm leaves it out for a provider that reports unasked, and then needs it itself.
            request["stream_options"] = {"include_usage": True}
        # What is asked once only would pay for a cache that nobody reads.
        again = self.completion.cache and not env.metadata.get("once")
        marked = again and marks_cache(self.provider, self.model)
        return mark_cache(request) if marked else request

    def _limits(self) -> dict[str, float]:
        timeout = self.completion.timeout or conf.get("TIMEOUT")
        if self.env.deadline is not None:
            timeout = min(timeout, max(0.1, self.env.deadline - time.monotonic()))
        return {"timeout": timeout}

    def _assembly(self) -> Assembly:
        return Assembly(providers.issuer(self.provider, self.model))

    def _secrets(self) -> list[str]:
        options = self.completion.options
        named = {k: v for k, v in options.items() if any(part in k.lower() for part in _SECRET)}
        headers = options.get("extra_headers") or {}
        keys = map(_litellm().get_secret, providers.of(self.provider, self.model).keys)
        found = [*named.values(), *headers.values(), *keys]
        return [value for value in found if isinstance(value, str)]

    def _cost(self, usage: Any) -> Decimal | None:
        return _cost(self.model, self.provider, usage)


def _litellm() -> Any:
    # Without it the import asks the network for prices, and logs when there is none.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True
    return litellm


def _provider(model: str, options: dict[str, Any]) -> str:
    prefix = model.partition("/")[0]
    if prefix in _SIGN_IN:
        return prefix
    given = {name: options.get(name) for name in ("custom_llm_provider", "api_base", "api_key")}
    litellm = _litellm()
    try:
        name, provider, _, _ = litellm.get_llm_provider(model, **given)
    except Exception:
        name = provider = ""
    if not name or not name.strip("/ "):
        raise ConfigurationError(
            f"No provider is known for the model {brief(model)}; give a litellm id of the form"
            " 'provider/model', such as 'openai/gpt-4o'."
        )
    return str(provider)


def _has_key(provider: str, keys: Iterable[str]) -> bool:
    litellm = _litellm()
    globals_ = (litellm.api_key, getattr(litellm, f"{provider}_key", None))
    return any(globals_) or any(litellm.get_secret(key) for key in keys)


def _cost(model: str, provider: str, usage: Any) -> Decimal | None:
    if not catalogue.facts(model).priced:
        return None
    try:
        spent = _litellm().cost_per_token(
            model=model, custom_llm_provider=provider, usage_object=usage
        )
        # A price has few digits; a float's sum of prices has seventeen.
        return round(sum((Decimal(str(part)) for part in spent), Decimal(0)), 12)
    except Exception:
        return None


def _reported(response: Any) -> bool:
    # Where the provider reported nothing litellm gives an estimate of its own.
    chunks = getattr(response, "chunks", None)
    return chunks is None or any(getattr(c, "usage", None) is not None for c in chunks)


def _close(response: Any) -> None:
    # Without it the connection of a stream that was left stays open until it is collected.
    for stream in (response, getattr(response, "completion_stream", None)):
        with suppress(Exception):
            stream.close()  # type: ignore[union-attr]
