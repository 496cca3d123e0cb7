"""A small MCP server over stdio that misbehaves as it is told; it needs nothing but Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

MEGABYTE = 1024 * 1024
MODE = sys.argv[1] if len(sys.argv) > 1 else ""


def send(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(value: str, *, is_error: bool = False) -> dict[str, object]:
    return {"content": [{"type": "text", "text": value}], "isError": is_error}


def pid(arguments):
    return text(str(os.getpid()))


def die(arguments):
    os._exit(3)


def hang(arguments):
    while True:
        time.sleep(3600)


def slow(arguments):
    time.sleep(float(arguments["seconds"]))
    return text("at last")


def big(arguments):
    return text("x" * (int(arguments["megabytes"]) * MEGABYTE))


def flood(arguments):
    """Write for ever, without an end of line."""
    while True:
        sys.stdout.write("y" * MEGABYTE)


def chatter(arguments):
    """Write lines that are no messages, then answer."""
    for number in range(1000):
        sys.stdout.write(f"debug: step {number}\n{{not json\n")
        sys.stderr.write("noise on stderr\n" * 100)
    return text("and the answer")


def notify(arguments):
    """Send messages that nobody asked for, for ever."""
    while True:
        send({"method": "notifications/message", "params": {"level": "info", "data": "z" * 1000}})


def environment(arguments):
    return text(json.dumps(dict(os.environ)))


def child(arguments):
    """Start a process that would outlive the server."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return text(str(process.pid))


def fail(arguments):
    raise ValueError(f"the key is {os.environ.get('API_KEY', '')}")


TOOLS = [pid, die, hang, slow, big, flood, chatter, notify, environment, child, fail]


def answer(request):
    method = request["method"]
    if method == "initialize":
        return {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "faulty", "version": "1"},
        }
    if method == "tools/list":
        schema = {"type": "object", "properties": {}}
        tools = [{"name": tool.__name__, "inputSchema": schema} for tool in TOOLS]
        return {"tools": [*tools, *tools, *tools] if MODE == "thrice" else tools}
    if method == "tools/call":
        tool = next(tool for tool in TOOLS if tool.__name__ == request["params"]["name"])
        return tool(request["params"].get("arguments") or {})
    raise LookupError("Method not found")


def main() -> None:
    if MODE == "mute":
        hang({})
    if MODE == "crash":
        sys.exit(f"no database; the key is {os.environ.get('API_KEY', '')}")
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        try:
            send({"id": request["id"], "result": answer(request)})
        except LookupError as error:
            send({"id": request["id"], "error": {"code": -32601, "message": str(error)}})
        except ValueError as error:
            send({"id": request["id"], "error": {"code": -32603, "message": str(error)}})


if __name__ == "__main__":
    main()
