"""The example project's agent; every installed app's `agents` module is imported at start."""

from __future__ import annotations

from nexo_django import Agent, tool

WEATHER = {"berlin": "14 °C, rain", "lima": "19 °C, fog", "oslo": "4 °C, snow"}


@tool
def weather(city: str) -> str:
    """Current weather in a city.

    Args:
        city: The city's name, such as Oslo.
    """
    return WEATHER.get(city.strip().lower(), f"No weather station in {city}.")


class Assistant(Agent):
    """Remembers what it is told and knows the weather of three cities."""

    name = "Assistant"
    instructions = "You are a concise assistant. Ask the weather tool rather than guess."
    tools = (weather,)
