"""Sessions from the multi-turn sets of the Berkeley Function Calling Leaderboard (package `bfcl-eval`, Apache-2.0)."""

import json
from collections.abc import Iterator
from pathlib import Path

import packages
import sandbox
from session import SYSTEM, Choose, Session, closing

MODULES = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
# The tool classes and the name that their module and their document share.
CLASSES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
# Classes without an initial state.
STATELESS = ("MathAPI",)
# JSON schema has no such types; the benchmark's documents write them in Python's words.
SCHEMA_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
PREFERRED = ("status", "message", "result", "order_id", "booking_id", "ticket_id", "id")


def sessions(folder: Path, subset: str, choose: Choose) -> Iterator[tuple[Session, list[dict]]]:
    """The sessions of `multi_turn_base` or `multi_turn_long_context` with the results of their calls."""
    root = packages.unpacked(packages.BFCL, folder)
    paths = [str(root), str(packages.unpacked(packages.MPMATH, folder))]
    data = root / "bfcl_eval" / "data"
    file = f"BFCL_v4_{subset}.json"
    answers = {entry["id"]: entry["ground_truth"] for entry in _lines(data / "possible_answer" / file)}
    for task in choose(_lines(data / file)):
        results = _execute(paths, task, answers[task["id"]])
        tools = _tools(data / "multi_turn_func_doc", task)
        yield _session(task, tools, results), [result for turn in results for result in turn]


def _session(task: dict, tools: list[dict], results: list[list[dict]]) -> Session:
    subset, _, number = task["id"].rpartition("_")
    source = {"multi_turn_base": "bfcl-base", "multi_turn_long_context": "bfcl-long"}[subset]
    session = Session(f"{source}/{number}", source, f"bfcl/multi_turn/{number}", SYSTEM, tools)
    for said, called in zip(task["question"], results, strict=True):
        for message in said:
            session.user(message["content"])
        for result in called:
            session.call(result["name"], result["arguments"], result["content"])
        session.assistant(closing(called, PREFERRED))
    return session


def _execute(paths: list[str], task: dict, turns: list[list[str]]) -> list[list[dict]]:
    """The results of a task's ground-truth calls, turn by turn."""
    classes = task["involved_classes"]
    request = {
        "paths": paths,
        "modules": {name: f"{MODULES}.{CLASSES[name]}" for name in classes},
        "configs": {name: None if name in STATELESS else task["initial_config"].get(name, {}) for name in classes},
        "long_context": "long_context" in task["id"],
        "calls": [call for turn in turns for call in turn],
    }
    results = iter(sandbox.run("backend_bfcl.py", request))
    return [[next(results) for _ in turn] for turn in turns]


def _tools(folder: Path, task: dict) -> list[dict]:
    """The schemas of the classes that a task involves, without what the task leaves out."""
    tools = {}
    for name in task["involved_classes"]:
        for document in _lines(folder / f"{CLASSES[name]}.json"):
            tools[document["name"]] = {
                "name": document["name"],
                "description": document["description"],
                "parameters": _schema(document["parameters"]),
            }
    return [tool for name, tool in tools.items() if name not in task.get("excluded_function", [])]


def _schema(node):
    """A parameter document with the type names of JSON schema."""
    if isinstance(node, list):
        return [_schema(part) for part in node]
    if not isinstance(node, dict):
        return node
    schema = {key: _schema(value) for key, value in node.items()}
    if isinstance(schema.get("type"), str):
        schema["type"] = SCHEMA_TYPES.get(schema["type"], schema["type"])
    return schema


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
