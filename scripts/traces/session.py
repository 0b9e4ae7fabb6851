"""One recorded session, built message by message, in the format of docs/traces.md."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

# What the assistant is told where a benchmark has no prompt of its own.
SYSTEM = (
    "You are an assistant with tools. Do what the user asks by calling the tools, one call at a time, until the "
    "request is fulfilled. Then say in one short sentence what was done. Use values exactly as the user or a tool "
    "gave them."
)
# Picks the tasks to make sessions of, out of all that a source has.
Choose = Callable[[list[dict]], list[dict]]
# Longest value that a closing sentence repeats, in characters, and how many values it repeats.
CLOSING_VALUE_CHARS = 60
CLOSING_VALUES = 3


def split_of(task: str) -> str:
    """`dev` or `test`, by the first byte of the SHA-256 of the task's id.

    Variants of one task (base and long context) share the id, so that no task is in both halves.
    """
    return "dev" if hashlib.sha256(task.encode()).digest()[0] % 2 == 0 else "test"


def json_text(value: Any) -> str:
    """A tool's result as the text that the model reads: text as it is, everything else as JSON.

    What JSON has no form for (some back ends return other number types) is written as Python prints it.
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


class Session:
    """Messages in the order in which they were said; tool calls are numbered through the session."""

    def __init__(self, name: str, source: str, task: str, system: str, tools: list[dict]):
        self.name = name
        self.source = source
        self.split = split_of(task)
        self.tools = tools
        self.messages: list[dict] = [{"role": "system", "content": system}]
        self.calls = 0

    def user(self, text: str) -> None:
        """What the user says."""
        self.messages.append({"role": "user", "content": text})

    def assistant(self, text: str) -> None:
        """What the assistant says without calling a tool."""
        self.messages.append({"role": "assistant", "content": text})

    def call(self, name: str, arguments: dict, result: str) -> None:
        """One tool call of the assistant, and its result."""
        self.calls += 1
        call_id = f"call_{self.calls}"
        call = {"id": call_id, "name": name, "arguments": arguments}
        self.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        self.messages.append({"role": "tool", "content": result, "tool_call_id": call_id, "name": name})

    def shorten(self) -> None:
        """Swaps the system prompt for the short one and drops the schemas of tools that the session never calls."""
        self.messages[0]["content"] = SYSTEM
        called = {call["name"] for call in self._tool_calls()}
        self.tools = [tool for tool in self.tools if tool["name"] in called]

    def line(self) -> str:
        """The session as one line of JSON."""
        record = {"id": self.name, "source": self.source, "split": self.split}
        record |= {"tools": self.tools, "messages": self.messages}
        return json.dumps(record, ensure_ascii=False, separators=(",", ":"))

    def chars(self) -> int:
        """Characters that a chat template would render, roughly: contents, calls and tool schemas."""
        texts = [message["content"] for message in self.messages]
        return sum(map(len, texts)) + sum(len(json.dumps(part)) for part in [*self._tool_calls(), *self.tools])

    def _tool_calls(self) -> list[dict]:
        return [call for message in self.messages for call in message.get("tool_calls", [])]


def closing(results: list[dict], preferred: tuple[str, ...] = ()) -> str:
    """A short sentence that ends a turn, from the last call's result; the same input gives the same sentence.

    It repeats a few values of the result, as an assistant would: those under `preferred` keys first, in that order.
    """
    if not results:
        return "There is nothing that I can do for this with my tools."
    last = results[-1]
    if last["raised"]:
        return _sentence(f"That did not work: {last['content'].removeprefix('Error: ')}")
    ranks = {key: rank for rank, key in enumerate(preferred)}
    named = _named_values(_parsed(last["content"]))
    named = sorted(named, key=lambda pair: ranks.get(pair[0], len(ranks)))[:CLOSING_VALUES]
    if not named:
        return f"Done with {last['name']}."
    return _sentence("Done: " + ", ".join(f"{key.replace('_', ' ')} is {value}" for key, value in named))


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."


def _parsed(content: str) -> Any:
    try:
        return json.loads(content)
    except json.JSONDecodeError:
        return {"the result": content}


def _named_values(value: Any, key: str = "the result") -> list[tuple[str, str]]:
    """The short texts and numbers of a result with their keys, in order, each key once."""
    if isinstance(value, dict):
        inner = [pair for name, part in value.items() for pair in _named_values(part, name)]
    elif isinstance(value, list):
        inner = [pair for part in value for pair in _named_values(part, key)]
    elif value is None or isinstance(value, bool):
        inner = []
    else:
        text = str(value).strip()
        inner = [(key, text)] if 0 < len(text) <= CLOSING_VALUE_CHARS and "\n" not in text else []
    return list(dict(reversed(inner)).items())[::-1]
