"""Tries to get out of each sandbox, and counts what got out: `python -m tests.sandbox.escapes`.

What a sandbox does not claim is told as such and not counted as held.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from nexo_django.exceptions import ToolError
from nexo_django.sandbox.base import Sandbox, ShellResult
from tests.sandbox.support import MAKERS, MIB, bubblewrap_problem, reachable

SECRET = "canary-5f1c"
NOT_CLAIMED, NOTHING = "not claimed", "nothing to try: it has no such thing"
Try = Callable[["Trial"], bool]


@dataclass
class Trial:
    """A sandbox with a canary beside it; `folder` is its workspace, if it has one."""

    name: str
    sandbox: Sandbox
    root: Path
    canary: Path = field(init=False)

    def __post_init__(self) -> None:
        self.canary = self.root / "canary"
        self.canary.write_text(SECRET)
        self.canary.chmod(0o644)

    @property
    def folder(self) -> Path | None:
        found = getattr(self.sandbox, "folder", None) or getattr(self.sandbox, "root", None)
        return found if isinstance(found, Path) else None

    def read(self, path: str) -> bool:
        """Whether the canary was read."""
        with suppress(ToolError):
            return SECRET.encode() in (self.sandbox.read(path) or b"")
        return False

    def write(self, path: str) -> bool:
        """Whether anything was written outside."""
        with suppress(ToolError):
            self.sandbox.write(path, b"escaped")
        return self.changed()

    def changed(self) -> bool:
        intact = self.canary.exists() and self.canary.read_text() == SECRET
        allowed = {"canary", "work", "boxes"}
        return not intact or bool({path.name for path in self.root.iterdir()} - allowed)

    def run(self, command: str, timeout: float = 10) -> ShellResult:
        return self.sandbox.run(command, timeout)


def paths(trial: Trial) -> list[str]:
    found = []
    for target in (str(trial.canary), "/etc/passwd"):
        up = "/".join([".."] * 12)
        found += [target, f"{up}{target}", f"a/../{up}{target}", f"./{up}{target}", f"//{target}"]
        found += [
            f"/workspace/{up}{target}",
            f"/workspace/../..{target}",
            f"/proc/self/root{target}",
        ]
        found += [target.replace("/", "\\"), f"..\\..{target}", f"{target}\x00.txt", f"{target}/"]
    return [*found, "../canary", "../../canary", "x/../../canary", "..", "/proc/self/environ"]


def reads(trial: Trial) -> list[bool]:
    got = []
    for path in paths(trial):
        with suppress(ToolError):
            got.append(trial.sandbox.read(path) is not None)
            continue
        got.append(False)
    return got


def writes(trial: Trial) -> list[bool]:
    tried = [p for p in paths(trial) if "passwd" not in p and "/proc" not in p]
    return [trial.write(path) for path in tried]


def removals(trial: Trial) -> list[bool]:
    got = []
    for path in (p for p in paths(trial) if "canary" in p):
        with suppress(ToolError):
            trial.sandbox.remove(path)
        got.append(trial.changed())
    return got


def links(trial: Trial) -> list[bool] | str:
    folder = trial.folder
    if folder is None:
        return NOT_CLAIMED
    trial.sandbox.write("plain", b"x")
    made = {
        "file": trial.canary,
        "folder": trial.root,
        "up": Path("../canary"),
        "up2": Path("../.."),
    }
    for name, target in made.items():
        (folder / name).symlink_to(target)
    (folder / "loop").symlink_to("loop")
    with suppress(OSError):
        os.link(trial.canary, folder / "hard")
    got = [trial.read(p) for p in ("file", "folder/canary", "up", "up2/canary", "loop", "loop/x")]
    got += [
        trial.write(p) for p in ("file", "folder/new", "folder/canary", "up", "up2/new", "hard")
    ]
    for path in ("file", "folder", "up", "hard"):
        with suppress(ToolError):
            trial.sandbox.remove(path)
        got.append(trial.changed())
    return got


def special(trial: Trial) -> list[bool] | str:
    """Devices, pipes and sockets: nothing is read from them, and nobody waits for them."""
    folder = trial.folder
    if folder is None:
        return NOT_CLAIMED
    trial.sandbox.write("plain", b"x")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket"))
    names = ["pipe", "socket"]
    with suppress(OSError):
        os.mknod(folder / "zero", 0o20666, os.makedev(1, 5))
        names.append("zero")
    got = []
    for name in names:
        began = time.monotonic()
        for act in (trial.sandbox.read, lambda path: trial.sandbox.write(path, b"x")):
            done = True
            try:
                act(name)
            except ToolError:
                done = False
            got.append(done or time.monotonic() - began > 20)
        os.unlink(folder / name)
    return got


def race(trial: Trial) -> list[bool] | str:
    """A thread swaps a folder for a link out while files in it are read and written."""
    folder = trial.folder
    if folder is None:
        return NOT_CLAIMED
    (trial.sandbox.write("d/canary", b"mine"), trial.sandbox.write("e", b"x"))
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            with suppress(OSError):
                os.rename(folder / "d", folder / "kept")
                os.symlink(trial.root, folder / "d")
                os.unlink(folder / "d")
                os.rename(folder / "kept", folder / "d")

    thread = threading.Thread(target=swap)
    thread.start()
    got = []
    try:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            got.append(trial.read("d/canary"))
            got.append(trial.write("d/canary"))
            with suppress(ToolError):
                list(trial.sandbox.entries())
    finally:
        stop.set()
        thread.join()
    return got


def no_shell(trial: Trial) -> bool:
    return not trial.sandbox.has_shell


def background(trial: Trial) -> list[bool] | str:
    if no_shell(trial):
        return NOT_CLAIMED
    got = []
    for how in (
        "{} &",
        "setsid {} &",
        "nohup {} >/dev/null 2>&1 &",
        "(setsid sh -c '{} & {}' &)",
        'python3 -c \'import os;os.fork() or (os.setsid(), os.fork() or os.execlp(*"{0}".split()[:1],*"{0}".split()))\'; true',
    ):
        for timeout, after in ((10.0, "true"), (1.0, "sleep 30")):
            seconds = str(uuid.uuid4().int % 10**8 + 10**8)
            trial.run(f"{how.format(*[f'sleep {seconds}'] * 2)}; sleep 0.2; {after}", timeout)
            found = subprocess.run(["pgrep", "-f", f"sleep {seconds}"], capture_output=True)
            got.append(bool(found.stdout.strip()))
    return got


def fork_bomb(trial: Trial) -> list[bool] | str:
    if no_shell(trial):
        return NOT_CLAIMED
    began = time.monotonic()
    for bomb in (
        ":(){ :|:& };:; sleep 5",
        "python3 -c 'import os\nwhile 1:\n try: os.fork()\n except OSError: pass'",
    ):
        trial.run(bomb, 5)
    return [time.monotonic() - began > 90]


def memory(trial: Trial) -> list[bool] | str:
    if trial.name != "bubblewrap":
        return NOT_CLAIMED
    one = trial.run("python3 -c 'x=bytearray(600*1024*1024);print(\"got\", len(x))'", 20)
    many = trial.run(
        "for i in $(seq 12); do python3 -c 'import time;x=bytearray(60*1024*1024);"
        'x[::4096]=b"x"*len(x[::4096]);time.sleep(8);print("got")\' & done; wait',
        20,
    )
    shared = trial.run(
        "for i in $(seq 20); do head -c 9000000 /dev/zero >/dev/shm/$i || break; done; du -sm /dev/shm | cut -f1",
        20,
    )
    return ["got" in one.stdout, "got" in many.stdout, int(shared.stdout.split()[-1]) > 80]


def disk(trial: Trial) -> list[bool] | str:
    if trial.name == "local":
        return NOT_CLAIMED
    if trial.name == "virtual":
        for number in range(10):
            with suppress(ToolError):
                trial.sandbox.write(f"f{number}", b"x" * 5 * MIB)
        return [sum(entry.size for entry in trial.sandbox.entries()) > 20 * MIB]
    assert trial.folder is not None
    got = []
    for bomb in (
        "head -c 100000000 /dev/zero > big",
        "i=0; while :; do head -c 5000000 /dev/zero > f$i; i=$((i+1)); sleep 0.02; done",
        "mkdir -p $(printf 'd/%.0s' $(seq 100)) && sleep 5; echo held",
        'exec python3 -c \'import os,time\nfs=[]\nfor i in range(60):\n f=open("u","wb");os.unlink("u");f.write(b"x"*5000000);f.flush();fs.append(f);time.sleep(.02)\nprint("held")\'',
    ):
        ended = trial.run(bomb, 15)
        used = sum(p.stat().st_blocks * 512 for p in trial.folder.rglob("*") if p.is_file())
        # What is written between two looks may be too much, and no more than that.
        got.append(used > 160 * MIB or "held" in ended.stdout)
        for path in trial.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return got


def cpu(trial: Trial) -> list[bool] | str:
    if no_shell(trial):
        return NOT_CLAIMED
    began = time.monotonic()
    ended = trial.run("while :; do :; done & while :; do :; done", 2)
    return [ended.stopped != "timeout" or time.monotonic() - began > 40]


def output(trial: Trial) -> list[bool] | str:
    if no_shell(trial):
        return NOT_CLAIMED
    ended = trial.run("yes | head -c 50000000; yes >&2", 3)
    return [len(ended.stdout) > 1_000_000 or len(ended.stderr) > 1_000_000]


def network(trial: Trial) -> list[bool] | str:
    if trial.name != "bubblewrap":
        return NOT_CLAIMED
    got = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        trial.run(
            f"timeout 2 bash -c 'echo hi > /dev/tcp/127.0.0.1/{port}'; python3 -c 'import socket;socket.create_connection((\"127.0.0.1\",{port}),2)'"
        )
        try:
            server.accept()
            got.append(True)
        except TimeoutError:
            got.append(False)
    ended = trial.run("cat /proc/net/dev | grep -cv -e lo: -e '|'")
    return [*got, ended.stdout.strip() != "0"]


def secrets(trial: Trial) -> list[bool] | str:
    if no_shell(trial):
        return NOT_CLAIMED
    os.environ["NEXO_TEST_SECRET"] = SECRET
    try:
        got = [SECRET in trial.run("env; cat /proc/self/environ").stdout]
        # As the site's user a command may look at its other processes.
        if trial.name == "bubblewrap":
            got.append(
                SECRET
                in trial.run("cat /proc/[0-9]*/environ; grep -r canary-5 /proc/*/cmdline").stdout
            )
    finally:
        del os.environ["NEXO_TEST_SECRET"]
    return got


def outside(trial: Trial) -> list[bool] | str:
    """What a command reaches of the machine."""
    if trial.name != "bubblewrap":
        return NOT_CLAIMED
    got = []
    for command in (
        f"cat {trial.canary}",
        "cat /etc/passwd",
        "cat /etc/shadow",
        "ls /root",
        "ls /home",
        "ls /var",
        "cat /sys/kernel/notes",
        "unshare -Ur true && echo out",
        "dmesg",
        "mount -t tmpfs x /tmp && echo out",
        "touch /x && echo out",
        "touch /usr/x && echo out",
        "touch /dev/x && echo out",
        "mknod /tmp/n c 1 5 && echo out",
        "chroot / true && echo out",
        "kill -9 1 2>/dev/null; kill -9 -1; echo",
        "ls /proc | grep -cE '^[0-9]{4,}$' | grep -v '^0$'",
    ):
        got.append(bool(trial.run(command).stdout.strip()))
    trial.run(f"echo gone > {trial.canary}; rm -rf {trial.root}/* /* 2>/dev/null")
    return [*got, trial.changed()]


TRIES: dict[str, Callable[[Trial], list[bool] | str]] = {
    "reads by .. and absolute paths": reads,
    "writes by .. and absolute paths": writes,
    "removals by .. and absolute paths": removals,
    "symbolic and hard links": links,
    "symlink race": race,
    "devices, pipes, sockets": special,
    "the machine": outside,
    "network": network,
    "environment secrets": secrets,
    "background children": background,
    "fork bomb": fork_bomb,
    "memory bomb": memory,
    "disk bomb": disk,
    "CPU bomb": cpu,
    "endless output": output,
}


def attempt(name: str, what: str) -> list[bool] | str:
    """Try one thing in a fresh sandbox; True for each that got out."""
    with reachable() as root:
        got = TRIES[what](Trial(name, MAKERS[name](root), root))
    return NOTHING if got == NOT_CLAIMED and name == "virtual" else got


def main() -> int:
    """Try everything and print what was tried and what got out."""
    total = 0
    for name in MAKERS:
        if name == "bubblewrap" and (problem := bubblewrap_problem()):
            print(f"bubblewrap: not tried: {problem}")
            continue
        tried = escaped = 0
        for what in TRIES:
            got = attempt(name, what)
            if isinstance(got, str):
                print(f"  {name:10} {what:36} {got}")
                continue
            tried, escaped = tried + len(got), escaped + sum(got)
            print(f"  {name:10} {what:36} {len(got)} tried, {sum(got)} escaped")
        print(f"{name}: {tried} tried, {escaped} escaped")
        total += escaped
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
