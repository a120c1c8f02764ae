"""Generates ``rucola.sync``, the blocking clients, from the asynchronous clients.

For every class in the list below, the tool reads the public methods from the source (without importing it). It writes
them again with the same signature and docstring; each method passes its call to the event loop of a background thread:

    async def x(...) -> T              ->  def x(...) -> T
    def x(...) -> Coroutine[Any, Any, T]     ->  def x(...) -> T
    def x(...) -> asyncio.Future[T]    ->  def x(...) -> concurrent.futures.Future[T]
    async with                               ->  with
    async for                                ->  for

Run it without arguments to write the files, or with ``--check`` to exit with 1 if they are not current.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "rucola" / "client"
TARGETS = ROOT / "src" / "rucola" / "sync"
FACES = {
    "lite_consumer": "LiteConsumer",
    "lite_pull_consumer": "LitePullConsumer",
    "producer": "Producer",
    "pull_consumer": "PullConsumer",
    "push_consumer": "PushConsumer",
    "simple_consumer": "SimpleConsumer",
    "transaction_producer": "TransactionProducer",
}
VALUES = {
    "rucola.client.allocate": [
        "AllocateMachineRoomNearby",
        "AllocateMessageQueueAveragely",
        "AllocateMessageQueueAveragelyByCircle",
        "AllocateMessageQueueByConfig",
        "AllocateMessageQueueByMachineRoom",
        "AllocateMessageQueueConsistentHash",
        "AllocateMessageQueueStrategy",
    ],
    "rucola.client.config": ["ProducerConfig", "PullConsumerConfig"],
    "rucola.client.consumer_config": [
        "LiteConsumerConfig",
        "LitePullConsumerConfig",
        "PushConsumerConfig",
        "SimpleConsumerConfig",
    ],
    "rucola.client.listener": [
        "ConsumeConcurrentlyContext",
        "ConsumeConcurrentlyStatus",
        "ConsumeOrderlyContext",
        "ConsumeOrderlyStatus",
        "ConsumeResultSuspend",
        "MessageListener",
        "ReconsumeLater",
    ],
    "rucola.client.lite_offset": ["LiteOffset"],
    "rucola.client.message_selector": ["MessageSelector"],
    "rucola.client.pull_result": ["PullResult", "PullStatus", "RawPullResult"],
    "rucola.client.queue_selector": ["QueueSelector"],
    "rucola.client.repeats": ["drop_repeats"],
    "rucola.client.send_result": ["SendResult", "SendStatus"],
    "rucola.client.transaction_listener": [
        "LocalTransactionState",
        "TransactionListener",
        "TransactionSendResult",
    ],
    "rucola.common.message": ["Message", "MessageExt"],
    "rucola.common.message_queue": ["MessageQueue"],
    "rucola.errors": [
        "BrokerError",
        "ClientError",
        "ConfigError",
        "FormatError",
        "LiteQuotaError",
        "NoRouteError",
        "OptionsError",
        "RemotingClosedError",
        "RemotingConnectError",
        "RemotingError",
        "RemotingTimeoutError",
        "RequestTimeoutError",
        "RucolaError",
        "SendManyError",
        "TopicNotExistError",
    ],
    "rucola.formats.compression": ["CompressionType"],
    "rucola.protocol.bodies.heartbeat": ["ConsumeFromWhere", "MessageModel"],
}

ITERATOR = "BlockingMessageIterator"
"""The class of the iterators of ``for`` loops."""

HEAD = '"""{summary}\n\nGenerated from {source} by tools/async_to_sync.py: change that file and run the tool.\n"""\n'

LATE = """
def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'rucola.sync' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
"""


def generate() -> dict[Path, str]:
    """The text of every generated file."""
    files = {TARGETS / f"{module}.py": face_module(module, name) for module, name in FACES.items()}
    files[TARGETS / "__init__.py"] = package_module()
    return {path: formatted(text, path) for path, text in files.items()}


def face_module(module: str, class_name: str) -> str:
    """One blocking class."""
    tree = ast.parse((SOURCES / f"{module}.py").read_text(encoding="utf-8"))
    face = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
    base = next((ast.unparse(name) for name in face.bases if ast.unparse(name) in FACES.values()), "")
    names = {node.name for node in face.body if isinstance(node, ast.FunctionDef)}
    missed = {name.removeprefix("_missed_") for name in names if name.startswith("_missed_")}
    methods = [text for node in face.body if (text := method(node, class_name, base, missed))]
    body = "\n".join([docstring(face, "    "), *methods])
    needed = imports(tree, body)
    lines = [
        HEAD.format(summary=f"``{class_name}`` with blocking calls.", source=f"rucola/client/{module}.py"),
        "from __future__ import annotations",
        "import concurrent.futures" if "concurrent.futures." in body else "",
        *needed,
        "from rucola.client.loop_thread import shared_loop",
        f"from rucola.client.blocking_iterator import {ITERATOR}" if ITERATOR in body else "",
        "from typing import Any" if ": Any" in body else "",
        f"from rucola.client.{module} import {class_name} as Async{class_name}",
        *(f"from rucola.sync.{path} import {name}" for path, name in FACES.items() if name == base),
        "" if base else "from rucola.client.faces import Blocking",
        f"\n\nclass {class_name}({base or 'Blocking'}):\n{body}",
    ]
    return "\n".join(line for line in lines if line) + "\n"


def method(node: ast.stmt, class_name: str, base: str, missed: set[str]) -> str:
    """The blocking form of one member of the class; empty if there is none, or if the base class ``base`` has it.

    A method ``x`` in ``missed`` has a method ``_missed_x``, which takes back a result that nobody received.
    """
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    if node.name == "__init__":
        call = f"Async{class_name}({arguments(node.args)})"
        kind = f": Async{class_name}" if base else ""  # narrower than the type in the base class
        return f"{header(node, '__init__')}\n        self._loop = shared_loop()\n        self._async{kind} = {call}\n"
    if node.name == "__aenter__":
        note = "# after an interruption, __exit__ does not run, but the start may have succeeded"
        run = "self._loop.run(self._async.__aenter__(), lambda client: client.shutdown())"
        return f"{header(node, '__enter__')}\n        {note}\n        {run}\n        return self\n"
    if node.name == "__aexit__":
        text = "    def __exit__(self, *exc_info: Any) -> None:"
        return f"{text}\n        self._loop.run(self._async.__aexit__(*exc_info))\n"
    if node.name == "__aiter__":
        return f"    def __iter__(self) -> {ITERATOR}:\n        return self.messages()\n"
    if node.name == "messages":
        body = f"return {ITERATOR}(self._loop, self._async.messages())"
        return f"    def messages(self) -> {ITERATOR}:\n{docstring(node, '        ')}\n        {body}\n"
    if node.name.startswith("_"):
        return ""
    if any(isinstance(item, ast.Name) and item.id == "property" for item in node.decorator_list):
        text = header(node, node.name)
        return f"    @property\n{text}\n{docstring(node, '        ')}\n        return self._async.{node.name}\n"
    given = arguments(node.args)
    if isinstance(node, ast.AsyncFunctionDef) or result_of(node):
        hook = f", self._async._missed_{node.name}" if node.name in missed else ""
        call = f"self._loop.run(self._async.{node.name}({given}){hook})"
    else:
        verb = "submit" if future_of(node) else "call"
        call = f"self._loop.{verb}(self._async.{node.name}{', ' if given else ''}{given})"
    result = "" if node.returns is not None and "None" in (ast.unparse(node.returns), result_of(node)) else "return "
    return f"{header(node, node.name)}\n{docstring(node, '        ')}\n        {result}{call}\n"


def header(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    """``def name(...) -> T:`` of the blocking form."""
    returns = ast.unparse(node.returns) if node.returns is not None else "None"
    inner = future_of(node)
    if inner:
        returns = f"concurrent.futures.Future[{inner}]"
    if result_of(node) and name != "__exit__":
        returns = result_of(node)
    return f"    def {name}({ast.unparse(node.args)}) -> {returns}:"


def future_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Returns T if the method returns an ``asyncio.Future[T]``, otherwise an empty text."""
    if isinstance(node.returns, ast.Subscript) and ast.unparse(node.returns.value) == "asyncio.Future":
        return ast.unparse(node.returns.slice)
    return ""


