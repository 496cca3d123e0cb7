"""What was attached to a prompt: a file in Django's file storage, which goes with its chat."""

from __future__ import annotations

import uuid
from typing import Any

from django.core.files.storage import Storage, default_storage, storages
from django.db import models
from django.utils.deconstruct import deconstructible
from django.utils.translation import gettext_lazy as _

from nexo_django import conf
from nexo_django.models.fields import OwnedFileField

FOLDER = "nexo/attachments"


@deconstructible
class AttachmentStorage(Storage):
    """The storage that NEXO["ATTACHMENT_STORAGE"] names, looked up at each use."""

    @property
    def backend(self) -> Storage:
        """The storage in force."""
        alias = conf.get("ATTACHMENT_STORAGE")
        return default_storage if alias is None else storages[alias]

    def open(self, name: str, mode: str = "rb") -> Any:
        """See Storage."""
        return self.backend.open(name, mode)

    def save(self, name: str | None, content: Any, max_length: int | None = None) -> str:
        """See Storage."""
        return self.backend.save(name, content, max_length)

    def delete(self, name: str) -> None:
        """See Storage."""
        self.backend.delete(name)

    def exists(self, name: str) -> bool:
        """See Storage."""
        return self.backend.exists(name)

    def size(self, name: str) -> int:
        """See Storage."""
        return self.backend.size(name)

    def url(self, name: str | None) -> str:
        """See Storage."""
        return self.backend.url(name)

    def path(self, name: str) -> str:
        """See Storage."""
        return self.backend.path(name)


def attachment_path(attachment: AbstractAttachment, filename: str) -> str:
    """Give where a file is kept; never under the name that somebody chose."""
    return f"{FOLDER}/{attachment.id}"


class AbstractAttachment(models.Model):
    """A file that a prompt's message refers to by `id`."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    chat = models.ForeignKey(  # type: ignore[misc]
        "Chat", verbose_name=_("chat"), related_name="attachments", on_delete=models.CASCADE
    )
    message = models.ForeignKey(  # type: ignore[misc]
        "Message", verbose_name=_("message"), related_name="attachments", on_delete=models.CASCADE
    )
    name = models.CharField(_("name"), max_length=255)
    media_type = models.CharField(_("media type"), max_length=100)
    size = models.PositiveBigIntegerField(_("bytes"), default=0)
    sha256 = models.CharField(_("SHA-256"), max_length=64)
    file = OwnedFileField(
        _("file"), storage=AttachmentStorage(), upload_to=attachment_path, max_length=255
    )
    created = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        abstract = True
        verbose_name = _("attachment")
        verbose_name_plural = _("attachments")

    def __str__(self) -> str:
        return str(self.name)


class Attachment(AbstractAttachment):
    """The package's own attachment."""

    class Meta(AbstractAttachment.Meta):
        pass
