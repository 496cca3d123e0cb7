"""The language model: what the catalogue says of one, kept when a chat first uses it."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from nexo_django.completion import catalogue
from nexo_django.exceptions import ConfigurationError, brief
from nexo_django.models.compiled import select
from nexo_django.models.fields import ExactCharField

NAME, FAMILY = 255, 100


class Model(models.Model):
    """A language model of a provider; the row stays when the catalogue no longer lists it."""

    provider = ExactCharField(
        _("provider"), max_length=catalogue.LONGEST_PROVIDER, default="", blank=True
    )
    model_id = ExactCharField(_("model id"), max_length=catalogue.LONGEST_ID)
    name = models.CharField(_("name"), max_length=NAME, default="", blank=True)
    family = models.CharField(_("family"), max_length=FAMILY, default="", blank=True)
    context_window = models.PositiveIntegerField(_("context window"), null=True, blank=True)
    max_output_tokens = models.PositiveIntegerField(_("output tokens"), null=True, blank=True)
    prices = models.JSONField(_("prices"), default=dict, blank=True)
    capabilities = models.JSONField(_("capabilities"), default=list, blank=True)
    modalities = models.JSONField(_("modalities"), default=dict, blank=True)
    unlisted_at = models.DateTimeField(_("unlisted at"), null=True, blank=True)
    created = models.DateTimeField(_("created"), auto_now_add=True)
    updated = models.DateTimeField(_("updated"), auto_now=True)

    class Meta:
        verbose_name = _("language model")
        verbose_name_plural = _("language models")
        constraints = [
            models.UniqueConstraint(fields=["provider", "model_id"], name="nexo_django_model_id")
        ]

    def __str__(self) -> str:
        return self.litellm_id

    @property
    def litellm_id(self) -> str:
        """The id that a model is asked by, such as "openai/gpt-4o-mini"."""
        return f"{self.provider}/{self.model_id}" if self.provider else self.model_id

    @classmethod
    def named(cls, litellm_id: str, using: str) -> Model:
        """Find the row of a model, or make it from what the catalogue knows.

        Raises ConfigurationError for an id that can't be stored.
        """
        if problem := catalogue.problem(litellm_id):
            raise ConfigurationError(f"The model {brief(litellm_id)} can't be used: {problem}.")
        facts = catalogue.facts(litellm_id)
        address = {"provider": facts.provider, "model_id": facts.model_id}
        rows = cls._default_manager.using(using)
        return (
            rows.filter(**address).first()
            or rows.get_or_create(**address, defaults=columns(facts))[0]
        )

    @classmethod
    def key(cls, litellm_id: str, using: str) -> int:
        """Give the key of a model's row, as `named` gives the row."""
        facts = catalogue.facts(litellm_id)
        address = {"provider": facts.provider, "model_id": facts.model_id}
        found = select(_keys, using, cls, **address)
        return int(found[0][0]) if found else int(cls.named(litellm_id, using).pk)

    def is_named(self, litellm_id: str) -> bool:
        """Whether the row is the model of that id."""
        facts = catalogue.facts(litellm_id)
        return (self.provider, self.model_id) == (facts.provider, facts.model_id)


def _keys(alias: str, model: Any, **address: str) -> Any:
    rows = model._default_manager.using(alias).filter(**address)
    return rows.order_by().values_list("pk")


def columns(facts: catalogue.Facts) -> dict[str, Any]:
    """Give what the catalogue knows of a model as columns."""
    return {
        "name": facts.name[:NAME],
        "family": facts.family[:FAMILY],
        "context_window": facts.context_window,
        "max_output_tokens": facts.max_output_tokens,
        "prices": {name: str(price) for name, price in facts.prices.items()},
        "capabilities": list(facts.capabilities),
        "modalities": {"input": list(facts.modalities)},
    }