def result_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Returns T if the method returns a ``Coroutine[Any, Any, T]``, otherwise an empty text."""
    if isinstance(node.returns, ast.Subscript) and ast.unparse(node.returns.value) == "Coroutine":
        assert isinstance(node.returns.slice, ast.Tuple)
        return ast.unparse(node.returns.slice.elts[2])
    return ""


def arguments(args: ast.arguments) -> str:
    """The arguments of the call, taken from the signature."""
    given = [argument.arg for argument in [*args.posonlyargs, *args.args] if argument.arg != "self"]
    if args.vararg is not None:
        given.append(f"*{args.vararg.arg}")
    return ", ".join([*given, *(f"{argument.arg}={argument.arg}" for argument in args.kwonlyargs)])


def docstring(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, indent: str) -> str:
    """The docstring of ``node`` at ``indent``; every public member must have one."""
    text = ast.get_docstring(node)
    if text is None:
        raise SystemExit(f"async_to_sync: {node.name} (line {node.lineno}) has no docstring")
    for before, after in (("async with", "with"), ("async for", "for"), ("await ", ""), (", on one event loop", "")):
        text = text.replace(before, after)
    lines = text.splitlines()
    body = "\n".join(f"{indent}{line}".rstrip() for line in lines)
    end = f"\n{indent}" if len(lines) > 1 else ""
    return f'{indent}"""{body.strip()}{end}"""'


def imports(tree: ast.Module, body: str) -> list[str]:
    """The source module's imports of names that appear in the generated signatures."""
    used = {node.id for node in ast.walk(ast.parse(f"class _:\n{body}")) if isinstance(node, ast.Name)}
    lines = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names = [alias.name for alias in node.names if (alias.asname or alias.name) in used]
            if names:
                lines.append(f"from {node.module} import {', '.join(names)}")
    return lines


