"""Opt-in addresses: `path("assistant/", include("nexo_django.contrib.urls"))`.

NEXO["ACCESS"] must name the hook that says who may use which chat.
"""

from __future__ import annotations

from django.urls import path

from nexo_django.contrib import views

app_name = "nexo"

CHAT = "<str:agent>/<str:conversation>"

urlpatterns = [
    path("<str:agent>/", views.chats, name="chats"),
    path(f"{CHAT}/", views.history, name="history"),
    path(f"{CHAT}/events", views.events, name="events"),
    path(f"{CHAT}/prompt", views.prompt, name="prompt"),
    path(f"{CHAT}/continue", views.continue_turn, name="continue"),
    path(f"{CHAT}/cancel", views.cancel, name="cancel"),
    path(f"{CHAT}/approve", views.approve, name="approve"),
    path(f"{CHAT}/deny", views.deny, name="deny"),
    path(f"{CHAT}/answer", views.answer, name="answer"),
    path(f"{CHAT}/compact", views.compact, name="compact"),
    path(f"{CHAT}/delete", views.delete, name="delete"),
    path(f"{CHAT}/attachments/<uuid:attachment>", views.attachment, name="attachment"),
]
