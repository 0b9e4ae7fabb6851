"""Child process: executes the ground-truth calls of one BFCL session against the package's own classes.

Request: `paths`, `modules` (class name to module), `configs` (class name to initial state, none for stateless ones),
`long_context`, `calls` (Python call expressions). Prints one object per call: name, arguments, content, raised.
"""

import ast
import importlib
import inspect
import json

import sandbox
import session


def main() -> None:
    """Reads the request, runs the calls in order, prints the results."""
    request = sandbox.enter()
    methods = {}
    for name, module in request["modules"].items():
        instance = getattr(importlib.import_module(module), name)()
        if request["configs"][name] is not None:
            instance._load_scenario(request["configs"][name], long_context=request["long_context"])
        public = inspect.getmembers(instance, predicate=inspect.ismethod)
        # Where two classes have a method of one name the later class wins, as in the benchmark itself.
        methods |= {method: call for method, call in public if not method.startswith("_")}
    print(json.dumps([execute(methods, text) for text in request["calls"]]))


def execute(methods: dict, text: str) -> dict:
    """Runs one call expression; only literals are evaluated, and only public methods are called."""
    call = ast.parse(text.strip(), mode="eval").body
    method = methods[call.func.id]
    positional = [ast.literal_eval(argument) for argument in call.args]
    named = {argument.arg: ast.literal_eval(argument.value) for argument in call.keywords}
    arguments = dict(zip(inspect.signature(method).parameters, positional)) | named
    try:
        content, raised = session.json_text(method(**arguments)), False
    except Exception as error:  # noqa: BLE001 - the benchmark turns whatever a tool raises into its result
        content, raised = f"Error: {error}", True
    return {"name": call.func.id, "arguments": arguments, "content": content, "raised": raised}


if __name__ == "__main__":
    main()