def package_module() -> str:
    """The package ``rucola.sync``: the clients, and the values that they accept and return. Each is imported when it is
    first used.
    """
    places = {name: module for module, names in VALUES.items() for name in names}
    places |= {name: f"rucola.sync.{module}" for module, name in FACES.items()}
    lines = [
        HEAD.format(
            summary="The clients with blocking calls; the asynchronous ones, with the same names, are in ``rucola``.",
            source="rucola/client/",
        ),
        "from __future__ import annotations",
        "from importlib import import_module",
        "from typing import TYPE_CHECKING",
        "if TYPE_CHECKING:",
        *(f"    from {module} import {name}" for name, module in sorted(places.items())),
        f"__all__ = {sorted(places)!r}",
        f"_MODULES = {dict(sorted(places.items()))!r}",
        LATE,
    ]
    return "\n".join(lines) + "\n"


def formatted(text: str, path: Path) -> str:
    """Returns ``text`` after the formatter and the import sorter."""
    known = 'lint.isort.known-first-party=["rucola"]'  # otherwise the result would depend on which files already exist
    check = ["check", "--select", "I,F401", "--fix", "--quiet", "--config", known]
    for command in (check, ["format", "--quiet"]):
        arguments = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        text = subprocess.run(arguments, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def main(argv: list[str]) -> int:
    """Writes the files, or with ``--check`` compares them."""
    files = generate()
    stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    left_over = sorted(set(TARGETS.glob("*.py")) - set(files))
    if argv == ["--check"]:
        for path in [*stale, *left_over]:
            print(f"{path.relative_to(ROOT)} is not current; run tools/async_to_sync.py")
        return 1 if stale or left_over else 0
    if argv:
        print("usage: async_to_sync.py [--check]", file=sys.stderr)
        return 2
    TARGETS.mkdir(parents=True, exist_ok=True)
    for path in left_over:
        path.unlink()
        print(f"removed {path.relative_to(ROOT)}")
    for path in stale:
        path.write_text(files[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
