"""What tools leave behind: whole outputs, and the files of the virtual sandbox."""

from __future__ import annotations

import uuid

from django.db import models
from django.utils.translation import gettext_lazy as _

from nexo_django.models.fields import ExactCharField, OwnedFileField

# What is larger is kept in Django's file storage.
INLINE_BYTES = 1024 * 1024


def output_path(output: AbstractToolOutput, filename: str) -> str:
    """Give where an output's file is kept: with its chat's."""
    return f"nexo/{output.chat_id}/outputs/{output.id}"


def sandbox_path(file: AbstractSandboxFile, filename: str) -> str:
    """Give where a sandbox's file is kept; never under the name that a model chose."""
    return f"nexo/{file.chat_id}/files/{uuid.uuid4().hex}"


class AbstractToolOutput(models.Model):
    """The whole output of a tool whose result was cut; `text`, or `file` when it is large."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    chat = models.ForeignKey(  # type: ignore[misc]
        "Chat", verbose_name=_("chat"), related_name="outputs", on_delete=models.CASCADE
    )
    message = models.ForeignKey(  # type: ignore[misc]
        "Message",
        verbose_name=_("message"),
        related_name="outputs",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
    )
    text = models.TextField(_("text"), null=True, blank=True)  # noqa: DJ001
    file = models.FileField(_("file"), upload_to=output_path, max_length=255, blank=True)
    total_bytes = models.PositiveBigIntegerField(_("bytes"), default=0)
    total_lines = models.PositiveBigIntegerField(_("lines"), default=0)
    sha256 = models.CharField(_("SHA-256"), max_length=64, default="", blank=True)
    expires_at = models.DateTimeField(_("expires at"), null=True, blank=True)
    created = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        abstract = True
        verbose_name = _("tool output")
        verbose_name_plural = _("tool outputs")
        indexes = [models.Index(fields=["expires_at"], name="%(app_label)s_out_expires")]

    def __str__(self) -> str:
        return str(self.id)


class ToolOutput(AbstractToolOutput):
    """The package's own tool output."""

    class Meta(AbstractToolOutput.Meta):
        pass


class AbstractSandboxFile(models.Model):
    """A file of the virtual sandbox; `content`, or `file` when it is large."""

    chat = models.ForeignKey(  # type: ignore[misc]
        "Chat",
        verbose_name=_("chat"),
        related_name="files",
        on_delete=models.CASCADE,
        db_index=False,
    )
    path = ExactCharField(_("path"), max_length=512)
    content = models.BinaryField(_("content"), null=True, blank=True)
    file = OwnedFileField(_("file"), upload_to=sandbox_path, max_length=255, blank=True)
    size = models.PositiveBigIntegerField(_("bytes"), default=0)
    sha256 = models.CharField(_("SHA-256"), max_length=64, default="", blank=True)
    created = models.DateTimeField(_("created"), auto_now_add=True)
    updated = models.DateTimeField(_("updated"), auto_now=True)

    class Meta:
        abstract = True
        verbose_name = _("sandbox file")
        verbose_name_plural = _("sandbox files")
        ordering = ["chat", "path"]
        constraints = [
            models.UniqueConstraint(fields=["chat", "path"], name="%(app_label)s_file_path")
        ]

    def __str__(self) -> str:
        return str(self.path)


class SandboxFile(AbstractSandboxFile):
    """The package's own sandbox file."""

    class Meta(AbstractSandboxFile.Meta):
        pass
